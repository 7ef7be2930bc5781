//! [`DiskError`]: what can go wrong on a disk, cut by what the caller does about it.
//!
//! Invariant: every error names the path it happened at.

use std::fmt;
use std::io::ErrorKind;

/// The operation that failed, as a word in messages and a label in metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DiskOp {
    /// Opening or creating a file.
    Open,
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Making a file durable.
    Sync,
    /// Making a directory durable.
    SyncDir,
    /// Asking for a file's size or space.
    Stat,
    /// Changing a file's size.
    SetLen,
    /// Reserving space.
    Allocate,
    /// Freeing a range.
    PunchHole,
    /// Removing a file or directory.
    Remove,
    /// Renaming a file.
    Rename,
    /// Making a directory.
    CreateDir,
    /// Listing a directory.
    List,
    /// Asking for total and free space.
    Space,
    /// Taking the lock.
    Lock,
}

impl fmt::Display for DiskOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::Read => "read",
            Self::Write => "write",
            Self::Sync => "sync",
            Self::SyncDir => "sync directory",
            Self::Stat => "stat",
            Self::SetLen => "set length",
            Self::Allocate => "allocate",
            Self::PunchHole => "punch hole",
            Self::Remove => "remove",
            Self::Rename => "rename",
            Self::CreateDir => "create directory",
            Self::List => "list",
            Self::Space => "get space",
            Self::Lock => "lock",
        })
    }
}

/// Why a disk operation failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DiskError {
    /// Refused: there is no such file or directory.
    #[error("{path}: no such file or directory")]
    NotFound {
        /// The path asked for.
        path: String,
    },
    /// Refused: the name is taken.
    #[error("{path}: already exists")]
    Exists {
        /// The path asked for.
        path: String,
    },
    /// Refused: a directory where a file is needed.
    #[error("{path}: is a directory")]
    IsDirectory {
        /// The path asked for.
        path: String,
    },
    /// Refused: a part of the path is a file.
    #[error("{path}: a part of the path is not a directory")]
    NotDirectory {
        /// The path asked for.
        path: String,
    },
    /// Refused: the directory to remove has entries.
    #[error("{path}: the directory is not empty")]
    NotEmpty {
        /// The path asked for.
        path: String,
    },
    /// Refused, the caller's mistake: the path could leave the disk's directory.
    #[error("the path {path:?} is refused: {reason}")]
    BadPath {
        /// The path as given.
        path: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Refused, the caller's mistake: options that contradict each other, or a handle that was not opened for this.
    #[error("{path}: {reason}")]
    BadUse {
        /// The path of the file.
        path: String,
        /// What is wrong.
        reason: &'static str,
    },
    /// Refused, the caller's mistake: direct I/O needs offset, length and memory in multiples of 4096.
    #[error("{path}: direct {op} of {len} bytes at offset {offset} is not aligned to 4096")]
    Misaligned {
        /// The path of the file.
        path: String,
        /// Read or write.
        op: DiskOp,
        /// Offset asked for.
        offset: u64,
        /// Length asked for.
        len: usize,
    },
    /// Refused: another process has the lock.
    #[error("{path}: locked by {}; stop that process, or use another directory",
            .holder.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}")))]
    Locked {
        /// The lock file.
        path: String,
        /// The process id found in the lock file.
        holder: Option<u32>,
    },
    /// The file system or a quota is full. Some of a write may have been done.
    #[error("{path}: no space left for {op}; free space or add a disk")]
    NoSpace {
        /// The path of the file.
        path: String,
        /// What needed the space.
        op: DiskOp,
    },
    /// The process or the machine lacks descriptors or memory: nothing is known of the disk, and it is to be repeated.
    /// Some of a write may have been done.
    #[error("{path}: {op} failed for want of {}", wanted(*.errno))]
    Shortage {
        /// The path of the file.
        path: String,
        /// What was tried.
        op: DiskOp,
        /// The system's error number.
        errno: i32,
    },
    /// The file ends before the bytes asked for.
    #[error("{path}: ends before {wanted} bytes at offset {offset} ({got} found)")]
    UnexpectedEnd {
        /// The path of the file.
        path: String,
        /// Offset asked for.
        offset: u64,
        /// Bytes asked for.
        wanted: usize,
        /// Bytes found.
        got: usize,
    },
    /// The device is gone: unplugged, shut down, or (simulated) the machine crashed. Nothing more will work until
    /// the disk is opened again; whether this operation took effect is unknown.
    #[error("{path}: {op} failed because the disk is gone; check the device, then open it again")]
    Gone {
        /// The path of the file.
        path: String,
        /// What was tried.
        op: DiskOp,
    },
    /// The device or file system failed. Whether the operation took effect is unknown; after a sync, data may be
    /// lost. A person or the quarantine of the disk has to act.
    #[error("{path}: {op} failed: {}", message(*.kind, *.errno))]
    Io {
        /// The path of the file.
        path: String,
        /// What was tried.
        op: DiskOp,
        /// The kind as the standard library sees it.
        kind: ErrorKind,
        /// The system's error number, if any.
        errno: Option<i32>,
    },
}

