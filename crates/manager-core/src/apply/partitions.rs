//! Members of meta partitions: who shall be one, who has begun, when a change is done.
//!
//! A change is a wish in the state (`target`); until it is settled a partition has all members, those that come and
//! those that leave. The steps in the partition's own Raft group follow from it ([`crate::member_change`]), and the
//! change is settled when the group's leader says that exactly the wanted ones vote.
//!
//! Invariants: once members were wished for, nobody may begin the group, only join it. A node counts as having left,
//! and so drops its state, only by a settlement: when its vote is certainly gone.
use super::Outcome;
use crate::change::ItemKey;
use crate::command::{PartitionSettled, PartitionsBegun, SetPartitionMembers};
use crate::items::Roles;
use crate::state::State;
use cairn_types::{ErrorCode, NodeId, PartitionId};
use cairn_wire::error::WireError;
use std::sync::Arc;

impl State {
    pub(super) fn set_partition_members(&mut self, command: &SetPartitionMembers) -> Result<Outcome, WireError> {
        let id = PartitionId(command.partition);
        let target: Vec<NodeId> = command.members.iter().copied().map(NodeId).collect();
        let Some(partition) = self.partition(id).filter(|p| !p.removed) else {
            return Err(unknown_partition(id));
        };
        let distinct = (1..target.len()).all(|i| !target[..i].contains(&target[i]));
        let meta = |node: &NodeId| self.node(*node).is_some_and(|n| n.roles.has(Roles::META));
        if !matches!(target.len(), 1 | 3 | 5) || !distinct || !target.iter().all(meta) {
            let text = format!("{id} needs 1, 3 or 5 distinct meta nodes as members");
            return Err(WireError::new(ErrorCode::InvalidArgument, text));
        }
        let mut members = partition.members.clone();
        members.extend(target.iter().filter(|node| !partition.members.contains(node)));
        // What is there and wanted is left in peace; without a wish the group has exactly its members.
        let same = partition.members.len() == target.len() && members.len() == target.len();
        let as_it_is = partition.target.is_empty() && same && command.renew == 0;
        if as_it_is || partition.target == target {
            return Ok(Outcome::Done);
        }
        let wish = self.version + 1;
        let partition = Arc::make_mut(self.partitions.get_mut(&id).expect("just found"));
        partition.left.retain(|node| !members.contains(node));
        partition.members = members;
        partition.target = target;
        partition.wish = wish;
        partition.changed = true;
        // Its directory may be of before it had the partition: then it begins with nothing; else it says again that it
        // has begun.
        partition.begun.retain(|node| node.get() != command.renew);
        self.touch(ItemKey::Partition(id));
        Ok(Outcome::Done)
    }

    /// What was seen for an older wish has no effect.
    pub(super) fn partition_settled(&mut self, command: &PartitionSettled) -> Result<Outcome, WireError> {
        let id = PartitionId(command.partition);
        let current = self.partition(id).is_some_and(|p| !p.removed && !p.target.is_empty() && p.wish == command.wish);
        if !current {
            return Ok(Outcome::Done);
        }
        let partition = Arc::make_mut(self.partitions.get_mut(&id).expect("just found"));
        let members = std::mem::take(&mut partition.target);
        let gone = partition.members.iter().filter(|node| !members.contains(node)).copied();
        let gone: Vec<NodeId> = gone.collect();
        partition.left.extend(gone);
        partition.left.sort_unstable();
        // Who comes back comes with nothing.
        partition.begun.retain(|node| members.contains(node));
        partition.members = members;
        self.touch(ItemKey::Partition(id));
        // Who comes back begins anew.
        self.forget_marks();
        Ok(Outcome::Done)
    }

    /// What is said of a node that is no member, or of a partition that is gone, has no effect.
    pub(super) fn partitions_begun(&mut self, command: &PartitionsBegun) -> Result<Outcome, WireError> {
        for at in &command.members {
            let (id, node) = (PartitionId(at.partition), NodeId(at.node));
            if self.partition(id).is_none_or(|p| p.removed || !p.members.contains(&node) || p.begun.contains(&node)) {
                continue;
            }
            let partition = Arc::make_mut(self.partitions.get_mut(&id).expect("just found"));
            partition.begun.push(node);
            partition.begun.sort_unstable();
            self.touch(ItemKey::Partition(id));
        }
        Ok(Outcome::Done)
    }
}

/// "There is no such partition."
pub fn unknown_partition(id: PartitionId) -> WireError {
    let text = format!("there is no {id}; `cairn admin partition ls` shows those that exist");
    WireError::new(ErrorCode::UnknownPartition, text)
}
