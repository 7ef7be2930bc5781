//! [`BadBlocks`]: blocks of a disk that are known to be bad and could not be healed yet, in the file `bad-blocks` of
//! the disk, replaced as a whole when it changes.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic `CAIRNBAD` |
//! | 8 | 4 | format version |
//! | 12 | 4 | CRC-32C of all bytes with this field zero |
//! | 16 | 16 | uuid of the disk that it is on |
//! | 32 | 4 | number of entries, at most 32,768 |
//! | 36 | 28 | zero |
//! | 64 | 12 × n | entries, ascending: placement group u32, index u32, block u32 |
//!
//! All numbers little-endian. It is a reminder: each block is read and held against its checksum before anything is
//! done or said about it. Lost, its blocks are found again by readers and by the scrub.

use cairn_types::{ChunkId, DiskUuid, PgId, crc32c, crc32c_append};

use crate::le::u32_at;

/// Entries of one disk.
pub const BAD_BLOCKS_MAX: usize = 32_768;
/// Longest file.
pub const BAD_BLOCKS_LEN_MAX: usize = HEADER + BAD_BLOCKS_MAX * ENTRY;
/// Newest version written and read.
pub const BAD_BLOCKS_VERSION: u32 = 1;

const MAGIC: &[u8; 8] = b"CAIRNBAD";
const HEADER: usize = 64;
const ENTRY: usize = 12;

/// The list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadBlocks {
    /// The disk.
    pub disk: DiskUuid,
    /// Chunk and block, ascending, each once.
    pub blocks: Vec<(ChunkId, u32)>,
}

/// Why bytes are no list of bad blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadBlocksError {
    /// Not ours.
    #[error("no magic of a list of bad blocks")]
    Magic,
    /// Bytes changed, or are missing.
    #[error("checksum of the list of bad blocks does not match")]
    Checksum,
    /// Written by a newer program.
    #[error("version {0} of a list of bad blocks is not known to this program; use a newer one")]
    Version(u32),
    /// Reserved bytes set, a wrong count, or entries out of order.
    #[error("the fields of the list of bad blocks contradict each other")]
    Shape,
}

fn checksum(bytes: &[u8]) -> u32 {
    crc32c_append(crc32c_append(crc32c(&bytes[..12]), &[0; 4]), &bytes[16..])
}

impl BadBlocks {
    /// The bytes as they go to disk.
    ///
    /// # Panics
    /// With more than [`BAD_BLOCKS_MAX`] entries, or when they do not ascend.
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.blocks.len() <= BAD_BLOCKS_MAX && self.blocks.is_sorted_by(|a, b| a < b));
        let mut out = vec![0; HEADER];
        out[..8].copy_from_slice(MAGIC);
        out[8..12].copy_from_slice(&BAD_BLOCKS_VERSION.to_le_bytes());
        out[16..32].copy_from_slice(&self.disk.0);
        out[32..36].copy_from_slice(&(self.blocks.len() as u32).to_le_bytes());
        for (chunk, block) in &self.blocks {
            for number in [chunk.pg.get(), chunk.index, *block] {
                out.extend_from_slice(&number.to_le_bytes());
            }
        }
        let crc = checksum(&out);
        out[12..16].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads and verifies the bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadBlocksError> {
        if bytes.len() < HEADER || &bytes[..8] != MAGIC {
            return Err(BadBlocksError::Magic);
        }
        if u32_at(bytes, 12) != checksum(bytes) {
            return Err(BadBlocksError::Checksum);
        }
        let version = u32_at(bytes, 8);
        if version != BAD_BLOCKS_VERSION {
            return Err(BadBlocksError::Version(version));
        }
        let count = u32_at(bytes, 32) as usize;
        let entries = &bytes[HEADER..];
        let fits = count <= BAD_BLOCKS_MAX && entries.len() == count * ENTRY;
        if !fits || bytes[36..HEADER].iter().any(|byte| *byte != 0) {
            return Err(BadBlocksError::Shape);
        }
        let entry = |at: &[u8]| {
            let chunk = ChunkId { pg: PgId(u32_at(at, 0)), index: u32_at(at, 4) };
            (chunk, u32_at(at, 8))
        };
        let blocks: Vec<_> = entries.chunks_exact(ENTRY).map(entry).collect();
        if !blocks.is_sorted_by(|a, b| a < b) {
            return Err(BadBlocksError::Shape);
        }
        let mut disk = DiskUuid([0; 16]);
        disk.0.copy_from_slice(&bytes[16..32]);
        Ok(Self { disk, blocks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> BadBlocks {
        let at = |pg: u32, index: u32, block: u32| (ChunkId { pg: PgId(pg), index }, block);
        BadBlocks { disk: DiskUuid([7; 16]), blocks: vec![at(1, 2, 3), at(1, 2, 9), at(0x0102_0304, 0, 16_383)] }
    }

    /// A later version would not read what this one wrote.
    #[test]
    fn golden_bytes() {
        let bytes = sample().encode();
        assert_eq!(bytes.len(), 64 + 36);
        assert_eq!(&bytes[..12], b"CAIRNBAD\x01\0\0\0");
        assert_eq!(&bytes[16..36], [[7u8; 16].as_slice(), &[3, 0, 0, 0]].concat());
        assert!(bytes[36..64].iter().all(|byte| *byte == 0));
        let entries: [u8; 36] = [
            1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 9, 0, 0, 0, 4, 3, 2, 1, 0, 0, 0, 0, 0xff, 0x3f,
            0, 0,
        ];
        assert_eq!(bytes[64..], entries);
        assert_eq!(BadBlocks::decode(&bytes), Ok(sample()));
        let none = BadBlocks { blocks: Vec::new(), ..sample() };
        assert_eq!(BadBlocks::decode(&none.encode()), Ok(none));
    }

    /// Damage would be taken for a list, or for a longer one than there is.
    #[test]
    fn every_flipped_bit_and_every_length_is_detected() {
        let good = sample().encode();
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(BadBlocks::decode(&bad).is_err(), "bit {bit}");
        }
        for length in 0..good.len() {
            assert!(BadBlocks::decode(&good[..length]).is_err(), "{length} bytes");
        }
    }

    /// What the checksum covers could still contradict itself.
    #[test]
    fn contradictions_are_refused() {
        let change = |at: usize, to: &[u8]| {
            let mut bytes = sample().encode();
            bytes[at..at + to.len()].copy_from_slice(to);
            let crc = checksum(&bytes);
            bytes[12..16].copy_from_slice(&crc.to_le_bytes());
            BadBlocks::decode(&bytes)
        };
        assert_eq!(change(8, &[2]), Err(BadBlocksError::Version(2)));
        assert_eq!(change(32, &[2]), Err(BadBlocksError::Shape));
        assert_eq!(change(32, &[0xff; 4]), Err(BadBlocksError::Shape));
        assert_eq!(change(63, &[1]), Err(BadBlocksError::Shape));
        assert_eq!(change(72, &[9]), Err(BadBlocksError::Shape), "the same block twice");
    }
}
