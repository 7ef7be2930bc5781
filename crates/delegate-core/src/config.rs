//! Bounds of a delegation at its holder.

use std::time::Duration;

use cairn_meta_core::limits::BATCH_ITEMS_MAX;

/// See the fields.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Items of a batch.
    pub batch_items: usize,
    /// Bytes of a batch. An operation whose request is larger is none for the holder.
    pub batch_bytes: usize,
    /// What is as old is stored, though there is not much of it.
    pub flush_age: Duration,
    /// While something is older, nothing more is answered.
    pub queue_age: Duration,
    /// While as much waits, nothing more is answered.
    pub queue_bytes: usize,
    /// How long the session lives behind its last renewal.
    pub lease: Duration,
    /// Not used for so long, it ends.
    pub idle: Duration,
    /// With more inodes in memory it ends.
    pub inodes: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            batch_items: BATCH_ITEMS_MAX,
            batch_bytes: 256 << 10,
            flush_age: Duration::from_millis(500),
            queue_age: Duration::from_secs(2),
            queue_bytes: 16 << 20,
            lease: Duration::from_secs(20),
            idle: Duration::from_mins(5),
            inodes: 1 << 20,
        }
    }
}
