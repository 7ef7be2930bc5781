//! Changes of the members of meta partitions: looks at each that has a wish, takes the next step, logs when it is done.
//!
//! Every step follows from what the state wishes and from what the group's leader says at that moment
//! ([`cairn_manager_core::member_change`]); nothing is remembered between two rounds but words for people.
use crate::group::Group;
use crate::manager::Manager;
use cairn_manager_core::command::{Command, PartitionSettled};
use cairn_manager_core::member_change::{Step, next_step};
use cairn_types::{NodeId, PartitionId};
use std::sync::Arc;

/// A change that is not settled.
struct Case {
    /// Of the leader who looks.
    term: u64,
    group: Group,
    wish: u64,
    target: Vec<NodeId>,
    begun: Vec<NodeId>,
}

impl Manager {
    pub(super) fn change_partitions(&self) {
        let cases = self.look(|state, leading| {
            let wished = |id: &PartitionId| state.partition(*id).is_some_and(|p| !p.removed && !p.target.is_empty());
            leading.soft.changes.retain(|id, _| wished(id));
            let wishes = state.partitions().filter(|p| !p.removed && !p.target.is_empty());
            let idle: Vec<_> = wishes.filter(|p| !leading.changing.contains(&p.id)).collect();
            let mut cases = Vec::new();
            for p in idle {
                let leader = leading.soft.partitions.get(&p.id).map(|load| load.leader);
                let Some(group) = Group::of(state, p.id, leader) else { continue };
                leading.changing.insert(p.id);
                let (term, target, begun) = (leading.term, p.target.clone(), p.begun.clone());
                cases.push(Case { term, group, wish: p.wish, target, begun });
            }
            cases
        });
        for case in cases.unwrap_or_default() {
            let Some(me) = self.arc() else { return };
            self.spawn(me.change_partition_once(case));
        }
    }

    async fn change_partition_once(self: Arc<Self>, case: Case) {
        let how = match self.next_of(&case).await {
            Ok(how) | Err(how) => how,
        };
        self.change_looked_at(case.term, case.group.id, how);
    }

    /// It is looked at again in the next round, whatever came of this one. A leader of another term looks for itself.
    pub(crate) fn change_looked_at(&self, term: u64, id: PartitionId, how: String) {
        self.remember(term, |leading| {
            leading.changing.remove(&id);
            leading.soft.changes.insert(id, how);
        });
    }

    /// Takes the next step; in words how it stands.
    async fn next_of(&self, case: &Case) -> Result<String, String> {
        let id = case.group.id;
        let (view, answer) = self.ask_group(&case.group).await?;
        let step = next_step(&view, &case.target, |node| case.begun.contains(&node));
        match &step {
            Step::Wait(why) => return Ok(why.clone()),
            Step::Settled => {
                let members = &case.target;
                tracing::info!(partition = %id, ?members, "the members of a partition have changed");
                let settled = PartitionSettled { partition: id.get(), wish: case.wish };
                self.duty("partition settled", Command::PartitionSettled(settled)).await;
            }
            step => {
                tracing::info!(partition = %id, leader = %view.leader, ?step, "the members of a partition change");
                self.step_group(&case.group, &answer, step).await?;
            }
        }
        Ok("a step is under way".into())
    }
}
