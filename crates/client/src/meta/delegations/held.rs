//! [`Held`]: one delegation, with its machine and who waits for it.
//!
//! Invariants: the machine is asked by one at a time, and what it has done is carried out before that one goes on: a
//! program gets its answer behind what its answer rests on, and behind its place in the memory for successors. A
//! machine that panics is never asked again for what it has: the delegation is lost, and given back. What ended covers
//! nothing from then on; its task takes it out of the table.
use super::memory::{Noting, QueueLog, QueueMemory, QueueName};
use super::ranges::Ranges;
use crate::meta::session::Session;
use cairn_delegate_core::config::Config;
use cairn_delegate_core::delegate::{Delegate, Read};
use cairn_delegate_core::input::{CallId, Input, Lost, Output, RequestId};
use cairn_delegate_core::queue::Queue;
use cairn_env::Clock;
use cairn_types::{ErrorCode, PartitionId, Time, VolumeId};
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use cairn_wire::meta::{BatchItem, BatchRequest, BatchResponse, Delegation};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use tokio::sync::{Notify, oneshot, watch};

/// How it stands.
#[derive(Clone, Debug)]
pub(super) enum Stage {
    Led,
    /// With everything stored.
    Ended,
    Lost(WireError),
}

/// What a change came to.
pub(super) enum Changed {
    Answer(Result<Vec<u8>, WireError>),
    Wait,
    Elsewhere,
}

/// What somebody is told who waits.
pub(super) enum Told {
    Committed(Result<(), WireError>),
    /// The partition is to be asked to remove the top, and what it says to be told.
    AskToRemove,
    Wait,
    Elsewhere,
}

/// What the task that sends batches is to do.
pub(super) enum Work {
    Send(CallId, BatchRequest),
    /// Until then, if there is anything to wake up for.
    Sleep(Option<Time>),
    Nothing,
}

/// See the module.
pub(super) struct Held {
    pub number: u64,
    pub partition: u32,
    pub session: Arc<Session>,
    /// Where the top was made; it is there as long as it is led.
    pub parent: u64,
    pub name: Vec<u8>,
    ranges: Arc<Ranges>,
    clock: Arc<dyn Clock>,
    core: Mutex<Core>,
    /// Counts when those that were told to wait come again.
    again: watch::Sender<u64>,
    stage: watch::Sender<Stage>,
    /// The task has something to do.
    pub work: Notify,
}

struct Core {
    machine: Delegate,
    last_request: RequestId,
    waiting: BTreeMap<RequestId, oneshot::Sender<Told>>,
    to_send: Option<(CallId, BatchRequest)>,
    /// When the task looks again by itself.
    armed: Option<Time>,
    lost: Option<Lost>,
    /// Changes that were lost.
    lost_changes: u64,
    /// Whoever synced everything knows of the loss.
    is_told: bool,
    noting: Option<Noting>,
}

/// Where and by whom a directory was made.
pub(super) struct Made<'a> {
    pub volume: u32,
    pub partition: u32,
    pub session: Arc<Session>,
    pub parent: u64,
    pub name: &'a [u8],
    /// When the request was sent first: so long the session lives at least.
    pub sent: Time,
}

impl Held {
    pub(super) fn new(
        ranges: &Arc<Ranges>,
        clock: Arc<dyn Clock>,
        made: Made<'_>,
        told: &Delegation,
    ) -> Result<Arc<Self>, WireError> {
        let place = (VolumeId(made.volume), PartitionId(made.partition));
        let now = clock.now();
        let machine = Delegate::new(place, made.session.id.0, told, Config::default(), now, made.sent)?;
        Ok(Self::with(ranges, clock, made, machine, None))
    }

    /// What a dead process led and had not stored: whoever comes to it waits until [`stored`](Self::stored) or
    /// [`not_stored`](Self::not_stored) says what came of it.
    pub(super) fn of_the_dead(
        ranges: &Arc<Ranges>,
        clock: Arc<dyn Clock>,
        made: Made<'_>,
        (number, first): (u64, u64),
        (items, log): (Vec<BatchItem>, Box<dyn QueueLog>),
    ) -> Arc<Self> {
        let (place, now) = ((VolumeId(made.volume), PartitionId(made.partition)), clock.now());
        let noting = Noting::of_left(log, first, first + items.len() as u64);
        let mut queue = Queue::beginning_at(first);
        items.into_iter().for_each(|item| queue.push(item, now));
        let machine = Delegate::of_the_dead(place, number, queue, now);
        Self::with(ranges, clock, made, machine, Some(noting))
    }

