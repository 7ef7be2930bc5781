//! The closed table of error codes: number, retry class, errno, S3 code, Hadoop exception. Add, never edit.

/// What the caller may do after an error.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum RetryClass {
    /// The same request will fail again: the caller's fault or a fact.
    Never = 0,
    /// The same server will do it later: wait and repeat with the same sequence number.
    Here = 1,
    /// Another server does it (another leader, another member).
    Elsewhere = 2,
    /// The caller's view is old: refresh the cluster map, then repeat.
    Refresh = 3,
    /// Whether it was done is not known; never repeat it under another session or sequence.
    Unknown = 4,
}

impl RetryClass {
    pub fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0 => Self::Never,
            1 => Self::Here,
            2 => Self::Elsewhere,
            3 => Self::Refresh,
            4 => Self::Unknown,
            _ => return None,
        })
    }
}

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $retry:ident, $errno:literal, $s3:literal, $hadoop:literal;)*) => {
        /// An error as it crosses the wire.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u16)]
        pub enum ErrorCode { $($(#[$doc])* $name = $code,)* }

        impl ErrorCode {
            /// Every code of the table.
            pub const ALL: &'static [ErrorCode] = &[$(ErrorCode::$name,)*];

            pub fn from_code(code: u16) -> Option<Self> {
                match code { $($code => Some(Self::$name),)* _ => None }
            }
            pub fn code(self) -> u16 { self as u16 }
            pub fn retry(self) -> RetryClass { match self { $(Self::$name => RetryClass::$retry,)* } }
            /// Linux errno.
            pub fn errno(self) -> i32 { match self { $(Self::$name => $errno,)* } }
            /// Error code of the S3 API.
            pub fn s3(self) -> &'static str { match self { $(Self::$name => $s3,)* } }
            /// Java exception class that programs of Hadoop get through the jar: `Errors.java` chooses it by the errno.
            pub fn hadoop(self) -> &'static str { match self { $(Self::$name => $hadoop,)* } }
            pub fn name(self) -> &'static str { match self { $(Self::$name => stringify!($name),)* } }
        }
    };
}

codes! {
    /// This member of the Raft group does not lead; the hint names who may.
    NotLeader = 1, Elsewhere, 11, "ServiceUnavailable", "org.apache.hadoop.fs.PathIOException";
    /// The request names an older epoch than the member holds.
    StaleEpoch = 2, Refresh, 11, "ServiceUnavailable", "org.apache.hadoop.fs.PathIOException";
    /// The peer belongs to another cluster.
    WrongCluster = 3, Never, 22, "InvalidRequest", "org.apache.hadoop.fs.PathIOException";
    /// No common protocol version.
    VersionUnsupported = 4, Never, 93, "NotImplemented", "org.apache.hadoop.fs.PathIOException";
    /// A bounded queue is full.
    Overloaded = 5, Here, 11, "SlowDown", "org.apache.hadoop.fs.PathIOException";
    /// The deadline passed; the outcome is not known.
    DeadlineExceeded = 6, Unknown, 110, "RequestTimeout", "org.apache.hadoop.fs.PathIOException";
    /// The client session ended; the outcome is not known.
    SessionEnded = 7, Unknown, 116, "ServiceUnavailable", "java.io.FileNotFoundException";
    /// A defect in the server.
    Internal = 8, Never, 5, "InternalError", "org.apache.hadoop.fs.PathIOException";
    /// The message cannot be decoded or lacks a field.
    BadRequest = 9, Never, 22, "InvalidRequest", "org.apache.hadoop.fs.PathIOException";
    /// The server stops or has not finished starting.
    Unavailable = 10, Elsewhere, 11, "ServiceUnavailable", "org.apache.hadoop.fs.PathIOException";
    /// The opcode is not served here.
    UnknownOperation = 11, Never, 95, "NotImplemented", "org.apache.hadoop.fs.PathIOException";
    /// The sequence number of the slot is not the next one.
    BadSequence = 12, Never, 22, "InvalidRequest", "org.apache.hadoop.fs.PathIOException";
    /// The extents were written under another session than the one that names them; nothing was changed.
    WrongSession = 13, Never, 116, "OperationAborted", "java.io.FileNotFoundException";
    /// The rights of the caller's key do not reach so far; nothing was done, and a number of a session's slot is
    /// unused.
    KeyForbids = 16, Never, 1, "AccessDenied", "org.apache.hadoop.security.AccessControlException";
    NotFound = 20, Never, 2, "NoSuchKey", "java.io.FileNotFoundException";
    Exists = 21, Never, 17, "PreconditionFailed", "org.apache.hadoop.fs.FileAlreadyExistsException";
    NotDirectory = 22, Never, 20, "InvalidRequest", "org.apache.hadoop.fs.ParentNotDirectoryException";
    IsDirectory = 23, Never, 21, "InvalidRequest", "java.io.FileNotFoundException";
    NotEmpty = 24, Never, 39, "BucketNotEmpty", "org.apache.hadoop.fs.PathIsNotEmptyDirectoryException";
    /// Mode bits or ownership forbid it.
    PermissionDenied = 25, Never, 13, "AccessDenied", "org.apache.hadoop.security.AccessControlException";
    /// Only the owner or root may do it.
    NotPermitted = 26, Never, 1, "AccessDenied", "org.apache.hadoop.security.AccessControlException";
    InvalidArgument = 27, Never, 22, "InvalidArgument", "org.apache.hadoop.fs.PathIOException";
    NameTooLong = 28, Never, 36, "KeyTooLongError", "org.apache.hadoop.fs.PathIOException";
    TooManyLinks = 29, Never, 31, "InvalidRequest", "org.apache.hadoop.fs.PathIOException";
    CrossVolume = 30, Never, 18, "InvalidRequest", "org.apache.hadoop.fs.PathIOException";
    /// No disk, placement group or volume has room.
    NoSpace = 31, Never, 28, "InsufficientStorage", "org.apache.hadoop.util.DiskChecker.DiskOutOfSpaceException";
    QuotaExceeded = 32, Never, 122, "QuotaExceeded", "org.apache.hadoop.util.DiskChecker.DiskOutOfSpaceException";
    NoAttribute = 33, Never, 61, "NoSuchKey", "org.apache.hadoop.fs.PathIOException";
    FileTooLarge = 34, Never, 27, "EntityTooLarge", "org.apache.hadoop.fs.PathIOException";
    /// The inode is gone.
    Stale = 35, Never, 116, "NoSuchKey", "java.io.FileNotFoundException";
    /// The value does not fit the caller's buffer.
    OutOfRange = 36, Never, 34, "InvalidRange", "org.apache.hadoop.fs.PathIOException";
    ReadOnly = 37, Never, 30, "AccessDenied", "org.apache.hadoop.security.AccessControlException";
    TooManySymlinks = 38, Never, 40, "InvalidRequest", "java.io.FileNotFoundException";
    /// A compare-and-set found another value: somebody else changed it.
    Conflict = 39, Never, 11, "OperationAborted", "org.apache.hadoop.fs.PathIOException";
    /// The layout cannot be used here; the text says why.
    BadLayout = 40, Never, 22, "InvalidRequest", "org.apache.hadoop.fs.PathIOException";
    /// Another owner holds a lock on a part of the range.
    Locked = 41, Never, 11, "OperationAborted", "org.apache.hadoop.fs.PathIOException";
    /// The inode or the session has as many locks as it may have.
    TooManyLocks = 42, Never, 37, "InvalidRequest", "org.apache.hadoop.fs.PathIOException";
    /// Extended attributes take more space than an inode has for them, or one is too large.
    AttributeTooLarge = 43, Never, 7, "InvalidRequest", "org.apache.hadoop.fs.PathIOException";
    /// The operation makes no sense for this kind of inode or this name.
    NotSupported = 44, Never, 95, "NotImplemented", "org.apache.hadoop.fs.PathIOException";
    /// Another client overwrites the file in place; it is told to stop, which takes a moment.
    LeaseHeld = 45, Here, 11, "SlowDown", "org.apache.hadoop.fs.PathIOException";
    /// The name is not in the directory itself, whose names are spread over shards: ask the shard that would have it.
    Sharded = 46, Never, 95, "NotImplemented", "org.apache.hadoop.fs.PathIOException";
    /// A block on this member does not match its checksum.
    ChecksumMismatch = 60, Elsewhere, 5, "InternalError", "org.apache.hadoop.fs.PathIOException";
    /// This member does not hold the bytes.
    Missing = 61, Elsewhere, 5, "InternalError", "org.apache.hadoop.fs.PathIOException";
    /// The chunk takes no more appends: go on in a new one.
    ChunkSealed = 62, Refresh, 11, "ServiceUnavailable", "org.apache.hadoop.fs.PathIOException";
    /// The member is not serving (syncing, offline).
    NotServing = 63, Refresh, 11, "ServiceUnavailable", "org.apache.hadoop.fs.PathIOException";
    /// The request has to go to the primary of the placement group.
    NotPrimary = 64, Refresh, 11, "ServiceUnavailable", "org.apache.hadoop.fs.PathIOException";
    /// The disk left service.
    DiskFailed = 65, Elsewhere, 5, "InternalError", "org.apache.hadoop.fs.PathIOException";
    /// An append does not start at the end of the chunk.
    OffsetMismatch = 66, Never, 5, "InternalError", "org.apache.hadoop.fs.PathIOException";
    /// The placement group takes no new chunks.
    PgFull = 67, Refresh, 28, "InsufficientStorage", "org.apache.hadoop.util.DiskChecker.DiskOutOfSpaceException";
    /// A member further down the chain failed or stalled; the text names it.
    ChainFailed = 68, Refresh, 5, "ServiceUnavailable", "org.apache.hadoop.fs.PathIOException";
    /// The chunk was deleted; the caller's extent map is old.
    ChunkDeleted = 69, Refresh, 116, "NoSuchKey", "java.io.FileNotFoundException";
    /// The member's process was restarted since: what was not synced may be lost.
    WrongIncarnation = 70, Refresh, 11, "ServiceUnavailable", "org.apache.hadoop.fs.PathIOException";
    /// Fewer serving members than the scheme's minimum for writes.
    BelowMinimum = 71, Refresh, 11, "ServiceUnavailable", "org.apache.hadoop.fs.PathIOException";
    /// The blocks cannot be overwritten where they are, or not now: write them to new space.
    NotInPlace = 72, Never, 11, "ServiceUnavailable", "org.apache.hadoop.fs.PathIOException";
    UnknownVolume = 80, Never, 2, "NoSuchBucket", "java.io.FileNotFoundException";
    UnknownNode = 81, Never, 2, "InvalidRequest", "java.io.FileNotFoundException";
    /// Too few disks or failure domains for the scheme.
    NotEnoughDisks = 82, Never, 28, "InsufficientStorage", "org.apache.hadoop.util.DiskChecker.DiskOutOfSpaceException";
    VolumeNotEmpty = 83, Never, 39, "BucketNotEmpty", "org.apache.hadoop.fs.PathIsNotEmptyDirectoryException";
    UnknownPg = 84, Refresh, 2, "InternalError", "java.io.FileNotFoundException";
    UnknownPartition = 85, Refresh, 2, "InternalError", "java.io.FileNotFoundException";
    /// A configuration key or value that is not known.
    BadConfig = 86, Never, 22, "InvalidRequest", "org.apache.hadoop.fs.PathIOException";
}

impl std::fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_complete_and_decodes() {
        let mut last = 0;
        for code in ErrorCode::ALL {
            assert!(code.code() > last, "{code} is out of order or used twice");
            last = code.code();
            assert_eq!(ErrorCode::from_code(code.code()), Some(*code));
            assert!((1..134).contains(&code.errno()), "{code}");
            assert!(!code.s3().is_empty());
            assert!(code.hadoop().starts_with("java.") || code.hadoop().starts_with("org.apache.hadoop."));
            assert_eq!(RetryClass::from_code(code.retry() as u8), Some(code.retry()));
        }
        assert_eq!(ErrorCode::from_code(0), None);
        assert_eq!(ErrorCode::from_code(u16::MAX), None);
    }

    #[test]
    fn what_programs_rely_on() {
        assert_eq!((ErrorCode::NotFound.errno(), ErrorCode::NoSpace.errno()), (2, 28));
        assert_eq!(ErrorCode::SessionEnded.retry(), RetryClass::Unknown);
        assert_eq!(ErrorCode::StaleEpoch.retry(), RetryClass::Refresh);
    }
}
