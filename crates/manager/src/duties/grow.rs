//! Gives volumes more partitions: those that wait for the end of a range, and those that volumes need by memory or
//! load. Where no nodes have room for them, the status says so, and it is tried again.
use crate::leading::Leading;
use crate::manager::Manager;
use crate::ops::split::late_nodes;
use cairn_manager_core::command::{Command, MembersOf};
use cairn_manager_core::more_partitions::{AddPartitions, LATE_LEVEL, RangeEnded, grow};
use cairn_manager_core::{Partition, State, partition_members};
use cairn_types::{NodeId, VolumeId};
use std::collections::BTreeMap;

/// What is to be logged, and what cannot be.
#[derive(Default)]
struct Wanted {
    ended: Vec<RangeEnded>,
    more: Option<AddPartitions>,
    unplaced: BTreeMap<VolumeId, String>,
}

fn look(state: &State, leading: &Leading) -> Wanted {
    let mut wanted = Wanted::default();
    if state.level() < LATE_LEVEL {
        return wanted;
    }
    let nodes = late_nodes(state, leading);
    let numbers: Vec<u32> = nodes.iter().copied().map(NodeId::get).collect();
    let Wanted { ended, more, unplaced } = &mut wanted;
    let mut members = |volume: VolumeId, count: u32| -> Option<Vec<MembersOf>> {
        let planned = partition_members::plan(state, &leading.soft, &nodes, count);
        planned.map_err(|error| unplaced.insert(volume, error.message)).ok()
    };
    let reported = |partition: &Partition| {
        let report = leading.soft.partitions.get(&partition.id)?.report;
        (report.inode_last != 0 && report.inode_last != u64::MAX).then_some(report.inode_last)
    };
    for partition in state.partitions().filter(|partition| !partition.removed && partition.add > 0) {
        let Some(inode_last) = reported(partition) else { continue };
        let Some(members) = members(partition.volume, partition.add) else { continue };
        let nodes = numbers.clone();
        ended.push(RangeEnded { partition: partition.id.get(), inode_last, nodes, members });
    }
    *more = grow(state, &leading.soft, &nodes).and_then(|found| {
        let members = members(VolumeId(found.volume), found.add)?;
        Some(AddPartitions { members, ..found })
    });
    wanted
}

impl Manager {
    pub(super) async fn grow(&self) {
        let looked = self.look(|state, leading| {
            let Wanted { ended, more, unplaced } = look(state, leading);
            leading.soft.unplaced = unplaced;
            (ended, more)
        });
        let Ok((ended, more)) = looked else { return };
        for ended in ended {
            let partition = ended.partition;
            if self.duty("partitions behind the end of a range", Command::RangeEnded(ended)).await {
                tracing::info!(
                    partition,
                    "the range of inodes of a partition has ended: its volume has more partitions"
                );
            }
        }
        if let Some(more) = more {
            let (volume, add) = (more.volume, more.add);
            if self.duty("more partitions", Command::AddPartitions(more)).await {
                tracing::info!(volume, add, "partitions are full or busy: the volume gets more");
            }
        }
    }
}
