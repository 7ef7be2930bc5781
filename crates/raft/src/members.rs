//! [`Members`] of a group and [`MemberChange`]s with their encoding in the log.
//!
//! A configuration entry is: version u8 (1), zero u8, count u16, then per change: kind u8, zero 3, node u32. Empty
//! bytes mean "leave the joint configuration". All numbers little-endian.

use cairn_types::NodeId;
use raft::eraftpb::{ConfChangeSingle, ConfChangeTransition, ConfChangeType, ConfChangeV2, ConfState};

/// Most changes in one entry, and most members of each kind.
pub const MEMBERS_MAX: usize = 32;
const VERSION: u8 = 1;

/// Who belongs to a group.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Members {
    /// Members with a vote, ascending.
    pub voters: Vec<NodeId>,
    /// Members without, ascending.
    pub learners: Vec<NodeId>,
    /// Whether a change of several members is still going on (both old and new majorities are needed).
    pub joint: bool,
}

impl Members {
    /// These voters.
    pub fn of(voters: &[NodeId]) -> Self {
        let mut voters = voters.to_vec();
        voters.sort_unstable();
        voters.dedup();
        Self { voters, learners: Vec::new(), joint: false }
    }

    /// Whether the node is a member of any kind.
    pub fn contains(&self, node: NodeId) -> bool {
        self.voters.contains(&node) || self.learners.contains(&node)
    }

    pub(crate) fn from_conf(conf: &ConfState) -> Self {
        let nodes = |ids: &[u64]| {
            // Ids come from our own encodings, which hold 32 bits.
            let mut nodes: Vec<NodeId> = ids.iter().map(|&id| NodeId(id as u32)).collect();
            nodes.sort_unstable();
            nodes
        };
        Self { voters: nodes(&conf.voters), learners: nodes(&conf.learners), joint: !conf.voters_outgoing.is_empty() }
    }

    pub(crate) fn to_conf(&self) -> ConfState {
        let ids = |nodes: &[NodeId]| nodes.iter().map(|node| u64::from(node.0)).collect();
        ConfState { voters: ids(&self.voters), learners: ids(&self.learners), ..ConfState::default() }
    }

    /// Whether this can be a group's configuration.
    pub fn is_sound(&self) -> bool {
        let sorted = |nodes: &[NodeId]| nodes.is_sorted_by(|a, b| a < b) && nodes.len() <= MEMBERS_MAX;
        sorted(&self.voters)
            && sorted(&self.learners)
            && !self.voters.is_empty()
            && self.voters.iter().chain(&self.learners).all(|node| node.0 != 0)
            && self.learners.iter().all(|node| !self.voters.contains(node))
    }
}

/// One change of a group's members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberChange {
    /// Gives the node a vote (promotes a learner).
    Voter(NodeId),
    /// Adds the node without a vote (demotes a voter).
    Learner(NodeId),
    /// Removes the node.
    Remove(NodeId),
}

/// Puts changes into an entry's bytes.
pub fn encode_changes(changes: &[MemberChange]) -> Vec<u8> {
    if changes.is_empty() {
        return Vec::new();
    }
    let mut out = vec![VERSION, 0];
    out.extend_from_slice(&(changes.len() as u16).to_le_bytes());
    for change in changes {
        let (kind, node) = match change {
            MemberChange::Voter(node) => (1, node),
            MemberChange::Learner(node) => (2, node),
            MemberChange::Remove(node) => (3, node),
        };
        out.extend_from_slice(&[kind, 0, 0, 0]);
        out.extend_from_slice(&node.0.to_le_bytes());
    }
    out
}

/// Reads an entry's bytes; `None` when they are no changes.
pub fn decode_changes(bytes: &[u8]) -> Option<Vec<MemberChange>> {
    if bytes.is_empty() {
        return Some(Vec::new());
    }
    let (&[VERSION, 0, low, high], rows) = bytes.split_first_chunk::<4>()? else {
        return None;
    };
    let count = usize::from(u16::from_le_bytes([low, high]));
    let (rows, rest) = rows.as_chunks::<8>();
    if count == 0 || count > MEMBERS_MAX || rows.len() != count || !rest.is_empty() {
        return None;
    }
    let one = |row: &[u8; 8]| {
        let &[kind, 0, 0, 0, a, b, c, d] = row else { return None };
        let node = NodeId(u32::from_le_bytes([a, b, c, d]));
        match kind {
            _ if node.0 == 0 => None,
            1 => Some(MemberChange::Voter(node)),
            2 => Some(MemberChange::Learner(node)),
            3 => Some(MemberChange::Remove(node)),
            _ => None,
        }
    };
    rows.iter().map(one).collect()
}

/// The `raft` crate's form. Several changes go through a joint configuration that is left by itself.
pub(crate) fn to_conf_change(changes: &[MemberChange]) -> ConfChangeV2 {
    let mut change = ConfChangeV2::default();
    change.set_transition(ConfChangeTransition::Auto);
    for one in changes {
        let (kind, node) = match one {
            MemberChange::Voter(node) => (ConfChangeType::AddNode, node),
            MemberChange::Learner(node) => (ConfChangeType::AddLearnerNode, node),
            MemberChange::Remove(node) => (ConfChangeType::RemoveNode, node),
        };
        let mut single = ConfChangeSingle::default();
        single.set_change_type(kind);
        single.node_id = u64::from(node.0);
        change.mut_changes().push(single);
    }
    change
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A change that reads back differently would give members different quorums.
    #[test]
    fn changes_round_trip_and_garbage_is_refused() {
        let changes =
            vec![MemberChange::Voter(NodeId(1)), MemberChange::Learner(NodeId(20)), MemberChange::Remove(NodeId(3))];
        let bytes = encode_changes(&changes);
        assert_eq!(bytes[..12], [1, 0, 3, 0, 1, 0, 0, 0, 1, 0, 0, 0]);
        assert_eq!(decode_changes(&bytes), Some(changes));
        assert_eq!(decode_changes(&[]), Some(Vec::new()));
        for len in 1..bytes.len() {
            assert_eq!(decode_changes(&bytes[..len]), None, "cut at {len}");
        }
        for (at, value) in [(0, 2), (1, 1), (2, 200), (4, 9), (5, 1)] {
            let mut bad = bytes.clone();
            bad[at] = value;
            assert_eq!(decode_changes(&bad), None, "byte {at}");
        }
    }
}
