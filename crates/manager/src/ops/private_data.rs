//! When file data may be made private (`private_data`): where every server can keep the promise.
//!
//! Invariant: while a setting that makes data private is taken, this manager requires keys, and every data node that is
//! up is one that holds to it and has a key. Nodes that come later are seen to by those that are there: a data node
//! that knows of a private volume says nothing of its data on another way. Taking the setting back is always allowed.
//! Not here: who holds to it (data: `server/privacy.rs`, the client's `view.rs`).
use crate::leading::Leading;
use crate::manager::Manager;
use cairn_manager_core::command::ConfigValue;
use cairn_manager_core::config::PRIVATE_LEVEL;
use cairn_manager_core::{Key, Roles, State};
use cairn_types::{ErrorCode, NodeId};
use cairn_wire::error::WireError;

/// Nodes named in a refusal.
const NAMED_MAX: usize = 5;

impl Manager {
    /// Why these settings cannot be taken now, if they make data private.
    pub(super) fn check_private(&self, items: &[ConfigValue]) -> Result<(), WireError> {
        let makes = |item: &ConfigValue| item.key == Key::PrivateData.name() && item.value.trim() == "on";
        if !items.iter().any(makes) {
            return Ok(());
        }
        if !self.identity.tls().is_some_and(|tls| tls.is_required()) {
            let text = "private_data needs keys, and this cluster serves also those who have none: set security.mode = \"required\" on every \
                        server first (docs/guides/security.md)";
            return Err(WireError::new(ErrorCode::Conflict, text));
        }
        self.look_in_cluster(|state, leading| match data_nodes_below(state, leading, PRIVATE_LEVEL) {
            nodes if nodes.is_empty() => Ok(()),
            nodes => Err(WireError::new(ErrorCode::Conflict, refusal("private_data", PRIVATE_LEVEL, &nodes))),
        })
    }
}

/// Data nodes that are up and do not say that they understand a level.
pub(super) fn data_nodes_below(state: &State, leading: &Leading, level: u32) -> Vec<NodeId> {
    let levels = &leading.soft.levels;
    let knows = |node: &NodeId| levels.get(node).is_some_and(|known| *known >= level);
    let datas = state.nodes().filter(|node| node.up && node.roles.has(Roles::DATA));
    datas.map(|node| node.id).filter(|node| !knows(node)).collect()
}

/// Why something is not to be had with these.
pub(super) fn refusal(what: &str, level: u32, nodes: &[NodeId]) -> String {
    let named: Vec<String> = nodes.iter().take(NAMED_MAX).map(ToString::to_string).collect();
    let more = if nodes.len() > NAMED_MAX { ", …" } else { "" };
    format!(
        "{what} needs data nodes of feature level {level}, and {}{more} is of an earlier build, or was not heard since the managers' \
         leader changed: upgrade it, or wait for its next heartbeat, then repeat",
        named.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever is told which server stands against it would not learn which.
    #[test]
    fn the_refusal_names_some_and_says_that_there_are_more() {
        let nodes: Vec<NodeId> = (1..=6).map(NodeId).collect();
        let text = |nodes| refusal("private_data", PRIVATE_LEVEL, nodes);
        assert!(text(&nodes[..1]).contains("level 23, and n1 is of an earlier build"), "{}", text(&nodes[..1]));
        assert!(text(&nodes).contains("n1, n2, n3, n4, n5, … is"), "{}", text(&nodes));
    }
}
