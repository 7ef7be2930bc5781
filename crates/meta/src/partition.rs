//! [`Partition`]: a member of a meta partition's group on this node, as the service and the duties see it.
//!
//! [`PartitionState`] is what it shares with its state machine. Readers hold the namespace's lock for one operation,
//! the state machine for some whole operations, so a reader never sees half of one. Invariant: nothing is proposed but
//! by [`Partition::propose`], which lets it wait while a snapshot of several partitions is taken. Not here: applying
//! (`machine.rs`), opening and closing (`roster.rs`), the leader's duties (`duties.rs`).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cairn_env::Clock;
use cairn_meta_core::{Gate, Namespace};
use cairn_node_agent::MapView;
use cairn_raft_host::{Clocks, Frozen, GroupHandle};
use cairn_rpc::Reply;
use cairn_types::{ErrorCode, NodeId, PartitionId, Time, VolumeId};
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use cairn_wire::manager::{PartitionMembers, PartitionReport};
use cairn_wire::meta::{CutAttempt, CutResponse, CutSnapshot};
use parking_lot::{Mutex, RwLock};
use prost::Message;
use tokio::sync::{oneshot, watch};

use crate::across::Across;
use crate::append_turns::AppendTurnDesk;
use crate::change_waits::ChangeWaits;
use crate::compact::PackGauges;
use crate::fsck::FsckDesk;
use crate::grown::Grown;
use crate::leases::Leases;
use crate::load::Load;
use crate::lock_waits::LockWaits;
use crate::memory::Memory;
use crate::openers::Openers;
use crate::recall_waits::RecallWaits;
use crate::stage::{StageDesk, StageSettings};
use crate::stats::MetaStats;
use crate::striped::StripedLock;
use crate::unreferenced::Survey;
use crate::wanted_delegations::WantedDelegations;
use crate::wanted_leases::WantedLeases;

/// Whom an applied entry is answered to.
pub(crate) enum Context {
    /// A client.
    Client {
        reply: Reply,
        /// When the request was read from the socket.
        received: Instant,
    },
    /// That deaths are deferred from now on, asked for on behalf of an Open that will come again.
    Deferral,
    /// The leader's own duties.
    Own(oneshot::Sender<Result<(), WireError>>),
    /// A task of the leader, with the answer.
    Answered(oneshot::Sender<Result<Bytes, WireError>>),
    /// The leader of another partition that prepares an operation.
    Prepare(Reply),
}

/// What the manager said of garbage collection; `None`: nothing yet.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct GarbageSettings {
    pub(crate) period: Option<Duration>,
    pub(crate) grace: Option<Duration>,
}

/// How long a fresh map is waited for.
const MAP_PATIENCE: Duration = Duration::from_secs(30);

/// What all partitions of a role share.
pub(crate) struct Common {
    pub(crate) clock: Arc<dyn Clock>,
    /// What the clocks of others say.
    pub(crate) clocks: Arc<Clocks>,
    pub(crate) stats: Arc<MetaStats>,
    pub(crate) memory: Memory,
    pub(crate) map: RwLock<MapView>,
    /// Settings of the cluster about garbage collection.
    pub(crate) garbage: RwLock<GarbageSettings>,
    /// Length that extents of files may have on average; 0: any; `u64::MAX`: nothing was said yet.
    pub(crate) extent_bytes: AtomicU64,
    /// Settings of the cluster about encoding.
    pub(crate) stage: RwLock<StageSettings>,
    /// No session from this one on has been given by the manager, as far as it has said; 0: it has said nothing.
    pub(crate) sessions_below: AtomicU64,
    /// Highest feature level that this process says it understands.
    pub(crate) feature_level: u32,
    /// Counts heartbeats after which the map was as the manager had it.
    pub(crate) map_rounds: watch::Sender<u64>,
    /// The monotonic clock at the last tick: exact enough for leases, and free to read.
    coarse: AtomicU64,
}

impl Common {
    pub(crate) fn new(clock: Arc<dyn Clock>, clocks: Arc<Clocks>, memory: Memory, feature_level: u32) -> Self {
        let coarse = AtomicU64::new(clock.now().0);
        Self {
            clock,
            clocks,
            stats: Arc::default(),
            memory,
            map: RwLock::default(),
            garbage: RwLock::default(),
            extent_bytes: AtomicU64::new(u64::MAX),
            stage: RwLock::default(),
            sessions_below: AtomicU64::new(0),
            feature_level,
            map_rounds: watch::Sender::new(0),
            coarse,
        }
    }

