//! How far each member of a meta partition got, as it said itself: term and index of its Raft log, durable.
//!
//! It is the outside memory of a group: a member that starts with less is an older copy of itself and neither votes nor
//! leads (cairn-raft's `marks`). Invariants: a mark never goes back while its node is a member; those of former members
//! and of removed partitions go. Not part of the cluster map. Not here: who asks, and when it is logged (the manager).
use crate::apply::Outcome;
use crate::command::PartitionMarks;
use crate::state::State;
use cairn_types::{NodeId, PartitionId};
use cairn_wire::error::WireError;
use prost::Message;
use std::collections::BTreeMap;

/// Term and index.
pub type Mark = (u64, u64);
/// Marks that one command carries.
pub const MARKS_PER_COMMAND: usize = 4096;

/// In a command and in a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct MarkOf {
    #[prost(uint32, tag = "1")]
    pub partition: u32,
    #[prost(uint32, tag = "2")]
    pub node: u32,
    #[prost(uint64, tag = "3")]
    pub term: u64,
    #[prost(uint64, tag = "4")]
    pub index: u64,
}

/// By partition and member.
pub type Marks = BTreeMap<(PartitionId, NodeId), Mark>;

impl State {
    /// The highest mark that is logged.
    pub fn mark(&self, partition: PartitionId, node: NodeId) -> Option<Mark> {
        self.marks.get(&(partition, node)).copied()
    }

    /// All that are logged.
    pub fn marks(&self) -> impl Iterator<Item = MarkOf> {
        let of = |(&(partition, node), &(term, index)): (&(PartitionId, NodeId), &Mark)| MarkOf {
            partition: partition.get(),
            node: node.get(),
            term,
            index,
        };
        self.marks.iter().map(of)
    }

    pub(crate) fn partition_marks(&mut self, command: &PartitionMarks) -> Result<Outcome, WireError> {
        for mark in &command.marks {
            let (id, node) = (PartitionId(mark.partition), NodeId(mark.node));
            if self.partition(id).is_some_and(|p| !p.removed && p.members.contains(&node)) {
                let known = self.marks.entry((id, node)).or_default();
                *known = (*known).max((mark.term, mark.index));
            }
        }
        self.forget_marks();
        Ok(Outcome::Done)
    }

    /// Those of nodes that are no members any more.
    pub(crate) fn forget_marks(&mut self) {
        let Self { marks, partitions, .. } = self;
        marks.retain(|(id, node), _| partitions.get(id).is_some_and(|p| !p.removed && p.members.contains(node)));
    }
}
