//! Gives volumes more partitions: those that wait for the end of a range, and those that volumes need by memory or
//! load.
use crate::manager::Manager;
use crate::ops::split::late_nodes;
use cairn_manager_core::command::Command;
use cairn_manager_core::more_partitions::{LATE_LEVEL, RangeEnded, grow};

impl Manager {
    pub(super) async fn grow(&self) {
        let looked = self.look(|state, leading| {
            if state.level() < LATE_LEVEL {
                return (Vec::new(), None);
            }
            let nodes = late_nodes(state, leading);
            let members: Vec<u32> = nodes.iter().map(|node| node.get()).collect();
            let reported = |partition: &cairn_manager_core::Partition| {
                let report = leading.soft.partitions.get(&partition.id)?.report;
                let ended = report.inode_last != 0 && report.inode_last != u64::MAX;
                let nodes = members.clone();
                ended.then(|| RangeEnded { partition: partition.id.get(), inode_last: report.inode_last, nodes })
            };
            let ended = state.partitions().filter(|p| !p.removed && p.add > 0).filter_map(reported).collect();
            (ended, grow(state, &leading.soft, &nodes))
        });
        let Ok((ended, wanted)) = looked else { return };
        for ended in ended {
            let partition = ended.partition;
            if self.duty("partitions behind the end of a range", Command::RangeEnded(ended)).await {
                tracing::info!(
                    partition,
                    "the range of inodes of a partition has ended: its volume has more partitions"
                );
            }
        }
        if let Some(wanted) = wanted {
            let (volume, add) = (wanted.volume, wanted.add);
            if self.duty("more partitions", Command::AddPartitions(wanted)).await {
                tracing::info!(volume, add, "partitions are full or busy: the volume gets more");
            }
        }
    }
}
