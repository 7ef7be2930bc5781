//! What goes into a core and what comes out of it.

use std::collections::BTreeMap;

use bytes::Bytes;
use cairn_types::NodeId;
use cairn_wire::raft::RaftMessage;

use crate::{HardState, LogEntry, Mark, MemberChange, Members, Position, Testimony};

/// A checkpoint that a follower can be given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotMeta {
    /// The last entry in it.
    pub at: Position,
    /// The group's members after that entry.
    pub members: Members,
    /// Bytes of the file.
    pub bytes: u64,
}

/// What a member starts from.
#[derive(Debug, Clone, Default)]
pub struct Restored {
    /// Promises from the log.
    pub hard: HardState,
    /// Where the log begins: entries follow it.
    pub base: Position,
    /// Members after the last applied entry.
    pub members: Members,
    /// Last entry in the state machine: between the base and the last entry.
    pub applied: Position,
    /// Entries behind the base, consecutive.
    pub entries: Vec<LogEntry>,
    /// The newest checkpoint, if any.
    pub snapshot: Option<SnapshotMeta>,
    /// The member never took part in anything, so it has promised nothing.
    pub fresh: bool,
    /// Marks of members, this one too, that this node wrote down beside the log.
    pub marks: BTreeMap<NodeId, Mark>,
    /// A person accepted that this member has forgotten something, and it has not got it again
    /// ([`has_forgotten`](crate::GroupCore::has_forgotten)).
    pub forgot: bool,
}

/// What happened.
#[derive(Debug)]
pub enum Input {
    /// A peer sent this.
    Message(RaftMessage),
    /// A tick passed since the last one, or more.
    Tick,
    /// Everything up to this [`Output::Persist`] is durable.
    Persisted(u64),
    /// Try to become leader now.
    Campaign,
    /// The leader shall change the members; refused elsewhere or when another change is under way.
    ChangeMembers(Vec<MemberChange>),
    /// The leader shall hand over.
    TransferLeader(NodeId),
    /// A checkpoint of this member is durable.
    Checkpointed(SnapshotMeta),
    /// The checkpoint asked for by [`Output::FetchSnapshot`] is here and durable (as a file).
    SnapshotFetched(Position),
    /// It could not be had; the leader will offer one again.
    SnapshotFailed(Position),
    /// Somebody outside of the group said what is known of this member.
    Witnessed(Testimony),
    /// A person accepts what this member has forgotten: it takes part in elections from now on.
    AcceptLoss,
    /// What the leader of this term, and those who elected it, have forgotten is known from elsewhere.
    Recalled(u64),
    /// Somebody outside of the group knows of this term: the next leader's is higher.
    RaiseTerm(u64),
    /// A member that sleeps is wanted.
    Wake,
    /// The node of the leader under whom this member sleeps in this term is gone.
    LeaderLost(u64),
    /// The log here can only be given up further when there is one more entry.
    EntryWanted,
    /// A moment passed since something was committed: a leader says so, if nothing that it sent since does
    /// ([`has_commit_to_tell`](crate::GroupCore::has_commit_to_tell)).
    TellCommit,
}

/// What to do, in this order.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    /// Write all this to the log, in the order reset, promises, entries; when it is durable, say
    /// [`Input::Persisted`] with the number.
    Persist {
        /// Increasing.
        number: u64,
        /// All entries are void, the log goes on behind this.
        reset: Option<Position>,
        /// The promises, when they changed.
        hard: Option<HardState>,
        /// Entries to append; they replace what the log has from the first on.
        entries: Vec<LogEntry>,
    },
    /// Send to the member named in it. May get lost.
    Send(RaftMessage),
    /// Apply this committed entry (data may be empty: nothing for the state machine).
    Apply {
        /// Where.
        at: Position,
        /// Its bytes; empty for changes of members.
        data: Bytes,
    },
    /// The state machine becomes what the fetched checkpoint holds.
    Restore(SnapshotMeta),
    /// Fetch this checkpoint from a member; answer with [`Input::SnapshotFetched`] or [`Input::SnapshotFailed`].
    FetchSnapshot {
        /// Who has it.
        from: NodeId,
        /// Which.
        meta: SnapshotMeta,
    },
    /// A member needs a newer checkpoint than there is: make one.
    CheckpointWanted,
    /// Propose an empty entry if there is nothing else to propose: a member's log waits for one.
    EntryWanted,
    /// Part in the group.
    Role(RoleChange),
    /// The members changed.
    MembersChanged(Members),
}

/// A change of this member's part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoleChange {
    /// Elected, nothing applied in this term yet: proposals are taken, reads are not served.
    Elected {
        /// The term.
        term: u64,
    },
    /// Leads and has applied the first entry of its term.
    Leader {
        /// The term.
        term: u64,
    },
    /// Does not lead.
    Follower {
        /// The term.
        term: u64,
        /// Who leads, if known.
        leader: Option<NodeId>,
    },
}

/// This member does not lead, or hands over: certainly not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this member does not lead the group{}", .hint.map_or_else(String::new, |node| format!("; {node} may")))]
pub struct NotLeader {
    /// Who may.
    pub hint: Option<NodeId>,
}

/// Why an input had no effect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// A message that no correct peer sends to this member now; dropped.
    #[error("a message was refused: {0}")]
    Message(&'static str),
    /// Not the leader.
    #[error(transparent)]
    NotLeader(#[from] NotLeader),
    /// Too much is proposed and not committed yet.
    #[error("too much is proposed and not committed yet")]
    Full,
    /// Another change of members is not finished, or makes no sense.
    #[error("the members cannot be changed now: {0}")]
    Change(&'static str),
}
