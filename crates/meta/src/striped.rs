//! What threads use at every request without getting in each other's way: [`StripedLock`], [`StripedCounters`].
//!
//! A plain reader-writer lock is one word that every reader writes to; with four threads of small reads, moving that
//! cache line between cores costs more than the read. Here each thread has a stripe of its own (threads share one when
//! there are more threads than stripes); a writer takes all stripes, which is little beside the batch that it applies.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Stripes of each lock and counter: as many as a server has threads usually, and some.
const STRIPES: usize = 8;

static NEXT_STRIPE: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Threads take stripes in turn; which one a thread has matters for nothing but speed.
    static STRIPE: usize = NEXT_STRIPE.fetch_add(1, Relaxed) % STRIPES;
}

fn stripe() -> usize {
    STRIPE.with(|stripe| *stripe)
}

/// On cache lines of its own (two, for the line that is fetched along).
#[repr(align(128))]
#[derive(Default)]
struct Padded<T>(T);

/// A reader-writer lock whose readers do not disturb each other.
///
/// Invariant: the value is reached only under a guard of this module: shared with any one stripe locked for reading,
/// exclusive with all stripes locked for writing.
pub(crate) struct StripedLock<T> {
    stripes: [Padded<RwLock<()>>; STRIPES],
    value: UnsafeCell<T>,
}

// SAFETY: as for `RwLock<T>`: readers on several threads share `&T` (needs `Sync`), and a writer may take the value
// out on another thread (needs `Send`). The stripes keep the two apart, see the type's invariant.
unsafe impl<T: Send + Sync> Sync for StripedLock<T> {}

/// Shared access.
pub(crate) struct ReadGuard<'a, T> {
    value: &'a T,
    _stripe: RwLockReadGuard<'a, ()>,
}

/// Exclusive access.
pub(crate) struct WriteGuard<'a, T> {
    value: &'a mut T,
    _stripes: [RwLockWriteGuard<'a, ()>; STRIPES],
}

impl<T> StripedLock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { stripes: Default::default(), value: UnsafeCell::new(value) }
    }

    /// Waits until nobody writes. Not to be called by a thread that has a guard of this lock already.
    #[inline]
    pub(crate) fn read(&self) -> ReadGuard<'_, T> {
        let stripe = self.stripes[stripe()].0.read();
        // SAFETY: a writer needs this stripe too, so there is none as long as the guard, which is kept beside the
        // reference and has the same lifetime, lives.
        ReadGuard { value: unsafe { &*self.value.get() }, _stripe: stripe }
    }

    /// Waits until nobody else has access. Stripes are taken in their order, so two writers do not block each other.
    pub(crate) fn write(&self) -> WriteGuard<'_, T> {
        let stripes = std::array::from_fn(|at| self.stripes[at].0.write());
        // SAFETY: every reader needs one of the stripes, every writer all of them, and this thread holds all of them as
        // long as the guards, which are kept beside the reference and have the same lifetime, live.
        WriteGuard { value: unsafe { &mut *self.value.get() }, _stripes: stripes }
    }
}

impl<T> Deref for ReadGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.value
    }
}

impl<T> Deref for WriteGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.value
    }
}

impl<T> DerefMut for WriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value
    }
}

/// Counters that many threads raise and few read.
pub(crate) struct StripedCounters {
    stripes: [Padded<Box<[AtomicU64]>>; STRIPES],
}

impl StripedCounters {
    /// So many counters, all zero.
    pub(crate) fn new(count: usize) -> Self {
        Self { stripes: std::array::from_fn(|_| Padded((0..count).map(|_| AtomicU64::new(0)).collect())) }
    }

    /// Raises one; a number beyond the last is ignored.
    #[inline]
    pub(crate) fn count(&self, number: usize) {
        if let Some(counter) = self.stripes[stripe()].0.get(number) {
            counter.fetch_add(1, Relaxed);
        }
    }

    /// The sum of all threads.
    pub(crate) fn sum(&self, number: usize) -> u64 {
        self.stripes.iter().filter_map(|stripe| stripe.0.get(number)).map(|counter| counter.load(Relaxed)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// A reader would see half an operation, or two writers would work at once.
    #[test]
    fn readers_never_see_half_a_write() {
        let lock = Arc::new(StripedLock::new((0u64, 0u64)));
        let counters = Arc::new(StripedCounters::new(2));
        let threads: Vec<_> = (0..2 * STRIPES)
            .map(|number| {
                let (lock, counters) = (lock.clone(), counters.clone());
                std::thread::spawn(move || {
                    for _ in 0..2000 {
                        if number % 4 == 0 {
                            let mut guard = lock.write();
                            guard.0 += 1;
                            std::hint::spin_loop();
                            guard.1 += 1;
                        } else {
                            let guard = lock.read();
                            assert_eq!(guard.0, guard.1);
                        }
                        counters.count(1);
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().expect("no panic");
        }
        assert_eq!(*lock.read(), (2000 * STRIPES as u64 / 2, 2000 * STRIPES as u64 / 2));
        assert_eq!((counters.sum(0), counters.sum(1), counters.sum(2)), (0, 4000 * STRIPES as u64, 0));
    }
}
