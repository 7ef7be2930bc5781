//! A snapshot of all partitions of a volume, as the leader of the root's partition takes it; and what the others are
//! told of snapshots.
//!
//! | step | each is waited for before the next |
//! |---|---|
//! | quiet | nobody overwrites files in place, anywhere |
//! | hold | all partitions let what changes them wait in front of their logs, for 300 ms at most, or longer after an attempt that failed |
//! | cut | the partition of the root, which gives the number; then all others. Each goes on at once |
//! | complete | an entry of the root's partition; then the others are told, and the client |
//!
//! Whatever goes wrong before the last entry makes the snapshot void, and it is tried again. A leader that comes later
//! makes void what it finds pending. What must hold of cuts is in `cairn_meta_core` (`cut_across`), and checked there
//! when they are applied.
//!
//! Invariants: the first cut is asked for after all have answered that they hold; one snapshot is taken at a time.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cairn_meta_core::{DIRECTORY_LEVEL, Namespace, SEVERAL_LEVEL};
use cairn_rpc::Reply;
use cairn_types::{ErrorCode, PartitionId};
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use cairn_wire::meta::{
    CreateSnapshotRequest, CutAttempt, CutResponse, CutSnapshot, EndCut, FollowSnapshots, HoldCutRequest,
    HoldCutResponse, MakeCutRequest, QuietSnapshots, TellSnapshotsRequest, TellSnapshotsResponse,
};
use prost::Message;
use tokio::sync::{Mutex, Notify};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::drive::{Driver, header};
use super::{CALL, PATIENCE, Peers};
use crate::machine::split;
use crate::partition::{Partition, item};

/// How long changes wait at most in a first attempt; twice as long in each that follows, up to the last.
pub(super) const HOLD: Duration = Duration::from_millis(300);
pub(super) const HOLD_MAX: Duration = Duration::from_millis(2400);
/// Between two attempts.
pub(super) const PAUSE: Duration = Duration::from_millis(50);
/// What nobody asks for is looked at so often: what a leader before has left, and new partitions.
const LOOK: Duration = Duration::from_secs(1);
/// Others are told again what they were told: one may have been put back from an older copy.
const TELL_AGAIN: Duration = Duration::from_secs(60);

/// What the leader of the root's partition has under way.
#[derive(Default)]
pub(super) struct Cuts {
    pub(super) turn: Mutex<()>,
    attempts: AtomicU64,
    changed: Notify,
}

/// A snapshot that is wanted.
pub(crate) struct Wanted {
    /// Inode; 0: of the volume.
    pub(crate) directory: u64,
    pub(crate) name: Vec<u8>,
    /// Of the schedule; else 0.
    pub(crate) rule: u8,
    pub(crate) up_to_ns: u64,
    /// The client's, which is answered by the last entry.
    pub(crate) request: Vec<u8>,
}

/// What an attempt came to.
pub(super) enum Cut {
    Complete(Bytes),
    /// Files that are overwritten in place, and milliseconds until nothing of one that was can arrive.
    Waits(u64, u64),
    /// It is void; why, for people.
    Void(String),
    /// Another attempt would come to the same.
    Refused(WireError),
}

fn void(from: PartitionId, error: &WireError) -> Cut {
    Cut::Void(format!("{from} did not take its part: {}", error.message))
}

/// Takes the snapshot that a client asks for.
pub(super) async fn create(driver: &Driver<'_>, data: Bytes) -> Result<Bytes, WireError> {
    let partition = driver.partition;
    // What was done before is answered, and what may not be done is refused.
    match partition.propose_answered(data.clone()).await {
        Err(error) if Namespace::needs_cut(&error) => {}
        outcome => return outcome,
    }
    let (_, message) = split(&data).expect("it was looked at before it came here");
    let request = CreateSnapshotRequest::decode(message);
    let request = request.map_err(|_| WireError::new(ErrorCode::BadRequest, "the message cannot be decoded"))?;
    let directory = partition.state.namespace.read().snapshot_directory(request.directory);
    let wanted = Wanted { directory, name: request.name, rule: 0, up_to_ns: 0, request: message.to_vec() };
    match take(partition, driver.peers, &wanted, driver.received).await? {
        Cut::Complete(answer) => Ok(answer),
        Cut::Waits(leases, lapsed_ms) => {
            let end = EndCut { request: wanted.request, leases, lapsed_ms, ..EndCut::default() };
            partition.propose_answered(item(Opcode::EndCut, &end)).await
        }
        Cut::Void(why) => {
            Err(WireError::new(ErrorCode::LeaseHeld, format!("the snapshot was not taken yet: {why}; repeat")))
        }
        Cut::Refused(error) => Err(error),
    }
}

