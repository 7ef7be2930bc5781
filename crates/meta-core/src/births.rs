//! When the blocks of extents were named first, and freeing by that: what snapshots need to know of an extent map.
//!
//! Invariants: extents of one file that touch the same granule of a chunk have the same birth, or births between which
//! no snapshot is left; it is that of the oldest bytes that were named in it. So a granule has one birth, whichever of
//! its extents goes last.
use crate::encoding::Extent;
use crate::extent_map::{BlockRange, UNBORN, join, joined, subtract};
use crate::limits::SHARED_BLOCK_SCAN_MAX;
use crate::namespace::Namespace;
use std::collections::BTreeMap;

impl Namespace {
    /// Says of extents that are going to be named since when their blocks are. Granules that the file names already, by
    /// whatever bytes, keep their birth, and become extents of their own.
    pub(crate) fn give_birth(&self, inode: u64, extents: &mut Vec<Extent>) {
        let birth = self.birth();
        if birth == 0 || extents.iter().all(|extent| extent.birth != UNBORN) {
            extents.iter_mut().filter(|extent| extent.birth == UNBORN).for_each(|extent| extent.birth = 0);
            return;
        }
        let (older, is_complete) = self.extents_of_chunks(inode, extents);
        let mut born = Vec::with_capacity(extents.len());
        for extent in extents.drain(..) {
            if extent.birth == UNBORN {
                self.split_by_birth(Extent { birth, ..extent }, &older, is_complete, &mut born);
            } else {
                born.push(extent);
            }
        }
        born.dedup_by(|next, before| join(before, next));
        *extents = born;
    }

    /// What the file has of the same chunks, in the order of chunks. False: of a file with very many extents only what
    /// is around; that has what is named again at its own place.
    fn extents_of_chunks(&self, inode: u64, extents: &[Extent]) -> (Vec<Extent>, bool) {
        let mut chunks: Vec<(u32, u32)> = extents.iter().map(|extent| (extent.pg, extent.index)).collect();
        chunks.sort_unstable();
        chunks.dedup();
        let is_same = |other: &Extent| chunks.binary_search(&(other.pg, other.index)).is_ok();
        let (mut older, mut scanned) = (Vec::new(), 0);
        let all = self.visit_extents(inode, 0, u64::MAX, |other| {
            older.extend(is_same(&other).then_some(other));
            scanned += 1;
            scanned <= SHARED_BLOCK_SCAN_MAX
        });
        let is_complete = all.is_ok() && scanned <= SHARED_BLOCK_SCAN_MAX;
        if !is_complete {
            older.clear();
            for extent in extents {
                let (from, to) = (extent.file_offset, extent.end());
                let around = (from.saturating_sub(extent.granule()), to.saturating_add(extent.granule()));
                // What cannot be read is found by those who exchange the extents.
                let _ = self.visit_extents(inode, around.0, around.1, |other| {
                    older.extend(is_same(&other).then_some(other));
                    true
                });
            }
        }
        older.sort_unstable_by_key(|other| (other.pg, other.index, other.chunk_offset));
        (older, is_complete)
    }

