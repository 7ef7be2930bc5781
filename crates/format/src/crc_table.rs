//! The tables of a chunk file: a CRC-32C and a PUNCHED bit per 4 KiB block.
//!
//! | table | offset in the file | bytes | entry of block n |
//! |---|---|---|---|
//! | CRCs | 4096 | 65536 | `u32` little-endian at 4 n: CRC-32C of the whole block, a partial last one filled up with zeros |
//! | row CRCs of data shard j | 69632 + 65536 j, parity shards only | 65536 each | the same: CRC-32C of block n of data shard j |
//! | PUNCHED | 2048 | 2048 | bit n % 8 of byte n / 8: the block was freed, its bytes may be gone |
//!
//! PUNCHED is a bit beside the CRC and no special CRC value, so that every CRC stays possible. The CRC of a punched
//! block stays in the table. Entries beyond the length mean nothing.
//!
//! Both are rewritten in place by whole 512-byte sectors, and only with what is in the disk's journal as well: records
//! in the journal cover whole sectors ([`CRCS_A_SECTOR`] blocks, [`PUNCHED_SECTOR_BLOCKS`] blocks), so replay mends a
//! sector that a crash ruined. Over the wire (`ChunkTable`) they go as CRCs up to the length, then PUNCHED bytes up to
//! the length.

use std::ops::Range;

use cairn_types::{BLOCK_SIZE, CHUNK_BLOCKS_MAX, crc32c, crc32c_append};

/// Bytes of the PUNCHED bits.
pub const PUNCHED_LEN: usize = CHUNK_BLOCKS_MAX / 8;
/// Bytes of the CRC table.
pub const TABLE_LEN: usize = CHUNK_BLOCKS_MAX * 4;
/// Blocks whose CRCs lie in one 512-byte sector.
pub const CRCS_A_SECTOR: u32 = 128;
/// Blocks whose PUNCHED bits lie in one 512-byte sector.
pub const PUNCHED_SECTOR_BLOCKS: u32 = 4096;

/// Blocks that a length covers.
pub fn blocks_of(length: u64) -> u32 {
    u32::try_from(length.div_ceil(BLOCK_SIZE as u64)).unwrap_or(u32::MAX)
}

/// CRCs as bytes.
pub fn encode_crcs(crcs: &[u32], out: &mut Vec<u8>) {
    out.reserve(crcs.len() * 4);
    out.extend(crcs.iter().flat_map(|crc| crc.to_le_bytes()));
}

/// Bytes as CRCs; `None` when a number is cut off or there are more than a chunk has.
pub fn decode_crcs(bytes: &[u8]) -> Option<Vec<u32>> {
    if !bytes.len().is_multiple_of(4) || bytes.len() > TABLE_LEN {
        return None;
    }
    let number = |part: &[u8]| u32::from_le_bytes(part.try_into().expect("chunks of four bytes"));
    Some(bytes.chunks_exact(4).map(number).collect())
}

/// Checksum of a table: equal sums, equal contents.
pub fn table_crc(crcs: &[u32]) -> u32 {
    let mut bytes = Vec::new();
    encode_crcs(crcs, &mut bytes);
    crc32c(&bytes)
}

/// Checksum of the tables of row CRCs, one behind the other; 0 when there are none.
pub fn row_tables_crc<'a>(tables: impl IntoIterator<Item = &'a [u32]>) -> u32 {
    let mut bytes = Vec::new();
    let mut sum = 0;
    for table in tables {
        bytes.clear();
        encode_crcs(table, &mut bytes);
        sum = crc32c_append(sum, &bytes);
    }
    sum
}

/// Row CRCs of `blocks` blocks as they come with an append, the k of a block together, as k tables.
pub fn rows_to_tables(rows: &[u32], k: usize) -> Vec<Vec<u32>> {
    (0..k).map(|j| rows.iter().skip(j).step_by(k).copied().collect()).collect()
}

/// The blocks around `blocks` whose CRCs lie in the same sectors, up to `end`.
pub fn sector_run(blocks: Range<u32>, end: u32) -> Range<u32> {
    let first = blocks.start - blocks.start % CRCS_A_SECTOR;
    first..blocks.end.next_multiple_of(CRCS_A_SECTOR).min(end).max(blocks.end)
}

