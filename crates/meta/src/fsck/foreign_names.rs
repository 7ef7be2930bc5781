//! [`ForeignNames`]: a partition's names of other partitions' inodes in the order of these, for the checks of those.
//!
//! Each of the others asks for the names of its own inodes. A walk over all names for each of them would be as many
//! walks as the volume has partitions, in each partition. So one walk sorts the foreign names, of which there are few,
//! and whoever asks while it is fresh is answered from that.
//!
//! Invariants: who asks for some inodes alone, to be certain of a fault, is answered from a version that was taken
//! after the request came. Who asks for a range looks for suspects, and gets a version of after the beginning of its
//! check; or, if nobody asked for that, one that may be older by what it says: what that is wrong about is looked at
//! again. Not here: what is concluded (meta-core: `fsck`, `review`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use cairn_meta_core::{NameScan, Names, NamespaceSnapshot};
use cairn_types::Time;
use cairn_wire::error::WireError;
use cairn_wire::meta::{CheckPartRequest, CheckPartResponse, NamesOf};
use tokio::time::sleep;

use super::{REST, STEP, not_leading};
use crate::partition::Partition;

/// Inodes of one answer about a range.
const LISTED: usize = 24 << 10;
/// Inodes of one answer of which a name comes with it, and of one request.
pub(super) const LISTED_WITH_NAME: usize = 2048;
/// Inodes that are sorted at a time; of more the first ones.
const SORTED_MAX: usize = 256 << 10;
/// By so much a list may be older than a check that nobody asked for; nor is it kept for longer.
pub(super) const KEPT: Duration = Duration::from_secs(3600);

/// Names of other partitions' inodes, as one version has them.
pub(super) struct ForeignNames {
    term: u64,
    /// Before the version was taken.
    taken: Time,
    /// Names of inodes from this one on and up to that one are complete.
    first: u64,
    last: u64,
    names: BTreeMap<u64, Names>,
    locks: BTreeSet<u64>,
}

impl ForeignNames {
    async fn make(partition: &Partition, term: u64, first: u64) -> Result<Self, WireError> {
        let taken = partition.state.common.clock.now();
        let snapshot = partition.state.namespace.read().snapshot();
        let scan = NameScan::of_others(&snapshot, first, SORTED_MAX);
        let (names, last, locks) = walk(partition, &snapshot, scan).await?;
        Ok(Self { term, taken, first, last, names, locks })
    }

    /// Whether a request that came then can be answered from it.
    fn serves(&self, request: &CheckPartRequest, term: u64, arrived: Time) -> bool {
        let (first, last, age) = match request.only.iter().max() {
            None => (request.first, request.first, Duration::from_millis(request.age_ms)),
            Some(last) => (request.only.iter().min().copied().unwrap_or(1), *last, Duration::ZERO),
        };
        self.term == term && self.taken + age >= arrived && self.first <= first && last <= self.last
    }

    /// What it has of a range, or of some inodes, and up to which inode of the range that is all.
    fn of(&self, request: &CheckPartRequest) -> (Vec<NamesOf>, u64) {
        if !request.only.is_empty() {
            let only: BTreeSet<u64> = request.only.iter().copied().collect();
            let found = only.iter().filter_map(|id| Some(to_wire(*id, self.names.get(id)?, true)));
            return (found.collect(), request.last);
        }
        let last = request.last.min(self.last);
        let mut range = self.names.range(request.first..=last.max(request.first));
        let names: Vec<NamesOf> = range.by_ref().take(LISTED).map(|(id, names)| to_wire(*id, names, false)).collect();
        match range.next() {
            Some((beyond, _)) => (names, beyond - 1),
            None => (names, last),
        }
    }
}

/// Walks over all names, with rests.
async fn walk(
    partition: &Partition,
    snapshot: &NamespaceSnapshot,
    mut scan: NameScan,
) -> Result<(BTreeMap<u64, Names>, u64, BTreeSet<u64>), WireError> {
    let state = &partition.state;
    loop {
        let start = state.common.clock.now();
        if !scan.step(snapshot, STEP) {
            return Ok(scan.into_parts());
        }
        if state.leading_term().is_none() {
            return Err(not_leading());
        }
        sleep(state.common.clock.now().since(start) * REST).await;
    }
}

/// Adds the names that the partition has of what is asked for to an answer. `turn`: the list of before.
pub(super) async fn list(
    partition: &Arc<Partition>,
    request: &CheckPartRequest,
    arrived: Time,
    turn: &mut Option<ForeignNames>,
    answer: &mut CheckPartResponse,
) -> Result<(), WireError> {
    let state = &partition.state;
    let term = state.leading_term().ok_or_else(not_leading)?;
    let serves = |list: &ForeignNames| list.serves(request, term, arrived);
    if !turn.as_ref().is_some_and(serves) {
        // Not two at a time.
        *turn = None;
        let first = if request.only.is_empty() { request.first } else { 1 };
        *turn = Some(ForeignNames::make(partition, term, first).await?);
        tokio::spawn(forget(Arc::downgrade(partition), turn.as_ref().map(|list| list.taken)));
    }
    let list = turn.as_ref().filter(|list| serves(list));
    let Some(list) = list else {
        // Beyond what is sorted at a time.
        let snapshot = state.namespace.read().snapshot();
        let scan = NameScan::of(&snapshot, request.only.iter().copied());
        let (names, _, locks) = walk(partition, &snapshot, scan).await?;
        answer.names = names.iter().map(|(id, names)| to_wire(*id, names, true)).collect();
        answer.locks = locks.into_iter().collect();
        return Ok(());
    };
    (answer.names, answer.last) = list.of(request);
    answer.locks = list.locks.iter().copied().collect();
    Ok(())
}

