//! [`LogClock`]: the time that a leader writes into its entries.
//!
//! Invariants: it never goes back, over changes of leader too, and within one leadership it advances no faster than
//! that leader's monotonic clock. When the calendar lies behind, it runs at half speed until the calendar has caught
//! up, and no longer.

use cairn_types::{Time, WallTime};

/// Gives logged times.
#[derive(Debug, Clone, Copy, Default)]
pub struct LogClock {
    last: WallTime,
    /// Monotonic reading of the last time given in this leadership.
    anchor: Option<Time>,
}

impl LogClock {
    /// A logged time was applied (or restored): later ones are not earlier.
    pub fn observe(&mut self, time: WallTime) {
        self.last = self.last.max(time);
    }

    /// Leadership began or ended: the next time may jump forward to the calendar.
    pub fn new_leadership(&mut self) {
        self.anchor = None;
    }

    /// The newest time known.
    pub fn last(&self) -> WallTime {
        self.last
    }

    /// A time was given in this leadership: the next one goes on from it.
    pub fn is_running(&self) -> bool {
        self.anchor.is_some()
    }

    /// The time for a new entry.
    pub fn next(&mut self, now: Time, wall: WallTime) -> WallTime {
        let time = match self.anchor {
            None => wall,
            Some(anchor) => {
                let passed = u64::try_from(now.since(anchor).as_nanos()).unwrap_or(u64::MAX);
                let ahead = WallTime(self.last.0.saturating_add(passed));
                // Both clocks are read one after the other: the calendar may lie behind by that, and is followed.
                wall.max(WallTime(self.last.0.saturating_add(passed / 2))).min(ahead)
            }
        };
        self.anchor = Some(now);
        self.last = self.last.max(time);
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sessions would expire early if logged time jumped with the calendar, and never if it stood still.
    #[test]
    fn advances_with_the_monotonic_clock_and_never_goes_back() {
        let mut clock = LogClock::default();
        assert_eq!(clock.next(Time(100), WallTime(1_000)), WallTime(1_000), "a new leader takes the calendar");
        assert_eq!(clock.next(Time(110), WallTime(9_000)), WallTime(1_010), "a jump forward is not followed");
        assert_eq!(clock.next(Time(120), WallTime(0)), WallTime(1_015), "a jump back makes it run slower");
        clock.new_leadership();
        assert_eq!(clock.next(Time(130), WallTime(500)), WallTime(1_015), "an old calendar does not turn it back");
        clock.observe(WallTime(2_000));
        assert!(clock.next(Time(140), WallTime(500)) >= WallTime(2_000));
        clock.new_leadership();
        assert_eq!(clock.next(Time(5), WallTime(9_000)), WallTime(9_000));
    }

    /// Times of files would lie in the past, by half of the time for which nothing was logged, until another member
    /// leads.
    #[test]
    fn a_calendar_that_lies_behind_a_little_is_followed() {
        let mut clock = LogClock::default();
        assert_eq!(clock.next(Time(1_000), WallTime(51_000)), WallTime(51_000));
        assert_eq!(clock.next(Time(9_000), WallTime(58_990)), WallTime(58_990));
        assert_eq!(clock.next(Time(9_500), WallTime(59_500)), WallTime(59_490), "no faster than the monotonic clock");
        assert_eq!(clock.next(Time(9_600), WallTime(59_530)), WallTime(59_540), "at half speed");
        assert_eq!(clock.next(Time(9_700), WallTime(59_630)), WallTime(59_630));
    }
}
