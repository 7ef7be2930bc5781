//! Owns a group's core and state machine: takes inputs, steps the core, carries out its outputs.
//!
//! Invariants: the lease is published before the outputs of the same step are carried out; ticks are never made up for;
//! proposals become one entry at a time, and none is proposed before all entries of earlier leaders were applied (so
//! logged time never goes back). Not here: the thread that does it ([`crate::pool`]), and when ([`crate::mailbox`]).

mod calendar;
mod carry;
mod checkpoints;
mod freeze;
mod gate;
mod slumber;
mod still_log;
mod strangers;

pub(crate) use checkpoints::Generations;
pub use gate::told;

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use cairn_env::Clock;
use cairn_raft::{BatchBuilder, CoreStatus, GroupCore, Input, LogClock, MemberChange, Output, Position, Refused};
use cairn_store::{CheckpointStore, Wal};
use cairn_types::{ClusterId, GroupId, NodeId, Time, WallTime, era_of};
use cairn_wire::raft::RaftMessage;

use crate::book::MarkBook;
use crate::clocks::Clocks;
use crate::config::HostConfig;
use crate::era::{Verdict, judge};
use crate::error::HostError;
use crate::jobs::CheckpointJob;
use crate::log_memory::LogShare;
use crate::mailbox::{Event, Inbox, Mailbox};
use crate::outbox::{self, HEARTBEAT};
use crate::pool::{self, After};
use crate::state_machine::{DropReason, Role, StateMachine};
use crate::status::Shared;
use crate::transport::RaftTransport;
use crate::watch::Watch;
use calendar::Calendar;
use slumber::Slumbering;
use still_log::LogWait;

/// Ticks during which the first member of a new group tries to lead at once.
const EAGER_TICKS: u32 = 40;
/// What is committed is told to the members after so long, if no entries follow that tell it.
const COMMIT_PAUSE: Duration = Duration::from_millis(5);
/// After so many rounds without a rest others come first.
const ROUNDS_MAX: usize = 32;
/// Spreads nodes over a tick: the golden ratio, as a fraction of 2^64.
const PHASE: u64 = 0x9e37_79b9_7f4a_7c15;
/// Feature level from which on members ask for an entry when their log waits for one.
const ASKS_LEVEL: u32 = 6;
/// Bytes of entries that take a while to be applied at the start.
const LONG_LOG: u64 = 1 << 20;

/// Proposals in the log that wait for being applied.
struct Pending<C> {
    at: Position,
    contexts: Vec<C>,
}

/// What it works with, besides core and state machine.
pub(crate) struct Parts {
    pub group: GroupId,
    pub config: HostConfig,
    pub cluster: Arc<OnceLock<ClusterId>>,
    pub clock: Arc<dyn Clock>,
    pub wal: Arc<Wal>,
    pub store: Arc<CheckpointStore>,
    pub transport: Arc<dyn RaftTransport>,
    pub clocks: Arc<Clocks>,
    pub jobs: Sender<CheckpointJob>,
    pub watch: Arc<Watch>,
    pub book: Arc<MarkBook>,
    pub shared: Arc<Shared>,
    pub log: LogShare,
}

pub(crate) struct Owner<S: StateMachine> {
    parts: Parts,
    mailbox: Arc<Mailbox<S::Context>>,
    core: GroupCore,
    sm: S,
    log_clock: LogClock,
    /// Taken but not proposed yet.
    waiting: VecDeque<(Bytes, S::Context)>,
    pending: VecDeque<Pending<S::Context>>,
    outputs: Vec<Output>,
    leads: bool,
    eager: u32,
    next_tick: Time,
    /// When members are told what is committed.
    commit_due: Option<Time>,
    /// When an idle leader puts an empty entry into the log.
    idle_entry_at: Time,
    failed: bool,
    ticked: bool,
    checkpoint_wanted: bool,
    /// Last entry that the state machine has.
    applied: Position,
    /// The history that it belongs to.
    era: u64,
    checkpoints: Generations,
    log_wait: LogWait,
    gate: gate::GateWatch,
    calendar: Calendar,
    slumber: Slumbering,
    entry_wanted: bool,
    started: bool,
    /// Kept for its memory.
    inbox: Inbox<S::Context>,
}

