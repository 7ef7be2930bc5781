//! [`next_transfer`]: which meta partition's leadership goes to another member, so that no node leads more than its
//! share. [`Calm`]: when that may be asked at all.
//!
//! | what is | then |
//! |---|---|
//! | a server is down, a maintenance is going on, a partition has no leader, other members or one that has not begun | nothing |
//! | who leads, or who is up, changed within `spread_leaders_after` | nothing |
//! | a member of a partition leads two partitions less than its leader does, or fewer | the largest such difference: it gets the leadership |
//!
//! **Invariant:** each transfer lowers the sum of the squares of what nodes lead, so a row of them ends; and a
//! difference of one, which a transfer would only turn around, moves nothing. Not here: the transfer itself (the
//! manager).
use crate::Soft;
use crate::items::Roles;
use crate::state::State;
use cairn_types::{NodeId, PartitionId, Time};
use std::collections::BTreeMap;
use std::time::Duration;

/// A leadership that shall go elsewhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transfer {
    pub partition: PartitionId,
    pub from: NodeId,
    pub to: NodeId,
}

/// Partitions that each node leads, as their leaders reported last; meta nodes that lead none are there, too.
pub fn leads(state: &State, soft: &Soft) -> BTreeMap<NodeId, u32> {
    let metas = state.nodes().filter(|node| node.roles.has(Roles::META) && node.up);
    let mut counts: BTreeMap<NodeId, u32> = metas.map(|node| (node.id, 0)).collect();
    for partition in state.partitions().filter(|partition| !partition.removed) {
        if let Some(load) = soft.partitions.get(&partition.id) {
            *counts.entry(load.leader).or_default() += 1;
        }
    }
    counts
}

/// The transfer that evens out most, if all is well.
pub fn next_transfer(state: &State, soft: &Soft) -> Option<Transfer> {
    if !state.servers().all(|node| node.up) || state.hibernations().next().is_some() {
        return None;
    }
    let counts = leads(state, soft);
    let count = |node: NodeId| counts.get(&node).copied().unwrap_or(0);
    let mut best: Option<(u32, Transfer)> = None;
    for partition in state.partitions().filter(|partition| !partition.removed) {
        let leader = soft.partitions.get(&partition.id)?.leader;
        let settled = partition.target.is_empty()
            && partition.members.contains(&leader)
            && partition.members.iter().all(|node| partition.begun.contains(node));
        if !settled {
            return None;
        }
        let least = partition.members.iter().copied().filter(|node| *node != leader).min_by_key(|node| count(*node));
        let Some(to) = least else { continue };
        let gain = count(leader).saturating_sub(count(to));
        if gain >= 2 && best.is_none_or(|(most, _)| gain > most) {
            best = Some((gain, Transfer { partition: partition.id, from: leader, to }));
        }
    }
    best.map(|(_, transfer)| transfer)
}

/// Who leads what, in which term, and who is up.
type Picture = (BTreeMap<PartitionId, (NodeId, u64)>, Vec<NodeId>);

/// Remembers since when nothing has changed.
#[derive(Default, Debug)]
pub struct Calm {
    picture: Picture,
    since: Option<Time>,
}

impl Calm {
    /// Looks at what is now: how long it has been so.
    pub fn lasts(&mut self, state: &State, soft: &Soft, now: Time) -> Duration {
        let leaders = soft.partitions.iter().map(|(id, load)| (*id, (load.leader, load.report.term))).collect();
        let up = state.servers().filter(|node| node.up).map(|node| node.id).collect();
        let picture = (leaders, up);
        if picture != self.picture || self.since.is_none() {
            self.picture = picture;
            self.since = Some(now);
        }
        self.since.map_or(Duration::ZERO, |since| now.since(since))
    }

    /// Something was done: it counts from now.
    pub fn disturb(&mut self) {
        self.since = None;
    }
}

#[cfg(test)]
mod tests;