/// Takes one of the schedule. An error says why it was not possible now.
pub(crate) async fn take_scheduled(
    partition: &Arc<Partition>,
    peers: &Arc<Peers>,
    wanted: Wanted,
) -> Result<(), WireError> {
    match take(partition, peers, &wanted, Instant::now()).await? {
        // Whoever overwrites in place was told to stop; it is asked again.
        Cut::Complete(_) | Cut::Waits(..) => Ok(()),
        Cut::Void(why) => Err(WireError::new(ErrorCode::LeaseHeld, why)),
        Cut::Refused(error) => Err(error),
    }
}

/// Attempts until one is no failure, or the patience for one request is over.
async fn take(
    partition: &Arc<Partition>,
    peers: &Arc<Peers>,
    wanted: &Wanted,
    since: Instant,
) -> Result<Cut, WireError> {
    let cuts = &partition.state.across.cuts;
    let left = PATIENCE.saturating_sub(since.elapsed());
    let Ok(_turn) = timeout(left, cuts.turn.lock()).await else {
        return Ok(Cut::Void("others are being taken".to_owned()));
    };
    let mut hold = HOLD;
    loop {
        let attempt = Attempt::begin(partition, peers)?;
        let cut = attempt.run(wanted, hold).await?;
        match cut {
            Cut::Void(why) if since.elapsed() + hold < PATIENCE => {
                tracing::debug!(partition = %partition.state.id, %why, "a snapshot is void and is taken again");
            }
            Cut::Refused(error) => return Err(error),
            cut => return Ok(cut),
        }
        hold = (hold * 2).min(HOLD_MAX);
        sleep(PAUSE).await;
    }
}

/// One attempt. Whatever becomes of it, this partition holds nothing when it is dropped.
pub(super) struct Attempt<'a> {
    pub(super) partition: &'a Arc<Partition>,
    pub(super) peers: &'a Arc<Peers>,
    pub(super) id: CutAttempt,
    pub(super) term: u64,
    pub(super) others: Vec<PartitionId>,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        self.partition.lapse(self.id);
    }
}

impl<'a> Attempt<'a> {
    pub(super) fn begin(partition: &'a Arc<Partition>, peers: &'a Arc<Peers>) -> Result<Self, WireError> {
        let state = &partition.state;
        let Some(term) = state.leading_term() else {
            return Err(state.common.not_leader(partition.handle.leader()));
        };
        let number = state.across.cuts.attempts.fetch_add(1, Relaxed) + 1;
        let id = CutAttempt { partition: state.id.get(), term, number };
        Ok(Self { partition, peers, id, term, others: others(partition, peers) })
    }

