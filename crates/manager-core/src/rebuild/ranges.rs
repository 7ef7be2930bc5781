//! Whether the partitions that were found are all of their volumes.
//!
//! How many partitions a volume was made with is in no directory of a node: a partition that was not found is seen
//! where those beside it were. That the last ones are missing only a backup tells (`partitions` of the parent says so).
use super::{Builder, Weight};
use crate::items::Partition;
use crate::state::State;
use cairn_types::{InodeId, VolumeId};
use std::collections::BTreeMap;

/// Ranges behind the highest one that is known, which new partitions do not get: others that were not found may have
/// them. A volume of up to 2^48 inodes has 256.
const RANGES_GAP: u64 = 64;
/// Feature level of managers that leave out ranges.
const RANGES_LEVEL: u32 = 25;

impl Builder<'_> {
    /// New partitions begin behind what partitions may have that were not found: names lead to inodes of those.
    pub(super) fn ranges_from(&mut self) {
        let volumes: Vec<VolumeId> = self.state.volumes().filter(|volume| !volume.deleted).map(|v| v.id).collect();
        for id in volumes {
            let of = |state: &State| {
                let own = state.partitions().filter(|partition| partition.volume == id);
                // Where a range has no end, the partition itself says later where it has ended.
                own.map(|p| if p.inode_last == u64::MAX { p.inode_first } else { p.inode_last }).max()
            };
            let known = of(&self.state).max(self.base.as_ref().and_then(of)).unwrap_or(0);
            let before = self.state.volume(id).map_or(0, |volume| volume.ranges_from >> InodeId::RANGE_BITS);
            let from =
                ((known >> InodeId::RANGE_BITS) + 1).max(before).saturating_add(RANGES_GAP) << InodeId::RANGE_BITS;
            let volume = self.state.volumes.get_mut(&id).expect("just listed");
            std::sync::Arc::make_mut(volume).ranges_from = from;
            self.state.level = self.state.level.max(RANGES_LEVEL);
        }
    }

    /// Inodes that two partitions have, or none.
    pub(super) fn ranges(&mut self) {
        self.end_open_ranges();
        if let Some((one, other)) = self.state.shared_inodes() {
            self.say(Weight::Conflict, format!("{one} and {other} have the same inodes of one volume"));
        }
        let mut volumes: BTreeMap<VolumeId, Vec<Partition>> = BTreeMap::new();
        for partition in self.state.partitions() {
            volumes.entry(partition.volume).or_default().push(partition.clone());
        }
        // What the backup knows and nobody has is told by its id.
        let base = self.base.as_ref();
        volumes.retain(|id, _| base.is_none_or(|base| base.volume(*id).is_none()));
        for (id, mut partitions) in volumes {
            partitions.sort_by_key(|partition| partition.inode_first);
            self.holes(id, &partitions);
        }
    }

    /// A range without an end was ended, in its partition's log, before there was a partition with what follows.
    fn end_open_ranges(&mut self) {
        let open: Vec<Partition> = self.state.partitions().filter(|p| p.inode_last == u64::MAX).cloned().collect();
        for open in open {
            let behind =
                self.state.partitions().filter(|p| p.volume == open.volume && p.inode_first > open.inode_first);
            if let Some(first) = behind.map(|partition| partition.inode_first).min() {
                let item = self.state.partitions.get_mut(&open.id).expect("just listed");
                std::sync::Arc::make_mut(item).inode_last = first - 1;
            }
        }
    }

    fn holes(&mut self, id: VolumeId, partitions: &[Partition]) {
        let mut next = InodeId::ROOT.0;
        for partition in partitions {
            if partition.inode_first > next && partition.inode_first - next == RANGES_GAP << InodeId::RANGE_BITS {
                let text = format!(
                    "nobody has inodes {next} to {} of {id}: they were left out when the map was made anew",
                    partition.inode_first - 1
                );
                self.say(Weight::Note, text);
            } else if partition.inode_first > next {
                let what = if next == InodeId::ROOT.0 { ", its root among them," } else { "" };
                let text = format!(
                    "inodes {next} to {} of {id}{what} belong to partitions that were found on no meta node: name the directories of their \
                     members; their names are not there without them",
                    partition.inode_first - 1
                );
                self.say(Weight::Missing, text);
            }
            next = next.max(partition.inode_last.saturating_add(1));
        }
        if next != u64::MAX {
            let text = format!(
                "{id} is made of {} partitions that were found, with the inodes below {next}; whether it had more behind them is known from a \
                 backup only (--backups)",
                partitions.len()
            );
            self.say(Weight::Note, text);
        }
    }
}
