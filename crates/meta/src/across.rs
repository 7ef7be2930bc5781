//! Operations across partitions, as the leader of a partition carries them out
//! ([ADR 9](../../../docs/adr/0009-operations-across-partitions.md)).
//!
//! | part | at |
//! |---|---|
//! | `drive.rs` | the partition of the request: has others prepare, decides, releases what it gives up |
//! | `ahead.rs` | the same: ids of others that new directories will need |
//! | `lend.rs` | all: what partitions may use of the volume's limit |
//! | `finish.rs` | the same: has the others do their part of what was decided |
//! | `reclaim.rs` | the partition of a removed directory: what is in it and elsewhere goes |
//! | `resolve.rs` | a participant: asks what became of operations that have something locked for long |
//! | `serve.rs` | answers to other leaders |
//! | `wait.rs` | requests that meet a lock wait for its end |
//! | `place.rs` | where new directories go |
//! | `shard.rs` | the partition of a directory: it gets shards in others |
//! | `snapshots.rs` | the partition of the root: snapshots of all partitions, and what the others hear of them |
//! | `backup.rs` | the same: checkpoints of all partitions as of one moment |
//! | `peers.rs` | calls to other leaders |
//!
//! Invariants: an operation is *open* from before its first request to another partition until its decision is applied,
//! or until it is certain that no decision was proposed; of what is open nobody is told that it was not done. Whatever
//! is under way is bounded, and ends by itself. Not here: what an entry does (`cairn_meta_core`).

mod ahead;
mod backup;
mod drive;
mod finish;
mod lend;
mod peers;
mod place;
mod reclaim;
mod resolve;
mod serve;
mod shard;
pub(crate) mod snapshots;
mod wait;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cairn_meta_core::{Namespace, TxId};
use cairn_rpc::Reply;
use cairn_types::{ErrorCode, PartitionId};
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use cairn_wire::meta::{
    AskBoundRequest, CheckPartRequest, CutCheckpointRequest, FollowSnapshots, HoldCutRequest, ListNamedRequest,
    MakeCutRequest, ShardDirectoryRequest, StrikeNamedRequest, TellBoundRequest, TxFinish,
};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;

use crate::config::MetaTimings;
use crate::fsck;
use crate::garbage;
use crate::partition::Partition;
use ahead::Ahead;
pub(crate) use drive::header;
use lend::Desk;
pub(crate) use peers::Peers;
use place::Placement;
pub(crate) use serve::{prepared, serve};

/// Requests that are carried out, or wait for a lock, at a time; as many again wait to be looked at.
const UNDER_WAY_MAX: usize = 4096;
/// How long a request is worked on before its client is told to repeat it. Below the deadline of a client's attempt.
const PATIENCE: Duration = Duration::from_secs(4);
/// How long another partition may take to answer.
const CALL: Duration = Duration::from_secs(2);

/// What a partition's leader has under way with others.
pub(crate) struct Across {
    partition: PartitionId,
    several: AtomicBool,
    became_several: Notify,
    /// Requests that may wait for others.
    queue: mpsc::Sender<Work>,
    /// What ends locks or finds room, which must not wait behind those that wait for that.
    ends: mpsc::Sender<Work>,
    inboxes: Mutex<Option<(mpsc::Receiver<Work>, mpsc::Receiver<Work>)>>,
    open: Mutex<OpenTxs>,
    /// Counts locks that ended here.
    unlocked: watch::Sender<u64>,
    /// Something was decided here.
    decided: Notify,
    /// What, since it was looked at last.
    decisions: Mutex<Vec<TxId>>,
    place: Placement,
    ahead: Ahead,
    /// Directories that have become huge since the last look, and entries from which on one is.
    huge: Mutex<BTreeSet<u64>>,
    huge_limit: AtomicU64,
    pub(crate) desk: Desk,
    cuts: snapshots::Cuts,
}

/// Operations that this leader may still decide.
#[derive(Default)]
struct OpenTxs {
    term: u64,
    last: u64,
    open: BTreeSet<u64>,
}

/// A request that its connection's thread does not wait for.
pub(crate) enum Work {
    Mutation(Mutation),
    /// Of something that was locked.
    Read(Opcode, Bytes, Reply),
    Finish(Vec<TxFinish>, Reply),
    /// For an inode for which there is no room; the entry.
    Prepare(Bytes, Reply),
    /// Of something that another operation has; the entry.
    PrepareLocked(Bytes, Reply),
    /// Of a partition that asks for more of the volume's limit.
    Ask(AskBoundRequest, Reply),
    /// Of the home of that limit.
    Tell(TellBoundRequest, Reply),
    /// Of the collector of garbage.
    Strike(StrikeNamedRequest, Reply),
    /// Of the collector, too, for packs.
    Names(ListNamedRequest, Reply),
    /// Of a check of another partition.
    Check(CheckPartRequest, Vec<Arc<Partition>>, Reply),
    /// Of a client: a directory is to have shards.
    Shard(ShardDirectoryRequest, Reply),
    /// Of the home of snapshots.
    HoldCut(HoldCutRequest, Reply),
    MakeCut(MakeCutRequest, Reply),
    CutCheckpoint(CutCheckpointRequest, Reply),
    /// Of whoever makes a backup.
    CutCheckpoints(Reply),
    Follow(FollowSnapshots, Reply),
}

