//! How soon a dead worker is replaced, and when operations fail instead of waiting for one.
use std::time::Duration;

/// A worker that served so long did not die of its start.
const HEALTHY: Duration = Duration::from_secs(20);
/// So many quick deaths in a row and operations fail until a worker holds.
const DEATHS_MAX: u32 = 5;
const PAUSES_MS: [u64; 7] = [0, 100, 500, 1_000, 5_000, 15_000, 30_000];

#[derive(Clone, Debug, Default)]
pub struct Backoff {
    quick_deaths: u32,
}

impl Backoff {
    pub fn died_after(&mut self, served: Duration) {
        self.quick_deaths = if served >= HEALTHY { 1 } else { self.quick_deaths + 1 };
    }
    /// A replacement did not come up.
    pub fn failed(&mut self) {
        self.quick_deaths += 1;
    }
    pub fn pause(&self) -> Duration {
        let at = (self.quick_deaths.saturating_sub(1) as usize).min(PAUSES_MS.len() - 1);
        Duration::from_millis(PAUSES_MS[at])
    }
    pub fn is_hopeless(&self) -> bool {
        self.quick_deaths >= DEATHS_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A worker that dies of a request would be restarted at full speed for ever, with everybody waiting.
    #[test]
    fn quick_deaths_slow_down_and_then_fail() {
        let mut backoff = Backoff::default();
        backoff.died_after(Duration::from_secs(3600));
        assert_eq!(backoff.pause(), Duration::ZERO);
        for _ in 0..4 {
            assert!(!backoff.is_hopeless());
            backoff.died_after(Duration::from_secs(1));
        }
        assert!(backoff.is_hopeless() && backoff.pause() >= Duration::from_secs(5));
        backoff.died_after(HEALTHY);
        assert!(!backoff.is_hopeless());
    }
}
