//! [`WalRecord`]: one record of the write-ahead log, which many Raft groups share.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | CRC-32C of bytes 4..16 + length |
//! | 4 | 4 | length of the payload |
//! | 8 | 4 | Raft group |
//! | 12 | 1 | kind |
//! | 13 | 3 | zero |
//! | 16 | length | payload, then zeros up to a multiple of 8 |
//!
//! | kind | payload |
//! |---|---|
//! | 1 entries | first index u64, count u32, zero u32; per entry: term u64, length u32, kind u8, zero 3; then the data |
//! | 2 hard state | term u64, vote u64, commit u64 |
//! | 3 truncate | index u64, term u64: entries up to it are not needed any more |
//! | 4 reset | index u64, term u64: all entries are void, the log goes on behind it (a checkpoint was installed) |
//! | 5 tombstone | nothing: this node has left the group |
//! | 6 bootstrap | index u64, term u64, count u32, zero u32, then voters u64 each: the group began here |
//! | 7 fetched | index u64, term u64: a checkpoint of that entry, made elsewhere, is about to be put here; a reset follows |
//!
//! All numbers little-endian. The table of kinds is closed: add, never edit. Entries of a record have consecutive
//! indices; an entry at an index that the log already has replaces that one and voids what followed.

use cairn_types::{GroupId, crc32c};

use crate::le::{u32_at, u64_at};

/// Bytes before the payload.
pub const RECORD_HEADER_LEN: usize = 16;
/// Bytes per entry in the table of an entries record.
pub const ENTRY_ROW_LEN: usize = 16;
/// Longest payload of a record.
pub const RECORD_PAYLOAD_MAX: usize = 64 << 20;
/// Most members named in a bootstrap record.
pub const VOTERS_MAX: usize = 64;

/// An entry of a Raft log, borrowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WalEntry<'a> {
    /// Term.
    pub term: u64,
    /// Index.
    pub index: u64,
    /// 0 normal, 1 configuration change.
    pub kind: u8,
    /// Its bytes.
    pub data: &'a [u8],
}

/// A record as read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WalRecord<'a> {
    /// Entries with consecutive indices, at least one.
    Entries(Vec<WalEntry<'a>>),
    /// The group's promises.
    HardState {
        /// Term.
        term: u64,
        /// Whom the member voted for in it; 0 nobody.
        vote: u64,
        /// Highest index known to be committed.
        commit: u64,
    },
    /// Entries up to `index` are not needed any more.
    Truncate {
        /// Last index given up.
        index: u64,
        /// Its term.
        term: u64,
    },
    /// All entries are void; the log goes on behind `index`.
    Reset {
        /// Last index that the installed checkpoint covers.
        index: u64,
        /// Its term.
        term: u64,
    },
    /// The node has left the group.
    Tombstone,
    /// The group began here, with these voters and the empty state at `index`.
    Bootstrap {
        /// Index of the empty state.
        index: u64,
        /// Its term.
        term: u64,
        /// Who votes, ascending.
        voters: Vec<u64>,
    },
    /// A checkpoint that was made elsewhere is about to be put here. Without this or a reset, one that the log does
    /// not reach proves that the log lost its end.
    Fetched {
        /// The checkpoint's last entry.
        index: u64,
        /// Its term.
        term: u64,
    },
}

/// Why bytes are no record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The record ends behind the end of the bytes.
    #[error("the record is cut off")]
    Short,
    /// Bytes changed.
    #[error("checksum of the record does not match")]
    Checksum,
    /// A kind that this program does not know.
    #[error("unknown record kind {0}")]
    Kind(u8),
    /// The payload does not fit its kind, or reserved bytes are set.
    #[error("the record's payload does not fit its kind")]
    Payload,
}

fn padded(payload: usize) -> usize {
    RECORD_HEADER_LEN + payload.next_multiple_of(8)
}

/// Bytes that a record of entries with `data_bytes` in `count` entries takes in a batch.
pub fn entries_record_len(count: usize, data_bytes: usize) -> usize {
    padded(16 + count * ENTRY_ROW_LEN + data_bytes)
}

