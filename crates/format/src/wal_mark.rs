//! [`WalMark`]: how far the write-ahead log was durable at some moment, in the file `log/mark`, outside of the
//! segments.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic `CAIRNWMK` |
//! | 8 | 4 | format version |
//! | 12 | 4 | CRC-32C of the block with this field zero |
//! | 16 | 16 | id of the log |
//! | 32 | 8 | sequence of the mark, one more than the one before |
//! | 40 | 8 | number of the segment |
//! | 48 | 8 | number of the last durable batch |
//! | 56 | 8 | offset in the segment behind that batch |
//! | 64 | 4 | bytes 8..12 of that batch |
//! | 68 | 4028 | zero |
//!
//! All numbers little-endian. The file has two such blocks, written in turn, so one of them is whole at any time; the
//! one with the higher sequence counts. Invariant: a mark is written only after the batch that it names was synced, so
//! a log that does not reach it has lost acknowledged records. It may lag behind the log.

use cairn_types::{DiskUuid, crc32c, crc32c_append};

use crate::le::{u32_at, u64_at};

/// Bytes of a mark. The file has two.
pub const WAL_MARK_LEN: usize = 4096;
/// Newest version written and read.
pub const WAL_MARK_VERSION: u32 = 1;

const MAGIC: &[u8; 8] = b"CAIRNWMK";
const USED: usize = 68;

/// How far a log was durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WalMark {
    /// The log.
    pub log: DiskUuid,
    /// Its place among the marks.
    pub sequence: u64,
    /// The segment.
    pub segment: u64,
    /// The last durable batch.
    pub batch: u64,
    /// Where that batch ends in the segment.
    pub end: u64,
    /// [`chain`](crate::wal_batch::BatchHeader::chain) of that batch.
    pub chain: u32,
}

/// Why bytes are no mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WalMarkError {
    /// Not a mark, or none was written here yet.
    #[error("no magic of a mark of the log")]
    Magic,
    /// Written by a newer program.
    #[error("format version {0}")]
    Version(u32),
    /// Bytes changed, or the write was torn.
    #[error("checksum of the mark does not match")]
    Checksum,
    /// A reserved byte is set.
    #[error("reserved bytes of the mark are not zero")]
    Reserved,
}

fn checksum(block: &[u8; WAL_MARK_LEN]) -> u32 {
    crc32c_append(crc32c_append(crc32c(&block[..12]), &[0; 4]), &block[16..])
}

impl WalMark {
    /// The block as it goes to disk.
    pub fn encode(&self) -> [u8; WAL_MARK_LEN] {
        let mut block = [0; WAL_MARK_LEN];
        block[..8].copy_from_slice(MAGIC);
        block[8..12].copy_from_slice(&WAL_MARK_VERSION.to_le_bytes());
        block[16..32].copy_from_slice(&self.log.0);
        for (at, number) in [(32, self.sequence), (40, self.segment), (48, self.batch), (56, self.end)] {
            block[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
        block[64..68].copy_from_slice(&self.chain.to_le_bytes());
        let crc = checksum(&block);
        block[12..16].copy_from_slice(&crc.to_le_bytes());
        block
    }

    /// Reads and verifies the block.
    pub fn decode(block: &[u8; WAL_MARK_LEN]) -> Result<Self, WalMarkError> {
        if &block[..8] != MAGIC {
            return Err(WalMarkError::Magic);
        }
        if u32_at(block, 12) != checksum(block) {
            return Err(WalMarkError::Checksum);
        }
        let version = u32_at(block, 8);
        if version != WAL_MARK_VERSION {
            return Err(WalMarkError::Version(version));
        }
        if block[USED..].iter().any(|&b| b != 0) {
            return Err(WalMarkError::Reserved);
        }
        Ok(Self {
            log: DiskUuid::from_slice(&block[16..32]).expect("the slice has 16 bytes"),
            sequence: u64_at(block, 32),
            segment: u64_at(block, 40),
            batch: u64_at(block, 48),
            end: u64_at(block, 56),
            chain: u32_at(block, 64),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: WalMark =
        WalMark { log: DiskUuid([7; 16]), sequence: 2, segment: 3, batch: 4, end: 0x5000, chain: 0x0605_0403 };

    /// A mark of before an upgrade could not be read any more if the bytes changed without a new version.
    #[test]
    fn golden_bytes() {
        let block = SAMPLE.encode();
        assert_eq!(&block[..12], b"CAIRNWMK\x01\0\0\0");
        assert_eq!(u32_at(&block, 12), 0xF4B3_876A);
        assert_eq!(&block[16..32], &[7; 16]);
        assert_eq!(&block[32..48], &[2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&block[48..68], &[4, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0, 0, 0, 0, 0, 0, 3, 4, 5, 6]);
        assert!(block[68..].iter().all(|&b| b == 0));
        assert_eq!(WalMark::decode(&block), Ok(SAMPLE));
    }

    /// A torn mark that was believed would refuse a sound log, or let a damaged one pass.
    #[test]
    fn any_flipped_bit_is_detected() {
        let block = SAMPLE.encode();
        for bit in 0..WAL_MARK_LEN * 8 {
            let mut bad = block;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(WalMark::decode(&bad).is_err(), "bit {bit}");
        }
        assert_eq!(WalMark::decode(&[0; WAL_MARK_LEN]), Err(WalMarkError::Magic));
    }
}
