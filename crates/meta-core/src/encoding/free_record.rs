//! Blocks of a chunk that no file names any more and whose members have not all been told yet. Value of the key
//! (0, free record, id).
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 1 | 0x10 |
//! | 1 | varints | placement group, index of the chunk, first block, number of blocks |
use super::varint::Cursor;
use crate::message::writer::put_varint;
use cairn_types::{BLOCK_SIZE, CHUNK_BLOCKS_MAX};

const TAG: u8 = 0x10;

/// Whole blocks to be freed on every member of a placement group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FreeRecord {
    /// Ascending in the order of the log, never used twice in a partition.
    pub id: u64,
    pub pg: u32,
    pub index: u32,
    /// First block of the chunk, in units of 4 KiB.
    pub first_block: u64,
    pub blocks: u64,
}

impl FreeRecord {
    /// Offset in the chunk in bytes.
    pub const fn offset(&self) -> u64 {
        self.first_block * BLOCK_SIZE as u64
    }
    /// Length in bytes.
    pub const fn length(&self) -> u64 {
        self.blocks * BLOCK_SIZE as u64
    }

    /// Appends the value.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(TAG);
        put_varint(out, u64::from(self.pg));
        put_varint(out, u64::from(self.index));
        put_varint(out, self.first_block);
        put_varint(out, self.blocks);
    }

    /// Reads a value; `None` if no version wrote it.
    pub fn decode(id: u64, value: &[u8]) -> Option<FreeRecord> {
        let mut cursor = Cursor::new(value);
        let tag = cursor.byte()?;
        let (pg, index) = (cursor.varint_u32()?, cursor.varint_u32()?);
        let (first_block, blocks) = (cursor.varint()?, cursor.varint()?);
        cursor.end()?;
        let fits = first_block.checked_add(blocks).is_some_and(|end| end <= CHUNK_BLOCKS_MAX as u64);
        (tag == TAG && blocks > 0 && fits).then_some(FreeRecord { id, pg, index, first_block, blocks })
    }
}
