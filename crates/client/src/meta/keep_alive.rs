//! Keep-alives: the lease of a session at every partition that knows it, renewed for as long as somebody uses the
//! session. Partitions that one node leads are renewed by one request.
//!
//! A partition ends a session of which it heard nothing for a lease time (20 s), and who ends it anywhere has to open
//! another one everywhere. Invariants: partitions are renewed side by side, and one that does not answer delays no
//! other one, nor is it waited for so long that the lease could end before it is asked anew; what a partition names as
//! unlinked and is open here is held before that is acknowledged. Not here: what a lease is good for (`lease`), what is
//! kept open by it (`soft`).
use super::call::MetaCaller;
use super::route::To;
use super::session::Session;
use crate::credentials::Credentials;
use crate::encoded_message::EncodedMessage;
use crate::error::{ClientError, Result};
use crate::leader::Failure;
use crate::refusal::Refusal;
use crate::stale::Pace;
use cairn_types::{ErrorCode, Time};
use cairn_wire::Opcode;
use cairn_wire::common::Empty;
use cairn_wire::meta::{
    AttributesResponse, HoldRequest, KeepAliveRequest, KeepAliveResponse, MetaHeader, OverwriteLeaseRequest,
    OverwriteLeaseResponse, ReleaseRequest, WantedLease,
};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use std::collections::BTreeMap;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until, timeout};

/// A lease is renewed so long after it was renewed last.
const EVERY: Duration = Duration::from_secs(5);
/// The same at partitions that gave leases or delegations, of which the session learns so whether one is wanted.
const EVERY_LEASED: Duration = Duration::from_millis(500);
/// There the answer may come so late, if nothing is wanted before; then the next one is asked for at once.
const WAIT: Duration = Duration::from_secs(2);
/// An answer is so much later on the way.
const WAIT_SLACK: Duration = Duration::from_secs(1);
/// A partition that did not answer is given up after this, and asked anew after a pause: twice within a lease, and then
/// some.
const PATIENCE: Duration = Duration::from_secs(6);
const AGAIN: Duration = Duration::from_secs(1);
/// Partitions that are asked at once. One that takes longer than [`LATE`] is waited for beside them.
const AT_ONCE: usize = 64;
const LATE: Duration = Duration::from_secs(1);
/// What is due within so long is done together.
const TOGETHER: Duration = Duration::from_millis(100);
/// What would be renewed within so long is renewed with what is due, so that it is with it from then on.
const EARLY: Duration = Duration::from_secs(1);

mod by_node;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Work {
    /// Tells the root's partition of a session that writes.
    Announce,
    Renew(u32),
}

/// When what is done again.
#[derive(Default)]
struct Schedule {
    all: BTreeMap<Work, State>,
}

#[derive(Clone, Copy, Default)]
struct State {
    running: bool,
    /// How it ended last, and when; `None`: never.
    failed: bool,
    ended: Option<Instant>,
    /// When it is to be done again, if the partition gave leases.
    due: Option<Instant>,
}

/// What is begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Begun {
    work: Work,
    /// The partition gave leases, and may answer when one is wanted.
    waits: bool,
    /// It could not be done the last time: others do not wait for it.
    failed: bool,
}

impl Schedule {
    /// What is to be begun now, and when to look again.
    fn next(&mut self, session: &Session, now: Instant) -> (Vec<Begun>, Instant) {
        let leased = session.leases.partitions();
        let (mut begin, mut early, mut wake) = (Vec::new(), Vec::new(), now + EVERY);
        let partitions = session.partitions().into_iter().map(Work::Renew);
        for work in session.is_unannounced().then_some(Work::Announce).into_iter().chain(partitions) {
            let state = self.all.entry(work).or_default();
            let waits = matches!(work, Work::Renew(partition) if leased.contains(&partition));
            let due = match state.ended {
                None => now,
                Some(ended) if state.failed => ended + AGAIN,
                Some(ended) if waits => state.due.unwrap_or(ended + EVERY_LEASED),
                Some(ended) => ended + EVERY,
            };
            if state.running {
                continue;
            }
            if due <= now {
                state.running = true;
                begin.push(Begun { work, waits, failed: state.failed });
            } else if due <= now + EARLY && !state.failed && !waits {
                early.push((work, due));
            } else {
                wake = wake.min(due);
            }
        }
        let is_begun = begin.iter().any(|begun| !begun.waits && begun.work != Work::Announce);
        for (work, due) in early {
            if is_begun {
                self.all.entry(work).or_default().running = true;
                begin.push(Begun { work, waits: false, failed: false });
            } else {
                wake = wake.min(due);
            }
        }
        (begin, wake.max(now + TOGETHER))
    }

