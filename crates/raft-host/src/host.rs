//! [`RaftHost`]: all Raft groups of a node over one log, and what they share.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use cairn_env::{Clock, Disk, Rng};
use cairn_raft::{GroupCore, LogClock};
use cairn_store::checkpoint::Outgoing;
use cairn_store::{CheckpointStore, Record, RecoveredGroup, StoreError, Wal, WalConfig, WalStats};
use cairn_types::{ClusterId, GroupId, NodeId, Time, crc32c};
use cairn_wire::raft::{FetchCheckpointRequest, FetchCheckpointResponse, RaftBatch, RaftMessage};
use parking_lot::Mutex;

use crate::book::MarkBook;
use crate::clocks::Clocks;
use crate::config::HostConfig;
use crate::era::is_put_in_place;
use crate::error::HostError;
use crate::full_nodes::{FullNodes, Telling};
use crate::group::{Group, Port};
use crate::handle::GroupHandle;
use crate::jobs::Checkpointer;
use crate::log_memory::{LogMemory, LogShare};
use crate::mailbox::{Answer, Bounds, Mailbox, MembersAnswer};
use crate::members::MembersAsk;
use crate::owner::{Generations, Owner, Parts};
use crate::pool::Pool;
use crate::recovery::{Beginning, recover};
use crate::scribe::Scribe;
use crate::state_machine::StateMachine;
use crate::status::{GroupStatus, Shared};
use crate::transport::RaftTransport;
use crate::watch::{self, Watch};

/// Directory of the log, on the node's disk.
pub const LOG_DIR: &str = "log";
/// Directory of the checkpoints.
pub const CHECKPOINT_DIR: &str = "checkpoints";
/// Checkpoints open for other nodes at a time.
const OUTGOING_MAX: usize = 8;
/// After this they are closed when nobody reads on.
const OUTGOING_IDLE: Duration = Duration::from_secs(60);

/// The groups that are open.
pub(crate) type Groups = Arc<Mutex<BTreeMap<GroupId, Arc<dyn Port>>>>;

struct Lent {
    file: Arc<Outgoing>,
    used: Time,
}

/// The groups of a node.
pub struct RaftHost {
    config: HostConfig,
    dir: String,
    clock: Arc<dyn Clock>,
    rng: Arc<dyn Rng>,
    wal: Arc<Wal>,
    store: Arc<CheckpointStore>,
    transport: Arc<dyn RaftTransport>,
    /// Empty while it is not known.
    cluster: Arc<OnceLock<ClusterId>>,
    recovered: Mutex<BTreeMap<GroupId, RecoveredGroup>>,
    book: Arc<MarkBook>,
    groups: Groups,
    /// Numbers given to groups.
    opened_ever: AtomicU64,
    pool: Pool,
    watch: Arc<Watch>,
    /// Groups opened in this process (or being opened): what the log had of them at the start is out of date, so they
    /// are not opened twice.
    opened: Mutex<BTreeSet<GroupId>>,
    checkpointer: Mutex<Checkpointer>,
    lent: Mutex<BTreeMap<(GroupId, u64), Lent>>,
    scribe: Mutex<Option<Scribe>>,
    clocks: Arc<Clocks>,
    full: Arc<FullNodes>,
    log_memory: Arc<LogMemory>,
}

