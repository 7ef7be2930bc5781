//! The pace of repair: how fast members that were put in the place of others are filled, so many bytes a second on each disk
//! and on the node. What a member missed while it was away is copied as fast as it goes.
//!
//! Bytes are booked a chunk at a time, before the copy takes one of the node's places for copies: who waits here holds up
//! nobody. Invariant: over any time, no more is begun than the rates allow plus one chunk; a rate counts from the moment in which it is
//! told, also for what was booked before. Rates come from the manager
//! (`repair_rate_per_disk`; this node's share of `repair_rate`); until then, and with 0, there are none. While clients read and
//! write much on the node, it is a third of these, but for groups that the next loss would make unreadable.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cairn_chunk_core::fence;
use cairn_node_agent::Settings;
use cairn_types::{DiskId, Time};
use parking_lot::Mutex;

use super::Inner;
use super::member::Member;

/// Before looking again whether the copy is still wanted, and how fast.
const NAP: Duration = Duration::from_millis(500);
/// Time over which it is seen how much clients do.
const LOOK: Duration = Duration::from_millis(250);
/// Bytes a second of clients that are much.
const MUCH: u64 = 16 << 20;
/// Part of the rates that is left for copies beside much of clients.
const BESIDE_CLIENTS: u64 = 3;

/// Rates, and when they allow the next bytes.
#[derive(Default)]
pub(super) struct Pace {
    per_disk: AtomicU64,
    node: AtomicU64,
    /// Bytes that clients read and wrote here.
    clients: AtomicU64,
    due: Mutex<Due>,
}

/// When something was booked last, and how much.
#[derive(Clone, Copy, Default)]
struct Booked {
    at: Time,
    bytes: u64,
}

impl Booked {
    /// When that is done at a rate of now, of which one in so many bytes is for it.
    fn until(self, rate: &AtomicU64, times: u64) -> Time {
        match rate.load(Ordering::Relaxed) {
            0 => self.at,
            rate => self.at + Duration::from_secs_f64((self.bytes * times) as f64 / rate as f64),
        }
    }
}

#[derive(Default)]
struct Due {
    disks: BTreeMap<DiskId, Booked>,
    node: Booked,
    /// When clients were looked at, what they had read and written by then, and whether that was much.
    looked: Time,
    clients: u64,
    much: bool,
}

impl Due {
    fn look(&mut self, clients: u64, now: Time) -> bool {
        let time = now.since(self.looked);
        if time >= LOOK {
            self.much = (clients - self.clients) as f64 >= MUCH as f64 * time.as_secs_f64();
            (self.looked, self.clients) = (now, clients);
        }
        self.much
    }
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

    /// Clients read or wrote so many bytes.
    pub(super) fn clients_moved(&self, bytes: u64) {
        self.clients.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Books bytes for a disk if they may be copied now; else how long it takes until they may.
    fn book(&self, disk: DiskId, bytes: u64, urgent: bool, now: Time) -> Result<(), Duration> {
        let mut due = self.due.lock();
        let much = due.look(self.clients.load(Ordering::Relaxed), now);
        let times = if much && !urgent { BESIDE_CLIENTS } else { 1 };
        let of_disk = due.disks.get(&disk).copied().unwrap_or_default();
        let latest = of_disk.until(&self.per_disk, times).max(due.node.until(&self.node, times));
        if latest > now {
            return Err(latest.since(now));
        }
        due.disks.insert(disk, Booked { at: now, bytes });
        due.node = Booked { at: now, bytes };
        Ok(())
    }
}

impl Inner {
    /// Waits until so many bytes may be copied to a member; a member that only missed something does not wait.
    pub(super) async fn keep_pace(self: &Arc<Self>, member: &Member, bytes: u64) {
        let urgent = fence::serving(&member.pg).count() <= member.pg.scheme.read_minimum();
        while member.runtime.state.lock().filling && self.is_current(member) {
            match self.pace.book(member.disk, bytes, urgent, self.clock.now()) {
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
        let book = |disk: u32, ms: u64| pace.book(DiskId(disk), 10 << 20, false, at(ms));
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
        assert_eq!(book(3, 2000), Err(Duration::from_millis(100)), "for what was booked before, too");
        assert_eq!(book(3, 2100), Ok(()));
        assert_eq!(book(4, 2500), Err(Duration::from_millis(600)), "all disks of the node together");
        set("repair_rate", "0");
        assert_eq!(book(4, 3000), Ok(()));
        assert_eq!(book(5, 3000), Ok(()), "at once");
    }

    /// Repair that was throttled to nearly nothing would go on so for hours after the throttle is gone.
    #[test]
    fn a_rate_counts_at_once() {
        let pace = Pace::default();
        let book = |ms: u64| pace.book(DiskId(1), 64 << 20, false, Time(ms * 1_000_000));
        pace.per_disk.store(1024, Ordering::Relaxed);
        assert_eq!(book(1000), Ok(()));
        assert_eq!(book(2000), Err(Duration::from_secs(65_536 - 1)));
        pace.per_disk.store(64 << 20, Ordering::Relaxed);
        assert_eq!(book(1500), Err(Duration::from_millis(500)), "it takes a second now");
        assert_eq!(book(2000), Ok(()));
        pace.per_disk.store(0, Ordering::Relaxed);
        assert_eq!(book(2000), Ok(()), "no limit");
        pace.node.store(1024, Ordering::Relaxed);
        assert!(book(2001).is_err_and(|wait| wait > Duration::from_secs(60_000)));
    }

    /// Repair would slow clients down, or a group that stands at its last member would wait for them.
    #[test]
    fn clients_go_first_unless_it_is_urgent() {
        let pace = Pace::default();
        pace.per_disk.store(100 << 20, Ordering::Relaxed);
        let at = |ms: u64| Time(ms * 1_000_000);
        let book = |urgent, ms: u64| pace.book(DiskId(1), 10 << 20, urgent, at(ms));
        pace.clients_moved(100 << 20);
        assert_eq!(book(false, 1000), Ok(()));
        assert_eq!(book(false, 1000), Err(Duration::from_millis(300)), "a third");
        assert_eq!(book(true, 1300), Ok(()));
        assert_eq!(book(true, 1300), Err(Duration::from_millis(100)), "all of it");
        // Nobody did anything since.
        assert_eq!(book(false, 2000), Ok(()));
        assert_eq!(book(false, 2000), Err(Duration::from_millis(100)));
        pace.clients_moved(3 << 20);
        assert_eq!(book(false, 2250), Ok(()));
        assert_eq!(book(false, 2250), Err(Duration::from_millis(100)), "it is not much");
    }
}
