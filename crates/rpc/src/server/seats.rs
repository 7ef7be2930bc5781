//! [`Seats`]: who holds the connections of a server, and which of them goes when there is no room for another.
//!
//! A stranger may open as many connections as it likes and say nothing, and the holder of a key may keep each of very
//! many busy. So places are not kept by who came first: of those that said no hello yet an old one goes ([`Crowd`]),
//! since whoever means it says hello at once; of the others one goes that asks nothing, of the key or address that
//! holds most. A client of ours makes it again when it needs it. There is no fixed limit for a key or an address: all
//! of a cluster may have one key, or be behind one (NAT), and then it alone holds most.
//!
//! Invariants: for whom nobody knows yet only connections of those go that hold at least half as many as who holds
//! most. A connection with a request in the works, or with a frame received in part, is closed for room only where its
//! key or address holds most of all and whoever comes less than a quarter of that. Not here: the number of connections
//! that are allowed (`thread.rs`), closing them (`conn.rs`).

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::accounts::Who;
use super::crowd::Crowd;
use super::reply::{Eviction, ReplySink};

/// Time between two searches for room: each looks at all connections.
const SEARCH_PAUSE: Duration = Duration::from_millis(10);
/// One search closes this part of the connections, at least one: under a flood searches are few.
const PART: usize = 64;
/// Who holds less than one part of so many of what the largest holds gets a place of it.
const FEW_PART: usize = 4;

/// What a connection tells about itself.
struct Mark {
    /// Milliseconds since the server's start.
    used_ms: AtomicU64,
    idle: AtomicBool,
}

struct Entry {
    who: Who,
    sink: Weak<ReplySink>,
    mark: Arc<Mark>,
}

#[derive(Default)]
struct State {
    next: u64,
    /// Without a hello.
    greeting: Crowd<Entry>,
    serving: BTreeMap<u64, Entry>,
    /// Of those, by whom.
    held: HashMap<Who, usize>,
    searched: Option<Instant>,
}

impl State {
    fn serve(&mut self, number: u64, entry: Entry) {
        *self.held.entry(entry.who).or_default() += 1;
        self.serving.insert(number, entry);
    }

    fn leave(&mut self, number: u64) -> Option<Entry> {
        let entry = self.serving.remove(&number)?;
        if let Some(held) = self.held.get_mut(&entry.who) {
            *held -= 1;
            if *held == 0 {
                self.held.remove(&entry.who);
            }
        }
        Some(entry)
    }

    fn largest(&self) -> Option<(Who, usize)> {
        self.held.iter().map(|(who, held)| (*who, *held)).max_by_key(|(_, held)| *held)
    }
}

/// All connections of a server.
pub(crate) struct Seats {
    started: Instant,
    greeting_max: usize,
    idle_min: Duration,
    state: Mutex<State>,
}

/// The place of one connection, as long as it lives.
pub(crate) struct Seat {
    seats: Arc<Seats>,
    number: u64,
    who: Who,
    mark: Arc<Mark>,
}

impl Seats {
    /// At most `greeting_max` without a hello; what was used `idle_min` ago is not idle yet.
    pub(crate) fn new(greeting_max: usize, idle_min: Duration) -> Arc<Self> {
        Arc::new(Self { started: Instant::now(), greeting_max, idle_min, state: Mutex::default() })
    }

