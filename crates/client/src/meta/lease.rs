//! Leases under which this session overwrites files in place, as the client knows them.
//!
//! The partition ends a session of which it heard nothing for a lease time, and its leases with it. So a lease counts
//! as good for three quarters of that time from the sending of the last keep-alive that was answered: what was done and
//! looked at before then was done while nobody else could have it. Invariant: a lease that the partition wants back is
//! given back, also if nobody here knows of it any more (its grant was answered to a caller that was gone).
use super::session::Session;
use cairn_types::Time;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{Notify, watch};

/// Leases that were given back before their grant was known here.
const DISOWNED_MAX: usize = 1024;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Held,
    Wanted,
    Ended,
}

/// The right to overwrite blocks of a file in place.
pub(crate) struct Lease {
    pub(crate) session: Arc<Session>,
    pub(crate) partition: u32,
    pub(crate) inode: u64,
    pub(crate) number: u64,
    stage: watch::Sender<Stage>,
}

impl Lease {
    pub(crate) fn new(session: Arc<Session>, partition: u32, inode: u64, number: u64) -> Arc<Self> {
        Arc::new(Self { session, partition, inode, number, stage: watch::Sender::new(Stage::Held) })
    }
    /// Nobody else has it at this time.
    pub(crate) fn is_good(&self, now: Time) -> bool {
        !self.session.is_ended() && now < self.session.leases.good_until(self.partition)
    }
    /// Whoever has it is to give it back.
    pub(crate) fn want(&self) {
        self.move_to(Stage::Wanted);
    }
    /// It was given back, or is gone with its session.
    pub(crate) fn end(&self) {
        self.move_to(Stage::Ended);
    }
    fn move_to(&self, to: Stage) {
        self.stage.send_if_modified(|stage| {
            let moves = *stage != Stage::Ended && *stage != to;
            if moves {
                *stage = to;
            }
            moves
        });
    }
    /// Waits until it is wanted; false when it ended.
    pub(crate) async fn wanted(&self) -> bool {
        let mut stage = self.stage.subscribe();
        let reached = stage.wait_for(|stage| *stage != Stage::Held).await.map(|stage| *stage);
        // The sender lives in the lease itself.
        reached.is_ok_and(|stage| stage == Stage::Wanted)
    }
}

/// A lease of which nobody knows is being given back.
pub(crate) struct Giving {
    session: Arc<Session>,
    which: (u32, u64, u64),
}

impl Drop for Giving {
    fn drop(&mut self) {
        self.session.leases.table.lock().giving.remove(&self.which);
    }
}

/// Those of a session.
#[derive(Default)]
pub(crate) struct Leases {
    table: Mutex<Table>,
    taken: Notify,
}

#[derive(Default)]
struct Table {
    /// By partition and inode.
    held: BTreeMap<(u32, u64), Weak<Lease>>,
    /// Partition, inode, number.
    disowned: BTreeSet<(u32, u64, u64)>,
    /// The same, of those of which nobody knows and that are being given back.
    giving: BTreeSet<(u32, u64, u64)>,
    good_until: BTreeMap<u32, Time>,
    /// Partitions that gave delegations, and how many.
    led: BTreeMap<u32, usize>,
    /// Which of them they want back, as they said last.
    heard: BTreeMap<u32, Vec<u64>>,
}

