//! [`MarkKeeper`]: carries between this node and the manager how far members of Raft groups got.
//!
//! The node remembers it of the managers, and tells whom it registers with; the manager remembers it of this node's
//! members of partitions, and says so when the node registers. Not here: what it is for (cairn-raft's `marks`).
use cairn_node_agent::Contributor;
use cairn_raft_host::{GroupMarks, Mark, MarkBook};
use cairn_types::{GroupId, NodeId, PartitionId};
use cairn_wire::manager::{HeartbeatRequest, HeartbeatResponse, RegisterRequest, RegisterResponse};
use cairn_wire::raft::MemberMark;
use std::sync::Arc;

pub(super) struct MarkKeeper {
    pub(super) book: Arc<MarkBook>,
}

impl MarkKeeper {
    fn managers(&self) -> cairn_wire::raft::GroupMarks {
        let known = self.book.known(GroupId::MANAGER);
        let marks = known.members.iter();
        let marks =
            marks.map(|(node, mark)| MemberMark { node: node.get().into(), term: mark.term, index: mark.index });
        cairn_wire::raft::GroupMarks { index: known.index, marks: marks.collect() }
    }
}

impl Contributor for MarkKeeper {
    fn register(&self, request: &mut RegisterRequest) {
        request.managers = Some(self.managers());
    }

    fn register_answered(&self, answer: &RegisterResponse) {
        let of = |mark: &cairn_wire::manager::PartitionMark| {
            (GroupId::from(PartitionId(mark.partition)), Mark { term: mark.term, index: mark.index })
        };
        self.book.manager_said(answer.marks.iter().map(of).collect());
    }

    fn heartbeat(&self, heartbeat: &mut HeartbeatRequest) {
        heartbeat.managers = Some(self.managers());
    }

    fn heartbeat_answered(&self, answer: &HeartbeatResponse) {
        let Some(told) = &answer.managers else { return };
        let member = |mark: &MemberMark| {
            let node = u32::try_from(mark.node).ok().filter(|node| *node != 0)?;
            Some((NodeId(node), Mark { term: mark.term, index: mark.index }))
        };
        let view = GroupMarks { index: told.index, members: told.marks.iter().filter_map(member).collect() };
        self.book.note(GroupId::MANAGER, &view);
        if let Err(error) = self.book.flush() {
            tracing::error!(%error, "how far the managers got cannot be written down; will be repeated");
        }
    }
}
