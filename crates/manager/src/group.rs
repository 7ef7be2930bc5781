//! Asking the leader of a meta partition's group for its members, and to change them.
//!
//! An answer belongs to its question: it was given by a leader that held its lease after the question was put, so what
//! is decided on it is newer than whatever was known before. Not here: which change is wanted (`duties/members.rs`).
use crate::manager::Manager;
use cairn_manager_core::State;
use cairn_manager_core::member_change::{GroupView, Step};
use cairn_raft_host::MemberChange;
use cairn_raft_host::members::change_out;
use cairn_rpc::{CallError, CallOptions};
use cairn_types::{NodeId, PartitionId};
use cairn_wire::Opcode;
use cairn_wire::raft::{GroupMembersRequest, GroupMembersResponse};
use std::collections::BTreeMap;
use std::time::Duration;

/// For one member to answer.
const ASK_DEADLINE: Duration = Duration::from_secs(1);

/// How often a group is asked who leads it, and what a group that sleeps takes to wake: a round of heartbeats.
const ROUNDS: usize = 3;
const WAKING: Duration = Duration::from_millis(100);

/// Where a group can be asked.
pub(crate) struct Group {
    pub id: PartitionId,
    /// The leader last heard of first.
    members: Vec<NodeId>,
    addresses: BTreeMap<NodeId, String>,
}

impl Group {
    pub(crate) fn of(state: &State, id: PartitionId, leader: Option<NodeId>) -> Option<Group> {
        let partition = state.partition(id)?;
        let mut members = partition.members.clone();
        // False sorts first.
        members.sort_by_key(|node| Some(*node) != leader);
        let address = |node: &NodeId| Some((*node, state.node(*node)?.address.clone()));
        let addresses = members.iter().filter_map(address).collect();
        Some(Group { id, members, addresses })
    }
}

impl Manager {
    /// The group as its leader sees it now, and the answer as it came; or why nobody who leads answered. One that
    /// sleeps wakes with the question, and is asked again.
    pub(crate) async fn ask_group(&self, group: &Group) -> Result<(GroupView, GroupMembersResponse), String> {
        for _ in 1..ROUNDS {
            let answer = self.ask_group_once(group).await;
            if answer.is_ok() {
                return answer;
            }
            tokio::time::sleep(WAKING).await;
        }
        self.ask_group_once(group).await
    }

    async fn ask_group_once(&self, group: &Group) -> Result<(GroupView, GroupMembersResponse), String> {
        let mut queue: Vec<NodeId> = group.members.iter().rev().copied().collect();
        let mut asked = Vec::new();
        while let Some(node) = queue.pop() {
            if asked.contains(&node) {
                continue;
            }
            asked.push(node);
            let question = GroupMembersRequest { group: group.id.get(), ..GroupMembersRequest::default() };
            match self.call_group(group, node, &question).await {
                Ok(answer) if answer.leads => {
                    let member = |m: &cairn_wire::raft::GroupMember| (NodeId(m.node), m.votes, m.matched);
                    let view = GroupView {
                        leader: node,
                        changing: answer.changing,
                        last: answer.last,
                        members: answer.members.iter().map(member).collect(),
                    };
                    return Ok((view, answer));
                }
                // Whom it follows is asked next.
                Ok(answer) => queue.extend(Some(NodeId(answer.leader)).filter(|node| node.get() != 0)),
                Err(error) => tracing::debug!(group = %group.id, %node, %error, "a member was asked in vain"),
            }
        }
        Err("none of its members says that it leads".into())
    }

    /// Asks its leader to take a step that was decided on this answer.
    pub(crate) async fn step_group(
        &self,
        group: &Group,
        decided_on: &GroupMembersResponse,
        step: &Step,
    ) -> Result<(), String> {
        let mut request = GroupMembersRequest {
            group: group.id.get(),
            term: decided_on.term,
            index: decided_on.index,
            ..GroupMembersRequest::default()
        };
        match step {
            Step::Learn(node) => request.changes.push(change_out(MemberChange::Learner(*node))),
            Step::Change { votes, removals } => {
                let votes = votes.iter().map(|node| MemberChange::Voter(*node));
                let removals = removals.iter().map(|node| MemberChange::Remove(*node));
                request.changes.extend(votes.chain(removals).map(change_out));
            }
            Step::Transfer(node) => request.transfer_to = node.get(),
            Step::Wait(_) | Step::Settled => return Ok(()),
        }
        self.call_group(group, NodeId(decided_on.leader), &request).await.map(drop).map_err(|error| error.to_string())
    }

    async fn call_group(
        &self,
        group: &Group,
        node: NodeId,
        request: &GroupMembersRequest,
    ) -> Result<GroupMembersResponse, CallError> {
        let address = group.addresses.get(&node).map_or("", String::as_str);
        let options = CallOptions::new(ASK_DEADLINE);
        let answer = self.client.call(address, Opcode::GroupMembers.code(), request, (), options).await?;
        answer.decode()
    }
}
