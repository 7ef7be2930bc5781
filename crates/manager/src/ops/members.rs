//! ChangeMembers: of the manager's own group, or of a meta partition.
//!
//! The manager's group: a new member has to run already (started with `join`), gets a vote when it has caught up
//! (`duties.rs` promotes it). A partition: refused, for this version cannot do it.
use crate::manager::Manager;
use cairn_manager_core::command::{Command, PutManager};
use cairn_raft_host::MemberChange;
use cairn_types::{ErrorCode, NodeId, PartitionId};
use cairn_wire::common::Empty;
use cairn_wire::error::WireError;
use cairn_wire::manager::ChangeMembersRequest;

impl Manager {
    pub(crate) async fn change_members(&self, request: ChangeMembersRequest) -> Result<Empty, WireError> {
        match request.group {
            0 => self.change_managers(request).await,
            _ => self.change_partition(&request),
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

    /// Entering other members in the map alone would leave the group as it is and let nodes begin a second one.
    fn change_partition(&self, request: &ChangeMembersRequest) -> Result<Empty, WireError> {
        let id = PartitionId(request.group);
        self.look_in_cluster(|state, _| {
            state
                .partition(id)
                .filter(|p| !p.removed)
                .ok_or_else(|| WireError::new(ErrorCode::UnknownPartition, format!("there is no {id}")))?;
            let text = format!(
                "changing the members of a meta partition comes in a later version; {id} keeps its members: \
                 restore the directory of the one that is missing"
            );
            Err(WireError::new(ErrorCode::InvalidArgument, text))
        })
    }
}
