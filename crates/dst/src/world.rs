//! [`World`]: all that the scheduler knows: threads, time, what is due when, descriptors, chance.
//!
//! Invariants: only the thread that runs touches it; none of its methods blocks or calls a hook; time never goes back.
//! Whoever makes a thread ready, or an event due, does it here, so that the trace has it.

use std::cell::UnsafeCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::chance::Chance;
use crate::files::{Files, Id};
use crate::host::Host;
use crate::links::Links;
use crate::seat::{Leaver, Seat};
use crate::trace::{Trace, What};
use crate::{Config, sched};

/// A thread's number: its place in the list.
pub type Tid = u32;
/// The number of threads that do not belong to the run.
pub const OUTSIDE: Tid = u32::MAX;

/// What a thread is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It runs, or could.
    Ready,
    /// It waits for something, and perhaps for a moment.
    Blocked(&'static str),
    /// It has come to its end.
    Ended,
}

/// A thread of the run.
pub struct Thread {
    pub name: String,
    pub host: usize,
    pub state: State,
    /// When its present wait ends at the latest.
    pub until: Option<u64>,
    /// When it is looked at next whether that is over.
    pub alarm: Option<u64>,
    /// The last wait ended because its time was over.
    pub timed_out: bool,
    pub seat: Box<Seat>,
    pub os: libc::pthread_t,
    pub joiners: Vec<Tid>,
}

/// What happens at a moment.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    /// A thread's wait may be over.
    Alarm(Tid),
    /// Bytes (or the end of them) reach a socket.
    Arrive(Id),
    /// A connection reaches who listens.
    Reach(Id),
    /// The answer to it is back: accepted or refused.
    Answer(Id, bool),
    /// A socket hears that its other end is gone.
    Reset(Id),
}

/// How many times a point passes for one switch.
#[derive(Debug, Clone, Copy)]
pub struct Rates {
    pub wake: u64,
    pub io: u64,
    pub clock: u64,
    /// A thread is held up for some milliseconds.
    pub stall: u64,
}

/// Everything.
pub struct World {
    pub now: u64,
    pub threads: Vec<Thread>,
    pub running: Tid,
    pub ready: Vec<Tid>,
    pub events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    next_event: u64,
    pub futexes: BTreeMap<usize, Vec<Tid>>,
    pub files: Files,
    pub hosts: Vec<Host>,
    pub links: Links,
    pub trace: Trace,
    pub chance: Chance,
    pub entropy: Chance,
    pub network: Chance,
    /// Of what rules do to connections.
    pub faults: Chance,
    pub rates: Rates,
    pub switches: u64,
    pub config: Config,
    /// A thread that ended and may not be quite gone.
    pub leaver: Option<Leaver>,
}

struct Holder(UnsafeCell<Option<World>>);
// SAFETY: only the thread whose turn it is enters.
unsafe impl Sync for Holder {}

static WORLD: Holder = Holder(UnsafeCell::new(None));
/// Somebody is inside: to be inside twice is a mistake of this crate.
static INSIDE: AtomicBool = AtomicBool::new(false);

/// Begins a world.
pub fn install(world: World) {
    // SAFETY: only `run` calls it, before there is a managed thread.
    unsafe { *WORLD.0.get() = Some(world) };
}

/// Enters the world. Only for the thread that runs, and only for a moment: nothing in it may block or call a hook.
pub fn with<T>(act: impl FnOnce(&mut World) -> T) -> T {
    if INSIDE.swap(true, Relaxed) {
        crate::report::fatal("the scheduler was entered from within itself");
    }
    // SAFETY: one thread runs at a time, and the flag keeps it from being here twice.
    let world = unsafe { (*WORLD.0.get()).as_mut() }.expect("a managed thread belongs to a world");
    let out = act(world);
    INSIDE.store(false, Relaxed);
    out
}

/// Enters without the check, to say how a run failed.
///
/// # Safety
/// The process ends behind it, and no other thread runs.
pub unsafe fn last_look<T>(act: impl FnOnce(&World) -> T) -> Option<T> {
    // SAFETY: as the caller promises.
    unsafe { (*WORLD.0.get()).as_ref() }.map(act)
}

impl World {
    /// An empty one with the first thread.
    pub fn new(config: Config) -> Self {
        let seed = config.seed;
        let mut chance = Chance::derived(seed, 1);
        // Some seeds switch often, others let threads run until they wait.
        let scale = 1 << chance.below(4);
        let rates = Rates {
            wake: 2 * scale,
            io: 4 * scale,
            clock: 32 * scale,
            stall: [0, 20_000, 4_000][chance.below(3) as usize],
        };
        let mut world = Self {
            now: 0,
            threads: Vec::new(),
            running: 0,
            ready: Vec::new(),
            events: BinaryHeap::new(),
            next_event: 0,
            futexes: BTreeMap::new(),
            files: Files::default(),
            hosts: vec![Host::new(0)],
            links: Links::default(),
            trace: Trace::new(config.echo),
            chance,
            entropy: Chance::derived(seed, 2),
            network: Chance::derived(seed, 3),
            faults: Chance::derived(seed, 4),
            rates,
            switches: 0,
            config,
            leaver: None,
        };
        world.new_thread("start".into(), 0);
        world
    }

