//! Which blocks snapshots keep, and what becomes of them when one is deleted.
//!
//! Of every block is known after which snapshot its oldest bytes were named first (`Extent::birth`), and when the last
//! name goes, the newest snapshot is the last one that may name it: it is *kept* under that snapshot's number if it was
//! born before, else freed. Nothing else has to be looked at: a block that any snapshot names was named by a file at
//! that moment, so it lies between birth and death. (The same is done by ZFS with lists of dead blocks; Ahrens and
//! others, "ZFS deadlists", OpenZFS.)
//!
//! What a deleted snapshot has, images and kept blocks, goes to the next older one that needs it, in bounded steps;
//! what none needs is freed.
//!
//! Invariant: a block is freed when no file names it and no snapshot between its birth and its death is left, and not
//! before. Not here: blocks that a clone out of a snapshot names anew (`lives`).
use crate::dead::Budget;
use crate::encoding::KeptRecord;
use crate::error::{OpError, Result};
use crate::extent_map::{BlockRange, joined};
use crate::key;
use crate::namespace::Namespace;

impl Namespace {
    /// After which snapshot what is named now is born.
    pub(crate) fn birth(&self) -> u64 {
        self.snapshots.newest().map_or(0, |newest| newest.number)
    }

    /// Blocks that nothing names any more: frees them, or keeps them for the snapshots that name them.
    pub(crate) fn let_go(&mut self, birth: u64, blocks: &mut Vec<BlockRange>) {
        match self.snapshots.newest() {
            Some(newest) if newest.number > birth => {
                for (pg, index, first_block, end) in joined(blocks) {
                    let record = KeptRecord { pg, index, first_block, blocks: end - first_block, birth };
                    self.keep(newest.number, record);
                    self.note_kept_again((pg, index, first_block, end));
                }
            }
            _ => {
                self.spare_kept(blocks);
                self.add_free_records(blocks);
            }
        }
    }

    fn keep(&mut self, number: u64, record: KeptRecord) {
        let value = &mut self.scratch.value;
        value.clear();
        record.encode(value);
        self.tree.put(key::kept(number, self.free_next).as_bytes(), value);
        self.free_next += 1;
        *self.snapshots.kept.entry(number).or_default() += record.blocks;
    }

    /// A step of deleting the first snapshot that is to go; false if there is none.
    pub(crate) fn reclaim_snapshot(&mut self, budget: &mut Budget) -> Result<bool> {
        let going = self.snapshots.list.iter().find(|(_, record)| record.deleting);
        let Some((&number, _)) = going else { return Ok(false) };
        let before = self.snapshots.before(number);
        let keys = self.tree.changed_in(number, budget.inodes);
        for key in &keys {
            self.tree.hand_down(key, number, before);
            budget.take_inode();
        }
        if !keys.is_empty() {
            return Ok(true);
        }
        let records = self.kept_by(number, budget.extents)?;
        budget.extents -= records.len();
        let mut freed = Vec::new();
        for (id, record) in &records {
            self.tree.remove(key::kept(number, *id).as_bytes());
            match before {
                Some(before) if before.number > record.birth => self.keep(before.number, *record),
                _ => freed.push((record.pg, record.index, record.first_block, record.first_block + record.blocks)),
            }
        }
        self.end_kept(&mut freed);
        self.add_free_records(&mut freed);
        let kept: u64 = records.iter().map(|(_, record)| record.blocks).sum();
        if let Some(all) = self.snapshots.kept.get_mut(&number) {
            *all -= kept;
        }
        if records.is_empty() {
            self.tree.remove(key::snapshot(number).as_bytes());
            self.snapshots.list.remove(&number);
            self.snapshots.kept.remove(&number);
            budget.take_inode();
        }
        Ok(true)
    }

    fn kept_by(&self, number: u64, max: usize) -> Result<Vec<(u64, KeptRecord)>> {
        let prefix = key::kept_by(number);
        let mut records = Vec::new();
        let mut range = self.tree.prefix(prefix.as_bytes());
        while records.len() < max
            && let Some((entry, value)) = range.next()
        {
            let id = key::number(&entry[prefix.as_bytes().len()..]).ok_or(OpError::DAMAGED)?;
            records.push((id, KeptRecord::decode(value).ok_or(OpError::DAMAGED)?));
        }
        Ok(records)
    }
}
