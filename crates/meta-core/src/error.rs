//! Why an operation was refused, before it becomes an answer on the wire.
use cairn_types::ErrorCode;
use cairn_wire::error::WireError;

/// A code and what a person reads. The caller knows the path and puts it in front.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{code}: {text}")]
pub(crate) struct OpError {
    pub code: ErrorCode,
    pub text: &'static str,
    /// Bytes and inodes of the volume's limit, where there is no room for them now.
    pub asks_for: (u64, u64),
}

pub(crate) type Result<T> = std::result::Result<T, OpError>;

impl OpError {
    pub const fn new(code: ErrorCode, text: &'static str) -> Self {
        Self { code, text, asks_for: (0, 0) }
    }
    pub fn to_wire(self) -> WireError {
        match self.asks_for {
            (0, 0) => WireError::new(self.code, self.text),
            (bytes, inodes) => WireError::new(self.code, format!("{} ({bytes} bytes, {inodes} inodes)", self.text)),
        }
    }
}

/// The errors that several operations give.
impl OpError {
    pub const NOT_FOUND: Self = Self::new(ErrorCode::NotFound, "no entry of this name in the directory");
    pub const EXISTS: Self = Self::new(ErrorCode::Exists, "the directory has an entry of this name");
    pub const NOT_DIRECTORY: Self = Self::new(ErrorCode::NotDirectory, "not a directory");
    pub const IS_DIRECTORY: Self = Self::new(ErrorCode::IsDirectory, "a directory");
    pub const NOT_EMPTY: Self = Self::new(ErrorCode::NotEmpty, "the directory has entries; remove them first");
    pub const STALE: Self = Self::new(ErrorCode::Stale, "the inode is gone; look the path up again");
    pub const REMOVED: Self = Self::new(ErrorCode::NotFound, "the directory was removed; look the path up again");
    pub const SEARCH_DENIED: Self =
        Self::new(ErrorCode::PermissionDenied, "the directory may not be searched: no x permission");
    pub const DIR_WRITE_DENIED: Self =
        Self::new(ErrorCode::PermissionDenied, "the directory may not be changed: no w permission");
    pub const READ_DENIED: Self = Self::new(ErrorCode::PermissionDenied, "no r permission");
    pub const WRITE_DENIED: Self = Self::new(ErrorCode::PermissionDenied, "no w permission");
    pub const ACCESS_DENIED: Self = Self::new(ErrorCode::PermissionDenied, "the mode bits forbid this access");
    pub const STICKY: Self = Self::new(
        ErrorCode::NotPermitted,
        "the directory is sticky: only the owner of the entry or of the directory may remove or rename it",
    );
    pub const NOT_OWNER: Self = Self::new(ErrorCode::NotPermitted, "only the owner or root may do this");
    pub const NOT_ROOT: Self = Self::new(ErrorCode::NotPermitted, "only root may do this");
    pub const TOO_MANY_LINKS: Self = Self::new(ErrorCode::TooManyLinks, "no further link is possible");
    pub const FILE_TOO_LARGE: Self = Self::new(ErrorCode::FileTooLarge, "a file has at most 2^63 - 1 bytes");
    pub const CHANGED: Self =
        Self::new(ErrorCode::Conflict, "the file's contents were changed meanwhile; read its extents again");
    pub const VOLATILE: Self = Self::new(
        ErrorCode::LeaseHeld,
        "the file was closed before all of it was durable, which it is in some seconds; repeat in a moment",
    );
    pub const LOCKED: Self = Self::new(
        ErrorCode::LeaseHeld,
        "the inode is part of an operation across partitions that is being decided; repeat in a moment",
    );
    pub const DELEGATED: Self = Self::new(
        ErrorCode::LeaseHeld,
        "the directory was just made by another client, which is storing what it has made in it; repeat in a moment",
    );
    /// Of another inode that the request names: the number stays unused, the leader has it prepared.
    pub const FOREIGN: Self =
        Self::new(ErrorCode::CrossVolume, "an inode of another partition, for which this operation is not prepared");
    /// Of the inode by which a request is routed: the number stays unused, the client asks the partition that has it.
    pub const ELSEWHERE: Self = Self::new(
        ErrorCode::UnknownPartition,
        "the inode belongs to another partition of the volume; refresh the cluster map and repeat it there",
    );
    pub const SHARDED: Self = Self::new(
        ErrorCode::Sharded,
        "the names of this directory are spread over shards, which this program does not know of: upgrade it to the version of the servers",
    );
    pub const BAD_REQUEST: Self = Self::new(ErrorCode::BadRequest, "the message cannot be decoded");
    pub const DAMAGED: Self =
        Self::new(ErrorCode::Internal, "a metadata record cannot be decoded; restore the partition from a replica");
}