impl<S: StateMachine> Owner<S> {
    pub fn new(
        parts: Parts,
        mailbox: Arc<Mailbox<S::Context>>,
        core: GroupCore,
        sm: S,
        log_clock: LogClock,
        checkpoints: Generations,
        eager: bool,
    ) -> Self {
        let applied = core.applied();
        let calendar = Calendar::begin(parts.clock.now());
        parts.shared.set_logged(log_clock.last());
        let era = era_of(core.status().term).max(era_of(applied.term));
        let gate = gate::GateWatch::new(&core, parts.book.has_forgotten(parts.group));
        Self {
            parts,
            gate,
            mailbox,
            core,
            sm,
            log_clock,
            waiting: VecDeque::new(),
            pending: VecDeque::new(),
            outputs: Vec::new(),
            leads: false,
            eager: if eager { EAGER_TICKS } else { 0 },
            next_tick: Time(0),
            commit_due: None,
            idle_entry_at: Time(0),
            failed: false,
            ticked: false,
            checkpoint_wanted: false,
            applied,
            era,
            checkpoints,
            log_wait: LogWait::default(),
            calendar,
            slumber: Slumbering::default(),
            entry_wanted: false,
            started: false,
            inbox: Inbox::default(),
        }
    }

    /// Does what there is to do, for a while.
    pub fn turn(&mut self) -> After {
        if !std::mem::replace(&mut self.started, true) {
            // What the log has behind the checkpoint is applied now.
            match self.core.log_bytes() > LONG_LOG {
                true => pool::blocking(|| self.start()),
                false => self.start(),
            }
        }
        let mut inbox = std::mem::take(&mut self.inbox);
        let mut after = After::Again;
        for _ in 0..ROUNDS_MAX {
            let deadline = self.deadline();
            let due = deadline.is_some_and(|at| at <= self.parts.clock.now());
            if !self.mailbox.take(&mut inbox, self.wants_proposals(), due) {
                after = After::Rest(deadline);
                break;
            }
            if inbox.closed {
                break;
            }
            self.handle(&mut inbox);
        }
        self.inbox = inbox;
        after
    }

    /// The group is closed: nothing comes any more.
    pub fn is_closed(&self) -> bool {
        self.inbox.closed
    }

    /// When it has something to do although nobody comes.
    fn deadline(&self) -> Option<Time> {
        let asleep = self.core.is_asleep() && !self.checkpoints.is_awaited();
        (!self.failed && !asleep).then(|| self.commit_due.map_or(self.next_tick, |due| due.min(self.next_tick)))
    }

    fn start(&mut self) {
        self.allow_chain();
        self.next_tick = self.tick_after(self.parts.clock.now());
        // What the witness said before counts from the first message on.
        self.look_at_gate();
        self.sm.role_changed(Role::Follower { leader: None });
        if self.eager > 0 || self.core.members().voters == [self.parts.config.node] {
            self.step_quietly(Input::Campaign);
            self.carry_out();
        } else {
            self.outputs_now();
        }
    }

    /// What was committed when the process ended comes out without any input.
    fn outputs_now(&mut self) {
        let none = Position::default();
        self.step_quietly(Input::SnapshotFailed(none));
        self.carry_out();
    }

    fn wants_proposals(&self) -> bool {
        if self.failed || !self.leads {
            return true;
        }
        self.waiting.is_empty() && self.may_propose()
    }

    fn may_propose(&self) -> bool {
        self.pending.len() < self.parts.config.batches_in_flight_max
            && self.core.log_bytes() < self.parts.config.log_memory_max
    }

    fn handle(&mut self, inbox: &mut Inbox<S::Context>) {
        if self.core.is_asleep() {
            // Ticks do it otherwise: what was said of this member meanwhile counts before it votes.
            self.look_at_gate();
        }
        for message in inbox.messages.drain(..) {
            if !self.failed {
                self.message(message);
            }
        }
        for event in inbox.events.drain(..) {
            self.event(event);
        }
        self.tick();
        self.tell_commit();
        self.waiting.extend(inbox.proposals.drain(..));
        if self.leads && !self.failed {
            self.propose();
        } else {
            self.refuse_waiting();
        }
        self.carry_out();
        // Only now is the state machine where the core is.
        self.freeze();
        if self.ticked || self.checkpoint_wanted {
            self.maybe_checkpoint(self.checkpoint_wanted || self.checkpoints.is_awaited());
            self.ticked = false;
            self.checkpoint_wanted = false;
        }
        if std::mem::take(&mut self.entry_wanted) {
            self.empty_entry();
            self.carry_out();
        }
        if self.commit_due.is_none() && self.core.has_commit_to_tell() {
            self.commit_due = Some(self.parts.clock.now() + COMMIT_PAUSE);
        }
        self.note_slumber();
    }

