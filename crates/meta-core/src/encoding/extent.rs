//! An extent: part of a file and where its bytes are. Value of the key (inode, extent, file offset). 5–16 bytes,
//! 9–11 in a typical file.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 1 | 0x10 + flags (four bits) |
//! | 1 | varints | length, placement group, index of the chunk, block of the chunk |
//!
//! The offset in the chunk is block × 4096 + file offset modulo 4096: file and chunk are congruent.
use super::varint::Cursor;
use crate::message::writer::put_varint;
use cairn_types::{BLOCK_SIZE, CHUNK_SIZE_MAX};

const VERSION: u8 = 1;
const BLOCK: u64 = BLOCK_SIZE as u64;

/// Part of a file. Invariants: not empty, inside a chunk, congruent to the file offset modulo 4096.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    pub file_offset: u64,
    pub length: u64,
    pub pg: u32,
    pub index: u32,
    pub chunk_offset: u64,
    /// Bit 0: appending (reserved).
    pub flags: u8,
}

impl Extent {
    /// End in the file, exclusive.
    pub const fn end(&self) -> u64 {
        self.file_offset + self.length
    }
    /// End in the chunk, exclusive.
    pub const fn chunk_end(&self) -> u64 {
        self.chunk_offset + self.length
    }
    /// Blocks of the chunk that it touches: first, and one past the last.
    pub const fn blocks(&self) -> (u64, u64) {
        (self.chunk_offset / BLOCK, self.chunk_end().div_ceil(BLOCK))
    }
    pub const fn is_same_chunk(&self, other: &Extent) -> bool {
        self.pg == other.pg && self.index == other.index
    }
    /// True when `next` continues this one in the file and in the chunk.
    pub const fn is_continued_by(&self, next: &Extent) -> bool {
        self.is_same_chunk(next)
            && self.end() == next.file_offset
            && self.chunk_end() == next.chunk_offset
            && self.flags == next.flags
    }
    /// The part between two file offsets inside it.
    pub const fn part(&self, from: u64, to: u64) -> Extent {
        assert!(self.file_offset <= from && from < to && to <= self.end(), "a part lies inside its extent");
        Extent {
            file_offset: from,
            length: to - from,
            chunk_offset: self.chunk_offset + (from - self.file_offset),
            ..*self
        }
    }

    /// True when the invariants hold.
    pub const fn is_valid(&self) -> bool {
        self.length > 0
            && self.length <= CHUNK_SIZE_MAX
            && self.chunk_offset <= CHUNK_SIZE_MAX - self.length
            && self.chunk_offset % BLOCK == self.file_offset % BLOCK
            && self.file_offset <= crate::limits::FILE_SIZE_MAX - self.length
            && self.flags < 16
    }

    /// Appends the value.
    #[inline]
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(VERSION << 4 | self.flags);
        put_varint(out, self.length);
        put_varint(out, u64::from(self.pg));
        put_varint(out, u64::from(self.index));
        put_varint(out, self.chunk_offset / BLOCK);
    }

    /// Reads a value; `None` if no version wrote it.
    #[inline]
    pub fn decode(file_offset: u64, value: &[u8]) -> Option<Extent> {
        let mut cursor = Cursor::new(value);
        let tag = cursor.byte()?;
        let length = cursor.varint()?;
        let (pg, index) = (cursor.varint_u32()?, cursor.varint_u32()?);
        let block = cursor.varint()?;
        cursor.end()?;
        let chunk_offset = block.checked_mul(BLOCK)?.checked_add(file_offset % BLOCK)?;
        let extent = Extent { file_offset, length, pg, index, chunk_offset, flags: tag & 0xf };
        (tag >> 4 == VERSION && extent.is_valid()).then_some(extent)
    }
}