    fn with(
        ranges: &Arc<Ranges>,
        clock: Arc<dyn Clock>,
        made: Made<'_>,
        machine: Delegate,
        noting: Option<Noting>,
    ) -> Arc<Self> {
        let number = machine.number();
        let (last_request, lost_changes, waiting, is_told) = (0, 0, BTreeMap::new(), false);
        let (to_send, armed, lost) = (None, None, None);
        let core = Core { machine, last_request, waiting, to_send, armed, lost, lost_changes, is_told, noting };
        Arc::new(Self {
            number,
            partition: made.partition,
            session: made.session,
            parent: made.parent,
            name: made.name.to_vec(),
            ranges: ranges.clone(),
            clock,
            core: Mutex::new(core),
            again: watch::Sender::new(0),
            stage: watch::Sender::new(Stage::Led),
            work: Notify::new(),
        })
    }

    fn now(&self) -> Time {
        self.clock.now()
    }

    /// A round of those that were told to wait.
    pub(super) fn round(&self) -> u64 {
        *self.again.borrow()
    }

    /// Waits until those come again that were told to wait in this round or before, or it is over.
    pub(super) async fn next_round(&self, round: u64) {
        let (mut again, mut stage) = (self.again.subscribe(), self.stage.subscribe());
        tokio::select! {
            _ = again.wait_for(|now| *now != round) => {}
            _ = stage.wait_for(|stage| !matches!(stage, Stage::Led)) => {}
        }
    }

    /// A program changes something.
    pub(super) fn change(&self, opcode: Opcode, request: &[u8]) -> Changed {
        let mut core = self.core.lock();
        self.heed_session(&mut core);
        let id = core.next_request();
        let input = Input::Change { id, opcode, request: request.to_vec() };
        let mut changed = self.step(&mut core, input);
        if let Some(Changed::Answer(Ok(answer))) = &mut changed {
            self.guarded(&mut core, |machine| machine.part().put_directory(opcode, request, answer));
        }
        // The next time it is told what broke it.
        changed.unwrap_or(Changed::Wait)
    }

    /// A program reads something.
    pub(super) fn read(&self, opcode: Opcode, request: &[u8], answer: &mut Vec<u8>) -> Read {
        let mut core = self.core.lock();
        self.heed_session(&mut core);
        let now = self.now();
        // The next time it is told what broke it.
        self.guarded(&mut core, |machine| machine.read(now, opcode, request, answer)).unwrap_or(Read::Wait)
    }

    /// This client goes on with another session: what waits is still stored under this one, and then it ends.
    fn heed_session(&self, core: &mut Core) {
        if self.session.is_ended() {
            self.step(core, Input::Wanted);
        }
    }

    /// It is to end. False: it is over already, and what it was is no more than an error here.
    pub(super) fn want(&self) -> bool {
        let mut core = self.core.lock();
        let is_over = core.machine.is_over();
        self.step(&mut core, Input::Wanted);
        !is_over
    }

    /// When a program asked it anything last.
    pub(super) fn used(&self) -> Time {
        self.core.lock().machine.used()
    }

    pub(super) fn renewed(&self, sent: Time) {
        self.step(&mut self.core.lock(), Input::Renewed { sent });
    }

    pub(super) fn session_ended(&self) {
        self.step(&mut self.core.lock(), Input::SessionEnded);
    }

    /// Waits until everything is stored that was answered before.
    pub(super) async fn commit(&self) -> Result<(), WireError> {
        match self.ask(|id| Input::Commit { id }).await {
            Told::Committed(outcome) => outcome,
            Told::AskToRemove | Told::Wait | Told::Elsewhere => Err(forgotten()),
        }
    }

    /// The same for who syncs everything: what was lost for good is said once.
    pub(super) async fn commit_once(&self) -> Result<(), WireError> {
        let outcome = self.commit().await;
        let mut core = self.core.lock();
        let is_known = core.machine.is_over() && core.is_told;
        core.is_told |= outcome.is_err() && core.machine.is_over();
        if is_known { Ok(()) } else { outcome }
    }

    /// The top is to be removed. `Told::AskToRemove`: everything is stored, and nothing is answered here before
    /// [`top_removed`](Self::top_removed).
    pub(super) async fn remove_top(&self) -> Told {
        let mut asking = Asking { held: self, id: 0 };
        let told = {
            let mut core = self.core.lock();
            self.heed_session(&mut core);
            asking.id = core.next_request();
            self.ask_as(&mut core, asking.id, Input::RemoveTop { id: asking.id })
        };
        let told = told.await.unwrap_or(Told::Elsewhere);
        asking.id = 0;
        told
    }

    pub(super) fn top_removed(&self, gone: bool) {
        self.step(&mut self.core.lock(), Input::TopRemoved { gone });
    }

