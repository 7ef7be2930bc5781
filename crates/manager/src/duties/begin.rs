//! The first entries of a cluster: its id, its managers, its first volume.
//!
//! Invariant: the cluster id is random, proposed by the first leader of an empty log, and written once by the state
//! machine.
use crate::manager::Manager;
use cairn_env::Rng;
use cairn_manager_core::command::{Command, InitCluster, PutManager};
use cairn_manager_core::items::Node;
use cairn_manager_core::{Key, Roles, State, first_volume};
use cairn_raft_host::MemberChange;
use cairn_types::{Layout, NodeId};
use std::collections::BTreeSet;

/// Name of the volume that a new cluster begins with.
pub(super) const DEFAULT_VOLUME: &str = "default";
/// A member that lacks no more entries than this gets its vote.
const CAUGHT_UP_ENTRIES: u64 = 1000;

/// Managers of the configuration that the state has not heard of, or has at another address before they registered. One
/// that has no such role any more was removed, also while the group's status still shows its vote: it is not brought
/// back, which would make the node a new one without a uuid.
fn unknown_managers(state: &State, voters: &[NodeId], configured: &[(NodeId, String)]) -> Vec<PutManager> {
    let known = |id: NodeId, address: &str| {
        let moved = |n: &Node| n.roles.has(Roles::MANAGER) && n.uuid.is_none() && n.address != address;
        state.node(id).is_some_and(|n| !moved(n))
    };
    let unknown = configured.iter().filter(|(id, address)| voters.contains(id) && !known(*id, address));
    unknown
        .map(|(id, address)| PutManager { node: id.get(), address: address.clone(), ..PutManager::default() })
        .collect()
}

impl Manager {
    /// The cluster has its id and knows its managers. False: not yet.
    pub(super) async fn begin(&self) -> bool {
        if self.replica.read().cluster().is_none() {
            let mut cluster = vec![0; 16];
            Rng::fill(self.rng.as_ref(), &mut cluster);
            let name = self.config.cluster_name.clone();
            if !self.duty("begin of the cluster", Command::InitCluster(InitCluster { cluster, name })).await {
                return false;
            }
            self.learn_cluster();
        }
        let voters = self.log.get().map(|log| log.status().core.members.voters).unwrap_or_default();
        let unknown = unknown_managers(&self.replica.read(), &voters, &self.config.members);
        for put in unknown {
            if !self.duty("manager's address", Command::PutManager(put)).await {
                return false;
            }
        }
        true
    }

    /// A new cluster gets a volume as soon as enough nodes are there.
    pub(super) async fn default_volume(&self) {
        let now = self.now();
        let layout = self.look(|state, leading| {
            let waits = !self.config.bootstrap.smaller && first_volume::waits_for(state).is_some();
            if state.had_volumes() || state.cluster().is_none() || waits {
                return None;
            }
            let metas = state.nodes().filter(|n| n.up && n.roles.has(Roles::META)).count();
            let disks = state.disks().filter(|d| state.is_able(d.id));
            let data = disks.map(|d| d.node).collect::<BTreeSet<_>>().len();
            let bootstrap = &self.config.bootstrap;
            let enough = metas >= bootstrap.meta_nodes.max(1) && data >= bootstrap.data_nodes.max(1);
            let quiet = leading.registered.is_none_or(|at| now.since(at) >= bootstrap.quiet)
                && now.since(leading.since) >= bootstrap.quiet;
            if !(enough || (metas > 0 && data > 0 && quiet)) {
                return None;
            }
            let wanted = state.config().default_layout();
            // Shards need disks, copies nodes; as many copies as there are nodes, if that is less.
            let have = if wanted.scheme().is_replicated() { data } else { state.disks_in_service() };
            let later = wanted.staged().map_or(0, |later| later.members());
            let fits = wanted.scheme().members() <= have && later <= state.disks_in_service();
            let copies = wanted.scheme().short_scheme().members().min(data);
            Some(if fits { wanted } else { Layout::replicated(copies as u8) })
        });
        let Ok(Some(layout)) = layout else { return };
        match self.make_volume(DEFAULT_VOLUME.into(), layout, 1).await {
            Ok(volume) => {
                if let Err(error) = self.ensure(volume.id, layout.pg_class()).await {
                    tracing::info!(%error, "the default volume has no placement groups yet");
                }
            }
            Err(error) => tracing::info!(%error, "the default volume could not be made yet"),
        }
    }

