//! [`Grown`]: files whose extent maps grew, and those of them that are due to be counted.
//!
//! Every member notes what operations tell while they are applied, so that a new leader knows too; after a restart the
//! leader's first walk knows. A file is due when it got so many extents that it may be beyond its bound: what is left
//! up to there was counted the last time. So a file of a million extents is counted again after some hundred thousand
//! more. Memory: [`NOTES_MAX`] files; those that grew least are forgotten first. Not here: counting, and what follows
//! (`defragment.rs`).

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;

/// Files that are remembered.
const NOTES_MAX: usize = 64 << 10;

/// More extents than a file has to get before it is counted at all.
pub(crate) const EXTENTS_FREE: u64 = 64;

#[derive(Clone, Copy, Debug)]
struct Note {
    gained: u64,
    /// With so many it is due.
    needed: u64,
}

#[derive(Default)]
struct Table {
    notes: BTreeMap<u64, Note>,
    due: BTreeSet<u64>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Grown {
    table: Mutex<Table>,
}

impl Grown {
    /// Files and the extents that they got.
    pub(crate) fn note(&self, grown: &[(u64, u64)]) {
        if grown.is_empty() {
            return;
        }
        let mut table = self.table.lock();
        for (inode, gained) in grown {
            let note = table.notes.entry(*inode).or_insert(Note { gained: 0, needed: EXTENTS_FREE });
            note.gained = note.gained.saturating_add(*gained);
            if note.gained >= note.needed {
                table.due.insert(*inode);
            }
        }
        if table.notes.len() > NOTES_MAX {
            table.forget_half();
        }
    }

    /// The next file that is due. Whoever takes it counts it and says so.
    pub(crate) fn take_due(&self) -> Option<u64> {
        let mut table = self.table.lock();
        let inode = table.due.pop_first()?;
        table.notes.remove(&inode);
        Some(inode)
    }

    /// A file was counted: it is due again when it got so many more extents.
    pub(crate) fn counted(&self, inode: u64, more: u64) {
        let mut table = self.table.lock();
        let needed = more.max(EXTENTS_FREE);
        table.notes.entry(inode).or_insert(Note { gained: 0, needed }).needed = needed;
    }
}

impl Table {
    fn forget_half(&mut self) {
        let mut gained: Vec<u64> = self.notes.values().map(|note| note.gained).collect();
        let (_, middle, _) = gained.select_nth_unstable(NOTES_MAX / 2);
        let middle = *middle;
        // Fewer than all that are alike, so that it does not happen again at once.
        let mut left = NOTES_MAX / 4;
        self.notes.retain(|_, note| {
            let stays = note.gained > middle || (note.gained == middle && left > 0);
            left -= usize::from(stays && note.gained == middle);
            stays
        });
        let notes = &self.notes;
        self.due.retain(|inode| notes.contains_key(inode));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files would be counted at each of their writes, or never.
    #[test]
    fn files_are_due_when_they_may_be_beyond_their_bound() {
        let grown = Grown::default();
        for _ in 0..EXTENTS_FREE - 1 {
            grown.note(&[(7, 1), (9, 0)]);
        }
        assert_eq!(grown.take_due(), None);
        grown.note(&[(7, 1)]);
        assert_eq!(grown.take_due(), Some(7));
        assert_eq!(grown.take_due(), None);
        grown.counted(7, 1000);
        grown.note(&[(7, 999)]);
        assert_eq!(grown.take_due(), None);
        grown.note(&[(7, 1)]);
        assert_eq!(grown.take_due(), Some(7));
        // Written while it was counted.
        grown.note(&[(7, 80)]);
        grown.counted(7, 0);
        grown.note(&[(7, 1)]);
        assert_eq!(grown.take_due(), Some(7));
    }

    /// Memory would grow with the number of files; or those that matter would be forgotten.
    #[test]
    fn those_that_grew_least_are_forgotten() {
        let grown = Grown::default();
        grown.note(&[(1, 50)]);
        for inode in 0..3 * NOTES_MAX as u64 {
            grown.note(&[(1000 + inode, 1 + inode % 3)]);
            assert!(grown.table.lock().notes.len() <= NOTES_MAX);
        }
        grown.note(&[(1, 14)]);
        assert_eq!(grown.take_due(), Some(1));
        let table = grown.table.lock();
        assert!(table.notes.len() >= NOTES_MAX / 4, "{}", table.notes.len());
    }
}