/// A client's mutation that may need other partitions, or that met what one has locked.
pub(crate) struct Mutation {
    /// As in the log: the operation and the request.
    pub(crate) data: Bytes,
    pub(crate) reply: Reply,
    pub(crate) received: Instant,
}

impl Across {
    pub(crate) fn new(namespace: &Namespace) -> Self {
        let several = AtomicBool::new(namespace.is_one_of_several());
        let ((queue, inbox), (ends, inbox_of_ends)) = (mpsc::channel(UNDER_WAY_MAX), mpsc::channel(UNDER_WAY_MAX));
        Self {
            partition: namespace.partition(),
            several,
            became_several: Notify::new(),
            queue,
            ends,
            inboxes: Mutex::new(Some((inbox, inbox_of_ends))),
            open: Mutex::default(),
            unlocked: watch::Sender::new(0),
            decided: Notify::new(),
            decisions: Mutex::default(),
            place: Placement::default(),
            ahead: Ahead::default(),
            huge: Mutex::default(),
            huge_limit: AtomicU64::new(cairn_meta_core::HUGE),
            desk: Desk::default(),
            cuts: snapshots::Cuts::default(),
        }
    }

    /// Whether the volume has other partitions.
    pub(crate) fn is_one_of_several(&self) -> bool {
        self.several.load(Relaxed)
    }

    /// Whether it has, as of the entry that was applied last: a volume gets more, none goes.
    pub(crate) fn note_several(&self, several: bool) {
        if several && !self.several.swap(true, Relaxed) {
            self.became_several.notify_one();
        }
    }

    /// After an entry: directories that it made huge, and what is huge in the next one.
    pub(crate) fn note_huge(&self, namespace: &mut Namespace) {
        namespace.set_huge_limit(self.huge_limit.load(Relaxed));
        let huge = namespace.huge_directories();
        if !huge.is_empty() && self.is_one_of_several() {
            self.huge.lock().extend(huge);
        }
    }

    /// Has a request carried out behind; refused when too much is under way.
    pub(crate) fn hand_over(&self, work: Work) {
        // Nobody works off what others ask before there are others; and who asks may know of them first.
        let by_client = matches!(work, Work::Mutation(..) | Work::Read(..) | Work::Shard(..));
        if !by_client && !self.is_one_of_several() {
            let text = format!("{} knows of no other partition of its volume yet; repeat", self.partition);
            return refuse(work, WireError::new(ErrorCode::Unavailable, text));
        }
        let cuts = matches!(work, Work::HoldCut(..) | Work::MakeCut(..) | Work::CutCheckpoint(..) | Work::Follow(..));
        let ends = cuts || matches!(work, Work::Finish(..) | Work::Ask(..) | Work::Tell(..));
        let queue = if ends { &self.ends } else { &self.queue };
        let (work, error) = match queue.try_send(work) {
            Ok(()) => return,
            Err(mpsc::error::TrySendError::Full(work)) => {
                let text = format!(
                    "{UNDER_WAY_MAX} requests of {} wait for other partitions; slow down and repeat",
                    self.partition
                );
                (work, WireError::new(ErrorCode::Overloaded, text))
            }
            Err(mpsc::error::TrySendError::Closed(work)) => {
                let text = format!("{} is being closed on this node; repeat", self.partition);
                (work, WireError::new(ErrorCode::Unavailable, text))
            }
        };
        refuse(work, error);
    }

    /// Whether a request may need other partitions, as far as can be seen now. What is found to need them later is
    /// handed over then.
    pub(crate) fn concerns(&self, partition: &Partition, opcode: Opcode, message: &[u8]) -> bool {
        if !self.is_one_of_several() {
            return false;
        }
        if matches!(opcode, Opcode::SetQuota | Opcode::CreateSnapshot | Opcode::DeleteSnapshot | Opcode::RenameSnapshot)
        {
            return true;
        }
        if opcode == Opcode::Mkdir {
            return self.place.may_go_elsewhere(message);
        }
        let wants = partition.state.namespace.read().tx_wants(opcode, message, &[]);
        wants.is_ok_and(|wants| !wants.is_empty())
    }

