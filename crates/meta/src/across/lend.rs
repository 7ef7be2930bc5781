//! [`Desk`]: requests that find no room in what their partition may use of the volume's limit, and who gets them some.
//!
//! | part | at |
//! |---|---|
//! | this | any partition: requests wait, the home is asked for all of them together, and before there are any when little is left |
//! | `home.rs` | the partition of the root: lends, and has others give back what they do not use |
//! | `set.rs` | the same: a limit is set, and holds when every partition has its bound |
//!
//! Invariants: one round of asking is under way at a time; who waits is answered by a round that began after he came.
//! Room that was got for a request is not given back before the request has used it. Not here: what may be used, and by
//! whom (`cairn_meta_core`).

mod home;
mod set;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cairn_meta_core::{Amounts, AtLimit};
use cairn_types::InodeId;
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use cairn_wire::meta::{AskBoundRequest, AskBoundResponse, SetBound, TellBoundRequest, TellBoundResponse, VolumeBound};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::sleep;

use super::{Peers, drive};
use crate::config::MetaTimings;
use crate::partition::Partition;
use cairn_rpc::Reply;
pub(super) use set::set;

/// How long the home may take: it asks all others, and has them give back.
const ASK: Duration = Duration::from_millis(3500);
/// How long another partition may take to say what it uses, or to log its bound.
const TELL: Duration = Duration::from_secs(1);
/// Pause after more was asked for in vain, before requests wait for it.
const LOW_PAUSE: Duration = Duration::from_secs(1);

/// Of one partition's leader.
#[derive(Default)]
pub(crate) struct Desk {
    waiting: Mutex<Waiting>,
    /// Rounds that began.
    begun: AtomicU64,
    /// The last round that ended: its number, the least it asked for, what came of it.
    last: tokio::sync::Mutex<Option<(u64, Amounts, Verdict)>>,
    /// One request to lend is carried out at a time.
    lender: tokio::sync::Mutex<()>,
    /// Little is left.
    low: Notify,
    /// As in the timings.
    map_rounds: OnceLock<u64>,
}

#[derive(Default)]
struct Waiting {
    last: u64,
    needs: BTreeMap<u64, Need>,
}

#[derive(Clone, Copy)]
struct Need {
    amounts: Amounts,
    /// There is room for it, which it has not used yet.
    has_room: bool,
}

/// What a round came to.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Verdict {
    /// There may be room now.
    Again,
    /// There is none anywhere.
    Full(AtLimit),
    /// Nobody can tell now, and why.
    Unknown(String),
}

/// A request that waits, or has got room.
pub(super) struct Ticket<'a> {
    desk: &'a Desk,
    number: u64,
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.desk.waiting.lock().needs.remove(&self.number);
    }
}

impl Desk {
    /// Heartbeats after which the map is fresh.
    pub(super) fn map_rounds(&self) -> u64 {
        self.map_rounds.get().copied().unwrap_or(MetaTimings::default().map_rounds)
    }

    /// What the partition may use has become little.
    pub(crate) fn note_low(&self) {
        self.low.notify_one();
    }

    pub(super) fn ticket(&self, amounts: Amounts) -> Ticket<'_> {
        let mut waiting = self.waiting.lock();
        waiting.last += 1;
        let number = waiting.last;
        waiting.needs.insert(number, Need { amounts, has_room: false });
        Ticket { desk: self, number }
    }

    /// The last that waits, and what all need.
    fn waiting(&self) -> (u64, Amounts) {
        let waiting = self.waiting.lock();
        let needs = waiting.needs.values().filter(|need| !need.has_room);
        (waiting.last, needs.fold(Amounts::NONE, |sum, need| sum.plus(need.amounts)))
    }

    /// What is about to be used.
    fn held(&self) -> Amounts {
        let waiting = self.waiting.lock();
        let needs = waiting.needs.values().filter(|need| need.has_room);
        needs.fold(Amounts::NONE, |sum, need| sum.plus(need.amounts))
    }

    /// All that wait up to now have got room.
    fn hold(&self, up_to: u64) {
        self.waiting.lock().needs.range_mut(..=up_to).for_each(|(_, need)| need.has_room = true);
    }
}

/// Asks for room for a request; `None`: for what may come.
pub(super) async fn ask(partition: &Partition, peers: &Arc<Peers>, ticket: Option<&Ticket<'_>>) -> Verdict {
    let desk = &partition.state.across.desk;
    let least = ticket.map_or(Amounts::NONE, |ticket| {
        let mut waiting = desk.waiting.lock();
        waiting.needs.get_mut(&ticket.number).map_or(Amounts::NONE, |need| {
            need.has_room = false;
            need.amounts
        })
    });
    let came = desk.begun.load(SeqCst);
    let mut last = desk.last.lock().await;
    if let Some((number, asked, verdict)) = &*last
        && *number > came
        && (*verdict == Verdict::Again || least.covers(*asked) && *asked != Amounts::NONE)
    {
        return verdict.clone();
    }
    let number = desk.begun.fetch_add(1, SeqCst) + 1;
    let verdict = round(partition, peers, least).await;
    *last = Some((number, least, verdict.clone()));
    verdict
}

