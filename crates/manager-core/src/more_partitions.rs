//! More partitions for a volume that is there: the commands, and when a volume needs them.
//!
//! What a partition has stays in it: a split in the middle would part files from their directories. So a volume grows
//! by partitions that begin empty, and new directories go to them while others have more (ChubaoFS, Algorithm 1).
//! [`grow`] is asked by the leader now and then; it looks at what partitions reported.
use crate::command::MembersOf;
use crate::config::Key;
use crate::soft::Soft;
use crate::state::State;
use cairn_types::{NodeId, VolumeId};
use prost::Message;
use std::collections::BTreeMap;

/// Feature level of members that can begin a partition later than its volume.
pub const LATE_LEVEL: u32 = 6;

/// More partitions for a volume.
#[derive(Clone, PartialEq, Eq, Debug, Message)]
#[prost(skip_debug)]
pub struct AddPartitions {
    #[prost(uint32, tag = "1")]
    pub volume: u32,
    #[prost(uint32, tag = "2")]
    pub add: u32,
    /// Nodes that understand [`LATE_LEVEL`]: members are chosen of these.
    #[prost(uint32, repeated, tag = "3")]
    pub nodes: Vec<u32>,
    /// How many the volume had when that was decided; if it has more now nothing is done. 0: whatever it has.
    #[prost(uint32, tag = "4")]
    pub having: u32,
    /// Who gets each of them, if they are made at once, as in [`CreateVolume`](crate::command::CreateVolume).
    #[prost(message, repeated, tag = "5")]
    pub members: Vec<MembersOf>,
}

/// A partition gives out no more ids than these: the partitions that waited for it are made.
#[derive(Clone, PartialEq, Eq, Debug, Message)]
#[prost(skip_debug)]
pub struct RangeEnded {
    #[prost(uint32, tag = "1")]
    pub partition: u32,
    #[prost(uint64, tag = "2")]
    pub inode_last: u64,
    /// As in [`AddPartitions`].
    #[prost(uint32, repeated, tag = "3")]
    pub nodes: Vec<u32>,
    /// Who gets each of those that waited.
    #[prost(message, repeated, tag = "4")]
    pub members: Vec<MembersOf>,
}

/// What partitions that may be full have reported, by volume.
#[derive(Default)]
struct Use {
    partitions: u64,
    bytes: u64,
    most_bytes: u64,
    busy: u64,
}

/// The volume that needs more partitions most, if one does: its fullest partition is beyond the budget of memory and
/// the average beyond three quarters of it; or its partitions are busier than the budget of load on average. It gets as
/// many as it has, so it grows in few steps.
///
/// Nothing is said of a volume whose partitions have not all been reported to this leader. Not here: who gets them
/// ([`crate::partition_members`]).
pub fn grow(state: &State, soft: &Soft, nodes: &[NodeId]) -> Option<AddPartitions> {
    let (memory, load) = (state.config().number(Key::PartitionMemory), state.config().number(Key::PartitionLoad) * 10);
    let mut used: BTreeMap<VolumeId, Use> = BTreeMap::new();
    let mut unknown = Vec::new();
    for partition in state.partitions().filter(|partition| !partition.removed) {
        let of = used.entry(partition.volume).or_default();
        let Some(report) = soft.partitions.get(&partition.id).map(|load| load.report) else {
            unknown.push(partition.volume);
            continue;
        };
        // What is still to be made would be asked for again; what cannot end its range never gets any.
        if partition.add > 0 || report.feature_level < LATE_LEVEL {
            unknown.push(partition.volume);
        }
        of.partitions += 1;
        of.bytes += report.memory_bytes;
        of.most_bytes = of.most_bytes.max(report.memory_bytes);
        of.busy += u64::from(report.busy_permille);
    }
    let full = |of: &Use| memory > 0 && of.most_bytes > memory && of.bytes > of.partitions * memory / 4 * 3;
    let busy = |of: &Use| load > 0 && of.busy > of.partitions * load && of.partitions < 4 * nodes.len() as u64;
    let (volume, of) = used
        .iter()
        .filter(|(volume, of)| !unknown.contains(volume) && (full(of) || busy(of)))
        .filter(|(volume, _)| state.volume(**volume).is_some_and(|v| !v.deleted && v.trashed.is_none()))
        .max_by_key(|(_, of)| of.bytes)?;
    let having = of.partitions as u32;
    let nodes = nodes.iter().map(|node| node.get()).collect();
    Some(AddPartitions { volume: volume.get(), add: having, nodes, having, members: Vec::new() })
}