    /// Ends it with everything stored, and waits for that; what could not be stored is the error.
    pub(super) async fn end(&self) -> Result<(), WireError> {
        self.want();
        let mut stage = self.stage.subscribe();
        let reached = stage.wait_for(|stage| !matches!(stage, Stage::Led)).await.map(|stage| stage.clone());
        match reached {
            Ok(Stage::Lost(error)) => Err(error),
            // The sender lives in this one.
            Ok(Stage::Led | Stage::Ended) | Err(_) => Ok(()),
        }
    }

    /// The same; what was lost is no error of whoever syncs everything behind it.
    pub(super) async fn end_quietly(&self) {
        if self.end().await.is_err() {
            self.core.lock().is_told = true;
        }
    }

    async fn ask(&self, input: impl FnOnce(RequestId) -> Input) -> Told {
        let told = {
            let mut core = self.core.lock();
            let id = core.next_request();
            self.ask_as(&mut core, id, input(id))
        };
        told.await.unwrap_or_else(|_| Told::Committed(Err(forgotten())))
    }

    fn ask_as(&self, core: &mut Core, id: RequestId, input: Input) -> oneshot::Receiver<Told> {
        let (tell, told) = oneshot::channel();
        core.waiting.insert(id, tell);
        self.step(core, input);
        told
    }

    /// What the task does next; `done`: what came of what it did last.
    pub(super) fn next_work(&self, done: Option<Input>) -> Work {
        let mut core = self.core.lock();
        if let Some(done) = done {
            self.step(&mut core, done);
        }
        if let Some((call, request)) = core.to_send.take() {
            return Work::Send(call, request);
        }
        if core.machine.is_over() {
            return Work::Nothing;
        }
        core.armed = core.machine.tick_at();
        Work::Sleep(core.armed)
    }

    /// Changes that are not stored yet. `None`: it is over.
    pub(super) fn unstored(&self) -> Option<u64> {
        let core = self.core.lock();
        (!core.machine.is_over()).then(|| core.machine.unstored())
    }

    /// Changes that were lost. `None`: it is none that is lost.
    pub(super) fn lost_changes(&self) -> Option<u64> {
        let core = self.core.lock();
        core.machine.is_lost().then_some(core.lost_changes)
    }

    /// Of what a dead process led, items below are stored.
    pub(super) fn stored_below(&self, next: u64) {
        let answer = Ok(BatchResponse { next, ..BatchResponse::default() });
        // Of none that is under way here: more comes.
        self.step(&mut self.core.lock(), Input::Answered { call: CallId::MAX, answer });
    }

    /// Of what a dead process led everything is stored, and it has ended.
    pub(super) fn stored(&self, next: u64) {
        let answer = Ok(BatchResponse { next, ended: true, ..BatchResponse::default() });
        self.step(&mut self.core.lock(), Input::Answered { call: 0, answer });
    }

    /// It never will be. Its place in memory stays, so each successor of this process comes to the same.
    pub(super) fn not_stored(&self, error: &WireError) {
        let answer = Err(WireError::new(ErrorCode::Internal, error.message.clone()));
        self.step(&mut self.core.lock(), Input::Answered { call: 0, answer });
    }

    /// What was lost, once.
    pub(super) fn take_lost(&self) -> Option<Lost> {
        self.core.lock().lost.take()
    }

    /// Asks the machine something. `None`: it is broken, which is told to all who wait.
    fn guarded<T>(&self, core: &mut Core, ask: impl FnOnce(&mut Delegate) -> T) -> Option<T> {
        let asked = catch_unwind(AssertUnwindSafe(|| ask(&mut core.machine)));
        if asked.is_err() {
            self.break_down(core);
        }
        asked.ok()
    }

    /// Nothing is answered from it any more, and the partition is told.
    fn break_down(&self, core: &mut Core) {
        let mut outputs = Vec::new();
        core.machine.step(self.now(), Input::Broken, &mut outputs);
        self.note(core, &outputs);
        self.carry_out(core, outputs);
        core.waiting.clear();
    }

    /// A fault of the program in what is done with it.
    pub(super) fn broken(&self) {
        self.break_down(&mut self.core.lock());
    }

    #[cfg(test)]
    pub(super) fn fail(&self) {
        self.guarded(&mut self.core.lock(), |_| panic!("a fault of the program"));
    }

    /// Whether it was lost, and what it had is forgotten.
    pub(super) fn is_lost(&self) -> bool {
        matches!(*self.stage.borrow(), Stage::Lost(_))
    }