    /// Whoever follows applies it a moment later than the leader; nobody waits for that.
    fn tell_commit(&mut self) {
        if self.commit_due.is_some_and(|due| due <= self.parts.clock.now()) {
            self.commit_due = None;
            self.step_quietly(Input::TellCommit);
        }
    }

    /// Messages of another history, and of strangers, do not reach the core.
    fn message(&mut self, message: RaftMessage) {
        if self.is_strangers(&message) {
            return;
        }
        if let Ok(from) = u32::try_from(message.from) {
            self.parts.clocks.heard(NodeId(from), WallTime(message.wall_ns), self.parts.clock.now());
        }
        if era_of(message.term) == self.era {
            return self.step_quietly(Input::Message(message));
        }
        let status = self.core.status();
        let last = Position { index: status.last, term: self.applied.term };
        match judge(&message, status.term, last) {
            Verdict::Take => {
                self.era = era_of(message.term);
                self.step_quietly(Input::Message(message));
            }
            Verdict::Tell(term) => {
                let Ok(from) = u32::try_from(message.from) else { return };
                let (group, node) = (self.parts.group, self.parts.config.node);
                tracing::debug!(%group, from, "a member of before the group was restored is told so");
                let told = RaftMessage {
                    group: group.0,
                    // By this a member of before hears of the present history.
                    kind: HEARTBEAT,
                    to: message.from,
                    from: u64::from(node.0),
                    term,
                    ..RaftMessage::default()
                };
                outbox::send(self.parts.transport.as_ref(), NodeId(from), vec![told], self.parts.clock.now());
            }
            Verdict::Superseded(era) => {
                let (group, index) = (self.parts.group, self.applied.index);
                let next = match group {
                    GroupId::MANAGER => {
                        "Empty the directory (keep a copy until all files were read), and let the node join again"
                            .to_owned()
                    }
                    group => format!(
                        "Keep a copy of the directory until all files were read; `cairn admin partition remove {0} NODE`, and all others of \
                         before with it, drops this, then `cairn admin partition add {0} NODE` makes it a member again",
                        group.0
                    ),
                };
                self.fail(&format!(
                    "what this directory has of group {group} (up to entry {index}) is superseded: n{} has a state that was \
                     restored, or made anew, in era {era}; this node takes no part with the old one. {next}",
                    message.from
                ));
            }
        }
    }

    /// All groups of a node tick at the same times, so that their heartbeats go together.
    fn tick_after(&self, now: Time) -> Time {
        let tick = u64::try_from(self.parts.config.tick.as_nanos()).unwrap_or(u64::MAX).max(1);
        // Nodes of one machine have one clock, and candidates that stand at the same moment elect nobody.
        let phase = u64::from(self.parts.config.node.0).wrapping_mul(PHASE) % tick;
        let passed = now.0.saturating_sub(phase) / tick;
        Time((passed + 1) * tick + phase)
    }

