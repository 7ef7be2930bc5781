//! An extent: part of a file and where its bytes are. Value of the key (inode, extent, file offset). 5–19 bytes,
//! 9–11 in a typical file.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 1 | 0x10 + kind: 0 plain, 1 erasure, 2 stripe set; + 4 if there is a birth; + 8 if its blocks are shared (not of a stripe set) |
//! | 1 | varints | length, placement group, index of the chunk, block of the chunk |
//! | | varints | of the striped kinds only: log2 of the stripe unit, columns |
//! | | varint | its birth, above 0, if the first byte says so |
//!
//! The offset in the chunk is block × 4096 + file offset modulo 4096: file and chunk are congruent. In a striped chunk
//! it counts in the logical space (see [`cairn_types::stripe`]). A stripe set is named by the chunk of its first
//! column. Blocks that are shared have a [`crate::encoding::ShareRecord`]. The birth is the number of the newest
//! snapshot when its oldest bytes were named first; 0: there was none. Births are of feature level 10.
use super::varint::Cursor;
use crate::message::writer::put_varint;
use cairn_types::{BLOCK_SIZE, EXTENT_SHARED, ExtentKind, Stripe};

const VERSION: u8 = 1;
const PLAIN: u8 = 0;
const ERASURE: u8 = 1;
const SET: u8 = 2;
const BORN: u8 = 4;
const SHARED: u8 = 8;
const BLOCK: u64 = BLOCK_SIZE as u64;

/// Part of a file. Invariants: not empty, inside a chunk, congruent to the file offset modulo 4096.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    pub file_offset: u64,
    pub length: u64,
    pub pg: u32,
    pub index: u32,
    pub chunk_offset: u64,
    pub kind: ExtentKind,
    /// Other places may name its blocks too; how many do is in records of their own.
    pub shared: bool,
    /// The newest snapshot that does not name its blocks; 0: none does not.
    pub birth: u64,
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
    /// Whether its chunk is one of whole shards: its blocks have numbers of their own there ([`crate::whole_shards`]).
    pub const fn is_in_whole_shard(&self) -> bool {
        matches!(self.kind, ExtentKind::Erasure(stripe) if stripe.is_whole_shards())
    }
    /// What is freed as a whole: a block of a plain chunk, or of one of whole shards, a row of a striped one (parity
    /// covers rows).
    pub const fn granule(&self) -> u64 {
        match self.kind.stripe() {
            Some(stripe) if !stripe.is_whole_shards() => stripe.row(),
            _ => BLOCK,
        }
    }
    /// Granules that it touches: first, and one past the last.
    pub const fn granules(&self) -> (u64, u64) {
        (self.chunk_offset / self.granule(), self.chunk_end().div_ceil(self.granule()))
    }
    /// Blocks of a granule in the file of one member (of each column, if striped).
    pub const fn granule_blocks(&self) -> u64 {
        match self.kind.stripe() {
            Some(stripe) if !stripe.is_whole_shards() => stripe.unit() / BLOCK,
            _ => 1,
        }
    }
    /// The number of the first block of its chunk.
    pub const fn first_number(&self) -> u64 {
        if self.is_in_whole_shard() { crate::whole_shards::FIRST } else { 0 }
    }
    /// The blocks of some granules of it.
    pub const fn blocks_of(&self, (first, end): (u64, u64)) -> (u64, u64) {
        let (blocks, base) = (self.granule_blocks(), self.first_number());
        (base + first * blocks, base + end * blocks)
    }
    /// Blocks in the file of one member that it touches, whole rows of a striped chunk: first, and one past the last.
    pub const fn blocks(&self) -> (u64, u64) {
        self.blocks_of(self.granules())
    }
    pub const fn is_same_chunk(&self, other: &Extent) -> bool {
        self.pg == other.pg && self.index == other.index
    }
    /// True when `next` continues this one in the file and in the chunk.
    pub const fn is_continued_by(&self, next: &Extent) -> bool {
        self.is_same_chunk(next)
            && self.end() == next.file_offset
            && self.chunk_end() == next.chunk_offset
            && self.kind.to_flags() == next.kind.to_flags()
            && self.shared == next.shared
            && self.birth == next.birth
    }
    /// Flags on the wire.
    pub const fn flags(&self) -> u32 {
        self.kind.to_flags() | if self.shared { EXTENT_SHARED } else { 0 }
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
            && self.length <= self.kind.capacity()
            && self.chunk_offset <= self.kind.capacity() - self.length
            && self.chunk_offset % BLOCK == self.file_offset % BLOCK
            && self.file_offset <= crate::limits::FILE_SIZE_MAX - self.length
            && !(self.shared && matches!(self.kind, ExtentKind::Set(_)))
    }

    /// Appends the value.
    #[inline]
    pub fn encode(&self, out: &mut Vec<u8>) {
        let tag = match self.kind {
            ExtentKind::Plain => PLAIN,
            ExtentKind::Erasure(_) => ERASURE,
            ExtentKind::Set(_) => SET,
        };
        let born = if self.birth > 0 { BORN } else { 0 };
        out.push(VERSION << 4 | tag | born | if self.shared { SHARED } else { 0 });
        put_varint(out, self.length);
        put_varint(out, u64::from(self.pg));
        put_varint(out, u64::from(self.index));
        put_varint(out, self.chunk_offset / BLOCK);
        if let Some(stripe) = self.kind.stripe() {
            put_varint(out, u64::from(stripe.unit().trailing_zeros()));
            put_varint(out, u64::from(stripe.columns()));
        }
        if self.birth > 0 {
            put_varint(out, self.birth);
        }
    }

    /// Reads a value; `None` if no version wrote it.
    #[inline]
    pub fn decode(file_offset: u64, value: &[u8]) -> Option<Extent> {
        let mut cursor = Cursor::new(value);
        let tag = cursor.byte()?;
        let length = cursor.varint()?;
        let (pg, index) = (cursor.varint_u32()?, cursor.varint_u32()?);
        let block = cursor.varint()?;
        let shared = tag & SHARED != 0;
        let kind = match tag & 0xf & !(SHARED | BORN) {
            PLAIN => ExtentKind::Plain,
            ERASURE => ExtentKind::Erasure(stripe(&mut cursor)?),
            SET => ExtentKind::Set(stripe(&mut cursor)?),
            _ => return None,
        };
        let birth = if tag & BORN == 0 { 0 } else { cursor.varint().filter(|birth| (1..u64::MAX).contains(birth))? };
        cursor.end()?;
        let chunk_offset = block.checked_mul(BLOCK)?.checked_add(file_offset % BLOCK)?;
        let extent = Extent { file_offset, length, pg, index, chunk_offset, kind, shared, birth };
        (tag >> 4 == VERSION && extent.is_valid()).then_some(extent)
    }
}

fn stripe(cursor: &mut Cursor<'_>) -> Option<Stripe> {
    let unit = 1u64.checked_shl(cursor.varint_u32()?)?;
    Stripe::new(u16::try_from(cursor.varint_u32()?).ok()?, unit)
}