impl RaftHost {
    /// Opens (or creates) the log and the checkpoints in a node's directory, which the caller has locked.
    pub fn start(
        config: HostConfig,
        clock: Arc<dyn Clock>,
        rng: Arc<dyn Rng>,
        disk: Arc<dyn Disk>,
        transport: Arc<dyn RaftTransport>,
    ) -> Result<Self, StoreError> {
        let dir = disk.name().to_owned();
        let clocks = Arc::new(Clocks::new(config.node));
        let log_memory = LogMemory::new(config.node_log_memory_max);
        let full = Arc::new(FullNodes::new(config.node, clock.now()));
        let transport: Arc<dyn RaftTransport> = Arc::new(Telling { inner: transport, full: full.clone() });
        let wal_config = WalConfig { segment_bytes: config.segment(), ..WalConfig::new(LOG_DIR, config.log) };
        let started = clock.now();
        let (wal, recovered) = Wal::open(disk.clone(), wal_config)?;
        tracing::info!(dir, groups = recovered.len(), took = ?clock.now().since(started), "the log is open");
        let book = match &config.marks {
            Some(book) => book.clone(),
            None => Arc::new(MarkBook::open(disk.clone(), clock.clone(), config.log)?),
        };
        let groups = Groups::default();
        let pool = Pool::start(config.workers, clock.clone(), transport.clone())?;
        let wal = Arc::new(wal);
        let watch = Watch::new(
            &config,
            watch::Parts {
                life: rng.u64() | 1,
                clock: clock.clone(),
                transport: transport.clone(),
                clocks: clocks.clone(),
                wal: wal.clone(),
                groups: Arc::clone(&groups),
                waker: pool.waker(),
            },
        );
        let scribe = Scribe::start(book.clone(), Arc::clone(&groups))?;
        let store = CheckpointStore::new(disk, CHECKPOINT_DIR, config.cluster).keeping(config.checkpoint_generations);
        let store = Arc::new(store);
        let cluster = Arc::new(OnceLock::new());
        if !config.cluster.is_none() {
            let _ = cluster.set(config.cluster);
        }
        let checkpointer = Checkpointer::start(store.clone(), clock.clone())?;
        Ok(Self {
            config,
            dir,
            clock,
            rng,
            wal,
            store,
            transport,
            cluster,
            recovered: Mutex::new(recovered),
            book,
            groups,
            opened_ever: AtomicU64::new(0),
            pool,
            watch,
            scribe: Mutex::new(Some(scribe)),
            opened: Mutex::default(),
            checkpointer: Mutex::new(checkpointer),
            lent: Mutex::default(),
            clocks,
            full,
            log_memory,
        })
    }

    /// Opens a group: recovers it, or, when nothing of it was ever on this node, begins it with these voters (the
    /// same on each of them), or, without any, waits as an empty member for its leader.
    pub fn open_group<S: StateMachine>(
        &self,
        group: GroupId,
        initial_members: &[NodeId],
        sm: S,
    ) -> Result<GroupHandle<S::Context>, HostError> {
        let beginning = if initial_members.is_empty() { Beginning::Join } else { Beginning::Members(initial_members) };
        self.open(group, beginning, sm)
    }

    /// Opens a group that must have been on this node before; fails with [`HostError::Missing`] otherwise.
    pub fn open_existing<S: StateMachine>(&self, group: GroupId, sm: S) -> Result<GroupHandle<S::Context>, HostError> {
        self.open(group, Beginning::Refused, sm)
    }

    /// Where a node is reached, as a group's state has it.
    pub fn learn_address(&self, node: NodeId, address: &str) {
        self.transport.learn_address(node, address);
    }

    /// Members of a partition's group as the cluster map names them.
    pub(crate) fn named_members(&self, group: GroupId) -> Vec<NodeId> {
        self.transport.named_members(group)
    }

    /// The cluster, once it is known: checkpoints written from now on carry it. Repeating it costs nothing.
    pub fn set_cluster(&self, cluster: ClusterId) {
        // The first one stays: roles do not serve two.
        let _ = self.cluster.set(cluster);
    }

    /// Whether the log or the checkpoints have anything of a group.
    pub fn knows_group(&self, group: GroupId) -> Result<bool, StoreError> {
        let logged = self.recovered.lock().get(&group).is_some_and(|found| !found.removed);
        Ok(logged || self.groups.lock().contains_key(&group) || !self.store.indices(group)?.is_empty())
    }

    /// Groups that the log has and that are not open yet.
    pub fn unopened_groups(&self) -> Vec<GroupId> {
        self.recovered.lock().iter().filter(|(_, found)| !found.removed).map(|(&group, _)| group).collect()
    }

    fn open<S: StateMachine>(
        &self,
        group: GroupId,
        beginning: Beginning<'_>,
        sm: S,
    ) -> Result<GroupHandle<S::Context>, HostError> {
        if !self.opened.lock().insert(group) {
            return Err(HostError::Open(group));
        }
        let opened = self.open_now(group, beginning, sm);
        if opened.is_err() {
            self.opened.lock().remove(&group);
        }
        opened
    }