    /// Waits until the map has what the manager had in it when this was called: `rounds` heartbeats, of which the
    /// second one began after that.
    pub(crate) async fn fresh_map(&self, rounds: u64) -> Result<(), WireError> {
        let mut seen = self.map_rounds.subscribe();
        let wanted = *seen.borrow_and_update() + rounds;
        let waited = tokio::time::timeout(MAP_PATIENCE, seen.wait_for(|count| *count >= wanted)).await;
        match waited {
            Ok(Ok(_)) => Ok(()),
            _ => Err(WireError::new(ErrorCode::Unavailable, "no manager was heard for long: the map may be old")),
        }
    }

    /// The time of the last tick.
    pub(crate) fn coarse_now(&self) -> Time {
        Time(self.coarse.load(Ordering::Relaxed))
    }

    pub(crate) fn tick(&self) {
        self.coarse.store(self.clock.now().0, Ordering::Relaxed);
    }

    /// The answer of a member that does not lead.
    #[cold]
    pub(crate) fn not_leader(&self, hint: Option<NodeId>) -> WireError {
        crate::stats::count(&self.stats.not_leader);
        WireError::not_leader(hint.and_then(|node| self.map.read().address(node).map(str::to_owned)))
    }
}

/// A term in which something is done before the partition is led.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Recall {
    pub(crate) term: u64,
    /// A person accepted that something is forgotten.
    pub(crate) forgot: bool,
}

/// What the state machine shares with everybody else.
pub(crate) struct PartitionState {
    pub(crate) id: PartitionId,
    pub(crate) volume: VolumeId,
    pub(crate) namespace: StripedLock<Namespace>,
    pub(crate) leases: Leases,
    /// Memory of sessions as of the last entry.
    pub(crate) session_bytes: AtomicU64,
    pub(crate) openers: Openers,
    pub(crate) lock_waits: LockWaits,
    pub(crate) change_waits: ChangeWaits,
    pub(crate) append_turns: AppendTurnDesk,
    pub(crate) wanted_leases: WantedLeases,
    pub(crate) wanted_delegations: WantedDelegations,
    pub(crate) recall_waits: RecallWaits,
    pub(crate) fsck: FsckDesk,
    pub(crate) packs: PackGauges,
    pub(crate) grown: Grown,
    pub(crate) survey: Survey,
    /// Files that wait to be defragmented.
    pub(crate) fragmented: AtomicU64,
    pub(crate) stage: StageDesk,
    /// Whether files had something in chunks of whole shards when all that they name was looked at last.
    pub(crate) names_whole_shards: Mutex<Option<bool>>,
    /// Whether the leader has asked to defer deaths and waits for the outcome.
    pub(crate) asked_to_defer: AtomicBool,
    /// Its volume is in the trash, as far as the map is known: nobody is served.
    pub(crate) trashed: AtomicBool,
    pub(crate) load: Load,
    /// The term in which it leads the group, but not yet the partition: it may have forgotten what it gave, or was not
    /// told yet which sessions have ended.
    pub(crate) recalls: watch::Sender<Option<Recall>>,
    /// The group sleeps.
    pub(crate) rests: watch::Sender<bool>,
    /// What it has under way with other partitions.
    pub(crate) across: Across,
    pub(crate) common: Arc<Common>,
    /// The term in which this member leads and has applied the first entry; 0 otherwise.
    term: AtomicU64,
    /// See [`is_unborn`](Self::is_unborn): until then, by the process's clock; 0: it is not.
    unborn_until: AtomicU64,
}

/// A partition that nobody has used waits so long at most for the feature level that all its members understand.
const UNBORN_MAX: Duration = Duration::from_secs(2);

/// What looks for work in a partition that rests looks this much less often, but at least every [`REST_PAUSE_MAX`].
const REST_FACTOR: u32 = 20;
const REST_PAUSE_MAX: Duration = Duration::from_secs(5);

