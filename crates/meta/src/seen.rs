//! What this node knows of volumes and partitions, told with registrations: a manager whose state was restored from a
//! copy takes up what it has forgotten.
//!
//! Two sources: the newest map that it was told since it started, and the list of partitions whose state it has. Bound:
//! [`VOLUMES_MAX`] and [`PARTITIONS_MAX`], those with the highest ids: what was made last is what a copy lacks. Not
//! here: what the manager makes of it.

use std::sync::Arc;

use cairn_env::Disk;
use cairn_format::partition_list::PartitionEntry;
use cairn_node_agent::Contributor;
use cairn_types::DiskUuid;
use cairn_wire::manager::{Partition, RegisterRequest, Volume};

use crate::config::MetaConfig;
use crate::list_file::ListFile;
use crate::server::MetaServer;

/// Volumes that one registration tells (the manager goes by it).
const VOLUMES_MAX: usize = 1024;
/// Partitions likewise: as many as a cluster of volumes of several has (manager-core). Some hundred bytes each, of a
/// message of a megabyte that has placement groups besides.
const PARTITIONS_MAX: usize = 5120;

impl MetaServer {
    pub(crate) fn tell_partitions(&self, request: &mut RegisterRequest) {
        let things = request.things.get_or_insert_default();
        let (volumes, mut partitions): (Vec<Volume>, Vec<Partition>) =
            self.with_map(|map| (map.volumes().cloned().collect(), map.partitions().cloned().collect()));
        // Those that are there come before those that are gone.
        partitions.sort_by_key(|partition| (!partition.removed, partition.id));
        things.volumes = newest(VOLUMES_MAX, volumes);
        things.partitions = newest(PARTITIONS_MAX, partitions);
        let open: Vec<_> = self.partitions().read().values().cloned().collect();
        things.members = newest(PARTITIONS_MAX, open.iter().map(|partition| partition.members()).collect());
    }
}

/// Tells the list of partitions, also before the node is registered and the role can begin.
pub struct ListTeller {
    disk: Arc<dyn Disk>,
    dir: String,
    node: DiskUuid,
}

impl ListTeller {
    /// Of the node's directory with this uuid.
    pub fn new(disk: Arc<dyn Disk>, node: DiskUuid) -> Self {
        Self { disk, dir: MetaConfig::new(node).dir, node }
    }
}

impl Contributor for ListTeller {
    fn register(&self, request: &mut RegisterRequest) {
        let listed = match ListFile::open(self.disk.clone(), &self.dir, self.node) {
            Ok(list) => list.entries().to_vec(),
            Err(error) => {
                // The role says so, too, when it begins.
                tracing::warn!(%error, "the list of partitions cannot be read and is not told");
                return;
            }
        };
        let mut seen = request.seen.take().unwrap_or_default();
        for entry in &listed {
            seen.partition = seen.partition.max(entry.partition.get());
            seen.volume = seen.volume.max(entry.volume.get());
            seen.node = entry.members.iter().map(|node| node.get()).fold(seen.node, u32::max);
        }
        request.seen = Some(seen);
        let node = request.node;
        let things = request.things.get_or_insert_default();
        things.listed = newest(PARTITIONS_MAX, listed.iter().map(|entry| as_listed(entry, node)).collect());
    }
}

/// Ids rise with time.
fn newest<T>(most: usize, mut all: Vec<T>) -> Vec<T> {
    let more = all.len().saturating_sub(most);
    all.drain(..more);
    all
}

fn as_listed(entry: &PartitionEntry, node: u32) -> Partition {
    Partition {
        id: entry.partition.get(),
        volume: entry.volume.get(),
        inode_first: entry.inodes.0,
        inode_last: entry.inodes.1,
        nodes: vec![node],
        begun: if entry.begun { vec![node] } else { Vec::new() },
        changed: true,
        ..Partition::default()
    }
}
