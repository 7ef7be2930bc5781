//! Takes a member out of its Raft group and adds it anew: an older copy of itself is filled by the leader then.
//!
//! Asked for as ChangeMembers with the same node to be added and removed. Invariants: those that stay, and have caught
//! up, are a majority without it; a wish is logged before a partition's member loses its vote, so that whoever leads
//! the managers later gives it back. Whoever asked repeats the question if it is not done: each step is looked at anew.
use super::members::names;
use crate::group::Group;
use crate::manager::Manager;
use cairn_manager_core::Partition;
use cairn_manager_core::apply::unknown_partition;
use cairn_manager_core::command::{Command, SetPartitionMembers};
use cairn_manager_core::member_change::Step;
use cairn_raft_host::MemberChange;
use cairn_types::{ErrorCode, NodeId, PartitionId};
use cairn_wire::error::WireError;
use std::time::Duration;

/// For one change of the members of the managers' own group to be done.
const STEP_PATIENCE: Duration = Duration::from_secs(5);
/// Between two looks at it.
const STEP_PAUSE: Duration = Duration::from_millis(100);

impl Manager {
    pub(super) async fn renew_member(&self, id: PartitionId, node: NodeId) -> Result<(), WireError> {
        let (group, wanted) = self.look_in_cluster(|state, leading| {
            let partition = state.partition(id).filter(|p| !p.removed).ok_or_else(|| unknown_partition(id))?;
            if !partition.members.contains(&node) {
                return Err(refused(format!("{node} is no member of {id}; they are {}", names(&partition.members))));
            }
            let wanted = wanted_with(partition, node)?;
            let leader = leading.soft.partitions.get(&id).map(|load| load.leader);
            let group = Group::of(state, id, leader).ok_or_else(|| unknown_partition(id))?;
            Ok((group, wanted))
        })?;
        let held = self.look(|_, leading| leading.changing.insert(id).then_some(leading.term))?;
        let Some(term) = held else {
            return Err(conflict(format!("the members of {id} are being changed; repeat in a moment")));
        };
        let outcome = self.take_vote(&group, node, &wanted).await;
        let how = if outcome.is_ok() { "a step is under way" } else { "it is looked at again" };
        self.change_looked_at(term, id, how.into());
        if outcome.is_ok() {
            tracing::warn!(partition = %id, %node, "a member is added anew");
            self.wake.notify_one();
        }
        outcome
    }

    async fn take_vote(&self, group: &Group, node: NodeId, wanted: &[NodeId]) -> Result<(), WireError> {
        let no_leader =
            |why: String| conflict(format!("{} has no leader now ({why}); start its other members", group.id));
        let (view, _) = self.ask_group(group).await.map_err(no_leader)?;
        if view.leader == node {
            return Err(refused(format!("{node} leads {}: it has everything, and need not be added anew", group.id)));
        }
        let left: Vec<NodeId> = view.voters().filter(|voter| *voter != node).collect();
        let sound = left.iter().filter(|voter| view.has_caught_up(**voter)).count();
        if sound <= left.len() / 2 {
            return Err(conflict(format!(
                "without {node} only {sound} of the {} members {} would have everything, too few to go on: start the others",
                left.len(),
                names(&left)
            )));
        }
        let members: Vec<u32> = wanted.iter().map(|node| node.get()).collect();
        let wish = SetPartitionMembers { partition: group.id.get(), members, renew: node.get() };
        self.execute(Command::SetPartitionMembers(wish)).await?;
        let (view, answer) = self.ask_group(group).await.map_err(no_leader)?;
        if view.members.iter().any(|(id, ..)| *id == node) {
            let step = Step::Change { votes: Vec::new(), removals: vec![node] };
            self.step_group(group, &answer, &step)
                .await
                .map_err(|why| conflict(format!("{why}; repeat in a moment")))?;
        }
        Ok(())
    }

