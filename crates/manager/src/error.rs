//! [`ManagerError`]: why a manager cannot start.
use cairn_raft_host::HostError;

/// Why a member of the manager's group cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ManagerError {
    /// The configuration contradicts itself.
    #[error("the manager's configuration: {0}")]
    Config(String),
    /// Its log or checkpoint cannot be opened.
    #[error("the manager's log: {0}")]
    Log(#[from] HostError),
    /// Its thread could not be made.
    #[error("cannot start the manager's thread: {0}")]
    Thread(#[source] std::io::Error),
}
