//! Disks whose failure is being looked into by the manager, and those that it found failed in one group: new chunks are
//! opened without them, in groups too whose epochs are still to be raised. All streams of a client share what they
//! know.
//! Not here: who is reported (`look`).
pub(crate) mod look;

use cairn_types::{SessionId, Time};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;

/// A suspicion that nobody settles ends after this.
const SUSPECT_MAX: Duration = Duration::from_secs(3);

/// Other groups of a failed disk are left out so long, if there are any without it.
const FAILED_FOR: Duration = Duration::from_secs(30);

/// Disks with the time since when, and how many reports about them are under way. Bounded by the disks of the cluster.
#[derive(Default)]
pub(crate) struct Suspects {
    reported: Mutex<BTreeMap<u32, (Time, u32)>>,
    failed: Mutex<BTreeMap<u32, Time>>,
}

impl Suspects {
    /// A report about the disk goes out.
    pub(crate) fn begin(&self, disk: u32, now: Time) {
        let mut disks = self.reported.lock();
        let entry = disks.entry(disk).or_insert((now, 0));
        entry.1 += 1;
    }
    /// The manager decided.
    pub(crate) fn end(&self, disk: u32) {
        let mut disks = self.reported.lock();
        if let Some(entry) = disks.get_mut(&disk) {
            entry.1 = entry.1.saturating_sub(1);
            if entry.1 == 0 {
                disks.remove(&disk);
            }
        }
    }
    /// The manager took the disk out of a group.
    pub(crate) fn fail(&self, disk: u32, now: Time) {
        self.failed.lock().insert(disk, now);
    }
    pub(crate) fn has_failed(&self, disk: u32, now: Time) -> bool {
        self.failed.lock().get(&disk).is_some_and(|since| now.since(*since) < FAILED_FOR)
    }
    pub(crate) fn is_empty(&self, now: Time) -> bool {
        let mut disks = self.reported.lock();
        disks.retain(|_, (since, _)| now.since(*since) < SUSPECT_MAX);
        disks.is_empty()
    }
    pub(crate) fn contains(&self, disk: u32) -> bool {
        self.reported.lock().contains_key(&disk)
    }
}

/// A placement group as a writer saw it when something went wrong.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub session: SessionId,
    pub pg: u32,
    pub epoch: u64,
}

/// What came of a look at members.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Look {
    /// The group went on without some of them.
    pub moved: bool,
    /// One of their disks may turn out to stand still: worth another look after so long.
    pub again: Option<Duration>,
}

impl Look {
    fn and(self, other: Look) -> Look {
        let again = [self.again, other.again].into_iter().flatten().min();
        Look { moved: self.moved || other.moved, again }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A writer would open chunk after chunk on a member that is just being marked down.
    #[test]
    fn a_suspicion_lasts_until_all_reports_are_settled_or_it_is_old() {
        let suspects = Suspects::default();
        let now = Time(1_000_000_000);
        suspects.begin(7, now);
        suspects.begin(7, now);
        suspects.end(7);
        assert!(suspects.contains(7) && !suspects.is_empty(now));
        suspects.end(7);
        assert!(suspects.is_empty(now));
        suspects.begin(8, now);
        assert!(suspects.is_empty(now + SUSPECT_MAX) && !suspects.contains(8));
        suspects.fail(9, now);
        assert!(suspects.has_failed(9, now) && !suspects.has_failed(9, now + FAILED_FOR) && suspects.is_empty(now));
    }
}
