//! Statfs: totals of the partition, O(1).
use crate::error::Result;
use crate::message::writer::put_number;
use crate::namespace::Namespace;

impl Namespace {
    pub(crate) fn statfs(&self, out: &mut Vec<u8>) -> Result<()> {
        put_number(out, 1, self.counters.inodes);
        put_number(out, 2, self.counters.file_bytes);
        put_number(out, 3, self.counters.stored_bytes);
        put_number(out, 4, self.memory_bytes());
        put_number(out, 5, self.counters.directories);
        if let Some((bytes_max, inodes_max)) = self.volume_quota {
            put_number(out, 6, bytes_max);
            put_number(out, 7, inodes_max);
        }
        put_number(out, 8, self.space_being_freed());
        Ok(())
    }

    /// Files and runs of blocks that were removed and whose space is not free yet.
    fn space_being_freed(&self) -> u64 {
        let found = self.reclaimable();
        found.inodes + found.cuts + self.deferred_count() + self.counters.free_records
    }
}
