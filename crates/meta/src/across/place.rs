//! [`Placement`]: in which partition a new directory is made.
//!
//! In that of its parent, as a rule: what lies together is looked at together. A partition that has much more memory in
//! use than the others, or is much busier, makes new directories elsewhere: of two that were drawn, in the one with
//! less; directories of one parent together. A request may name the partition.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cairn_types::{ErrorCode, PartitionId};
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use cairn_wire::meta::{AskTxRequest, AskTxResponse, MkdirRequest};
use parking_lot::Mutex;
use prost::Message;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::{CALL, Peers, drive, shard};
use crate::partition::{Partition, PartitionState};

/// Between two looks at what other partitions have.
const TICK: Duration = Duration::from_secs(10);
/// Others that are asked each time, drawn anew.
const SAMPLE: usize = 8;
/// A partition makes directories elsewhere when it has more memory in use than the others by this factor, and by so
/// many bytes.
const FACTOR: u64 = 110;
const BYTES: u64 = 16 << 20;
/// Or when its log takes more of its time than theirs by this factor, and so many thousandths.
const BUSY_FACTOR: u64 = 150;
const BUSY: u64 = 500;
/// Parents of which it is remembered where their last directory went.
const PARENTS_MAX: usize = 4096;

#[derive(Default)]
pub(super) struct Placement {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// Partitions with less than this one, and what they had, bytes or thousandths; empty: new directories stay here.
    lighter: Vec<(PartitionId, u64)>,
    draws: u64,
    /// Where the last directory of a parent went.
    last: BTreeMap<u64, PartitionId>,
}

impl Inner {
    /// Of two that are drawn the one with less.
    fn draw(&mut self, parent: u64) -> Option<PartitionId> {
        if self.lighter.is_empty() {
            self.last.clear();
            return None;
        }
        if let Some(last) = self.last.get(&parent)
            && self.lighter.iter().any(|(lighter, _)| lighter == last)
        {
            return Some(*last);
        }
        let mut one = || {
            self.draws = self.draws.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            self.lighter[(self.draws >> 33) as usize % self.lighter.len()]
        };
        let (first, second) = (one(), one());
        let chosen = if first.1 <= second.1 { first.0 } else { second.0 };
        if self.last.len() >= PARENTS_MAX {
            self.last.clear();
        }
        self.last.insert(parent, chosen);
        Some(chosen)
    }
}

impl Placement {
    /// Whether the new directory of a request may go elsewhere.
    pub(super) fn may_go_elsewhere(&self, message: &[u8]) -> bool {
        !self.inner.lock().lighter.is_empty()
            || MkdirRequest::decode(message).is_ok_and(|request| request.partition != 0)
    }

    /// A partition has no room for new directories.
    pub(super) fn avoid(&self, full: PartitionId) {
        let mut inner = self.inner.lock();
        inner.lighter.retain(|(lighter, _)| *lighter != full);
        inner.last.retain(|_, last| *last != full);
    }

    /// Whether a request names a partition that is not in this node's map.
    pub(super) fn is_unknown(state: &PartitionState, peers: &Peers, opcode: Opcode, message: &[u8]) -> bool {
        let wished = (opcode == Opcode::Mkdir).then(|| MkdirRequest::decode(message).ok());
        let wished = wished.flatten().map(|request| PartitionId(request.partition));
        wished.is_some_and(|wished| wished.get() != 0 && !peers.partitions(state.volume).contains(&wished))
    }

    /// Where the directory of a request goes, if that is not here.
    pub(super) fn of_new_directory(
        &self,
        state: &PartitionState,
        peers: &Peers,
        opcode: Opcode,
        message: &[u8],
    ) -> Result<Option<PartitionId>, WireError> {
        if opcode == Opcode::AddShard {
            return Ok(shard::target(message).filter(|target| *target != state.id));
        }
        if opcode != Opcode::Mkdir {
            return Ok(None);
        }
        let Ok(request) = MkdirRequest::decode(message) else { return Ok(None) };
        let wished = PartitionId(request.partition);
        if wished == state.id {
            return Ok(None);
        }
        let stays = !state.namespace.read().may_be_elsewhere(request.parent, &request.name);
        if request.partition == 0 {
            return Ok(if stays { None } else { self.inner.lock().draw(request.parent) });
        }
        if stays {
            let text = format!(
                "the directory cannot be in {wished}: what a quota counts, and the trash, stay in one partition; leave the partition out"
            );
            return Err(WireError::new(ErrorCode::BadRequest, text));
        }
        let all = peers.partitions(state.volume);
        if all.contains(&wished) {
            return Ok(Some(wished));
        }
        let text = format!(
            "{wished} is no partition of {}, which has {} from {} on; `cairn admin partition ls` shows them",
            state.volume,
            all.len(),
            all.first().copied().unwrap_or(state.id)
        );
        Err(WireError::new(ErrorCode::BadRequest, text))
    }
}

