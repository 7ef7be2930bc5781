//! Blocks that were cloned out of a snapshot when no file had them any more: they live again, and the snapshot keeps
//! them all the same.
//!
//! What a snapshot keeps is a list of blocks that no file names (`snapshots`). A clone out of a snapshot names some of
//! them again: each life ends on its own, with a record of what is kept of its own where a snapshot was taken in it. So
//! such blocks have a [`ShareRecord`] that counts, beside the places of files, the records by which snapshots keep them
//! (`kept`).
//!
//! Invariants: `kept` of a block is the number of records that keep it, or 0 where that is at most one and no file
//! names the block; a block is freed when its last record goes and no place names it, or its last place goes and no
//! record keeps it. To find out by which record a block is kept nothing has to be looked through. Not here: which
//! blocks of a snapshot no file has (`ops/clone_then`).
use crate::extent_map::{BlockRange, subtract};
use crate::namespace::Namespace;
use crate::shares::Owners;

impl Namespace {
    /// A file is going to name blocks that until now only one record of a snapshot had. Two extents may touch the same
    /// one.
    pub(crate) fn note_return(&mut self, range: BlockRange) {
        self.change_owners(range, |owners| Owners { kept: owners.kept.max(1), ..owners });
    }

    /// Blocks are kept by one more record.
    pub(crate) fn note_kept_again(&mut self, range: BlockRange) {
        for known in self.recorded(range) {
            self.change_owners(known, |owners| Owners { kept: owners.kept + 1, ..owners });
        }
    }

    /// Blocks whose last name has gone: takes out those that a snapshot keeps.
    pub(crate) fn spare_kept(&self, freed: &mut Vec<BlockRange>) {
        let mut spared: Vec<BlockRange> = freed.iter().flat_map(|range| self.recorded(*range)).collect();
        subtract(freed, &mut spared);
    }

    /// Blocks that one record less keeps, once for each range that has them: leaves those that nobody else has.
    pub(crate) fn end_kept(&mut self, freed: &mut Vec<BlockRange>) {
        let mut left: Vec<BlockRange> = Vec::with_capacity(freed.len());
        for range in std::mem::take(freed) {
            let mut unknown = vec![range];
            let mut recorded = self.recorded(range);
            for known in recorded.iter().copied() {
                let (pg, index, ..) = known;
                let less = |owners: Owners| Owners { kept: owners.kept.saturating_sub(1), ..owners };
                let before = self.change_owners(known, less);
                let last = before.into_iter().filter(|(_, _, owners)| !less(*owners).has_any());
                left.extend(last.map(|(from, to, _)| (pg, index, from, to)));
            }
            subtract(&mut unknown, &mut recorded);
            left.append(&mut unknown);
        }
        *freed = left;
    }

    /// Parts of a range of which there are records.
    fn recorded(&self, (pg, index, first, end): BlockRange) -> Vec<BlockRange> {
        let records = self.share_records(pg, index, first, end);
        records.iter().map(|r| (pg, index, r.first_block.max(first), r.end_block().min(end))).collect()
    }
}
