//! ChangeMembers: of the manager's own group, or of a meta partition.
//!
//! The manager's group: a new member has to run already (started with `join`), gets a vote when it has caught up
//! (`duties.rs` promotes it). A partition: the wish is logged if it can come true, and carried out by the duties.
use crate::group::Group;
use crate::manager::Manager;
use cairn_manager_core::apply::unknown_partition;
use cairn_manager_core::command::{Command, PutManager, SetPartitionMembers};
use cairn_manager_core::{Roles, State};
use cairn_raft_host::MemberChange;
use cairn_types::{ErrorCode, NodeId, PartitionId};
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

    async fn change_managers(&self, request: ChangeMembersRequest) -> Result<Empty, WireError> {
        self.permit()?;
        let bad = |text: String| WireError::new(ErrorCode::InvalidArgument, text);
        let Some(log) = self.log.get() else { return Err(self.not_leader(None)) };
        let voters = log.status().core.members.voters;
        let left = voters.iter().filter(|n| !request.remove.contains(&n.get())).count();
        if left + request.add.len() == 0 || request.add.len() + request.remove.len() > 5 {
            return Err(bad("the manager's group has 1, 3 or 5 members; change a few at a time".into()));
        }
        for node in &request.add {
            let Some(at) = request.addresses.iter().find(|at| at.node == *node && !at.address.is_empty()) else {
                return Err(bad(format!("manager {node} needs its address: give it as {node}@host:port")));
            };
            let put = PutManager { node: *node, address: at.address.clone(), ..PutManager::default() };
            self.execute(Command::PutManager(put)).await?;
        }
        let add = request.add.iter().filter(|n| !voters.contains(&NodeId(**n)));
        let add = add.map(|n| MemberChange::Learner(NodeId(*n)));
        let remove = request.remove.iter().map(|n| MemberChange::Remove(NodeId(*n)));
        let changes: Vec<MemberChange> = add.chain(remove).collect();
        if changes.is_empty() {
            return Ok(Empty {});
        }
        let log = log.clone();
        let changed = tokio::task::spawn_blocking(move || log.change_members(changes)).await;
        match changed {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(WireError::new(ErrorCode::Conflict, error.to_string())),
            Err(_) => return Err(WireError::new(ErrorCode::Unavailable, "the manager stops")),
        }
        for node in request.remove {
            self.execute(Command::PutManager(PutManager { node, removed: true, ..PutManager::default() })).await?;
        }
        Ok(Empty {})
    }

    /// Logs who shall be a member; the duties do the rest (`duties/members.rs`).
    async fn change_partition(&self, request: ChangeMembersRequest) -> Result<Empty, WireError> {
        let id = PartitionId(request.group);
        let (target, group) = self.look_in_cluster(|state, leading| {
            let leader = leading.soft.partitions.get(&id).map(|load| load.leader);
            let target = wanted_members(state, id, &request)?;
            let group = Group::of(state, id, leader).ok_or_else(|| unknown_partition(id))?;
            Ok((target, group))
        })?;
        if let Err(why) = self.ask_group(&group).await {
            return Err(self.look_in_cluster(|state, _| Ok(leaderless(state, id, &why)))?);
        }
        let members: Vec<u32> = target.iter().map(|node| node.get()).collect();
        self.execute(Command::SetPartitionMembers(SetPartitionMembers { partition: id.get(), members })).await?;
        tracing::warn!(partition = %id, ?target, "somebody wants other members for a partition");
        self.wake.notify_one();
        Ok(Empty {})
    }
}

/// The members that a partition is to have, if that makes sense.
fn wanted_members(state: &State, id: PartitionId, request: &ChangeMembersRequest) -> Result<Vec<NodeId>, WireError> {
    let partition = state.partition(id).filter(|p| !p.removed).ok_or_else(|| unknown_partition(id))?;
    let refused = |text: String| Err(WireError::new(ErrorCode::InvalidArgument, text));
    let now = if partition.target.is_empty() { &partition.members } else { &partition.target };
    let (add, remove) = (nodes(&request.add), nodes(&request.remove));
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

fn names(nodes: &[NodeId]) -> String {
    nodes.iter().map(NodeId::to_string).collect::<Vec<_>>().join(", ")
}
