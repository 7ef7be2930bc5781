//! The pace of repair: how fast members that were put in the place of others are filled, so many bytes a second on each disk
//! and on the node. What a member missed while it was away is copied as fast as it goes.
//!
//! Bytes are booked a chunk at a time, before the copy takes one of the node's places for copies: who waits here holds up
//! nobody. Invariant: over any time, no more is begun than the rates allow plus one chunk. Rates come from the manager
//! (`repair_rate_per_disk`; this node's share of `repair_rate`); until then, and with 0, there are none.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cairn_node_agent::Settings;
use cairn_types::{DiskId, Time};
use parking_lot::Mutex;

use super::Inner;
use super::member::Member;

/// Before looking again whether the copy is still wanted, and how fast.
const NAP: Duration = Duration::from_millis(500);

/// Rates, and when they allow the next bytes.
#[derive(Default)]
pub(super) struct Pace {
    per_disk: AtomicU64,
    node: AtomicU64,
    due: Mutex<Due>,
}

#[derive(Default)]
struct Due {
    disks: BTreeMap<DiskId, Time>,
    node: Time,
}

impl Pace {
    /// Takes over what the manager says.
    pub(super) fn set(&self, settings: &Settings) {
        for (key, rate) in [("repair_rate_per_disk", &self.per_disk), ("repair_rate", &self.node)] {
            if let Some(told) = settings.number(key) {
                rate.store(told, Ordering::Relaxed);
            }
        }
    }

    /// Books bytes for a disk if they may be copied now; else how long it takes until they may.
    fn book(&self, disk: DiskId, bytes: u64, now: Time) -> Result<(), Duration> {
        let mut due = self.due.lock();
        let of_disk = due.disks.get(&disk).copied().unwrap_or_default();
        let latest = of_disk.max(due.node);
        if latest > now {
            return Err(latest.since(now));
        }
        let takes = |rate: &AtomicU64| match rate.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            rate => Duration::from_secs_f64(bytes as f64 / rate as f64),
        };
        due.disks.insert(disk, now + takes(&self.per_disk));
        due.node = now + takes(&self.node);
        Ok(())
    }
}

impl Inner {
    /// Waits until so many bytes may be copied to a member; a member that only missed something does not wait.
    pub(super) async fn keep_pace(self: &Arc<Self>, member: &Member, bytes: u64) {
        while member.runtime.state.lock().filling && self.is_current(member) {
            match self.pace.book(member.disk, bytes, self.clock.now()) {
                Ok(()) => return,
                Err(wait) => tokio::time::sleep(wait.min(NAP)).await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_wire::manager::ConfigItem;

    /// Repair would take all of the disks from those who work, or stand still.
    #[test]
    fn bytes_are_booked_at_the_rate() {
        let pace = Pace::default();
        let at = |ms: u64| Time(ms * 1_000_000);
        let book = |disk: u32, ms: u64| pace.book(DiskId(disk), 10 << 20, at(ms));
        assert!((0..100).all(|_| book(1, 0).is_ok()), "without a rate nobody waits");
        let set = |key: &str, value: &str| {
            let item = ConfigItem { key: key.into(), value: value.into(), ..ConfigItem::default() };
            pace.set(&Settings::new(&[item]));
        };
        set("repair_rate_per_disk", "100m");
        assert_eq!(book(1, 1000), Ok(()));
        assert_eq!(book(1, 1000), Err(Duration::from_millis(100)));
        assert_eq!(book(2, 1000), Ok(()), "another disk");
        assert_eq!(book(1, 1100), Ok(()));
        set("repair_rate", "10m");
        assert_eq!(book(3, 2000), Ok(()));
        assert_eq!(book(4, 2400), Err(Duration::from_millis(600)), "all disks of the node together");
        set("repair_rate", "0");
        assert_eq!(book(4, 3000), Ok(()));
        assert_eq!(book(5, 3000), Ok(()));
    }
}
