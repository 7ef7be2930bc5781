//! The next step of a change of a Raft group's members: a pure function of what the group's leader just said and of
//! who shall be a member.
//!
//! | the group | step |
//! |---|---|
//! | a change is not finished | wait |
//! | a learner that shall be none | remove it |
//! | a wanted node is neither voter nor learner | once it has opened the group: make it a learner |
//! | a learner has not caught up | wait |
//! | the leader shall leave, a voter that stays has caught up | hand leadership over |
//! | learners that have caught up, voters that shall leave | give votes and remove, together in one change |
//! | exactly the wanted voters, no learners | settled |
//!
//! Nothing is remembered between two steps, so whoever dies in between, the next look goes on from what is.
//!
//! **Invariant:** a step never leaves a group in which fewer than a majority of the voters are known to have caught up:
//! then it waits. A vote goes only to a learner that has caught up.
use cairn_types::NodeId;
use std::collections::BTreeSet;

/// A member that lacks no more entries than this has caught up: it gets the rest in moments.
pub const CAUGHT_UP_ENTRIES: u64 = 1000;

/// What a group's leader says.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GroupView {
    pub leader: NodeId,
    /// A change is not finished.
    pub changing: bool,
    /// Last entry of the leader's log.
    pub last: u64,
    /// Node, whether it votes, up to where its log is known to match.
    pub members: Vec<(NodeId, bool, u64)>,
}

/// What is to be done next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Nothing, for this reason.
    Wait(String),
    /// Make it a learner.
    Learn(NodeId),
    /// One change: these get votes, those are removed (voters or learners).
    Change { votes: Vec<NodeId>, removals: Vec<NodeId> },
    /// Hand leadership over.
    Transfer(NodeId),
    /// It is as it shall be.
    Settled,
}

impl GroupView {
    fn votes(&self, node: NodeId) -> Option<bool> {
        self.members.iter().find(|(id, ..)| *id == node).map(|(_, votes, _)| *votes)
    }

    fn lacks(&self, node: NodeId) -> u64 {
        let matched = self.members.iter().find(|(id, ..)| *id == node).map_or(0, |(.., matched)| *matched);
        if matched == 0 { u64::MAX } else { self.last.saturating_sub(matched) }
    }

    /// It would get what it lacks in moments.
    pub fn has_caught_up(&self, node: NodeId) -> bool {
        node == self.leader || self.lacks(node) <= CAUGHT_UP_ENTRIES
    }

    /// Voters, as they are now.
    pub fn voters(&self) -> impl Iterator<Item = NodeId> {
        self.members.iter().filter(|(_, votes, _)| *votes).map(|(id, ..)| *id)
    }
}

/// The next step towards `target`. `opened`: nodes that are known to have opened the group.
pub fn next_step(view: &GroupView, target: &[NodeId], opened: impl Fn(NodeId) -> bool) -> Step {
    if view.changing {
        return Step::Wait("a step is under way".into());
    }
    let stray = view.members.iter().find(|(id, votes, _)| !votes && !target.contains(id));
    if let Some((id, ..)) = stray {
        return Step::Change { votes: Vec::new(), removals: vec![*id] };
    }
    let missing: Vec<NodeId> = target.iter().copied().filter(|id| view.votes(*id).is_none()).collect();
    if let Some(ready) = missing.iter().find(|id| opened(**id)) {
        return Step::Learn(*ready);
    }
    if let Some(id) = missing.first() {
        return Step::Wait(format!("{id} has not opened it yet"));
    }
    let learners: Vec<NodeId> = target.iter().copied().filter(|id| view.votes(*id) == Some(false)).collect();
    if let Some(behind) = learners.iter().find(|id| !view.has_caught_up(**id)) {
        return Step::Wait(match view.lacks(*behind) {
            u64::MAX => format!("{behind} has not got the state yet"),
            entries => format!("{behind} lacks {entries} entries"),
        });
    }
    let leaves = !target.contains(&view.leader);
    if leaves {
        let heir = view.voters().filter(|id| target.contains(id)).min_by_key(|id| view.lacks(*id));
        if let Some(heir) = heir.filter(|id| view.has_caught_up(*id)) {
            return Step::Transfer(heir);
        }
    }
    let removals: Vec<NodeId> = view.voters().filter(|id| !target.contains(id) && *id != view.leader).collect();
    if learners.is_empty() && removals.is_empty() {
        return match leaves {
            // Its heir was asked for above: there is none.
            true => Step::Wait("none of those that stay has caught up".into()),
            false => Step::Settled,
        };
    }
    let after: BTreeSet<NodeId> =
        view.voters().chain(learners.iter().copied()).filter(|id| !removals.contains(id)).collect();
    let sound = after.iter().filter(|id| view.has_caught_up(**id)).count();
    if sound <= after.len() / 2 {
        return Step::Wait(format!("only {sound} of its {} members to be have caught up", after.len()));
    }
    Step::Change { votes: learners, removals }
}

#[cfg(test)]
mod tests;
