//! [`DiskConfig`]: sizes and bounds of one disk's store, each with its default. Every queue of the store is bounded
//! here.

use std::time::Duration;

/// Smallest journal: room for a few batches beside those that are being written home.
pub const JOURNAL_BYTES_MIN: u64 = 1 << 20;
/// Largest journal: it is read into memory at a start.
pub const JOURNAL_BYTES_MAX: u64 = 1 << 30;

/// How a disk is used.
#[derive(Debug, Clone)]
pub struct DiskConfig {
    /// Size of the journal's ring; takes effect when it is made.
    pub journal_bytes: u64,
    /// Appends up to this size go through the journal; larger ones straight to the chunk file.
    pub journal_append_max: usize,
    /// Records of one group commit.
    pub batch_bytes_max: usize,
    /// Records that nobody waits for, those of appends without a sync, wait so long for others to share a group commit.
    pub journal_linger: Duration,
    /// Bytes that are in the journal's queue or not yet written home; appends wait beyond it.
    pub overlay_bytes_max: usize,
    /// Changes that wait for a thread of the disk; further ones are refused as overload.
    pub queue_ops_max: usize,
    /// Payload bytes of those.
    pub queue_bytes_max: usize,
    /// Reads that wait for a thread of the disk; further ones are refused as overload.
    pub reads_max: usize,
    /// Threads that carry out changes.
    pub write_threads: usize,
    /// Threads that carry out reads.
    pub read_threads: usize,
    /// Reads bypass the page cache.
    pub direct_reads: bool,
    /// Space is reserved in steps of this size ahead of the end of an open chunk.
    pub allocate_step: u64,
    /// New data is refused when less than this would stay free.
    pub reserve_bytes: u64,
    /// Chunks whose files are kept open.
    pub open_files_max: usize,
    /// Chunks whose CRC tables are kept in memory although nothing is pending (each up to 64 KiB).
    pub tables_max: usize,
    /// What is in the journal is written home at the latest after this time.
    pub flush_age: Duration,
    /// A disk that completes nothing for so long, with operations under way, stands still: it is left out until it goes
    /// on. Longer than a flush of a disk's own cache should take.
    pub stall_after: Duration,
}

impl Default for DiskConfig {
    fn default() -> Self {
        Self {
            journal_bytes: 64 << 20,
            journal_append_max: 64 << 10,
            batch_bytes_max: 1 << 20,
            journal_linger: Duration::from_millis(25),
            overlay_bytes_max: 16 << 20,
            queue_ops_max: 1024,
            queue_bytes_max: 64 << 20,
            reads_max: 1024,
            write_threads: 2,
            read_threads: 2,
            direct_reads: false,
            allocate_step: 8 << 20,
            reserve_bytes: 256 << 20,
            open_files_max: 512,
            tables_max: 256,
            flush_age: Duration::from_secs(5),
            stall_after: Duration::from_secs(3),
        }
    }
}
