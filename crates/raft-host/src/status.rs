//! [`GroupStatus`]: a member's state and counters, for people and metrics.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use cairn_raft::{CoreStatus, NotLeader, Shut};
use cairn_types::{GroupId, NodeId, Time, WallTime};
use parking_lot::Mutex;

use crate::owner::told;

/// Buckets of the batch size: bucket i counts batches of up to 2^i proposals, the last one all larger ones.
pub const BATCH_BUCKETS: usize = 16;

/// A picture of a group's member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupStatus {
    /// Raft's part: term, leader, commit, applied, members…
    pub core: CoreStatus,
    /// Whether it leads and has applied the first entry of its term.
    pub leads: bool,
    /// Proposals put into the log by this process.
    pub proposals: u64,
    /// Proposals that were not done, or not known to be.
    pub dropped: u64,
    /// Entries they were put into.
    pub batches: u64,
    /// Sizes of those; see [`BATCH_BUCKETS`].
    pub batch_sizes: [u64; BATCH_BUCKETS],
    /// Messages dropped because the queue was full.
    pub messages_dropped: u64,
    /// Checkpoints written by this process.
    pub checkpoints: u64,
    /// Checkpoints that failed.
    pub checkpoint_failures: u64,
    /// The last one's bytes.
    pub checkpoint_bytes: u64,
    /// How long the last one took.
    pub checkpoint_time: Duration,
    /// How long it took to restore the state at the start.
    pub restore_time: Duration,
    /// How long threads were at work for the group.
    pub busy: Duration,
    /// It sleeps: nothing is to do.
    pub asleep: bool,
    /// Why the group has stopped, if it has.
    pub failure: Option<String>,
}

impl GroupStatus {
    /// For people: why the member does not take part as it should, and what is next.
    pub fn trouble(&self, group: GroupId, node: NodeId) -> Option<String> {
        let stopped = |why: &String| format!("it has stopped: {why}; restart the process once the cause is mended");
        self.failure.as_ref().map(stopped).or_else(|| self.core.shut.and_then(|shut| told(group, node, &shut)))
    }
}

/// What handles and the group share.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Nanoseconds of the monotonic clock; 0 no lease, `u64::MAX` for ever.
    lease: AtomicU64,
    leader: AtomicU32,
    leads: AtomicBool,
    /// It sleeps, and nobody has asked for it since.
    asleep: AtomicBool,
    /// Somebody read since the last tick.
    used: AtomicBool,
    applied: AtomicU64,
    /// Monotonic time as of which nothing acknowledged is missing, and logged time of the last entry applied; 0: not
    /// known.
    fresh: AtomicU64,
    logged: AtomicU64,
    pub proposals: AtomicU64,
    pub dropped: AtomicU64,
    pub batches: AtomicU64,
    pub batch_sizes: [AtomicU64; BATCH_BUCKETS],
    pub messages_dropped: AtomicU64,
    pub checkpoints: AtomicU64,
    pub checkpoint_failures: AtomicU64,
    pub checkpoint_bytes: AtomicU64,
    pub checkpoint_nanos: AtomicU64,
    pub restore_nanos: AtomicU64,
    pub busy_nanos: AtomicU64,
    core: Mutex<CoreStatus>,
    failure: Mutex<Option<String>>,
}

impl Shared {
    pub fn new(core: CoreStatus) -> Self {
        Self {
            lease: AtomicU64::new(0),
            leader: AtomicU32::new(0),
            leads: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            used: AtomicBool::new(false),
            applied: AtomicU64::new(core.applied.index),
            fresh: AtomicU64::new(0),
            logged: AtomicU64::new(0),
            proposals: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            batches: AtomicU64::new(0),
            batch_sizes: std::array::from_fn(|_| AtomicU64::new(0)),
            messages_dropped: AtomicU64::new(0),
            checkpoints: AtomicU64::new(0),
            checkpoint_failures: AtomicU64::new(0),
            checkpoint_bytes: AtomicU64::new(0),
            checkpoint_nanos: AtomicU64::new(0),
            restore_nanos: AtomicU64::new(0),
            busy_nanos: AtomicU64::new(0),
            core: Mutex::new(core),
            failure: Mutex::new(None),
        }
    }

