//! [`Delegate`]: one directory that a client leads. Inputs in, outputs out; no clock, no tasks, no I/O.
//!
//! The owner carries outputs out in their order, and answers every [`Output::Send`] with an input, once or more often.
//!
//! Invariants: what is acknowledged is in the namespace here and in the queue, or stored. A batch is under way alone,
//! and is not changed before it is answered: its repeats are the same request of the same slot and sequence, so its
//! answer tells what came of it, whoever leads the partition. The batch that ends the delegation has all that waits,
//! and from when it is sent nothing is answered from here: others may have changed it. Nothing is acknowledged when
//! the lease has gone by three quarters. What ended or was lost sends nothing and is never led again.

use std::collections::VecDeque;
use std::time::Duration;

use cairn_meta_core::limits::DELEGATION_IDS_STEP;
use cairn_meta_core::{Namespace, NamespaceConfig};
use cairn_types::{ErrorCode, Layout, PartitionId, RetryClass, Time, VolumeId, WallTime, crc32c};
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use cairn_wire::meta::{BatchItem, BatchRequest, BatchResponse, Delegation};

use crate::config::Config;
use crate::input::{CallId, Input, Output, RequestId};
use crate::item_clock::ItemClock;
use crate::lease::Lease;
use crate::queue::Queue;

/// How it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    /// Operations are executed here.
    Led,
    /// What waits is stored, and then it ends.
    Ending,
    /// All is stored; the partition has it.
    Ended,
    /// What was acknowledged is not stored, and this is why.
    Lost(WireError),
}

/// A batch that is under way.
#[derive(Debug)]
pub(crate) struct Call {
    id: CallId,
    request: BatchRequest,
}

/// What a read came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Read {
    /// The answer is there.
    Answered,
    /// This is the answer.
    Refused(WireError),
    /// It comes again behind [`Output::Again`].
    Wait,
    /// It is for the partition: the delegation is to end ([`Input::Wanted`]) if it has not.
    Elsewhere,
}

/// See the module.
#[derive(Debug)]
pub struct Delegate {
    pub(crate) number: u64,
    config: Config,
    pub(crate) part: Namespace,
    pub(crate) queue: Queue,
    clock: ItemClock,
    lease: Lease,
    pub(crate) state: State,
    pub(crate) call: Option<Call>,
    last_call: CallId,
    /// Who waits for what is below a number to be stored, ascending.
    pub(crate) commits: VecDeque<(RequestId, u64)>,
    /// Who removes the top, and whether the partition is asked.
    pub(crate) removing: Option<(RequestId, bool)>,
    /// Somebody was told to wait.
    pub(crate) has_waiting: bool,
    /// The last number of an inode that it has, and how many it was given at a time.
    ids_to: u64,
    ids_given: u64,
    /// A new inode had no number.
    lacks_ids: bool,
    used: Time,
}

impl Delegate {
    /// What a partition gave to a session, whose last answered renewal was sent at `renewed`. An error: what it gave is
    /// nothing that this program knows; it is to be given back.
    pub fn new(
        place: (VolumeId, PartitionId),
        session: u64,
        told: &Delegation,
        config: Config,
        now: Time,
        renewed: Time,
    ) -> Result<Self, WireError> {
        let part = Namespace::of_delegation(place.0, place.1, session, told)?;
        Ok(Self {
            number: told.number,
            config,
            part,
            queue: Queue::default(),
            clock: ItemClock::new(WallTime(told.time_ns), now),
            lease: Lease::new(renewed, config.lease),
            state: State::Led,
            call: None,
            last_call: 0,
            commits: VecDeque::new(),
            removing: None,
            has_waiting: false,
            ids_to: told.last,
            ids_given: told.last - told.number + 1,
            lacks_ids: false,
            used: now,
        })
    }

    /// One whose holder is dead, and whose items a [`Succession`](crate::succession::Succession) stores meanwhile:
    /// whoever asks anything waits until [`Input::Answered`] of call 0 says what came of it. It sends nothing itself.
    pub fn of_the_dead(place: (VolumeId, PartitionId), number: u64, mut queue: Queue, now: Time) -> Self {
        queue.all_sent();
        let (from, ids_to, config) = (queue.first(), number, Config::default());
        let request = BatchRequest { delegation: number, from, end: true, ..BatchRequest::default() };
        let lease = Lease::new(Time(0), Duration::ZERO);
        let config_of_part = NamespaceConfig::new(place.0, place.1, Layout::replicated(1));
        // Without a root: nothing is answered from it.
        let nothing = NamespaceConfig { inodes: number..=u64::MAX, ..config_of_part };
        Self {
            number,
            config,
            part: Namespace::new(&nothing),
            queue,
            clock: ItemClock::new(WallTime(0), now),
            lease,
            state: State::Ending,
            call: Some(Call { id: 0, request }),
            last_call: 0,
            commits: VecDeque::new(),
            removing: None,
            has_waiting: false,
            ids_to,
            ids_given: 0,
            lacks_ids: false,
            used: now,
        }
    }

