//! How quick disks answer reads of shards, and which of them are better left alone for a while.
//!
//! The delay after which parity is read instead follows what was seen (mean and four mean deviations, as TCP estimates
//! its timeout: about p95 and beyond), within a floor and a ceiling. A disk that was slower than that, or could not be
//! reached, is remembered, so that only one read in a while waits for it. Hedges for slowness have a budget: when
//! everything is slow, more requests would make it slower.
use cairn_types::Time;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Bounds of the delay after which a read that is not answered is asked of somebody else as well: parity of striped
/// files, another copy of replicated ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HedgeBounds {
    /// Never sooner.
    pub floor: Duration,
    /// At the latest after this, while second requests are few among all.
    pub ceiling: Duration,
}

impl Default for HedgeBounds {
    fn default() -> Self {
        Self { floor: Duration::from_millis(25), ceiling: Duration::from_millis(150) }
    }
}

/// Before anything was measured.
const HEDGE_START: Duration = Duration::from_millis(100);
/// Reads up to this size are measured apart from larger ones.
const SMALL_MAX: u64 = 128 << 10;
/// A slow disk is left alone for this long at first, twice as long each time it is still slow.
const SLOW_MIN: Duration = Duration::from_secs(2);
const SLOW_MAX: Duration = Duration::from_secs(60);
/// Hedges that may be in the budget; one costs [`HEDGE_COST`], every answered read earns 1.
const HEDGES_MAX: u32 = 32;
const HEDGE_COST: u32 = 20;

/// Shared by all striped reads of a client.
pub(crate) struct Health {
    bounds: HedgeBounds,
    small: Estimate,
    large: Estimate,
    /// Bounded by the disks of the cluster.
    slow: Mutex<BTreeMap<u32, SlowDisk>>,
    budget: AtomicU32,
}

#[derive(Clone, Copy)]
struct SlowDisk {
    until: Time,
    next: Duration,
}

#[derive(Default)]
struct Estimate {
    mean_us: AtomicU64,
    deviation_us: AtomicU64,
}

impl Estimate {
    fn record(&self, took: Duration) {
        let sample = u64::try_from(took.as_micros()).unwrap_or(u64::MAX / 16);
        let mean = self.mean_us.load(Ordering::Relaxed);
        if mean == 0 {
            self.mean_us.store(sample.max(1), Ordering::Relaxed);
            self.deviation_us.store(sample / 2, Ordering::Relaxed);
            return;
        }
        let deviation = self.deviation_us.load(Ordering::Relaxed);
        self.mean_us.store((mean - mean / 8 + sample / 8).max(1), Ordering::Relaxed);
        self.deviation_us.store(deviation - deviation / 4 + sample.abs_diff(mean) / 4, Ordering::Relaxed);
    }
    fn late_after(&self) -> Option<Duration> {
        let mean = self.mean_us.load(Ordering::Relaxed);
        let micros = mean.saturating_add(4 * self.deviation_us.load(Ordering::Relaxed));
        (mean > 0).then(|| Duration::from_micros(micros))
    }
}

impl Health {
    pub(crate) fn new(bounds: HedgeBounds) -> Self {
        Self {
            bounds,
            small: Estimate::default(),
            large: Estimate::default(),
            slow: Mutex::default(),
            budget: AtomicU32::new(HEDGES_MAX * HEDGE_COST),
        }
    }
    pub(crate) fn bounds(&self) -> HedgeBounds {
        self.bounds
    }
    fn estimate(&self, bytes: u64) -> &Estimate {
        if bytes <= SMALL_MAX { &self.small } else { &self.large }
    }
    /// Time after which a read of so many bytes is late.
    pub(crate) fn late_after(&self, bytes: u64) -> Duration {
        let estimate = self.estimate(bytes).late_after().unwrap_or(HEDGE_START);
        estimate.clamp(self.bounds.floor, self.bounds.ceiling)
    }
    /// A disk answered a read.
    pub(crate) fn answered(&self, disk: u32, bytes: u64, took: Duration) {
        self.estimate(bytes).record(took);
        let most = HEDGES_MAX * HEDGE_COST;
        // A lost update costs a twentieth of a hedge.
        let budget = self.budget.load(Ordering::Relaxed);
        self.budget.store((budget + 1).min(most), Ordering::Relaxed);
        if took <= self.bounds.ceiling {
            self.slow.lock().remove(&disk);
        }
    }
    /// A disk was late, or could not be reached.
    pub(crate) fn mark_slow(&self, disk: u32, now: Time) {
        let mut slow = self.slow.lock();
        let entry = slow.entry(disk).or_insert(SlowDisk { until: Time(0), next: SLOW_MIN });
        if entry.until <= now {
            entry.until = now + entry.next;
            entry.next = (entry.next * 2).min(SLOW_MAX);
        }
    }
    /// Whether to read without the disk. When its time is over, one caller tries it and the others wait for that.
    pub(crate) fn is_slow(&self, disk: u32, now: Time) -> bool {
        let mut slow = self.slow.lock();
        let Some(entry) = slow.get_mut(&disk) else { return false };
        if now < entry.until {
            return true;
        }
        entry.until = now + entry.next;
        entry.next = (entry.next * 2).min(SLOW_MAX);
        false
    }
    /// Takes one hedge from the budget.
    pub(crate) fn may_hedge(&self) -> bool {
        let take = |budget: u32| budget.checked_sub(HEDGE_COST);
        self.budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stopped member would stall reads for longer than the ceiling, or quick ones would be hedged all the time.
    #[test]
    fn the_delay_follows_what_was_seen_within_its_bounds() {
        let bounds = HedgeBounds::default();
        let health = Health::new(bounds);
        assert_eq!(health.late_after(1 << 20), HEDGE_START);
        for _ in 0..100 {
            health.answered(1, 1 << 20, Duration::from_millis(1));
        }
        assert_eq!(health.late_after(1 << 20), bounds.floor);
        assert_eq!(health.late_after(4096), HEDGE_START, "small reads are measured apart");
        health.answered(1, 1 << 20, Duration::from_secs(10));
        assert_eq!(health.late_after(1 << 20), bounds.ceiling);
    }

    /// Every read would wait for a stopped disk anew, or none would ever find out that it is well again.
    #[test]
    fn a_slow_disk_is_tried_by_one_read_in_a_while() {
        let health = Health::new(HedgeBounds::default());
        let now = Time(5);
        assert!(!health.is_slow(7, now));
        health.mark_slow(7, now);
        health.mark_slow(7, now);
        assert!(health.is_slow(7, now) && health.is_slow(7, now + SLOW_MIN - Duration::from_nanos(1)));
        assert!(!health.is_slow(7, now + SLOW_MIN), "one tries");
        assert!(health.is_slow(7, now + SLOW_MIN), "the others wait");
        health.answered(7, 4096, Duration::from_millis(2));
        assert!(!health.is_slow(7, now + SLOW_MIN));
    }

    /// An overloaded cluster would be loaded half as much again.
    #[test]
    fn hedges_are_a_small_part_of_the_reads() {
        let health = Health::new(HedgeBounds::default());
        let at_once = (0..1000).filter(|_| health.may_hedge()).count();
        assert_eq!(at_once, HEDGES_MAX as usize);
        (0..HEDGE_COST).for_each(|_| health.answered(1, 4096, Duration::from_millis(1)));
        assert!(health.may_hedge() && !health.may_hedge());
    }
}
