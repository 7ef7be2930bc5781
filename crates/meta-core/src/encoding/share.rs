//! Blocks of a chunk that shared extents name, and how often. Value of the key (0, share, placement group, index, first
//! block). Blocks that were never shared have none.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 1 | 0x10; 0x11 if snapshots keep them too |
//! | 1 | varints | number of blocks, references; by how many records snapshots keep them (0x11 only, not 0) |
//!
//! 0x11 is of feature level 13.
use super::varint::Cursor;
use crate::message::writer::put_varint;
use crate::whole_shards::are_blocks;

const TAG: u8 = 0x10;
const TAG_KEPT: u8 = 0x11;

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
    /// Records of what snapshots keep that have them. Counted only of blocks that were cloned out of a snapshot when no
    /// file had them; of all others 0.
    pub kept: u64,
}

impl ShareRecord {
    /// One past the last block.
    pub const fn end_block(&self) -> u64 {
        self.first_block + self.blocks
    }

    /// Appends the value.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(if self.kept > 0 { TAG_KEPT } else { TAG });
        put_varint(out, self.blocks);
        put_varint(out, self.references);
        if self.kept > 0 {
            put_varint(out, self.kept);
        }
    }

    /// Reads a value under its key; `None` if no version wrote it.
    pub fn decode((pg, index, first_block): (u32, u32, u32), value: &[u8]) -> Option<ShareRecord> {
        let mut cursor = Cursor::new(value);
        let tag = cursor.byte()?;
        let (blocks, references) = (cursor.varint()?, cursor.varint()?);
        let kept = match tag {
            TAG => 0,
            TAG_KEPT => cursor.varint().filter(|kept| *kept > 0)?,
            _ => return None,
        };
        cursor.end()?;
        let first_block = u64::from(first_block);
        let fits = first_block.checked_add(blocks).is_some_and(|end| are_blocks(first_block, end));
        let record = ShareRecord { pg, index, first_block, blocks, references, kept };
        (blocks > 0 && (references > 0 || kept > 0) && fits).then_some(record)
    }
}
