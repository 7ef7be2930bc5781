//! [`RescueError`]: why something could not be saved, put back or rebuilt.
use cairn_env::DiskError;
use cairn_store::StoreError;
use cairn_types::{ClusterId, GroupId};

/// What a person or a script does about it differs by kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RescueError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// There is no such backup.
    #[error("{dir} has no backup {number}; cairn admin backup --list {dir} shows those that it has")]
    NoBackup { dir: String, number: u64 },
    #[error("{dir} has no backup; name a directory that cairn admin backup wrote")]
    NoBackups { dir: String },
    /// A group is not in the backup.
    #[error("backup {number} in {dir} has nothing of group {group}")]
    NoGroup { dir: String, number: u64, group: GroupId },
    /// Bytes of a backup or scan are not what was written.
    #[error("{file} is damaged: {what}; use another backup, or the copy of another place")]
    Damaged { file: String, what: String },
    /// The backup is another cluster's.
    #[error(
        "{dir} belongs to cluster {found}, the backup to {expected}; name the right directory; nothing was changed"
    )]
    OtherCluster { dir: String, found: ClusterId, expected: ClusterId },
    /// The directory is another node's.
    #[error("{dir} belongs to node {found}, not to {wanted}; name the right directory or node; nothing was changed")]
    OtherNode { dir: String, found: u32, wanted: u32 },
    /// What is there is newer.
    #[error(
        "{dir} has group {group} up to entry {has}, which is newer than entry {backup} of the backup; if that is really to \
         be given up, say --over-newer-state; nothing was changed"
    )]
    NewerState { dir: String, group: GroupId, has: u64, backup: u64 },
    /// The manager's state in a backup cannot be read.
    #[error("the manager's state in {file} cannot be used: {what}")]
    ManagerState { file: String, what: String },
    /// Said by the caller's arguments.
    #[error("{0}")]
    Refused(String),
}

/// Result of this crate.
pub type Result<T> = std::result::Result<T, RescueError>;

/// What a caller does about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Damaged,
    InUse,
    WrongCluster,
    NotFound,
    /// Something newer is in the way.
    Newer,
    Full,
    Other,
}

impl RescueError {
    /// Cut by what a caller does.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Damaged { .. } | Self::ManagerState { .. } | Self::Store(StoreError::Corrupt { .. }) => Kind::Damaged,
            Self::Store(StoreError::InUse { .. }) => Kind::InUse,
            Self::OtherCluster { .. } | Self::Store(StoreError::OtherCluster { .. }) => Kind::WrongCluster,
            Self::NoBackup { .. } | Self::NoBackups { .. } | Self::NoGroup { .. } => Kind::NotFound,
            Self::Disk(DiskError::NotFound { .. }) => Kind::NotFound,
            Self::NewerState { .. } => Kind::Newer,
            Self::Disk(DiskError::NoSpace { .. }) | Self::Store(StoreError::Disk(DiskError::NoSpace { .. })) => {
                Kind::Full
            }
            _ => Kind::Other,
        }
    }
}
