//! [`WalStats`]: counters of the log, readable from any thread.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counters since the start of the process.
#[derive(Debug, Default)]
pub struct WalStats {
    batches: AtomicU64,
    records: AtomicU64,
    bytes: AtomicU64,
    write_nanos: AtomicU64,
    segments: AtomicU64,
}

impl WalStats {
    pub(super) fn batch(&self, records: u64, bytes: u64, took: Duration) {
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.records.fetch_add(records, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.write_nanos.fetch_add(nanos, Ordering::Relaxed);
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
}
