//! [`LogLimit`]: lets one line a period through, so that a hostile peer cannot fill the log.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// At most one line of a kind in this time.
const PERIOD: Duration = Duration::from_secs(10);

/// One kind of log line.
#[derive(Default)]
pub(crate) struct LogLimit {
    state: Mutex<(Option<Instant>, u64)>,
}

impl LogLimit {
    /// `Some(n)`: log it now and say that `n` lines were left out before. `None`: leave it out.
    pub(crate) fn pass(&self) -> Option<u64> {
        let mut state = self.state.lock();
        let now = Instant::now();
        if state.0.is_some_and(|last| now.duration_since(last) < PERIOD) {
            state.1 += 1;
            return None;
        }
        state.0 = Some(now);
        Some(std::mem::take(&mut state.1))
    }
}
