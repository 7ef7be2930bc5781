//! Names of items of the state, for the index of what changed when.
use cairn_types::{DiskId, NodeId, PartitionId, PgId, VolumeId};

/// An item of the state.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ItemKey {
    Node(NodeId),
    Disk(DiskId),
    Volume(VolumeId),
    Partition(PartitionId),
    Pg(PgId),
}
