//! [`JournalHeader`]: the first block of a disk's journal file; the ring of batches follows at 4096.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic `CAIRNJRN` |
//! | 8 | 4 | format version |
//! | 12 | 4 | CRC-32C of the 64 bytes with this field zero |
//! | 16 | 16 | uuid of the disk that it is on |
//! | 32 | 16 | id of this journal, random, never reused: batches of another one are never taken |
//! | 48 | 4 | blocks of 4096 bytes in the ring |
//! | 52 | 12 | zero |
//!
//! All numbers little-endian. Written once.

use cairn_types::{DiskUuid, crc32c, crc32c_append};

use crate::le::u32_at;

/// Bytes of the header (in a block of its own).
pub const JOURNAL_HEADER_LEN: usize = 64;
/// Newest version written and read.
pub const JOURNAL_VERSION: u32 = 1;
/// Offset of the ring in the file.
pub const RING_OFFSET: u64 = 4096;

const MAGIC: &[u8; 8] = b"CAIRNJRN";

/// Identity and size of a journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JournalHeader {
    /// The disk.
    pub disk: DiskUuid,
    /// The journal.
    pub journal: DiskUuid,
    /// Blocks of the ring.
    pub ring_blocks: u32,
}

/// Why bytes are no journal header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum JournalHeaderError {
    /// Not ours.
    #[error("no magic of a journal")]
    Magic,
    /// Bytes changed.
    #[error("checksum of the journal header does not match")]
    Checksum,
    /// Written by a newer program.
    #[error("journal version {0} is not known to this program; use a newer one")]
    Version(u32),
    /// Reserved bytes set.
    #[error("the fields of the journal header contradict each other")]
    Shape,
}

fn checksum(bytes: &[u8]) -> u32 {
    crc32c_append(crc32c_append(crc32c(&bytes[..12]), &[0; 4]), &bytes[16..JOURNAL_HEADER_LEN])
}

impl JournalHeader {
    /// The bytes as they go to disk.
    pub fn encode(&self) -> [u8; JOURNAL_HEADER_LEN] {
        let mut out = [0; JOURNAL_HEADER_LEN];
        out[..8].copy_from_slice(MAGIC);
        out[8..12].copy_from_slice(&JOURNAL_VERSION.to_le_bytes());
        out[16..32].copy_from_slice(&self.disk.0);
        out[32..48].copy_from_slice(&self.journal.0);
        out[48..52].copy_from_slice(&self.ring_blocks.to_le_bytes());
        let crc = checksum(&out);
        out[12..16].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads and verifies the bytes.
    pub fn decode(bytes: &[u8; JOURNAL_HEADER_LEN]) -> Result<Self, JournalHeaderError> {
        if &bytes[..8] != MAGIC {
            return Err(JournalHeaderError::Magic);
        }
        if u32_at(bytes, 12) != checksum(bytes) {
            return Err(JournalHeaderError::Checksum);
        }
        let version = u32_at(bytes, 8);
        if version != JOURNAL_VERSION {
            return Err(JournalHeaderError::Version(version));
        }
        let ring_blocks = u32_at(bytes, 48);
        if bytes[52..].iter().any(|&b| b != 0) || ring_blocks == 0 {
            return Err(JournalHeaderError::Shape);
        }
        let uuid = |at: usize| DiskUuid::from_slice(&bytes[at..at + 16]).expect("the slice has 16 bytes");
        Ok(Self { disk: uuid(16), journal: uuid(32), ring_blocks })
    }
}

impl std::fmt::Display for JournalHeader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "journal {} of disk {}, {} blocks of 4096 bytes", self.journal, self.disk, self.ring_blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: JournalHeader =
        JournalHeader { disk: DiskUuid([1; 16]), journal: DiskUuid([2; 16]), ring_blocks: 4096 };

    /// An old journal could not be replayed any more if the bytes changed without a new version.
    #[test]
    fn golden_bytes() {
        let bytes = SAMPLE.encode();
        assert_eq!(&bytes[..12], b"CAIRNJRN\x01\0\0\0");
        assert_eq!(&bytes[48..56], &[0, 16, 0, 0, 0, 0, 0, 0]);
        assert_eq!(u32_at(&bytes, 12), 0x6688_E9E1);
        assert_eq!(JournalHeader::decode(&bytes), Ok(SAMPLE));
    }

    /// Another disk's journal could be replayed if a flipped bit went unnoticed.
    #[test]
    fn any_flipped_bit_is_detected() {
        let bytes = SAMPLE.encode();
        for bit in 0..JOURNAL_HEADER_LEN * 8 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(JournalHeader::decode(&bad).is_err(), "bit {bit}");
        }
    }
}
