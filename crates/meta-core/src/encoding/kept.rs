//! Blocks that nothing names any more but snapshots: the newest of these, and maybe older ones. Value of the key (0,
//! kept blocks, number of the newest one, id).
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 1 | 0x10 |
//! | 1 | varints | placement group, index of the chunk, first block, number of blocks, birth |
use super::varint::Cursor;
use crate::message::writer::put_varint;
use crate::whole_shards::are_blocks;

const TAG: u8 = 0x10;

/// Whole blocks of the members' files of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeptRecord {
    pub pg: u32,
    pub index: u32,
    /// First block of the chunk, in units of 4 KiB.
    pub first_block: u64,
    pub blocks: u64,
    /// Snapshots up to this one do not name them.
    pub birth: u64,
}

impl KeptRecord {
    /// Appends the value.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(TAG);
        put_varint(out, u64::from(self.pg));
        put_varint(out, u64::from(self.index));
        put_varint(out, self.first_block);
        put_varint(out, self.blocks);
        put_varint(out, self.birth);
    }

    /// Reads a value; `None` if no version wrote it.
    pub fn decode(value: &[u8]) -> Option<KeptRecord> {
        let mut cursor = Cursor::new(value);
        let tag = cursor.byte()?;
        let (pg, index) = (cursor.varint_u32()?, cursor.varint_u32()?);
        let (first_block, blocks) = (cursor.varint()?, cursor.varint()?);
        let birth = cursor.varint()?;
        cursor.end()?;
        let fits = first_block.checked_add(blocks).is_some_and(|end| are_blocks(first_block, end));
        (tag == TAG && blocks > 0 && fits).then_some(KeptRecord { pg, index, first_block, blocks, birth })
    }
}
