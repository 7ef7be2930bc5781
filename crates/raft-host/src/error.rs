//! [`HostError`]: why a group cannot be opened or told something.

use cairn_raft::NotLeader;
use cairn_store::StoreError;
use cairn_types::GroupId;

/// Why a call to the host failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// Files could not be read, written or understood; the message has the file and the next step.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The group was never on this node and must not be begun here.
    #[error(
        "{dir} has no log of group {group}, though this node belongs to a cluster; restore its files, or let the node \
         join again with an empty directory"
    )]
    Missing {
        /// The node's directory.
        dir: String,
        /// The group.
        group: GroupId,
    },
    /// There are checkpoints of the group but no record of it in the log: votes may be forgotten.
    #[error(
        "{dir} has a checkpoint of group {group} at entry {index} but no log of it; restore the log, or empty the \
         directory and let the node join again"
    )]
    LogLost {
        /// The node's directory.
        dir: String,
        /// The group.
        group: GroupId,
        /// The checkpoint's entry.
        index: u64,
    },
    /// A checkpoint of this member's own has entries that the log should have and has not: its end is gone, and votes
    /// may be forgotten with it.
    #[error(
        "{dir}: the log of group {group} ends at entry {last}, but this member has a checkpoint of entry {index}, which \
         its log had reached: the end of the log is missing, and votes with it; restore the log from a copy of the \
         device, or empty the directory and let the node join again"
    )]
    LogCut {
        /// The node's directory.
        dir: String,
        /// The group.
        group: GroupId,
        /// The checkpoint's entry.
        index: u64,
        /// The last entry of the log.
        last: u64,
    },
    /// An entry of the log cannot be understood.
    #[error("{dir}: entry {index} of group {group} cannot be read: {what}")]
    BadEntry {
        /// The node's directory.
        dir: String,
        /// The group.
        group: GroupId,
        /// The entry.
        index: u64,
        /// What is wrong.
        what: String,
    },
    /// The group is open already, or was opened before in this process.
    #[error("group {0} is open, or was before in this process; restart the process to open it again")]
    Open(GroupId),
    /// The group is not open here.
    #[error("group {0} is not open on this node")]
    Unknown(GroupId),
    /// This member does not lead.
    #[error(transparent)]
    NotLeader(#[from] NotLeader),
    /// The change was refused.
    #[error("{0}")]
    Refused(String),
    /// The group has stopped, after a failure or because the host ends.
    #[error("group {group} has stopped: {cause}")]
    Stopped {
        /// The group.
        group: GroupId,
        /// Why.
        cause: String,
    },
}
