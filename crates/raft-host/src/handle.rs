//! [`GroupHandle`]: how a role talks to its group, from any thread.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cairn_env::Clock;
use cairn_raft::{MemberChange, NotLeader};
use cairn_types::{GroupId, NodeId};

use crate::error::HostError;
use crate::mailbox::{Event, Mailbox};
use crate::status::{GroupStatus, Shared};

/// A state that is older, of a member that sleeps, is worth asking its leader.
const YOUNG: Duration = Duration::from_secs(1);

/// A checkpoint of one moment, which is being written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frozen {
    /// This node.
    pub node: NodeId,
    /// The last entry in it, and its term.
    pub index: u64,
    /// See there.
    pub term: u64,
}

/// A cheap, shareable handle to a group's member on this node.
pub struct GroupHandle<C> {
    group: GroupId,
    mailbox: Arc<Mailbox<C>>,
    shared: Arc<Shared>,
    clock: Arc<dyn Clock>,
}

impl<C> Clone for GroupHandle<C> {
    fn clone(&self) -> Self {
        Self {
            group: self.group,
            mailbox: self.mailbox.clone(),
            shared: self.shared.clone(),
            clock: self.clock.clone(),
        }
    }
}

impl<C: Send + 'static> GroupHandle<C> {
    pub(crate) fn new(group: GroupId, mailbox: Arc<Mailbox<C>>, shared: Arc<Shared>, clock: Arc<dyn Clock>) -> Self {
        Self { group, mailbox, shared, clock }
    }

    /// The group.
    pub fn group(&self) -> GroupId {
        self.group
    }

    /// Proposes an item. The context comes back through the state machine's `apply` or `dropped`, exactly once;
    /// or from here at once when the queue is full, the item longer than allowed, or the group closed (certainly
    /// not done). Never blocks.
    pub fn propose(&self, data: impl Into<Bytes>, context: C) -> Result<(), C> {
        self.mailbox.propose(data.into(), context)
    }

    /// Whether reads may be answered from this member's state now: it leads, no other leader can exist at this
    /// moment, and all that was ever acknowledged is applied. Ask first, then read. Lock-free. A leader that sleeps is
    /// woken: it may be asked again after a moment.
    pub fn read_permit(&self) -> Result<(), NotLeader> {
        let permit = self.shared.permit(|| self.clock.now());
        match &permit {
            Ok(()) => self.shared.use_it(),
            Err(_) if self.leads() => self.wake(),
            Err(_) => {}
        }
        permit
    }

    /// A member that sleeps has no lease and hears nothing: it has them again after a round of heartbeats.
    fn wake(&self) {
        if self.shared.is_to_wake() {
            // A closed group sleeps for good.
            self.mailbox.post(Event::Wake);
        }
    }

    /// Whether this member leads and has applied the first entry of its term.
    pub fn leads(&self) -> bool {
        self.shared.leads()
    }

    /// Who leads, as far as known.
    pub fn leader(&self) -> Option<NodeId> {
        self.shared.leader()
    }

    /// Index of the last applied entry.
    pub fn applied(&self) -> u64 {
        self.shared.applied()
    }

    /// How old this member's state is at most: everything that anybody acknowledged so long ago is in it. Counted from
    /// what a leader that held its lease said, on this machine's monotonic clock; as long as none was heard since the
    /// start, from the logged time of the last applied entry, on the calendar. `None`: there is no state yet. Ask
    /// first, then read.
    pub fn age(&self) -> Option<Duration> {
        self.shared.use_it();
        let age = self.shared.age(self.clock.now(), self.clock.wall());
        if age.is_none_or(|age| age > YOUNG) {
            self.wake();
        }
        age
    }

    /// State and counters.
    pub fn status(&self) -> GroupStatus {
        self.shared.status()
    }

    /// Changes the members (leader only); returns when the change was put into the log, not when it is done (see
    /// `status().core.members`). A member is added as a learner first, made a voter when it has caught up.
    pub fn change_members(&self, changes: Vec<MemberChange>) -> Result<(), HostError> {
        self.ask(|answer| Event::ChangeMembers(changes, answer))
    }

    /// Hands leadership over to a voting member; returns when that has begun.
    pub fn transfer_leader(&self, to: NodeId) -> Result<(), HostError> {
        self.ask(|answer| Event::TransferLeader(to, answer))
    }

    /// Somebody outside of the group was told something in this term: this member leads in a higher one, or not at all.
    pub fn raise_term(&self, term: u64) {
        // A closed group leads nobody.
        self.mailbox.post(Event::RaiseTerm(term));
    }

    /// What the leader of this term, and those who elected it, have forgotten is known from elsewhere; nothing if this
    /// member does not lead in it any more.
    pub fn recalled(&self, term: u64) {
        // A closed group leads nobody.
        self.mailbox.post(Event::Recalled(term));
    }

    /// Makes a checkpoint soon.
    pub fn checkpoint_soon(&self) {
        // A closed group needs none.
        self.mailbox.post(Event::Checkpoint);
    }

    /// Begins a checkpoint of what is applied at a moment between this call and the answer, in which this member led
    /// and no other leader could exist. It takes no time: the file is written behind, and is kept for an hour.
    pub fn freeze(&self, then: Box<dyn FnOnce(Result<Frozen, HostError>) + Send>) {
        // A closed group drops it.
        self.mailbox.post(Event::Freeze(then));
    }

    fn ask(&self, event: impl FnOnce(crate::mailbox::Answer) -> Event) -> Result<(), HostError> {
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        let answer = Box::new(move |result| drop(sender.send(result)));
        let stopped = || HostError::Stopped {
            group: self.group,
            cause: self.shared.failure().unwrap_or_else(|| "the host ends".into()),
        };
        if !self.mailbox.post(event(answer)) {
            return Err(stopped());
        }
        receiver.recv().unwrap_or_else(|_| Err(stopped()))
    }
}
