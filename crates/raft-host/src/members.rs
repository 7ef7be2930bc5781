//! [`MembersAsk`]: the question for a group's members, with at most one change of them (operation GroupMembers).
//!
//! Whoever decides on a change names the members that it decided on by term and index of an earlier answer. Invariants:
//! only a leader that holds its lease answers with members; a change is made only if no other was made, or begun,
//! since; so what was delayed on its way has no effect. Not here: which change is wanted, and when a new member has
//! caught up enough (who asks).

use cairn_raft::{MemberChange, members::MEMBERS_MAX};
use cairn_types::NodeId;
use cairn_wire::raft::{GroupMember, GroupMembersRequest, GroupMembersResponse};

use crate::error::HostError;
use crate::owner::Owner;
use crate::state_machine::StateMachine;

/// A decoded question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MembersAsk {
    decided_on: (u64, u64),
    changes: Vec<MemberChange>,
    transfer_to: Option<NodeId>,
}

impl MembersAsk {
    /// `None` for what no correct peer asks.
    pub fn decode(request: &GroupMembersRequest) -> Option<Self> {
        let change = |change: &cairn_wire::raft::MemberChange| {
            let node = Some(NodeId(change.node)).filter(|node| node.0 != 0)?;
            match change.kind {
                1 => Some(MemberChange::Voter(node)),
                2 => Some(MemberChange::Learner(node)),
                3 => Some(MemberChange::Remove(node)),
                _ => None,
            }
        };
        if request.changes.len() > MEMBERS_MAX {
            return None;
        }
        Some(Self {
            decided_on: (request.term, request.index),
            changes: request.changes.iter().map(change).collect::<Option<_>>()?,
            transfer_to: Some(NodeId(request.transfer_to)).filter(|node| node.0 != 0),
        })
    }
}

/// A change as the wire has it.
pub fn change_out(change: MemberChange) -> cairn_wire::raft::MemberChange {
    let (node, kind) = match change {
        MemberChange::Voter(node) => (node, 1),
        MemberChange::Learner(node) => (node, 2),
        MemberChange::Remove(node) => (node, 3),
    };
    cairn_wire::raft::MemberChange { node: node.0, kind }
}

impl<S: StateMachine> Owner<S> {
    pub(crate) fn members(&mut self, ask: MembersAsk) -> Result<GroupMembersResponse, HostError> {
        self.running()?;
        if !self.leads_or_wakes() {
            let leader = self.hint().map_or(0, |node| node.0);
            return Ok(GroupMembersResponse { leader, ..GroupMembersResponse::default() });
        }
        if !ask.changes.is_empty() || ask.transfer_to.is_some() {
            let status = self.status();
            if status.changing || (status.term, status.members_at) != ask.decided_on {
                return Err(HostError::Refused("the members changed since this was decided; look again".into()));
            }
        }
        if !ask.changes.is_empty() {
            self.change_members(ask.changes)?;
        } else if let Some(to) = ask.transfer_to {
            self.transfer_leader(to)?;
        }
        let status = self.status();
        let matched = |node: &NodeId| status.matched.iter().find(|(id, _)| id == node).map_or(0, |(_, index)| *index);
        let member = |votes: bool| move |node: &NodeId| GroupMember { node: node.0, votes, matched: matched(node) };
        let members = &status.members;
        Ok(GroupMembersResponse {
            leads: status.is_leader,
            leader: status.leader.map_or(0, |node| node.0),
            term: status.term,
            index: status.members_at,
            changing: status.changing,
            last: status.last,
            members: members
                .voters
                .iter()
                .map(member(true))
                .chain(members.learners.iter().map(member(false)))
                .collect(),
        })
    }
}
