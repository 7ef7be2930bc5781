//! [`SegmentHeader`]: the first block of each file of the write-ahead log.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic `CAIRNWAL` |
//! | 8 | 4 | format version |
//! | 12 | 4 | CRC-32C of the block with this field zero |
//! | 16 | 16 | id of the log (the node's uuid) |
//! | 32 | 8 | number of the segment |
//! | 40 | 8 | length of the file; zero in version 1 |
//! | 48 | 4048 | zero |
//!
//! All numbers little-endian. Invariants: the number is never used twice in a log although files are recycled; batches
//! ([`crate::wal_batch`]) start at offset 4096 and name the same log and number. The file has its length before it has
//! its name, so a shorter one has lost something. Since version 2 each batch names the one before it.

use cairn_types::{DiskUuid, crc32c, crc32c_append};

use crate::le::{u32_at, u64_at};

/// Bytes of the header, and alignment of everything in a segment.
pub const SEGMENT_HEADER_LEN: usize = 4096;
/// Newest version written and read.
pub const SEGMENT_VERSION: u32 = 2;

const MAGIC: &[u8; 8] = b"CAIRNWAL";
const USED: usize = 48;

/// Identity of a segment file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The log it belongs to.
    pub log: DiskUuid,
    /// Its place in the log.
    pub number: u64,
    /// Bytes of the file, a multiple of 4096; `None`: version 1, which does not say it and whose batches do not name
    /// the ones before them.
    pub length: Option<u64>,
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
    /// No segment has such a length.
    #[error("the segment header names an impossible length of {0} bytes")]
    Length(u64),
}

fn checksum(block: &[u8; SEGMENT_HEADER_LEN]) -> u32 {
    crc32c_append(crc32c_append(crc32c(&block[..12]), &[0; 4]), &block[16..])
}

impl SegmentHeader {
    /// The block as it goes to disk.
    pub fn encode(&self) -> [u8; SEGMENT_HEADER_LEN] {
        let mut block = [0; SEGMENT_HEADER_LEN];
        block[..8].copy_from_slice(MAGIC);
        let version = if self.length.is_some() { SEGMENT_VERSION } else { 1 };
        block[8..12].copy_from_slice(&version.to_le_bytes());
        block[16..32].copy_from_slice(&self.log.0);
        block[32..40].copy_from_slice(&self.number.to_le_bytes());
        block[40..48].copy_from_slice(&self.length.unwrap_or(0).to_le_bytes());
        let crc = checksum(&block);
        block[12..16].copy_from_slice(&crc.to_le_bytes());
        block
    }

    /// Reads and verifies the block.
    pub fn decode(block: &[u8; SEGMENT_HEADER_LEN]) -> Result<Self, SegmentHeaderError> {
        if &block[..8] != MAGIC {
            return Err(SegmentHeaderError::Magic);
        }
        let version = u32_at(block, 8);
        if u32_at(block, 12) != checksum(block) {
            return Err(SegmentHeaderError::Checksum);
        }
        if !(1..=SEGMENT_VERSION).contains(&version) {
            return Err(SegmentHeaderError::Version(version));
        }
        let length = u64_at(block, 40);
        if block[USED..].iter().any(|&b| b != 0) || (version == 1 && length != 0) {
            return Err(SegmentHeaderError::Reserved);
        }
        let shaped = length.is_multiple_of(SEGMENT_HEADER_LEN as u64) && length > SEGMENT_HEADER_LEN as u64;
        if version > 1 && !shaped {
            return Err(SegmentHeaderError::Length(length));
        }
        let log = DiskUuid::from_slice(&block[16..32]).expect("the slice has 16 bytes");
        Ok(Self { log, number: u64_at(block, 32), length: (version > 1).then_some(length) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: SegmentHeader =
        SegmentHeader { log: DiskUuid([7; 16]), number: 0x0102_0304, length: Some(0x0400_0000) };
    const OLD: SegmentHeader = SegmentHeader { length: None, ..SAMPLE };

    /// An old log could not be read any more if the bytes changed without a new version.
    #[test]
    fn golden_bytes() {
        let block = OLD.encode();
        assert_eq!(&block[..8], b"CAIRNWAL");
        assert_eq!(&block[8..12], &[1, 0, 0, 0]);
        assert_eq!(u32_at(&block, 12), 0xC5AC_570C);
        assert_eq!(SegmentHeader::decode(&block), Ok(OLD));
        let block = SAMPLE.encode();
        assert_eq!(&block[8..12], &[2, 0, 0, 0]);
        assert_eq!(u32_at(&block, 12), 0xD6F0_E87A);
        assert_eq!(&block[16..32], &[7; 16]);
        assert_eq!(&block[32..48], &[4, 3, 2, 1, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0]);
        assert_eq!(SegmentHeader::decode(&block), Ok(SAMPLE));
    }

    /// A segment of another log or place would be replayed if a flipped bit went unnoticed.
    #[test]
    fn any_flipped_bit_is_detected() {
        for block in [OLD.encode(), SAMPLE.encode()] {
            for bit in 0..SEGMENT_HEADER_LEN * 8 {
                let mut bad = block;
                bad[bit / 8] ^= 1 << (bit % 8);
                assert!(SegmentHeader::decode(&bad).is_err(), "bit {bit}");
            }
        }
    }

    /// A length that no segment can have would make every file look sound, or none.
    #[test]
    fn impossible_lengths_and_versions_are_refused() {
        for length in [0, 4096, 5000, 8193] {
            let block = SegmentHeader { length: Some(length), ..SAMPLE }.encode();
            assert_eq!(SegmentHeader::decode(&block), Err(SegmentHeaderError::Length(length)));
        }
        for (version, refused) in [
            (0u32, SegmentHeaderError::Version(0)),
            (1, SegmentHeaderError::Reserved),
            (3, SegmentHeaderError::Version(3)),
        ] {
            let mut block = SAMPLE.encode();
            block[8..12].copy_from_slice(&version.to_le_bytes());
            let crc = checksum(&block);
            block[12..16].copy_from_slice(&crc.to_le_bytes());
            assert_eq!(SegmentHeader::decode(&block), Err(refused));
        }
    }
}
