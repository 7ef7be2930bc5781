//! What the node itself tells the manager with its heartbeats, and does with what it hears from it.
use cairn_env::Clock;
use cairn_node_agent::{Contributor, Registration, Settings};
use cairn_raft_host::{RaftHost, RpcTransport};
use cairn_rpc::NodeKeys;
use cairn_store::LabelledDir;
use cairn_types::{NodeId, WallTime};
use cairn_wire::manager::{ClusterMap, HeartbeatRequest};
use parking_lot::Mutex;
use std::sync::Arc;

/// Keeps the addresses of the other nodes for Raft as the map tells them, and who is a member of what.
pub(super) struct AddressBook {
    pub(super) transport: Arc<RpcTransport>,
    pub(super) node_keys: Arc<NodeKeys>,
}

impl Contributor for AddressBook {
    fn map_changed(&self, change: &ClusterMap, _term: u64) {
        for node in change.nodes.iter().filter(|n| !n.address.is_empty()) {
            self.transport.set_address(NodeId(node.id), node.address.clone());
        }
        self.node_keys.learn_map(change);
        self.transport.learn_members(change);
    }
}

/// Writes what the manager gave the node into its label.
pub(super) struct LabelKeeper {
    pub(super) dir: Arc<Mutex<LabelledDir>>,
}

impl Contributor for LabelKeeper {
    fn registered(&self, registration: &Registration) -> Result<(), String> {
        let mut dir = self.dir.lock();
        let known = dir.label().node;
        if known != NodeId(0) && known != registration.node {
            let name = dir.disk().name().to_owned();
            return Err(format!("{name} belongs to node {known}, the manager registered {}", registration.node));
        }
        dir.set_cluster(registration.cluster).map_err(|e| e.to_string())?;
        dir.set_node(registration.node).map_err(|e| e.to_string())
    }
}

/// Tells the manager when the node's log stands still or its clock is wrong, and the Raft groups what the manager's
/// clock says.
pub(super) struct LogWatch {
    pub(super) raft: Arc<RaftHost>,
    pub(super) clock: Arc<dyn Clock>,
}

impl Contributor for LogWatch {
    fn heartbeat(&self, heartbeat: &mut HeartbeatRequest) {
        for problem in self.raft.problem().into_iter().chain(self.raft.clock_problem()) {
            let said = std::mem::take(&mut heartbeat.problem);
            heartbeat.problem = if said.is_empty() { problem } else { format!("{problem}; {said}") };
        }
    }
    fn settings(&self, settings: &Settings) {
        if let Some(bound) = settings.duration("clock_difference_max") {
            self.raft.clocks().set_bound(bound);
        }
    }
    fn manager_clock(&self, manager: NodeId, wall: WallTime) {
        self.raft.clocks().heard(manager, wall, self.clock.now());
    }
}

/// Tells the manager what this node's clock says.
pub(super) struct ClockTeller(pub(super) Arc<dyn Clock>);

impl Contributor for ClockTeller {
    fn heartbeat(&self, heartbeat: &mut HeartbeatRequest) {
        heartbeat.wall_ns = self.0.wall().0;
    }
}
