//! Reports about members that answer probes: who is slow although alive.
//!
//! Rule: when at least `slow_reports` reports by at least two reporters (hosts of clients, nodes) about one disk came
//! within `slow_window`, the disk is slow and is removed from the group that the last report names (never if it is the
//! last serving member; the state machine sees to that). Memory of the leader only; bounded by [`DISKS_MAX`] disks and
//! [`REPORTS_MAX`] reports each.
use cairn_types::{DiskId, Time};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Disks about which reports are kept.
pub const DISKS_MAX: usize = 10_000;
/// Reports kept about one disk.
pub const REPORTS_MAX: usize = 1_000;

/// Counts reports.
#[derive(Clone, Default, Debug)]
pub struct Slowness {
    reports: BTreeMap<DiskId, VecDeque<(Time, u64)>>,
}

impl Slowness {
    /// Counts a report by `reporter`; true if the disk counts as slow now (and its count starts anew).
    pub fn report(&mut self, disk: DiskId, reporter: u64, now: Time, window: Duration, limit: u64) -> bool {
        if self.reports.len() >= DISKS_MAX && !self.reports.contains_key(&disk) {
            self.reports.retain(|_, reports| reports.back().is_some_and(|(at, _)| now.since(*at) <= window));
            if self.reports.len() >= DISKS_MAX {
                return false;
            }
        }
        let reports = self.reports.entry(disk).or_default();
        while reports.front().is_some_and(|(at, _)| now.since(*at) > window) || reports.len() >= REPORTS_MAX {
            reports.pop_front();
        }
        reports.push_back((now, reporter));
        let slow = reports.len() as u64 >= limit && reports.iter().any(|(_, other)| *other != reporter);
        if slow {
            self.reports.remove(&disk);
        }
        slow
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(10);

    fn at(seconds: u64) -> Time {
        Time(seconds * 1_000_000_000)
    }

    /// A disk that stalls many writers would stay in the chain forever, or one confused client could remove it.
    #[test]
    fn several_reporters_within_the_window() {
        let mut slowness = Slowness::default();
        let d = DiskId(1);
        for second in 0..20 {
            assert!(!slowness.report(d, 7, at(second), WINDOW, 3), "one reporter is not enough");
        }
        assert!(slowness.report(d, 8, at(20), WINDOW, 3));
        assert!(!slowness.report(d, 7, at(21), WINDOW, 3), "the count starts anew");
        assert!(!slowness.report(d, 8, at(40), WINDOW, 3), "old reports do not count");
        assert!(!slowness.report(d, 7, at(41), WINDOW, 3));
        assert!(slowness.report(d, 8, at(42), WINDOW, 3));
    }
}
