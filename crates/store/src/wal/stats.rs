//! [`WalStats`]: counters of the log, readable from any thread.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Buckets of the sync latency: bucket i counts syncs that took less than 2^i × 16 µs, the last one all others.
pub const SYNC_BUCKETS: usize = 16;

/// Counters since the start of the process.
#[derive(Debug, Default)]
pub struct WalStats {
    batches: AtomicU64,
    records: AtomicU64,
    bytes: AtomicU64,
    write_nanos: AtomicU64,
    segments: AtomicU64,
    sync: [AtomicU64; SYNC_BUCKETS],
}

impl WalStats {
    pub(super) fn batch(&self, records: u64, bytes: u64, took: Duration) {
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.records.fetch_add(records, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.write_nanos.fetch_add(nanos, Ordering::Relaxed);
        let bucket = (nanos / 16_000).checked_ilog2().map_or(0, |log| log as usize + 1);
        self.sync[bucket.min(SYNC_BUCKETS - 1)].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn set_segments(&self, count: u64) {
        self.segments.store(count, Ordering::Relaxed);
    }

    /// Batches written and synced.
    pub fn batches(&self) -> u64 {
        self.batches.load(Ordering::Relaxed)
    }

    /// Records in them.
    pub fn records(&self) -> u64 {
        self.records.load(Ordering::Relaxed)
    }

    /// Bytes written, with headers and padding.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Time spent in write and sync together.
    pub fn write_time(&self) -> Duration {
        Duration::from_nanos(self.write_nanos.load(Ordering::Relaxed))
    }

    /// Segment files in use (without spares).
    pub fn segments(&self) -> u64 {
        self.segments.load(Ordering::Relaxed)
    }

    /// Counts of write and sync latencies; see [`SYNC_BUCKETS`].
    pub fn sync_latencies(&self) -> [u64; SYNC_BUCKETS] {
        std::array::from_fn(|i| self.sync[i].load(Ordering::Relaxed))
    }
}
