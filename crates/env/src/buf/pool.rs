//! [`BufPool`]: hands out [`AlignedBuf`]s within a fixed number of bytes and reuses them.
//!
//! Invariants: bytes in use plus idle bytes never exceed the limit; requests that have to wait are served in order
//! of arrival (a later small request does not overtake); a dropped wait gives its place up.
//!
//! Capacities are rounded up to a size class (powers of two with quarter steps, at least [`BUF_ALIGN`]), so at most a
//! quarter of what is asked is lost and buffers fit one another's place. The most recently returned buffer of a class
//! is handed out first: it is the one still in the processor's cache. Buffers that nobody needs any more are freed by
//! whoever has a timer ([`BufPool::trim`]).

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use super::aligned::{AlignedBuf, BUF_ALIGN, RawBuf};
use crate::clock::monotonic_now;

/// Requests that may wait at one pool; further ones are refused as exhausted.
pub const POOL_WAITERS_MAX: usize = 65_536;
/// How often owners of pools call [`BufPool::trim`].
pub const POOL_TRIM_EVERY: Duration = Duration::from_secs(2);

/// Why a pool gave no buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BufError {
    /// Try again when others have returned theirs (or shed load).
    #[error(
        "the buffer pool is exhausted: {wanted} bytes asked, {in_use} of {limit} in use; retry when buffers return"
    )]
    Exhausted {
        /// Bytes asked for.
        wanted: usize,
        /// Bytes handed out now.
        in_use: usize,
        /// The pool's bound.
        limit: usize,
    },
    /// Will never fit; the caller's fault.
    #[error("a buffer of {wanted} bytes cannot come from a pool of {limit} bytes")]
    TooLarge {
        /// Bytes asked for.
        wanted: usize,
        /// The pool's bound.
        limit: usize,
    },
}

/// A bounded pool of page-aligned buffers. Cloning gives another handle to the same pool.
#[derive(Clone)]
pub struct BufPool {
    shared: Arc<PoolShared>,
}

pub(super) struct PoolShared {
    limit: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    in_use: usize,
    idle: usize,
    /// The least that was idle since the last trim: nobody needed these bytes meanwhile.
    idle_least: usize,
    /// Size class → returned buffers, the last returned at the end.
    free: BTreeMap<usize, Vec<RawBuf>>,
    waiters: VecDeque<Waiter>,
    next_ticket: u64,
}

struct Waiter {
    ticket: u64,
    waker: Waker,
}

impl State {
    /// A buffer of `class` bytes if the limit allows one now; drops idle ones of other classes to make room.
    fn take(&mut self, class: usize, limit: usize) -> Option<Taken> {
        if self.in_use + class > limit {
            return None;
        }
        let mut evicted = Vec::new();
        let reused = self.pop_free(class);
        if reused.is_none() {
            while self.in_use + self.idle + class > limit {
                let largest = *self.free.keys().next_back().expect("idle bytes are in the free lists");
                evicted.extend(self.pop_free(largest));
            }
        }
        self.in_use += class;
        Some(Taken { reused, _evicted: evicted })
    }

    fn pop_free(&mut self, class: usize) -> Option<RawBuf> {
        let list = self.free.get_mut(&class)?;
        let raw = list.pop();
        if list.is_empty() {
            self.free.remove(&class);
        }
        self.idle -= raw.as_ref().map_or(0, RawBuf::capacity);
        self.idle_least = self.idle_least.min(self.idle);
        raw
    }

    /// Takes out what nobody needed since the last time.
    fn trim(&mut self) -> Vec<RawBuf> {
        let mut unneeded = Vec::new();
        let mut least = self.idle_least;
        // The large ones first: few calls give much back.
        while let Some(&class) = self.free.range(..=least).next_back().map(|(class, _)| class) {
            least -= class;
            unneeded.extend(self.pop_free(class));
        }
        self.idle_least = self.idle;
        unneeded
    }

    fn front_waker(&self) -> Option<Waker> {
        self.waiters.front().map(|w| w.waker.clone())
    }
}

/// What `State::take` decided; allocation and freeing are done by the caller without the lock.
struct Taken {
    reused: Option<RawBuf>,
    _evicted: Vec<RawBuf>,
}