    async fn run(&self, wanted: &Wanted, hold: Duration) -> Result<Cut, WireError> {
        if let Some(cut) = self.quiet().await? {
            return Ok(cut);
        }
        let held = match self.hold(hold).await {
            Ok(held) => held,
            Err(cut) => return Ok(cut),
        };
        let above = held.iter().map(|(_, held)| held.last).max().unwrap_or(0);
        let first = CutSnapshot {
            term: self.term,
            name: wanted.name.clone(),
            rule: wanted.rule.into(),
            directory: wanted.directory,
            above,
            ..CutSnapshot::default()
        };
        let first = match self.partition.cut(self.id, first).await {
            Ok(cut) if cut.number == 0 => return Ok(Cut::Waits(cut.leases, cut.lapsed_ms)),
            Ok(cut) => cut,
            Err(error) if error.code == ErrorCode::Conflict => return Ok(void(self.partition.state.id, &error)),
            Err(error) => return Err(error),
        };
        let failed = self.cut_others(wanted, &first, held).await;
        // One that nobody knew when all held was not asked.
        let failed = failed.or_else(|| {
            let same = others(self.partition, self.peers) == self.others;
            (!same).then(|| Cut::Void("the volume got another partition meanwhile".to_owned()))
        });
        if let Some(cut) = failed {
            self.make_void(first.number).await;
            return Ok(cut);
        }
        let request = wanted.request.clone();
        let end =
            EndCut { number: first.number, complete: true, request, up_to_ns: wanted.up_to_ns, ..EndCut::default() };
        match self.partition.propose_answered(item(Opcode::EndCut, &end)).await {
            Ok(answer) => {
                tell(self.partition, self.peers).await;
                Ok(Cut::Complete(answer))
            }
            Err(error) => {
                self.make_void(first.number).await;
                Err(error)
            }
        }
    }

    /// Nobody overwrites in place, or what is waited for.
    async fn quiet(&self) -> Result<Option<Cut>, WireError> {
        let own = self.partition.propose_answered(item(Opcode::QuietSnapshots, &QuietSnapshots {}));
        let (own, answers) = tokio::join!(own, self.ask_all(0));
        let own = CutResponse::decode(own?).expect("encoded a moment ago");
        let (mut leases, mut lapsed_ms) = (own.leases, own.lapsed_ms);
        for (from, answer) in answers {
            match answer {
                Ok(answer) => (leases, lapsed_ms) = (leases + answer.leases, lapsed_ms.max(answer.lapsed_ms)),
                Err(error) => return Ok(Some(void(from, &error))),
            }
        }
        Ok((leases > 0 || lapsed_ms > 0).then_some(Cut::Waits(leases, lapsed_ms)))
    }

    /// All hold from before this returns.
    pub(super) async fn hold(&self, hold: Duration) -> Result<Vec<(PartitionId, HoldCutResponse)>, Cut> {
        if self.partition.hold(self.id) != Some(self.term) {
            return Err(Cut::Void("leadership changed".to_owned()));
        }
        let lapse = self.partition.clone();
        let id = self.id;
        tokio::spawn(async move {
            sleep(hold).await;
            lapse.lapse(id);
        });
        let mut held = Vec::new();
        for (from, answer) in self.ask_all(u32::try_from(hold.as_millis()).unwrap_or(u32::MAX)).await {
            let answer = answer.map_err(|error| void(from, &error))?;
            if answer.term == 0 {
                return Err(Cut::Void(format!("{from} could not hold")));
            }
            if answer.partitions as usize > self.others.len() + 1 {
                return Err(Cut::Void(format!("{from} knows of more partitions of the volume; the map is old")));
            }
            held.push((from, answer));
        }
        Ok(held)
    }

    async fn ask_all(&self, for_ms: u32) -> Vec<(PartitionId, Result<HoldCutResponse, WireError>)> {
        let request = |to| HoldCutRequest { header: Some(header(self.partition, to)), attempt: Some(self.id), for_ms };
        let asked = self.others.iter().map(|to| (*to, request(*to))).collect();
        call_all(self.peers, Opcode::HoldCut, asked).await
    }

    /// Has all others cut as the first one did; why it is void.
    async fn cut_others(
        &self,
        wanted: &Wanted,
        first: &CutResponse,
        held: Vec<(PartitionId, HoldCutResponse)>,
    ) -> Option<Cut> {
        let request = |to, term| {
            let (number, slot, created_ns) = (first.number, first.slot, first.created_ns);
            let (name, directory) = (wanted.name.clone(), wanted.directory);
            let cut = CutSnapshot { term, number, slot, created_ns, name, directory, ..CutSnapshot::default() };
            MakeCutRequest { header: Some(header(self.partition, to)), attempt: Some(self.id), cut: Some(cut) }
        };
        let asked = held.into_iter().map(|(to, held)| (to, request(to, held.term))).collect();
        let answers = call_all::<CutResponse>(self.peers, Opcode::MakeCut, asked).await;
        answers.into_iter().find_map(|(from, answer)| match answer {
            Ok(cut) if cut.number == first.number => None,
            Ok(cut) => Some(Cut::Waits(cut.leases, cut.lapsed_ms)),
            Err(error) if error.code == ErrorCode::UnknownOperation || Namespace::lacks_directory(&error) => {
                Some(Cut::Refused(error))
            }
            Err(error) => Some(void(from, &error)),
        })
    }

