//! How long reads take lately: the basis of the delay after which a second member is asked.
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A second member is never asked sooner.
const HEDGE_MIN: Duration = Duration::from_millis(30);
/// A second member is asked at the latest after this.
const HEDGE_MAX: Duration = Duration::from_millis(500);
/// Before anything was measured.
const HEDGE_START: Duration = Duration::from_millis(150);

/// Moving mean and mean deviation, as TCP estimates its timeout (Jacobson 1988): mean + 4 deviations ≈ p95 and beyond.
#[derive(Default)]
pub(crate) struct Latency {
    mean_us: AtomicU64,
    deviation_us: AtomicU64,
}

impl Latency {
    pub(crate) fn record(&self, took: Duration) {
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
    /// Time after which another member is asked as well.
    pub(crate) fn hedge_after(&self) -> Duration {
        let mean = self.mean_us.load(Ordering::Relaxed);
        if mean == 0 {
            return HEDGE_START;
        }
        let micros = mean.saturating_add(4 * self.deviation_us.load(Ordering::Relaxed));
        Duration::from_micros(micros).clamp(HEDGE_MIN, HEDGE_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_follows_what_was_seen_within_its_bounds() {
        let latency = Latency::default();
        assert_eq!(latency.hedge_after(), HEDGE_START);
        for _ in 0..100 {
            latency.record(Duration::from_millis(1));
        }
        assert_eq!(latency.hedge_after(), HEDGE_MIN);
        for _ in 0..100 {
            latency.record(Duration::from_millis(80));
        }
        let delay = latency.hedge_after();
        assert!(delay > Duration::from_millis(70) && delay < Duration::from_millis(200), "{delay:?}");
        latency.record(Duration::from_secs(100));
        assert_eq!(latency.hedge_after(), HEDGE_MAX);
    }
}