impl PoolShared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn give_back(&self, raw: RawBuf) {
        let waker = {
            let mut state = self.lock();
            let capacity = raw.capacity();
            state.in_use -= capacity;
            state.idle += capacity;
            state.free.entry(capacity).or_default().push(raw);
            state.front_waker()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Rounds a capacity up to its size class.
fn size_class(capacity: usize) -> usize {
    let pages = capacity.max(1).div_ceil(BUF_ALIGN);
    if pages <= 4 {
        return pages * BUF_ALIGN;
    }
    // Steps of a quarter of the power of two below.
    let step = (1usize << (usize::BITS - 1 - (pages - 1).leading_zeros())) / 4;
    pages.next_multiple_of(step.max(1)) * BUF_ALIGN
}

impl BufPool {
    /// A pool that never holds more than `limit` bytes, handed out and idle together. Nothing is allocated yet.
    pub fn new(limit: usize) -> Self {
        Self { shared: Arc::new(PoolShared { limit, state: Mutex::new(State::default()) }) }
    }

    /// The bound in bytes.
    pub fn limit(&self) -> usize {
        self.shared.limit
    }

    /// Bytes handed out now.
    pub fn in_use(&self) -> usize {
        self.shared.lock().in_use
    }

    /// Bytes kept for reuse now.
    pub fn idle(&self) -> usize {
        self.shared.lock().idle
    }

    /// Bytes handed out and kept idle together: what the pool occupies, never more than its limit.
    pub fn held(&self) -> usize {
        let state = self.shared.lock();
        state.in_use + state.idle
    }

    /// Whether somebody waits for a buffer.
    pub fn is_contended(&self) -> bool {
        !self.shared.lock().waiters.is_empty()
    }

    /// Frees what was idle all the time since the last call. To be called every [`POOL_TRIM_EVERY`] by whoever has a
    /// timer.
    pub fn trim(&self) {
        let unneeded = self.shared.lock().trim();
        drop(unneeded);
    }

    fn class_for(&self, capacity: usize) -> Result<usize, BufError> {
        let too_large = BufError::TooLarge { wanted: capacity, limit: self.shared.limit };
        if capacity > self.shared.limit {
            return Err(too_large);
        }
        let class = size_class(capacity);
        if class <= self.shared.limit { Ok(class) } else { Err(too_large) }
    }

    fn build(&self, taken: Taken, class: usize) -> AlignedBuf {
        let Taken { reused, _evicted } = taken;
        drop(_evicted);
        AlignedBuf::from_pool(reused.unwrap_or_else(|| RawBuf::new(class)), self.shared.clone())
    }

    /// An empty buffer of at least `capacity` bytes, at once or not at all. Refuses while others wait.
    pub fn try_take(&self, capacity: usize) -> Result<AlignedBuf, BufError> {
        let class = self.class_for(capacity)?;
        let mut state = self.shared.lock();
        let exhausted = BufError::Exhausted { wanted: capacity, in_use: state.in_use, limit: self.shared.limit };
        if !state.waiters.is_empty() {
            return Err(exhausted);
        }
        let taken = state.take(class, self.shared.limit).ok_or(exhausted)?;
        drop(state);
        Ok(self.build(taken, class))
    }

    /// Waits (as a future, with any executor) for an empty buffer of at least `capacity` bytes. Fails at once when
    /// the pool can never give that much. Callers put their deadline around it.
    pub fn take(&self, capacity: usize) -> Acquire {
        Acquire { pool: self.clone(), capacity, ticket: None }
    }

    /// Waits on this thread for at most `timeout`. Not for asynchronous code.
    pub fn take_blocking(&self, capacity: usize, timeout: Duration) -> Result<AlignedBuf, BufError> {
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut context = Context::from_waker(&waker);
        let mut acquire = std::pin::pin!(self.take(capacity));
        let start = monotonic_now();
        loop {
            if let Poll::Ready(result) = acquire.as_mut().poll(&mut context) {
                return result;
            }
            let waited = monotonic_now().saturating_sub(start);
            let Some(left) = timeout.checked_sub(waited).filter(|d| !d.is_zero()) else {
                return Err(BufError::Exhausted { wanted: capacity, in_use: self.in_use(), limit: self.shared.limit });
            };
            std::thread::park_timeout(left);
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The wait for a buffer, made by [`BufPool::take`]. Dropping it gives up the place in the queue.
pub struct Acquire {
    pool: BufPool,
    capacity: usize,
    ticket: Option<u64>,
}

impl Future for Acquire {
    type Output = Result<AlignedBuf, BufError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let class = match self.pool.class_for(self.capacity) {
            Ok(class) => class,
            Err(e) => return Poll::Ready(Err(e)),
        };
        let pool = self.pool.clone();
        let mut state = pool.shared.lock();
        let position = self.ticket.and_then(|t| state.waiters.iter().position(|w| w.ticket == t));
        let first = match position {
            Some(at) => at == 0,
            None => state.waiters.is_empty(),
        };
        if first && let Some(taken) = state.take(class, pool.shared.limit) {
            if position.is_some() {
                state.waiters.pop_front();
            }
            let next = state.front_waker();
            drop(state);
            self.ticket = None;
            if let Some(next) = next {
                next.wake();
            }
            return Poll::Ready(Ok(pool.build(taken, class)));
        }
        match position {
            Some(at) => state.waiters[at].waker.clone_from(cx.waker()),
            None if state.waiters.len() >= POOL_WAITERS_MAX => {
                return Poll::Ready(Err(BufError::Exhausted {
                    wanted: self.capacity,
                    in_use: state.in_use,
                    limit: pool.shared.limit,
                }));
            }
            None => {
                let ticket = state.next_ticket;
                state.next_ticket += 1;
                state.waiters.push_back(Waiter { ticket, waker: cx.waker().clone() });
                self.ticket = Some(ticket);
            }
        }
        Poll::Pending
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let next = {
            let mut state = self.pool.shared.lock();
            state.waiters.retain(|w| w.ticket != ticket);
            state.front_waker()
        };
        if let Some(next) = next {
            next.wake();
        }
    }
}
