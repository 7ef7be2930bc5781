//! The pace of repair: how fast members that were put in the place of others are filled, so many bytes a second on each
//! disk and on the node. What a member missed while it was away is copied as fast as it goes.
//!
//! Bytes are booked a chunk at a time, before the copy takes one of the node's places for copies: who waits here holds
//! up nobody. Beside clients the parts of a chunk come evenly, as long as there are other places. Invariant: over any
//! time, no more is begun than the rates allow plus one chunk; a rate counts from the moment in which it is told, also
//! for what was booked before. Rates come from the manager (`repair_rate_per_disk`; this node's share of
//! `repair_rate`); until then, and with 0, there are none. While clients read and write much on the node, it is a third
//! of these for what is copied, and less for what is made of several others: so that disks have as much to do for both.
//! Not so for groups that the next loss would make unreadable.

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

/// What is to be written to a member's disk.
#[derive(Clone, Copy, Default)]
pub(super) struct Fill {
    pub(super) bytes: u64,
    /// Of how many others each byte is made.
    pub(super) sources: u64,
    /// The group would be unreadable after the next loss.
    pub(super) urgent: bool,
}

/// When something was booked last, and how much.
#[derive(Clone, Copy, Default)]
struct Booked {
    at: Time,
    fill: Fill,
}

impl Booked {
    /// When that is done at a rate of now; beside much of clients or not.
    fn until(self, rate: &AtomicU64, beside: bool) -> Time {
        let Fill { bytes, sources, .. } = self.fill;
        // A copy is read once and written once; what is made of k others costs the disks of the group k + 1 times its
        // bytes.
        let bytes = if beside { bytes * BESIDE_CLIENTS * (sources + 1) / 2 } else { bytes };
        match rate.load(Ordering::Relaxed) {
            0 => self.at,
            rate => self.at + Duration::from_secs_f64(bytes as f64 / rate as f64),
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
    fn book(&self, disk: DiskId, fill: Fill, now: Time) -> Result<(), Duration> {
        let mut due = self.due.lock();
        let much = due.look(self.clients.load(Ordering::Relaxed), now);
        let beside = much && !fill.urgent;
        let of_disk = due.disks.get(&disk).copied().unwrap_or_default();
        let latest = of_disk.until(&self.per_disk, beside).max(due.node.until(&self.node, beside));
        if latest > now {
            return Err(latest.since(now));
        }
        due.disks.insert(disk, Booked { at: now, fill });
        due.node = Booked { at: now, fill };
        Ok(())
    }

    /// How long a part of what was booked may take, so that all of it comes evenly beside clients; else it may come at
    /// once.
    fn time_for(&self, fill: Fill, now: Time) -> Duration {
        let beside = self.due.lock().look(self.clients.load(Ordering::Relaxed), now) && !fill.urgent;
        let part = Booked { at: now, fill };
        let until = |rate| if beside { part.until(rate, true) } else { now };
        until(&self.per_disk).max(until(&self.node)).since(now)
    }
}

impl Fill {
    fn of(member: &Member, bytes: u64, sources: usize) -> Self {
        let urgent = fence::serving(&member.pg).count() <= member.pg.scheme.read_minimum();
        Self { bytes, sources: sources as u64, urgent }
    }
}

impl Inner {
    /// Waits until so many bytes, each made of those of so many others, may be written to a member; a member that only
    /// missed something does not wait.
    pub(super) async fn keep_pace(self: &Arc<Self>, member: &Member, bytes: u64, sources: usize) {
        let fill = Fill::of(member, bytes, sources);
        while member.runtime.state.lock().filling && self.is_current(member) {
            match self.pace.book(member.disk, fill, self.clock.now()) {
                Ok(()) => return,
                Err(wait) => tokio::time::sleep(wait.min(NAP)).await,
            }
        }
    }

    /// After a part of that, which was begun at a time: a chunk that comes as fast as it goes, and then none for
    /// seconds, takes all of the disks from clients for a moment. Nobody who waits for a place for copies waits for
    /// this.
    pub(super) async fn rest(&self, member: &Member, bytes: usize, sources: usize, begun: Time) {
        if self.copies.available_permits() == 0 || !member.runtime.state.lock().filling {
            return;
        }
        let now = self.clock.now();
        let time = self.pace.time_for(Fill::of(member, bytes as u64, sources), now);
        let rest = time.saturating_sub(now.since(begun));
        if !rest.is_zero() {
            tokio::time::sleep(rest.min(NAP)).await;
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
        let fill = Fill { bytes: 10 << 20, sources: 1, urgent: false };
        let book = |disk: u32, ms: u64| pace.book(DiskId(disk), fill, at(ms));
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
        let fill = Fill { bytes: 64 << 20, sources: 1, urgent: false };
        let book = |ms: u64| pace.book(DiskId(1), fill, Time(ms * 1_000_000));
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
        let fill = |urgent| Fill { bytes: 10 << 20, sources: 1, urgent };
        let book = |urgent, ms: u64| pace.book(DiskId(1), fill(urgent), at(ms));
        pace.clients_moved(100 << 20);
        assert_eq!(book(false, 1000), Ok(()));
        assert_eq!(book(false, 1000), Err(Duration::from_millis(300)), "a third");
        assert_eq!(pace.time_for(fill(false), at(1000)), Duration::from_millis(300), "evenly");
        assert_eq!(pace.time_for(fill(true), at(1000)), Duration::ZERO);
        let made = Fill { sources: 3, ..fill(false) };
        assert_eq!(pace.book(DiskId(2), made, at(1000)), Ok(()));
        let next = pace.book(DiskId(2), made, at(1000));
        assert_eq!(next, Err(Duration::from_millis(600)), "three are read for each byte that is written");
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
