//! Whose key a node has: a node that is no manager is bound to the name in the key that it shows first, and nobody
//! with another one speaks for it.
//!
//! Invariants: a binding changes only from the name that whoever decided on it saw; managers are bound by their keys,
//! and by nothing here. Not here: whose key somebody shows, and when another may take its place (manager).
use crate::apply::Outcome;
use crate::change::ItemKey;
use crate::items::{NODE_ID_FIRST, clip};
use crate::state::State;
use cairn_types::NodeId;
use cairn_wire::error::WireError;
use prost::Message;
use std::sync::Arc;

/// The level from which on members understand it.
pub const BINDING_LEVEL: u32 = 22;

/// A node is the holder of a key from now on.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct BindNode {
    #[prost(uint32, tag = "1")]
    pub node: u32,
    /// Name in its key.
    #[prost(string, tag = "2")]
    pub holder: String,
    /// Name in the key that it had, empty: it had none. Where it has another one by now nothing is done.
    #[prost(string, tag = "3")]
    pub former: String,
}

impl State {
    pub(crate) fn bind_node(&mut self, command: &BindNode) -> Result<Outcome, WireError> {
        let id = NodeId(command.node);
        let free = self.node(id).filter(|node| id.get() >= NODE_ID_FIRST && node.holder == command.former).cloned();
        if let Some(node) = free.filter(|_| !command.holder.is_empty()) {
            self.nodes.insert(id, Arc::new(crate::items::Node { holder: clip(&command.holder), ..node }));
            self.touch(ItemKey::Node(id));
        }
        Ok(Outcome::Done)
    }
}
