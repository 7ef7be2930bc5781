//! Chunks that are gone since the process began: a late repeat of their first append must not make them again, and no
//! copy of somebody who has not heard of it yet.
//!
//! What was here may have been less than what others have: so it is known up to where it was freed.

use std::collections::BTreeMap;

use cairn_types::CHUNK_SIZE_MAX;

/// Indices that are remembered one by one in an epoch; beyond it all below the lowest count as gone.
const DELETED_MAX: usize = 65_536;
/// Of them the latest that the next epoch remembers, for whoever has not heard of them yet.
const KEPT_MAX: u64 = 4096;

/// As named above.
#[derive(Debug, Default)]
pub struct Deleted {
    /// Up to where, and as the how manyth.
    indices: BTreeMap<u32, (u64, u64)>,
    below: u32,
    count: u64,
}

impl Deleted {
    /// It is gone: all of it up to `length` was freed.
    pub fn note(&mut self, index: u32, length: u64) {
        self.count += 1;
        let known = self.indices.entry(index).or_default();
        *known = (known.0.max(length), self.count);
        if self.indices.len() > DELETED_MAX
            && let Some((lowest, _)) = self.indices.pop_first()
        {
            self.below = self.below.max(lowest + 1);
        }
    }

    /// A new epoch: what counted as gone for want of room is looked for again.
    pub fn next_epoch(&mut self) {
        self.below = 0;
        let count = self.count;
        self.indices.retain(|_, (_, at)| count - *at < KEPT_MAX);
    }

    /// Whether it is.
    pub fn contains(&self, index: u32) -> bool {
        index < self.below || self.indices.contains_key(&index)
    }

    /// Whether all of it is, also what others have more of it.
    pub fn is_whole(&self, index: u32) -> bool {
        index < self.below || self.freed_up_to(index) >= CHUNK_SIZE_MAX
    }

    /// Up to where it was freed; 0: it was not, as far as is remembered.
    pub fn freed_up_to(&self, index: u32) -> u64 {
        self.indices.get(&index).map_or(0, |(length, _)| *length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was freed would be copied again in the next epoch, or memory would grow for as long as the process lives.
    #[test]
    fn the_latest_are_remembered_over_epochs() {
        let mut deleted = Deleted::default();
        // The first one is freed once more, up to its end.
        deleted.note(7, 4096);
        (1000..1000 + KEPT_MAX as u32).for_each(|index| deleted.note(index, 8192));
        deleted.note(7, CHUNK_SIZE_MAX);
        deleted.note(8, 0);
        assert!(deleted.is_whole(7) && deleted.contains(1000) && deleted.contains(8));
        deleted.next_epoch();
        assert!(deleted.is_whole(7) && deleted.contains(8) && !deleted.contains(6));
        assert_eq!((deleted.freed_up_to(1000), deleted.freed_up_to(1001)), (0, 0), "the oldest went");
        assert_eq!((deleted.freed_up_to(1002), deleted.is_whole(1002)), (8192, false));
        assert_eq!(deleted.indices.len() as u64, KEPT_MAX);
        // Beyond the bound of an epoch all below the lowest count as gone, until the next one.
        (5000..5001 + DELETED_MAX as u32).for_each(|index| deleted.note(index, 1));
        assert!(deleted.contains(6) && deleted.is_whole(6));
        deleted.next_epoch();
        assert!(!deleted.contains(6));
    }
}
