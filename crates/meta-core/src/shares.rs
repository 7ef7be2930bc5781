//! Blocks that more than one place names: which, and how often.
//!
//! A *place* is an inode and how far file offset and chunk offset are apart there. Blocks that a clone shared have
//! records ([`ShareRecord`]) with the number of places that name them, and every extent that names them says so
//! (`shared`).
//!
//! Invariants: a block has a record if and only if a shared extent names it, or it was cloned out of a snapshot that
//! still keeps it (`lives`); its references are the places that do, one each however many extents of the place touch
//! it; no other extent names it. So a block is freed with its last reference, what is not shared costs nothing, and
//! what was once shared is never changed in place, also when one place is left: a client that read of the extent when
//! it was shared may not know. Records that touch have different numbers. Not here: which extents are shared
//! (`ops/clone_range`), proof of a large namespace (`share_check`).
use crate::encoding::{Extent, ShareRecord};
use crate::extent_map::{BlockRange, join};
use crate::key;
use crate::namespace::Namespace;
use cairn_tree::Tree;
use cairn_types::ExtentKind;

/// Blocks of a chunk that one place of a file names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Place {
    pub pg: u32,
    pub index: u32,
    /// File offset minus chunk offset.
    pub apart: i64,
    pub first: u64,
    pub end: u64,
    granule: u64,
    granule_blocks: u64,
    first_number: u64,
}

impl Place {
    pub fn of(extent: &Extent) -> Place {
        let (first, end) = extent.blocks();
        let apart = extent.file_offset as i64 - extent.chunk_offset as i64;
        let (granule, granule_blocks, first_number) =
            (extent.granule(), extent.granule_blocks(), extent.first_number());
        Place { pg: extent.pg, index: extent.index, apart, first, end, granule, granule_blocks, first_number }
    }

    /// Where in the file a block's granule begins, as far as it is in the file.
    pub fn file_offset(&self, block: u64) -> u64 {
        let chunk_offset = i128::from(block.saturating_sub(self.first_number) / self.granule_blocks * self.granule);
        u64::try_from((chunk_offset + i128::from(self.apart)).max(0)).unwrap_or(u64::MAX)
    }

    /// The range of the file where nothing else than its granules can be.
    pub fn file_range(&self) -> (u64, u64) {
        (self.file_offset(self.first), self.file_offset(self.end))
    }

    /// Whether an extent belongs to the same place.
    pub fn has(&self, extent: &Extent) -> bool {
        let apart = extent.file_offset as i64 - extent.chunk_offset as i64;
        (extent.pg, extent.index, apart) == (self.pg, self.index, self.apart)
    }
}

/// Who has a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Owners {
    /// Places of files.
    pub references: u64,
    /// See [`ShareRecord::kept`].
    pub kept: u64,
}

impl Owners {
    const fn of(record: &ShareRecord) -> Owners {
        Owners { references: record.references, kept: record.kept }
    }

    pub fn has_any(&self) -> bool {
        *self != Owners::default()
    }
}

/// Places of the extents, in order; blocks that touch are together.
pub(crate) fn places<'a>(extents: impl Iterator<Item = &'a Extent>) -> Vec<Place> {
    let mut places: Vec<Place> = extents.map(Place::of).collect();
    places.sort_unstable();
    places.dedup_by(|next, before| {
        let same = (before.pg, before.index, before.apart) == (next.pg, next.index, next.apart);
        let joins = same && next.first <= before.end;
        if joins {
            before.end = before.end.max(next.end);
        }
        joins
    });
    places
}

/// Records that overlap blocks of a chunk; `None` if one of them cannot be read.
pub(crate) fn records_in(tree: &Tree, pg: u32, index: u32, first: u64, end: u64) -> Option<Vec<ShareRecord>> {
    let prefix = key::shares_of(pg, index);
    let mut records = Vec::new();
    let mut cursor = tree.cursor();
    let from = key::share(pg, index, u32::try_from(first).unwrap_or(u32::MAX));
    let mut found = match cursor.seek_before(from.as_bytes()) {
        // The one before may reach into the range.
        true if cursor.key().starts_with(prefix.as_bytes()) => true,
        true => cursor.advance(),
        false => cursor.seek_first(),
    };
    while found && cursor.key().starts_with(prefix.as_bytes()) {
        let (_, _, suffix) = key::split(cursor.key())?;
        let record = ShareRecord::decode(key::share_parts(suffix)?, cursor.value())?;
        if record.first_block >= end {
            break;
        }
        if record.end_block() > first {
            records.push(record);
        }
        found = cursor.advance();
    }
    Some(records)
}