    /// A thread more, ready to run.
    pub fn new_thread(&mut self, name: String, host: usize) -> Tid {
        let tid = self.threads.len() as Tid;
        self.threads.push(Thread {
            name,
            host,
            state: State::Ready,
            until: None,
            alarm: None,
            timed_out: false,
            seat: Box::new(Seat::new()),
            os: 0,
            joiners: Vec::new(),
        });
        tid
    }

    /// The thread.
    pub fn thread(&mut self, tid: Tid) -> &mut Thread {
        &mut self.threads[tid as usize]
    }

    /// The host of who runs.
    pub fn host(&mut self) -> &mut Host {
        let host = self.threads[self.running as usize].host;
        &mut self.hosts[host]
    }

    /// Adds a record of who runs.
    pub fn note(&mut self, what: What, a: u64, b: u64) {
        let (threads, running) = (&self.threads, self.running);
        self.trace.add(self.now, running, what, a, b, || &threads[running as usize].name);
    }

    /// Lets something happen at a moment.
    pub fn at(&mut self, moment: u64, event: Event) {
        self.next_event += 1;
        self.events.push(Reverse((moment.max(self.now), self.next_event, event)));
    }

    /// Ends a thread's wait.
    pub fn wake(&mut self, tid: Tid) {
        let thread = self.thread(tid);
        if let State::Blocked(_) = thread.state {
            thread.state = State::Ready;
            thread.timed_out = false;
            thread.until = None;
            self.ready.push(tid);
        }
    }

    /// The running thread's wait ends at this moment at the latest. Most waits end before: of all that are not over
    /// yet, one alarm a thread is enough.
    pub fn wait_until(&mut self, tid: Tid, moment: u64) {
        let thread = self.thread(tid);
        thread.until = Some(moment);
        if thread.alarm.is_none_or(|alarm| alarm > moment) {
            thread.alarm = Some(moment);
            self.at(moment, Event::Alarm(tid));
        }
    }

    fn alarm(&mut self, tid: Tid) {
        let now = self.now;
        let thread = self.thread(tid);
        if thread.alarm.is_none_or(|alarm| alarm > now) {
            // A later wait set an earlier one, which is done with.
            return;
        }
        thread.alarm = None;
        match thread.until {
            Some(moment) if moment > now => self.wait_until(tid, moment),
            Some(_) => {
                self.wake(tid);
                self.thread(tid).timed_out = true;
            }
            None => {}
        }
    }

    /// Does what is due.
    pub fn fire_due(&mut self) {
        while self.events.peek().is_some_and(|Reverse((at, ..))| *at <= self.now) {
            let Some(Reverse((_, _, event))) = self.events.pop() else { return };
            match event {
                Event::Alarm(tid) => self.alarm(tid),
                Event::Arrive(id) => self.arrive(id),
                Event::Reach(id) => self.reach(id),
                Event::Answer(id, accepted) => self.answer(id, accepted),
                Event::Reset(id) => self.reset(id),
            }
        }
    }

    /// Takes somebody out of those who can run; time goes on until there is one. `None`: nobody ever can again.
    pub fn pick(&mut self) -> Option<Tid> {
        self.switches += 1;
        // What a switch costs is never nothing, so that who waits by asking the clock comes to an end.
        self.now += 500 + self.chance.below(3000);
        loop {
            self.fire_due();
            self.park_paused();
            if !self.ready.is_empty() {
                let at = self.chance.below(self.ready.len() as u64) as usize;
                return Some(self.ready.swap_remove(at));
            }
            let Reverse((at, ..)) = self.events.peek()?;
            self.now = self.now.max(*at);
        }
    }

    /// Threads of a host that stands still wait until it goes on.
    fn park_paused(&mut self) {
        if self.hosts.iter().all(|host| !host.paused) {
            return;
        }
        let (threads, hosts) = (&self.threads, &mut self.hosts);
        self.ready.retain(|tid| {
            let host = &mut hosts[threads[*tid as usize].host];
            if host.paused {
                host.parked.push(*tid);
            }
            !host.paused
        });
    }
}

/// Whether the calling thread belongs to the run.
pub fn managed() -> bool {
    sched::me() != OUTSIDE
}
