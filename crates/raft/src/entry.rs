//! Entries and promises as the core hands them out, independent of the `raft` crate's types.

use bytes::Bytes;

/// An entry with proposed data (a batch frame), or empty.
pub const ENTRY_NORMAL: u8 = 0;
/// A change of members, in our own encoding ([`crate::members`]).
pub const ENTRY_CONFIG: u8 = 1;

/// An entry of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEntry {
    /// Term.
    pub term: u64,
    /// Index.
    pub index: u64,
    /// [`ENTRY_NORMAL`] or [`ENTRY_CONFIG`].
    pub kind: u8,
    /// Its bytes.
    pub data: Bytes,
}

/// What a member must not forget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HardState {
    /// Term.
    pub term: u64,
    /// Whom it voted for in it; 0 nobody.
    pub vote: u64,
    /// Highest index known to be committed.
    pub commit: u64,
}

/// A place in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Position {
    /// Index.
    pub index: u64,
    /// Term of the entry there.
    pub term: u64,
}