    /// When it may be due again at the earliest, and whether it was the first time that it failed.
    fn done(&mut self, work: Work, outcome: &Result<Option<Instant>>, ended: Instant) -> (Instant, bool) {
        let (failed, due) = (outcome.is_err(), outcome.as_ref().ok().copied().flatten());
        let before = self.all.insert(work, State { running: false, failed, ended: Some(ended), due });
        let again = if failed { ended + AGAIN } else { due.unwrap_or(ended + EVERY_LEASED) };
        (again, failed && before.is_none_or(|state| !state.failed))
    }
}

/// Boxed: renewing may hold inodes, which may open a session, which starts such a task.
pub(super) fn keep_alive_task(
    caller: Arc<MetaCaller>,
    session: Arc<Session>,
) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(keep_alive(caller, session))
}

/// Renews the leases until all other callers are gone or the session ended.
async fn keep_alive(caller: Arc<MetaCaller>, session: Arc<Session>) {
    let (mut schedule, places) = (Schedule::default(), Arc::new(Semaphore::new(AT_ONCE)));
    let mut running = FuturesUnordered::new();
    let mut wake = Instant::now() + EVERY;
    loop {
        tokio::select! {
            Some(Ended { done, left }) = running.next() => {
                if done.iter().any(|(_, outcome)| has_ended(outcome)) {
                    tracing::warn!(session = %session.id, "the session ended; files that it held open may be gone");
                    session.mark_ended();
                    caller.delegations().session_ended(session.id.0);
                    return;
                }
                for (work, outcome) in done {
                    let (due, first) = schedule.done(work, &outcome, Instant::now());
                    match outcome {
                        Err(error) if first => tracing::warn!(%error, "the session could not be renewed; trying again"),
                        Err(error) => tracing::debug!(%error, "the session still could not be renewed; trying again"),
                        Ok(_) => {}
                    }
                    wake = wake.min(due);
                }
                for begun in left {
                    running.push(carry_out(begun, caller.clone(), session.clone(), places.clone()));
                }
                continue;
            }
            () = sleep_until(wake) => {}
            () = session.leases.next_taken() => {}
        }
        if caller.has_no_others() || session.is_ended() {
            return;
        }
        let begin;
        (begin, wake) = schedule.next(&session, Instant::now());
        let (groups, alone) = by_node::grouped(begin, |partition| caller.leader_address(partition));
        for group in groups {
            running.push(by_node::renew_group(group, caller.clone(), session.clone(), places.clone()));
        }
        for begun in alone {
            running.push(carry_out(begun, caller.clone(), session.clone(), places.clone()));
        }
    }
}

fn has_ended<T>(outcome: &Result<T>) -> bool {
    matches!(outcome, Err(ClientError::Remote { error, .. }) if error.code == ErrorCode::SessionEnded)
}

/// When it is to be done again, if the partition goes on to give leases.
type Done = (Work, Result<Option<Instant>>);

/// What came of what was begun together: what is done, and what is to be done by itself.
struct Ended {
    done: Vec<Done>,
    left: Vec<Begun>,
}

fn carry_out(
    Begun { work, waits, .. }: Begun,
    caller: Arc<MetaCaller>,
    session: Arc<Session>,
    places: Arc<Semaphore>,
) -> Pin<Box<dyn Future<Output = Ended> + Send>> {
    Box::pin(async move {
        let outcome = match work {
            Work::Announce => caller.announce(&session).await.map(|()| None),
            Work::Renew(partition) => renew_in_turn(&caller, &session, (partition, waits), &places).await,
        };
        Ended { done: vec![(work, outcome)], left: Vec::new() }
    })
}

