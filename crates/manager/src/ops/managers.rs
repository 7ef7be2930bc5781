//! ChangeMembers of the manager's own group: one member at a time.
//!
//! A new member has to run already, empty; it becomes a learner here and gets its vote when it has caught up
//! (`duties/begin.rs`). Its address and role go into the state first, so that every member can reach it. Invariant: a
//! removal leaves a majority of voters that answer; a leader that is to go hands leadership over, and the next one
//! removes it.
use super::members::names;
use crate::manager::Manager;
use cairn_manager_core::Roles;
use cairn_manager_core::command::{Command, PutManager};
use cairn_manager_core::liveness::ProbeOutcome;
use cairn_raft_host::{GroupHandle, HostError, MemberChange, Members};
use cairn_types::{ErrorCode, NodeId};
use cairn_wire::common::Empty;
use cairn_wire::error::WireError;
use cairn_wire::manager::{ChangeMembersRequest, ManagerMember};

/// Most managers of a cluster.
const MANAGERS_MAX: usize = 5;

impl Manager {
    pub(super) async fn change_managers(&self, request: ChangeMembersRequest) -> Result<Empty, WireError> {
        self.permit()?;
        match (&request.add[..], &request.remove[..]) {
            ([node], []) => {
                let address = request.addresses.iter().find(|at| at.node == *node).map(|at| at.address.clone());
                self.add_manager(NodeId(*node), address.unwrap_or_default()).await
            }
            ([], [node]) => self.remove_manager(NodeId(*node)).await,
            ([node], [same]) if node == same => self.renew_manager(NodeId(*node)).await,
            _ => Err(refused("managers are added and removed one at a time, each when the one before is done".into())),
        }?;
        Ok(Empty {})
    }

    async fn add_manager(&self, node: NodeId, address: String) -> Result<(), WireError> {
        let members = self.manager_members()?;
        if let Some(flaw) = self.look(|state, _| state.manager_flaw(node))? {
            return Err(refused(flaw));
        }
        if address.is_empty() {
            return Err(refused(format!("manager {node} needs its address: give it as {}@host:port", node.get())));
        }
        if members.contains(node) {
            let at = self.look(|state, _| state.node(node).map(|n| n.address.clone()).unwrap_or_default())?;
            return match at == address || at.is_empty() {
                true => self.is_there(node, &address).await,
                false => Err(refused(format!(
                    "{node} is a manager already, at {at}; another address: change it in its configuration and restart it; another \
                     machine: take it out first with `cairn admin manager remove {}`",
                    node.get()
                ))),
            };
        }
        if members.voters.len() + members.learners.len() >= MANAGERS_MAX {
            return Err(refused(format!("there are {MANAGERS_MAX} managers already; remove one first")));
        }
        let deadline = self.look(|state, _| state.config().duration(cairn_manager_core::Key::ProbeDeadline))?;
        if self.probe_node(&address, deadline).await != ProbeOutcome::Alive {
            return Err(refused(format!(
                "nobody answers at {address}: start the new manager first, with manager.member = {} and all managers in \
                 manager.members",
                node.get()
            )));
        }
        let put = PutManager { node: node.get(), address, ..PutManager::default() };
        self.execute(Command::PutManager(put)).await?;
        self.change_log(MemberChange::Learner(node)).await?;
        tracing::warn!(%node, "a manager was added; it gets its vote when it has caught up");
        Ok(())
    }

    /// Who is a member already is well only if it runs: one that is lost is taken out first.
    async fn is_there(&self, node: NodeId, address: &str) -> Result<(), WireError> {
        let deadline = self.look(|state, _| state.config().duration(cairn_manager_core::Key::ProbeDeadline))?;
        if node == self.config.member || self.probe_node(address, deadline).await == ProbeOutcome::Alive {
            return Ok(());
        }
        let number = node.get();
        Err(refused(format!(
            "manager {number} is a member already, and nobody answers at {address}: start it with its directory; if that is lost, \
             `cairn admin manager remove {number}` first, start it with an empty one, and repeat"
        )))
    }

