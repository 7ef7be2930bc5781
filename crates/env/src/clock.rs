//! The clock behind a trait, and the real one.
//!
//! Invariant: `now` never goes back within a process. Not here: timers (the owners of cores keep their own).

use std::time::Duration;

use cairn_types::time::{Time, WallTime};

/// Where the present comes from. Only drivers ask it; cores get the answer as an argument.
pub trait Clock: Send + Sync {
    /// The monotonic clock, for timeouts, leases and latencies. It goes on while the machine sleeps: a lease is over
    /// then.
    fn now(&self) -> Time;
    /// The calendar, for file times and logs.
    fn wall(&self) -> WallTime;
}

/// The machine's clocks: `CLOCK_BOOTTIME` and `CLOCK_REALTIME`.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealClock;

impl Clock for RealClock {
    fn now(&self) -> Time {
        Time(nanos(read(libc::CLOCK_BOOTTIME)))
    }

    fn wall(&self) -> WallTime {
        WallTime(nanos(read(libc::CLOCK_REALTIME)))
    }
}

/// Nanoseconds, saturated to `u64` (584 years).
fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

/// The time that the machine was awake since its boot.
pub(crate) fn monotonic_now() -> Duration {
    read(libc::CLOCK_MONOTONIC)
}

/// Through the C library, as the standard library and the runtime do it: all of a process see one clock, also where a
/// test puts another one in its place.
fn read(id: libc::clockid_t) -> Duration {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the place for the answer is there for the call.
    let failed = unsafe { libc::clock_gettime(id, &mut t) };
    assert!(failed == 0, "the system has no clock {id}");
    // Before 1970 (a machine without a set clock) counts as 1970.
    let secs = u64::try_from(t.tv_sec).unwrap_or(0);
    let nanos = u32::try_from(t.tv_nsec).unwrap_or(0);
    Duration::new(secs, nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Leases would be granted or expire wrongly if the clock stood still, went back or had another unit.
    #[test]
    fn real_clock_moves_forward() {
        let a = RealClock.now();
        std::thread::sleep(Duration::from_millis(2));
        let b = RealClock.now();
        assert!(b.since(a) >= Duration::from_millis(2));
        // Time asleep counts: a machine that sleeps longer than a lease has lost it.
        let before = nanos(read(libc::CLOCK_BOOTTIME));
        let now = RealClock.now().0;
        assert!(before <= now && now <= nanos(read(libc::CLOCK_BOOTTIME)));
        let year_2020 = WallTime(1_577_836_800 * 1_000_000_000);
        assert!(RealClock.wall() > year_2020);
    }
}
