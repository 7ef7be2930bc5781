//! Locks as programs ask for them: flock(2) for whole files, fcntl(2) for ranges.

/// What a lock does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum LockKind {
    Unlock,
    /// Shared.
    Read,
    /// Exclusive.
    Write,
}

/// Bytes of a file, both ends included; `end` [`i64::MAX`]: to the end, however far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct LockRange {
    pub start: u64,
    pub end: u64,
}

impl LockRange {
    /// All bytes of a file.
    pub const ALL: LockRange = LockRange { start: 0, end: i64::MAX as u64 };
}

/// A lock of a file by an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Lock {
    pub kind: LockKind,
    pub range: LockRange,
    /// Process, for whom it interests. 0: on another machine.
    pub pid: u32,
}

/// Ends the wait for a lock.
pub type Interrupted = tokio::sync::oneshot::Receiver<()>;