/// The PUNCHED bits of a chunk.
#[derive(Clone, PartialEq, Eq)]
pub struct PunchedBits(Box<[u8; PUNCHED_LEN]>);

impl Default for PunchedBits {
    fn default() -> Self {
        Self(Box::new([0; PUNCHED_LEN]))
    }
}

impl PunchedBits {
    /// From the bytes on disk or on the wire; missing ones are zero, `None` when there are too many.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut bits = Self::default();
        bits.0.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(bits)
    }

    /// All bytes, as on disk.
    pub fn bytes(&self) -> &[u8; PUNCHED_LEN] {
        &self.0
    }

    /// Whether a block is punched.
    pub fn get(&self, block: u32) -> bool {
        self.0.get(block as usize / 8).is_some_and(|byte| byte >> (block % 8) & 1 == 1)
    }

    /// Whether any block of a range is.
    pub fn any(&self, mut blocks: Range<u32>) -> bool {
        blocks.any(|block| self.get(block))
    }

    /// Marks a range; returns how many were not marked before. Blocks beyond a chunk are left out.
    pub fn set(&mut self, blocks: Range<u32>) -> u32 {
        let mut new = 0;
        for block in blocks.start..blocks.end.min(CHUNK_BLOCKS_MAX as u32) {
            new += u32::from(!self.get(block));
            self.0[block as usize / 8] |= 1 << (block % 8);
        }
        new
    }

    /// Number of punched blocks.
    pub fn count(&self) -> u32 {
        self.0.iter().map(|byte| byte.count_ones()).sum()
    }

    /// Checksum of the bytes.
    pub fn crc(&self) -> u32 {
        crc32c(&self.0[..])
    }
}

impl std::fmt::Debug for PunchedBits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PunchedBits({} set)", self.count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tables of old chunks could not be read any more if the bytes changed.
    #[test]
    fn golden_bytes() {
        let mut out = Vec::new();
        encode_crcs(&[1, 0x0403_0201], &mut out);
        assert_eq!(out, [1, 0, 0, 0, 1, 2, 3, 4]);
        assert_eq!(decode_crcs(&out), Some(vec![1, 0x0403_0201]));
        let mut bits = PunchedBits::default();
        assert_eq!(bits.set(3..10), 7);
        assert_eq!(bits.set(9..11), 1);
        assert_eq!(bits.bytes()[..3], [0b1111_1000, 0b0000_0111, 0]);
        assert_eq!((bits.count(), bits.any(0..3), bits.any(0..4), bits.get(11)), (8, false, true, false));
        assert_eq!(PunchedBits::from_bytes(bits.bytes()), Some(bits));
    }

    /// A decoded block would be held against the CRC of another one.
    #[test]
    fn rows_become_tables() {
        assert_eq!(rows_to_tables(&[1, 2, 3, 4, 5, 6], 3), [[1, 4], [2, 5], [3, 6]]);
        assert_eq!(row_tables_crc([&[1, 4][..], &[2, 5]]), table_crc(&[1, 4, 2, 5]));
        assert_eq!(row_tables_crc([]), 0);
    }

    /// Hostile lengths must not make the reader index or allocate beyond a chunk.
    #[test]
    fn too_much_is_refused() {
        assert_eq!(decode_crcs(&[0; 5]), None);
        assert_eq!(decode_crcs(&vec![0; TABLE_LEN + 4]), None);
        assert_eq!(PunchedBits::from_bytes(&[0; PUNCHED_LEN + 1]), None);
        assert_eq!(PunchedBits::default().set(CHUNK_BLOCKS_MAX as u32..u32::MAX), 0);
    }

    /// Two different tables with one sum would hide a difference between replicas: any flipped bit changes the sum.
    #[test]
    fn any_flipped_bit_changes_the_sum() {
        let crcs: Vec<u32> = (0..40).collect();
        for bit in 0..40 * 32 {
            let mut bad = crcs.clone();
            bad[bit / 32] ^= 1 << (bit % 32);
            assert_ne!(table_crc(&bad), table_crc(&crcs), "bit {bit}");
        }
    }

    /// A record that covered only part of a sector would lose the rest when replay writes the sector again.
    #[test]
    fn runs_cover_whole_sectors() {
        assert_eq!(sector_run(5..6, 300), 0..128);
        assert_eq!(sector_run(130..260, 300), 128..300);
        assert_eq!(sector_run(0..1, 1), 0..1);
    }
}
