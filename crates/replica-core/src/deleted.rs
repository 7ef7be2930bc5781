//! Chunks that are gone since the process began: a late repeat of their first append must not make them again, and no
//! copy of somebody who has not heard of it yet.
//!
//! What was here may have been less than what others have: so it is known up to where it was freed.

use std::collections::BTreeMap;

/// Indices that are remembered one by one; beyond it all below the lowest count as gone.
const DELETED_MAX: usize = 65_536;

/// As named above.
#[derive(Debug, Default)]
pub struct Deleted {
    indices: BTreeMap<u32, u64>,
    below: u32,
}

impl Deleted {
    /// It is gone: all of it up to `length` was freed.
    pub fn note(&mut self, index: u32, length: u64) {
        let known = self.indices.entry(index).or_default();
        *known = (*known).max(length);
        if self.indices.len() > DELETED_MAX
            && let Some((lowest, _)) = self.indices.pop_first()
        {
            self.below = self.below.max(lowest + 1);
        }
    }

    /// A new epoch: what counted as gone for want of room is looked for again.
    pub fn next_epoch(&mut self) {
        self.below = 0;
    }

    /// Whether it is.
    pub fn contains(&self, index: u32) -> bool {
        index < self.below || self.indices.contains_key(&index)
    }

    /// Up to where it was freed; 0: it was not, as far as is remembered.
    pub fn freed_up_to(&self, index: u32) -> u64 {
        self.indices.get(&index).copied().unwrap_or(0)
    }
}
