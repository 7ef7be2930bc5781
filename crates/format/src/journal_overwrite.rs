//! [`OverwriteRecord`]: an overwrite in place, or a part of one, in a disk's journal; the body of a record of kind 5.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | epoch of the chunk's last overwrite once this is durable |
//! | 8 | 8 | its count |
//! | 16 | 8 | length of the chunk as far as it was written |
//! | 24 | 8 | bytes that are promised once this is durable |
//! | 32 | 4 | number of vectors |
//! | 36 | 4 | zero |
//! | 40 | 16 each | vectors: first block `u32`, number of blocks `u32`, first block of its CRCs `u32`, number of CRCs `u32` |
//! | | | CRCs `u32` each, vector after vector; then the blocks, vector after vector |
//!
//! All numbers little-endian. Invariants: as of all records: absolute, so that replaying it twice gives the same; CRCs
//! come by whole sectors of the table, so that replay mends a torn one. An overwrite without vectors only sets the
//! number.

use std::ops::Range;

use cairn_types::{BLOCK_SIZE, CHUNK_BLOCKS_MAX, CHUNK_SIZE_MAX, ChunkId, Epoch};

use crate::crc_table::{CRCS_A_SECTOR, blocks_of, decode_crcs, encode_crcs};
use crate::journal_record::RecordError;
use crate::le::{u32_at, u64_at};
use crate::overwrite_number::OverwriteNumber;

const HEAD_LEN: usize = 40;
const VECTOR_LEN: usize = 16;

/// Blocks next to each other, with the sectors of CRCs that they lie in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverwriteVector<'a> {
    /// First block.
    pub block: u32,
    /// First block of `crcs`, a multiple of [`CRCS_A_SECTOR`].
    pub crcs_first: u32,
    /// Checksums of the blocks from there, those of all blocks of the vector among them.
    pub crcs: Vec<u32>,
    /// Whole blocks, at least one.
    pub data: &'a [u8],
}

impl OverwriteVector<'_> {
    /// Its blocks.
    pub fn blocks(&self) -> Range<u32> {
        self.block..self.block + (self.data.len() / BLOCK_SIZE) as u32
    }
}

/// What a chunk holds from now on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverwriteRecord<'a> {
    /// The chunk.
    pub chunk: ChunkId,
    /// Its last overwrite once this is durable: of a first part of an overwrite the number before it.
    pub number: OverwriteNumber,
    /// Length as far as it was written.
    pub length: u64,
    /// Bytes that are promised once this record is durable.
    pub durable: u64,
    /// No further appends.
    pub sealed: bool,
    /// The blocks.
    pub vectors: Vec<OverwriteVector<'a>>,
}

impl<'a> OverwriteRecord<'a> {
    pub(crate) fn body_len(&self) -> usize {
        let vector = |vector: &OverwriteVector<'_>| VECTOR_LEN + vector.crcs.len() * 4 + vector.data.len();
        HEAD_LEN + self.vectors.iter().map(vector).sum::<usize>()
    }

    pub(crate) fn encode_body(&self, out: &mut Vec<u8>) {
        out.extend(self.number.epoch.0.to_le_bytes());
        out.extend(self.number.count.to_le_bytes());
        out.extend(self.length.to_le_bytes());
        out.extend(self.durable.to_le_bytes());
        out.extend((self.vectors.len() as u32).to_le_bytes());
        out.extend([0; 4]);
        for vector in &self.vectors {
            let blocks = vector.blocks();
            for number in [vector.block, blocks.len() as u32, vector.crcs_first, vector.crcs.len() as u32] {
                out.extend(number.to_le_bytes());
            }
        }
        self.vectors.iter().for_each(|vector| encode_crcs(&vector.crcs, out));
        self.vectors.iter().for_each(|vector| out.extend_from_slice(vector.data));
    }

