//! [`Mailbox`]: the one queue in front of a group, bounded in every part.
//!
//! Invariant: whoever puts something in that the group waits for makes it ready, once: from then on until the group
//! finds nothing more it is ready, or at work.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use cairn_raft::{MemberChange, Position, SnapshotMeta};
use cairn_store::StoreError;
use cairn_types::NodeId;
use cairn_wire::raft::{GroupMembersResponse, RaftMessage, TakeCheckpointRequest, TakeCheckpointResponse};
use parking_lot::{Mutex, MutexGuard};

use crate::error::HostError;
use crate::handle::Frozen;
use crate::members::MembersAsk;
use crate::pool::{Task, Waker};

/// Answers a control request.
pub(crate) type Answer = Box<dyn FnOnce(Result<(), HostError>) + Send>;
/// Answers a question for the members.
pub(crate) type MembersAnswer = Box<dyn FnOnce(Result<GroupMembersResponse, HostError>) + Send>;

/// Answers a request for a checkpoint.
pub(crate) type TakeAnswer = Box<dyn FnOnce(Result<TakeCheckpointResponse, HostError>) + Send>;

/// Answers a request for a checkpoint of one moment, as soon as the moment is past.
pub(crate) type FreezeAnswer = Box<dyn FnOnce(Result<Frozen, HostError>) + Send>;

/// What is not a message and not a proposal. There are few at a time: each has one cause under way.
pub(crate) enum Event {
    /// The log wrote everything up to a number, or failed.
    Persisted(u64, Result<(), StoreError>),
    /// A checkpoint was written (with its bytes and the time it took), or not.
    Checkpointed(SnapshotMeta, Result<(u64, Duration), StoreError>),
    /// An offered checkpoint was fetched, or not.
    Fetched(Position, Result<(), String>),
    ChangeMembers(Vec<MemberChange>, Answer),
    TransferLeader(NodeId, Answer),
    Members(MembersAsk, MembersAnswer),
    /// A person accepts what this member has forgotten.
    AcceptLoss(Answer),
    /// Somebody outside of the group knows of this term.
    RaiseTerm(u64),
    /// What the leader of this term has forgotten is known from elsewhere.
    Recalled(u64),
    Checkpoint,
    /// Somebody wants it to be awake.
    Wake,
    /// The node of the leader of this term is gone.
    LeaderLost(u64),
    /// It holds an old part of the log.
    Release,
    /// A checkpoint is to be there.
    Take(TakeCheckpointRequest, TakeAnswer),
    /// A checkpoint of this moment is begun.
    Freeze(FreezeAnswer),
}

pub(crate) struct Inbox<C> {
    pub proposals: Vec<(Bytes, C)>,
    pub proposal_bytes: usize,
    pub messages: Vec<RaftMessage>,
    message_bytes: usize,
    pub events: Vec<Event>,
    /// The group is ready, or at work.
    ready: bool,
    /// The group rests, and proposals alone do not make it ready.
    full: bool,
    pub closed: bool,
}

impl<C> Inbox<C> {
    /// Gives back memory that was needed once.
    pub fn shrink(&mut self) {
        self.proposals = Vec::new();
        self.messages = Vec::new();
        self.events = Vec::new();
    }
}

impl<C> Default for Inbox<C> {
    fn default() -> Self {
        Self {
            proposals: Vec::new(),
            proposal_bytes: 0,
            messages: Vec::new(),
            message_bytes: 0,
            events: Vec::new(),
            ready: false,
            full: false,
            closed: false,
        }
    }
}

/// Bounds of a mailbox.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub proposals: usize,
    pub proposal_bytes: usize,
    pub item_bytes: usize,
    pub message_bytes: usize,
}

pub(crate) struct Mailbox<C> {
    bounds: Bounds,
    inbox: Mutex<Inbox<C>>,
    /// Who empties it; nobody before it is said.
    task: OnceLock<(Waker, Weak<dyn Task>)>,
}

fn weight(message: &RaftMessage) -> usize {
    128 + message.entries.iter().map(|entry| entry.data.len() + 48).sum::<usize>()
}