    /// A new member of the manager's group gets its vote when it has caught up.
    pub(super) async fn promote(&self) {
        let Some(log) = self.log.get().cloned() else { return };
        let core = log.status().core;
        let matched = |node: NodeId| core.matched.iter().find(|(id, _)| *id == node).map_or(0, |(_, index)| *index);
        // Who votes has registered, or is one of the first (`memory.rs` relies on it).
        let registered = |node: NodeId| self.replica.read().node(node).is_some_and(|n| !n.uuid.is_none());
        let ready = core.members.learners.iter().find(|node| {
            matched(**node) > 0
                && matched(**node) + CAUGHT_UP_ENTRIES >= core.last
                && !core.members.joint
                && registered(**node)
        });
        if let Some(node) = ready.copied() {
            let change = tokio::task::spawn_blocking(move || log.change_members(vec![MemberChange::Voter(node)])).await;
            match change {
                Ok(Ok(())) => tracing::info!(%node, "a new manager has caught up and gets its vote"),
                Ok(Err(error)) => tracing::info!(%node, %error, "a new manager could not get its vote yet"),
                // The runtime ends.
                Err(_) => {}
            }
        }
    }

    /// Asks the other members of the manager's group whether they live.
    pub(super) async fn ask_members(&self) {
        let members = self.log.get().map(|log| log.status().core.members).unwrap_or_default();
        let others: Vec<(NodeId, String)> = {
            let state = self.replica.read();
            let others = members.voters.iter().chain(&members.learners).filter(|node| **node != self.config.member);
            others.filter_map(|node| state.node(*node).map(|n| (*node, n.address.clone()))).collect()
        };
        let Ok(deadline) = self.look(|state, _| state.config().duration(Key::ProbeDeadline)) else { return };
        for (node, address) in others {
            let Some(me) = self.arc() else { return };
            self.spawn(async move {
                let alive =
                    me.probe_node(&address, deadline).await == cairn_manager_core::liveness::ProbeOutcome::Alive;
                // No leader any more: the answer is for nobody.
                let _ = me.look(|_, leading| leading.managers.insert(node, alive));
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_types::WallTime;

    /// A manager that was removed a moment ago would be entered anew, and its node, which may have metadata, be unknown
    /// for ever.
    #[test]
    fn who_was_removed_is_not_brought_back() {
        let mut state = State::default();
        let init = InitCluster { cluster: vec![7; 16], name: "test".into() };
        state.apply(WallTime(1), &Command::InitCluster(init)).outcome.expect("made");
        let configured: Vec<(NodeId, String)> = (1..=3).map(|id| (NodeId(id), format!("host{id}:1"))).collect();
        let voters: Vec<NodeId> = configured.iter().map(|(id, _)| *id).collect();
        let unknown = unknown_managers(&state, &voters, &configured);
        assert_eq!(unknown.len(), 3, "at the beginning nobody is known");
        for put in unknown {
            state.apply(WallTime(1), &Command::PutManager(put)).outcome.expect("entered");
        }
        assert!(unknown_managers(&state, &voters, &configured).is_empty());
        let moved = [(NodeId(2), "elsewhere:1".to_owned())];
        assert_eq!(
            unknown_managers(&state, &voters, &moved).len(),
            1,
            "its address is another one before it registered"
        );
        let removed = PutManager { node: 3, removed: true, ..PutManager::default() };
        state.apply(WallTime(2), &Command::PutManager(removed)).outcome.expect("removed");
        assert!(unknown_managers(&state, &voters, &configured).is_empty(), "the status still shows its vote");
    }
}
