//! ChangeMembers of a meta partition: the wish is logged if it can come true, and carried out by the duties.
//!
//! Not here: the manager's own group (`ops/managers.rs`).
use crate::group::Group;
use crate::leading::Leading;
use crate::manager::Manager;
use cairn_manager_core::apply::unknown_partition;
use cairn_manager_core::command::{Command, SetPartitionMembers};
use cairn_manager_core::partition_members::successors;
use cairn_manager_core::{Roles, State};
use cairn_types::{ErrorCode, NodeId, PartitionId, Time};
use cairn_wire::common::Empty;
use cairn_wire::error::WireError;
use cairn_wire::manager::ChangeMembersRequest;

impl Manager {
    pub(crate) async fn change_members(&self, request: ChangeMembersRequest) -> Result<Empty, WireError> {
        match request.group {
            0 => self.change_managers(request).await,
            _ => self.change_partition(request).await,
        }
    }

    /// Logs who shall be a member; the duties do the rest (`duties/members.rs`).
    async fn change_partition(&self, request: ChangeMembersRequest) -> Result<Empty, WireError> {
        let id = PartitionId(request.group);
        if let ([node], true) = (&request.add[..], request.add == request.remove) {
            self.renew_member(id, NodeId(*node)).await?;
            return Ok(Empty {});
        }
        let (target, group) = self.look_in_cluster(|state, leading| {
            let leader = leading.soft.partitions.get(&id).map(|load| load.leader);
            let request = match request.choose {
                true => with_successors(state, leading, &request, self.now())?,
                false => request,
            };
            let target = wanted_members(state, id, &request)?;
            let back = still_there(state, id, &request, |node| leading.has_dropped(id, node, self.now()));
            if let Some(error) = back {
                return Err(error);
            }
            let group = Group::of(state, id, leader).ok_or_else(|| unknown_partition(id))?;
            Ok((target, group))
        })?;
        if let Err(why) = self.ask_group(&group).await {
            return Err(self.look_in_cluster(|state, _| Ok(leaderless(state, id, &why)))?);
        }
        let members: Vec<u32> = target.iter().map(|node| node.get()).collect();
        self.execute(Command::SetPartitionMembers(SetPartitionMembers { partition: id.get(), members, renew: 0 }))
            .await?;
        tracing::warn!(partition = %id, ?target, "somebody wants other members for a partition");
        self.wake.notify_one();
        Ok(Empty {})
    }
}

/// The same with nodes for the places of those that leave. Nobody comes who has something of before.
fn with_successors(
    state: &State,
    leading: &Leading,
    request: &ChangeMembersRequest,
    now: Time,
) -> Result<ChangeMembersRequest, WireError> {
    let id = PartitionId(request.group);
    let partition = state.partition(id).filter(|p| !p.removed).ok_or_else(|| unknown_partition(id))?;
    let members = if partition.target.is_empty() { &partition.members } else { &partition.target };
    let remove = nodes(&request.remove);
    let gone = |node: &NodeId| partition.members.contains(node) || partition.left.contains(node);
    if !members.iter().any(|node| remove.contains(node)) && remove.iter().all(gone) {
        // The same once more: whoever asked did not hear the answer. Those that came stay.
        let add = members.iter().map(|node| node.get()).collect();
        return Ok(ChangeMembersRequest { add, ..request.clone() });
    }
    let stay: Vec<NodeId> = members.iter().copied().filter(|node| !remove.contains(node)).collect();
    let undropped = partition.left.iter().filter(|node| !leading.has_dropped(id, **node, now));
    let leaving = partition.members.iter().filter(|node| !stay.contains(node));
    let not: Vec<NodeId> = remove.iter().chain(undropped).chain(leaving).copied().collect();
    let count = members.len() - stay.len();
    let add = successors(state, &leading.soft, partition, &stay, &not, count)?;
    Ok(ChangeMembersRequest { add: add.into_iter().map(NodeId::get).collect(), ..request.clone() })
}