impl WalRecord<'_> {
    fn kind(&self) -> u8 {
        match self {
            Self::Entries(_) => 1,
            Self::HardState { .. } => 2,
            Self::Truncate { .. } => 3,
            Self::Reset { .. } => 4,
            Self::Tombstone => 5,
            Self::Bootstrap { .. } => 6,
            Self::Fetched { .. } => 7,
        }
    }

    fn put_payload(&self, out: &mut Vec<u8>) {
        match self {
            Self::Entries(entries) => put_entries(entries, out),
            Self::HardState { term, vote, commit } => {
                for number in [term, vote, commit] {
                    out.extend_from_slice(&number.to_le_bytes());
                }
            }
            Self::Truncate { index, term } | Self::Reset { index, term } | Self::Fetched { index, term } => {
                out.extend_from_slice(&index.to_le_bytes());
                out.extend_from_slice(&term.to_le_bytes());
            }
            Self::Tombstone => {}
            Self::Bootstrap { index, term, voters } => {
                assert!(voters.len() <= VOTERS_MAX, "a group begins with at most {VOTERS_MAX} voters");
                out.extend_from_slice(&index.to_le_bytes());
                out.extend_from_slice(&term.to_le_bytes());
                out.extend_from_slice(&(voters.len() as u32).to_le_bytes());
                out.extend_from_slice(&[0; 4]);
                for voter in voters {
                    out.extend_from_slice(&voter.to_le_bytes());
                }
            }
        }
    }

    /// Appends the record with its padding.
    ///
    /// # Panics
    /// When the payload is longer than [`RECORD_PAYLOAD_MAX`], entries are none or not consecutive.
    pub fn encode(&self, group: GroupId, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[0; RECORD_HEADER_LEN]);
        self.put_payload(out);
        let payload = out.len() - start - RECORD_HEADER_LEN;
        assert!(payload <= RECORD_PAYLOAD_MAX, "a record of {payload} bytes is too long");
        out[start + 4..start + 8].copy_from_slice(&(payload as u32).to_le_bytes());
        out[start + 8..start + 12].copy_from_slice(&group.0.to_le_bytes());
        out[start + 12] = self.kind();
        let crc = crc32c(&out[start + 4..]);
        out[start..start + 4].copy_from_slice(&crc.to_le_bytes());
        out.resize(start + padded(payload), 0);
    }
}

