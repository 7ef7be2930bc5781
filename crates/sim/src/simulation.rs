//! [`Simulation`]: a heap of events in simulated time that drives cores without I/O.
//!
//! The test owns the world `W` (its nodes, with their cores and simulated disks); events are closures on it that run
//! one after the other. Sending, timers and faults go through [`Ctx`].
//!
//! Invariants: events run in the order of time, then of scheduling; time never goes back; a node's timers and the
//! messages on their way to it die when it stops; the same seed and the same closures give the same trace.
//!
//! Not here: what a message means, and the disks (each node has its own [`SimDisk`](crate::disk::SimDisk)).

use std::cmp::Ordering;
use std::collections::{BTreeSet, BinaryHeap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use cairn_env::clock::Clock;
use cairn_types::NodeId;
use cairn_types::time::Time;

use crate::clock::SimClock;
use crate::net::{Outbox, SimNet};
use crate::rng::SimRng;
use crate::trace::Trace;

/// Events that may wait at one time; more means that something multiplies without end.
pub const EVENTS_MAX: usize = 4_000_000;

type Action<W> = Box<dyn FnOnce(&mut W, &mut Ctx<W>)>;
type Check<W> = Box<dyn FnMut(&W, Time)>;

/// Names a scheduled event, to cancel it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct EventId(u64);

struct Event<W> {
    at: Time,
    id: EventId,
    /// The node it belongs to, with the life of the node.
    owner: Option<(NodeId, u64)>,
    action: Action<W>,
}

impl<W> PartialEq for Event<W> {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}
impl<W> Eq for Event<W> {}
impl<W> PartialOrd for Event<W> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl<W> Ord for Event<W> {
    /// The heap gives the greatest first: the earliest must be that.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.id).cmp(&(self.at, self.id))
    }
}

/// A message on arrival.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope<M> {
    /// Who sent it.
    pub from: NodeId,
    /// Whom it is for.
    pub to: NodeId,
    /// What was sent.
    pub msg: M,
}

/// What an event may use besides the world: time, chance, the network, further events and the trace.
pub struct Ctx<W> {
    clock: Arc<SimClock>,
    heap: BinaryHeap<Event<W>>,
    /// Scheduled, not run and not cancelled; the heap may hold cancelled ones besides.
    pending: BTreeSet<EventId>,
    next_id: u64,
    stopped: bool,
    /// Chance for the test's own decisions.
    pub rng: SimRng,
    /// The links between nodes.
    pub net: SimNet,
    /// What happened.
    pub trace: Trace,
}

impl<W: 'static> Ctx<W> {
    /// The present.
    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// The clock, to give to code that wants one.
    pub fn clock(&self) -> Arc<SimClock> {
        self.clock.clone()
    }

    fn push(
        &mut self,
        at: Time,
        owner: Option<(NodeId, u64)>,
        action: impl FnOnce(&mut W, &mut Self) + 'static,
    ) -> EventId {
        assert!(self.heap.len() < EVENTS_MAX, "{EVENTS_MAX} events wait; something multiplies without end");
        self.next_id += 1;
        let id = EventId(self.next_id);
        self.pending.insert(id);
        self.heap.push(Event { at: at.max(self.now()), id, owner, action: Box::new(action) });
        id
    }

    /// Runs `action` after `delay`.
    pub fn schedule(&mut self, delay: Duration, action: impl FnOnce(&mut W, &mut Self) + 'static) -> EventId {
        self.push(self.now() + delay, None, action)
    }

    /// Runs `action` at a point in time; a point that has passed means now.
    pub fn schedule_at(&mut self, at: Time, action: impl FnOnce(&mut W, &mut Self) + 'static) -> EventId {
        self.push(at, None, action)
    }

    /// A node's timer: as [`schedule_at`](Self::schedule_at), unless the node stops before.
    pub fn timer_at(&mut self, node: NodeId, at: Time, action: impl FnOnce(&mut W, &mut Self) + 'static) -> EventId {
        let owner = (node, self.net.incarnation(node));
        self.push(at, Some(owner), action)
    }

    /// Drops an event that has not run. One that has, or is none, is ignored.
    pub fn cancel(&mut self, id: EventId) {
        self.pending.remove(&id);
    }

    /// Sends a message; `deliver` runs on each arrival, unless the network or a stopped receiver swallows it.
    pub fn send<M>(
        &mut self,
        from: NodeId,
        to: NodeId,
        msg: M,
        deliver: impl Fn(&mut W, &mut Self, Envelope<M>) + Clone + 'static,
    ) where
        M: Clone + fmt::Debug + 'static,
    {
        let now = self.now();
        let incarnation = self.net.incarnation(to);
        let times = match self.net.route(now, from, to) {
            Ok(times) => times,
            Err(why) => return self.trace.add(now, format_args!("{from} -> {to} {why:?}: {msg:?}")),
        };
        for at in times {
            let (msg, deliver) = (msg.clone(), deliver.clone());
            self.push(at, None, move |world, ctx| {
                let now = ctx.now();
                if let Err(why) = ctx.net.passable(from, to, incarnation) {
                    return ctx.trace.add(now, format_args!("{from} -> {to} {why:?}: {msg:?}"));
                }
                ctx.net.counts.delivered += 1;
                ctx.trace.add(now, format_args!("{from} -> {to}: {msg:?}"));
                deliver(world, ctx, Envelope { from, to, msg });
            });
        }
    }

    /// Sends what a node's code put into its [`Outbox`].
    pub fn flush(
        &mut self,
        from: NodeId,
        outbox: &Outbox,
        deliver: impl Fn(&mut W, &mut Self, Envelope<Vec<u8>>) + Clone + 'static,
    ) {
        for (to, msg) in outbox.take() {
            self.send(from, to, msg, deliver.clone());
        }
    }

    /// Stops a node: its timers and what is on its way to it die. The world must drop the node's state itself.
    pub fn stop_node(&mut self, node: NodeId) {
        self.net.stop(node);
        self.trace.add(self.clock.now(), format_args!("{node} stops"));
    }

    /// Starts a node again.
    pub fn start_node(&mut self, node: NodeId) {
        self.net.start(node);
        self.trace.add(self.clock.now(), format_args!("{node} starts"));
    }

    /// Adds a line to the trace.
    pub fn note(&mut self, what: fmt::Arguments<'_>) {
        self.trace.add(self.clock.now(), what);
    }

    /// Ends the run after this event.
    pub fn stop(&mut self) {
        self.stopped = true;
    }
}

