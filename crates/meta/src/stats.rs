//! [`MetaStats`]: what the role counts, for the metrics. Plain counters; nothing here is waited for.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use cairn_wire::Opcode;

use crate::striped::StripedCounters;

/// Upper bounds of the latency buckets, in microseconds; beyond the last is one more.
pub(crate) const LATENCY_BOUNDS_US: [u64; 10] =
    [100, 250, 500, 1_000, 2_500, 5_000, 10_000, 50_000, 250_000, 1_000_000];
const FIRST: u16 = 0x0400;
const COUNT: usize = 0x200;

/// Counters since the start of the role.
pub struct MetaStats {
    /// By opcode, from 0x0400 on.
    ops: StripedCounters,
    /// Mutations from their arrival to their answer.
    latency: [AtomicU64; LATENCY_BOUNDS_US.len() + 1],
    latency_sum_us: AtomicU64,
    pub(crate) errors: AtomicU64,
    pub(crate) not_leader: AtomicU64,
    pub(crate) overloaded: AtomicU64,
    pub(crate) unknown: AtomicU64,
    pub(crate) sessions_expired: AtomicU64,
    pub(crate) delegations_taken: AtomicU64,
    pub(crate) frees_sent: AtomicU64,
    pub(crate) frees_done: AtomicU64,
    pub(crate) free_failures: AtomicU64,
    pub(crate) reclaim_entries: AtomicU64,
    /// Files of which the last check found bytes lost.
    pub(crate) lost_files: AtomicU64,
    pub(crate) garbage_passes: AtomicU64,
    pub(crate) garbage_listed: AtomicU64,
    pub(crate) garbage_blocks: AtomicU64,
    pub(crate) compacted_files: AtomicU64,
    pub(crate) compacted_bytes: AtomicU64,
    pub(crate) compaction_kept: AtomicU64,
    pub(crate) appends_ended: AtomicU64,
    pub(crate) defragmented_files: AtomicU64,
    pub(crate) defragmented_bytes: AtomicU64,
    pub(crate) defragmented_extents: AtomicU64,
    pub(crate) defragmentation_kept: AtomicU64,
    pub(crate) encoded_files: AtomicU64,
    pub(crate) encoded_bytes: AtomicU64,
    /// Of those, as shards where they lay.
    pub(crate) encoded_together_bytes: AtomicU64,
    pub(crate) encoding_freed_bytes: AtomicU64,
    pub(crate) encoding_kept: AtomicU64,
    pub(crate) encoding_left: AtomicU64,
    pub(crate) volatile_cut: AtomicU64,
    /// Operations across partitions that were decided here, attempts that were begun anew, locks that were left over
    /// and resolved.
    pub(crate) across_decided: AtomicU64,
    pub(crate) across_again: AtomicU64,
    pub(crate) across_resolved: AtomicU64,
    /// Tries to take snapshots by schedule that failed.
    pub(crate) schedule_failures: AtomicU64,
}

impl Default for MetaStats {
    fn default() -> Self {
        Self {
            ops: StripedCounters::new(COUNT),
            latency: Default::default(),
            latency_sum_us: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            not_leader: AtomicU64::new(0),
            overloaded: AtomicU64::new(0),
            unknown: AtomicU64::new(0),
            sessions_expired: AtomicU64::new(0),
            delegations_taken: AtomicU64::new(0),
            frees_sent: AtomicU64::new(0),
            frees_done: AtomicU64::new(0),
            free_failures: AtomicU64::new(0),
            reclaim_entries: AtomicU64::new(0),
            lost_files: AtomicU64::new(0),
            garbage_passes: AtomicU64::new(0),
            garbage_listed: AtomicU64::new(0),
            garbage_blocks: AtomicU64::new(0),
            compacted_files: AtomicU64::new(0),
            compacted_bytes: AtomicU64::new(0),
            compaction_kept: AtomicU64::new(0),
            appends_ended: AtomicU64::new(0),
            defragmented_files: AtomicU64::new(0),
            defragmented_bytes: AtomicU64::new(0),
            defragmented_extents: AtomicU64::new(0),
            defragmentation_kept: AtomicU64::new(0),
            encoded_files: AtomicU64::new(0),
            encoded_bytes: AtomicU64::new(0),
            encoded_together_bytes: AtomicU64::new(0),
            encoding_freed_bytes: AtomicU64::new(0),
            encoding_kept: AtomicU64::new(0),
            encoding_left: AtomicU64::new(0),
            volatile_cut: AtomicU64::new(0),
            across_decided: AtomicU64::new(0),
            across_again: AtomicU64::new(0),
            across_resolved: AtomicU64::new(0),
            schedule_failures: AtomicU64::new(0),
        }
    }
}

/// Adds one.
pub(crate) fn count(counter: &AtomicU64) {
    add(counter, 1);
}

/// Adds some.
pub(crate) fn add(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Relaxed);
}

impl MetaStats {
    pub(crate) fn op(&self, opcode: Opcode) {
        self.ops.count(usize::from(opcode.code().wrapping_sub(FIRST)));
    }

    /// Operations of this kind so far.
    pub fn ops(&self, opcode: Opcode) -> u64 {
        self.ops.sum(usize::from(opcode.code().wrapping_sub(FIRST)))
    }

    pub(crate) fn mutation_took(&self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = LATENCY_BOUNDS_US.iter().position(|bound| us <= *bound).unwrap_or(LATENCY_BOUNDS_US.len());
        count(&self.latency[bucket]);
        add(&self.latency_sum_us, us);
    }

    /// Mutations by latency bucket, and the sum of all in microseconds.
    pub(crate) fn latency(&self) -> (Vec<u64>, u64) {
        (self.latency.iter().map(|bucket| bucket.load(Relaxed)).collect(), self.latency_sum_us.load(Relaxed))
    }

    /// Sessions ended because nothing was heard of them.
    pub fn sessions_expired(&self) -> u64 {
        self.sessions_expired.load(Relaxed)
    }

    /// Delegations that were taken from holders which did not end them.
    pub fn delegations_taken(&self) -> u64 {
        self.delegations_taken.load(Relaxed)
    }

    /// Free records that all members answered.
    pub fn frees_done(&self) -> u64 {
        self.frees_done.load(Relaxed)
    }

    /// Mutations refused because too much waited.
    pub fn overloaded(&self) -> u64 {
        self.overloaded.load(Relaxed)
    }
}
