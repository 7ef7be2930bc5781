//! [`Progress`]: whether a payload comes fast enough to keep the buffer that it is received into.
//!
//! A sender that stops in the middle of a payload holds up to 4 MiB that others may wait for. So a payload has to go
//! on: in each span of time a part of it has to come, and the span is shorter while somebody waits for memory.

use std::time::{Duration, Instant};

/// What has to come within one span; the rest of a payload if that is less.
pub(crate) const PROGRESS_BYTES: usize = 512 << 10;

/// How far the payload that is being received was, and when.
#[derive(Default)]
pub(crate) struct Progress {
    since: Option<(u64, usize, Instant)>,
}

impl Progress {
    /// Of the frame with this number `received` bytes are here; `None`: no payload is being received.
    pub(crate) fn note(&mut self, payload: Option<(u64, usize)>, now: Instant) {
        self.since = match (payload, self.since) {
            (None, _) => None,
            (Some((frame, received)), Some((of, had, since)))
                if frame == of && received < had.saturating_add(PROGRESS_BYTES) =>
            {
                Some((of, had, since))
            }
            (Some((frame, received)), _) => Some((frame, received, now)),
        };
    }

    /// When the span is over.
    pub(crate) fn ends(&self, span: Duration) -> Option<Instant> {
        self.since.map(|(_, _, since)| since + span)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A payload that drips would hold its buffer, or one that flows would lose it.
    #[test]
    fn a_span_ends_unless_enough_comes() {
        let (begin, second) = (Instant::now(), Duration::from_secs(1));
        let mut progress = Progress::default();
        assert_eq!(progress.ends(second), None);
        progress.note(Some((7, 0)), begin);
        progress.note(Some((7, PROGRESS_BYTES - 1)), begin + second);
        assert_eq!(progress.ends(second), Some(begin + second), "drips do not count");
        progress.note(Some((7, PROGRESS_BYTES)), begin + second);
        assert_eq!(progress.ends(second), Some(begin + second * 2));
        progress.note(Some((8, 0)), begin + second * 5);
        assert_eq!(progress.ends(second), Some(begin + second * 6), "the next payload has a span of its own");
        progress.note(None, begin);
        assert_eq!(progress.ends(second), None);
    }
}
