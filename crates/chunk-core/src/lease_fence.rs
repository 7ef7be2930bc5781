//! Keeps out overwrites under a file's lease that came to an end, once its primary has seen a newer one of that file.
//!
//! A client whose session ended sends nothing any more, but what it sent may still be on its way. Numbers of a file's
//! leases ascend, so a request under a lower one than was seen is late. What is known outlives epochs of the group, as
//! long as the process lives: a client that was stopped repeats its requests under a new epoch. Invariant: a request is
//! never taken after one of the same file with a higher number. Bound: [`FILES_MAX`] files exactly; those that were
//! seen first fall into [`BUCKETS`] common ones, where the highest number counts for all (some then write to new space
//! that need not).

use std::collections::BTreeMap;

/// Files of which the newest lease is known exactly.
pub const FILES_MAX: usize = 65_536;
/// Common places for those beyond.
pub const BUCKETS: u64 = 65_536;

/// The newest leases that a member has seen as primary.
#[derive(Debug, Default)]
pub struct LeaseFence {
    files: BTreeMap<u64, u64>,
    buckets: BTreeMap<u64, u64>,
}

impl LeaseFence {
    /// A request for a file (its inode) under a lease came. True if it may be done.
    pub fn admits(&mut self, inode: u64, lease: u64) -> bool {
        if inode == 0 && lease == 0 {
            // Of a caller without leases, who orders its overwrites by itself.
            return true;
        }
        let bucket = || self.buckets.get(&(inode % BUCKETS)).copied();
        let newest = self.files.get(&inode).copied().or_else(bucket).unwrap_or(0);
        if lease < newest {
            return false;
        }
        self.files.insert(inode, lease);
        if self.files.len() > FILES_MAX
            && let Some((file, number)) = self.files.pop_first()
        {
            let known = self.buckets.entry(file % BUCKETS).or_default();
            *known = number.max(*known);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A block that was acknowledged would be covered by an older one of a client that is gone.
    #[test]
    fn what_is_late_is_refused() {
        let mut fence = LeaseFence::default();
        assert!(fence.admits(0, 0) && fence.admits(0, 0));
        assert!(fence.admits(7, 3) && fence.admits(7, 3) && fence.admits(7, 9));
        assert!(!fence.admits(7, 3) && !fence.admits(7, 0));
        assert!(fence.admits(8, 1), "another file");
    }

    /// Memory would grow with the files that were ever overwritten, or an old one be forgotten.
    #[test]
    fn nothing_is_forgotten_in_bounded_memory() {
        let mut fence = LeaseFence::default();
        for inode in 1..=(FILES_MAX as u64 + 1000) {
            assert!(fence.admits(inode, 5));
        }
        assert_eq!(fence.files.len(), FILES_MAX);
        assert!(fence.buckets.len() as u64 <= BUCKETS);
        assert!((1..2000).all(|inode| !fence.admits(inode, 4)));
        assert!(fence.admits(1, 5), "it goes on under its own");
    }
}
