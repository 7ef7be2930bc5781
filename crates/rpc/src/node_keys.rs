//! [`NodeKeys`]: whose key each node has, as the map says, so that one server's key does not pass for another's.
//!
//! Invariants: what is not known here is nobody's business here; a node that moved or got another key is refused at
//! most until the map is heard that says so. Managers are not in it: their numbers are in their keys. Not here: who
//! decides it (the manager).

use std::collections::BTreeMap;
use std::sync::Arc;

use cairn_security::Tls;
use cairn_types::NodeId;
use cairn_wire::holder::{Holder, MANAGER_ID_MAX};
use parking_lot::RwLock;

/// Of all nodes that were heard of.
#[derive(Debug, Default)]
pub struct NodeKeys {
    nodes: RwLock<BTreeMap<NodeId, Bound>>,
    /// Knows which names count no more: they bind nobody.
    tls: Option<Arc<Tls>>,
}

#[derive(Debug, PartialEq, Eq)]
struct Bound {
    address: String,
    holder: String,
}

impl Bound {
    /// Whether a holder may be this node: the authority may have put its number into his key.
    fn is_of(&self, node: NodeId, holder: &Holder) -> bool {
        self.holder == holder.name || node.get() > MANAGER_ID_MAX && holder.node == node
    }
}

impl NodeKeys {
    pub(crate) fn new(tls: Option<Arc<Tls>>) -> Self {
        Self { nodes: RwLock::default(), tls }
    }

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
    pub fn other_of_node(&self, node: NodeId, holder: &Holder) -> Option<String> {
        let nodes = self.nodes.read();
        let bound = nodes.get(&node).filter(|bound| !bound.is_of(node, holder) && self.counts(bound))?;
        Some(bound.holder.clone())
    }

    /// The same of whoever is at an address.
    pub fn other_at(&self, address: &str, holder: &Holder) -> Option<String> {
        let nodes = self.nodes.read();
        // One that moved may be there still beside the one that came.
        let at = || nodes.iter().filter(|(_, bound)| bound.address == address && self.counts(bound));
        let (_, first) = at().next()?;
        (!at().any(|(node, bound)| bound.is_of(*node, holder))).then(|| first.holder.clone())
    }

    fn counts(&self, bound: &Bound) -> bool {
        let revoked = self.tls.as_ref().and_then(|tls| tls.revoked());
        !revoked.is_some_and(|list| list.has(&bound.holder))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_wire::audience::{Caller, Roles};
    use cairn_wire::rights::Rights;

    fn of(name: &str, node: u32) -> Holder {
        let (caller, rights) = (Caller::Node(Roles::DATA), Rights::everything());
        Holder { name: name.to_owned(), caller, node: NodeId(node), until: 0, rights }
    }

    /// Whoever has any server's key would pass for any other; or a node that moved, or got another key, stay shut out.
    #[test]
    fn a_node_has_the_key_that_the_map_says() {
        let keys = NodeKeys::default();
        let node = |node, name| keys.other_of_node(NodeId(node), &of(name, 0));
        let at = |address, name| keys.other_at(address, &of(name, 0));
        keys.learn(NodeId(17), "a:1", "n4");
        keys.learn(NodeId(18), "b:1", "");
        assert_eq!(node(17, "n4"), None);
        assert_eq!(node(17, "n5").as_deref(), Some("n4"));
        assert_eq!(node(18, "n5"), None);
        assert_eq!(at("a:1", "n4"), None);
        assert_eq!(at("a:1", "n5").as_deref(), Some("n4"));
        assert_eq!(at("b:1", "n5"), None);
        // The authority says which node it is.
        assert_eq!(keys.other_of_node(NodeId(17), &of("n5", 17)), None);
        assert_eq!(keys.other_at("a:1", &of("n5", 17)), None);
        assert_eq!(keys.other_at("a:1", &of("n5", 18)).as_deref(), Some("n4"));
        // Another one came to where it was, before its move was heard of.
        keys.learn(NodeId(18), "a:1", "n5");
        assert_eq!(at("a:1", "n5"), None);
        assert_eq!(at("a:1", "n6").as_deref(), Some("n4"));
        keys.learn(NodeId(17), "c:1", "n7");
        assert_eq!(at("a:1", "n4").as_deref(), Some("n5"));
        assert_eq!(at("c:1", "n7"), None);
        keys.learn(NodeId(17), "c:1", "");
        assert_eq!(node(17, "n9"), None);
    }
}
