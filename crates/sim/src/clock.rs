//! [`SimClock`]: time that moves only when told to.
//!
//! Invariant: neither reading goes back through `advance`; only `jump_wall` moves the calendar alone.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cairn_env::clock::Clock;
use cairn_types::time::{Time, WallTime};

/// A clock under the test's control, shared by reference or `Arc`.
#[derive(Debug)]
pub struct SimClock {
    now: AtomicU64,
    wall: AtomicU64,
}

/// 2026-01-01T00:00:00Z, where the calendar of a simulation starts.
const WALL_START: u64 = 1_767_225_600_000_000_000;

impl Default for SimClock {
    fn default() -> Self {
        Self { now: AtomicU64::new(0), wall: AtomicU64::new(WALL_START) }
    }
}

impl SimClock {
    /// A clock at zero; its calendar starts at 2026-01-01T00:00:00Z.
    pub fn new() -> Self {
        Self::default()
    }

    /// Moves both clocks on.
    pub fn advance(&self, by: Duration) {
        let ns = u64::try_from(by.as_nanos()).expect("a simulation lasts less than 584 years");
        self.now.fetch_add(ns, Ordering::SeqCst);
        self.wall.fetch_add(ns, Ordering::SeqCst);
    }

    /// Moves both clocks on to a point of the monotonic one; an earlier point changes nothing.
    pub fn advance_to(&self, to: Time) {
        self.advance(to.since(self.now()));
    }

    /// Sets the calendar alone, as an operator or a time daemon would; also backwards.
    pub fn jump_wall(&self, to: WallTime) {
        self.wall.store(to.0, Ordering::SeqCst);
    }
}

impl Clock for SimClock {
    fn now(&self) -> Time {
        Time(self.now.load(Ordering::SeqCst))
    }

    fn wall(&self) -> WallTime {
        WallTime(self.wall.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Timers would fire early or twice if simulated time went back.
    #[test]
    fn moves_only_forward_and_only_when_told() {
        let clock = SimClock::new();
        assert_eq!((clock.now(), clock.wall()), (Time(0), WallTime(WALL_START)));
        clock.advance(Duration::from_secs(2));
        clock.advance_to(Time(1_000_000_000));
        assert_eq!(clock.now(), Time(2_000_000_000));
        clock.jump_wall(WallTime(5));
        assert_eq!((clock.now(), clock.wall()), (Time(2_000_000_000), WallTime(5)));
    }
}
