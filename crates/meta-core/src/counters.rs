//! Totals that are kept exact with every change, so that statfs is O(1).

/// Totals of a partition. What is on its way to being reclaimed counts until it is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    pub inodes: u64,
    pub directories: u64,
    /// Sum of the sizes of regular files.
    pub file_bytes: u64,
    /// Sum of the bytes that extents cover.
    pub stored_bytes: u64,
    /// (session, inode) pairs.
    pub holds: u64,
    /// Inodes that wait for `ReclaimBatch`.
    pub dead_inodes: u64,
    /// Directories among them.
    pub dead_directories: u64,
    /// Ended sessions whose holds wait for `ReclaimBatch`.
    pub dead_sessions: u64,
    /// Free records whose members have not all answered.
    pub free_records: u64,
}

impl Counters {
    /// In the order of the checkpoint's header.
    pub(crate) const fn to_array(self) -> [u64; 9] {
        [
            self.inodes,
            self.directories,
            self.file_bytes,
            self.stored_bytes,
            self.holds,
            self.dead_inodes,
            self.dead_directories,
            self.dead_sessions,
            self.free_records,
        ]
    }
    pub(crate) const fn from_array(all: [u64; 9]) -> Self {
        let [
            inodes,
            directories,
            file_bytes,
            stored_bytes,
            holds,
            dead_inodes,
            dead_directories,
            dead_sessions,
            free_records,
        ] = all;
        Self {
            inodes,
            directories,
            file_bytes,
            stored_bytes,
            holds,
            dead_inodes,
            dead_directories,
            dead_sessions,
            free_records,
        }
    }
}
