//! Cutting a file with very many extents: the size changes at once, the extents behind it go in bounded steps.
//!
//! A file being cut has a mark (key: inode 0, cut, inode; value: 0x10 and a file offset as a varint). Extents from the
//! mark on are stale: they are not part of the file, whatever its size, and `ReclaimBatch` frees them.
//!
//! Invariants: the size is at most the mark; no extent crosses it; before something is written or the file grows beyond
//! the mark, what is stale up to there is freed and the mark moved. Where that is too much for one entry, the request
//! is told to come again (`Overloaded`) while the leader's batches go on. So no entry frees more than a bounded number
//! of extents, and nothing stale ever becomes part of the file again.
use crate::dead::Budget;
use crate::encoding::varint::Cursor;
use crate::encoding::{Extent, Inode};
use crate::error::{OpError, Result};
use crate::key::{self, Kind};
use crate::limits::CUT_EXTENTS_MAX;
use crate::message::writer::put_varint;
use crate::namespace::Namespace;
use cairn_types::ErrorCode;

const TAG: u8 = 0x10;
/// To find out whether a partly covered block is free can take looking at many extents: one that is cut off counts as
/// so many that are just removed.
const CUT_COST: usize = 8;

const BEING_CUT: OpError =
    OpError::new(ErrorCode::Overloaded, "the file was cut and its old contents are still being freed; try again");

/// Reads a mark; `None` if no version wrote it.
pub(crate) fn decode_mark(value: &[u8]) -> Option<u64> {
    let mut cursor = Cursor::new(value);
    let tag = cursor.byte()?;
    let mark = cursor.varint()?;
    cursor.end()?;
    (tag == TAG).then_some(mark)
}

impl Namespace {
    /// Files that are being cut.
    pub(crate) fn count_cuts(&self) -> u64 {
        let prefix = key::prefix(0, Kind::Cut);
        let mut range = self.tree.prefix(prefix.as_bytes());
        let mut count = 0;
        while range.next().is_some() {
            count += 1;
        }
        count
    }

    /// From where on the extents of a file are stale.
    fn cut_mark(&self, id: u64) -> Result<Option<u64>> {
        if self.cuts == 0 {
            return Ok(None);
        }
        self.tree.get(key::cut(id).as_bytes()).map(|value| decode_mark(value).ok_or(OpError::DAMAGED)).transpose()
    }

    fn set_cut_mark(&mut self, id: u64, mark: u64) {
        let value = &mut self.scratch.value;
        value.clear();
        value.push(TAG);
        put_varint(value, mark);
        self.cuts += u64::from(self.tree.put(key::cut(id).as_bytes(), value));
    }

    /// The file has nothing stale any more, or goes as a whole.
    pub(crate) fn forget_cut(&mut self, id: u64) {
        if self.cuts > 0 {
            self.cuts -= u64::from(self.tree.remove(key::cut(id).as_bytes()));
        }
    }

    /// Whether a file has stale extents.
    pub(crate) fn is_being_cut(&self, id: u64) -> Result<bool> {
        Ok(self.cut_mark(id)?.is_some())
    }

    /// Up to `limit` extents that overlap `from..to`, or `None` if there are more.
    pub(crate) fn few_extents(&self, id: u64, from: u64, to: u64, limit: usize) -> Result<Option<Vec<Extent>>> {
        let mut found = Vec::new();
        self.visit_extents(id, from, to, |extent| {
            found.push(extent);
            found.len() <= limit
        })?;
        Ok((found.len() <= limit).then_some(found))
    }

    /// Takes everything from `size` on out of a file; little at once, the rest later.
    pub(crate) fn cut_off(&mut self, id: u64, inode: &mut Inode, size: u64) -> Result<()> {
        let end = self.cut_mark(id)?.unwrap_or(u64::MAX);
        let lost = match self.few_extents(id, size, end, CUT_EXTENTS_MAX)? {
            Some(all) => self.remove_behind(id, size, &all)?,
            None => {
                // What crosses the mark would be half stale.
                let mut crossing = Vec::new();
                self.visit_extents(id, size, size.saturating_add(1), |extent| {
                    crossing.extend((extent.file_offset < size).then_some(extent));
                    true
                })?;
                let lost = self.remove_behind(id, size, &crossing)?;
                self.set_cut_mark(id, size);
                lost
            }
        };
        self.lose_stored(inode, lost);
        Ok(())
    }

    /// Makes room for contents or a size up to `end`: what is stale up to there is freed now, and the attributes, which
    /// have not been changed yet, are stored. Changes nothing if that is too much.
    pub(crate) fn clear_stale(&mut self, id: u64, inode: &mut Inode, end: u64) -> Result<()> {
        let Some(mark) = self.cut_mark(id)? else { return Ok(()) };
        // What only meets the end must go too, or it would be joined with what is written.
        let end = end.saturating_add(1);
        if end <= mark {
            return Ok(());
        }
        let stale = self.few_extents(id, mark, end, CUT_EXTENTS_MAX)?.ok_or(BEING_CUT)?;
        let lost = self.remove_behind(id, mark, &stale)?;
        self.lose_stored(inode, lost);
        self.put_inode(id, inode);
        match self.few_extents(id, end, u64::MAX, 0)? {
            Some(_) => self.forget_cut(id),
            None => self.set_cut_mark(id, end),
        }
        Ok(())
    }

    /// A step of the leader's work on the first file that is being cut; false when there is none.
    pub(crate) fn reclaim_cut(&mut self, budget: &mut Budget) -> Result<bool> {
        let Some(id) = self.first_listed(Kind::Cut) else { return Ok(false) };
        let mark = self.cut_mark(id)?.ok_or(OpError::DAMAGED)?;
        let limit = (budget.extents / CUT_COST).max(1);
        let mut stale = Vec::new();
        let mut is_last = true;
        self.visit_extents(id, mark, u64::MAX, |extent| {
            is_last = stale.len() < limit;
            stale.extend(is_last.then_some(extent));
            is_last
        })?;
        let lost = self.remove_behind(id, mark, &stale)?;
        if lost > 0 {
            let mut inode = self.stored_inode(id)?;
            self.lose_stored(&mut inode, lost);
            self.put_inode(id, &inode);
        }
        if is_last {
            self.forget_cut(id);
            budget.take_inode();
        }
        budget.extents = budget.extents.saturating_sub(stale.len() * CUT_COST);
        Ok(true)
    }
}

#[cfg(test)]
mod tests;
