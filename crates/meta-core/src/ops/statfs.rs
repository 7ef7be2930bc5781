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
        Ok(())
    }
}
