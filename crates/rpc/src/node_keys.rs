//! [`NodeKeys`]: whose key each node has, as the map says, so that one server's key does not pass for another's.
//!
//! Invariants: what is not known here is nobody's business here; a node that moved or got another key is refused at most
//! until the map is heard that says so. Managers are not in it: their numbers are in their keys. Not here: who decides it
//! (the manager).

use std::collections::BTreeMap;

use cairn_types::NodeId;
use parking_lot::RwLock;

/// Of all nodes that were heard of.
#[derive(Debug, Default)]
pub struct NodeKeys {
    nodes: RwLock<BTreeMap<NodeId, Bound>>,
}

#[derive(Debug, PartialEq, Eq)]
struct Bound {
    address: String,
    holder: String,
}

impl NodeKeys {
    /// Takes what a map says of a node: its address, and the name in its key, empty where nobody knows.
    pub fn learn(&self, node: NodeId, address: &str, holder: &str) {
        if holder.is_empty() {
            // Cheap where there are no keys.
            if self.nodes.read().contains_key(&node) {
                self.nodes.write().remove(&node);
            }
            return;
        }
        let bound = Bound { address: address.to_owned(), holder: holder.to_owned() };
        if self.nodes.read().get(&node) != Some(&bound) {
            self.nodes.write().insert(node, bound);
        }
    }

    /// The name of the one that a node has instead of this key, if it has another one.
    pub fn other_of_node(&self, node: NodeId, holder: &str) -> Option<String> {
        self.nodes.read().get(&node).filter(|bound| bound.holder != holder).map(|bound| bound.holder.clone())
    }

    /// The same of whoever is at an address.
    pub fn other_at(&self, address: &str, holder: &str) -> Option<String> {
        let nodes = self.nodes.read();
        // One that moved may be there still beside the one that came.
        let mut at = nodes.values().filter(|bound| bound.address == address).peekable();
        let first = at.peek().map(|bound| bound.holder.clone())?;
        (!at.any(|bound| bound.holder == holder)).then_some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever has any server's key would pass for any other; or a node that moved, or got another key, stay shut out.
    #[test]
    fn a_node_has_the_key_that_the_map_says() {
        let keys = NodeKeys::default();
        keys.learn(NodeId(17), "a:1", "n4");
        keys.learn(NodeId(18), "b:1", "");
        assert_eq!(keys.other_of_node(NodeId(17), "n4"), None);
        assert_eq!(keys.other_of_node(NodeId(17), "n5").as_deref(), Some("n4"));
        assert_eq!(keys.other_of_node(NodeId(18), "n5"), None);
        assert_eq!(keys.other_at("a:1", "n4"), None);
        assert_eq!(keys.other_at("a:1", "n5").as_deref(), Some("n4"));
        assert_eq!(keys.other_at("b:1", "n5"), None);
        // Another one came to where it was, before its move was heard of.
        keys.learn(NodeId(18), "a:1", "n5");
        assert_eq!(keys.other_at("a:1", "n5"), None);
        assert_eq!(keys.other_at("a:1", "n6").as_deref(), Some("n4"));
        keys.learn(NodeId(17), "c:1", "n7");
        assert_eq!(keys.other_at("a:1", "n4").as_deref(), Some("n5"));
        assert_eq!(keys.other_at("c:1", "n7"), None);
        keys.learn(NodeId(17), "c:1", "");
        assert_eq!(keys.other_of_node(NodeId(17), "n9"), None);
    }
}