    fn split_by_birth(&self, extent: Extent, older: &[Extent], is_complete: bool, born: &mut Vec<Extent>) {
        let granule = extent.granule();
        let (first, end) = extent.granules();
        let from = older.partition_point(|other| (other.pg, other.index) < (extent.pg, extent.index));
        let mut ranges: Vec<(u64, u64, u64)> = Vec::new();
        for other in older[from..].iter().take_while(|other| other.is_same_chunk(&extent)) {
            let (from, to) = other.granules();
            let (from, to) = (from.max(first), to.min(end));
            if from < to {
                ranges.push((from, to, other.birth));
            }
        }
        // Granules of which it has a part only may have older bytes that are not known here: they are kept longer than
        // they had to be.
        let ends = [(first, extent.chunk_offset), (end - 1, extent.chunk_end())];
        for (at, _) in ends.into_iter().filter(|(_, offset)| !offset.is_multiple_of(granule)) {
            let (blocks, next) = extent.blocks_of((at, at + 1));
            let is_known = ranges.iter().any(|(from, to, _)| (*from..*to).contains(&at));
            if !is_known && (!is_complete || self.is_shared(extent.pg, extent.index, blocks, next)) {
                ranges.push((at, at + 1, 0));
            }
        }
        let mut cuts: Vec<u64> = ranges.iter().flat_map(|(from, to, _)| [*from, *to]).chain([first, end]).collect();
        cuts.sort_unstable();
        cuts.dedup();
        for pair in cuts.windows(2) {
            let older = ranges.iter().filter(|(from, to, _)| *from <= pair[0] && pair[1] <= *to);
            let birth = older.map(|(_, _, birth)| *birth).min().unwrap_or(extent.birth);
            let place = |at: u64| {
                (at * granule).clamp(extent.chunk_offset, extent.chunk_end()) - extent.chunk_offset + extent.file_offset
            };
            born.push(Extent { birth, ..extent.part(place(pair[0]), place(pair[1])) });
        }
    }

    /// Takes the references of shared pieces, of all at once: a granule has one reference of the file, whatever the
    /// births of those that touch it. What had its last one is as old as the oldest of them.
    pub(crate) fn drop_shared(&mut self, inode: u64, pieces: &[Extent]) {
        let mut freed = Vec::new();
        self.drop_references(inode, pieces, &mut freed);
        let mut by_birth: BTreeMap<u64, Vec<BlockRange>> = BTreeMap::new();
        for (pg, index, first, end) in joined(&mut freed) {
            let touching = pieces.iter().filter(|piece| piece.shared && (piece.pg, piece.index) == (pg, index));
            let touching: Vec<(u64, u64, u64)> = touching
                .map(|piece| (piece.blocks(), piece.birth))
                .filter(|((from, to), _)| *from < end && *to > first)
                .map(|((from, to), birth)| (from.max(first), to.min(end), birth))
                .collect();
            let mut cuts: Vec<u64> =
                touching.iter().flat_map(|(from, to, _)| [*from, *to]).chain([first, end]).collect();
            cuts.sort_unstable();
            cuts.dedup();
            for pair in cuts.windows(2) {
                let births = touching.iter().filter(|(from, to, _)| *from <= pair[0] && pair[1] <= *to);
                let birth = births.map(|(_, _, birth)| *birth).min().unwrap_or(0);
                by_birth.entry(birth).or_default().push((pg, index, pair[0], pair[1]));
            }
        }
        for (birth, mut blocks) in by_birth {
            self.let_go(birth, &mut blocks);
        }
    }

    /// Lets `collect` say for pieces of one birth after the other, oldest first, which blocks nothing names any more,
    /// and frees those or keeps them for snapshots.
    pub(crate) fn release_by_birth(
        &mut self,
        pieces: &[Extent],
        mut collect: impl FnMut(&mut Self, &[Extent], &mut Vec<BlockRange>),
    ) {
        let Some(first) = pieces.first() else { return };
        if pieces.iter().all(|piece| piece.birth == first.birth) {
            let mut freed = Vec::with_capacity(pieces.len());
            collect(self, pieces, &mut freed);
            return self.let_go(first.birth, &mut freed);
        }
        let mut births: Vec<u64> = pieces.iter().map(|piece| piece.birth).collect();
        births.sort_unstable();
        births.dedup();
        let mut done: Vec<BlockRange> = Vec::new();
        for birth in births {
            let of_birth: Vec<Extent> = pieces.iter().filter(|piece| piece.birth == birth).copied().collect();
            let mut freed = Vec::with_capacity(of_birth.len());
            collect(self, &of_birth, &mut freed);
            // What has older bytes in it went with those.
            subtract(&mut freed, &mut done);
            done.extend_from_slice(&freed);
            self.let_go(birth, &mut freed);
        }
    }
}