fn put_entries(entries: &[WalEntry<'_>], out: &mut Vec<u8>) {
    let first = entries.first().expect("a record of entries has at least one").index;
    out.extend_from_slice(&first.to_le_bytes());
    out.extend_from_slice(&(entries.len() as u32).to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    for (at, entry) in entries.iter().enumerate() {
        assert_eq!(entry.index, first + at as u64, "entries of a record are consecutive");
        out.extend_from_slice(&entry.term.to_le_bytes());
        out.extend_from_slice(&(entry.data.len() as u32).to_le_bytes());
        out.extend_from_slice(&[entry.kind, 0, 0, 0]);
    }
    for entry in entries {
        out.extend_from_slice(entry.data);
    }
}

impl<'a> WalRecord<'a> {
    /// Reads the record at the start of `bytes`; gives it, its group and the bytes it takes with padding.
    pub fn decode(bytes: &'a [u8]) -> Result<(GroupId, Self, usize), RecordError> {
        let header = bytes.get(..RECORD_HEADER_LEN).ok_or(RecordError::Short)?;
        let length = u32_at(header, 4) as usize;
        if length > RECORD_PAYLOAD_MAX || bytes.len() < padded(length) {
            return Err(RecordError::Short);
        }
        let end = RECORD_HEADER_LEN + length;
        if crc32c(&bytes[4..end]) != u32_at(header, 0) {
            return Err(RecordError::Checksum);
        }
        if header[13..16] != [0; 3] || bytes[end..padded(length)].iter().any(|&b| b != 0) {
            return Err(RecordError::Payload);
        }
        let record = Self::from_payload(header[12], &bytes[RECORD_HEADER_LEN..end])?;
        Ok((GroupId(u32_at(header, 8)), record, padded(length)))
    }

    fn from_payload(kind: u8, payload: &'a [u8]) -> Result<Self, RecordError> {
        let sized = |wanted: usize| if payload.len() == wanted { Ok(()) } else { Err(RecordError::Payload) };
        match kind {
            1 => Ok(Self::Entries(take_entries(payload)?)),
            2 => sized(24).map(|()| Self::HardState {
                term: u64_at(payload, 0),
                vote: u64_at(payload, 8),
                commit: u64_at(payload, 16),
            }),
            3 => sized(16).map(|()| Self::Truncate { index: u64_at(payload, 0), term: u64_at(payload, 8) }),
            4 => sized(16).map(|()| Self::Reset { index: u64_at(payload, 0), term: u64_at(payload, 8) }),
            5 => sized(0).map(|()| Self::Tombstone),
            6 => take_bootstrap(payload),
            7 => sized(16).map(|()| Self::Fetched { index: u64_at(payload, 0), term: u64_at(payload, 8) }),
            other => Err(RecordError::Kind(other)),
        }
    }
}

fn take_bootstrap(payload: &[u8]) -> Result<WalRecord<'_>, RecordError> {
    if payload.len() < 24 || u32_at(payload, 20) != 0 {
        return Err(RecordError::Payload);
    }
    let count = u32_at(payload, 16) as usize;
    if count > VOTERS_MAX || payload.len() != 24 + 8 * count {
        return Err(RecordError::Payload);
    }
    let voters = (0..count).map(|i| u64_at(payload, 24 + 8 * i)).collect();
    Ok(WalRecord::Bootstrap { index: u64_at(payload, 0), term: u64_at(payload, 8), voters })
}

fn take_entries(payload: &[u8]) -> Result<Vec<WalEntry<'_>>, RecordError> {
    if payload.len() < 16 || u32_at(payload, 12) != 0 {
        return Err(RecordError::Payload);
    }
    let first = u64_at(payload, 0);
    let count = u32_at(payload, 8) as usize;
    let table = count.checked_mul(ENTRY_ROW_LEN).and_then(|len| len.checked_add(16)).ok_or(RecordError::Payload)?;
    if count == 0 || table > payload.len() || first.checked_add(count as u64).is_none() {
        return Err(RecordError::Payload);
    }
    let mut entries = Vec::with_capacity(count);
    let mut at = table;
    for row in 0..count {
        let from = 16 + row * ENTRY_ROW_LEN;
        let length = u32_at(payload, from + 8) as usize;
        let data = at.checked_add(length).and_then(|end| payload.get(at..end)).ok_or(RecordError::Payload)?;
        let [kind, 0, 0, 0] = payload[from + 12..from + 16] else {
            return Err(RecordError::Payload);
        };
        entries.push(WalEntry { term: u64_at(payload, from), index: first + row as u64, kind, data });
        at += length;
    }
    if at == payload.len() { Ok(entries) } else { Err(RecordError::Payload) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<WalRecord<'static>> {
        vec![
            WalRecord::Entries(vec![
                WalEntry { term: 3, index: 10, kind: 0, data: b"hello" },
                WalEntry { term: 4, index: 11, kind: 1, data: b"" },
            ]),
            WalRecord::HardState { term: 4, vote: 2, commit: 10 },
            WalRecord::Truncate { index: 9, term: 3 },
            WalRecord::Reset { index: 99, term: 4 },
            WalRecord::Tombstone,
            WalRecord::Bootstrap { index: 1, term: 1, voters: vec![1, 2, 3] },
            WalRecord::Fetched { index: 98, term: 3 },
        ]
    }

    fn encoded(record: &WalRecord<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        record.encode(GroupId(5), &mut out);
        out
    }

    /// A record would be lost at a restart if it did not read back as written, or its length were wrong.
    #[test]
    fn every_kind_reads_back() {
        for record in samples() {
            let bytes = encoded(&record);
            assert_eq!(WalRecord::decode(&bytes), Ok((GroupId(5), record, bytes.len())));
        }
        assert_eq!(entries_record_len(2, 5), encoded(&samples()[0]).len());
    }

    /// An old log could not be read any more if the bytes changed without a new version.
    #[test]
    fn golden_bytes() {
        let bytes = encoded(&samples()[1]);
        let mut want = vec![0; 4];
        want.extend([24, 0, 0, 0, 5, 0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
        want.extend([10, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[4..], want[4..]);
        assert_eq!(u32_at(&bytes, 0), 0x0AFA_2A2D);
    }

    /// A changed record would be replayed if a flipped bit went unnoticed.
    #[test]
    fn any_flipped_bit_is_detected() {
        for record in samples() {
            let bytes = encoded(&record);
            for bit in 0..bytes.len() * 8 {
                let mut bad = bytes.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                assert!(WalRecord::decode(&bad).is_err(), "{record:?} bit {bit}");
            }
        }
    }

    /// A cut-off record must be refused, not read beyond its end.
    #[test]
    fn any_cut_is_refused() {
        for record in samples() {
            let bytes = encoded(&record);
            for len in 0..bytes.len() {
                assert!(WalRecord::decode(&bytes[..len]).is_err());
            }
        }
    }

    /// A count or length made to lie, with a right checksum, must not allocate or index beyond the input.
    #[test]
    fn lying_counts_are_refused() {
        for (at, value) in [(24, u32::MAX), (24, 3), (40, u32::MAX), (40, 6)] {
            let mut bytes = encoded(&samples()[0]);
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            let end = RECORD_HEADER_LEN + u32_at(&bytes, 4) as usize;
            let crc = crc32c(&bytes[4..end]);
            bytes[..4].copy_from_slice(&crc.to_le_bytes());
            assert_eq!(WalRecord::decode(&bytes), Err(RecordError::Payload), "{at} {value}");
        }
    }
}
