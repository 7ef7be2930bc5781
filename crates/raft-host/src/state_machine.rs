//! [`StateMachine`]: what a role hosts in a Raft group, and what it is told.
//!
//! Invariant: `apply` is called by one thread at a time, in log order, each entry once per process life (after a
//! restart from the newest checkpoint on); its outcome depends on its arguments alone.

use bytes::Bytes;
use cairn_store::{CheckpointSink, CheckpointSource, StoreError};
use cairn_types::{NodeId, WallTime};

/// Where in the log a batch of items stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AppliedAt {
    /// Index of the entry.
    pub index: u64,
    /// Term of the entry.
    pub term: u64,
    /// Logged time: the same on every member, never goes back.
    pub time: WallTime,
}

/// One proposed item of a batch.
#[derive(Debug)]
pub struct Item<C> {
    /// The bytes proposed.
    pub data: Bytes,
    /// Whom to answer: only on the member and in the process that proposed it.
    pub context: Option<C>,
}

/// Why proposals were given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DropReason {
    /// This member does not lead: certainly not done and never will be. The hint names who may lead.
    NotLeader {
        /// The leader as far as this member knows.
        hint: Option<NodeId>,
    },
    /// Leadership ended (or the group stopped) with the proposal in the log: it may yet be applied, or not.
    Unknown,
}

/// The member's part in the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Leads, and has applied the first entry of its term (so it has applied all that was ever acknowledged).
    Leader {
        /// The term.
        term: u64,
        /// What a person accepted as forgotten may be missing, see
        /// [`GroupHandle::recalled`](crate::GroupHandle::recalled).
        forgot: bool,
    },
    /// Does not lead.
    Follower {
        /// The leader, if known.
        leader: Option<NodeId>,
    },
}

/// Writes a state; made in O(1) on a thread that handles groups, run on another one while the group goes on.
pub type CheckpointWriter = Box<dyn FnOnce(&mut dyn CheckpointSink) -> Result<(), StoreError> + Send>;

/// A deterministic state machine with checkpoints. All calls come from the threads that handle groups, one at a time.
pub trait StateMachine: Send + 'static {
    /// Leader-local: whom to answer. Lost on a restart.
    type Context: Send + 'static;

    /// Applies one entry's items in order. `items` may be empty (an entry that only carries time).
    fn apply(&mut self, at: AppliedAt, items: Vec<Item<Self::Context>>);
    /// The feature level that the state has activated: below it, the program of before goes on with what this one
    /// wrote.
    fn level(&self) -> u32 {
        0
    }
    /// Called when all entries known to be committed at this moment have been applied: publish a root, send the
    /// answers. Between two such calls readers may see the older state.
    fn applied_batch(&mut self) {}
    /// These proposals will not be answered by `apply`.
    fn dropped(&mut self, contexts: Vec<(Self::Context, DropReason)>);
    /// A writer of the present state (after the last applied entry).
    fn checkpoint(&self) -> CheckpointWriter;
    /// Replaces the state by a checkpoint's: at the start, or when this member was left too far behind.
    fn restore(&mut self, source: &mut dyn CheckpointSource) -> Result<(), StoreError>;
    /// The member's part changed. `Leader` comes after its first entry was applied.
    fn role_changed(&mut self, role: Role);
    /// There was nothing to do for some time, or there is again: work that looks for something now and then may look
    /// less often.
    fn rests(&mut self, _rests: bool) {}
}