impl<C> Mailbox<C> {
    pub fn new(bounds: Bounds) -> Self {
        Self { bounds, inbox: Mutex::default(), task: OnceLock::new() }
    }

    /// Says who empties it; what is in it already makes that one ready, and so does this.
    pub fn begin(&self, waker: Waker, task: &Arc<dyn Task>) {
        // There is one.
        let _ = self.task.set((waker, Arc::downgrade(task)));
        self.changed(self.inbox.lock());
    }

    fn changed(&self, mut inbox: MutexGuard<'_, Inbox<C>>) {
        let Some((waker, task)) = self.task.get() else { return };
        if std::mem::replace(&mut inbox.ready, true) {
            return;
        }
        drop(inbox);
        if let Some(task) = task.upgrade() {
            waker.ready(task);
        }
    }

    /// A time has come: whether the group rested, and is ready from now on.
    pub fn due(&self) -> bool {
        !std::mem::replace(&mut self.inbox.lock().ready, true)
    }

    /// Queues a proposal, or gives its context back when the queue is full, the item too long, or the group closed.
    pub fn propose(&self, data: Bytes, context: C) -> Result<(), C> {
        let mut inbox = self.inbox.lock();
        let full = inbox.proposals.len() >= self.bounds.proposals
            || inbox.proposal_bytes + data.len() > self.bounds.proposal_bytes;
        if full || inbox.closed || data.len() > self.bounds.item_bytes {
            return Err(context);
        }
        inbox.proposal_bytes += data.len();
        inbox.proposals.push((data, context));
        if !inbox.full {
            self.changed(inbox);
        }
        Ok(())
    }

    /// Queues messages; gives how many were dropped because the queue is full.
    pub fn deliver(&self, messages: Vec<RaftMessage>) -> usize {
        let mut dropped = 0;
        let mut inbox = self.inbox.lock();
        for message in messages {
            if inbox.closed || inbox.message_bytes > self.bounds.message_bytes {
                dropped += 1;
                continue;
            }
            inbox.message_bytes += weight(&message);
            inbox.messages.push(message);
        }
        self.changed(inbox);
        dropped
    }

    /// Queues an event; `false` when the group is closed.
    pub fn post(&self, event: Event) -> bool {
        let mut inbox = self.inbox.lock();
        if inbox.closed {
            return false;
        }
        inbox.events.push(event);
        self.changed(inbox);
        true
    }

    pub fn close(&self) {
        let mut inbox = self.inbox.lock();
        inbox.closed = true;
        self.changed(inbox);
    }

    /// Closes it and drops what waits: nobody will take it.
    pub fn abandon(&self) {
        let mut inbox = self.inbox.lock();
        let dropped = std::mem::take(&mut *inbox);
        inbox.closed = true;
        drop(inbox);
        // Contexts may do things when they are dropped; not under the lock.
        drop(dropped);
    }

    /// Takes all that waits (proposals only when they are wanted). `false`: there is nothing and, unless something is
    /// `due`, the group rests from now on. `into` is empty and keeps its memory.
    pub fn take(&self, into: &mut Inbox<C>, proposals: bool, due: bool) -> bool {
        let mut inbox = self.inbox.lock();
        let nothing = inbox.messages.is_empty()
            && inbox.events.is_empty()
            && !inbox.closed
            && (!proposals || inbox.proposals.is_empty());
        if nothing && !due {
            inbox.ready = false;
            inbox.full = !proposals;
            return false;
        }
        std::mem::swap(&mut inbox.messages, &mut into.messages);
        std::mem::swap(&mut inbox.events, &mut into.events);
        inbox.message_bytes = 0;
        if proposals {
            std::mem::swap(&mut inbox.proposals, &mut into.proposals);
            into.proposal_bytes = std::mem::take(&mut inbox.proposal_bytes);
        }
        into.closed = inbox.closed;
        true
    }

    /// Gives back memory that was needed once, if nothing waits.
    pub fn shrink(&self) {
        let mut inbox = self.inbox.lock();
        if inbox.messages.is_empty() && inbox.events.is_empty() && inbox.proposals.is_empty() {
            inbox.shrink();
        }
    }
}