impl PartitionState {
    /// Waits for so long between two looks for work; longer while the group sleeps, and not beyond its waking: nothing
    /// was logged or read meanwhile, so what there is to do was there before, and only waits for somebody else.
    pub(crate) async fn pause(&self, pause: Duration) {
        let mut rests = self.rests.subscribe();
        if !*rests.borrow_and_update() {
            return tokio::time::sleep(pause).await;
        }
        let long = (pause * REST_FACTOR).min(REST_PAUSE_MAX).max(pause);
        // Its sender is this state.
        let _ = tokio::time::timeout(long, rests.wait_for(|rests| !*rests)).await;
    }

    pub(crate) fn new(namespace: Namespace, common: Arc<Common>) -> Self {
        Self {
            id: namespace.partition(),
            volume: namespace.volume(),
            across: Across::new(&namespace),
            namespace: StripedLock::new(namespace),
            leases: Leases::default(),
            session_bytes: AtomicU64::new(0),
            openers: Openers::default(),
            lock_waits: LockWaits::default(),
            change_waits: ChangeWaits::default(),
            append_turns: AppendTurnDesk::default(),
            wanted_leases: WantedLeases::default(),
            wanted_delegations: WantedDelegations::default(),
            recall_waits: RecallWaits::default(),
            fsck: FsckDesk::default(),
            stage: StageDesk::default(),
            packs: PackGauges::default(),
            grown: Grown::default(),
            survey: Survey::default(),
            fragmented: AtomicU64::new(0),
            names_whole_shards: Mutex::new(None),
            asked_to_defer: AtomicBool::new(false),
            trashed: AtomicBool::new(false),
            load: Load::default(),
            recalls: watch::Sender::new(None),
            rests: watch::Sender::new(false),
            common,
            term: AtomicU64::new(0),
            unborn_until: AtomicU64::new(0),
        }
    }

    /// Nobody has used the partition yet, and its first feature level is about to be set: who comes before that would
    /// leave what later levels have to be careful about.
    pub(crate) fn is_unborn(&self) -> bool {
        let until = self.unborn_until.load(Ordering::Relaxed);
        until != 0 && self.common.coarse_now() < Time(until)
    }

    /// Its first feature level is set, or there is nothing to be set.
    pub(crate) fn note_born(&self) {
        self.unborn_until.store(0, Ordering::Relaxed);
    }

    /// The term in which this member leads, if it does.
    pub(crate) fn leading_term(&self) -> Option<u64> {
        Some(self.term.load(Ordering::Acquire)).filter(|term| *term != 0)
    }

    /// Leads from now on: every live session gets a full lease.
    pub(crate) fn lead(&self, term: u64) {
        self.common.tick();
        let now = self.common.coarse_now();
        self.leases.grant_all(self.namespace.read().live_sessions(), now);
        self.openers.reset(now);
        self.wanted_leases.clear();
        self.wanted_delegations.clear();
        self.asked_to_defer.store(false, Ordering::Release);
        if self.common.feature_level > 0 && self.namespace.read().is_unused() {
            let until = now + UNBORN_MAX;
            self.unborn_until.store(until.0.max(1), Ordering::Relaxed);
        }
        self.term.store(term, Ordering::Release);
    }

    /// Does not lead any more.
    pub(crate) fn follow(&self) {
        self.term.store(0, Ordering::Release);
        self.leases.grant_all(std::iter::empty(), Time(0));
        self.openers.reset(Time(0));
        self.wanted_leases.clear();
        self.wanted_delegations.clear();
        self.fsck.reset();
        self.end_lock_waits();
        self.end_change_waits();
        self.end_append_turns();
        self.end_recall_waits();
    }
}

/// What became of an operation of the leader's own, later.
pub(crate) type Proposed = oneshot::Receiver<Result<(), WireError>>;

/// An item for the log: the operation and its message.
pub(crate) fn item(opcode: Opcode, message: &impl Message) -> Bytes {
    let mut data = Vec::with_capacity(2 + message.encoded_len());
    data.extend_from_slice(&opcode.code().to_le_bytes());
    message.encode(&mut data).expect("a Vec grows as needed");
    Bytes::from(data)
}

/// An open member.
pub(crate) struct Partition {
    pub(crate) state: Arc<PartitionState>,
    pub(crate) handle: GroupHandle<Context>,
    gate: Mutex<Gate<(Bytes, Context)>>,
}

impl Partition {
    pub(crate) fn new(state: Arc<PartitionState>, handle: GroupHandle<Context>) -> Self {
        Self { state, handle, gate: Mutex::default() }
    }

