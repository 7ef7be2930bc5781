//! The extent map of a file: replacing ranges, cutting at the end, and finding the chunk blocks that nobody names any
//! more.
//!
//! Invariants: extents of a file never overlap; neighbours that continue each other in file and chunk are one extent;
//! a block of a chunk is freed only if no extent that stays in the same file touches it (different files never share a
//! block). Data behind these maps is never looked at.
use crate::encoding::{Extent, FreeRecord};
use crate::error::{OpError, Result};
use crate::key::{self, Kind};
use crate::limits::{PUBLISH_EXTENTS_MAX, SHARED_BLOCK_SCAN_MAX};
use crate::message::reader::RepeatedMessages;
use crate::message::request::ExtentMessage;
use crate::namespace::Namespace;
use cairn_types::{BLOCK_SIZE, CHUNK_SIZE_MAX, ErrorCode};

#[cfg(test)]
mod tests;

const BLOCK: u64 = BLOCK_SIZE as u64;

/// Blocks of a chunk: placement group, index, first block, one past the last.
type BlockRange = (u32, u32, u64, u64);

impl Extent {
    fn block_range(&self) -> BlockRange {
        let (first, end) = self.blocks();
        (self.pg, self.index, first, end)
    }
}

/// Checks the extents of a request and gives them sorted, joined where they continue each other.
pub(crate) fn check_incoming(messages: &RepeatedMessages<'_>, incoming: &mut Vec<Extent>) -> Result<()> {
    incoming.clear();
    messages.visit(|bytes| {
        let message = ExtentMessage::decode(bytes)?;
        if incoming.len() == PUBLISH_EXTENTS_MAX {
            return Err(OpError::new(ErrorCode::InvalidArgument, "at most 4096 extents in one request"));
        }
        incoming.push(check_extent(&message)?);
        Ok(())
    })?;
    if incoming.len() < 2 {
        return Ok(());
    }
    incoming.sort_unstable_by_key(|extent| extent.file_offset);
    if incoming.windows(2).any(|pair| pair[0].end() > pair[1].file_offset) {
        return Err(OpError::new(ErrorCode::InvalidArgument, "extents of one request overlap"));
    }
    incoming.dedup_by(|next, before| {
        let joins = before.is_continued_by(next) && before.length + next.length <= CHUNK_SIZE_MAX;
        if joins {
            before.length += next.length;
        }
        joins
    });
    Ok(())
}

fn check_extent(message: &ExtentMessage) -> Result<Extent> {
    let invalid = |text| Err(OpError::new(ErrorCode::InvalidArgument, text));
    if message.length == 0 {
        return invalid("an extent is empty");
    }
    if message.length > CHUNK_SIZE_MAX || message.chunk_offset > CHUNK_SIZE_MAX - message.length {
        return invalid("an extent goes beyond the largest chunk");
    }
    if message.chunk_offset % BLOCK != message.file_offset % BLOCK {
        return invalid("an extent's offsets in file and chunk differ modulo 4096");
    }
    if message.flags != 0 {
        return invalid("an extent has flags that are reserved");
    }
    if message.file_offset > crate::limits::FILE_SIZE_MAX - message.length {
        return Err(OpError::FILE_TOO_LARGE);
    }
    Ok(Extent {
        file_offset: message.file_offset,
        length: message.length,
        pg: message.pg,
        index: message.index,
        chunk_offset: message.chunk_offset,
        flags: 0,
    })
}

impl Namespace {
    /// Gives the extents that overlap `from..to` in order to `f`, until it answers false.
    pub(crate) fn visit_extents(
        &self,
        inode: u64,
        from: u64,
        to: u64,
        mut f: impl FnMut(Extent) -> bool,
    ) -> Result<()> {
        let prefix = key::prefix(inode, Kind::Extent);
        let mut cursor = self.tree.cursor();
        // The extent before may reach into the range.
        let mut found = cursor.seek_before(key::extent(inode, from).as_bytes());
        if !found || !cursor.key().starts_with(prefix.as_bytes()) {
            found = cursor.seek(key::extent(inode, from).as_bytes());
        }
        while found {
            let Some(suffix) = cursor.key().strip_prefix(prefix.as_bytes()) else { break };
            let offset = key::file_offset(suffix).ok_or(OpError::DAMAGED)?;
            if offset >= to {
                break;
            }
            let extent = Extent::decode(offset, cursor.value()).ok_or(OpError::DAMAGED)?;
            if extent.end() > from && !f(extent) {
                break;
            }
            found = cursor.advance();
        }
        Ok(())
    }