    fn tick(&mut self) {
        let now = self.parts.clock.now();
        if now < self.next_tick || self.failed {
            return;
        }
        self.next_tick = self.tick_after(now);
        if self.parts.shared.was_used() {
            self.core.stay_awake();
        }
        self.step_quietly(Input::Tick);
        if self.eager > 0 {
            self.eager = if self.core.leader().is_some() { 0 } else { self.eager - 1 };
            self.step_quietly(Input::Campaign);
        }
        self.ticked = true;
        self.keep_moving(now);
        self.leave_a_still_log(now);
        self.look_at_gate();
        self.parts.shared.set_core(self.core.status());
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Persisted(_, Err(error)) => self.fail(&error.to_string()),
            Event::Persisted(number, Ok(())) => {
                self.log_wait.persisted(self.parts.clock.now());
                self.step_quietly(Input::Persisted(number));
            }
            Event::Checkpointed(meta, result) => self.checkpointed(meta, result),
            Event::Fetched(at, result) => {
                let input = match result {
                    Ok(()) => Input::SnapshotFetched(at),
                    Err(error) => {
                        let group = self.parts.group;
                        tracing::warn!(%group, index = at.index, error, "an offered checkpoint could not be fetched");
                        Input::SnapshotFailed(at)
                    }
                };
                self.step_quietly(input);
            }
            Event::ChangeMembers(changes, answer) => answer(self.change_members(changes)),
            Event::TransferLeader(to, answer) => answer(self.transfer_leader(to)),
            Event::Members(ask, answer) => answer(self.members(ask)),
            Event::AcceptLoss(answer) => answer(self.accept_loss()),
            Event::RaiseTerm(term) => self.step_quietly(Input::RaiseTerm(term)),
            Event::Recalled(term) => self.step_quietly(Input::Recalled(term)),
            Event::Checkpoint => self.checkpoint_wanted = true,
            Event::Wake => self.step_quietly(Input::Wake),
            Event::LeaderLost(term) => self.step_quietly(Input::LeaderLost(term)),
            Event::Release => self.ticked = true,
            Event::Take(request, answer) => self.take(&request, answer),
            Event::Freeze(answer) => self.checkpoints.freezers.push(answer),
        }
    }

    pub(crate) fn change_members(&mut self, changes: Vec<MemberChange>) -> Result<(), HostError> {
        self.ask(Input::ChangeMembers(changes))
    }

    pub(crate) fn transfer_leader(&mut self, to: NodeId) -> Result<(), HostError> {
        self.ask(Input::TransferLeader(to))
    }

    pub(crate) fn status(&self) -> CoreStatus {
        self.core.status()
    }

    /// No other leader can exist at this moment.
    pub(crate) fn holds_lease(&self) -> bool {
        self.leads && self.core.lease_until().is_some_and(|until| self.parts.clock.now() < until)
    }

    /// The same for somebody who asks: if it is only that the group sleeps, it is so in a moment.
    pub(crate) fn leads_or_wakes(&mut self) -> bool {
        let holds = self.holds_lease();
        if !holds {
            self.step_quietly(Input::Wake);
        }
        holds
    }

    pub(crate) fn running(&self) -> Result<(), HostError> {
        match self.failed {
            false => Ok(()),
            true => {
                let cause = self.parts.shared.failure().unwrap_or_default();
                Err(HostError::Stopped { group: self.parts.group, cause })
            }
        }
    }

    fn ask(&mut self, input: Input) -> Result<(), HostError> {
        self.running()?;
        match self.step(input) {
            Ok(()) => Ok(()),
            Err(Refused::NotLeader(error)) => Err(error.into()),
            Err(other) => Err(HostError::Refused(other.to_string())),
        }
    }

    fn step(&mut self, input: Input) -> Result<(), Refused> {
        let now = self.parts.clock.now();
        let result = self.core.step(now, input, &mut self.outputs);
        self.carry_out();
        result
    }

    /// Inputs whose refusal is nothing that anybody can act on; the core counts them.
    fn step_quietly(&mut self, input: Input) {
        if self.failed {
            return;
        }
        let now = self.parts.clock.now();
        if let Err(error) = self.core.step(now, input, &mut self.outputs) {
            tracing::debug!(group = %self.parts.group, %error, "an input had no effect");
        }
    }

    /// An idle group holds segments of the log that other groups fill until its members can make a newer checkpoint.
    fn keep_moving(&mut self, now: Time) {
        let older = self.leads && self.core.understanding().common.is_some_and(|common| common < ASKS_LEVEL);
        let busy = !older || !self.waiting.is_empty() || !self.pending.is_empty();
        if busy || self.idle_entry_at == Time(0) {
            self.idle_entry_at = now + self.parts.config.idle_entry;
        } else if now >= self.idle_entry_at {
            self.idle_entry_at = now + self.parts.config.idle_entry;
            self.empty_entry();
        }
    }

    /// Something for members to make a checkpoint of. With anything else under way there is something anyway.
    fn empty_entry(&mut self) {
        if !self.leads || !self.waiting.is_empty() || !self.pending.is_empty() {
            return;
        }
        let now = self.parts.clock.now();
        let time = self.time_to_log(now);
        let empty = BatchBuilder::with_capacity(0, 0).finish(time);
        if let Err(error) = self.core.propose(now, empty, &mut self.outputs) {
            tracing::debug!(group = %self.parts.group, %error, "no empty entry was put into the log");
        }
    }

    /// Puts what waits into entries, as far as bounds allow.
    fn propose(&mut self) {
        while !self.waiting.is_empty() && self.may_propose() {
            let max = self.parts.config.batch_bytes_max;
            let mut count = 0;
            let mut bytes = 0;
            for (data, _) in &self.waiting {
                if count > 0 && bytes + data.len() > max {
                    break;
                }
                bytes += data.len();
                count += 1;
            }
            let mut batch = BatchBuilder::with_capacity(count, bytes);
            for (data, _) in self.waiting.iter().take(count) {
                batch.push(data);
            }
            let now = self.parts.clock.now();
            let time = self.time_to_log(now);
            match self.core.propose(now, batch.finish(time), &mut self.outputs) {
                Ok(at) => {
                    let contexts = self.waiting.drain(..count).map(|(_, context)| context).collect();
                    self.pending.push_back(Pending { at, contexts });
                    self.parts.shared.batch(count);
                }
                Err(Refused::Full) => return,
                Err(_) => {
                    self.refuse_waiting();
                    return;
                }
            }
        }
    }

    fn refuse_waiting(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        let reason = DropReason::NotLeader { hint: self.hint() };
        let contexts: Vec<_> = self.waiting.drain(..).map(|(_, context)| (context, reason)).collect();
        self.parts.shared.dropped.fetch_add(contexts.len() as u64, Ordering::Relaxed);
        self.sm.dropped(contexts);
    }

    pub(crate) fn hint(&self) -> Option<NodeId> {
        if self.failed {
            return None;
        }
        self.core.leader().filter(|&leader| leader != self.parts.config.node)
    }

    /// Proposals in the log lose their contexts: what becomes of them is not known here any more.
    fn drop_pending(&mut self) {
        let contexts: Vec<_> = self
            .pending
            .drain(..)
            .flat_map(|pending| pending.contexts)
            .map(|context| (context, DropReason::Unknown))
            .collect();
        if !contexts.is_empty() {
            self.parts.shared.dropped.fetch_add(contexts.len() as u64, Ordering::Relaxed);
            self.sm.dropped(contexts);
        }
    }

    /// The member stops for good: it neither leads nor votes nor acknowledges any more.
    fn fail(&mut self, why: &str) {
        if self.failed {
            return;
        }
        self.failed = true;
        self.leads = false;
        self.wake_for_good();
        let group = self.parts.group;
        tracing::error!(%group, why, "this member of the group has stopped; restart the process when the cause is gone");
        self.parts.shared.set_lease(None);
        self.parts.shared.set_leader(None, false);
        self.parts.shared.fail(why.into());
        self.outputs.clear();
        self.drop_pending();
        self.refuse_takers();
        self.sm.role_changed(Role::Follower { leader: None });
    }

    /// Nobody waits for it any more.
    pub fn end(&mut self) {
        self.wake_for_good();
        self.refuse_takers();
        self.parts.shared.set_lease(None);
        self.parts.shared.set_leader(None, false);
        self.drop_pending();
        self.refuse_waiting();
        let mut rest = Inbox::default();
        self.mailbox.take(&mut rest, true, true);
        self.waiting.extend(rest.proposals.drain(..));
        self.refuse_waiting();
        let stopped = HostError::Stopped { group: self.parts.group, cause: "the host ends".into() };
        for event in rest.events {
            match event {
                Event::ChangeMembers(_, answer) | Event::TransferLeader(_, answer) | Event::AcceptLoss(answer) => {
                    answer(Err(stopped.clone()));
                }
                Event::Members(_, answer) => answer(Err(stopped.clone())),
                Event::Take(_, answer) => answer(Err(stopped.clone())),
                Event::Freeze(answer) => answer(Err(stopped.clone())),
                _ => {}
            }
        }
    }
}
