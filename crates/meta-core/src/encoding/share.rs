//! Blocks of a chunk that shared extents name, and how often. Value of the key (0, share, placement group, index, first
//! block). Blocks that were never shared have none.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 1 | 0x10 |
//! | 1 | varints | number of blocks, references |
use super::varint::Cursor;
use crate::message::writer::put_varint;
use cairn_types::CHUNK_BLOCKS_MAX;

const TAG: u8 = 0x10;

/// Blocks in the members' files of a chunk, all with as many references.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShareRecord {
    pub pg: u32,
    pub index: u32,
    /// First block of the chunk, in units of 4 KiB.
    pub first_block: u64,
    pub blocks: u64,
    /// Places of files (an inode, and how far file and chunk offset are apart) at which they are named.
    pub references: u64,
}

impl ShareRecord {
    /// One past the last block.
    pub const fn end_block(&self) -> u64 {
        self.first_block + self.blocks
    }

    /// Appends the value.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(TAG);
        put_varint(out, self.blocks);
        put_varint(out, self.references);
    }

    /// Reads a value under its key; `None` if no version wrote it.
    pub fn decode((pg, index, first_block): (u32, u32, u32), value: &[u8]) -> Option<ShareRecord> {
        let mut cursor = Cursor::new(value);
        let tag = cursor.byte()?;
        let (blocks, references) = (cursor.varint()?, cursor.varint()?);
        cursor.end()?;
        let first_block = u64::from(first_block);
        let fits = first_block.checked_add(blocks).is_some_and(|end| end <= CHUNK_BLOCKS_MAX as u64);
        let record = ShareRecord { pg, index, first_block, blocks, references };
        (tag == TAG && blocks > 0 && references > 0 && fits).then_some(record)
    }
}