    /// Its number: that of its top.
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// When a program asked it anything last.
    pub const fn used(&self) -> Time {
        self.used
    }

    /// Number of the first item that may not be stored.
    pub const fn stored(&self) -> u64 {
        self.queue.first()
    }

    /// Items that may not be stored.
    pub fn unstored(&self) -> u64 {
        self.queue.end() - self.queue.first()
    }

    /// What waits from a number on, each with its number, for whoever keeps it where a successor finds it.
    pub fn waiting(&self, from: u64) -> impl Iterator<Item = (u64, &BatchItem)> {
        self.queue.items_from(from)
    }

    /// Whether it ended, with everything stored or not.
    pub const fn is_over(&self) -> bool {
        matches!(self.state, State::Ended | State::Lost(_))
    }

    /// Whether it ended with something that is not stored.
    pub const fn is_lost(&self) -> bool {
        matches!(self.state, State::Lost(_))
    }

    /// What it has, for looking at.
    pub const fn part(&self) -> &Namespace {
        &self.part
    }

    /// The time that an item would get.
    pub fn item_time(&self, now: Time) -> WallTime {
        self.clock.at(now)
    }

    /// When [`Input::Tick`] is due at the latest; behind one it is later, or none. None while only an answer can change
    /// anything.
    pub fn tick_at(&self) -> Option<Time> {
        let waits = self.call.is_some() || matches!(self.removing, Some((_, true)));
        if self.is_over() || waits {
            return None;
        }
        let idle = (self.state == State::Led).then(|| self.used + self.config.idle);
        let flush = self.queue.oldest().map(|oldest| oldest + self.config.flush_age);
        idle.into_iter().chain(flush).min()
    }

    /// Something happens.
    pub fn step(&mut self, now: Time, input: Input, out: &mut Vec<Output>) {
        match input {
            Input::Change { id, opcode, request } => self.change(now, id, opcode, request, out),
            Input::Commit { id } => match &self.state {
                State::Lost(error) => out.push(Output::Committed(id, Err(error.clone()))),
                _ => self.commits.push_back((id, self.queue.end())),
            },
            Input::RemoveTop { id } => self.remove_top(id, out),
            Input::TopRemoved { gone } => self.top_removed(gone, out),
            Input::Withdrawn { id } => self.withdrawn(id, out),
            Input::Answered { call, answer } => self.answered(now, call, answer, out),
            Input::Unanswered { call } => self.send_again(call, out),
            Input::Renewed { sent } => self.renewed(sent, out),
            Input::SessionEnded => self.session_ended(out),
            Input::Wanted => self.begin_end(),
            Input::Tick if now >= self.used + self.config.idle => self.begin_end(),
            Input::Tick => {}
            Input::Broken => self.broken(out),
        }
        self.pump(now, out);
        self.commit(out);
    }

    /// Answers a read; the bytes are appended to `answer`.
    pub fn read(&mut self, now: Time, opcode: Opcode, request: &[u8], answer: &mut Vec<u8>) -> Read {
        match &self.state {
            State::Ended => return Read::Elsewhere,
            State::Lost(error) => return Read::Refused(error.clone()),
            State::Led | State::Ending => {}
        }
        self.used = self.used.max(now);
        if self.is_handed_over() || !self.lease.is_good(now) {
            self.has_waiting = true;
            return Read::Wait;
        }
        match self.part.read(opcode, request, answer) {
            Ok(()) => Read::Answered,
            Err(error) if Namespace::is_for_the_partition(&error) => Read::Elsewhere,
            Err(error) => Read::Refused(error),
        }
    }

