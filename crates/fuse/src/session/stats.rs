//! Counters and latencies of each operation, without locks.
use crate::abi::opcode::Opcode;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Buckets by powers of two: the first is below 1 µs, the last above 2³⁰ µs.
const BUCKETS: usize = 32;

struct OpStats {
    count: AtomicU64,
    errors: AtomicU64,
    micros: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

/// Of all operations.
pub struct Stats {
    ops: Vec<OpStats>,
    started: Instant,
    pub read_bytes: AtomicU64,
    pub written_bytes: AtomicU64,
    pub interrupted: AtomicU64,
    pub timed_out: AtomicU64,
    /// Requests that another process had before.
    pub resent: AtomicU64,
}

/// What is shown of one operation. Times in µs; percentiles are the upper ends of their buckets.
#[derive(Clone, Debug, Serialize)]
pub struct OpReport {
    pub count: u64,
    pub errors: u64,
    pub mean_us: f64,
    pub p50_us: u64,
    pub p99_us: u64,
    pub max_us: u64,
}

/// What is shown of all.
#[derive(Clone, Debug, Serialize)]
pub struct StatsReport {
    pub worker_seconds: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
    pub interrupted: u64,
    pub timed_out: u64,
    pub resent: u64,
    pub operations: BTreeMap<String, OpReport>,
}

impl Default for Stats {
    fn default() -> Self {
        let op = || OpStats {
            count: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            micros: AtomicU64::new(0),
            buckets: std::array::from_fn(|_| AtomicU64::new(0)),
        };
        Self {
            ops: (0..Opcode::LIMIT).map(|_| op()).collect(),
            started: Instant::now(),
            read_bytes: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
            interrupted: AtomicU64::new(0),
            timed_out: AtomicU64::new(0),
            resent: AtomicU64::new(0),
        }
    }
}

impl Stats {
    pub fn note(&self, opcode: u32, took: Duration, failed: bool) {
        let Some(op) = self.ops.get(opcode as usize) else { return };
        let micros = took.as_micros() as u64;
        op.count.fetch_add(1, Ordering::Relaxed);
        op.micros.fetch_add(micros, Ordering::Relaxed);
        if failed {
            op.errors.fetch_add(1, Ordering::Relaxed);
        }
        op.buckets[bucket(micros)].fetch_add(1, Ordering::Relaxed);
    }
    pub fn report(&self) -> StatsReport {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let operations = Opcode::ALL
            .into_iter()
            .filter(|opcode| get(&self.ops[*opcode as usize].count) > 0)
            .map(|opcode| (opcode.name(), self.ops[opcode as usize].report()))
            .collect();
        StatsReport {
            worker_seconds: self.started.elapsed().as_secs(),
            read_bytes: get(&self.read_bytes),
            written_bytes: get(&self.written_bytes),
            interrupted: get(&self.interrupted),
            timed_out: get(&self.timed_out),
            resent: get(&self.resent),
            operations,
        }
    }
}

impl OpStats {
    fn report(&self) -> OpReport {
        let buckets: Vec<u64> = self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).collect();
        let (count, micros) = (self.count.load(Ordering::Relaxed), self.micros.load(Ordering::Relaxed));
        let total: u64 = buckets.iter().sum();
        let at = |share: f64| {
            let mut left = (total as f64 * share).ceil() as u64;
            let found = buckets.iter().position(|n| {
                left = left.saturating_sub(*n);
                left == 0
            });
            1 << found.unwrap_or(BUCKETS - 1)
        };
        OpReport {
            count,
            errors: self.errors.load(Ordering::Relaxed),
            mean_us: micros as f64 / count.max(1) as f64,
            p50_us: at(0.5),
            p99_us: at(0.99),
            max_us: 1 << buckets.iter().rposition(|n| *n > 0).unwrap_or(0),
        }
    }
}

/// Smallest b with `micros` < 2^b.
fn bucket(micros: u64) -> usize {
    ((u64::BITS - micros.leading_zeros()) as usize).min(BUCKETS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Latencies would be shown in wrong orders of magnitude.
    #[test]
    fn percentiles_are_ends_of_buckets() {
        let stats = Stats::default();
        for _ in 0..99 {
            stats.note(Opcode::Read as u32, Duration::from_micros(100), false);
        }
        stats.note(Opcode::Read as u32, Duration::from_millis(9), true);
        stats.note(9999, Duration::ZERO, false);
        let report = stats.report();
        let read = &report.operations["read"];
        assert_eq!((read.count, read.errors, read.p50_us, read.p99_us, read.max_us), (100, 1, 128, 128, 16384));
        assert_eq!(report.operations.len(), 1);
    }
}
