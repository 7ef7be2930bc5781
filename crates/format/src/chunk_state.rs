//! [`ChunkState`]: the second sector of a chunk file: how far the chunk got. Rewritten in place, and only with what is
//! in the disk's journal as well, so that a torn sector is written again by replay.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic `CAIRNCST` |
//! | 8 | 4 | CRC-32C of bytes 12..512 |
//! | 12 | 4 | flags: bit 0 sealed |
//! | 16 | 4 | placement group |
//! | 20 | 4 | index |
//! | 24 | 8 | length: bytes that this member promises to hold |
//! | 32 | 4 | blocks marked PUNCHED |
//! | 36 | 4 | CRC-32C of the 2048 bytes of PUNCHED bits |
//! | 40 | 4 | CRC-32C of the CRC table up to the length |
//! | 44 | 4 | parity shards: CRC-32C of the tables of row CRCs, each up to the length, one behind the other; others: zero |
//! | 48 | 8 | epoch of the last overwrite; 0: there was none |
//! | 56 | 8 | count of the last overwrite |
//! | 64 | 448 | zero |
//!
//! All numbers little-endian.

use cairn_types::{CHUNK_SIZE_MAX, ChunkId, Epoch, PgId, crc32c};

use crate::crc_table::blocks_of;
use crate::le::{u32_at, u64_at};
use crate::overwrite_number::OverwriteNumber;

/// Bytes of the state sector.
pub const CHUNK_STATE_LEN: usize = 512;

const MAGIC: &[u8; 8] = b"CAIRNCST";
const SEALED: u32 = 1;

/// What changes in the life of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkState {
    /// The chunk, again: a sector that went astray is noticed.
    pub chunk: ChunkId,
    /// Bytes that are durable.
    pub length: u64,
    /// Whether it takes no more appends.
    pub sealed: bool,
    /// Number of PUNCHED blocks.
    pub punched_blocks: u32,
    /// Checksum of the PUNCHED bits.
    pub punched_crc: u32,
    /// Checksum of the CRC table up to the length.
    pub table_crc: u32,
    /// Checksum of the tables of row CRCs up to the length; 0 where there are none.
    pub row_crc: u32,
    /// The last overwrite in place.
    pub overwrite: OverwriteNumber,
}

/// Why a sector is no chunk state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ChunkStateError {
    /// Not ours.
    #[error("no magic of a chunk state")]
    Magic,
    /// Bytes changed.
    #[error("checksum of the chunk state does not match")]
    Checksum,
    /// Unknown flags, impossible lengths, or reserved bytes set.
    #[error("the fields of the chunk state contradict each other")]
    Shape,
}

