//! [`Load`]: how much of its time a partition's log takes, and how many changes it has a second, for the manager and
//! for people.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use cairn_types::Time;
use parking_lot::Mutex;

/// Shares and rates are of at least so long.
const WINDOW: Duration = Duration::from_secs(5);

/// Of one member.
#[derive(Default)]
pub(crate) struct Load {
    busy_ns: AtomicU64,
    changes: AtomicU64,
    window: Mutex<Window>,
}

#[derive(Default)]
struct Window {
    /// When it began, and what had been counted then.
    since: Time,
    busy_ns: u64,
    changes: u64,
    /// Of the one before.
    last: (u32, u64),
}

/// Counts the time until it goes.
pub(crate) struct Timer<'a> {
    load: &'a Load,
    start: Instant,
    pub(crate) changes: u64,
}

impl Drop for Timer<'_> {
    fn drop(&mut self) {
        let took = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.load.busy_ns.fetch_add(took, Relaxed);
        self.load.changes.fetch_add(self.changes, Relaxed);
    }
}

impl Load {
    /// Around the work on some entries.
    pub(crate) fn timer(&self) -> Timer<'_> {
        Timer { load: self, start: Instant::now(), changes: 0 }
    }

    /// Thousandths of the time, and changes a second, in the last window that is over.
    pub(crate) fn since_last(&self, now: Time) -> (u32, u64) {
        let mut window = self.window.lock();
        let length = now.since(window.since);
        if length >= WINDOW {
            let (busy_ns, changes) = (self.busy_ns.load(Relaxed), self.changes.load(Relaxed));
            let (busy, count) = (busy_ns - window.busy_ns, changes - window.changes);
            let nanos = length.as_nanos().max(1);
            let permille = (u128::from(busy) * 1000 / nanos).min(1000) as u32;
            let rate = (u128::from(count) * 1_000_000_000 / nanos) as u64;
            *window = Window { since: now, busy_ns, changes, last: (permille, rate) };
        }
        window.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A volume would never get more partitions by load, or all the time.
    #[test]
    fn shares_and_rates_are_those_of_the_last_window() {
        let load = Load::default();
        let at = |seconds: u64| Time(seconds * 1_000_000_000);
        assert_eq!(load.since_last(at(100)), (0, 0));
        load.busy_ns.fetch_add(2_500_000_000, Relaxed);
        load.changes.fetch_add(50_000, Relaxed);
        assert_eq!(load.since_last(at(104)), (0, 0), "the window is not over");
        assert_eq!(load.since_last(at(110)), (250, 5_000));
        assert_eq!(load.since_last(at(112)), (250, 5_000));
        assert_eq!(load.since_last(at(120)), (0, 0));
    }
}