/// Renews when there is a place, which it does not keep if it takes long.
async fn renew_in_turn(
    caller: &Arc<MetaCaller>,
    session: &Arc<Session>,
    (partition, waits): (u32, bool),
    places: &Semaphore,
) -> Result<Option<Instant>> {
    let place = places.acquire().await;
    let patience = caller.cluster.patience.min(PATIENCE);
    let wait = if waits { WAIT.min(patience / 2) } else { Duration::ZERO };
    let mut renewal = pin!(renew_or_wait(caller, session, partition, (patience, wait)));
    if let Ok(outcome) = timeout(LATE, &mut renewal).await {
        return outcome;
    }
    drop(place);
    renewal.await
}

/// Keep-alives of one partition that follow each other at once because it named unlinked inodes.
const RENEW_ROUNDS: u32 = 64;

/// Renews the lease at one partition, which has so long for each answer.
pub(crate) async fn renew(
    caller: &Arc<MetaCaller>,
    session: &Arc<Session>,
    partition: u32,
    patience: Duration,
) -> Result<()> {
    renew_or_wait(caller, session, partition, (patience, Duration::ZERO)).await.map(|_| ())
}

/// The same; where nothing is wanted it may take so long. What the partition names as unlinked and is open here is held
/// before it is acknowledged. When it is to be asked again: at once, if it waits for what is wanted.
async fn renew_or_wait(
    caller: &Arc<MetaCaller>,
    session: &Arc<Session>,
    partition: u32,
    (patience, wait): (Duration, Duration),
) -> Result<Option<Instant>> {
    let mut again = None;
    for _ in 0..RENEW_ROUNDS {
        let acknowledged = session.soft.acknowledged(partition);
        let request = KeepAliveRequest {
            header: Some(caller.header(partition, session.id, 0, 0)),
            soft_holds: acknowledged.is_some(),
            acknowledged: acknowledged.unwrap_or(0),
            wait_ms: u32::try_from(wait.as_millis()).unwrap_or(u32::MAX),
            heard: session.leases.heard(partition),
            also: Vec::new(),
        };
        let (sent, begun) = (caller.cluster.clock.now(), Instant::now());
        let answer = ask(caller, partition, &request, patience).await?;
        let is_new = heed(caller, session, partition, sent, &answer);
        // What is told over and over is no reason to ask without a pause.
        again = answer.waits.then(|| if is_new { begun } else { begun + EVERY_LEASED });
        if acknowledged.is_none() {
            break;
        }
        for inode in session.soft.to_hold(partition, answer.index, &answer.unlinked) {
            hold_unlinked(caller, session, partition, inode).await?;
        }
        session.soft.acknowledge(partition, answer.index);
        if answer.unlinked.is_empty() && !answer.more {
            break;
        }
    }
    Ok(again)
}

/// Takes in what a partition says that renewed the session, but for what it names as unlinked. True if it wants a
/// delegation of which it did not say so before.
fn heed(
    caller: &Arc<MetaCaller>,
    session: &Arc<Session>,
    partition: u32,
    sent: Time,
    answer: &KeepAliveResponse,
) -> bool {
    let is_new = session.leases.hear(partition, &answer.delegations);
    session.leases.renewed(partition, sent, Duration::from_millis(answer.lease_ms.into()));
    caller.delegations().renewed(session, partition, sent);
    for number in answer.delegations.iter().filter(|number| !caller.delegations().wanted(partition, **number)) {
        caller.give_back_delegation(session, partition, *number);
    }
    for wanted in &answer.wanted {
        if !session.leases.wanted(partition, wanted.inode, wanted.number) {
            give_back_unknown(caller, session, partition, *wanted);
        }
    }
    is_new
}

