//! [`Slots`]: the calls of one connection that wait for their answers, by request id.
//!
//! A request id is a slot's index and its generation, so an answer finds its call without a search, and an answer to a
//! call that was given up finds nobody. Invariant: a slot's outcome is set once.

use std::task::Waker;
use std::time::Instant;

use cairn_env::buf::AlignedBuf;

use super::Response;
use super::error::CallError;

pub(crate) type Outcome = Result<Response, CallError>;
pub(crate) type Then = Box<dyn FnOnce(Outcome) + Send>;

/// Who is told the outcome.
pub(crate) enum Listener {
    /// A future, which may not have been polled yet.
    Future(Option<Waker>),
    /// A function, run on the connection's thread.
    Then(Then),
}

pub(crate) struct Waiting {
    /// What was asked for.
    pub(crate) opcode: u16,
    pub(crate) listener: Listener,
    pub(crate) deadline: Instant,
    /// Position in the connection's byte stream behind the request; `None` while it queues before the stream.
    pub(crate) sent_at: Option<u64>,
    pub(crate) into: Option<AlignedBuf>,
}

enum State {
    Free,
    Waiting(Waiting),
    /// Until the future fetches it.
    Done(Outcome),
}

struct Slot {
    generation: u32,
    state: State,
}

#[derive(Default)]
pub(crate) struct Slots {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Slots whose request is in the stream and not answered.
    pub(crate) active: usize,
    /// Slots whose outcome is not known.
    pub(crate) waiting: usize,
}

/// What to do about an outcome when the lock is released.
pub(crate) enum Notify {
    Nobody,
    Wake(Waker),
    Run(Then, Outcome),
}

impl Notify {
    pub(crate) fn run(self) {
        match self {
            Self::Nobody => {}
            Self::Wake(waker) => waker.wake(),
            Self::Run(then, outcome) => then(outcome),
        }
    }
}

fn parts(id: u64) -> (usize, u32) {
    ((id & u64::from(u32::MAX)) as usize, (id >> 32) as u32)
}

impl Slots {
    /// A new call's request id.
    pub(crate) fn insert(&mut self, waiting: Waiting) -> u64 {
        self.waiting += 1;
        self.active += usize::from(waiting.sent_at.is_some());
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                self.slots.push(Slot { generation: 1, state: State::Free });
                u32::try_from(self.slots.len() - 1).expect("the bounds on waiting calls are far below")
            }
        };
        let slot = &mut self.slots[index as usize];
        slot.state = State::Waiting(waiting);
        u64::from(slot.generation) << 32 | u64::from(index)
    }

    pub(crate) fn waiting_mut(&mut self, id: u64) -> Option<&mut Waiting> {
        let (index, generation) = parts(id);
        match self.slots.get_mut(index) {
            Some(Slot { generation: g, state: State::Waiting(waiting) }) if *g == generation => Some(waiting),
            _ => None,
        }
    }

    /// The request has got its place in the stream.
    pub(crate) fn admit(&mut self, id: u64, sent_at: u64) {
        if let Some(waiting) = self.waiting_mut(id) {
            waiting.sent_at = Some(sent_at);
            self.active += 1;
        }
    }

    /// Sets a call's outcome. Nobody is told if it was given up.
    pub(crate) fn complete(&mut self, id: u64, outcome: Outcome) -> Notify {
        if self.waiting_mut(id).is_none() {
            return Notify::Nobody;
        }
        let index = parts(id).0;
        self.complete_at(index, outcome)
    }

    fn complete_at(&mut self, index: usize, outcome: Outcome) -> Notify {
        let State::Waiting(waiting) = std::mem::replace(&mut self.slots[index].state, State::Free) else {
            return Notify::Nobody;
        };
        self.waiting -= 1;
        self.active -= usize::from(waiting.sent_at.is_some());
        match waiting.listener {
            Listener::Future(waker) => {
                self.slots[index].state = State::Done(outcome);
                waker.map_or(Notify::Nobody, Notify::Wake)
            }
            Listener::Then(then) => {
                self.release(index);
                Notify::Run(then, outcome)
            }
        }
    }

    /// Completes all calls for which `judge` gives an outcome, and returns the earliest deadline of the others.
    pub(crate) fn complete_where(
        &mut self,
        mut judge: impl FnMut(&Waiting) -> Option<CallError>,
        notify: &mut Vec<Notify>,
    ) -> Option<Instant> {
        let mut earliest: Option<Instant> = None;
        for index in 0..self.slots.len() {
            let State::Waiting(waiting) = &self.slots[index].state else { continue };
            match judge(waiting) {
                Some(error) => notify.push(self.complete_at(index, Err(error))),
                None => earliest = Some(earliest.map_or(waiting.deadline, |e| e.min(waiting.deadline))),
            }
        }
        earliest
    }

    /// The outcome of a future's call, or `None` after noting whom to wake.
    pub(crate) fn poll(&mut self, id: u64, waker: &Waker) -> Option<Outcome> {
        let (index, generation) = parts(id);
        let slot = &mut self.slots[index];
        assert!(slot.generation == generation, "the slot belongs to its future until the outcome was fetched");
        match &mut slot.state {
            State::Waiting(Waiting { listener: Listener::Future(waiting), .. }) => {
                if !waiting.as_ref().is_some_and(|w| w.will_wake(waker)) {
                    *waiting = Some(waker.clone());
                }
                None
            }
            State::Done(_) => {
                let State::Done(outcome) = std::mem::replace(&mut slot.state, State::Free) else { return None };
                self.release(index);
                Some(outcome)
            }
            _ => panic!("a future waits for a call that is not its own"),
        }
    }

    /// Takes a call back that was inserted and not sent.
    pub(crate) fn remove(&mut self, id: u64) -> Waiting {
        let index = parts(id).0;
        let State::Waiting(waiting) = std::mem::replace(&mut self.slots[index].state, State::Free) else {
            panic!("only a call that was just inserted is taken back")
        };
        self.waiting -= 1;
        self.active -= usize::from(waiting.sent_at.is_some());
        self.release(index);
        waiting
    }

    /// Gives a future's call up; an answer that still comes is thrown away. Returns what the slot held, to be dropped
    /// without the lock.
    pub(crate) fn abandon(&mut self, id: u64) -> impl Drop + use<> {
        let (index, generation) = parts(id);
        let slot = &mut self.slots[index];
        assert!(slot.generation == generation, "the slot belongs to its future until the outcome was fetched");
        let state = std::mem::replace(&mut slot.state, State::Free);
        if let State::Waiting(waiting) = &state {
            self.waiting -= 1;
            self.active -= usize::from(waiting.sent_at.is_some());
        }
        self.release(index);
        Held(Some(state))
    }

    fn release(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        slot.generation = slot.generation.wrapping_add(1).max(1);
        self.free.push(index as u32);
    }
}

/// Drops a slot's content late.
struct Held(Option<State>);

impl Drop for Held {
    fn drop(&mut self) {
        drop(self.0.take());
    }
}
