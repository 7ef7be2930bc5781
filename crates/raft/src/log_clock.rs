//! [`LogClock`]: the time that a leader writes into its entries.
//!
//! Invariants: it never goes back, over changes of leader too, and within one leadership it advances no faster than
//! that leader's monotonic clock. When the calendar lies behind, it runs at half speed until the calendar has caught
//! up.

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

    /// The time for a new entry.
    pub fn next(&mut self, now: Time, wall: WallTime) -> WallTime {
        let time = match self.anchor {
            None => wall,
            Some(anchor) => {
                let passed = u64::try_from(now.since(anchor).as_nanos()).unwrap_or(u64::MAX);
                let ahead = WallTime(self.last.0.saturating_add(passed));
                if wall >= ahead { ahead } else { WallTime(self.last.0.saturating_add(passed / 2)).min(ahead) }
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
}