    /// Locks ended here.
    pub(crate) fn note_unlocked(&self) {
        self.unlocked.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// How often something was unlocked.
    #[cfg(test)]
    pub(crate) fn ends(&self) -> u64 {
        *self.unlocked.borrow()
    }

    /// Begins an operation, in a term in which this member leads.
    pub(crate) fn begin(&self, term: u64) -> TxId {
        let mut open = self.open.lock();
        if open.term != term {
            *open = OpenTxs { term, ..OpenTxs::default() };
        }
        open.last += 1;
        let number = open.last;
        open.open.insert(number);
        TxId { partition: self.partition.get(), term, number }
    }

    /// Its decision is applied, or was never proposed and never will be.
    pub(crate) fn end(&self, tx: TxId) {
        let mut open = self.open.lock();
        if open.term == tx.term {
            open.open.remove(&tx.number);
        }
    }

    /// There may be a record of it now, which is to be finished.
    fn note_decided(&self, tx: TxId) {
        let mut decisions = self.decisions.lock();
        // Beyond that they are found by a look at all records.
        if decisions.len() < UNDER_WAY_MAX {
            decisions.push(tx);
        }
        drop(decisions);
        self.decided.notify_one();
    }

    fn is_open(&self, tx: TxId) -> bool {
        let open = self.open.lock();
        open.term == tx.term && open.open.contains(&tx.number)
    }
}

/// Answers whoever waits for a piece of work.
fn refuse(work: Work, error: WireError) {
    let (Work::Mutation(Mutation { reply, .. })
    | Work::Read(_, _, reply)
    | Work::Finish(_, reply)
    | Work::Prepare(_, reply)
    | Work::PrepareLocked(_, reply)
    | Work::Ask(_, reply)
    | Work::Tell(_, reply)
    | Work::Strike(_, reply)
    | Work::Names(_, reply)
    | Work::Shard(_, reply)
    | Work::HoldCut(_, reply)
    | Work::MakeCut(_, reply)
    | Work::CutCheckpoint(_, reply)
    | Work::CutCheckpoints(reply)
    | Work::Follow(_, reply)
    | Work::Check(_, _, reply)) = work;
    reply.err(error);
}

/// Carries out what is handed over, finishes what was decided and resolves what is left over, until the task is ended.
pub(crate) async fn run(partition: Arc<Partition>, peers: Arc<Peers>, timings: MetaTimings) {
    while !partition.state.across.is_one_of_several() {
        partition.state.across.became_several.notified().await;
    }
    let inboxes = partition.state.across.inboxes.lock().take();
    let Some((inbox, ends)) = inboxes else { return };
    tokio::join!(
        work_off(inbox, &partition, &peers),
        work_off(ends, &partition, &peers),
        finish::run(&partition, &peers),
        reclaim::run(&partition, &peers, timings.reclaim_idle),
        resolve::run(&partition, &peers, timings.lease_tick),
        place::run(&partition, &peers),
        ahead::run(&partition, &peers),
        shard::run(&partition, &peers, &timings),
        lend::run(&partition, &peers, &timings),
        snapshots::run(&partition, &peers),
    );
}

async fn work_off(mut inbox: mpsc::Receiver<Work>, partition: &Arc<Partition>, peers: &Arc<Peers>) {
    let mut under_way = JoinSet::new();
    loop {
        let work = tokio::select! {
            work = inbox.recv(), if under_way.len() < UNDER_WAY_MAX => work,
            Some(_) = under_way.join_next() => continue,
        };
        let (partition, peers) = (partition.clone(), peers.clone());
        match work {
            None => return,
            Some(Work::Mutation(mutation)) => under_way.spawn(drive::drive(partition, peers, mutation)),
            Some(Work::Read(opcode, message, reply)) => under_way.spawn(wait::read(partition, opcode, message, reply)),
            Some(Work::Strike(request, reply)) => under_way.spawn(garbage::strike(partition, request, reply)),
            Some(Work::Names(request, reply)) => under_way.spawn(garbage::names(partition, request, reply)),
            Some(Work::Shard(request, reply)) => under_way.spawn(shard::answer(partition, peers, request, reply)),
            Some(Work::Check(request, beside, reply)) => {
                under_way.spawn(fsck::answer(partition, request, beside, reply))
            }
            Some(Work::Prepare(data, reply)) => {
                under_way.spawn(serve::prepare_with_room(partition, peers, data, reply))
            }
            Some(Work::PrepareLocked(data, reply)) => under_way.spawn(wait::prepare(partition, data, reply)),
            Some(Work::Ask(request, reply)) => under_way.spawn(lend::lend(partition, peers, request, reply)),
            Some(Work::Tell(request, reply)) => under_way.spawn(lend::told(partition, request, reply)),
            Some(Work::HoldCut(request, reply)) => under_way.spawn(snapshots::hold(partition, peers, request, reply)),
            Some(Work::MakeCut(request, reply)) => under_way.spawn(snapshots::make(partition, request, reply)),
            Some(Work::CutCheckpoint(request, reply)) => under_way.spawn(backup::freeze(partition, request, reply)),
            Some(Work::CutCheckpoints(reply)) => under_way.spawn(backup::answer(partition, peers, reply)),
            Some(Work::Follow(list, reply)) => under_way.spawn(snapshots::follow(partition, list, reply)),
            Some(Work::Finish(finishes, reply)) => under_way.spawn(serve::finish(partition, finishes, reply)),
        };
    }
}
