//! How far members of Raft groups got, as others remember it: of meta partitions this manager, of the managers the
//! nodes.
//!
//! Meta nodes tell with each heartbeat how far their members are; the leader remembers the highest and logs what
//! changed some seconds (`duties/marks.rs`). A node that registers is told what is known of its members. Nodes are told
//! how far the managers are, and tell it to whom they register with or send heartbeats: a manager that starts hears it
//! although it does not lead. Not here: what follows from it (cairn-raft's `marks`).
use super::binding::is_managers;
use crate::leading::Leading;
use crate::manager::Manager;
use cairn_manager_core::State;
use cairn_raft_host::{GroupMarks, Mark};
use cairn_types::NodeId;
use cairn_wire::holder::Holder;
use cairn_wire::manager::PartitionMark;
use cairn_wire::raft::MemberMark;
use std::collections::{BTreeMap, BTreeSet};

/// Nodes that have to be heard at most.
const WITNESSES_MAX: usize = 1024;

/// What nodes said of the managers.
#[derive(Default)]
pub(crate) struct Witnesses {
    heard: BTreeSet<u32>,
    /// Keys of nodes that the state does not know: a state that was put back is from before they came.
    strangers: BTreeSet<String>,
    enough: bool,
    /// By whose key.
    views: BTreeMap<String, GroupMarks>,
    /// Of all where nobody has keys, and of managers, who need not lie to this end.
    trusted: GroupMarks,
}

impl Witnesses {
    fn note_stranger(&mut self, key: &str) {
        if self.strangers.len() < WITNESSES_MAX {
            self.strangers.insert(key.to_owned());
        }
    }

    fn take(&mut self, key: Option<&str>, view: &GroupMarks) {
        let Some(key) = key else { return self.trusted.merge(view) };
        if self.views.len() < WITNESSES_MAX || self.views.contains_key(key) {
            self.views.entry(key.to_owned()).or_default().merge(view);
        }
    }

    /// What two keys say at least, or the only one that was heard: all nodes are told the same within a second, and one
    /// stolen key could keep managers out for good. A manager that was put back tells what was so then: it raises
    /// nothing, and is no second one.
    fn view(&self) -> GroupMarks {
        let mut view = self.of_two();
        view.merge(&self.trusted);
        view
    }

    fn of_two(&self) -> GroupMarks {
        let mut newest: Vec<&GroupMarks> = self.views.values().filter(|view| !view.members.is_empty()).collect();
        newest.sort_by_key(|view| std::cmp::Reverse(view.index));
        let Some(base) = newest.get(1).or(newest.first()) else { return GroupMarks::default() };
        let second = |node: &NodeId| {
            let mut marks: Vec<Mark> = newest.iter().filter_map(|view| view.members.get(node).copied()).collect();
            marks.sort_unstable_by_key(|mark| std::cmp::Reverse(*mark));
            let mark = if newest.len() > 1 { marks.get(1) } else { marks.first() };
            (*node, mark.copied().unwrap_or_default())
        };
        GroupMarks { index: base.index, members: base.members.keys().map(second).collect() }
    }
}

/// What is known of a node's members of partitions.
pub(super) fn known_of(state: &State, leading: &Leading, node: NodeId) -> Vec<PartitionMark> {
    let of = state.partitions().filter(|p| !p.removed && p.members.contains(&node)).filter_map(|p| {
        let told = leading.marks.get(&(p.id, node)).copied();
        let (term, index) = told.max(state.mark(p.id, node))?;
        Some(PartitionMark { partition: p.id.get(), term, index })
    });
    of.collect()
}

impl Manager {
    /// For nodes: the managers, and how far they got.
    pub(crate) fn marks_of_managers(&self) -> cairn_wire::raft::GroupMarks {
        let Some(core) = self.log.get().map(|log| log.status().core) else { return Default::default() };
        let marks = core.marks.iter().filter(|(node, _)| core.members.contains(*node));
        let marks =
            marks.map(|(node, mark)| MemberMark { node: node.get().into(), term: mark.term, index: mark.index });
        cairn_wire::raft::GroupMarks { index: core.applied.index, marks: marks.collect() }
    }

    /// A node says what it remembers of the managers. It counts once half of the nodes that should run were heard: one
    /// that was away knows less than the others.
    pub(crate) fn told_of_managers(
        &self,
        holder: Option<&Holder>,
        witness: u32,
        told: Option<&cairn_wire::raft::GroupMarks>,
    ) {
        let view = told.map(read).unwrap_or_default();
        let mut witnesses = self.witnesses.lock();
        let key = holder.filter(|holder| !is_managers(holder)).map(|holder| holder.name.as_str());
        witnesses.take(key, &view);
        if !witnesses.enough {
            let state = self.replica.read();
            match holder {
                // However many nodes it says that it is.
                Some(holder) if state.node(NodeId(witness)).is_none() => witnesses.note_stranger(&holder.name),
                holder if witness != 0 && holder.is_none_or(|holder| is_own(&state, holder, NodeId(witness))) => {
                    witnesses.heard.insert(witness);
                }
                _ => {}
            }
            let up = state.nodes().filter(|node| node.up).count();
            let heard = witnesses.heard.len() + witnesses.strangers.len();
            witnesses.enough = 2 * heard >= up.min(WITNESSES_MAX);
        }
        if witnesses.enough {
            self.raft.marks().nodes_said(self.config.member, &witnesses.view());
        }
    }
}

/// Whether whoever holds a key can be this node as far as the state tells: one key would be half of all nodes.
fn is_own(state: &State, holder: &Holder, node: NodeId) -> bool {
    state.node(node).is_some_and(|node| holder.may_have(node.id, &node.holder, |_| false))
}

fn read(told: &cairn_wire::raft::GroupMarks) -> GroupMarks {
    let member = |mark: &MemberMark| {
        let node = u32::try_from(mark.node).ok().filter(|node| *node != 0)?;
        Some((NodeId(node), Mark { term: mark.term, index: mark.index }))
    };
    GroupMarks { index: told.index, members: told.marks.iter().filter_map(member).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(index: u64, members: &[(u32, u64)]) -> GroupMarks {
        let mark = |&(node, index): &(u32, u64)| (NodeId(node), Mark { term: 3, index });
        GroupMarks { index, members: members.iter().map(mark).collect() }
    }

    /// One stolen key would keep a manager out of elections for good, or call it a former member; or what the only node
    /// knows would count for nothing.
    #[test]
    fn one_key_is_not_believed_against_others() {
        let mut witnesses = Witnesses::default();
        witnesses.take(Some("d1"), &view(20, &[(1, 20), (2, 19)]));
        assert_eq!(witnesses.view(), view(20, &[(1, 20), (2, 19)]), "nobody else was heard");
        witnesses.take(None, &view(4, &[(1, 4), (2, 4)]));
        assert_eq!(witnesses.view(), view(20, &[(1, 20), (2, 19)]), "a manager that was put back");
        witnesses.take(Some("d2"), &view(21, &[(1, 21), (2, 21)]));
        witnesses.take(Some("evil"), &view(900, &[(2, 900)]));
        assert_eq!(witnesses.view(), view(21, &[(1, 20), (2, 21)]));
        witnesses.take(Some("d1"), &view(22, &[(1, 22), (2, 22)]));
        assert_eq!(witnesses.view(), view(22, &[(1, 21), (2, 22)]));
    }
}