    fn change(&mut self, now: Time, id: RequestId, opcode: Opcode, request: Vec<u8>, out: &mut Vec<Output>) {
        match &self.state {
            State::Ended => return out.push(Output::Elsewhere(id)),
            State::Lost(error) => return out.push(Output::Answer(id, Err(error.clone()))),
            State::Led if self.has_room(now) => {}
            State::Led | State::Ending => return self.wait(id, out),
        }
        self.used = self.used.max(now);
        if request.len() > self.config.batch_bytes {
            self.begin_end();
            return out.push(Output::Elsewhere(id));
        }
        let time = self.clock.at(now);
        let mut answer = Vec::new();
        match self.part.run_own_item(opcode, time, &request, &mut answer) {
            Ok(()) => {
                self.clock.gave(time);
                let (opcode, expect) = (u32::from(opcode.code()), crc32c(&answer));
                self.queue.push(BatchItem { opcode, time_ns: time.0, request, expect }, now);
                out.push(Output::Answer(id, Ok(answer)));
            }
            Err(error) if Namespace::lacks_numbers(&error) => {
                self.lacks_ids = true;
                self.wait(id, out);
            }
            Err(error) if Namespace::is_for_the_partition(&error) => {
                self.begin_end();
                out.push(Output::Elsewhere(id));
            }
            Err(error) => out.push(Output::Answer(id, Err(error))),
        }
    }

    /// Whether anything more may be acknowledged.
    fn has_room(&self, now: Time) -> bool {
        let is_old = self.queue.oldest().is_some_and(|oldest| now >= oldest + self.config.queue_age);
        let is_full = is_old || self.queue.bytes() >= self.config.queue_bytes;
        !is_full && self.removing.is_none() && self.lease.is_good(now)
    }

    /// Whether others may have what it covers at this moment.
    fn is_handed_over(&self) -> bool {
        let ends = self.call.as_ref().is_some_and(|call| call.request.end);
        ends || matches!(self.removing, Some((_, true)))
    }

    pub(crate) fn wait(&mut self, id: RequestId, out: &mut Vec<Output>) {
        self.has_waiting = true;
        out.push(Output::Wait(id));
    }

    pub(crate) fn wake(&mut self, out: &mut Vec<Output>) {
        if std::mem::take(&mut self.has_waiting) {
            out.push(Output::Again);
        }
    }

    fn begin_end(&mut self) {
        if self.state == State::Led {
            self.state = State::Ending;
        }
    }

    fn renewed(&mut self, sent: Time, out: &mut Vec<Output>) {
        self.lease.renewed(sent);
        self.wake(out);
    }

    fn send_again(&mut self, call: CallId, out: &mut Vec<Output>) {
        if let Some(sent) = self.call.as_ref().filter(|sent| sent.id == call) {
            out.push(Output::Send(sent.id, sent.request.clone()));
        }
    }

    fn answered(&mut self, now: Time, call: CallId, answer: Result<BatchResponse, WireError>, out: &mut Vec<Output>) {
        if self.is_over() {
            return;
        }
        let is_present = self.call.as_ref().is_some_and(|sent| sent.id == call);
        match answer {
            Ok(answer) => self.took(now, is_present, &answer, out),
            Err(error) if error.code == ErrorCode::SessionEnded => self.session_ended(out),
            // What came too late says nothing of what is under way.
            Err(_) if !is_present => {}
            Err(error) if error.retry() != RetryClass::Never => self.send_again(call, out),
            // It has ended there, and nothing was left.
            Err(error) if error.code == ErrorCode::Stale && self.queue.is_empty() => self.ended(out),
            Err(error) => {
                let text = format!("the partition refuses what was answered here: {}", error.message);
                self.lose(WireError::new(ErrorCode::Internal, text), true, out);
            }
        }
    }

    /// The partition has executed items. That is true whenever it is heard.
    fn took(&mut self, now: Time, is_present: bool, answer: &BatchResponse, out: &mut Vec<Output>) {
        if !self.queue.stored(answer.next) {
            let text = "the partition says that it has items that were never sent: a fault of the program";
            return self.lose(WireError::new(ErrorCode::Internal, text), true, out);
        }
        self.clock.told(WallTime(answer.time_ns), now);
        self.take_ids(answer, out);
        if answer.error != 0 {
            let text = String::from_utf8_lossy(&answer.text);
            let text = format!("the partition refuses what was answered here, and what follows is not stored: {text}");
            return self.lose(WireError::new(ErrorCode::Internal, text), false, out);
        }
        if answer.ended {
            return self.ended(out);
        }
        if is_present {
            let asked = self.call.take().is_some_and(|call| call.request.more_ids > 0);
            if asked && self.lacks_ids {
                // There are none for it any more; the partition has others.
                self.begin_end();
            }
        }
        // What is left goes with the next answer.
        let _all = self.part.tidy_own();
        if self.part.counters().inodes > self.config.inodes {
            self.begin_end();
        }
        self.wake(out);
    }

