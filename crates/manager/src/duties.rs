//! What the leader does by itself: the first entries of a cluster, watching nodes, keeping placement groups open,
//! taking members back, replacing those that are lost, emptying what is drained and the trash of volumes, spreading
//! leaders, the default volume, its own group.
//!
//! One loop, so that one duty is decided at a time; every decision is looked at again on the next round, so nothing
//! hangs on a single attempt. Not here: what is done on request (`ops/`).
mod begin;
mod capacity;
mod generations;
mod grow;
mod leaders;
mod level;
mod marks;
mod members;
mod moves;
mod notes;
mod rejoin;
mod repair;
mod volume_trash;
mod watch;

use crate::manager::Manager;
use cairn_manager_core::Roles;
use cairn_manager_core::items::NODE_ID_FIRST;
use cairn_types::Time;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Between two looks at removed members, full groups and new managers.
const SLOW_ROUND: Duration = Duration::from_secs(1);
/// Between two looks at whether volumes have enough groups, and at the manager's own members.
const SLOWER_ROUND: Duration = Duration::from_secs(3);
/// Between two entries with generations of disks.
const GENERATIONS_ROUND: Duration = Duration::from_secs(10);
/// Between two looks at whether groups are where they should be: in a large cluster it takes long.
const SLOWEST_ROUND: Duration = Duration::from_secs(5);

/// Remembers when something was done last.
#[derive(Default)]
struct Every(Option<Time>);

impl Every {
    fn is_due(&mut self, now: Time, pause: Duration) -> bool {
        let due = self.0.is_none_or(|last| now.since(last) >= pause);
        if due {
            self.0 = Some(now);
        }
        due
    }
}

impl Manager {
    /// Runs until the runtime ends.
    pub(crate) async fn duties(self: Arc<Self>) {
        let (mut slow, mut slower, mut slowest) = (Every::default(), Every::default(), Every::default());
        let mut marks = Every::default();
        let mut generations = Every::default();
        loop {
            // Woken by a change of leadership, or time for another round.
            let _ = tokio::time::timeout(self.config.tick, self.wake.notified()).await;
            self.learn_cluster();
            self.learn_addresses();
            if self.permit().is_err() || !self.begin().await {
                continue;
            }
            if self.take_up().await {
                continue;
            }
            self.watch().await;
            self.default_volume().await;
            self.change_partitions();
            if slow.is_due(self.now(), SLOW_ROUND) {
                self.raise_level().await;
                self.rejoin().await;
                self.wake_up().await;
                self.grow().await;
                self.repair().await;
                self.note().await;
                self.spread_leaders();
                let further = slowest.is_due(self.now(), SLOWEST_ROUND);
                if further {
                    self.look_for_gray().await;
                }
                self.moves(further).await;
                self.open_and_close().await;
                self.promote().await;
            }
            if marks.is_due(self.now(), marks::LOG_PAUSE) {
                self.log_marks().await;
            }
            if generations.is_due(self.now(), GENERATIONS_ROUND) {
                self.log_generations().await;
            }
            if slower.is_due(self.now(), SLOWER_ROUND) {
                self.top_up().await;
                self.ask_members().await;
                self.empty_volume_trash().await;
            }
        }
    }

    /// Managers that were added later are in the state, not in the configuration of the others.
    fn learn_addresses(&self) {
        let state = self.replica.read().clone();
        let managers = state.nodes().take_while(|node| node.id.get() < NODE_ID_FIRST);
        for node in
            managers.filter(|n| n.roles.has(Roles::MANAGER) && n.id != self.config.member && !n.address.is_empty())
        {
            self.raft.learn_address(node.id, &node.address);
        }
    }

    /// The process learns its cluster from the log.
    pub(crate) fn learn_cluster(&self) {
        let Some(cluster) = self.replica.read().cluster().map(|c| c.id) else { return };
        self.raft.set_cluster(cluster);
        let label = self.identity.cluster();
        if !self.identity.set_cluster(cluster) {
            if !self.foreign.swap(true, Ordering::Relaxed) {
                tracing::error!(%cluster, %label, "the manager's log belongs to another cluster than this process's label; \
                    nothing is served: restore the directory that belongs together");
            }
        } else if label.is_none() {
            tracing::info!(%cluster, "this manager belongs to the cluster");
        }
    }
}