    async fn remove_manager(&self, node: NodeId) -> Result<(), WireError> {
        let members = self.manager_members()?;
        let entered = self.look(|state, _| state.node(node).is_some_and(|n| n.roles.has(Roles::MANAGER)))?;
        if !members.contains(node) && !entered {
            return Err(refused(format!("{node} is no manager; they are {}", names(&members.voters))));
        }
        let left: Vec<NodeId> = members.voters.iter().copied().filter(|voter| *voter != node).collect();
        if members.voters.contains(&node) {
            self.majority_answers(node, &left).await?;
        }
        if node == self.config.member {
            return Err(self.hand_over(&left).await);
        }
        if members.contains(node) {
            self.change_log(MemberChange::Remove(node)).await?;
        }
        let put = PutManager { node: node.get(), removed: true, ..PutManager::default() };
        self.execute(Command::PutManager(put)).await?;
        tracing::warn!(%node, "a manager was removed");
        Ok(())
    }

    /// Whether those that stay could go on without it.
    pub(super) async fn majority_answers(&self, node: NodeId, left: &[NodeId]) -> Result<(), WireError> {
        self.ask_unasked(left).await?;
        let alive = self.look(|_, leading| {
            let answers = |id: &&NodeId| **id == self.config.member || leading.managers.get(id) == Some(&true);
            left.iter().filter(answers).count()
        })?;
        if alive <= left.len() / 2 {
            return Err(refused(format!(
                "without {node} only {alive} of the {} managers {} would answer, too few to go on: start the others, or \
                 add one, first",
                left.len(),
                names(left)
            )));
        }
        Ok(())
    }

    /// Asks those of whom nothing is known: this manager leads since a moment, as after another one handed over to be
    /// removed.
    async fn ask_unasked(&self, voters: &[NodeId]) -> Result<(), WireError> {
        let (deadline, unasked) = self.look(|state, leading| {
            let unasked = voters.iter().filter(|id| **id != self.config.member && !leading.managers.contains_key(id));
            let at = unasked.filter_map(|id| Some((*id, state.node(*id)?.address.clone())));
            (state.config().duration(cairn_manager_core::Key::ProbeDeadline), at.collect::<Vec<_>>())
        })?;
        for (node, address) in unasked {
            let alive = self.probe_node(&address, deadline).await == ProbeOutcome::Alive;
            self.look(|_, leading| leading.managers.insert(node, alive))?;
        }
        Ok(())
    }

    /// To whom has most of the log: who asked goes there.
    async fn hand_over(&self, left: &[NodeId]) -> WireError {
        let Ok(log) = self.group_log() else { return self.not_leader(None) };
        let matched = log.status().core.matched;
        let heir =
            matched.iter().filter(|(id, _)| left.contains(id)).max_by_key(|(_, index)| *index).map(|(id, _)| *id);
        if let Some(heir) = heir {
            tracing::warn!(%heir, "this manager is to be removed: it hands leadership over");
            // If it fails, whoever asked asks again.
            let _ = tokio::task::spawn_blocking(move || log.transfer_leader(heir)).await;
        }
        self.not_leader(heir)
    }

    pub(super) async fn change_log(&self, change: MemberChange) -> Result<(), WireError> {
        let log = self.group_log()?;
        match tokio::task::spawn_blocking(move || log.change_members(vec![change])).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(HostError::NotLeader(error))) => Err(self.not_leader(error.hint)),
            Ok(Err(error)) => Err(WireError::new(ErrorCode::Conflict, format!("{error}; repeat in a moment"))),
            Err(_) => Err(WireError::new(ErrorCode::Unavailable, "the manager stops")),
        }
    }

    fn group_log(&self) -> Result<GroupHandle<crate::machine::Waiter>, WireError> {
        self.log.get().cloned().ok_or_else(|| self.not_leader(None))
    }

    pub(super) fn manager_members(&self) -> Result<Members, WireError> {
        Ok(self.group_log()?.status().core.members)
    }

    /// For people: the group as its leader sees it.
    pub(super) fn manager_table(&self, answers: impl Fn(NodeId) -> bool) -> Vec<ManagerMember> {
        let Ok(log) = self.group_log() else { return Vec::new() };
        let core = log.status().core;
        let lacks = |node: NodeId| {
            let matched = core.matched.iter().find(|(id, _)| *id == node).map_or(0, |(_, index)| *index);
            core.last.saturating_sub(matched)
        };
        let member = |node: &NodeId, votes: bool| ManagerMember {
            node: node.get(),
            votes,
            answers: *node == self.config.member || answers(*node),
            lacks: if *node == self.config.member { 0 } else { lacks(*node) },
        };
        let voters = core.members.voters.iter().map(|node| member(node, true));
        voters.chain(core.members.learners.iter().map(|node| member(node, false))).collect()
    }
}

fn refused(text: String) -> WireError {
    WireError::new(ErrorCode::InvalidArgument, text)
}
