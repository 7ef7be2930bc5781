//! Who is none of the group: its messages do not reach the core.
//!
//! Raft itself takes entries from whoever comes with a higher term, so any metadata server's key could lead, or end,
//! every partition. A sender is a member by this member's own configuration, or by the cluster map.
//!
//! No healthy member is refused for long: the managers name a node in the map before they let the group take it, and
//! until the group is without it. A member that was away during the change knows it neither from its log nor, after a
//! restart, from a map: until it hears one with its first heartbeat (a second) it hears the new members not, and they
//! repeat everything. Where no manager answers, all whose logs have the change go on as before.
//!
//! What a member of before says is let through where it changes nothing: its question whether it is one, and messages
//! of an earlier era, to which the answer is that there is a later one. Not here: whether the sender is who it says
//! (the service), and the managers' own group, which is for the keys of managers.

use cairn_raft::GroupCore;
use cairn_types::{GroupId, NodeId, era_of};
use cairn_wire::raft::RaftMessage;

use super::{Owner, Parts};
use crate::state_machine::StateMachine;

impl<S: StateMachine> Owner<S> {
    pub(super) fn is_strangers(&self, message: &RaftMessage) -> bool {
        let Parts { group, transport, .. } = &self.parts;
        if *group == GroupId::MANAGER || self.core.has_member(message.from) {
            return false;
        }
        let era = era_of(message.term);
        let changes_nothing = era < self.era || era == self.era && GroupCore::is_question(message);
        let from = NodeId(u32::try_from(message.from).unwrap_or(0));
        if changes_nothing || transport.may_be_member(*group, from) {
            return false;
        }
        tracing::debug!(%group, %from, "a message of a node that is no member");
        true
    }
}