impl Leases {
    /// A lease was granted. False if it was wanted, and given back, before that was known here.
    pub(crate) fn enter(&self, lease: &Arc<Lease>) -> bool {
        let mut table = self.table.lock();
        if table.disowned.remove(&(lease.partition, lease.inode, lease.number)) {
            return false;
        }
        table.held.insert((lease.partition, lease.inode), Arc::downgrade(lease));
        drop(table);
        self.taken.notify_one();
        true
    }
    /// The partition wants a lease back. True if whoever has it was told; otherwise it is to be given back now.
    pub(crate) fn wanted(&self, partition: u32, inode: u64, number: u64) -> bool {
        let mut table = self.table.lock();
        let owner = table.held.get(&(partition, inode)).and_then(Weak::upgrade).filter(|lease| lease.number == number);
        match owner {
            Some(lease) => {
                lease.want();
                true
            }
            None => {
                table.disowned.insert((partition, inode, number));
                if table.disowned.len() > DISOWNED_MAX {
                    table.disowned.pop_first();
                }
                false
            }
        }
    }
    /// Somebody gives a lease of this session back of which nobody knows; `None` if another one does already.
    pub(crate) fn begin_giving(
        &self,
        session: &Arc<Session>,
        partition: u32,
        inode: u64,
        number: u64,
    ) -> Option<Giving> {
        let which = (partition, inode, number);
        let new = self.table.lock().giving.insert(which);
        new.then(|| Giving { session: session.clone(), which })
    }
    /// A keep-alive that was sent then was answered.
    pub(crate) fn renewed(&self, partition: u32, sent: Time, lease: Duration) {
        let until = sent + lease * 3 / 4;
        let mut table = self.table.lock();
        let known = table.good_until.entry(partition).or_default();
        *known = until.max(*known);
    }
    fn good_until(&self, partition: u32) -> Time {
        self.table.lock().good_until.get(&partition).copied().unwrap_or_default()
    }
    /// The partition gave a delegation.
    pub(crate) fn leads(&self, partition: u32) {
        *self.table.lock().led.entry(partition).or_default() += 1;
        self.taken.notify_one();
    }
    /// It is over.
    pub(crate) fn leads_no_more(&self, partition: u32) {
        let mut table = self.table.lock();
        if let Some(count) = table.led.get_mut(&partition) {
            *count -= 1;
            if *count == 0 {
                table.led.remove(&partition);
            }
        }
    }
    /// Delegations that a partition wants back, as it said last.
    pub(crate) fn heard(&self, partition: u32) -> Vec<u64> {
        self.table.lock().heard.get(&partition).cloned().unwrap_or_default()
    }
    /// It says so of these. True if one of them is new.
    pub(crate) fn hear(&self, partition: u32, delegations: &[u64]) -> bool {
        let mut table = self.table.lock();
        let before = table.heard.remove(&partition).unwrap_or_default();
        if !delegations.is_empty() {
            table.heard.insert(partition, delegations.to_vec());
        }
        delegations.iter().any(|number| !before.contains(number))
    }
    /// Partitions that gave some, or delegations: there it is worth asking often whether one is wanted.
    pub(crate) fn partitions(&self) -> BTreeSet<u32> {
        let mut table = self.table.lock();
        table.held.retain(|_, lease| lease.strong_count() > 0);
        table.held.keys().map(|(partition, _)| *partition).chain(table.led.keys().copied()).collect()
    }
    /// Ends when the next lease is granted.
    pub(crate) async fn next_taken(&self) {
        self.taken.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_types::SessionId;

    const LEASE: Duration = Duration::from_secs(20);
    const fn at(seconds: u64) -> Time {
        Time(seconds * 1_000_000_000)
    }

    /// Blocks would be acknowledged that another client may have moved away from already.
    #[test]
    fn a_lease_is_good_while_nobody_else_can_have_it() {
        let session = Arc::new(Session::new(SessionId(1)));
        let lease = Lease::new(session.clone(), 1, 7, 3);
        assert!(!lease.is_good(at(0)), "nothing was heard yet");
        session.leases.renewed(1, at(100), LEASE);
        session.leases.renewed(1, at(90), LEASE);
        session.leases.renewed(2, at(500), LEASE);
        assert!(lease.is_good(at(114)) && !lease.is_good(at(115)));
        session.mark_ended();
        assert!(!lease.is_good(at(101)));
    }

    /// A file would be blocked for everybody else by a lease of which nobody knows.
    #[tokio::test]
    async fn what_is_wanted_is_told_or_disowned() {
        let session = Arc::new(Session::new(SessionId(1)));
        let leases = &session.leases;
        let lease = Lease::new(session.clone(), 1, 7, 3);
        assert!(!leases.wanted(1, 7, 2), "an older one");
        assert!(leases.enter(&lease) && leases.partitions() == BTreeSet::from([1]));
        assert!(leases.wanted(1, 7, 3));
        assert!(lease.wanted().await);
        lease.end();
        lease.want();
        assert!(!lease.wanted().await, "it is over");
        drop(lease);
        assert!(leases.partitions().is_empty());
        assert!(!leases.wanted(1, 8, 4));
        assert!(!leases.enter(&Lease::new(session.clone(), 1, 8, 4)), "given back before it was known");
        assert!(leases.enter(&Lease::new(session.clone(), 1, 8, 5)));
    }
}
