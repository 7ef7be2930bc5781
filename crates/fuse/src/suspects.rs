//! Requests that a worker was working on when it died or hung, in memory that outlives it: the end of the memory file
//! of the [open table](crate::open_table).
//!
//! Invariants owned here: what a thread polls is noted before it is polled and taken away afterwards, so a worker that
//! dies leaves the requests that may have killed it, and none that only waited; a request that ended [`STRIKES_MAX`]
//! workers is not given to another one. Whatever the bytes are, nothing worse follows than that a request is tried
//! again or answered EIO.
use std::sync::atomic::{AtomicU64, Ordering};

/// Workers that a request may end.
pub const STRIKES_MAX: u64 = 2;
/// Threads of which it is noted what they poll, and as many requests of threads that hang.
pub const THREADS: usize = 160;
/// Requests that ended a worker; the oldest are forgotten.
const ENDED: usize = 128;
const MAGIC: u64 = 0x5353_5553_4e52_4143;

/// In the shared memory.
#[repr(C)]
pub struct Suspects {
    magic: AtomicU64,
    /// Numbers of requests; 0: none.
    polled: [AtomicU64; THREADS],
    /// Requests on a thread that did not get on.
    stuck: [AtomicU64; THREADS],
    /// Number of a request and how many workers it ended.
    ended: [[AtomicU64; 2]; ENDED],
    next: AtomicU64,
}

impl Suspects {
    /// Reads what the last worker left: each request that it was working on gets a strike. From now on this worker
    /// notes.
    pub fn take_over(&self) {
        if self.magic.swap(MAGIC, Ordering::AcqRel) != MAGIC {
            // New, or of a build that does not know it.
            self.ended.iter().flatten().for_each(|word| word.store(0, Ordering::Release));
            self.clear();
            return;
        }
        let mut left: Vec<u64> =
            self.polled.iter().chain(&self.stuck).map(|slot| slot.load(Ordering::Acquire)).collect();
        left.sort_unstable();
        left.dedup();
        left.into_iter().filter(|number| *number != 0).for_each(|number| self.strike(number));
        self.clear();
    }
    /// Nothing is under way: the end of this worker is nobody's fault.
    pub fn clear(&self) {
        self.polled.iter().chain(&self.stuck).for_each(|slot| slot.store(0, Ordering::Release));
    }
    fn strike(&self, number: u64) {
        let known = self.ended.iter().find(|[of, _]| of.load(Ordering::Acquire) == number);
        if let Some([_, strikes]) = known {
            strikes.fetch_add(1, Ordering::AcqRel);
            return;
        }
        let [of, strikes] = &self.ended[self.next.fetch_add(1, Ordering::AcqRel) as usize % ENDED];
        of.store(number, Ordering::Release);
        strikes.store(1, Ordering::Release);
    }
    /// What would be struck if the worker ended now.
    #[cfg(test)]
    pub fn left(&self) -> Vec<u64> {
        let all = self.polled.iter().chain(&self.stuck).map(|slot| slot.load(Ordering::Acquire));
        all.filter(|number| *number != 0).collect()
    }
    /// Whether a request ended so many workers that no other one gets it.
    pub fn is_guilty(&self, number: u64) -> bool {
        let strikes = |[of, strikes]: &[AtomicU64; 2]| {
            (of.load(Ordering::Acquire) == number).then(|| strikes.load(Ordering::Acquire))
        };
        number != 0 && self.ended.iter().find_map(strikes).is_some_and(|strikes| strikes >= STRIKES_MAX)
    }
    /// A thread begins to poll a request, or ends (0).
    pub fn polls(&self, thread: usize, number: u64) {
        if let Some(slot) = self.polled.get(thread) {
            slot.store(number, Ordering::Release);
        }
    }
    /// These requests wait for threads that do not get on.
    pub fn are_stuck(&self, numbers: impl Iterator<Item = u64>) {
        let numbers = numbers.chain(std::iter::repeat(0));
        self.stuck.iter().zip(numbers).for_each(|(slot, number)| slot.store(number, Ordering::Release));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> Suspects {
        // SAFETY: all fields are atomic integers, for which zeros are values; the memory file begins as zeros.
        unsafe { std::mem::zeroed() }
    }

    /// A request that kills every worker that gets it would keep the mount from everybody for ever; or one that only
    /// waited when others killed it would fail.
    #[test]
    fn a_request_ends_two_workers_at_most() {
        let suspects = memory();
        suspects.take_over();
        for worker in 0..2 {
            assert!(!suspects.is_guilty(40), "worker {worker}");
            suspects.polls(3, 38);
            suspects.polls(3, 0);
            suspects.polls(3, 40);
            if worker == 0 {
                suspects.polls(4, 42);
                suspects.are_stuck([44].into_iter());
            }
            suspects.take_over();
        }
        assert!(suspects.is_guilty(40));
        assert!([0, 38, 42, 44, 46].iter().all(|number| !suspects.is_guilty(*number)));
        // One that hung is as guilty as one that killed.
        suspects.are_stuck([44].into_iter());
        suspects.take_over();
        assert!(suspects.is_guilty(44));
        // A worker that is replaced on purpose leaves nothing.
        suspects.polls(0, 42);
        suspects.clear();
        suspects.take_over();
        assert!(!suspects.is_guilty(42) && suspects.is_guilty(40));
        // The list has an end.
        for number in 0..ENDED as u64 {
            suspects.polls(1, 1000 + 2 * number);
            suspects.take_over();
        }
        assert!(!suspects.is_guilty(40));
    }
}
