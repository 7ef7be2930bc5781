//! The extent map of a file: replacing ranges, cutting at the end, and finding the chunk blocks that nobody names any
//! more.
//!
//! Invariants: extents of a file never overlap; neighbours that continue each other in file and chunk are one extent;
//! a block of a chunk (a row of a striped one) is freed only if no extent that stays in the same file touches it
//! (different files never share one, but for what was cloned: `shares`). Data behind these maps is never looked at.
use crate::encoding::{Extent, FreeRecord};
use crate::error::{OpError, Result};
use crate::key::{self, Kind};
use crate::limits::{PUBLISH_EXTENTS_MAX, REPLACED_EXTENTS_MAX, SHARED_BLOCK_SCAN_MAX};
use crate::message::reader::RepeatedMessages;
use crate::message::request::ExtentMessage;
use crate::namespace::Namespace;
use crate::stripe_set::set_of;
use crate::whole_shards::is_in_whole_shards;
use cairn_types::{BLOCK_SIZE, ErrorCode, ExtentKind};

#[cfg(test)]
mod tests;

const BLOCK: u64 = BLOCK_SIZE as u64;

/// Birth of an extent that is not named yet.
pub(crate) const UNBORN: u64 = u64::MAX;

/// Extents that are looked at before anything more clever is tried.
const SHORT_SCAN: usize = 16;

/// Blocks in the members' files of a chunk: placement group, index, first block, one past the last.
pub(crate) type BlockRange = (u32, u32, u64, u64);

/// The activated level from which on extents may lie in whole shards: members of before do not know their flags.
pub const WHOLE_SHARDS_LEVEL: u16 = 20;

/// Checks the extents of a request and gives them sorted, joined where they continue each other. `level`: the activated
/// one.
pub(crate) fn check_incoming(messages: &RepeatedMessages<'_>, level: u16, incoming: &mut Vec<Extent>) -> Result<()> {
    incoming.clear();
    messages.visit(|bytes| {
        let message = ExtentMessage::decode(bytes)?;
        if incoming.len() == PUBLISH_EXTENTS_MAX {
            return Err(OpError::new(ErrorCode::InvalidArgument, "at most 4096 extents in one request"));
        }
        incoming.push(check_extent(&message, level)?);
        Ok(())
    })?;
    if incoming.len() < 2 {
        return Ok(());
    }
    incoming.sort_unstable_by_key(|extent| extent.file_offset);
    if incoming.windows(2).any(|pair| pair[0].end() > pair[1].file_offset) {
        return Err(OpError::new(ErrorCode::InvalidArgument, "extents of one request overlap"));
    }
    incoming.dedup_by(|next, before| join(before, next));
    Ok(())
}

/// Makes one extent of two if the second continues the first. A chunk bounds the sum.
pub(crate) fn join(before: &mut Extent, next: &Extent) -> bool {
    let joins = before.is_continued_by(next);
    if joins {
        before.length += next.length;
    }
    joins
}

fn check_extent(message: &ExtentMessage, level: u16) -> Result<Extent> {
    let invalid = |text| Err(OpError::new(ErrorCode::InvalidArgument, text));
    if message.length == 0 {
        return invalid("an extent is empty");
    }
    let known = |kind: &ExtentKind| !is_of_whole_shards(*kind) || level >= WHOLE_SHARDS_LEVEL;
    let Some(kind) = ExtentKind::from_flags(message.flags).filter(known) else {
        return invalid("an extent has flags that are reserved or a stripe that cannot be");
    };
    if message.length > kind.capacity() || message.chunk_offset > kind.capacity() - message.length {
        return invalid("an extent goes beyond the largest chunk");
    }
    if message.chunk_offset % BLOCK != message.file_offset % BLOCK {
        return invalid("an extent's offsets in file and chunk differ modulo 4096");
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
        kind,
        // Whether its blocks are shared is known here, whatever the message says.
        shared: false,
        // Known when it is named.
        birth: UNBORN,
    })
}

