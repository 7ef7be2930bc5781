//! How many handles of a session hold an inode: it is held once in the log, however often it is open.
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// Handles of one session by inode.
#[derive(Default)]
pub(crate) struct HoldCounts {
    counts: Mutex<BTreeMap<u64, u32>>,
}

impl HoldCounts {
    pub(crate) fn add(&self, inode: u64) {
        *self.counts.lock().entry(inode).or_default() += 1;
    }

    /// One handle less, if there is one. Whether there was.
    pub(crate) fn take(&self, inode: u64) -> bool {
        let mut counts = self.counts.lock();
        let Some(count) = counts.get_mut(&inode) else { return false };
        *count -= 1;
        if *count == 0 {
            counts.remove(&inode);
        }
        true
    }

    /// One handle less. Whether it was the last one; false also for what this session never held.
    pub(crate) fn remove(&self, inode: u64) -> bool {
        let mut counts = self.counts.lock();
        let Some(count) = counts.get_mut(&inode) else { return false };
        *count -= 1;
        let last = *count == 0;
        if last {
            counts.remove(&inode);
        }
        last
    }
}