/// Gives the memory back, unless another list has taken its place. A partition that is closed here is not kept for it.
async fn forget(partition: Weak<Partition>, taken: Option<Time>) {
    sleep(KEPT).await;
    let Some(partition) = partition.upgrade() else { return };
    let mut turn = partition.state.fsck.turn.lock().await;
    if turn.as_ref().map(|list| list.taken) == taken {
        *turn = None;
    }
}

/// What other partitions that this node leads have of the same, as far as it fits into the answer.
pub(super) async fn list_beside(
    beside: &[Arc<Partition>],
    request: &CheckPartRequest,
    arrived: Time,
    answer: &mut CheckPartResponse,
) {
    let max = if request.only.is_empty() { LISTED } else { LISTED_WITH_NAME };
    let mut listed = answer.names.len();
    for partition in beside {
        if listed >= max {
            return;
        }
        let mut turn = partition.state.fsck.turn.lock().await;
        if partition.handle.read_permit().is_err() {
            continue;
        }
        let mut part =
            CheckPartResponse { partition: partition.state.id.get(), last: request.last, ..Default::default() };
        let found = list(partition, request, arrived, &mut turn, &mut part).await;
        // Who is not in the answer is asked by itself.
        if found.is_ok() && listed + part.names.len() <= max {
            listed += part.names.len();
            answer.beside.push(part);
        }
    }
}

fn to_wire(inode: u64, names: &Names, with_name: bool) -> NamesOf {
    let Names { count, directory, name, types, open } = names.clone();
    let name = if with_name { name } else { Vec::new() };
    NamesOf { inode, count, directory, types, open, name }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(at: u64) -> Time {
        Time(1_000_000_000 * at)
    }

    fn list_of(taken: u64, last: u64, inodes: std::ops::Range<u64>) -> ForeignNames {
        let name = |id: u64| (id, Names { count: 1, directory: 7, name: b"n".to_vec(), types: 16, open: false });
        let (names, locks) = (inodes.map(name).collect(), BTreeSet::from([9]));
        ForeignNames { term: 3, taken: second(taken), first: 1, last, names, locks }
    }

    fn range(first: u64, last: u64) -> CheckPartRequest {
        CheckPartRequest { first, last, ..CheckPartRequest::default() }
    }

    /// A fault would be told of names as they were before the inode was looked at, or damage not be found that was
    /// there when somebody asked; or each partition that asks cost a walk over all names of all others.
    #[test]
    fn who_has_to_be_certain_gets_a_version_of_after_the_question() {
        let list = list_of(10, u64::MAX, 100..200);
        let only = CheckPartRequest { only: vec![150, 5], age_ms: 99_000, ..CheckPartRequest::default() };
        assert!(list.serves(&only, 3, second(10)), "it came while the list was waited for");
        assert!(!list.serves(&only, 3, second(11)), "the version is older than the question");
        assert!(!list.serves(&only, 4, second(10)), "of a leadership that has ended");
        let suspects = CheckPartRequest { age_ms: 20_000, ..range(1, 99) };
        assert!(list.serves(&suspects, 3, second(30)), "the check began when the version was taken");
        assert!(!list.serves(&suspects, 3, second(31)), "it began later");
        assert!(!list.serves(&range(1, 99), 3, second(11)), "a build that says nothing gets what it always got");
        let part = list_of(10, 500, 100..501);
        let beyond = CheckPartRequest { only: vec![150, 501], ..CheckPartRequest::default() };
        assert!(!part.serves(&beyond, 3, second(10)) && !part.serves(&range(501, 900), 3, second(10)));
    }

    /// Names would be missing between two answers, or be counted twice.
    #[test]
    fn ranges_go_on_where_the_answer_before_ended() {
        let list = list_of(1, 1 << 30, 100..100 + 2 * LISTED as u64 + 5);
        let (mut from, mut found, mut answers) = (50, Vec::new(), 0);
        while from <= 1 << 20 {
            let (names, last) = list.of(&range(from, 1 << 20));
            assert!(names.len() <= LISTED && names.iter().all(|names| names.name.is_empty()));
            found.extend(names.into_iter().map(|names| names.inode));
            (from, answers) = (last + 1, answers + 1);
        }
        assert_eq!((found.len(), answers), (2 * LISTED + 5, 3));
        assert!(found.is_sorted_by(|a, b| a < b));
        let part = list_of(1, 120, 100..121);
        assert_eq!(part.of(&range(110, 500)), (part.of(&range(110, 120)).0, 120), "not beyond what was sorted");
        let only = CheckPartRequest { only: vec![119, 3, 101], ..CheckPartRequest::default() };
        let found = part.of(&only).0;
        assert_eq!(
            found.iter().map(|names| (names.inode, &names.name[..])).collect::<Vec<_>>(),
            [(101, &b"n"[..]), (119, b"n")]
        );
    }
}