    fn take_ids(&mut self, answer: &BatchResponse, out: &mut Vec<Output>) {
        if answer.first <= self.ids_to || !self.part.add_own_ids(answer.first..=answer.last) {
            return;
        }
        (self.ids_to, self.ids_given) = (answer.last, answer.last - answer.first + 1);
        self.lacks_ids = false;
        out.push(Output::Covers(answer.first..=answer.last));
    }

    /// What is to be done next.
    fn pump(&mut self, now: Time, out: &mut Vec<Output>) {
        let is_ending = self.state == State::Ending;
        if self.is_over() || self.call.is_some() {
            return;
        }
        match self.removing {
            Some((_, true)) => return,
            Some((id, false)) if self.queue.is_empty() => {
                self.removing = Some((id, true));
                return out.push(Output::AskToRemove(id));
            }
            _ => {}
        }
        if is_ending || self.lacks_ids || self.is_due(now) {
            self.send(is_ending, out);
        }
    }

    /// Whether what waits is to be stored now.
    fn is_due(&self, now: Time) -> bool {
        let Some(oldest) = self.queue.oldest() else { return false };
        let count = self.queue.end() - self.queue.first();
        let is_much = count >= self.config.batch_items as u64 || self.queue.bytes() >= self.config.batch_bytes;
        let is_asked_for = !self.commits.is_empty() || self.removing.is_some();
        is_much || is_asked_for || now >= oldest + self.config.flush_age
    }

    fn send(&mut self, is_ending: bool, out: &mut Vec<Output>) {
        let from = self.queue.first();
        let items = self.queue.send(self.config.batch_items, self.config.batch_bytes);
        let end = is_ending && from + items.len() as u64 == self.queue.end();
        let few = self.part.own_ids_left() < self.ids_given / 2 || self.lacks_ids;
        let more = self.ids_given.saturating_mul(2).min(DELEGATION_IDS_STEP.into());
        let more_ids = if few && !is_ending { u32::try_from(more).unwrap_or(DELEGATION_IDS_STEP) } else { 0 };
        let (delegation, ids_to) = (self.number, self.ids_to);
        let request = BatchRequest { header: None, delegation, from, items, more_ids, end, ids_to };
        self.last_call += 1;
        self.call = Some(Call { id: self.last_call, request: request.clone() });
        out.push(Output::Send(self.last_call, request));
    }

    /// Whoever waits for what is stored is told.
    pub(crate) fn commit(&mut self, out: &mut Vec<Output>) {
        let stored = self.queue.first();
        while let Some((id, _)) = self.commits.pop_front_if(|(_, to)| *to <= stored) {
            out.push(Output::Committed(id, Ok(())));
        }
    }

    /// What is broken, if anything is.
    pub fn check_invariants(&self) -> Result<(), String> {
        let number = self.number;
        if let Some(violation) = self.queue.violation() {
            return Err(format!("delegation {number}: {violation}"));
        }
        self.part.check_invariants().map_err(|violation| format!("delegation {number}: {violation}"))?;
        let (first, end) = (self.queue.first(), self.queue.end());
        let is_idle = self.queue.is_empty() && self.call.is_none() && self.commits.is_empty();
        let rules = [
            (self.is_over() || self.part.own_items() == end, "what was executed is what was acknowledged"),
            (!self.is_over() || (is_idle && self.removing.is_none()), "nothing waits when it is over"),
            (self.commits.iter().all(|(_, to)| (first + 1..=end).contains(to)), "commits wait for items that wait"),
            (self.commits.iter().is_sorted_by_key(|(_, to)| *to), "commits are in order"),
            (self.call.as_ref().is_none_or(|call| self.is_sound(call)), "a batch has items that were acknowledged"),
        ];
        match rules.iter().find(|(holds, _)| !holds) {
            None => Ok(()),
            Some((_, rule)) => Err(format!("delegation {number} with items {first}..{end}: not so that {rule}")),
        }
    }

    fn is_sound(&self, call: &Call) -> bool {
        let to = call.request.from + call.request.items.len() as u64;
        to <= self.queue.sent() && (!call.request.end || (self.state == State::Ending && to == self.queue.end()))
    }
}
