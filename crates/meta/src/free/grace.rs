//! [`Grace`]: which free records are old enough, from what the leader saw when. Records carry no time; ids ascend.

use std::collections::VecDeque;
use std::time::Duration;

use cairn_types::Time;

/// Observations kept; more frequent ones are merged into the newest.
const MARKS_MAX: usize = 256;

/// What was the newest record when.
#[derive(Default)]
pub(crate) struct Grace {
    /// Ascending in both. The newest record that is surely older than the time.
    marks: VecDeque<(Time, u64)>,
    /// Up to here the grace time is over.
    settled: u64,
}

impl Grace {
    /// The newest record seen so far.
    pub(crate) fn newest(&self) -> u64 {
        self.marks.back().map_or(self.settled, |(_, id)| *id)
    }

    /// Notes that `newest` exists at `now` and tells up to which record the grace time is over.
    pub(crate) fn settle(&mut self, newest: u64, now: Time, grace: Duration) -> u64 {
        if newest > self.newest() {
            if self.marks.len() >= MARKS_MAX {
                // Later than true: the records before wait a little longer.
                self.marks.pop_back();
            }
            self.marks.push_back((now, newest));
        }
        while let Some((seen, id)) = self.marks.front().copied() {
            if now.since(seen) < grace {
                break;
            }
            self.settled = id;
            self.marks.pop_front();
        }
        self.settled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(5);
    const fn at(seconds: u64) -> Time {
        Time(seconds * 1_000_000_000)
    }

    /// A reader with an extent map of a moment ago would find its bytes gone, or space would never come back.
    #[test]
    fn records_settle_after_the_grace_time() {
        let mut grace = Grace::default();
        assert_eq!(grace.settle(10, at(100), GRACE), 0);
        assert_eq!(grace.settle(20, at(103), GRACE), 0);
        assert_eq!(grace.settle(20, at(105), GRACE), 10);
        assert_eq!(grace.newest(), 20);
        assert_eq!(grace.settle(20, at(108), GRACE), 20);
        assert_eq!(grace.settle(20, at(109), GRACE), 20);
        assert_eq!(grace.settle(21, at(200), Duration::ZERO), 21);
    }

    /// Memory would grow with the rate of deletes, or a record would settle too early.
    #[test]
    fn memory_is_bounded_and_errs_to_the_late_side() {
        let mut grace = Grace::default();
        for step in 0..10_000u64 {
            let now = Time(step * 1_000_000);
            let settled = grace.settle(step + 1, now, GRACE);
            assert!(settled <= (step + 1).saturating_sub(5000), "{settled} at {step}");
            assert!(grace.marks.len() <= MARKS_MAX);
        }
        assert_eq!(grace.settle(10_000, at(60), GRACE), 10_000);
    }
}
