//! [`ManagerError`]: why a manager cannot start.
use cairn_raft_host::HostError;
use cairn_types::ClusterId;

/// Why a member of the manager's group cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ManagerError {
    /// The configuration contradicts itself.
    #[error("the manager's configuration: {0}")]
    Config(String),
    /// Its log or checkpoint cannot be opened.
    #[error("the manager's log: {0}")]
    Log(#[from] HostError),
    /// It was a member, and its log is gone.
    #[error(
        "the directory has no log of the manager's group, though member {member} has been part of cluster {cluster}: it \
         would vote again where it voted before; restore the directory, or take the member out with `cairn admin manager \
         remove {member}`, start this process again, and add the member with `cairn admin manager add`"
    )]
    Forgotten {
        /// The cluster that the others belong to.
        cluster: ClusterId,
        /// Its number.
        member: u32,
    },
    /// Whether it was a member before cannot be found out.
    #[error(
        "the directory has no log of the manager's group, and whether member {member} has been part of cluster {cluster} \
         before only its leader knows, which does not answer ({cause}); start the other managers first, or restore the \
         directory"
    )]
    Unknowable {
        /// The cluster that the others belong to.
        cluster: ClusterId,
        /// Its number.
        member: u32,
        /// Why the leader did not answer.
        cause: String,
    },
    /// Its thread could not be made.
    #[error("cannot start the manager's thread: {0}")]
    Thread(#[source] std::io::Error),
}