    fn open_now<S: StateMachine>(
        &self,
        group: GroupId,
        beginning: Beginning<'_>,
        mut sm: S,
    ) -> Result<GroupHandle<S::Context>, HostError> {
        let started = self.clock.now();
        let log = self.recovered.lock().get(&group).cloned();
        let mut start = recover(&self.dir, group, log, &self.store, self.wal.is_chained(), beginning, &mut sm)?;
        if !start.records.is_empty() {
            self.wal.append(start.records)?;
        }
        let fresh = start.restored.fresh;
        if group != GroupId::MANAGER && is_put_in_place(&start.restored) && !self.book.has_forgotten(group) {
            // A person accepted that as the state was put there. Durable before anybody leads by it.
            tracing::warn!(%group, index = start.restored.base.index, "the group's state was put in place from a copy: what came after that copy counts as forgotten");
            self.book.set_forgotten(group, true)?;
        }
        start.restored.marks = self.book.known(group).members;
        start.restored.forgot = self.book.has_forgotten(group) || (self.book.is_damaged() && !fresh);
        let kept = Generations::new(start.generations, start.restored.base.index, start.log_bytes);
        let first = start.restored.members.voters.first() == Some(&self.config.node);
        let mut log_clock = LogClock::default();
        log_clock.observe(start.time);
        let core = GroupCore::new(self.config.core(group, self.rng.u64()), start.restored, self.clock.now());
        let shared = Arc::new(Shared::new(core.status()));
        let took = self.clock.now().since(started);
        shared.restore_nanos.store(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        tracing::info!(%group, applied = core.applied().index, ?took, "the group's state is restored");
        let mailbox = Arc::new(Mailbox::new(Bounds {
            proposals: self.config.proposals_max,
            proposal_bytes: self.config.proposal_bytes_max,
            item_bytes: self.config.item_bytes_max,
            message_bytes: self.config.message_bytes_max,
        }));
        let stopped = |cause: String| HostError::Stopped { group, cause };
        let jobs = self.checkpointer.lock().jobs().ok_or_else(|| stopped("the host ends".into()))?;
        let parts = Parts {
            group,
            config: self.config.clone(),
            cluster: self.cluster.clone(),
            clock: self.clock.clone(),
            wal: self.wal.clone(),
            store: self.store.clone(),
            transport: self.transport.clone(),
            clocks: self.clocks.clone(),
            jobs,
            watch: self.watch.clone(),
            book: self.book.clone(),
            shared: shared.clone(),
            log: LogShare::new(self.log_memory.clone()),
        };
        let owner = Owner::new(parts, mailbox.clone(), core, sm, log_clock, kept, fresh && first);
        let number = self.opened_ever.fetch_add(1, Ordering::Relaxed);
        let parts = (mailbox.clone(), shared.clone());
        let port = Group::begin(group, number, self.config.abort_on_panic, parts, owner, self.pool.waker());
        // Only now: a try that failed can be repeated.
        self.recovered.lock().remove(&group);
        self.groups.lock().insert(group, port);
        Ok(GroupHandle::new(group, mailbox, shared, self.clock.clone()))
    }

    /// What this node remembers of how far members got.
    pub fn marks(&self) -> &Arc<MarkBook> {
        &self.book
    }

    /// A person accepts what a group's member on this node has forgotten: it takes part in elections from now on;
    /// `then` runs on a thread that handles groups.
    pub(crate) fn accept_loss(&self, group: GroupId, then: Answer) {
        let posted = self.port(group).is_some_and(|port| port.accept_loss(then));
        if !posted {
            tracing::debug!(%group, "somebody accepts the loss of a group that is not open");
        }
    }

    /// What others' clocks say: roles tell it what they hear, and ask it before they delete by age.
    pub fn clocks(&self) -> &Arc<Clocks> {
        &self.clocks
    }

    /// How full nodes are: the meta role tells its own, and asks for those of members.
    pub fn full_nodes(&self) -> &Arc<FullNodes> {
        &self.full
    }

    /// What people are to know about this node's clock, if it differs from the others'.
    pub fn clock_problem(&self) -> Option<String> {
        self.clocks.problem(self.clock.now(), self.clock.wall())
    }

    /// This node.
    pub(crate) fn node(&self) -> NodeId {
        self.config.node
    }

    /// The feature level that this node announces.
    pub fn feature_level(&self) -> u32 {
        self.config.feature_level
    }

    /// Hands over messages of peers, for any groups. Never blocks; what does not fit or is for an unknown group is
    /// dropped.
    pub fn deliver(&self, batch: RaftBatch) {
        if let Some(beat) = &batch.beat {
            self.watch.heard(beat);
        }
        let from =
            batch.messages.first().map(|message| message.from).or(batch.beat.as_ref().map(|beat| beat.node.into()));
        if let Some(from) = from.and_then(|from| u32::try_from(from).ok()) {
            self.full.heard(NodeId(from), batch.fullness, self.clock.now());
        }
        let mut by_group: BTreeMap<u32, Vec<RaftMessage>> = BTreeMap::new();
        for message in batch.messages {
            by_group.entry(message.group).or_default().push(message);
        }
        let groups = self.groups.lock();
        for (group, messages) in by_group {
            if let Some(open) = groups.get(&GroupId(group)) {
                open.deliver(messages);
            }
        }
    }

    pub(crate) fn port(&self, group: GroupId) -> Option<Arc<dyn Port>> {
        self.groups.lock().get(&group).cloned()
    }

    /// Asks a group's member on this node for the members, and to change them; `then` runs on a thread that handles
    /// groups.
    pub(crate) fn ask_members(&self, group: GroupId, ask: MembersAsk, then: MembersAnswer) {
        let posted = self.port(group).is_some_and(|port| port.ask_members(ask, then));
        if !posted {
            tracing::debug!(%group, "somebody asked for the members of a group that is not open");
        }
    }

    /// Reads a part of a checkpoint for another node. Blocks on the disk.
    pub fn fetch_checkpoint(
        &self,
        request: &FetchCheckpointRequest,
    ) -> Result<(FetchCheckpointResponse, Bytes), StoreError> {
        let file = self.lend(GroupId(request.group), request.index)?;
        let max = request.length_max.min(self.config.fetch_part_bytes.max(1));
        let part = Bytes::from(file.read(request.offset, max as usize)?);
        Ok((FetchCheckpointResponse { total: file.len(), crc: crc32c(&part) }, part))
    }

    /// A checkpoint that is being given away stays open, so that it can be read to its end although a newer one has
    /// replaced it.
    fn lend(&self, group: GroupId, index: u64) -> Result<Arc<Outgoing>, StoreError> {
        let now = self.clock.now();
        let mut lent = self.lent.lock();
        lent.retain(|_, lent| now.since(lent.used) < OUTGOING_IDLE);
        if let Some(found) = lent.get_mut(&(group, index)) {
            found.used = now;
            return Ok(found.file.clone());
        }
        let file = Arc::new(self.store.give(group, index)?);
        if lent.len() >= OUTGOING_MAX
            && let Some(oldest) = lent.iter().min_by_key(|(_, lent)| lent.used).map(|(&key, _)| key)
        {
            lent.remove(&oldest);
        }
        lent.insert((group, index), Lent { file: file.clone(), used: now });
        Ok(file)
    }

    /// State and counters of a group.
    pub fn status(&self, group: GroupId) -> Option<GroupStatus> {
        self.groups.lock().get(&group).map(|port| port.status())
    }

    /// Why the log stands still, or the member of the manager's group takes no part, for people. What concerns another
    /// group is told by its [status](Self::status).
    pub fn problem(&self) -> Option<String> {
        let full = self.wal.is_full().then(|| {
            let dir = &self.dir;
            format!("no space in {dir} for its log: this member commits nothing and cannot lead; free space, it goes on by itself")
        });
        full.or_else(|| self.status(GroupId::MANAGER)?.trouble(GroupId::MANAGER, self.config.node))
    }

    /// Groups that are open here.
    pub fn groups(&self) -> usize {
        self.groups.lock().len()
    }

    /// Those that sleep, or are about to.
    pub fn asleep(&self) -> usize {
        self.watch.count()
    }

    /// Threads that handle groups, and how long they were at work, all together.
    pub fn workers(&self) -> (usize, Duration) {
        (self.pool.workers(), self.pool.busy())
    }

    /// Counters of the log.
    pub fn wal_stats(&self) -> &WalStats {
        self.wal.stats()
    }

    /// Ends a group and forgets it durably: this node has left it. It may join again later.
    pub fn remove_group(&self, group: GroupId) -> Result<(), StoreError> {
        self.close_group(group);
        self.wal.append(vec![Record::Tombstone { group }])?;
        self.store.drop_group(group)?;
        self.recovered.lock().remove(&group);
        self.book.forget(group);
        self.opened.lock().remove(&group);
        Ok(())
    }

    /// Ends a group; its files stay. It can be opened again after a restart of the process only.
    pub fn close_group(&self, group: GroupId) {
        let closed = self.groups.lock().remove(&group);
        if let Some(open) = closed {
            open.close();
            open.wait();
        }
    }

    /// Ends all threads. What was acknowledged is durable; nothing else is waited for.
    pub fn shutdown(&self) {
        let groups = std::mem::take(&mut *self.groups.lock());
        groups.values().for_each(|open| open.close());
        groups.into_values().for_each(|open| open.wait());
        self.pool.stop();
        drop(self.scribe.lock().take());
        self.checkpointer.lock().stop();
    }
}

impl Drop for RaftHost {
    fn drop(&mut self) {
        self.shutdown();
    }
}
