//! Status: the whole cluster on one screen.
use crate::manager::Manager;
use crate::progress::{drains, repairs};
use cairn_manager_core::{Scope, problems};
use cairn_types::NodeId;
use cairn_wire::error::WireError;
use cairn_wire::manager::StatusResponse;
use std::time::Duration;

/// A new leader hears from all nodes within so long: heartbeats come each second.
const REPORT_PATIENCE: Duration = Duration::from_secs(3);
/// Between two looks whether they have come.
const REPORT_PAUSE: Duration = Duration::from_millis(50);

impl Manager {
    /// What a leader that has just begun would say is wrong: it waits for the reports.
    pub(crate) async fn status(&self) -> Result<StatusResponse, WireError> {
        let reported = async {
            while !self.look(|state, leading| {
                leading.soft.is_complete(state) || self.now().since(leading.since) > REPORT_PATIENCE
            })? {
                tokio::time::sleep(REPORT_PAUSE).await;
            }
            Ok::<(), WireError>(())
        };
        // Later than that it is told what is known.
        tokio::time::timeout(REPORT_PATIENCE, reported).await.unwrap_or(Ok(()))?;
        self.status_now()
    }

    fn status_now(&self) -> Result<StatusResponse, WireError> {
        let now = self.now();
        let managers = self.log.get().map(|log| log.status().core.members.voters).unwrap_or_default();
        let understanding = self.understanding();
        let lags = understanding.common.is_none_or(|common| common < self.raft.feature_level());
        self.look(|state, leading| {
            leading.forget_silent_leaders(now);
            let silence = |node: NodeId| leading.liveness.silence(node, now).as_millis() as u64;
            leading.soft.forget_clones(self.now());
            leading.soft.silence_ms = state.servers().map(|n| (n.id, silence(n.id))).collect();
            leading.soft.mute = state.servers().map(|n| (n.id, leading.liveness.is_mute(n.id))).collect();
            let mut problems = problems::problems(state, &leading.soft, self.clock.wall());
            for (node, answers) in leading.managers.iter().filter(|(node, _)| managers.contains(node)) {
                if !answers {
                    let majority = managers.len() / 2 + 1;
                    problems.push(format!(
                        "manager {node} does not answer: the cluster goes on as long as {majority} of {} managers run; \
                         start it again, or, when its directory is lost, `cairn admin manager remove {}` and add it anew",
                        managers.len(),
                        node.get()
                    ));
                }
            }
            let repairs = repairs(state, leading, now);
            StatusResponse {
                drains: drains(state, leading),
                hibernations: self.hibernations(state),
                repairs_queued: leading.soft.repairs_queued as u32,
                feature_level: state.level(),
                feature_behind: understanding.behind.iter().filter(|_| lags).map(|node| node.get()).collect(),
                repairs,
                map: Some(state.map(0, Scope::All, &leading.soft)),
                leader_node: self.config.member.get(),
                term: leading.term,
                partitions: leading.soft.partitions.values().map(|load| load.report).collect(),
                problems,
                pgs: Some(state.pg_counts()),
                managers: managers.iter().map(|node| node.get()).collect(),
                manager_members: self.manager_table(|node| leading.managers.get(&node) == Some(&true)),
            }
        })
    }
}