    /// Puts an item into the log, behind what was put into it before; when too much waits it is given back.
    pub(crate) fn propose(&self, data: Bytes, context: Context) -> Result<(), Context> {
        let mut gate = self.gate.lock();
        if !gate.is_closed() {
            return self.handle.propose(data, context);
        }
        let bytes = data.len();
        gate.wait((data, context), bytes).map_err(|(_, context)| context)
    }

    /// From now on what would be proposed waits; the term in which it does. `None`: this attempt has held before, or
    /// this member does not lead.
    pub(crate) fn hold(&self, attempt: CutAttempt) -> Option<u64> {
        let mut gate = self.gate.lock();
        let term = self.state.leading_term()?;
        gate.close(attempt, term).then_some(term)
    }

    /// The hold of an attempt has lasted for long enough.
    pub(crate) fn lapse(&self, attempt: CutAttempt) {
        let mut gate = self.gate.lock();
        let waited = gate.lapse(attempt);
        self.propose_waited(waited);
    }

    /// Cuts, if the attempt's hold has lasted until now, in front of all that waits; and waits for the answer.
    pub(crate) async fn cut(&self, attempt: CutAttempt, cut: CutSnapshot) -> Result<CutResponse, WireError> {
        let receiver = {
            let mut gate = self.gate.lock();
            let Some(waited) = gate.cut(attempt, cut.term) else {
                let text = format!("{} did not hold until the snapshot was cut", self.state.id);
                // Asking again would not help: another attempt would.
                return Err(WireError::new(ErrorCode::Conflict, text));
            };
            let (sender, receiver) = oneshot::channel();
            let refused = self.handle.propose(item(Opcode::CutSnapshot, &cut), Context::Answered(sender));
            self.propose_waited(waited);
            if refused.is_err() {
                return Err(WireError::new(ErrorCode::Overloaded, "too much waits for the partition's log; repeat"));
            }
            receiver
        };
        let closed = || Err(WireError::new(ErrorCode::Unavailable, "the partition was closed"));
        let answer = receiver.await.unwrap_or_else(|_| closed())?;
        Ok(CutResponse::decode(answer).expect("encoded a moment ago"))
    }

    /// Begins a checkpoint of what is applied, for a backup, if the attempt's hold lasts until it is begun.
    pub(crate) async fn freeze(&self, attempt: CutAttempt, term: u64) -> Result<Frozen, WireError> {
        let (sender, receiver) = oneshot::channel();
        // Whoever has given up does not listen any more.
        self.handle.freeze(Box::new(move |frozen| drop(sender.send(frozen))));
        let closed = || WireError::new(ErrorCode::Unavailable, "the partition was closed");
        let frozen = receiver.await.map_err(|_| closed())?;
        let mut gate = self.gate.lock();
        let Some(waited) = gate.cut(attempt, term) else {
            let text = format!("{} did not hold until its checkpoint was begun", self.state.id);
            // Asking again would not help: another attempt would.
            return Err(WireError::new(ErrorCode::Conflict, text));
        };
        self.propose_waited(waited);
        let frozen = frozen.map_err(|error| WireError::new(ErrorCode::Conflict, error.to_string()))?;
        if frozen.term != term {
            // Another member led in between, and did not hold.
            let text = format!("{} had another leader since it held", self.state.id);
            return Err(WireError::new(ErrorCode::Conflict, text));
        }
        Ok(frozen)
    }

    /// While the gate is locked, so that nothing comes in between.
    fn propose_waited(&self, waited: VecDeque<(Bytes, Context)>) {
        for (data, context) in waited {
            let Err(context) = self.handle.propose(data, context) else { continue };
            let text = "too much waits for the partition's log; slow down and repeat";
            let error = WireError::new(ErrorCode::Overloaded, text);
            match context {
                Context::Client { reply, .. } | Context::Prepare(reply) => reply.err(error),
                Context::Deferral => self.state.asked_to_defer.store(false, Ordering::Release),
                // Whoever has given up does not listen any more.
                Context::Own(sender) => drop(sender.send(Err(error))),
                Context::Answered(sender) => drop(sender.send(Err(error))),
            }
        }
    }