impl Namespace {
    /// Records of shared blocks; `None` if one of them cannot be read.
    pub(crate) fn count_shares(&self) -> Option<u64> {
        let prefix = key::prefix(0, key::Kind::Share);
        let mut range = self.tree.prefix(prefix.as_bytes());
        let mut count = 0;
        while let Some((entry, value)) = range.next() {
            ShareRecord::decode(key::share_parts(entry.get(prefix.as_bytes().len()..)?)?, value)?;
            count += 1;
        }
        Some(count)
    }

    pub(crate) fn share_records(&self, pg: u32, index: u32, first: u64, end: u64) -> Vec<ShareRecord> {
        if self.shares == 0 {
            return Vec::new();
        }
        records_in(&self.tree, pg, index, first, end).expect("records were written here, and checked when loaded")
    }

    /// Whether something shares any of these blocks.
    pub(crate) fn is_shared(&self, pg: u32, index: u32, first: u64, end: u64) -> bool {
        !self.share_records(pg, index, first, end).is_empty()
    }

    /// Marks parts of sorted extents as shared whose blocks are: a block's rest is appended to where it lies.
    pub(crate) fn mark_shared(&self, extents: &mut Vec<Extent>) {
        if self.shares == 0 {
            return;
        }
        let mut marked = Vec::with_capacity(extents.len());
        for extent in extents.drain(..) {
            let (first, end) = extent.blocks();
            let records = match extent.kind {
                ExtentKind::Set(_) => Vec::new(),
                _ => self.share_records(extent.pg, extent.index, first, end),
            };
            let place = Place::of(&extent);
            let mut at = extent.file_offset;
            for record in records {
                let from = place.file_offset(record.first_block).clamp(at, extent.end());
                let to = place.file_offset(record.end_block()).clamp(at, extent.end());
                if at < from {
                    marked.push(extent.part(at, from));
                }
                if from < to {
                    marked.push(Extent { shared: true, ..extent.part(from, to) });
                }
                at = to;
            }
            if at < extent.end() {
                marked.push(extent.part(at, extent.end()));
            }
        }
        marked.dedup_by(|next, before| join(before, next));
        *extents = marked;
    }

    /// Parts of an extent that was shared once: `shared` are those that others have now, too.
    pub(crate) fn shared_now(&self, extent: Extent) -> Vec<Extent> {
        if !extent.shared {
            return vec![extent];
        }
        let (first, end) = extent.blocks();
        let place = Place::of(&extent);
        let (mut parts, mut at) = (Vec::new(), extent.file_offset);
        let mut push = |to: u64, shared: bool| {
            if at < to {
                parts.push(Extent { shared, ..extent.part(at, to) });
                at = to;
            }
        };
        for record in self.share_records(extent.pg, extent.index, first, end) {
            let within = |block| place.file_offset(block).clamp(extent.file_offset, extent.end());
            // What has no record would be a violation: it is left to others.
            push(within(record.first_block), true);
            push(within(record.end_block()), record.references + record.kept > 1);
        }
        push(extent.end(), true);
        parts.dedup_by(|next, before| join(before, next));
        parts
    }

    /// Blocks of a place that shared extents of the file name now, in order.
    fn named_at(&self, inode: u64, place: &Place) -> Option<Vec<(u64, u64)>> {
        let (from, to) = place.file_range();
        let mut named = Vec::new();
        let read = self.visit_extents(inode, from, to, |extent| {
            if extent.shared && place.has(&extent) {
                named.push(extent.blocks());
            }
            true
        });
        read.is_ok().then_some(named)
    }

    /// Before these extents are put into the file: what they share has more references.
    pub(crate) fn gain_references(&mut self, inode: u64, incoming: &[Extent]) {
        for place in places(incoming.iter().filter(|extent| extent.shared)) {
            // Counted once too often means space that is not freed; once too little would be lost data.
            let named = self.named_at(inode, &place).unwrap_or_default();
            for (first, end) in without((place.first, place.end), &named) {
                self.change_references((place.pg, place.index, first, end), |references| references + 1);
            }
        }
    }

