//! Proof of the records of shared blocks: each has as many references as places name its blocks, and who names them
//! says so; and snapshots keep them by as many records as it says. Part of [`crate::Fsck`], in bounded memory: a part
//! of the records at a time is held against all extents.
//!
//! Of a record the sum over its blocks is compared, not each block.
use crate::encoding::{Extent, KeptRecord, ShareRecord};
use crate::key::{self, Kind};
use crate::shares::Place;
use cairn_types::ExtentKind;
use std::collections::BTreeMap;

/// Places of a file that are remembered before those are let go that cannot come again.
const PLACES_MAX: usize = 1024;

struct Counted {
    record: ShareRecord,
    /// Sum over its blocks.
    named: u64,
    /// Of records of what snapshots keep, summed likewise.
    kept: u64,
}

/// One walk over all entries, or several.
#[derive(Default)]
pub(crate) struct ShareCheck {
    /// In the order of their keys, of whole chunks.
    part: Vec<Counted>,
    /// The part begins with this chunk …
    from: (u32, u32),
    /// … and ends before this one.
    next: Option<(u32, u32)>,
    inode: u64,
    /// Of this inode: up to which block a place was counted, and where that ends in the file.
    counted: BTreeMap<(u32, u32, i64), (u64, u64)>,
}

impl ShareCheck {
    /// Looks at an entry, in the order of the keys; says what is wrong with it.
    pub fn visit(&mut self, inode: u64, kind: Kind, suffix: &[u8], value: &[u8], part_max: usize) -> Option<String> {
        match kind {
            Kind::Share => {
                let record = key::share_parts(suffix).and_then(|parts| ShareRecord::decode(parts, value));
                let Some(record) = record else { return Some("a record of shared blocks cannot be read".into()) };
                self.add(record, part_max);
                None
            }
            Kind::Kept => {
                let Some(record) = KeptRecord::decode(value) else {
                    return Some("a record of what a snapshot keeps cannot be read".into());
                };
                self.count_kept(&record);
                None
            }
            Kind::Extent => {
                let extent = Extent::decode(key::file_offset(suffix)?, value)?;
                if self.part.is_empty() || matches!(extent.kind, ExtentKind::Set(_)) {
                    return None;
                }
                self.count(inode, &extent)
            }
            _ => None,
        }
    }

    fn add(&mut self, record: ShareRecord, part_max: usize) {
        let chunk = (record.pg, record.index);
        if chunk < self.from || self.next.is_some() {
            return;
        }
        let other = self.part.last().is_some_and(|last| (last.record.pg, last.record.index) != chunk);
        if other && self.part.len() >= part_max {
            self.next = Some(chunk);
            return;
        }
        self.part.push(Counted { record, named: 0, kept: 0 });
    }

    fn count_kept(&mut self, kept: &KeptRecord) {
        let (chunk, end) = ((kept.pg, kept.index), kept.first_block + kept.blocks);
        let at = self.part.partition_point(|c| {
            (c.record.pg, c.record.index, c.record.end_block()) <= (chunk.0, chunk.1, kept.first_block)
        });
        for counted in self.part[at..].iter_mut() {
            let record = counted.record;
            if (record.pg, record.index) != chunk || record.first_block >= end {
                break;
            }
            counted.kept += record.end_block().min(end) - record.first_block.max(kept.first_block);
        }
    }

    fn count(&mut self, inode: u64, extent: &Extent) -> Option<String> {
        let chunk = (extent.pg, extent.index);
        if chunk < self.from || self.next.is_some_and(|next| chunk >= next) {
            return None;
        }
        if self.inode != inode {
            self.inode = inode;
            self.counted.clear();
        }
        let place = Place::of(extent);
        let id = (place.pg, place.index, place.apart);
        let first = self.counted.get(&id).map_or(place.first, |(end, _)| place.first.max(*end));
        let (mut covered, mut at) = (0, self.part.partition_point(|c| (c.record.pg, c.record.index) < chunk));
        at += self.part[at..]
            .partition_point(|c| (c.record.pg, c.record.index) == chunk && c.record.end_block() <= first);
        for counted in self.part[at..].iter_mut() {
            let record = counted.record;
            if (record.pg, record.index) != chunk || record.first_block >= place.end {
                break;
            }
            let blocks = record.end_block().min(place.end).saturating_sub(record.first_block.max(first));
            covered += blocks;
            counted.named += if extent.shared { blocks } else { 0 };
        }
        if !extent.shared {
            let text =
                || format!("the extent at offset {} names shared blocks and does not say so", extent.file_offset);
            return (covered > 0).then(text);
        }
        if self.counted.len() >= PLACES_MAX {
            self.counted.retain(|_, (_, end)| *end > extent.file_offset);
        }
        self.counted.insert(id, (place.end, place.file_range().1));
        let missing = place.end.saturating_sub(first) - covered;
        let text = || {
            format!("the extent at offset {} shares {missing} blocks of which nothing is recorded", extent.file_offset)
        };
        (missing > 0).then(text)
    }

    /// The walk came to its end: what is wrong with the part's records. Another walk is needed unless it says `false`.
    pub fn end_walk(&mut self, mut f: impl FnMut(String)) -> bool {
        for Counted { record, named, kept } in std::mem::take(&mut self.part) {
            if named != record.references * record.blocks {
                let ShareRecord { pg, index, first_block, blocks, references, .. } = record;
                let text = format!(
                    "{blocks} blocks from {first_block} of chunk {pg}/{index} are recorded as named {references} times each, \
                     files name {named} in all"
                );
                f(text);
            }
            if kept != record.kept * record.blocks {
                let ShareRecord { pg, index, first_block, blocks, kept: recorded, .. } = record;
                let text = format!(
                    "{blocks} blocks from {first_block} of chunk {pg}/{index} are recorded as kept by snapshots {recorded} times \
                     each, they keep {kept} in all"
                );
                f(text);
            }
        }
        self.counted.clear();
        self.inode = 0;
        match self.next.take() {
            Some(next) => {
                self.from = next;
                true
            }
            None => false,
        }
    }
}
