//! How long reads take lately, and who was slow: the basis of when a second member is asked, and of whom to ask first.
//!
//! A second request does the work twice. Where all members are slow, as when nothing is in their memory, it makes them
//! slower; so second requests are a tenth of all, but for a few in a row and for those that waited [`HEDGE_MAX`], and a
//! member that lost against a second one is not the first to be asked for a while.
use super::health::HedgeBounds;
use cairn_types::Time;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A second member is asked after this also when there were many second requests already.
pub(crate) const HEDGE_MAX: Duration = Duration::from_millis(500);
/// Before anything was measured.
const HEDGE_START: Duration = Duration::from_millis(150);

/// A second request costs so many credits, each read gives one.
const HEDGE_COST: u64 = 10;
/// Second requests in a row.
const HEDGE_BURST: u64 = 16;
/// How long a member that was slow is asked last.
const SLOW_FOR: Duration = Duration::from_secs(2);

/// Moving mean and mean deviation, as TCP estimates its timeout (Jacobson 1988): mean + 4 deviations ≈ p95 and beyond.
pub(crate) struct Latency {
    mean_us: AtomicU64,
    deviation_us: AtomicU64,
    credit: AtomicU64,
    /// By disk, until when. At most the disks that serve.
    slow: Mutex<BTreeMap<u32, Time>>,
}

impl Default for Latency {
    fn default() -> Self {
        let credit = AtomicU64::new(HEDGE_BURST * HEDGE_COST);
        Self { mean_us: AtomicU64::default(), deviation_us: AtomicU64::default(), credit, slow: Mutex::default() }
    }
}

impl Latency {
    pub(crate) fn record(&self, took: Duration) {
        let gained = |credit| (credit < HEDGE_BURST * HEDGE_COST).then_some(credit + 1);
        // An error means that there is as much as there can be.
        let _full = self.credit.fetch_update(Ordering::Relaxed, Ordering::Relaxed, gained);
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
    /// Takes the right to ask a second member now, if there is one left.
    pub(crate) fn may_hedge(&self) -> bool {
        let spent = |credit: u64| credit.checked_sub(HEDGE_COST);
        self.credit.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spent).is_ok()
    }
    /// The disk did not answer before another one that was asked later.
    pub(crate) fn was_slow(&self, disk: u32, now: Time) {
        self.slow.lock().insert(disk, now + SLOW_FOR);
    }
    /// Puts the disks that were slow lately behind the others.
    pub(crate) fn slow_last(&self, disks: &mut [u32], now: Time) {
        let mut slow = self.slow.lock();
        slow.retain(|_, until| *until > now);
        if !slow.is_empty() {
            disks.sort_by_key(|disk| slow.contains_key(disk));
        }
    }
    /// Time after which another member is asked as well.
    pub(crate) fn hedge_after(&self, bounds: HedgeBounds) -> Duration {
        let mean = self.mean_us.load(Ordering::Relaxed);
        let micros = mean.saturating_add(4 * self.deviation_us.load(Ordering::Relaxed));
        let delay = if mean == 0 { HEDGE_START } else { Duration::from_micros(micros) };
        delay.max(bounds.floor).min(bounds.ceiling)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_follows_what_was_seen_within_its_bounds() {
        let (latency, bounds) = (Latency::default(), HedgeBounds::default());
        assert_eq!(latency.hedge_after(bounds), HEDGE_START);
        for _ in 0..100 {
            latency.record(Duration::from_millis(1));
        }
        assert_eq!(latency.hedge_after(bounds), bounds.floor);
        for _ in 0..100 {
            latency.record(Duration::from_millis(80));
        }
        let delay = latency.hedge_after(bounds);
        assert!(delay > Duration::from_millis(70) && delay < Duration::from_millis(200), "{delay:?}");
        latency.record(Duration::from_secs(100));
        assert_eq!(latency.hedge_after(bounds), bounds.ceiling, "a reader would stand still for longer than promised");
    }

    /// If all members were slow, each read would be done by each of them.
    #[test]
    fn second_requests_are_a_tenth() {
        let latency = Latency::default();
        let mut second = 0;
        for _ in 0..1000 {
            latency.record(Duration::from_millis(200));
            second += u64::from(latency.may_hedge());
        }
        assert!((100..=HEDGE_BURST + 100).contains(&second), "{second} of 1000");
    }

    /// A member that hangs would delay every third read again and again.
    #[test]
    fn who_was_slow_comes_last_for_a_while() {
        let (latency, now) = (Latency::default(), Time::default());
        latency.was_slow(2, now);
        let mut disks = [2, 3, 1];
        latency.slow_last(&mut disks, now);
        assert_eq!(disks, [3, 1, 2]);
        let mut disks = [2, 3, 1];
        latency.slow_last(&mut disks, now + SLOW_FOR);
        assert_eq!(disks, [2, 3, 1]);
    }
}
