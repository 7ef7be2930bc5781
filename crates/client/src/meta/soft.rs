//! Files that a session has open by `Open` alone: without a log entry, kept alive by its keep-alives.
//!
//! The partition names what lost its last name and holder, the session holds what it has open of that, and only then
//! acknowledges; nothing is reclaimed before. Invariants: `acknowledged` passes an index only when everything that was
//! named up to it and is open here is held; an answer to an Open that is older than an index that is being acknowledged
//! is not taken (it is asked again), because its inode may have been named already.
use super::holds::HoldCounts;
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// Opens of one session, by partition.
#[derive(Default)]
pub(crate) struct SoftOpens {
    partitions: Mutex<BTreeMap<u32, Partition>>,
    /// Opens that a hold keeps alive, because this client leads the file or led it then.
    held: HoldCounts,
}

#[derive(Default)]
struct Partition {
    /// What the partition may forget.
    acknowledged: u64,
    /// What is going to be acknowledged: at least `acknowledged`.
    pending: u64,
    opens: BTreeMap<u64, Open>,
}

#[derive(Default)]
struct Open {
    count: u32,
    /// Held in the log since it lost its name.
    held: bool,
}

impl SoftOpens {
    /// Notes an open that holds the inode in the log.
    pub(crate) fn add_held(&self, inode: u64) {
        self.held.add(inode);
    }

    /// One of those less, if there is one: it is to be released.
    pub(crate) fn remove_held(&self, inode: u64) -> bool {
        self.held.take(inode)
    }

    /// Partitions where this session used Open.
    pub(crate) fn partitions(&self) -> Vec<u32> {
        self.partitions.lock().keys().copied().collect()
    }

    /// What the next request tells; `None` if Open was never used there.
    pub(crate) fn acknowledged(&self, partition: u32) -> Option<u64> {
        self.partitions.lock().get(&partition).map(|p| p.acknowledged)
    }

    /// Notes an answered Open that was read at `index`. False if it is too old: ask again.
    pub(crate) fn add(&self, partition: u32, inode: u64, index: u64) -> bool {
        let mut partitions = self.partitions.lock();
        let partition = partitions.entry(partition).or_default();
        if index < partition.pending {
            return false;
        }
        if partition.acknowledged == 0 {
            (partition.acknowledged, partition.pending) = (index, index);
        }
        partition.opens.entry(inode).or_default().count += 1;
        true
    }

    /// One handle less. True when it was the last one and the inode is held: it is to be released.
    pub(crate) fn remove(&self, partition: u32, inode: u64) -> bool {
        let mut partitions = self.partitions.lock();
        let Some(opens) = partitions.get_mut(&partition).map(|p| &mut p.opens) else { return false };
        let Some(open) = opens.get_mut(&inode) else { return false };
        open.count -= 1;
        if open.count > 0 {
            return false;
        }
        opens.remove(&inode).is_some_and(|open| open.held)
    }

    /// A keep-alive answered: which of the unlinked inodes have to be held before `index` is acknowledged.
    pub(crate) fn to_hold(&self, partition: u32, index: u64, unlinked: &[u64]) -> Vec<u64> {
        let mut partitions = self.partitions.lock();
        let partition = partitions.entry(partition).or_default();
        partition.pending = partition.pending.max(index);
        let is_open = |inode: &&u64| partition.opens.get(inode).is_some_and(|open| !open.held);
        unlinked.iter().filter(is_open).copied().collect()
    }

    /// The session holds the inode now. False when it was closed meanwhile: it is to be released again.
    pub(crate) fn held(&self, partition: u32, inode: u64) -> bool {
        let mut partitions = self.partitions.lock();
        let open = partitions.get_mut(&partition).and_then(|p| p.opens.get_mut(&inode));
        open.map(|open| open.held = true).is_some()
    }

    /// All that was named up to `index` is held or not open.
    pub(crate) fn acknowledge(&self, partition: u32, index: u64) {
        if let Some(partition) = self.partitions.lock().get_mut(&partition) {
            partition.acknowledged = partition.acknowledged.max(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file would be reclaimed under a reader whose Open was answered before the file was unlinked.
    #[test]
    fn an_answer_from_before_an_acknowledgement_is_not_taken() {
        let opens = SoftOpens::default();
        assert_eq!(opens.acknowledged(1), None);
        assert!(opens.add(1, 7, 10));
        assert_eq!(opens.acknowledged(1), Some(10));
        assert_eq!(opens.to_hold(1, 12, &[7, 8]), [7]);
        assert!(!opens.add(1, 8, 11), "8 was named at 12 already");
        assert!(opens.add(1, 9, 12));
        assert_eq!(opens.acknowledged(1), Some(10), "7 is not held yet");
        assert!(opens.held(1, 7));
        opens.acknowledge(1, 12);
        assert_eq!(opens.acknowledged(1), Some(12));
        assert!(!opens.remove(1, 9), "has a name: nothing to release");
        assert!(opens.remove(1, 7), "the last handle releases");
        assert!(!opens.held(1, 7), "closed meanwhile");
        assert!(!opens.remove(1, 7));
    }
}
