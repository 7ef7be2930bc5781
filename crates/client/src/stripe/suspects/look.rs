//! Looking at members that somebody waits for, and reporting those that failed.
//!
//! Invariant: a member is reported for silence only after it did not answer this client either, or said that its disk
//! stands still; one that is merely slow, with all others or alone, is left to the deadlines of the calls.
use super::{Look, Seen};
use crate::cluster::Cluster;
use cairn_wire::Opcode;
use cairn_wire::common::{PingRequest, PingResponse};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// A member that does not answer a ping for so long is reported.
const PING_DEADLINE: Duration = Duration::from_millis(300);

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
            cluster.refresh_quietly().await;
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