    pub(super) async fn renew_manager(&self, node: NodeId) -> Result<(), WireError> {
        if node == self.config.member {
            return Err(refused(format!("{node} leads the managers: it has everything, and need not be added anew")));
        }
        let members = self.manager_members()?;
        let known =
            self.look(|state, _| state.node(node).is_some_and(|n| n.roles.has(cairn_manager_core::Roles::MANAGER)))?;
        if !members.contains(node) && !known {
            return Err(refused(format!("{node} is no manager; they are {}", names(&members.voters))));
        }
        if members.contains(node) {
            let left: Vec<NodeId> = members.voters.iter().copied().filter(|voter| *voter != node).collect();
            self.majority_answers(node, &left).await?;
            self.change_managers_until(MemberChange::Remove(node), |m| !m.contains(node)).await?;
        }
        self.change_managers_until(MemberChange::Learner(node), |m| m.contains(node)).await?;
        tracing::warn!(%node, "a manager is added anew; it gets its vote when it has caught up");
        self.wake.notify_one();
        Ok(())
    }

    async fn change_managers_until(
        &self,
        change: MemberChange,
        done: impl Fn(&cairn_raft_host::Members) -> bool,
    ) -> Result<(), WireError> {
        let until = self.now() + STEP_PATIENCE;
        loop {
            if done(&self.manager_members()?) {
                return Ok(());
            }
            // Refused while the one before is not finished.
            let outcome = self.change_log(change).await;
            if self.now() >= until {
                return outcome.and(Err(conflict("the managers do not agree yet; repeat in a moment".into())));
            }
            tokio::time::sleep(STEP_PAUSE).await;
        }
    }
}

/// Who shall be a member, with this one. While that is being changed it may be what the change waits for: one that lost
/// what it had before it got its vote. The wish is logged in another order then, for the same one once more has no
/// effect.
fn wanted_with(partition: &Partition, node: NodeId) -> Result<Vec<NodeId>, WireError> {
    let id = partition.id;
    match &partition.target[..] {
        [] => Ok(partition.members.clone()),
        target if !target.contains(&node) || !partition.begun.contains(&node) => {
            Err(conflict(format!("the members of {id} are being changed; repeat when that is done")))
        }
        [_] => Err(conflict(format!(
            "{id} is to have {node} as its only member: take that back first, `cairn admin partition move {} {node} OTHER` with one that \
             has it",
            id.get()
        ))),
        target => {
            let mut wanted = target.to_vec();
            wanted.rotate_left(1);
            Ok(wanted)
        }
    }
}

fn refused(text: String) -> WireError {
    WireError::new(ErrorCode::InvalidArgument, text)
}

fn conflict(text: String) -> WireError {
    WireError::new(ErrorCode::Conflict, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_types::VolumeId;

    fn nodes(ids: &[u32]) -> Vec<NodeId> {
        ids.iter().copied().map(NodeId).collect()
    }

    /// A change of members would wait for ever for one whose directory is of before it had the partition, and the
    /// command that the status names be refused until the change is done.
    #[test]
    fn one_that_a_change_waits_for_is_added_anew() {
        let mut partition = Partition {
            id: PartitionId(7),
            volume: VolumeId(1),
            inode_first: 1,
            inode_last: u64::MAX,
            members: nodes(&[1, 2, 3]),
            target: Vec::new(),
            wish: 0,
            left: Vec::new(),
            changed: true,
            begun: nodes(&[1, 2, 3]),
            add: 0,
            level: 0,
            removed: false,
            version: 1,
        };
        assert_eq!(wanted_with(&partition, NodeId(2)).expect("wanted"), nodes(&[1, 2, 3]));
        (partition.members, partition.target) = (nodes(&[1, 2, 3, 16]), nodes(&[2, 3, 16]));
        let waits = |partition: &Partition, node| wanted_with(partition, NodeId(node)).expect_err("waits").message;
        assert!(waits(&partition, 16).contains("repeat when that is done"), "it has not begun, and is on its way");
        assert!(waits(&partition, 1).contains("repeat when that is done"), "it leaves");
        partition.begun.push(NodeId(16));
        let wanted = wanted_with(&partition, NodeId(16)).expect("wanted");
        assert_ne!(wanted, partition.target, "the same once more has no effect");
        let sorted = |mut nodes: Vec<NodeId>| {
            nodes.sort_unstable();
            nodes
        };
        assert_eq!(sorted(wanted), sorted(partition.target.clone()));
        partition.target = nodes(&[16]);
        assert!(waits(&partition, 16).contains("`cairn admin partition move 7 n16 OTHER`"));
    }
}
