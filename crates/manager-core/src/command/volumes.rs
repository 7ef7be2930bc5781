//! Commands about volumes and their meta partitions.
use super::ConfigValue;
use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub struct CreateVolume {
    #[prost(string, tag = "1")]
    pub name: String,
    /// Layout bits, 0: the default.
    #[prost(uint64, tag = "2")]
    pub layout: u64,
    /// How many partitions it is made of; 0, as entries of before have it: one. More than one of feature level 5.
    #[prost(uint32, tag = "3")]
    pub partitions: u32,
    /// Who gets each of them, as the leader chose by use; empty, as entries of before have it: those with the fewest
    /// partitions. Of feature level 32.
    #[prost(message, repeated, tag = "4")]
    pub members: Vec<MembersOf>,
}

/// Members of a new partition, the one that leads first in front.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct MembersOf {
    #[prost(uint32, repeated, tag = "1")]
    pub nodes: Vec<u32>,
}

/// Settings of one volume in the place of the cluster's.
#[derive(Clone, PartialEq, Message)]
pub struct SetVolume {
    #[prost(string, tag = "1")]
    pub name: String,
    /// An empty value: the cluster's.
    #[prost(message, repeated, tag = "2")]
    pub items: Vec<ConfigValue>,
}

#[derive(Clone, PartialEq, Message)]
pub struct DeleteVolume {
    #[prost(string, tag = "1")]
    pub name: String,
    /// Only if it is in the trash since then; 0: in any case.
    #[prost(uint64, tag = "2")]
    pub trashed_ns: u64,
}

/// Puts a volume into the trash with all that is in it.
#[derive(Clone, PartialEq, Message)]
pub struct TrashVolume {
    #[prost(string, tag = "1")]
    pub name: String,
}

/// Takes a volume out of the trash again.
#[derive(Clone, PartialEq, Message)]
pub struct RestoreVolume {
    #[prost(string, tag = "1")]
    pub name: String,
}

/// Who shall be a member from now on; the change itself takes its time.
#[derive(Clone, PartialEq, Message)]
pub struct SetPartitionMembers {
    #[prost(uint32, tag = "1")]
    pub partition: u32,
    #[prost(uint32, repeated, tag = "2")]
    pub members: Vec<u32>,
    /// The members stay as they are, but this one loses its vote and gets it again when it has caught up; 0: nobody.
    #[prost(uint32, tag = "3")]
    pub renew: u32,
}

/// The partition's group has exactly the members that were wished for.
#[derive(Clone, PartialEq, Message)]
pub struct PartitionSettled {
    #[prost(uint32, tag = "1")]
    pub partition: u32,
    #[prost(uint64, tag = "2")]
    pub wish: u64,
}

/// Members that have opened their partition: from now on they must have its log.
#[derive(Clone, PartialEq, Message)]
pub struct PartitionsBegun {
    #[prost(message, repeated, tag = "1")]
    pub members: Vec<PartitionAt>,
}

/// A partition on a node.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct PartitionAt {
    #[prost(uint32, tag = "1")]
    pub partition: u32,
    #[prost(uint32, tag = "2")]
    pub node: u32,
}
