//! [`NamedMembers`]: the members of meta partitions as the cluster map names them, with those that come and leave.
//!
//! Invariant: the map names a node before the partition's group takes it, and until the group is certainly without it
//! (`member_change` of the managers), so whoever is in no map and in no configuration of the group is none of it. Not
//! here: the managers' own group, of which the map says nothing.

use std::collections::BTreeMap;

use cairn_types::{GroupId, NodeId};
use cairn_wire::manager::ClusterMap;
use parking_lot::RwLock;

/// Empty until a map was heard.
#[derive(Debug, Default)]
pub(crate) struct NamedMembers(RwLock<Named>);

#[derive(Debug, Default)]
struct Named {
    version: u64,
    groups: BTreeMap<GroupId, Vec<NodeId>>,
}

impl NamedMembers {
    /// Takes a full map or a delta over.
    pub fn learn(&self, change: &ClusterMap) {
        let mut named = self.0.write();
        if change.base_version == 0 {
            named.groups.clear();
        } else if change.version < named.version {
            // One that was overtaken.
            return;
        }
        named.version = change.version;
        for partition in &change.partitions {
            let group = GroupId(partition.id);
            let nodes = partition.nodes.iter().copied().map(NodeId);
            match partition.removed {
                true => drop(named.groups.remove(&group)),
                false => drop(named.groups.insert(group, nodes.collect())),
            }
        }
    }

    pub fn has(&self, group: GroupId, node: NodeId) -> bool {
        self.0.read().groups.get(&group).is_some_and(|nodes| nodes.contains(&node))
    }

    pub fn of(&self, group: GroupId) -> Vec<NodeId> {
        self.0.read().groups.get(&group).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_wire::manager::Partition;

    fn map(base: u64, version: u64, nodes: &[u32], removed: bool) -> ClusterMap {
        let partition = Partition { id: 7, nodes: nodes.to_vec(), removed, ..Partition::default() };
        ClusterMap { base_version: base, version, partitions: vec![partition], ..ClusterMap::default() }
    }

    /// A new member would be a stranger, or one that left would be none.
    #[test]
    fn follows_the_map() {
        let (named, group) = (NamedMembers::default(), GroupId(7));
        assert!(!named.has(group, NodeId(21)), "no map was heard");
        named.learn(&map(0, 5, &[21, 22], false));
        named.learn(&map(5, 7, &[21, 22, 23], false));
        named.learn(&map(5, 6, &[21], false));
        assert_eq!(named.of(group), [NodeId(21), NodeId(22), NodeId(23)]);
        // Managers whose state is of before.
        named.learn(&map(0, 4, &[22], false));
        assert!(named.has(group, NodeId(22)) && !named.has(group, NodeId(23)));
        named.learn(&map(4, 9, &[22], true));
        assert!(!named.has(group, NodeId(22)) && named.of(group).is_empty());
    }
}