    fn put_extent(&mut self, inode: u64, extent: &Extent) {
        assert!(extent.is_valid(), "an extent of inode {inode} is malformed: {extent:?}");
        let value = &mut self.scratch.value;
        value.clear();
        extent.encode(value);
        self.tree.put(key::extent(inode, extent.file_offset).as_bytes(), value);
    }

    /// Stores the extents of a file that has none.
    pub(crate) fn put_first_extents(&mut self, inode: u64) {
        let incoming = std::mem::take(&mut self.scratch.incoming);
        for extent in &incoming {
            self.put_extent(inode, extent);
        }
        self.scratch.incoming = incoming;
    }

    /// Puts the checked extents in `scratch.incoming` in place of what the file has in their ranges; frees blocks.
    /// Returns the bytes that extents covered more (or less) than before.
    pub(crate) fn replace_extents(&mut self, inode: u64) -> Result<i64> {
        let incoming = std::mem::take(&mut self.scratch.incoming);
        let mut removed = std::mem::take(&mut self.scratch.removed);
        removed.clear();
        // Reading comes first and may fail; what follows cannot.
        for extent in &incoming {
            let read = self.visit_extents(inode, extent.file_offset, extent.end(), |old| {
                removed.push(old);
                true
            });
            if let Err(error) = read {
                (self.scratch.incoming, self.scratch.removed) = (incoming, removed);
                return Err(error);
            }
        }
        // Two new extents may both cut the same old one.
        removed.dedup();
        let mut pieces = Vec::new();
        for old in &removed {
            self.cut_out(inode, old, &incoming, &mut pieces);
        }
        for extent in &incoming {
            self.insert_joined(inode, *extent);
        }
        let gained: u64 = incoming.iter().map(|e| e.length).sum();
        let lost: u64 = pieces.iter().map(|e| e.length).sum();
        self.free_pieces(inode, &pieces, &incoming);
        (self.scratch.incoming, self.scratch.removed) = (incoming, removed);
        Ok(gained as i64 - lost as i64)
    }

    /// Removes all from file offset `size` on; frees blocks. Returns the bytes that extents cover less.
    pub(crate) fn truncate_extents(&mut self, inode: u64, size: u64) -> Result<u64> {
        let mut removed = Vec::new();
        self.visit_extents(inode, size, u64::MAX, |old| {
            removed.push(old);
            true
        })?;
        let mut pieces = Vec::with_capacity(removed.len());
        for old in &removed {
            self.tree.remove(key::extent(inode, old.file_offset).as_bytes());
            if old.file_offset < size {
                self.put_extent(inode, &old.part(old.file_offset, size));
            }
            pieces.push(old.part(old.file_offset.max(size), old.end()));
        }
        self.free_pieces(inode, &pieces, &[]);
        Ok(pieces.iter().map(|e| e.length).sum())
    }

    /// Takes the ranges of `holes` (sorted) out of an extent; what is lost goes to `pieces`.
    fn cut_out(&mut self, inode: u64, old: &Extent, holes: &[Extent], pieces: &mut Vec<Extent>) {
        self.tree.remove(key::extent(inode, old.file_offset).as_bytes());
        let mut at = old.file_offset;
        let first = holes.partition_point(|hole| hole.end() <= old.file_offset);
        for hole in holes[first..].iter().take_while(|hole| hole.file_offset < old.end()) {
            let (from, to) = (hole.file_offset.max(old.file_offset), hole.end().min(old.end()));
            if at < from {
                self.put_extent(inode, &old.part(at, from));
            }
            pieces.push(old.part(from, to));
            at = to;
        }
        if at < old.end() {
            self.put_extent(inode, &old.part(at, old.end()));
        }
    }

    /// Inserts an extent into a hole, joined with neighbours that it continues or that continue it.
    fn insert_joined(&mut self, inode: u64, mut extent: Extent) {
        let (mut before, mut after) = (None, None);
        let from = extent.file_offset.saturating_sub(1);
        self.visit_extents(inode, from, extent.end() + 1, |other| {
            if other.is_continued_by(&extent) {
                before = Some(other);
            } else if extent.is_continued_by(&other) {
                after = Some(other);
            }
            true
        })
        .expect("the extents around were read in this operation");
        if let Some(before) = before.filter(|before| before.length + extent.length <= CHUNK_SIZE_MAX) {
            extent = Extent { length: before.length + extent.length, ..before };
        }
        if let Some(after) = after.filter(|after| after.length + extent.length <= CHUNK_SIZE_MAX) {
            self.tree.remove(key::extent(inode, after.file_offset).as_bytes());
            extent.length += after.length;
        }
        self.put_extent(inode, &extent);
    }

