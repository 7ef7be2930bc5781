//! [`Lease`]: until when a holder may acknowledge anything.
//!
//! The session lives for the lease behind the last renewal that servers got. The holder counts from when it *sent* the
//! last one that was answered, which is earlier, and stops at three quarters: clocks may run at different rates, and an
//! answer that is on its way to a program is not called back. So whoever is given the directory when the session has
//! ended finds nothing acknowledged behind that.

use std::time::Duration;

use cairn_types::Time;

/// See the module.
#[derive(Debug, Clone, Copy)]
pub struct Lease {
    /// When the last renewal was sent that was answered.
    sent: Time,
    length: Duration,
}

impl Lease {
    /// A session whose last answered renewal was sent at that time.
    pub const fn new(sent: Time, length: Duration) -> Self {
        Self { sent, length }
    }

    /// A renewal that was sent at that time was answered. Answers may come in any order.
    pub fn renewed(&mut self, sent: Time) {
        self.sent = self.sent.max(sent);
    }

    /// From then on nothing is acknowledged.
    pub fn good_until(&self) -> Time {
        self.sent + self.length / 4 * 3
    }

    /// Whether something may be acknowledged.
    pub fn is_good(&self, now: Time) -> bool {
        now < self.good_until()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A late answer to an earlier renewal would shorten the lease, or one be counted from its answer.
    #[test]
    fn counts_from_when_the_latest_answered_renewal_was_sent() {
        let mut lease = Lease::new(Time(0), Duration::from_nanos(80));
        assert!(lease.is_good(Time(59)));
        assert!(!lease.is_good(Time(60)));
        lease.renewed(Time(40));
        lease.renewed(Time(20));
        assert_eq!(lease.good_until(), Time(100));
    }
}
