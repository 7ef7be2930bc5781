//! [`NodeKeys`]: whose key each node has, as the map says, so that one server's key does not pass for another's; and
//! which nodes have the partitions of a volume, so that a metadata server has no say in the data of others.
//!
//! Invariants: what is not known here is nobody's business here; a node that moved or got another key is refused at
//! most until the map is heard that says so; whom the manager may let in is not refused here for what was heard
//! before. Managers are bound by the numbers in their keys. Not here: who decides it (the manager).

use std::collections::BTreeMap;
use std::sync::Arc;

use cairn_security::Tls;
use cairn_types::{NodeId, PartitionId, VolumeId};
use cairn_wire::holder::{Holder, MANAGER_ID_MAX};
use cairn_wire::manager::{ClusterMap, Node};
use parking_lot::RwLock;

/// Of all nodes that were heard of.
#[derive(Debug)]
pub struct NodeKeys {
    tls: Option<Arc<Tls>>,
    nodes: RwLock<BTreeMap<NodeId, Place>>,
    partitions: RwLock<BTreeMap<PartitionId, OfVolume>>,
}

/// Whose a partition is, and who has it.
#[derive(Debug)]
struct OfVolume {
    volume: VolumeId,
    nodes: Vec<NodeId>,
}

#[derive(Debug, PartialEq, Eq)]
struct Place {
    address: String,
    /// Name in the key that the node has; empty: nobody knows, or it is a manager.
    bound: String,
}

impl NodeKeys {
    pub(crate) fn new(tls: Option<Arc<Tls>>) -> Self {
        Self { tls, nodes: RwLock::default(), partitions: RwLock::default() }
    }

    /// Takes what a map, or a change of it, says of nodes and partitions.
    pub fn learn_map(&self, change: &ClusterMap) {
        change.nodes.iter().for_each(|node| self.learn(node));
        if self.tls.is_none() {
            return;
        }
        let mut partitions = self.partitions.write();
        if change.base_version == 0 {
            partitions.clear();
        }
        for partition in &change.partitions {
            let of_volume = OfVolume {
                volume: VolumeId(partition.volume),
                nodes: partition.nodes.iter().copied().map(NodeId).collect(),
            };
            match partition.removed {
                true => drop(partitions.remove(&PartitionId(partition.id))),
                false => drop(partitions.insert(PartitionId(partition.id), of_volume)),
            }
        }
    }

    /// Whether one of the nodes that have partitions of a volume passes.
    pub(crate) fn has_partition(&self, volume: VolumeId, passes: impl Fn(NodeId) -> bool) -> bool {
        let partitions = self.partitions.read();
        let of_volume = partitions.values().filter(|partition| partition.volume == volume);
        of_volume.flat_map(|partition| &partition.nodes).any(|node| passes(*node))
    }

    /// Takes what a map says of a node.
    pub fn learn(&self, node: &Node) {
        // Where there are no keys nobody asks.
        if self.tls.is_none() {
            return;
        }
        let id = NodeId(node.id);
        if node.removed || node.address.is_empty() {
            self.nodes.write().remove(&id);
            return;
        }
        let place = Place { address: node.address.clone(), bound: node.holder.clone() };
        if self.nodes.read().get(&id) != Some(&place) {
            self.nodes.write().insert(id, place);
        }
    }

    /// The name of the one that a node has instead of this key, if it has another one.
    pub fn other_of_node(&self, node: NodeId, holder: &Holder) -> Option<String> {
        let nodes = self.nodes.read();
        nodes.get(&node).filter(|place| !self.may_have(node, place, holder)).map(|place| place.bound.clone())
    }

    /// The same of whoever is at an address.
    pub fn other_at(&self, address: &str, holder: &Holder) -> Option<String> {
        let nodes = self.nodes.read();
        // One that moved, or is gone, may be there still beside the one that came.
        let mut first = None;
        for (node, place) in nodes.iter().filter(|(_, place)| place.address == address) {
            if node.get() <= MANAGER_ID_MAX && holder.node != *node {
                // A manager that came to where another one was has a key of its own. Any other server is found at a
                // place of its own beside this one, as soon as the map has it: it cannot be reached before.
                if !(1..=MANAGER_ID_MAX).contains(&holder.node.get()) {
                    first.get_or_insert_with(|| format!("manager {node}"));
                }
                continue;
            }
            if self.may_have(*node, place, holder) {
                return None;
            }
            first.get_or_insert_with(|| place.bound.clone());
        }
        first
    }

    fn may_have(&self, node: NodeId, place: &Place, holder: &Holder) -> bool {
        let revoked = self.tls.as_ref().and_then(|tls| tls.revoked());
        holder.may_have(node, &place.bound, |name| revoked.is_some_and(|list| list.has(name)))
    }
}

#[cfg(test)]
mod tests;
