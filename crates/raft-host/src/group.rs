//! [`Group`]: one group of a host, as the host and its threads see it.
//!
//! Invariants: whatever ends a group, a panic of its state machine too, afterwards nobody reads from it any more, and
//! nobody waits for it; after a panic the process ends, if that is configured. Not here: what a group does
//! (`owner.rs`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cairn_types::GroupId;
use cairn_wire::raft::{RaftMessage, TakeCheckpointRequest};
use parking_lot::{Condvar, Mutex};

use crate::mailbox::{Answer, Event, Mailbox, MembersAnswer, TakeAnswer};
use crate::members::MembersAsk;
use crate::owner::Owner;
use crate::pool::{self, After, Task, Waker};
use crate::state_machine::StateMachine;
use crate::status::{GroupStatus, Shared};

/// A group, whatever its state machine.
pub(crate) trait Port: Send + Sync {
    fn deliver(&self, messages: Vec<RaftMessage>);
    fn close(&self);
    /// Waits until it has ended, after it was closed.
    fn wait(&self);
    fn status(&self) -> GroupStatus;
    /// False: the group is closed.
    fn ask_members(&self, ask: MembersAsk, answer: MembersAnswer) -> bool;
    /// False: the group is closed.
    fn take(&self, request: TakeCheckpointRequest, answer: TakeAnswer) -> bool;
    /// False: the group is closed.
    fn accept_loss(&self, answer: Answer) -> bool;
    /// Nothing if the group is closed.
    fn post(&self, event: Event);
}

pub(crate) struct Group<S: StateMachine> {
    group: GroupId,
    number: u64,
    abort: bool,
    waker: Waker,
    mailbox: Arc<Mailbox<S::Context>>,
    shared: Arc<Shared>,
    /// Until it ends.
    owner: Mutex<Option<Owner<S>>>,
    ended: Mutex<bool>,
    end: Condvar,
}

impl<S: StateMachine> Group<S> {
    /// Begins to handle it. The number tells it from all others in the pool, those of before with the same name too.
    pub fn begin(
        group: GroupId,
        number: u64,
        abort: bool,
        (mailbox, shared): (Arc<Mailbox<S::Context>>, Arc<Shared>),
        owner: Owner<S>,
        waker: Waker,
    ) -> Arc<Self> {
        let owner = Mutex::new(Some(owner));
        let (ended, end) = (Mutex::new(false), Condvar::new());
        let this = Arc::new(Self { group, number, abort, waker: waker.clone(), mailbox, shared, owner, ended, end });
        let task: Arc<dyn Task> = this.clone();
        this.mailbox.begin(waker, &task);
        this
    }

    fn over(&self, owner: Option<Owner<S>>) {
        self.shared.set_lease(None);
        self.shared.set_leader(None, false);
        self.mailbox.abandon();
        drop(owner);
        *self.ended.lock() = true;
        self.end.notify_all();
    }
}

impl<S: StateMachine> Task for Group<S> {
    fn number(&self) -> u64 {
        self.number
    }

    fn run(&self) -> After {
        let mut owner = self.owner.lock();
        let Some(present) = owner.as_mut() else { return After::Rest(None) };
        let after = present.turn();
        if !present.is_closed() {
            return after;
        }
        present.end();
        let gone = owner.take();
        drop(owner);
        self.over(gone);
        After::Rest(None)
    }

    fn due(&self) -> bool {
        self.mailbox.due()
    }

    fn worked(&self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.shared.busy_nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    fn panicked(&self) {
        self.shared.set_lease(None);
        self.shared.set_leader(None, false);
        tracing::error!(group = %self.group, "the group's thread panicked; the member has stopped");
        self.shared.fail("the group's thread panicked".into());
        if self.abort {
            tracing::error!(group = %self.group, "the process ends, so that nothing of a half-changed state is used; \
                it recovers from its log when it is started again");
            std::process::abort();
        }
        let gone = self.owner.lock().take();
        self.over(gone);
    }
}

impl<S: StateMachine> Port for Group<S> {
    fn deliver(&self, messages: Vec<RaftMessage>) {
        let dropped = self.mailbox.deliver(messages);
        self.shared.messages_dropped.fetch_add(dropped as u64, Ordering::Relaxed);
    }

    fn close(&self) {
        self.mailbox.close();
    }

    fn wait(&self) {
        // A state machine may drop its host while it is handled.
        if !pool::handles(&self.waker, self.number) {
            pool::blocking(|| self.end.wait_while(&mut self.ended.lock(), |ended| !*ended));
        }
    }

    fn status(&self) -> GroupStatus {
        self.shared.status()
    }

    fn ask_members(&self, ask: MembersAsk, answer: MembersAnswer) -> bool {
        self.mailbox.post(Event::Members(ask, answer))
    }

    fn take(&self, request: TakeCheckpointRequest, answer: TakeAnswer) -> bool {
        self.mailbox.post(Event::Take(request, answer))
    }

    fn accept_loss(&self, answer: Answer) -> bool {
        self.mailbox.post(Event::AcceptLoss(answer))
    }

    fn post(&self, event: Event) {
        // A closed group needs none.
        self.mailbox.post(event);
    }
}