    /// Frees the blocks of removed pieces that nothing left in the file touches. `incoming` was put in their place.
    fn free_pieces(&mut self, inode: u64, pieces: &[Extent], incoming: &[Extent]) {
        let mut kept: Vec<BlockRange> = Vec::new();
        if !pieces.is_empty() {
            kept.extend(incoming.iter().map(Extent::block_range));
        }
        let mut freed: Vec<BlockRange> = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let (pg, index, mut first, mut end) = piece.block_range();
            // Only blocks at the ends can have bytes of another part of the file.
            if piece.chunk_offset % BLOCK != 0 && self.is_block_used(inode, piece, first) {
                first += 1;
            }
            if piece.chunk_end() % BLOCK != 0 && first < end && self.is_block_used(inode, piece, end - 1) {
                end -= 1;
            }
            if first < end {
                freed.push((pg, index, first, end));
            }
        }
        subtract(&mut freed, &mut kept);
        self.add_free_records(&mut freed);
    }

    /// Whether an extent of the file touches a block of the piece's chunk. True when that would take too long to find
    /// out: a block too many is found by the garbage scan, a block too few would be lost data.
    fn is_block_used(&self, inode: u64, piece: &Extent, block: u64) -> bool {
        let touches = |other: &Extent| {
            let (first, end) = other.blocks();
            other.is_same_chunk(piece) && (first..end).contains(&block)
        };
        // Nearly always it is the same block of the file that the other part belongs to.
        let file_block = (block * BLOCK + piece.file_offset).saturating_sub(piece.chunk_offset);
        let mut used = false;
        let near = self.visit_extents(inode, file_block, file_block + BLOCK, |other| {
            used |= touches(&other);
            !used
        });
        let mut scanned = 0;
        let far = self.visit_extents(inode, 0, u64::MAX, |other| {
            used |= touches(&other);
            scanned += 1;
            !used && scanned <= SHARED_BLOCK_SCAN_MAX
        });
        used || scanned > SHARED_BLOCK_SCAN_MAX || near.is_err() || far.is_err()
    }

    /// Removes up to `limit` extents of a dead file from the front and frees all their blocks. Returns how many there
    /// were and the bytes that they covered.
    pub(crate) fn take_dead_extents(&mut self, inode: u64, limit: usize) -> Result<(usize, u64)> {
        let mut taken = Vec::new();
        self.visit_extents(inode, 0, u64::MAX, |extent| {
            taken.push(extent);
            taken.len() < limit
        })?;
        for extent in &taken {
            self.tree.remove(key::extent(inode, extent.file_offset).as_bytes());
        }
        let bytes = taken.iter().map(|e| e.length).sum();
        self.free_all(&taken);
        Ok((taken.len(), bytes))
    }

    /// Frees all blocks of extents whose file is gone.
    pub(crate) fn free_all(&mut self, extents: &[Extent]) {
        let mut freed: Vec<BlockRange> = extents.iter().map(Extent::block_range).collect();
        self.add_free_records(&mut freed);
    }

    /// Writes free records, joined where ranges meet or overlap.
    fn add_free_records(&mut self, freed: &mut [BlockRange]) {
        freed.sort_unstable();
        let mut at = 0;
        while at < freed.len() {
            let (pg, index, first, mut end) = freed[at];
            at += 1;
            while at < freed.len() && (freed[at].0, freed[at].1) == (pg, index) && freed[at].2 <= end {
                end = end.max(freed[at].3);
                at += 1;
            }
            let record = FreeRecord { id: self.free_next, pg, index, first_block: first, blocks: end - first };
            let value = &mut self.scratch.value;
            value.clear();
            record.encode(value);
            self.tree.put(key::free_record(record.id).as_bytes(), value);
            self.free_next += 1;
            self.counters.free_records += 1;
        }
    }
}

/// Takes the blocks of `kept` out of `freed`. Both are sorted on return.
fn subtract(freed: &mut Vec<BlockRange>, kept: &mut [BlockRange]) {
    if freed.is_empty() || kept.is_empty() {
        return;
    }
    kept.sort_unstable();
    let mut left = Vec::with_capacity(freed.len());
    for &(pg, index, mut first, end) in freed.iter() {
        let from = kept.partition_point(|k| (k.0, k.1) < (pg, index));
        // Extents of one request are within one chunk each and few of them are in the same one.
        for &(_, _, kept_first, kept_end) in kept[from..].iter().take_while(|k| (k.0, k.1) == (pg, index)) {
            if kept_end <= first || kept_first >= end {
                continue;
            }
            if kept_first > first {
                left.push((pg, index, first, kept_first));
            }
            first = kept_end.min(end);
        }
        if first < end {
            left.push((pg, index, first, end));
        }
    }
    *freed = left;
}