impl ChunkState {
    /// The sector as it goes to disk.
    pub fn encode(&self) -> [u8; CHUNK_STATE_LEN] {
        let mut out = [0; CHUNK_STATE_LEN];
        out[..8].copy_from_slice(MAGIC);
        out[12..16].copy_from_slice(&if self.sealed { SEALED } else { 0 }.to_le_bytes());
        out[16..20].copy_from_slice(&self.chunk.pg.0.to_le_bytes());
        out[20..24].copy_from_slice(&self.chunk.index.to_le_bytes());
        out[24..32].copy_from_slice(&self.length.to_le_bytes());
        out[32..36].copy_from_slice(&self.punched_blocks.to_le_bytes());
        out[36..40].copy_from_slice(&self.punched_crc.to_le_bytes());
        out[40..44].copy_from_slice(&self.table_crc.to_le_bytes());
        out[44..48].copy_from_slice(&self.row_crc.to_le_bytes());
        out[48..56].copy_from_slice(&self.overwrite.epoch.0.to_le_bytes());
        out[56..64].copy_from_slice(&self.overwrite.count.to_le_bytes());
        let crc = crc32c(&out[12..]);
        out[8..12].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads and verifies the sector.
    pub fn decode(sector: &[u8; CHUNK_STATE_LEN]) -> Result<Self, ChunkStateError> {
        if &sector[..8] != MAGIC {
            return Err(ChunkStateError::Magic);
        }
        if u32_at(sector, 8) != crc32c(&sector[12..]) {
            return Err(ChunkStateError::Checksum);
        }
        let flags = u32_at(sector, 12);
        let state = Self {
            chunk: ChunkId { pg: PgId(u32_at(sector, 16)), index: u32_at(sector, 20) },
            length: u64_at(sector, 24),
            sealed: flags & SEALED != 0,
            punched_blocks: u32_at(sector, 32),
            punched_crc: u32_at(sector, 36),
            table_crc: u32_at(sector, 40),
            row_crc: u32_at(sector, 44),
            overwrite: OverwriteNumber { epoch: Epoch(u64_at(sector, 48)), count: u64_at(sector, 56) },
        };
        let fine = flags & !SEALED == 0
            && state.length <= CHUNK_SIZE_MAX
            && state.punched_blocks <= blocks_of(state.length)
            && sector[64..].iter().all(|&b| b == 0);
        if fine { Ok(state) } else { Err(ChunkStateError::Shape) }
    }
}

impl std::fmt::Display for ChunkState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "length          {} ({} blocks)", self.length, blocks_of(self.length))?;
        writeln!(f, "sealed          {}", if self.sealed { "yes" } else { "no" })?;
        writeln!(f, "punched blocks  {} (crc {:08x})", self.punched_blocks, self.punched_crc)?;
        write!(f, "table crc       {:08x}", self.table_crc)?;
        if self.row_crc != 0 {
            write!(f, "\nrow crcs        {:08x}", self.row_crc)?;
        }
        if self.overwrite.is_some() {
            write!(f, "\noverwritten     {}", self.overwrite)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: ChunkState = ChunkState {
        chunk: ChunkId { pg: PgId(3), index: 9 },
        length: 10_000,
        sealed: true,
        punched_blocks: 2,
        punched_crc: 0x1122_3344,
        table_crc: 0x5566_7788,
        row_crc: 0,
        overwrite: OverwriteNumber::NONE,
    };

    /// An old chunk could not be read any more if the bytes changed without a new version.
    #[test]
    fn golden_bytes() {
        let sector = SAMPLE.encode();
        assert_eq!(&sector[..8], MAGIC);
        assert_eq!(
            &sector[12..44],
            &[
                1, 0, 0, 0, 3, 0, 0, 0, 9, 0, 0, 0, 16, 39, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0x44, 0x33, 0x22, 0x11, 0x88,
                0x77, 0x66, 0x55
            ]
        );
        assert_eq!(u32_at(&sector, 8), 0x3887_7718);
        assert_eq!(ChunkState::decode(&sector), Ok(SAMPLE));
        assert!(SAMPLE.to_string().contains("10000"));
        let parity = ChunkState { row_crc: 0x99aa_bbcc, ..SAMPLE };
        assert_eq!(&parity.encode()[44..52], &[0xcc, 0xbb, 0xaa, 0x99, 0, 0, 0, 0]);
        assert_eq!(ChunkState::decode(&parity.encode()), Ok(parity));
        let overwritten = ChunkState { overwrite: OverwriteNumber { epoch: Epoch(0x0102), count: 3 }, ..SAMPLE };
        assert_eq!(&overwritten.encode()[48..64], &[2, 1, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(ChunkState::decode(&overwritten.encode()), Ok(overwritten));
    }

    /// A wrong length would be believed if a flipped bit went unnoticed.
    #[test]
    fn any_flipped_bit_is_detected() {
        let sector = SAMPLE.encode();
        for bit in 0..CHUNK_STATE_LEN * 8 {
            let mut bad = sector;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(ChunkState::decode(&bad).is_err(), "bit {bit}");
        }
    }

    /// Lengths beyond a chunk must not reach code that allocates by them.
    #[test]
    fn impossible_fields_are_refused() {
        for bad in [ChunkState { length: CHUNK_SIZE_MAX + 1, ..SAMPLE }, ChunkState { punched_blocks: 4, ..SAMPLE }] {
            assert_eq!(ChunkState::decode(&bad.encode()), Err(ChunkStateError::Shape));
        }
    }
}