    /// See [`Seats::new`].
    pub(crate) fn greeting_max(&self) -> usize {
        self.greeting_max
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// A new connection without a hello; when there are too many of those, one goes.
    pub(crate) fn enter(self: &Arc<Self>, (from, who): (IpAddr, Who), sink: &Arc<ReplySink>) -> Seat {
        let mark = Arc::new(Mark { used_ms: AtomicU64::new(self.now_ms()), idle: AtomicBool::new(false) });
        let entry = Entry { who, sink: Arc::downgrade(sink), mark: mark.clone() };
        let (number, goes) = {
            let mut state = self.state.lock();
            state.next += 1;
            let number = state.next;
            let goes = if state.greeting.len() >= self.greeting_max { state.greeting.make_room() } else { None };
            state.greeting.enter(number, from, entry);
            (number, goes)
        };
        if let Some(goes) = goes {
            goes.evict(Eviction::IfIdle);
        }
        Seat { seats: self.clone(), number, who, mark }
    }

    /// Tells connections that ask nothing to go. Returns to how many; none while the last search was a moment ago.
    pub(crate) fn make_room(&self) -> usize {
        let now = Instant::now();
        let mut state = self.state.lock();
        if state.searched.is_some_and(|then| now.duration_since(then) < SEARCH_PAUSE) {
            return 0;
        }
        state.searched = Some(now);
        let idle_min = u64::try_from(self.idle_min.as_millis()).unwrap_or(u64::MAX);
        let Some(idle_before) = self.now_ms().checked_sub(idle_min) else { return 0 };
        let Some((_, most)) = state.largest() else { return 0 };
        let mut idle: HashMap<Who, Vec<(u64, u64)>> = HashMap::new();
        for (number, entry) in &state.serving {
            let used = entry.mark.used_ms.load(Relaxed);
            if entry.mark.idle.load(Relaxed) && used <= idle_before {
                idle.entry(entry.who).or_default().push((used, *number));
            }
        }
        let held = |who: &Who| state.held.get(who).copied().unwrap_or(0);
        let large = idle.into_iter().map(|(who, idle)| (held(&who), idle)).filter(|(held, _)| *held >= most / 2);
        let Some((held, mut idle)) = large.max_by_key(|(held, _)| *held) else { return 0 };
        idle.sort_unstable();
        idle.truncate((held / PART).max(1));
        let going: Vec<Entry> = idle.iter().filter_map(|(_, number)| state.leave(*number)).collect();
        drop(state);
        going.iter().for_each(|entry| entry.evict(Eviction::IfIdle));
        going.len()
    }

    /// A place for one who holds few, of who holds most: the connection on which nothing happened for longest goes,
    /// whatever is in the works there. `false`: he holds not so few.
    pub(crate) fn push_out(&self, who: Who) -> bool {
        let mut state = self.state.lock();
        let own = state.held.get(&who).copied().unwrap_or(0);
        let Some((largest, _)) = state.largest().filter(|(_, most)| own < most / FEW_PART) else { return false };
        let of_largest = state.serving.iter().filter(|(_, entry)| entry.who == largest);
        let oldest = of_largest.min_by_key(|(_, entry)| entry.mark.used_ms.load(Relaxed));
        let Some(number) = oldest.map(|(number, _)| *number) else { return false };
        let going = state.leave(number);
        drop(state);
        going.inspect(|entry| entry.evict(Eviction::Now)).is_some()
    }
}

impl Entry {
    fn evict(&self, how: Eviction) {
        if let Some(sink) = self.sink.upgrade() {
            sink.evict(how);
        }
    }
}

impl Seat {
    /// The hello was accepted, of these.
    pub(crate) fn greeted(&mut self, who: Who) {
        self.who = who;
        let mut state = self.seats.state.lock();
        if let Some(entry) = state.greeting.leave(self.number) {
            state.serve(self.number, Entry { who, ..entry });
        }
    }

    /// It was told to go and did not, for it has work to do.
    pub(crate) fn stay(&self, sink: &Arc<ReplySink>) {
        let entry = Entry { who: self.who, sink: Arc::downgrade(sink), mark: self.mark.clone() };
        self.seats.state.lock().serve(self.number, entry);
    }

    /// Something came or was answered.
    pub(crate) fn used(&self) {
        self.mark.used_ms.store(self.seats.now_ms(), Relaxed);
    }

    /// Whether nothing is in the works.
    pub(crate) fn set_idle(&self, idle: bool) {
        if self.mark.idle.load(Relaxed) != idle {
            self.mark.idle.store(idle, Relaxed);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut state = self.seats.state.lock();
        state.greeting.leave(self.number);
        state.leave(self.number);
    }
}