    pub fn set_lease(&self, until: Option<Time>) {
        self.lease.store(until.map_or(0, |time| time.0), Ordering::Release);
    }

    /// Somebody reads.
    pub fn use_it(&self) {
        // Written once a tick, so that readers do not take it from each other.
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
    }

    /// Whether somebody read since this was asked last.
    pub fn was_used(&self) -> bool {
        self.used.load(Ordering::Relaxed) && self.used.swap(false, Ordering::Relaxed)
    }

    pub fn permit(&self, now: impl FnOnce() -> Time) -> Result<(), NotLeader> {
        match self.lease.load(Ordering::Acquire) {
            u64::MAX => Ok(()),
            until if until != 0 && now().0 < until => Ok(()),
            _ => Err(NotLeader { hint: self.leader() }),
        }
    }

    pub fn set_leader(&self, leader: Option<NodeId>, leads: bool) {
        self.leader.store(leader.map_or(0, |node| node.0), Ordering::Relaxed);
        self.leads.store(leads, Ordering::Release);
    }

    pub fn leader(&self) -> Option<NodeId> {
        Some(NodeId(self.leader.load(Ordering::Relaxed))).filter(|node| node.0 != 0)
    }

    pub fn leads(&self) -> bool {
        self.leads.load(Ordering::Acquire)
    }

    pub fn set_asleep(&self, asleep: bool) {
        self.asleep.store(asleep, Ordering::Release);
    }

    /// It sleeps: whoever asks first is to wake it.
    pub fn is_to_wake(&self) -> bool {
        self.asleep.load(Ordering::Acquire) && self.asleep.swap(false, Ordering::AcqRel)
    }

    pub fn set_applied(&self, index: u64) {
        self.applied.store(index, Ordering::Release);
    }

    pub fn applied(&self) -> u64 {
        self.applied.load(Ordering::Acquire)
    }

    pub fn set_fresh(&self, as_of: Time) {
        self.fresh.store(as_of.0, Ordering::Release);
    }

    pub fn set_logged(&self, time: WallTime) {
        self.logged.store(time.0, Ordering::Release);
    }

    /// How long ago the state had everything, at most.
    pub fn age(&self, now: Time, wall: WallTime) -> Option<Duration> {
        // A former member answers nobody: those that are members do.
        if self.applied() == 0 || matches!(self.core.lock().shut, Some(Shut::Left { .. })) {
            return None;
        }
        match (self.fresh.load(Ordering::Acquire), self.logged.load(Ordering::Acquire)) {
            (0, 0) => None,
            (0, logged) => Some(Duration::from_nanos(wall.0.saturating_sub(logged))),
            (fresh, _) => Some(now.since(Time(fresh))),
        }
    }

    pub fn set_core(&self, core: CoreStatus) {
        *self.core.lock() = core;
    }

    pub fn fail(&self, why: String) {
        self.failure.lock().get_or_insert(why);
    }

    pub fn failure(&self) -> Option<String> {
        self.failure.lock().clone()
    }

    pub fn batch(&self, items: usize) {
        self.proposals.fetch_add(items as u64, Ordering::Relaxed);
        self.batches.fetch_add(1, Ordering::Relaxed);
        let bucket = items.max(1).next_power_of_two().ilog2() as usize;
        self.batch_sizes[bucket.min(BATCH_BUCKETS - 1)].fetch_add(1, Ordering::Relaxed);
    }

    pub fn status(&self) -> GroupStatus {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        GroupStatus {
            core: self.core.lock().clone(),
            leads: self.leads(),
            proposals: get(&self.proposals),
            dropped: get(&self.dropped),
            batches: get(&self.batches),
            batch_sizes: std::array::from_fn(|i| get(&self.batch_sizes[i])),
            messages_dropped: get(&self.messages_dropped),
            checkpoints: get(&self.checkpoints),
            checkpoint_failures: get(&self.checkpoint_failures),
            checkpoint_bytes: get(&self.checkpoint_bytes),
            checkpoint_time: Duration::from_nanos(get(&self.checkpoint_nanos)),
            restore_time: Duration::from_nanos(get(&self.restore_nanos)),
            busy: Duration::from_nanos(get(&self.busy_nanos)),
            asleep: self.asleep.load(Ordering::Relaxed),
            failure: self.failure(),
        }
    }
}