/// Looks at what others have while this partition has much.
pub(super) async fn run(partition: &Arc<Partition>, peers: &Arc<Peers>) {
    let state = &partition.state;
    loop {
        sleep(TICK).await;
        let own = Amount {
            bytes: state.namespace.read().memory_bytes(),
            busy: state.load.since_last(state.common.clock.now()).0.into(),
        };
        let mut lighter = Vec::new();
        if state.leading_term().is_some() && (own.bytes > BYTES || own.busy > BUSY) {
            let known = sample(partition, peers).await;
            lighter = lighter_than(own, &known);
        }
        state.across.place.inner.lock().lighter = lighter;
    }
}

async fn sample(partition: &Arc<Partition>, peers: &Arc<Peers>) -> Vec<(PartitionId, Amount)> {
    let mut others = peers.partitions(partition.state.volume);
    others.retain(|other| *other != partition.state.id);
    let mut asked = JoinSet::new();
    let skip = partition.state.common.clock.now().0 as usize;
    let count = others.len();
    for at in 0..count.min(SAMPLE) {
        // Steps that meet each one once.
        let other = others[(skip % count + at * (count / SAMPLE.min(count))) % count];
        let request = AskTxRequest { header: Some(drive::header(partition, other)), ..AskTxRequest::default() };
        let peers = peers.clone();
        asked.spawn(async move {
            let answer: Result<AskTxResponse, _> = peers.call(other, Opcode::AskTx, &request, CALL).await;
            answer
                .ok()
                .filter(|a| !a.full)
                .map(|a| (other, Amount { bytes: a.memory_bytes, busy: a.busy_permille.into() }))
        });
    }
    let mut known = Vec::new();
    while let Some(answer) = asked.join_next().await {
        known.extend(answer.ok().flatten());
    }
    known
}

/// What a partition has to carry.
#[derive(Clone, Copy)]
struct Amount {
    bytes: u64,
    /// Thousandths of the time.
    busy: u64,
}

/// Those with less than this one has, if it has much more than the average: of memory, or else of work.
fn lighter_than(own: Amount, known: &[(PartitionId, Amount)]) -> Vec<(PartitionId, u64)> {
    let lighter = |of: fn(&Amount) -> u64, factor: u64, most: &dyn Fn(u64) -> bool| {
        let sum: u64 = of(&own) + known.iter().map(|(_, amount)| of(amount)).sum::<u64>();
        let average = sum / (known.len() as u64 + 1);
        if of(&own) * 100 < average * factor || !most(average) {
            return Vec::new();
        }
        known.iter().map(|(id, amount)| (*id, of(amount))).filter(|(_, amount)| *amount < average).collect()
    };
    let by_memory = lighter(|amount| amount.bytes, FACTOR, &|average| own.bytes >= average + BYTES);
    if by_memory.is_empty() { lighter(|amount| amount.busy, BUSY_FACTOR, &|_| own.busy > BUSY) } else { by_memory }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const P: fn(u32) -> PartitionId = PartitionId;

    /// A volume that has just begun would spread its directories over partitions for nothing; or one never would.
    #[test]
    fn only_what_has_much_more_makes_directories_elsewhere() {
        for (own, others, lighter) in [
            (30, vec![0, 0], 2),
            (16, vec![0, 0], 0),
            (100, vec![95, 100], 0),
            (100, vec![60, 90], 1),
            (100, vec![200, 10], 0),
        ] {
            let amount = |bytes: u64| Amount { bytes: bytes * MIB, busy: 900 };
            let known: Vec<_> = others.iter().zip(2..).map(|(bytes, id)| (P(id), amount(*bytes))).collect();
            assert_eq!(lighter_than(amount(own), &known).len(), lighter, "{own} of {others:?}");
        }
    }

    /// One thread would do all the work of a volume that has little memory in use.
    #[test]
    fn what_is_much_busier_makes_directories_elsewhere() {
        for (own, others, lighter) in
            [(600, vec![0, 0], 2), (500, vec![0, 0], 0), (900, vec![800, 900], 0), (900, vec![100, 700], 1)]
        {
            let amount = |busy: u64| Amount { bytes: 100 * MIB, busy };
            let known: Vec<_> = others.iter().zip(2..).map(|(busy, id)| (P(id), amount(*busy))).collect();
            let found = lighter_than(amount(own), &known);
            assert_eq!(found.len(), lighter, "{own} of {others:?}");
            assert!(found.iter().all(|(id, busy)| *busy == others[id.get() as usize - 2]));
        }
    }

    /// All directories of a parent would be strewn, or all new ones go to one partition.
    #[test]
    fn directories_of_a_parent_go_together_and_others_elsewhere() {
        let lighter = (2..10).map(|id| (P(id), u64::from(id))).collect();
        let mut inner = Inner { lighter, ..Inner::default() };
        let of_first = inner.draw(1);
        assert!((0..50).all(|_| inner.draw(1) == of_first));
        let drawn: std::collections::BTreeSet<_> = (2..200).map(|parent| inner.draw(parent)).collect();
        assert!(drawn.len() > 4 && !drawn.contains(&None), "{drawn:?}");
        inner.lighter.clear();
        assert_eq!(inner.draw(1), None);
    }
}