async fn round(partition: &Partition, peers: &Arc<Peers>, least: Amounts) -> Verdict {
    let state = &partition.state;
    let desk = &state.across.desk;
    let (up_to, wanted) = desk.waiting();
    if state.namespace.read().is_home() {
        return match home::make_room(partition, peers, least).await {
            Ok(None) => {
                desk.hold(up_to);
                Verdict::Again
            }
            Ok(Some(why)) => Verdict::Full(why),
            Err(error) => Verdict::Unknown(error.message),
        };
    }
    let (used, number) = {
        let namespace = state.namespace.read();
        (namespace.volume_use().plus(desk.held()), namespace.bound().map_or(0, |bound| bound.number))
    };
    let answer = match peers.owner(state.volume, InodeId::ROOT.0) {
        Err(error) => Err(error),
        Ok(root) => {
            let request = AskBoundRequest {
                header: Some(drive::header(partition, root)),
                partition: state.id.get(),
                number,
                bytes_used: used.bytes,
                inodes_used: used.inodes,
                bytes_least: least.bytes,
                inodes_least: least.inodes,
                bytes_wanted: wanted.bytes,
                inodes_wanted: wanted.inodes,
            };
            peers.call::<AskBoundResponse>(root, Opcode::AskBound, &request, ASK).await
        }
    };
    let unknown = |error: WireError| {
        Verdict::Unknown(format!(
            "the partition of the root, which keeps the volume's limit, did not lend more of it: {}",
            error.message
        ))
    };
    match answer {
        Err(error) => unknown(error),
        Ok(AskBoundResponse { bound: Some(bound), .. }) => {
            desk.hold(up_to);
            match partition.propose_own(Opcode::SetBound, &SetBound { bound: Some(bound) }).await {
                Ok(()) => Verdict::Again,
                Err(error) => unknown(error),
            }
        }
        Ok(AskBoundResponse { at_limit, .. }) => AtLimit::from_code(at_limit).map_or(Verdict::Again, Verdict::Full),
    }
}

/// Answers a partition that asks this one, its home.
pub(super) async fn lend(partition: Arc<Partition>, peers: Arc<Peers>, request: AskBoundRequest, reply: Reply) {
    match home::lend(&partition, &peers, &request).await {
        Ok(answer) => reply.ok(&answer, ()),
        Err(error) => reply.err(error),
    }
}

/// Takes a bound from the home, and says what is in use.
pub(super) async fn told(partition: Arc<Partition>, request: TellBoundRequest, reply: Reply) {
    let state = &partition.state;
    let outcome = match request.bound {
        Some(told) => {
            let (has, used) = {
                let namespace = state.namespace.read();
                (namespace.bound().map_or(Amounts::ANY, |bound| bound.max), namespace.volume_use())
            };
            // What requests here have got and not used yet stays, unless nothing more may be used at all.
            let kept = used.plus(state.across.desk.held()).min(has);
            let amounts = Amounts::new(told.bytes, told.inodes);
            let amounts = amounts.both(kept, |told, kept| if told == 0 { told } else { told.max(kept) });
            let bound = VolumeBound { bytes: amounts.bytes, inodes: amounts.inodes, ..told };
            partition.propose_own(Opcode::SetBound, &SetBound { bound: Some(bound) }).await
        }
        None => partition.not_understood(Opcode::SetBound).map_or(Ok(()), Err),
    };
    if let Err(error) = outcome {
        return reply.err(error);
    }
    let (bound, used) = {
        let namespace = state.namespace.read();
        (namespace.bound(), namespace.volume_use().plus(state.across.desk.held()))
    };
    let max = bound.map_or(Amounts::ANY, |bound| bound.max);
    let bound = VolumeBound {
        partition: state.id.get(),
        number: bound.map_or(0, |bound| bound.number),
        bytes: max.bytes,
        inodes: max.inodes,
    };
    let answer = TellBoundResponse { bound: Some(bound), bytes_used: used.bytes, inodes_used: used.inodes };
    reply.ok(&answer, ());
}

/// Asks for more before requests wait for it; at the home: goes on with what a leader before did not end.
pub(super) async fn run(partition: &Arc<Partition>, peers: &Arc<Peers>, timings: &MetaTimings) {
    let (state, tick) = (&partition.state, timings.reclaim_idle);
    state.across.desk.map_rounds.get_or_init(|| timings.map_rounds);
    loop {
        tokio::select! {
            () = state.pause(tick) => {}
            () = state.across.desk.low.notified() => {}
        }
        if state.leading_term().is_none() {
            continue;
        }
        let (is_home, is_low) = {
            let namespace = state.namespace.read();
            (namespace.is_home(), namespace.is_low())
        };
        if is_home {
            if let Err(error) = set::settle(partition, peers).await {
                tracing::debug!(partition = %state.id, %error, "not all partitions know the volume's limit; will be repeated");
                sleep(LOW_PAUSE).await;
            }
        } else if is_low {
            ask(partition, peers, None).await;
            if state.namespace.read().is_low() {
                sleep(LOW_PAUSE).await;
            }
        }
    }
}