fn is_of_whole_shards(kind: ExtentKind) -> bool {
    matches!(kind, ExtentKind::Erasure(stripe) if stripe.is_whole_shards())
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
        let mut found = match cursor.seek_before(key::extent(inode, from).as_bytes()) {
            true if cursor.key().starts_with(prefix.as_bytes()) => true,
            true => cursor.advance(),
            false => cursor.seek_first(),
        };
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
        let is_born = extent.birth != UNBORN;
        assert!(is_born && extent.is_valid(), "an extent of inode {inode} is malformed: {extent:?}");
        let value = &mut self.scratch.value;
        value.clear();
        extent.encode(value);
        self.tree.put(key::extent(inode, extent.file_offset).as_bytes(), value);
    }

    /// Stores the extents of a file that has none.
    pub(crate) fn put_first_extents(&mut self, inode: u64) {
        let mut incoming = std::mem::take(&mut self.scratch.incoming);
        self.give_birth(inode, &mut incoming);
        self.mark_shared(&mut incoming);
        self.gain_references(inode, &incoming);
        self.note_extents(inode, 1, incoming.len());
        for extent in &incoming {
            self.put_extent(inode, extent);
        }
        self.scratch.incoming = incoming;
    }

    /// Puts the checked extents in `scratch.incoming` in place of what the file has in their ranges; frees blocks.
    /// Returns the bytes that extents covered more (or less) than before.
    pub(crate) fn replace_extents(&mut self, inode: u64) -> Result<i64> {
        let mut incoming = std::mem::take(&mut self.scratch.incoming);
        self.give_birth(inode, &mut incoming);
        self.mark_shared(&mut incoming);
        let mut touched = std::mem::take(&mut self.scratch.touched);
        let read = self.collect_touched(inode, &incoming, &mut touched);
        let change = read.and_then(|()| self.exchange_extents(inode, &touched, &incoming));
        (self.scratch.incoming, self.scratch.touched) = (incoming, touched);
        change
    }

    /// What overlaps the incoming extents or meets their ends, in order.
    fn collect_touched(&self, inode: u64, incoming: &[Extent], touched: &mut Vec<Extent>) -> Result<()> {
        touched.clear();
        for extent in incoming {
            let from = extent.file_offset.saturating_sub(1);
            self.visit_extents(inode, from, extent.end() + 1, |old| {
                // Two new extents may both touch the same old one.
                if touched.last().is_none_or(|last| last.file_offset < old.file_offset) {
                    touched.push(old);
                }
                touched.len() <= REPLACED_EXTENTS_MAX
            })?;
        }
        if touched.len() > REPLACED_EXTENTS_MAX {
            return Err(OpError::new(
                ErrorCode::InvalidArgument,
                "the extents replace more than 65536 others; publish them in smaller parts",
            ));
        }
        Ok(())
    }

    fn exchange_extents(&mut self, inode: u64, touched: &[Extent], incoming: &[Extent]) -> Result<i64> {
        self.gain_references(inode, incoming);
        let (mut after, mut pieces) = (incoming.to_vec(), Vec::new());
        for old in touched {
            cut_out(old, incoming, &mut after, &mut pieces);
        }
        after.sort_unstable_by_key(|extent| extent.file_offset);
        after.dedup_by(|next, before| join(before, next));
        self.swap_entries(inode, touched, &after);
        self.note_extents(inode, touched.len(), after.len());
        let gained: u64 = incoming.iter().map(|e| e.length).sum();
        let lost: u64 = pieces.iter().map(|e| e.length).sum();
        self.free_pieces(inode, &pieces, incoming);
        self.drop_unused_sets(inode, &pieces)?;
        Ok(gained as i64 - lost as i64)
    }

    /// Stores extents in place of others; both are in order.
    pub(crate) fn swap_entries(&mut self, inode: u64, before: &[Extent], after: &[Extent]) {
        let position = |list: &[Extent], offset: u64| list.binary_search_by_key(&offset, |e| e.file_offset);
        for old in before {
            if position(after, old.file_offset).is_err() {
                self.tree.remove(key::extent(inode, old.file_offset).as_bytes());
            }
        }
        for new in after {
            if position(before, new.file_offset).is_ok_and(|i| before[i] == *new) {
                continue;
            }
            self.put_extent(inode, new);
        }
    }

    /// Removes what these extents of the file have from file offset `size` on; frees blocks. Returns the bytes that
    /// extents cover less.
    pub(crate) fn remove_behind(&mut self, inode: u64, size: u64, removed: &[Extent]) -> Result<u64> {
        let mut pieces = Vec::with_capacity(removed.len());
        for old in removed {
            self.tree.remove(key::extent(inode, old.file_offset).as_bytes());
            if old.file_offset < size {
                self.put_extent(inode, &old.part(old.file_offset, size));
            }
            pieces.push(old.part(old.file_offset.max(size), old.end()));
        }
        self.free_pieces(inode, &pieces, &[]);
        self.drop_unused_sets(inode, &pieces)?;
        Ok(pieces.iter().map(|e| e.length).sum())
    }

    /// Takes a range out of a file; frees blocks. Returns the bytes that extents cover less.
    pub(crate) fn cut_range(&mut self, inode: u64, from: u64, to: u64) -> Result<u64> {
        let mut touched = Vec::new();
        self.visit_extents(inode, from, to, |extent| {
            touched.push(extent);
            touched.len() <= REPLACED_EXTENTS_MAX
        })?;
        if touched.len() > REPLACED_EXTENTS_MAX {
            return Err(OpError::new(
                ErrorCode::InvalidArgument,
                "the range has more than 65536 extents; cut it out in smaller parts",
            ));
        }
        let mut pieces = Vec::with_capacity(touched.len());
        for old in &touched {
            self.tree.remove(key::extent(inode, old.file_offset).as_bytes());
            if old.file_offset < from {
                self.put_extent(inode, &old.part(old.file_offset, from));
            }
            if old.end() > to {
                self.put_extent(inode, &old.part(to, old.end()));
            }
            pieces.push(old.part(old.file_offset.max(from), old.end().min(to)));
        }
        self.free_pieces(inode, &pieces, &[]);
        self.drop_unused_sets(inode, &pieces)?;
        Ok(pieces.iter().map(|e| e.length).sum())
    }

    /// Frees the granules of removed pieces that nothing left in the file touches. `incoming` was put in their place.
    fn free_pieces(&mut self, inode: u64, pieces: &[Extent], incoming: &[Extent]) {
        let mut kept: Vec<BlockRange> = Vec::new();
        if !pieces.is_empty() {
            incoming.iter().for_each(|extent| self.add_blocks(inode, extent, extent.granules(), &mut kept));
        }
        self.release_by_birth(pieces, |namespace, pieces, freed| {
            for piece in pieces.iter().filter(|piece| !piece.shared) {
                let granule = piece.granule();
                let (mut first, mut end) = piece.granules();
                // Only granules at the ends can have bytes of another part of the file.
                if piece.chunk_offset % granule != 0 && namespace.is_granule_used(inode, piece, first) {
                    first += 1;
                }
                if piece.chunk_end() % granule != 0 && first < end && namespace.is_granule_used(inode, piece, end - 1) {
                    end -= 1;
                }
                if first < end {
                    namespace.add_blocks(inode, piece, (first, end), freed);
                }
            }
            subtract(freed, &mut kept);
            namespace.spare_shared(freed);
        });
        self.drop_shared(inode, pieces);
    }

    /// The blocks of some granules of an extent, of every column of a stripe set.
    fn add_blocks(&self, inode: u64, extent: &Extent, (first, end): (u64, u64), to: &mut Vec<BlockRange>) {
        let (first, end) = extent.blocks_of((first, end));
        match set_of(extent) {
            None => to.push((extent.pg, extent.index, first, end)),
            // What cannot be read is left to the garbage scan.
            Some((pg, index)) => {
                let columns = self.set_columns(inode, pg, index).unwrap_or_default();
                to.extend(columns.into_iter().map(|(pg, index)| (pg, index, first, end)));
            }
        }
    }

    /// Whether an extent of the file touches a granule of the piece's chunk. True when that would take too long to find
    /// out: a block too many is found by the garbage scan, a block too few would be lost data.
    fn is_granule_used(&self, inode: u64, piece: &Extent, granule: u64) -> bool {
        let bytes = granule * piece.granule()..(granule + 1) * piece.granule();
        let touches = |other: &Extent| {
            let (from, to) = (other.chunk_offset, other.chunk_end());
            other.is_same_chunk(piece) && from < bytes.end && to > bytes.start
        };
        let (mut used, mut scanned) = (false, 0);
        let mut scan = |from: u64, to: u64, limit: usize| {
            scanned = 0;
            let read = self.visit_extents(inode, from, to, |other| {
                used |= touches(&other);
                scanned += 1;
                !used && scanned <= limit
            });
            // What cannot be read counts as used.
            if used || read.is_err() { Some(true) } else { (scanned <= limit).then_some(false) }
        };
        if let Some(answer) = scan(0, u64::MAX, SHORT_SCAN) {
            return answer;
        }
        // Nearly always it is the same part of the file that the other one belongs to.
        let around = (bytes.start + piece.file_offset).saturating_sub(piece.chunk_offset);
        if scan(around, around + piece.granule(), SHORT_SCAN) == Some(true) {
            return true;
        }
        scan(0, u64::MAX, SHARED_BLOCK_SCAN_MAX).unwrap_or(true)
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
        self.free_all(inode, &taken);
        self.free_references(inode, &taken);
        Ok((taken.len(), bytes))
    }

    /// Frees all blocks of extents whose file is gone, but for shared ones.
    pub(crate) fn free_all(&mut self, inode: u64, extents: &[Extent]) {
        self.release_by_birth(extents, |namespace, extents, freed| {
            let own = extents.iter().filter(|extent| !extent.shared);
            own.for_each(|extent| namespace.add_blocks(inode, extent, extent.granules(), freed));
            namespace.spare_shared(freed);
        });
    }

    /// Takes the references of shared extents that were removed from the tree, and frees what nobody else names.
    pub(crate) fn free_references(&mut self, inode: u64, extents: &[Extent]) {
        self.drop_shared(inode, extents);
    }

    /// Frees all blocks of the checked extents in `scratch.incoming`, of which no file knows. Their sets are in
    /// `scratch.sets`.
    pub(crate) fn free_incoming(&mut self) {
        let (incoming, sets) = (std::mem::take(&mut self.scratch.incoming), std::mem::take(&mut self.scratch.sets));
        let mut freed: Vec<BlockRange> = Vec::with_capacity(incoming.len());
        for extent in &incoming {
            let (first, end) = extent.blocks();
            let own = [(extent.pg, extent.index)];
            let columns = match set_of(extent) {
                None => &own[..],
                Some(set) => sets.iter().find(|columns| columns[0] == set).map_or(&[][..], Vec::as_slice),
            };
            freed.extend(columns.iter().map(|(pg, index)| (*pg, *index, first, end)));
        }
        // Published after all, and cloned or kept by a snapshot since: whoever gives them back did not hear of that.
        // What a snapshot may have is left to the garbage scan, which knows.
        if self.has_snapshots() {
            freed.clear();
        }
        self.spare_shared(&mut freed);
        self.add_free_records(&mut freed);
        self.scratch.incoming = incoming;
    }

    /// Writes free records, joined where ranges meet or overlap. What is free in whole shards others may name in
    /// another shard: there is no record of it, and the scan for garbage finds what nothing names.
    pub(crate) fn add_free_records(&mut self, freed: &mut [BlockRange]) {
        for (pg, index, first, end) in joined(freed).into_iter().filter(|range| !is_in_whole_shards(range.2)) {
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

/// Ranges sorted, and joined where they meet or overlap.
pub(crate) fn joined(ranges: &mut [BlockRange]) -> Vec<BlockRange> {
    ranges.sort_unstable();
    let mut joined: Vec<BlockRange> = Vec::with_capacity(ranges.len());
    for range in ranges.iter() {
        match joined.last_mut() {
            Some(last) if (last.0, last.1) == (range.0, range.1) && range.2 <= last.3 => last.3 = last.3.max(range.3),
            _ => joined.push(*range),
        }
    }
    joined
}

/// Takes the ranges of `holes` (sorted) out of an extent; what stays goes to `stays`, what is lost to `lost`.
fn cut_out(old: &Extent, holes: &[Extent], stays: &mut Vec<Extent>, lost: &mut Vec<Extent>) {
    let mut at = old.file_offset;
    let first = holes.partition_point(|hole| hole.end() <= old.file_offset);
    for hole in holes[first..].iter().take_while(|hole| hole.file_offset < old.end()) {
        let (from, to) = (hole.file_offset.max(old.file_offset), hole.end().min(old.end()));
        if at < from {
            stays.push(old.part(at, from));
        }
        lost.push(old.part(from, to));
        at = to;
    }
    if at < old.end() {
        stays.push(old.part(at, old.end()));
    }
}

/// Takes the blocks of `kept` out of `freed`. Both are sorted on return.
pub(crate) fn subtract(freed: &mut Vec<BlockRange>, kept: &mut [BlockRange]) {
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
