//! Keep-alives: the lease of a session at every partition that knows it, renewed for as long as somebody uses the
//! session. Partitions that one node leads are renewed by one request.
//!
//! A partition ends a session of which it heard nothing for a lease time (20 s), and who ends it anywhere has to open
//! another one everywhere. Invariants: partitions are renewed side by side, and one that does not answer delays no
//! other one, nor is it waited for so long that the lease could end before it is asked anew; what a partition names as
//! unlinked and is open here is held before that is acknowledged. Not here: what a lease is good for (`lease`), what is
//! kept open by it (`soft`).
use self::schedule::{Begun, EVERY, EVERY_LEASED, Schedule, Work, by_itself};
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
    AlsoRenew, AlsoRenewed, AttributesResponse, HoldRequest, KeepAliveRequest, KeepAliveResponse, MetaHeader,
    OverwriteLeaseRequest, OverwriteLeaseResponse, ReleaseRequest, WantedLease,
};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use std::collections::BTreeMap;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until, timeout};

/// There the answer may come so late, if nothing is wanted before; then the next one is asked for at once.
const WAIT: Duration = Duration::from_secs(2);
/// An answer is so much later on the way.
const WAIT_SLACK: Duration = Duration::from_secs(1);
/// A partition that did not answer is given up after this, and asked anew after a pause ([`schedule::AGAIN`]): twice
/// within a lease, and then some.
const PATIENCE: Duration = Duration::from_secs(6);
/// Partitions that are asked at once. One that takes longer than [`LATE`] is waited for beside them.
const AT_ONCE: usize = 64;
const LATE: Duration = Duration::from_secs(1);

mod schedule;

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
        let (groups, alone) = schedule::grouped(begin, |partition| caller.leader_address(partition));
        for group in groups {
            running.push(renew_group(group, caller.clone(), session.clone(), places.clone()));
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

/// Renews partitions of one node. Whatever does not come back as renewed with the first answer is renewed by itself, as
/// if nothing had been tried: what is led elsewhere by now, what a server of an older release does not know, all of it
/// if nobody answers within [`LATE`]. So a group delays none of its partitions for longer than that.
fn renew_group(
    group: Vec<u32>,
    caller: Arc<MetaCaller>,
    session: Arc<Session>,
    places: Arc<Semaphore>,
) -> Pin<Box<dyn Future<Output = Ended> + Send>> {
    Box::pin(async move {
        let place = places.acquire().await;
        let ended = renew_together(&group, &caller, &session).await;
        drop(place);
        ended
    })
}

async fn renew_together(group: &[u32], caller: &Arc<MetaCaller>, session: &Arc<Session>) -> Ended {
    let mut ended = Ended { done: Vec::new(), left: Vec::new() };
    let Some((&first, others)) = group.split_first() else { return ended };
    let known = |partition: u32| {
        let acknowledged = session.soft.acknowledged(partition);
        AlsoRenew { partition, soft_holds: acknowledged.is_some(), acknowledged: acknowledged.unwrap_or(0) }
    };
    let AlsoRenew { soft_holds, acknowledged, .. } = known(first);
    let request = KeepAliveRequest {
        header: Some(caller.header(first, session.id, 0, 0)),
        soft_holds,
        acknowledged,
        also: others.iter().map(|partition| known(*partition)).collect(),
        ..KeepAliveRequest::default()
    };
    let (sent, begun) = (caller.cluster.clock.now(), Instant::now());
    let mut answers = match ask(caller, first, &request, caller.cluster.patience.min(LATE)).await {
        Ok(mut answer) => {
            let also = std::mem::take(&mut answer.also);
            let told = |AlsoRenewed { partition, answer }| answer.map(|answer| (partition, answer));
            let mut answers: BTreeMap<u32, KeepAliveResponse> = also.into_iter().filter_map(told).collect();
            answers.insert(first, answer);
            answers
        }
        Err(error) => {
            let outcome = Err(error);
            if has_ended(&outcome) {
                ended.done.push((Work::Renew(first), outcome));
                return ended;
            }
            BTreeMap::new()
        }
    };
    for &partition in group {
        match answers.remove(&partition).and_then(|answer| done(caller, session, partition, &answer, (sent, begun))) {
            Some(done) => ended.done.push(done),
            None => ended.left.push(by_itself(partition)),
        }
    }
    ended
}

/// Takes in an answer. `None` if there is more to be done: what it names as unlinked is to be held or acknowledged.
fn done(
    caller: &Arc<MetaCaller>,
    session: &Arc<Session>,
    partition: u32,
    answer: &KeepAliveResponse,
    (sent, begun): (Time, Instant),
) -> Option<Done> {
    let is_new = heed(caller, session, partition, sent, answer);
    if session.soft.acknowledged(partition).is_some() {
        if !session.soft.to_hold(partition, answer.index, &answer.unlinked).is_empty() {
            return None;
        }
        session.soft.acknowledge(partition, answer.index);
        if !answer.unlinked.is_empty() || answer.more {
            return None;
        }
    }
    let again = answer.waits.then(|| if is_new { begun } else { begun + EVERY_LEASED });
    Some((Work::Renew(partition), Ok(again)))
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
