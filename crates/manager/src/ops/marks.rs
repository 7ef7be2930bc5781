//! How far members of Raft groups got, as others remember it: of meta partitions this manager, of the managers the
//! nodes.
//!
//! Meta nodes tell with each heartbeat how far their members are; the leader remembers the highest and logs what
//! changed some seconds (`duties/marks.rs`). A node that registers is told what is known of its members. Nodes are told
//! how far the managers are, and tell it to whom they register with or send heartbeats: a manager that starts hears it
//! although it does not lead. Not here: what follows from it (cairn-raft's `marks`).
use crate::leading::Leading;
use crate::manager::Manager;
use cairn_manager_core::State;
use cairn_raft_host::{GroupMarks, Mark};
use cairn_types::NodeId;
use cairn_wire::manager::PartitionMark;
use cairn_wire::raft::MemberMark;
use std::collections::BTreeSet;

/// Nodes that have to be heard at most.
const WITNESSES_MAX: usize = 1024;

/// What nodes said of the managers.
#[derive(Default)]
pub(crate) struct Witnesses {
    heard: BTreeSet<u32>,
    enough: bool,
    view: GroupMarks,
}

/// What is known of a node's members of partitions.
pub(super) fn known_of(state: &State, leading: &Leading, node: NodeId) -> Vec<PartitionMark> {
    let of = state.partitions().filter(|p| !p.removed && p.members.contains(&node)).filter_map(|p| {
        let told = leading.marks.get(&(p.id, node)).copied();
        let (term, index) = told.max(state.mark(p.id, node))?;
        Some(PartitionMark { partition: p.id.get(), term, index })
    });
    of.collect()
}

impl Manager {
    /// For nodes: the managers, and how far they got.
    pub(crate) fn marks_of_managers(&self) -> cairn_wire::raft::GroupMarks {
        let Some(core) = self.log.get().map(|log| log.status().core) else { return Default::default() };
        let marks = core.marks.iter().filter(|(node, _)| core.members.contains(*node));
        let marks =
            marks.map(|(node, mark)| MemberMark { node: node.get().into(), term: mark.term, index: mark.index });
        cairn_wire::raft::GroupMarks { index: core.applied.index, marks: marks.collect() }
    }

    /// A node says what it remembers of the managers. It counts once half of the nodes that should run were heard: one
    /// that was away knows less than the others.
    pub(crate) fn told_of_managers(&self, witness: u32, told: Option<&cairn_wire::raft::GroupMarks>) {
        let view = told.map(read).unwrap_or_default();
        let mut witnesses = self.witnesses.lock();
        witnesses.view.merge(&view);
        if !witnesses.enough {
            if witness != 0 {
                witnesses.heard.insert(witness);
            }
            let up = self.replica.read().nodes().filter(|node| node.up).count();
            witnesses.enough = 2 * witnesses.heard.len() >= up.min(WITNESSES_MAX);
        }
        if witnesses.enough {
            self.raft.marks().nodes_said(self.config.member, &witnesses.view);
        }
    }
}

fn read(told: &cairn_wire::raft::GroupMarks) -> GroupMarks {
    let member = |mark: &MemberMark| {
        let node = u32::try_from(mark.node).ok().filter(|node| *node != 0)?;
        Some((NodeId(node), Mark { term: mark.term, index: mark.index }))
    };
    GroupMarks { index: told.index, members: told.marks.iter().filter_map(member).collect() }
}