/// What is lacking, and what to do about it.
fn wanted(errno: i32) -> &'static str {
    match errno {
        libc::EMFILE => "file descriptors (EMFILE): the process has opened all that it may; raise LimitNOFILE",
        libc::ENFILE => "file descriptors (ENFILE): the machine has no more; raise fs.file-max",
        _ => "memory of the kernel (ENOMEM): end something on the machine, or give it more memory",
    }
}

/// The system's own words.
fn message(kind: ErrorKind, errno: Option<i32>) -> String {
    match errno {
        Some(errno) => std::io::Error::from_raw_os_error(errno).to_string(),
        None => kind.to_string(),
    }
}

impl DiskError {
    /// Translates the system's error.
    pub fn from_io(op: DiskOp, path: &str, error: &std::io::Error) -> Self {
        let path = path.to_owned();
        match error.raw_os_error() {
            Some(libc::ENOENT) => Self::NotFound { path },
            Some(libc::EEXIST) if op != DiskOp::Remove => Self::Exists { path },
            Some(libc::ENOTEMPTY | libc::EEXIST) => Self::NotEmpty { path },
            Some(libc::EISDIR) => Self::IsDirectory { path },
            Some(libc::ENOTDIR) => Self::NotDirectory { path },
            Some(libc::ENOSPC | libc::EDQUOT) => Self::NoSpace { path, op },
            Some(errno @ (libc::EMFILE | libc::ENFILE)) => Self::Shortage { path, op, errno },
            // A sync that failed is final, for want of what it may be.
            Some(errno @ libc::ENOMEM) if !matches!(op, DiskOp::Sync | DiskOp::SyncDir) => {
                Self::Shortage { path, op, errno }
            }
            Some(libc::ENODEV | libc::ENXIO | libc::ESHUTDOWN) => Self::Gone { path, op },
            errno => Self::Io { path, op, kind: error.kind(), errno },
        }
    }

    /// The path it happened at.
    pub fn path(&self) -> &str {
        match self {
            Self::NotFound { path }
            | Self::Exists { path }
            | Self::IsDirectory { path }
            | Self::NotDirectory { path }
            | Self::NotEmpty { path }
            | Self::BadPath { path, .. }
            | Self::BadUse { path, .. }
            | Self::Misaligned { path, .. }
            | Self::Locked { path, .. }
            | Self::NoSpace { path, .. }
            | Self::Shortage { path, .. }
            | Self::UnexpectedEnd { path, .. }
            | Self::Gone { path, .. }
            | Self::Io { path, .. } => path,
        }
    }

    /// Whether the disk refused and certainly did nothing. Otherwise the outcome is unknown.
    pub fn is_refusal(&self) -> bool {
        !matches!(self, Self::NoSpace { .. } | Self::Shortage { .. } | Self::Gone { .. } | Self::Io { .. })
    }

    /// Whether descriptors or memory were lacking, which says nothing of the disk ([`super::PatientDisk`] waits for
    /// them).
    pub fn is_shortage(&self) -> bool {
        matches!(self, Self::Shortage { .. })
    }

    /// Whether the disk itself failed (the owner counts it against the disk's health).
    pub fn is_disk_fault(&self) -> bool {
        matches!(self, Self::Gone { .. } | Self::Io { .. })
    }
}
