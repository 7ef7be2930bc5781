//! Disks whose failure is being looked into by the manager: new chunks are opened without them meanwhile.
use cairn_types::Time;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;

/// A suspicion that nobody settles ends after this.
const SUSPECT_MAX: Duration = Duration::from_secs(3);

/// Disks with the time since when, and how many reports about them are under way. Bounded by the disks of the cluster.
#[derive(Default)]
pub(crate) struct Suspects(Mutex<BTreeMap<u32, (Time, u32)>>);

impl Suspects {
    /// A report about the disk goes out.
    pub(crate) fn begin(&self, disk: u32, now: Time) {
        let mut disks = self.0.lock();
        let entry = disks.entry(disk).or_insert((now, 0));
        entry.1 += 1;
    }
    /// The manager decided.
    pub(crate) fn end(&self, disk: u32) {
        let mut disks = self.0.lock();
        if let Some(entry) = disks.get_mut(&disk) {
            entry.1 = entry.1.saturating_sub(1);
            if entry.1 == 0 {
                disks.remove(&disk);
            }
        }
    }
    pub(crate) fn is_empty(&self, now: Time) -> bool {
        let mut disks = self.0.lock();
        disks.retain(|_, (since, _)| now.since(*since) < SUSPECT_MAX);
        disks.is_empty()
    }
    pub(crate) fn contains(&self, disk: u32) -> bool {
        self.0.lock().contains_key(&disk)
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
    }
}