    fn step(&self, core: &mut Core, input: Input) -> Option<Changed> {
        let now = self.now();
        let stepped = self.guarded(core, |machine| {
            let mut outputs = Vec::new();
            machine.step(now, input, &mut outputs);
            outputs
        });
        let mut outputs = stepped?;
        if !self.note(core, &outputs) {
            // A crash now could lose what waits: it is stored at once, and nothing more is acknowledged.
            let more = self.guarded(core, |machine| {
                let mut outputs = Vec::new();
                machine.step(now, Input::Wanted, &mut outputs);
                outputs
            });
            outputs.extend(more?);
        }
        self.carry_out(core, outputs)
    }

    /// What waits is there for a successor of this process before anybody is answered, and what was lost stays there:
    /// it cannot store it either, and tells it again. False: it could not be written.
    fn note(&self, core: &mut Core, outputs: &[Output]) -> bool {
        let machine = &core.machine;
        if machine.is_over() {
            let noting = core.noting.take().filter(|_| !machine.is_lost());
            noting.into_iter().for_each(Noting::end);
            return true;
        }
        let Some(noting) = &mut core.noting else { return true };
        let more = outputs.iter().filter_map(|output| match output {
            Output::Covers(more) => Some(more.clone()),
            _ => None,
        });
        let covered: std::io::Result<()> = more.into_iter().try_for_each(|more| noting.covers(more));
        let noted = noting.note(machine.stored(), machine.waiting(noting.next())).and(covered);
        if let Err(error) = &noted {
            tracing::warn!(inode = self.number, %error, "the memory of a delegated directory is full: it is led no longer");
        }
        noted.is_ok()
    }

    /// What waits is kept there for a successor of this process; before it is entered. False: there is no place.
    pub(super) fn keep_in(&self, memory: Option<&Arc<dyn QueueMemory>>, covered: RangeInclusive<u64>) -> bool {
        let Some(memory) = memory else { return true };
        let of = QueueName { session: self.session.id.0, partition: self.partition, number: self.number };
        let Some(mut noting) = memory.begin(of).map(Noting::new) else { return false };
        if let Err(error) = noting.covers(covered) {
            tracing::warn!(inode = self.number, %error, "memory for what is done in a directory; it is not led");
            noting.end();
            return false;
        }
        self.core.lock().noting = Some(noting);
        true
    }

    /// It was never entered.
    pub(super) fn keep_nothing(&self) {
        self.core.lock().noting.take().into_iter().for_each(Noting::end);
    }

    fn carry_out(&self, core: &mut Core, outputs: Vec<Output>) -> Option<Changed> {
        let mut changed = None;
        for output in outputs {
            match output {
                Output::Answer(_, answer) => changed = Some(Changed::Answer(answer)),
                Output::Wait(id) => match core.waiting.remove(&id) {
                    Some(tell) => drop(tell.send(Told::Wait)),
                    None => changed = Some(Changed::Wait),
                },
                Output::Elsewhere(id) => match core.waiting.remove(&id) {
                    Some(tell) => drop(tell.send(Told::Elsewhere)),
                    None => changed = Some(Changed::Elsewhere),
                },
                Output::Again => self.again.send_modify(|round| *round += 1),
                Output::Committed(id, outcome) => {
                    core.waiting.remove(&id).map(|tell| tell.send(Told::Committed(outcome)));
                }
                Output::Send(call, request) => {
                    core.to_send = Some((call, request));
                    self.work.notify_one();
                }
                Output::AskToRemove(id) => {
                    core.waiting.remove(&id).map(|tell| tell.send(Told::AskToRemove));
                }
                Output::Covers(more) => self.ranges.add(self.number, more),
                Output::Ended => self.over(Stage::Ended),
                Output::Lost(lost) => {
                    let error = lost.error.clone();
                    core.lost_changes = lost.count;
                    core.lost = Some(lost);
                    self.over(Stage::Lost(error));
                }
            }
        }
        if core.machine.tick_at().is_some_and(|due| core.armed.is_none_or(|armed| due < armed)) {
            self.work.notify_one();
        }
        changed
    }

    fn over(&self, stage: Stage) {
        if matches!(stage, Stage::Ended) {
            self.ranges.remove(self.number);
        }
        self.session.leases.leads_no_more(self.partition);
        self.stage.send_replace(stage);
        self.work.notify_one();
    }
}

/// Somebody waits until the top may be removed. Dropped before that is known, nobody removes it.
struct Asking<'a> {
    held: &'a Held,
    /// 0: not any more.
    id: RequestId,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if self.id != 0 {
            let mut core = self.held.core.lock();
            core.waiting.remove(&self.id);
            self.held.step(&mut core, Input::Withdrawn { id: self.id });
        }
    }
}

impl Core {
    fn next_request(&mut self) -> RequestId {
        self.last_request += 1;
        self.last_request
    }
}

fn forgotten() -> WireError {
    WireError::new(ErrorCode::Internal, "a delegated directory did not answer: a fault of the program")
}