    /// Puts an operation of the leader's own into the log and waits until it is applied. An error means that it was
    /// not done, or that nobody here will know.
    pub(crate) async fn propose_own(&self, opcode: Opcode, message: &impl Message) -> Result<(), WireError> {
        // The activation itself is decided on what all members said.
        if opcode != Opcode::SetFeatureLevel
            && let Some(error) = self.not_understood(opcode)
        {
            return Err(error);
        }
        Self::outcome(self.propose_later(opcode, message)?).await
    }

    /// Puts an operation of the leader's own into the log; [`Partition::outcome`] waits for it.
    pub(crate) fn propose_later(&self, opcode: Opcode, message: &impl Message) -> Result<Proposed, WireError> {
        let (sender, receiver) = oneshot::channel();
        if self.propose(item(opcode, message), Context::Own(sender)).is_err() {
            return Err(WireError::new(ErrorCode::Overloaded, "too much waits for the log already"));
        }
        Ok(receiver)
    }

    /// Puts a request that is an item of the log already into it, and waits for the answer.
    pub(crate) async fn propose_answered(&self, data: Bytes) -> Result<Bytes, WireError> {
        let (sender, receiver) = oneshot::channel();
        if self.propose(data, Context::Answered(sender)).is_err() {
            let text = "too much waits for the partition's log; slow down and repeat";
            return Err(WireError::new(ErrorCode::Overloaded, text));
        }
        receiver.await.unwrap_or_else(|_| Err(WireError::new(ErrorCode::Unavailable, "the partition was closed")))
    }

    pub(crate) async fn outcome(proposed: Proposed) -> Result<(), WireError> {
        proposed.await.unwrap_or_else(|_| Err(WireError::new(ErrorCode::Unavailable, "the partition was closed")))
    }

    /// Why a request is not let into the log although it is one of this build: members would not understand it.
    pub(crate) fn not_understood(&self, opcode: Opcode) -> Option<WireError> {
        self.lacks_level(opcode.name(), opcode.feature_level())
    }

    /// The same of something that needs a feature level: no member may be asked to apply what it would take for
    /// something else.
    pub(crate) fn lacks_level(&self, what: &str, needed: u32) -> Option<WireError> {
        if needed == 0 || needed <= self.state.namespace.read().feature_level() {
            return None;
        }
        let understanding = self.handle.status().core.understanding;
        // Leaves the number of the request unused. What is known in a moment is repeated by the client itself.
        let code = match understanding.is_about_to_activate(needed) {
            true => ErrorCode::Overloaded,
            false => ErrorCode::UnknownOperation,
        };
        Some(WireError::new(code, understanding.refusal(what, needed)))
    }

    /// For a manager that has forgotten them.
    pub(crate) fn members(&self) -> PartitionMembers {
        let status = self.handle.status().core;
        let members = status.members.voters.iter().chain(&status.members.learners);
        let nodes = members.map(|node| node.get()).collect();
        PartitionMembers { partition: self.state.id.get(), nodes, applied: status.applied.index }
    }

    /// For the heartbeat.
    pub(crate) fn report(&self) -> PartitionReport {
        let (counters, memory_bytes, feature_level, inode_last, full_node) = {
            let namespace = self.state.namespace.read();
            let mut counters = namespace.counters();
            // A volume without files that has snapshots is not empty.
            counters.inodes += u64::from(counters.inodes == 1 && namespace.has_snapshots());
            let (memory, full) = (namespace.memory_bytes(), namespace.fullness().node.get());
            (counters, memory, namespace.feature_level(), namespace.inode_last(), full)
        };
        let (busy_permille, changes_per_second) = self.state.load.since_last(self.state.common.clock.now());
        let status = self.handle.status().core;
        let lags = status.understanding.common.is_none_or(|common| common < self.state.common.feature_level);
        let behind = status.understanding.behind.first().filter(|_| lags).map_or(0, |node| node.get());
        PartitionReport {
            feature_level,
            behind,
            partition: self.state.id.get(),
            leader: self.state.leading_term().is_some(),
            term: status.term,
            applied: self.handle.applied(),
            inodes: counters.inodes,
            file_bytes: counters.file_bytes,
            memory_bytes,
            mark_term: status.mark.term,
            mark_index: status.mark.index,
            inode_last,
            busy_permille,
            changes_per_second,
            full_node,
            voters: u32::try_from(status.members.voters.len()).unwrap_or(u32::MAX),
        }
    }
}
