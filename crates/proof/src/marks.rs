//! [`MarkKeeper`]: carries between a process and the manager how far members of Raft groups got, as the binary does,
//! and what is wrong with the member of the managers' group.

use std::sync::{Arc, OnceLock};

use cairn_node_agent::Contributor;
use cairn_raft_host::{GroupMarks, Mark, MarkBook, RaftHost};
use cairn_types::{GroupId, NodeId, PartitionId};
use cairn_wire::manager::{HeartbeatRequest, HeartbeatResponse, PartitionMark, RegisterRequest, RegisterResponse};
use cairn_wire::raft::MemberMark;

/// A contributor of every process.
pub struct MarkKeeper {
    pub book: Arc<MarkBook>,
    /// Once there is one.
    pub raft: Arc<OnceLock<Arc<RaftHost>>>,
}

impl MarkKeeper {
    fn managers(&self) -> cairn_wire::raft::GroupMarks {
        let known = self.book.known(GroupId::MANAGER);
        let mark =
            |(node, mark): (&NodeId, &Mark)| MemberMark { node: node.get().into(), term: mark.term, index: mark.index };
        cairn_wire::raft::GroupMarks { index: known.index, marks: known.members.iter().map(mark).collect() }
    }
}

impl Contributor for MarkKeeper {
    fn register(&self, request: &mut RegisterRequest) {
        request.managers = Some(self.managers());
    }

    fn register_answered(&self, answer: &RegisterResponse) {
        let of = |mark: &PartitionMark| {
            (GroupId::from(PartitionId(mark.partition)), Mark { term: mark.term, index: mark.index })
        };
        self.book.manager_said(answer.marks.iter().map(of).collect());
    }

    fn heartbeat(&self, heartbeat: &mut HeartbeatRequest) {
        heartbeat.managers = Some(self.managers());
        if let Some(problem) = self.raft.get().and_then(|raft| raft.problem()) {
            heartbeat.problem = problem;
        }
    }

    fn heartbeat_answered(&self, answer: &HeartbeatResponse) {
        let Some(told) = &answer.managers else { return };
        let member = |mark: &MemberMark| {
            let node = u32::try_from(mark.node).ok().filter(|node| *node != 0)?;
            Some((NodeId(node), Mark { term: mark.term, index: mark.index }))
        };
        let view = GroupMarks { index: told.index, members: told.marks.iter().filter_map(member).collect() };
        self.book.note(GroupId::MANAGER, &view);
        // The disk is dead, or full: the next answer says it again.
        let _written = self.book.flush();
    }
}