    /// After these extents were taken out of the file: what they shared has fewer references. Blocks that had their
    /// last one are added to `freed`.
    pub(crate) fn drop_references(&mut self, inode: u64, removed: &[Extent], freed: &mut Vec<BlockRange>) {
        for place in places(removed.iter().filter(|extent| extent.shared)) {
            let Some(named) = self.named_at(inode, &place) else { continue };
            for (first, end) in without((place.first, place.end), &named) {
                let range = (place.pg, place.index, first, end);
                let before = self.change_references(range, |references| references.saturating_sub(1));
                let last = before.into_iter().filter(|(_, _, references)| *references == 1);
                freed.extend(last.map(|(first, end, _)| (place.pg, place.index, first, end)));
            }
        }
    }

    /// Takes blocks out of ranges that are to be freed if something shares them.
    pub(crate) fn spare_shared(&self, freed: &mut Vec<BlockRange>) {
        if self.shares == 0 {
            return;
        }
        let mut left = Vec::with_capacity(freed.len());
        for &(pg, index, first, end) in freed.iter() {
            let records = self.share_records(pg, index, first, end);
            let shared: Vec<(u64, u64)> = records.iter().map(|r| (r.first_block, r.end_block())).collect();
            left.extend(without((first, end), &shared).into_iter().map(|(first, end)| (pg, index, first, end)));
        }
        *freed = left;
    }

    /// Changes the references of blocks; 0: no place names them. Returns what they were.
    pub(crate) fn change_references(&mut self, range: BlockRange, change: impl Fn(u64) -> u64) -> Vec<(u64, u64, u64)> {
        let before = self.change_owners(range, |owners| Owners { references: change(owners.references), ..owners });
        before.into_iter().map(|(from, to, owners)| (from, to, owners.references)).collect()
    }

    /// Changes who has blocks; nobody: there is no record. Returns who did.
    pub(crate) fn change_owners(
        &mut self,
        range: BlockRange,
        change: impl Fn(Owners) -> Owners,
    ) -> Vec<(u64, u64, Owners)> {
        let (pg, index, first, end) = range;
        // With neighbours, which may have the same number of references afterwards.
        let records = self.share_records(pg, index, first.saturating_sub(1), end + 1);
        let (mut before, mut after) = (Vec::new(), Vec::new());
        let mut at = first;
        for record in &records {
            let (from, to) = (record.first_block, record.end_block());
            if from < first {
                after.push((from, to.min(first), Owners::of(record)));
            }
            let (inner_from, inner_to) = (from.max(first), to.min(end));
            if inner_from < inner_to {
                if at < inner_from {
                    before.push((at, inner_from, Owners::default()));
                }
                before.push((inner_from, inner_to, Owners::of(record)));
                at = inner_to;
            }
        }
        if at < end {
            before.push((at, end, Owners::default()));
        }
        after.extend(before.iter().map(|(from, to, owners)| (*from, *to, change(*owners))));
        let behind = records.iter().filter(|record| record.end_block() > end);
        after.extend(behind.map(|record| (record.first_block.max(end), record.end_block(), Owners::of(record))));
        after.retain(|(_, _, owners)| owners.has_any());
        after.dedup_by(|next, last| {
            let joins = last.1 == next.0 && last.2 == next.2;
            if joins {
                last.1 = next.1;
            }
            joins
        });
        self.put_share_records(&records, pg, index, &after);
        before
    }

    fn put_share_records(&mut self, before: &[ShareRecord], pg: u32, index: u32, after: &[(u64, u64, Owners)]) {
        let key_of = |first: u64| key::share(pg, index, first as u32);
        for record in before {
            self.shares -= u64::from(self.tree.remove(key_of(record.first_block).as_bytes()));
        }
        for &(first_block, end, Owners { references, kept }) in after {
            let record = ShareRecord { pg, index, first_block, blocks: end - first_block, references, kept };
            let value = &mut self.scratch.value;
            value.clear();
            record.encode(value);
            self.shares += u64::from(self.tree.put(key_of(first_block).as_bytes(), value));
        }
    }
}

/// A range without others, which are in order and may overlap.
fn without((mut first, end): (u64, u64), taken: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut left = Vec::new();
    for (from, to) in taken {
        if *from > first {
            left.push((first, (*from).min(end)));
        }
        first = first.max(*to);
        if first >= end {
            return left;
        }
    }
    if first < end {
        left.push((first, end));
    }
    left
}

#[cfg(test)]
mod tests;
