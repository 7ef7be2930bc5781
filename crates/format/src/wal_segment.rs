//! [`SegmentHeader`]: the first block of each file of the write-ahead log.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic `CAIRNWAL` |
//! | 8 | 4 | format version |
//! | 12 | 4 | CRC-32C of the block with this field zero |
//! | 16 | 16 | id of the log (the node's uuid) |
//! | 32 | 8 | number of the segment |
//! | 40 | 4056 | zero |
//!
//! All numbers little-endian. Invariants: the number is never used twice in a log although files are recycled; batches
//! ([`crate::wal_batch`]) start at offset 4096 and name the same log and number.

use cairn_types::{DiskUuid, crc32c, crc32c_append};

/// Bytes of the header, and alignment of everything in a segment.
pub const SEGMENT_HEADER_LEN: usize = 4096;
/// Newest version written and read.
pub const SEGMENT_VERSION: u32 = 1;

const MAGIC: &[u8; 8] = b"CAIRNWAL";
const USED: usize = 40;

/// Identity of a segment file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The log it belongs to.
    pub log: DiskUuid,
    /// Its place in the log.
    pub number: u64,
}

/// Why a segment header is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SegmentHeaderError {
    /// Not a segment of ours.
    #[error("no magic of a log segment")]
    Magic,
    /// Written by a newer program.
    #[error("format version {0}")]
    Version(u32),
    /// Bytes changed.
    #[error("checksum of the segment header does not match")]
    Checksum,
    /// A reserved byte is set.
    #[error("reserved bytes of the segment header are not zero")]
    Reserved,
}

fn checksum(block: &[u8; SEGMENT_HEADER_LEN]) -> u32 {
    crc32c_append(crc32c_append(crc32c(&block[..12]), &[0; 4]), &block[16..])
}

impl SegmentHeader {
    /// The block as it goes to disk.
    pub fn encode(&self) -> [u8; SEGMENT_HEADER_LEN] {
        let mut block = [0; SEGMENT_HEADER_LEN];
        block[..8].copy_from_slice(MAGIC);
        block[8..12].copy_from_slice(&SEGMENT_VERSION.to_le_bytes());
        block[16..32].copy_from_slice(&self.log.0);
        block[32..40].copy_from_slice(&self.number.to_le_bytes());
        let crc = checksum(&block);
        block[12..16].copy_from_slice(&crc.to_le_bytes());
        block
    }

    /// Reads and verifies the block.
    pub fn decode(block: &[u8; SEGMENT_HEADER_LEN]) -> Result<Self, SegmentHeaderError> {
        if &block[..8] != MAGIC {
            return Err(SegmentHeaderError::Magic);
        }
        let version = crate::le::u32_at(block, 8);
        if crate::le::u32_at(block, 12) != checksum(block) {
            return Err(SegmentHeaderError::Checksum);
        }
        if version != SEGMENT_VERSION {
            return Err(SegmentHeaderError::Version(version));
        }
        if block[USED..].iter().any(|&b| b != 0) {
            return Err(SegmentHeaderError::Reserved);
        }
        let log = DiskUuid::from_slice(&block[16..32]).expect("the slice has 16 bytes");
        Ok(Self { log, number: crate::le::u64_at(block, 32) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: SegmentHeader = SegmentHeader { log: DiskUuid([7; 16]), number: 0x0102_0304 };

    /// An old log could not be read any more if the bytes changed without a new version.
    #[test]
    fn golden_bytes() {
        let block = SAMPLE.encode();
        assert_eq!(&block[..8], b"CAIRNWAL");
        assert_eq!(&block[8..12], &[1, 0, 0, 0]);
        assert_eq!(crate::le::u32_at(&block, 12), 0xC5AC_570C);
        assert_eq!(&block[16..32], &[7; 16]);
        assert_eq!(&block[32..40], &[4, 3, 2, 1, 0, 0, 0, 0]);
        assert_eq!(SegmentHeader::decode(&block), Ok(SAMPLE));
    }

    /// A segment of another log or place would be replayed if a flipped bit went unnoticed.
    #[test]
    fn any_flipped_bit_is_detected() {
        let block = SAMPLE.encode();
        for bit in 0..SEGMENT_HEADER_LEN * 8 {
            let mut bad = block;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(SegmentHeader::decode(&bad).is_err(), "bit {bit}");
        }
    }
}