    async fn make_void(&self, number: u64) {
        make_void(self.partition, number).await;
        self.partition.state.across.cuts.changed.notify_one();
    }
}

async fn make_void(partition: &Partition, number: u64) {
    let end = EndCut { number, ..EndCut::default() };
    if let Err(error) = partition.propose_own(Opcode::EndCut, &end).await {
        tracing::debug!(partition = %partition.state.id, number, %error, "a snapshot is not void yet; whoever leads makes it");
    }
}

pub(super) fn others(partition: &Partition, peers: &Peers) -> Vec<PartitionId> {
    let state = &partition.state;
    let mut others = peers.partitions(state.volume);
    others.retain(|other| *other != state.id);
    others.sort_unstable();
    others
}

/// Side by side; all are waited for.
pub(super) async fn call_all<A: Message + Default + 'static>(
    peers: &Arc<Peers>,
    opcode: Opcode,
    asked: Vec<(PartitionId, impl Message + 'static)>,
) -> Vec<(PartitionId, Result<A, WireError>)> {
    let mut calls = JoinSet::new();
    for (to, request) in asked {
        let peers = peers.clone();
        calls.spawn(async move { (to, peers.call::<A>(to, opcode, &request, CALL).await) });
    }
    calls.join_all().await
}

/// Tells all others which snapshots there are; whether all have heard it. What one of them lacks nobody can read as a
/// whole: it is deleted.
async fn tell(partition: &Arc<Partition>, peers: &Arc<Peers>) -> bool {
    let Some(list) = partition.state.namespace.read().snapshots_to_follow() else { return true };
    let request = |to| TellSnapshotsRequest { header: Some(header(partition, to)), list: Some(list.clone()) };
    let asked = others(partition, peers).into_iter().map(|to| (to, request(to))).collect();
    let mut all = true;
    let mut lacking = BTreeSet::new();
    for (to, answer) in call_all::<TellSnapshotsResponse>(peers, Opcode::TellSnapshots, asked).await {
        match answer {
            Ok(answer) => {
                if !answer.lacks.is_empty() {
                    tracing::warn!(partition = %to, snapshots = ?answer.lacks, "has not got these snapshots: it was put back from an older copy; they are deleted");
                }
                lacking.extend(answer.lacks);
            }
            Err(error) => {
                tracing::debug!(partition = %to, %error, "was not told of snapshots; will be repeated");
                all = false;
            }
        }
    }
    for number in lacking {
        let end = EndCut { number, lacks: true, ..EndCut::default() };
        if let Err(error) = partition.propose_own(Opcode::EndCut, &end).await {
            tracing::debug!(partition = %partition.state.id, number, %error, "a snapshot that is not everywhere is not deleted yet");
        }
        all = false;
    }
    all
}

/// Deletes or renames one, and answers when all partitions have heard of it that answer.
pub(super) async fn change(driver: &Driver<'_>, data: Bytes) -> Result<Bytes, WireError> {
    let answer = driver.run(data).await?;
    if !tell(driver.partition, driver.peers).await {
        driver.partition.state.across.cuts.changed.notify_one();
    }
    Ok(answer)
}