/// Sends a keep-alive, which may be repeated freely.
pub(super) async fn ask(
    caller: &MetaCaller,
    partition: u32,
    request: &KeepAliveRequest,
    patience: Duration,
) -> Result<KeepAliveResponse> {
    let what = || format!("renewing the session at partition p{partition}");
    let (to, message) = (To::from(partition), EncodedMessage::of(request));
    let asked = async {
        let pace = Pace { patience, ..caller.patient() };
        if request.wait_ms == 0 {
            return caller.attempts(to, Opcode::KeepAlive, message, pace).await;
        }
        let attempt = Duration::from_millis(request.wait_ms.into()) + WAIT_SLACK;
        caller.patient_attempts(to, Opcode::KeepAlive, message, Pace { attempt, ..pace }).await
    };
    let last = match timeout(patience, asked).await {
        Ok(Ok(answer)) => return answer.answer(&what()),
        Ok(Err(Failure::Final { error, .. })) => {
            return Err(ClientError::Remote { what: what(), error: Refusal::of_wire(error) });
        }
        Ok(Err(Failure::GaveUp { last, .. })) => last,
        Err(_) => "no answer".to_owned(),
    };
    let tried = caller.member_addresses(partition).join(", ");
    Err(ClientError::Unreachable { what: what(), tried, seconds: patience.as_secs(), last })
}

/// Holds an unlinked inode that is open here. One that is gone already stays gone: its readers are told so.
async fn hold_unlinked(caller: &Arc<MetaCaller>, session: &Arc<Session>, partition: u32, inode: u64) -> Result<()> {
    session.holds.add(inode);
    let what = format!("holding inode {inode}");
    let make = |mut header: MetaHeader| {
        // It was opened with its user's permission; what the mode says by now does not matter.
        header.who = Some(Credentials::default().to_wire());
        HoldRequest { header: Some(header), inode, write: false }
    };
    let held = match session.own_slot(partition).await {
        Some(lease) => {
            caller.mutate_in::<AttributesResponse, _>(session, lease, &what, partition, Opcode::Hold, make).await
        }
        None => return Err(ClientError::remote(&what, ErrorCode::BadSequence, "the session's slots are used up")),
    };
    match held {
        Ok(_) if session.soft.held(partition, inode) => Ok(()),
        Ok(_) => release_if_last(caller, session, partition, inode).await,
        Err(error) => {
            session.holds.remove(inode);
            match error.code() {
                Some(ErrorCode::Stale | ErrorCode::NotFound) => {
                    tracing::warn!(inode, "a file that is open here was removed and is gone");
                    Ok(())
                }
                _ => Err(error),
            }
        }
    }
}

/// A lease of which nobody here knows: whoever asked for it did not wait for the answer. The session is renewed
/// meanwhile.
fn give_back_unknown(caller: &Arc<MetaCaller>, session: &Arc<Session>, partition: u32, wanted: WantedLease) {
    let WantedLease { inode, number } = wanted;
    let Some(giving) = session.leases.begin_giving(session, partition, inode, number) else { return };
    let (caller, session) = (caller.clone(), session.clone());
    tokio::spawn(async move {
        let make = |header| {
            let header = Some(header);
            OverwriteLeaseRequest { header, inode, release: true, number, changed: true, mtime_ns: 0, answered: false }
        };
        let what = format!("giving back the overwrite lease of inode {inode}");
        let given: Result<OverwriteLeaseResponse> =
            caller.mutate_under(&session, &what, partition, Opcode::OverwriteLease, make).await;
        if let Err(error) = given {
            tracing::debug!(%error, "it is told again that it is wanted");
        }
        drop(giving);
    });
}

/// The file was closed while it was being held.
async fn release_if_last(caller: &MetaCaller, session: &Session, partition: u32, inode: u64) -> Result<()> {
    if !session.holds.remove(inode) {
        return Ok(());
    }
    let Some(lease) = session.own_slot(partition).await else { return Ok(()) };
    let make = |header| ReleaseRequest { header: Some(header), inode, also: Vec::new() };
    let what = format!("releasing inode {inode}");
    caller.mutate_in::<Empty, _>(session, lease, &what, partition, Opcode::Release, make).await.map(|_| ())
}

#[cfg(test)]
mod tests;
