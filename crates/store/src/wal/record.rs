//! [`Record`]: what is submitted to the log, owning its bytes.

use bytes::Bytes;
use cairn_format::wal_record::{RECORD_HEADER_LEN, WalEntry, WalRecord, entries_record_len};
use cairn_types::GroupId;

/// An entry of a Raft log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEntry {
    /// Term.
    pub term: u64,
    /// Index.
    pub index: u64,
    /// 0 normal, 1 configuration change.
    pub kind: u8,
    /// Its bytes.
    pub data: Bytes,
}

/// A member's promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HardState {
    /// Term.
    pub term: u64,
    /// Whom the member voted for in it; 0 nobody.
    pub vote: u64,
    /// Highest index known to be committed.
    pub commit: u64,
}

/// One record of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// Entries with consecutive indices, at least one; they replace what the log has from the first on.
    Entries {
        /// The group.
        group: GroupId,
        /// The entries.
        entries: Vec<LogEntry>,
    },
    /// The group's promises.
    HardState {
        /// The group.
        group: GroupId,
        /// The promises.
        state: HardState,
    },
    /// Entries up to `index` are not needed any more.
    Truncate {
        /// The group.
        group: GroupId,
        /// Last index given up.
        index: u64,
        /// Its term.
        term: u64,
    },
    /// All entries are void; the log goes on behind `index`.
    Reset {
        /// The group.
        group: GroupId,
        /// Last index that the installed checkpoint covers.
        index: u64,
        /// Its term.
        term: u64,
    },
    /// The node has left the group.
    Tombstone {
        /// The group.
        group: GroupId,
    },
    /// The group began here.
    Bootstrap {
        /// The group.
        group: GroupId,
        /// Index of the empty state.
        index: u64,
        /// Its term.
        term: u64,
        /// Who votes, ascending.
        voters: Vec<u64>,
    },
    /// A checkpoint that was made elsewhere gets its name after this is durable.
    Fetched {
        /// The group.
        group: GroupId,
        /// The checkpoint's last entry.
        index: u64,
        /// Its term.
        term: u64,
    },
}

impl Record {
    /// The group it belongs to.
    pub fn group(&self) -> GroupId {
        match self {
            Self::Entries { group, .. }
            | Self::HardState { group, .. }
            | Self::Truncate { group, .. }
            | Self::Reset { group, .. }
            | Self::Tombstone { group }
            | Self::Bootstrap { group, .. }
            | Self::Fetched { group, .. } => *group,
        }
    }

    /// Bytes that it takes in a batch.
    pub(super) fn encoded_len(&self) -> usize {
        match self {
            Self::Entries { entries, .. } => {
                entries_record_len(entries.len(), entries.iter().map(|entry| entry.data.len()).sum())
            }
            Self::HardState { .. } => RECORD_HEADER_LEN + 24,
            Self::Truncate { .. } | Self::Reset { .. } | Self::Fetched { .. } => RECORD_HEADER_LEN + 16,
            Self::Tombstone { .. } => RECORD_HEADER_LEN,
            Self::Bootstrap { voters, .. } => RECORD_HEADER_LEN + 24 + 8 * voters.len(),
        }
    }

    /// Appends its bytes.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        let record = match self {
            Self::Entries { entries, .. } => WalRecord::Entries(
                entries
                    .iter()
                    .map(|e| WalEntry { term: e.term, index: e.index, kind: e.kind, data: &e.data })
                    .collect(),
            ),
            Self::HardState { state, .. } => {
                WalRecord::HardState { term: state.term, vote: state.vote, commit: state.commit }
            }
            Self::Truncate { index, term, .. } => WalRecord::Truncate { index: *index, term: *term },
            Self::Reset { index, term, .. } => WalRecord::Reset { index: *index, term: *term },
            Self::Fetched { index, term, .. } => WalRecord::Fetched { index: *index, term: *term },
            Self::Tombstone { .. } => WalRecord::Tombstone,
            Self::Bootstrap { index, term, voters, .. } => {
                WalRecord::Bootstrap { index: *index, term: *term, voters: voters.clone() }
            }
        };
        record.encode(self.group(), out);
        debug_assert_eq!(out.len() - start, self.encoded_len());
    }
}
