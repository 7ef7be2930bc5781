//! Watching the nodes: silent ones are probed, those that fail are marked down together in one entry.
//!
//! The rules are in [`cairn_manager_core::liveness`]. Not here: members that somebody reports (`ops/report.rs`).
use crate::manager::Manager;
use cairn_manager_core::command::{Command, NodeAt, NodesDown};
use cairn_manager_core::items::Node;
use cairn_manager_core::liveness::ProbeOutcome;
use cairn_manager_core::{Key, State};
use cairn_types::NodeId;
use std::time::Duration;

impl Manager {
    pub(super) async fn watch(&self) {
        let now = self.now();
        let round = self.look(|state, leading| {
            let up: Vec<(NodeId, String)> = state.servers().filter(|n| n.up).map(|n| (n.id, n.rack.clone())).collect();
            let timeout = state.config().duration(Key::NodeTimeout);
            let deadline = state.config().duration(Key::ProbeDeadline);
            let address = |node: &NodeId| state.node(*node).map(|n| n.address.clone()).unwrap_or_default();
            let probes = leading.liveness.to_probe(now, timeout, &up);
            let (gone, probes): (Vec<NodeId>, Vec<NodeId>) = probes.into_iter().partition(|n| is_taken_over(state, *n));
            // Whoever answers there is another one.
            gone.into_iter().for_each(|node| leading.liveness.probed(node, ProbeOutcome::Refused));
            let probes: Vec<(NodeId, String)> = probes.into_iter().map(|node| (node, address(&node))).collect();
            let down: Vec<NodeAt> = leading
                .liveness
                .verdicts(now, timeout, &up)
                .into_iter()
                .filter_map(|node| state.node(node))
                .map(|node| NodeAt { node: node.id.get(), incarnation: node.incarnation.get() })
                .collect();
            (leading.term, probes, deadline, down)
        });
        let Ok((term, probes, deadline, down)) = round else { return };
        for (node, address) in probes {
            self.probe_silent(term, node, address, deadline);
        }
        if !down.is_empty() {
            let nodes: Vec<u32> = down.iter().map(|at| at.node).collect();
            tracing::warn!(?nodes, "nodes were silent and failed their probes: they are marked down");
            self.metrics.nodes_marked_down.add(nodes.len() as u64);
            self.duty("nodes down", Command::NodesDown(NodesDown { nodes: down })).await;
        }
    }

    fn probe_silent(&self, term: u64, node: NodeId, address: String, deadline: Duration) {
        let Some(me) = self.arc() else { return };
        self.spawn(async move {
            let outcome = me.probe_node(&address, deadline).await;
            tracing::info!(%node, %address, ?outcome, "a silent node was probed");
            me.remember(term, |leading| leading.liveness.probed(node, outcome));
            me.wake.notify_one();
        });
    }
}

/// Another node has registered since under this one's address: a machine that was lost with all it had came back as a
/// new node.
fn is_taken_over(state: &State, id: NodeId) -> bool {
    state.node(id).is_some_and(|node| {
        let since = |other: &&Node| other.id != id && other.incarnation > node.incarnation;
        state.servers().filter(since).any(|other| other.address == node.address)
    })
}