/// A world and its events.
pub struct Simulation<W> {
    /// The test's own state.
    pub world: W,
    /// Time, chance, network, events, trace.
    pub ctx: Ctx<W>,
    check: Option<Check<W>>,
    steps: u64,
}

impl<W: 'static> Simulation<W> {
    /// A simulation at time zero. Its chance, network and clock are functions of the seed.
    pub fn new(seed: u64, world: W) -> Self {
        let ctx = Ctx {
            clock: Arc::new(SimClock::new()),
            heap: BinaryHeap::new(),
            pending: BTreeSet::new(),
            next_id: 0,
            stopped: false,
            rng: SimRng::derived(seed, "events"),
            net: SimNet::seeded(seed),
            trace: Trace::default(),
        };
        Self { world, ctx, check: None, steps: 0 }
    }

    /// Sets what is checked after each event (it panics with the broken invariant).
    pub fn check_each(&mut self, check: impl FnMut(&W, Time) + 'static) {
        self.check = Some(Box::new(check));
    }

    /// The present.
    pub fn now(&self) -> Time {
        self.ctx.now()
    }

    /// Events run so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Runs `action` after `delay`.
    pub fn schedule(&mut self, delay: Duration, action: impl FnOnce(&mut W, &mut Ctx<W>) + 'static) -> EventId {
        self.ctx.schedule(delay, action)
    }

    /// Runs the next event; `false` when there is none, or none until `limit`.
    fn step(&mut self, limit: Time) -> bool {
        loop {
            if self.ctx.heap.peek().is_none_or(|event| event.at > limit) {
                return false;
            }
            let event = self.ctx.heap.pop().expect("it was just seen");
            if !self.ctx.pending.remove(&event.id) {
                continue;
            }
            if let Some((node, life)) = event.owner
                && self.ctx.net.incarnation(node) != life
            {
                continue;
            }
            self.ctx.clock.advance_to(event.at);
            (event.action)(&mut self.world, &mut self.ctx);
            self.steps += 1;
            if let Some(check) = &mut self.check {
                check(&self.world, self.ctx.clock.now());
            }
            return true;
        }
    }

    /// Runs all events up to and including `end` and moves the clock there. Returns how many ran. Ends early when an
    /// event calls [`Ctx::stop`].
    pub fn run_until(&mut self, end: Time) -> u64 {
        let before = self.steps;
        self.ctx.stopped = false;
        while !self.ctx.stopped && self.step(end) {}
        if !self.ctx.stopped {
            self.ctx.clock.advance_to(end);
        }
        self.steps - before
    }

    /// As [`run_until`](Self::run_until), from now on for so long.
    pub fn run_for(&mut self, time: Duration) -> u64 {
        self.run_until(self.now() + time)
    }

    /// Runs until `done` holds, looking after each event. `false` when events or time (until `end`) ran out first.
    pub fn run_until_true(&mut self, end: Time, mut done: impl FnMut(&W) -> bool) -> bool {
        self.ctx.stopped = false;
        loop {
            if done(&self.world) {
                return true;
            }
            if self.ctx.stopped || !self.step(end) {
                return false;
            }
        }
    }
}

#[cfg(test)]
mod tests;