    pub(crate) fn decode_body(chunk: ChunkId, sealed: bool, body: &'a [u8]) -> Result<Self, RecordError> {
        let head = body.get(..HEAD_LEN).ok_or(RecordError::Short)?;
        let number = OverwriteNumber { epoch: Epoch(u64_at(head, 0)), count: u64_at(head, 8) };
        let (length, durable, count) = (u64_at(head, 16), u64_at(head, 24), u32_at(head, 32) as usize);
        if u32_at(head, 36) != 0 || length > CHUNK_SIZE_MAX || durable > length || count > CHUNK_BLOCKS_MAX {
            return Err(RecordError::Shape);
        }
        let (shapes, mut crcs) = body[HEAD_LEN..].split_at_checked(count * VECTOR_LEN).ok_or(RecordError::Short)?;
        let mut crc_bytes = 0usize;
        for shape in shapes.chunks_exact(VECTOR_LEN) {
            check_shape(shape, length)?;
            crc_bytes += u32_at(shape, 12) as usize * 4;
        }
        let mut data = crcs.get(crc_bytes..).ok_or(RecordError::Short)?;
        let mut vectors = Vec::with_capacity(count);
        for shape in shapes.chunks_exact(VECTOR_LEN) {
            let table = crcs.split_off(..u32_at(shape, 12) as usize * 4).ok_or(RecordError::Short)?;
            let bytes = data.split_off(..u32_at(shape, 4) as usize * BLOCK_SIZE).ok_or(RecordError::Shape)?;
            let table = decode_crcs(table).ok_or(RecordError::Shape)?;
            vectors.push(OverwriteVector {
                block: u32_at(shape, 0),
                crcs_first: u32_at(shape, 8),
                crcs: table,
                data: bytes,
            });
        }
        if !data.is_empty() {
            return Err(RecordError::Shape);
        }
        Ok(Self { chunk, number, length, durable, sealed, vectors })
    }
}

/// At least one block, all of them within the chunk and covered by its CRCs, which begin at a sector.
fn check_shape(shape: &[u8], length: u64) -> Result<(), RecordError> {
    let (block, blocks) = (u64::from(u32_at(shape, 0)), u64::from(u32_at(shape, 4)));
    let (crcs_first, crcs) = (u32_at(shape, 8), u64::from(u32_at(shape, 12)));
    let end = u64::from(crcs_first) + crcs;
    let fine = blocks > 0
        && block + blocks <= u64::from(blocks_of(length))
        && crcs_first.is_multiple_of(CRCS_A_SECTOR)
        && u64::from(crcs_first) <= block
        && block + blocks <= end
        && end <= CHUNK_BLOCKS_MAX as u64;
    if fine { Ok(()) } else { Err(RecordError::Shape) }
}

impl std::fmt::Display for OverwriteRecord<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "overwrite {} to {} length {} durable {}", self.chunk, self.number, self.length, self.durable)?;
        for vector in &self.vectors {
            write!(f, " blocks {}+{}", vector.block, vector.blocks().len())?;
        }
        f.write_str(if self.sealed { " sealed" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal_record::JournalRecord;
    use crate::journal_record::tests::{all_decode, damage};
    use cairn_types::PgId;

    fn samples() -> [JournalRecord<'static>; 2] {
        let chunk = ChunkId { pg: PgId(1), index: 2 };
        let number = OverwriteNumber { epoch: Epoch(7), count: 9 };
        let vector = |block, crcs: &[u32], data| OverwriteVector { block, crcs_first: 0, crcs: crcs.to_vec(), data };
        let vectors = vec![vector(1, &[8, 9], &[6; BLOCK_SIZE][..]), vector(0, &[8, 9], &[5; 2 * BLOCK_SIZE][..])];
        let whole = OverwriteRecord { chunk, number, length: 8192, durable: 8000, sealed: true, vectors };
        let bare = OverwriteRecord { vectors: Vec::new(), sealed: false, ..whole.clone() };
        [JournalRecord::Overwrite(whole), JournalRecord::Overwrite(bare)]
    }

    /// An old journal could not be replayed any more if the bytes changed without a new version.
    #[test]
    fn golden_bytes() {
        let mut out = Vec::new();
        samples().iter().for_each(|record| record.encode(&mut out));
        assert_eq!(&out[..16], &[5, 1, 0, 0, 0x58, 0x30, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0]);
        assert_eq!(&out[16..32], &[7, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&out[32..48], &[0, 32, 0, 0, 0, 0, 0, 0, 64, 31, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&out[48..72], &[2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0]);
        assert_eq!(&out[72..88], &[0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0]);
        assert_eq!(&out[88..104], &[8, 0, 0, 0, 9, 0, 0, 0, 8, 0, 0, 0, 9, 0, 0, 0]);
        assert_eq!((out[104], out[104 + BLOCK_SIZE]), (6, 5));
        all_decode(&out, &samples());
        assert!(samples()[0].to_string().ends_with("blocks 1+1 blocks 0+2 sealed"));
    }

    /// Garbage must not panic nor allocate by its lengths, nor name blocks beyond the chunk (the batch's checksum is
    /// what detects the change).
    #[test]
    fn damage_never_panics() {
        damage(&samples(), 104, |found, _| {
            if let JournalRecord::Overwrite(found) = found {
                assert!(found.vectors.iter().all(|v| v.blocks().end <= blocks_of(found.length)));
                assert!(found.vectors.iter().all(|v| v.crcs_first + v.crcs.len() as u32 >= v.blocks().end));
            }
        });
    }
}
