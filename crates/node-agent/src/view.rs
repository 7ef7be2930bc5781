//! [`MapView`]: the cluster map, kept up to date from deltas.
//!
//! Invariants: the version never goes back; a delta that does not connect to it changes nothing; of a placement group
//! the highest epoch seen is kept.

use std::collections::BTreeMap;

use cairn_types::{DiskId, NodeId, PartitionId, PgId, VolumeId};
use cairn_wire::data::PgState;
use cairn_wire::manager::{ClusterMap, Disk, Node, Partition, Pg, PgColumn, Volume};

/// The map as far as the manager told this node.
#[derive(Debug, Clone, Default)]
pub struct MapView {
    cluster: Vec<u8>,
    name: String,
    version: u64,
    nodes: BTreeMap<u32, Node>,
    disks: BTreeMap<u32, Disk>,
    volumes: BTreeMap<u32, Volume>,
    partitions: BTreeMap<u32, Partition>,
    pgs: BTreeMap<u32, Pg>,
}

impl MapView {
    /// Takes a full map or a delta over. `false`: the delta starts after this view's version, a full map is needed.
    pub fn apply(&mut self, change: &ClusterMap) -> bool {
        if change.base_version > self.version {
            return false;
        }
        if change.base_version == 0 {
            *self = Self::default();
        } else if change.version < self.version {
            return true;
        }
        self.version = change.version;
        if !change.cluster.is_empty() {
            self.cluster.clone_from(&change.cluster);
        }
        if !change.name.is_empty() {
            self.name.clone_from(&change.name);
        }
        self.nodes.extend(change.nodes.iter().map(|node| (node.id, node.clone())));
        self.disks.extend(change.disks.iter().map(|disk| (disk.id, disk.clone())));
        self.volumes.extend(change.volumes.iter().map(|volume| (volume.id, volume.clone())));
        self.partitions.extend(change.partitions.iter().map(|partition| (partition.id, partition.clone())));
        self.merge_pgs(change);
        true
    }

    /// Takes over the placement groups of a map that was fetched by its own, and nodes and disks that are not known
    /// yet; the version stays.
    pub fn merge_pgs(&mut self, other: &ClusterMap) {
        for pg in &other.pgs {
            let Some(state) = &pg.state else { continue };
            let known = self.pgs.get(&state.pg).and_then(|known| known.state.as_ref());
            if known.is_none_or(|known| known.epoch <= state.epoch) {
                self.pgs.insert(state.pg, pg.clone());
            }
        }
        for node in &other.nodes {
            self.nodes.entry(node.id).or_insert_with(|| node.clone());
        }
        for disk in &other.disks {
            self.disks.entry(disk.id).or_insert_with(|| disk.clone());
        }
    }

    /// All of it as one message.
    pub fn to_map(&self) -> ClusterMap {
        ClusterMap {
            cluster: self.cluster.clone(),
            version: self.version,
            base_version: 0,
            nodes: self.nodes.values().cloned().collect(),
            disks: self.disks.values().cloned().collect(),
            volumes: self.volumes.values().cloned().collect(),
            partitions: self.partitions.values().cloned().collect(),
            pgs: self.pgs.values().cloned().collect(),
            name: self.name.clone(),
            loads: Vec::new(),
            stale: false,
            age_ms: 0,
        }
    }

    /// The version; 0 before the first map.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// A node.
    pub fn node(&self, node: NodeId) -> Option<&Node> {
        self.nodes.get(&node.get())
    }

    /// Where a node's RPC port is.
    pub fn address(&self, node: NodeId) -> Option<&str> {
        self.node(node).map(|node| node.address.as_str()).filter(|address| !address.is_empty())
    }

    /// A disk.
    pub fn disk(&self, disk: DiskId) -> Option<&Disk> {
        self.disks.get(&disk.get())
    }

    /// A volume.
    pub fn volume(&self, volume: VolumeId) -> Option<&Volume> {
        self.volumes.get(&volume.get())
    }

    /// All volumes, by id; those that were deleted meanwhile too.
    pub fn volumes(&self) -> impl Iterator<Item = &Volume> {
        self.volumes.values()
    }

    /// A partition.
    pub fn partition(&self, partition: PartitionId) -> Option<&Partition> {
        self.partitions.get(&partition.get())
    }

    /// The state of a placement group.
    pub fn pg(&self, pg: PgId) -> Option<&PgState> {
        self.pgs.get(&pg.get()).and_then(|pg| pg.state.as_ref())
    }

    /// What a group is in a stripe group, if it is in one.
    pub fn column(&self, pg: PgId) -> Option<&PgColumn> {
        self.pgs.get(&pg.get())?.column.as_ref()
    }

    /// All placement groups, by id.
    pub fn pgs(&self) -> impl Iterator<Item = &PgState> {
        self.pgs.values().filter_map(|pg| pg.state.as_ref())
    }

    /// The highest id of a placement group in the map.
    pub fn pg_newest(&self) -> Option<PgId> {
        self.pgs.last_key_value().map(|(id, _)| PgId(*id))
    }

    /// All nodes, by id.
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.values()
    }

    /// All partitions, by id.
    pub fn partitions(&self) -> impl Iterator<Item = &Partition> {
        self.partitions.values()
    }
}
