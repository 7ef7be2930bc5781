//! Disks whose failure is being looked into by the manager, and those that it found failed in one group: new chunks are
//! opened without them, in groups too whose epochs are still to be raised. All streams of a client share what they
//! know.
//!
//! Invariant: a member is reported for silence only after it did not answer this client either, or said that its disk
//! stands still; one that is merely slow, with all others or alone, is left to the deadlines of the calls.
use crate::append::open::refresh_quietly;
use crate::cluster::Cluster;
use cairn_types::{SessionId, Time};
use cairn_wire::Opcode;
use cairn_wire::common::{PingRequest, PingResponse};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// A suspicion that nobody settles ends after this.
const SUSPECT_MAX: Duration = Duration::from_secs(3);

/// A member that does not answer a ping for so long is reported.
const PING_DEADLINE: Duration = Duration::from_millis(300);

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

impl Cluster {
    /// Reports a member: from this call on, until the manager has decided, nobody opens a chunk with it. The outcome is
    /// whether the group went on without it.
    pub(crate) fn report_suspect(
        self: &Arc<Self>,
        seen: Seen,
        disk: u32,
        why: String,
    ) -> impl Future<Output = bool> + Send + use<> {
        let cluster = self.clone();
        cluster.suspects.begin(disk, cluster.clock.now());
        async move {
            cluster.report_member(seen.session, seen.pg, seen.epoch, disk, why).await;
            // The other groups of a member that was marked down have new epochs as well.
            refresh_quietly(&cluster).await;
            let moved = cluster.view().pgs.get(&seen.pg).is_some_and(|known| known.epoch.0 > seen.epoch);
            if moved {
                cluster.suspects.fail(disk, cluster.clock.now());
            }
            cluster.suspects.end(disk);
            moved
        }
    }
    /// Something waits for these members: those that do not answer a ping either, or whose disk stands still, are
    /// reported.
    pub(crate) async fn look_at(self: &Arc<Self>, seen: Seen, disks: Vec<u32>) -> Look {
        let mut looks = JoinSet::new();
        for disk in disks {
            let cluster = self.clone();
            looks.spawn(async move { cluster.look_at_one(seen, disk).await });
        }
        looks.join_all().await.into_iter().fold(Look::default(), Look::and)
    }
    async fn look_at_one(self: &Arc<Self>, seen: Seen, disk: u32) -> Look {
        let Ok(address) = self.disk_address(disk) else { return Look::default() };
        let asked = PingRequest { disk };
        let why = match self.net.call::<PingResponse>(&address, Opcode::Ping, &asked, PING_DEADLINE).await {
            Ok(PingResponse { stalled: true, .. }) => format!("a write waits and disk d{disk} stands still"),
            Ok(PingResponse { stalls_in_ms, .. }) => {
                let again =
                    Some(Duration::from_millis(u64::from(stalls_in_ms))).filter(|in_so_long| !in_so_long.is_zero());
                return Look { moved: false, again };
            }
            Err(crate::net::NetError::Remote(_)) => return Look::default(),
            Err(error) => format!("a write waits and disk d{disk} answers no ping: {}", error.text()),
        };
        Look { moved: self.report_suspect(seen, disk, why).await, again: None }
    }
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
