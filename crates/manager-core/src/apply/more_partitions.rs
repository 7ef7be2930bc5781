//! More partitions for a volume that is there.
//!
//! | the volume has | what follows |
//! |---|---|
//! | a partition whose range has no end | it is asked to end it; when it says so, its range gets that end and the new partitions are made, in one step |
//! | ranges with ends | the new partitions are made at once |
//!
//! Invariants: ids behind the end of a range are given to others only after the end is in that partition's own log; a
//! range is given once.
use super::volume_partitions::VOLUME_PARTITIONS_MAX;
use super::{Outcome, partitions::unknown_partition};
use crate::change::ItemKey;
use crate::command::MembersOf;
use crate::more_partitions::{AddPartitions, LATE_LEVEL, RangeEnded};
use crate::state::State;
use cairn_types::{ErrorCode, InodeId, NodeId, PartitionId, VolumeId};
use cairn_wire::error::WireError;
use std::sync::Arc;

impl State {
    pub(super) fn add_partitions(&mut self, command: &AddPartitions) -> Result<Outcome, WireError> {
        let (volume, add) = (VolumeId(command.volume), command.add);
        if self.volume(volume).is_none_or(|v| v.deleted || v.trashed.is_some()) {
            let text = format!("{volume} is not in use: `cairn admin volume ls` shows those that are");
            return Err(WireError::new(ErrorCode::UnknownVolume, text));
        }
        let own = || self.partitions().filter(|p| p.volume == volume && !p.removed);
        let there = own().count() as u32;
        if command.having != 0 && command.having != there {
            return Ok(Outcome::Partitions(Vec::new()));
        }
        if add == 0 || there.saturating_add(add) > VOLUME_PARTITIONS_MAX {
            let text = format!(
                "a volume has at most {VOLUME_PARTITIONS_MAX} partitions, and {volume} has {there}: name from 1 to {} more",
                VOLUME_PARTITIONS_MAX - there.min(VOLUME_PARTITIONS_MAX)
            );
            return Err(WireError::new(ErrorCode::InvalidArgument, text));
        }
        if let Some(waiting) = own().find(|partition| partition.add > 0) {
            let text = format!(
                "{} is about to end its range of inodes, then {volume} gets {} more partitions: repeat when `cairn admin partition ls` \
                 shows them",
                waiting.id, waiting.add
            );
            return Err(WireError::new(ErrorCode::Conflict, text));
        }
        self.check_room_for(add)?;
        let members = self.members_among(add, &command.nodes, &command.members)?;
        let Some(open) = own().find(|partition| partition.inode_last == u64::MAX).map(|partition| partition.id) else {
            return Ok(Outcome::Partitions(self.make_more(volume, members)?));
        };
        Arc::make_mut(self.partitions.get_mut(&open).expect("just found")).add = add;
        self.touch(ItemKey::Partition(open));
        Ok(Outcome::Partitions(Vec::new()))
    }

    /// What is said again has no effect.
    pub(super) fn range_ended(&mut self, command: &RangeEnded) -> Result<Outcome, WireError> {
        let id = PartitionId(command.partition);
        let Some(partition) = self.partition(id).filter(|partition| !partition.removed) else {
            return Err(unknown_partition(id));
        };
        let (volume, add) = (partition.volume, partition.add);
        if add == 0 || partition.inode_last != u64::MAX {
            return Ok(Outcome::Partitions(Vec::new()));
        }
        let last = command.inode_last;
        let is_end = last.checked_add(1).is_some_and(|next| next >> InodeId::RANGE_BITS << InodeId::RANGE_BITS == next);
        if !is_end || last < partition.inode_first {
            let text = format!("{id} says that its range ends with inode {last}, which is no end of a range");
            return Err(WireError::new(ErrorCode::BadRequest, text));
        }
        let members = self.members_among(add, &command.nodes, &command.members)?;
        check_ranges(volume, last, add)?;
        let partition = Arc::make_mut(self.partitions.get_mut(&id).expect("just found"));
        (partition.inode_last, partition.add) = (last, 0);
        self.touch(ItemKey::Partition(id));
        Ok(Outcome::Partitions(self.make_more(volume, members)?))
    }

    fn members_among(&self, count: u32, nodes: &[u32], planned: &[MembersOf]) -> Result<Vec<Vec<NodeId>>, WireError> {
        if !planned.is_empty() {
            return self.planned_members(count, planned);
        }
        let mut candidates = self.meta_nodes(true);
        candidates.retain(|candidate| nodes.contains(&candidate.node.get()));
        self.choose_members(count, candidates)
    }

    /// Behind all ranges that the volume ever had, and may have had.
    fn make_more(&mut self, volume: VolumeId, members: Vec<Vec<NodeId>>) -> Result<Vec<PartitionId>, WireError> {
        let last = self.partitions().filter(|p| p.volume == volume).map(|p| p.inode_last).max().unwrap_or(0);
        let last = last.max(self.volume(volume).map_or(0, |volume| volume.ranges_from.saturating_sub(1)));
        check_ranges(volume, last, members.len() as u32)?;
        let mut first = last + 1;
        let mut made = Vec::new();
        for members in members {
            let next = first + (1 << InodeId::RANGE_BITS);
            made.push(self.make_partition(volume, (first, next - 1), members, LATE_LEVEL));
            first = next;
        }
        Ok(made)
    }
}

/// The top byte of an inode id is not given.
fn check_ranges(volume: VolumeId, last: u64, count: u32) -> Result<(), WireError> {
    let ranges = (last >> InodeId::RANGE_BITS) + 1 + u64::from(count);
    if ranges <= 1 << (56 - InodeId::RANGE_BITS) {
        return Ok(());
    }
    let text = format!("{volume} has no ranges of inodes left for {count} more partitions: make another volume");
    Err(WireError::new(ErrorCode::NoSpace, text))
}
