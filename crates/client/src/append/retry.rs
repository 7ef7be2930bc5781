//! How long bytes are sent again, in chunk after chunk, before their writer is told that it does not work: for the
//! cluster's patience, with growing pauses.
use crate::net::NetError;
use cairn_types::{ErrorCode, Time};
use std::time::Duration;

const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Failures of one segment or row group so far.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Retry {
    first: Option<Time>,
    times: u32,
    /// It was refused as malformed: no other chunk takes it either.
    hopeless: bool,
}

impl Retry {
    /// The chunk that it was in failed.
    pub(crate) fn failed(&mut self, now: Time, error: &NetError) {
        self.first.get_or_insert(now);
        self.times += 1;
        self.hopeless |= matches!(error, NetError::Remote(error) if error.code == ErrorCode::BadRequest);
    }
    /// It has failed for longer than the patience.
    pub(crate) fn is_over(&self, now: Time, patience: Duration) -> bool {
        self.hopeless || self.first.is_some_and(|first| now.since(first) > patience)
    }
    /// Before the next chunk is opened for it: nothing after the first failure, which is that of one member.
    pub(crate) fn pause(&self) -> Duration {
        match self.times {
            0 | 1 => Duration::ZERO,
            times => (PAUSE_MIN * (1 << (times - 2).min(10))).min(PAUSE_MAX),
        }
    }
    /// For the text of an error.
    pub(crate) fn times(&self) -> u32 {
        self.times
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_wire::error::WireError;

    /// Writers would give up in a moment, or hammer a cluster that needs one.
    #[test]
    fn time_counts_and_pauses_grow() {
        let mut retry = Retry::default();
        assert_eq!(retry.pause(), Duration::ZERO);
        let start = Time::default();
        let away = NetError::NotSent("away".into());
        retry.failed(start, &away);
        assert_eq!(retry.pause(), Duration::ZERO);
        (0..20).for_each(|_| retry.failed(start, &away));
        assert_eq!(retry.pause(), PAUSE_MAX);
        let patience = Duration::from_secs(30);
        assert!(!retry.is_over(start + patience, patience));
        assert!(retry.is_over(start + patience + Duration::from_millis(1), patience));
        let mut malformed = Retry::default();
        malformed.failed(start, &NetError::Remote(WireError::new(ErrorCode::BadRequest, "no")));
        assert!(malformed.is_over(start, patience));
    }
}