/// Makes void what a leader before has left, and tells others what they have not heard, until the task is ended.
pub(super) async fn run(partition: &Arc<Partition>, peers: &Arc<Peers>) {
    let state = &partition.state;
    let mut told: Option<(u64, u64, Vec<PartitionId>, Instant)> = None;
    loop {
        tokio::select! {
            () = state.across.cuts.changed.notified() => {}
            () = state.pause(LOOK) => {}
        }
        let Some(term) = state.leading_term() else { continue };
        let (is_due, pending, has_some) = {
            let namespace = state.namespace.read();
            let due = namespace.is_home() && namespace.last_snapshot() > 0;
            let due = due && namespace.feature_level() >= u32::from(SEVERAL_LEVEL);
            (due, namespace.pending_snapshots(), namespace.has_snapshots())
        };
        if !is_due {
            continue;
        }
        if !pending.is_empty()
            && let Ok(_turn) = state.across.cuts.turn.try_lock()
        {
            // Looked at again: the one that had its turn may have ended meanwhile.
            let pending = state.namespace.read().pending_snapshots();
            for number in pending {
                make_void(partition, number).await;
            }
        }
        let (version, known) = (state.namespace.read().snapshots_version(), others(partition, peers));
        let is_told = told.as_ref().is_some_and(|(of, at, whom, when)| {
            let again = has_some && when.elapsed() > TELL_AGAIN;
            *of == term && *at == version && *whom == known && !again
        });
        if !is_told && tell(partition, peers).await {
            told = Some((term, version, known, Instant::now()));
        }
    }
}

/// What another partition's leader asks: to hold, or to be quiet.
pub(super) async fn hold(partition: Arc<Partition>, peers: Arc<Peers>, request: HoldCutRequest, reply: Reply) {
    let state = &partition.state;
    let Some(attempt) = request.attempt else {
        return reply.err(WireError::new(ErrorCode::BadRequest, "a request of no attempt"));
    };
    if let Some(error) = partition.not_understood(Opcode::CutSnapshot) {
        return reply.err(error);
    }
    if request.for_ms == 0 {
        return match partition.propose_answered(item(Opcode::QuietSnapshots, &QuietSnapshots {})).await {
            Ok(answer) => {
                let CutResponse { leases, lapsed_ms, .. } = CutResponse::decode(answer).expect("encoded a moment ago");
                reply.ok(&HoldCutResponse { leases, lapsed_ms, ..HoldCutResponse::default() }, ());
            }
            Err(error) => reply.err(error),
        };
    }
    let term = partition.hold(attempt);
    let answer = HoldCutResponse {
        term: term.unwrap_or(0),
        last: state.namespace.read().last_snapshot(),
        partitions: u32::try_from(peers.partitions(state.volume).len()).unwrap_or(u32::MAX),
        ..HoldCutResponse::default()
    };
    reply.ok(&answer, ());
    if term.is_some() {
        sleep(Duration::from_millis(request.for_ms.into()).min(HOLD_MAX)).await;
        partition.lapse(attempt);
    }
}

/// Cuts, if it has held since it was asked to.
pub(super) async fn make(partition: Arc<Partition>, request: MakeCutRequest, reply: Reply) {
    let (Some(attempt), Some(cut)) = (request.attempt, request.cut) else {
        return reply.err(WireError::new(ErrorCode::BadRequest, "a request to cut nothing"));
    };
    let level = if cut.directory == 0 { SEVERAL_LEVEL } else { DIRECTORY_LEVEL };
    if let Some(error) = partition.lacks_level("the snapshot", level.into()) {
        return reply.err(error);
    }
    match partition.cut(attempt, cut).await {
        Ok(answer) => reply.ok(&answer, ()),
        Err(error) => reply.err(error),
    }
}

/// Follows what the partition of the root says of snapshots.
pub(super) async fn follow(partition: Arc<Partition>, list: FollowSnapshots, reply: Reply) {
    let state = &partition.state;
    if let Some(error) = partition.lacks_level("what the volume's snapshots are", Namespace::level_to_follow(&list)) {
        return reply.err(error);
    }
    if list.version > state.namespace.read().snapshots_version()
        && let Err(error) = partition.propose_own(Opcode::FollowSnapshots, &list).await
    {
        return reply.err(error);
    }
    // What is pending here may be read by name from now on.
    state.across.note_unlocked();
    let lacks = {
        let namespace = state.namespace.read();
        // An older list says nothing of now.
        let is_new = list.version == namespace.snapshots_version();
        if is_new { namespace.lacks_snapshots(&list) } else { Vec::new() }
    };
    reply.ok(&TellSnapshotsResponse { lacks }, ());
}