/// Members of before that come again, and have not dropped what they had.
fn still_there(
    state: &State,
    id: PartitionId,
    request: &ChangeMembersRequest,
    has_dropped: impl Fn(NodeId) -> bool,
) -> Option<WireError> {
    let partition = state.partition(id)?;
    let back = nodes(&request.add).into_iter().filter(|node| partition.left.contains(node) && !has_dropped(*node));
    let back: Vec<NodeId> = back.collect();
    (!back.is_empty()).then(|| {
        let text = format!(
            "{} left {id} a moment ago, or is not heard, and may still have what it had of it: repeat this in some seconds, when it has \
             dropped that",
            names(&back)
        );
        WireError::new(ErrorCode::Conflict, text)
    })
}

/// The members that a partition is to have, if that makes sense.
fn wanted_members(state: &State, id: PartitionId, request: &ChangeMembersRequest) -> Result<Vec<NodeId>, WireError> {
    let partition = state.partition(id).filter(|p| !p.removed).ok_or_else(|| unknown_partition(id))?;
    let refused = |text: String| Err(WireError::new(ErrorCode::InvalidArgument, text));
    let now = if partition.target.is_empty() { &partition.members } else { &partition.target };
    let (add, remove) = (nodes(&request.add), nodes(&request.remove));
    let done = |members: &[NodeId]| {
        add.iter().all(|node| members.contains(node)) && !remove.iter().any(|node| members.contains(node))
    };
    if !add.is_empty() && !remove.is_empty() && done(now) {
        // The same once more: whoever asked did not hear the answer.
        return Ok(now.clone());
    }
    if let Some(node) = remove.iter().find(|node| !now.contains(node)) {
        return refused(format!("{node} is no member of {id}; its members are {}", names(now)));
    }
    for node in &add {
        let known = state.node(*node).filter(|n| n.roles.has(Roles::META));
        match known {
            None => {
                let others = state.nodes().filter(|n| n.up && n.roles.has(Roles::META) && !now.contains(&n.id));
                let others: Vec<NodeId> = others.map(|n| n.id).collect();
                let choice = if others.is_empty() {
                    "there is none that is no member yet: start one".to_owned()
                } else {
                    format!("choose one of {}", names(&others))
                };
                return refused(format!("{node} is no meta node of this cluster; {choice}"));
            }
            Some(_) if now.contains(node) => return refused(format!("{node} is a member of {id} already")),
            Some(n) if !n.up => return refused(format!("{node} is down; a new member has to run: start it first")),
            Some(_) => {}
        }
    }
    let mut target: Vec<NodeId> = now.iter().copied().filter(|node| !remove.contains(node)).collect();
    target.extend(add);
    if !matches!(target.len(), 1 | 3 | 5) {
        return refused(format!(
            "{id} would have {} members; it needs 1, 3 or 5, for an even number survives no more losses than one less: \
             add or remove another one, or put a new one in the place of an old one with `cairn admin partition move`",
            target.len()
        ));
    }
    let up = target.iter().filter(|node| state.node(**node).is_some_and(|n| n.up)).count();
    if up <= target.len() / 2 {
        return refused(format!(
            "only {up} of the {} members that {id} would have run, too few to go on: start the others first, or keep \
             those that run",
            target.len()
        ));
    }
    Ok(target)
}

/// Why a partition's members cannot be changed now.
fn leaderless(state: &State, id: PartitionId, why: &str) -> WireError {
    let Some(partition) = state.partition(id) else { return unknown_partition(id) };
    let down: Vec<NodeId> =
        partition.members.iter().copied().filter(|node| state.node(*node).is_none_or(|n| !n.up)).collect();
    let down = if down.is_empty() { String::new() } else { format!(" ({} down)", names(&down)) };
    let text = format!(
        "{id} has no leader now ({why}): a majority of its members {}{down} has to run before they can be changed; \
         start them. Names of which no majority is left can only come from a copy of their directories",
        names(&partition.members)
    );
    WireError::new(ErrorCode::Conflict, text)
}

fn nodes(ids: &[u32]) -> Vec<NodeId> {
    ids.iter().copied().map(NodeId).collect()
}

pub(super) fn names(nodes: &[NodeId]) -> String {
    nodes.iter().map(NodeId::to_string).collect::<Vec<_>>().join(", ")
}
