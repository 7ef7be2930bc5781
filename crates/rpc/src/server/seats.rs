//! [`Seats`]: who holds the connections of a server, and which of them goes when there is no room for another.
//!
//! A stranger may open as many connections as it likes and say nothing. So places are not kept by who came first: of
//! those that said no hello yet an old one goes ([`Crowd`]), since whoever means it says hello at once; of the others
//! one goes that asks nothing, of the address that holds most. A client of ours makes it again when it needs it. There
//! is no fixed limit for an address: all of a cluster may be behind one (NAT), and then it alone holds most.
//!
//! Invariant: a connection with a request in the works, or with a frame received in part, is never closed for room.
//! Not here: the number of connections that are allowed (`thread.rs`), closing them (`conn.rs`).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::crowd::{Crowd, site};
use super::reply::ReplySink;

/// Time between two searches for room: each looks at all connections.
const SEARCH_PAUSE: Duration = Duration::from_millis(10);
/// One search closes this part of the connections, at least one: under a flood searches are few.
const PART: usize = 64;

/// What a connection tells about itself.
struct Mark {
    /// Milliseconds since the server's start.
    used_ms: AtomicU64,
    idle: AtomicBool,
}

struct Entry {
    from: IpAddr,
    sink: Weak<ReplySink>,
    mark: Arc<Mark>,
}

#[derive(Default)]
struct State {
    next: u64,
    /// Without a hello.
    greeting: Crowd<Entry>,
    serving: BTreeMap<u64, Entry>,
    searched: Option<Instant>,
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
    pub(crate) fn enter(self: &Arc<Self>, from: IpAddr, sink: &Arc<ReplySink>) -> Seat {
        let mark = Arc::new(Mark { used_ms: AtomicU64::new(self.now_ms()), idle: AtomicBool::new(false) });
        let entry = Entry { from: site(from), sink: Arc::downgrade(sink), mark: mark.clone() };
        let (number, goes) = {
            let mut state = self.state.lock();
            state.next += 1;
            let number = state.next;
            let goes = if state.greeting.len() >= self.greeting_max { state.greeting.make_room() } else { None };
            state.greeting.enter(number, from, entry);
            (number, goes)
        };
        if let Some(goes) = goes {
            goes.evict();
        }
        Seat { seats: self.clone(), number, mark }
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
        let mut sites: BTreeMap<IpAddr, (usize, Vec<(u64, u64)>)> = BTreeMap::new();
        for (number, entry) in &state.serving {
            let (held, idle) = sites.entry(entry.from).or_default();
            *held += 1;
            let used = entry.mark.used_ms.load(Relaxed);
            if entry.mark.idle.load(Relaxed) && used <= idle_before {
                idle.push((used, *number));
            }
        }
        let largest = sites.into_values().filter(|(_, idle)| !idle.is_empty()).max_by_key(|(held, _)| *held);
        let Some((held, mut idle)) = largest else { return 0 };
        idle.sort_unstable();
        idle.truncate((held / PART).max(1));
        let going: Vec<Entry> = idle.iter().filter_map(|(_, number)| state.serving.remove(number)).collect();
        drop(state);
        going.iter().for_each(Entry::evict);
        going.len()
    }
}

impl Entry {
    fn evict(&self) {
        if let Some(sink) = self.sink.upgrade() {
            sink.evict();
        }
    }
}

impl Seat {
    /// The hello was accepted.
    pub(crate) fn greeted(&self) {
        let mut state = self.seats.state.lock();
        if let Some(entry) = state.greeting.leave(self.number) {
            state.serving.insert(self.number, entry);
        }
    }

    /// It was told to go and did not, for it has work to do.
    pub(crate) fn stay(&self, from: IpAddr, sink: &Arc<ReplySink>) {
        let entry = Entry { from: site(from), sink: Arc::downgrade(sink), mark: self.mark.clone() };
        self.seats.state.lock().serving.insert(self.number, entry);
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
        state.serving.remove(&self.number);
    }
}
