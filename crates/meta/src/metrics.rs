//! Metrics and health of the role, read when somebody scrapes.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};

use cairn_telemetry::{HealthCheck, MetricSource, Samples};
use cairn_wire::Opcode;

use crate::partition::Partition;
use crate::server::MetaServer;
use crate::stats::LATENCY_BOUNDS_US;

impl MetaServer {
    /// The role's metrics. The source does not keep the role alive.
    pub fn metrics(self: &Arc<Self>) -> MetricSource {
        let server = Arc::downgrade(self);
        Arc::new(move |samples| {
            if let Some(server) = Weak::upgrade(&server) {
                server.sample(samples);
            }
        })
    }

    /// For `/healthz`: the name, and what is wrong with the next step.
    pub fn health(self: &Arc<Self>) -> HealthCheck {
        let server = Arc::downgrade(self);
        Arc::new(move || {
            let health = Weak::upgrade(&server).map_or(Err("stopped".to_owned()), |server| server.check());
            ("meta".to_owned(), health)
        })
    }

    /// Partitions that this member should serve and does not, with the next step.
    pub(crate) fn stopped(&self) -> Vec<String> {
        let mut wrong: Vec<String> = self.failures().into_iter().map(|(id, why)| format!("{id}: {why}")).collect();
        for (id, partition) in self.partitions().read().iter() {
            if let Some(why) = partition.handle.status().trouble((*id).into(), self.node()) {
                wrong.push(format!("{id}: {why}"));
            }
        }
        wrong
    }

    fn check(&self) -> Result<(), String> {
        let mut wrong = self.stopped();
        for (id, partition) in self.partitions().read().iter() {
            let status = partition.handle.status();
            if status.trouble((*id).into(), self.node()).is_none()
                && !status.leads
                && partition.handle.leader().is_none()
            {
                wrong.push(format!("{id} has no leader; check that most of its members run"));
            }
        }
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
    }

    // check: long function because it is one table of what is counted
    fn sample(&self, samples: &mut Samples) {
        let stats = self.stats();
        for opcode in Opcode::ALL.iter().filter(|opcode| matches!(opcode.code() >> 8, 0x04 | 0x05)) {
            let count = stats.ops(*opcode);
            if count > 0 {
                samples.counter(
                    "cairn_meta_operations",
                    "Requests taken, by operation.",
                    &[("op", opcode.name())],
                    count,
                );
            }
        }
        let counters = [
            ("cairn_meta_errors", "Operations answered with an error.", &stats.errors),
            ("cairn_meta_not_leader", "Requests refused because another member leads.", &stats.not_leader),
            ("cairn_meta_overloaded", "Mutations refused because too much waited.", &stats.overloaded),
            ("cairn_meta_undecided", "Mutations whose outcome was left open by a change of leaders.", &stats.unknown),
            ("cairn_meta_sessions_expired", "Sessions ended because they fell silent.", &stats.sessions_expired),
            (
                "cairn_meta_delegations_taken",
                "Directories taken from mounts that led them and did not give them back.",
                &stats.delegations_taken,
            ),
            ("cairn_meta_free_items", "Items sent to data nodes to be freed.", &stats.frees_sent),
            ("cairn_meta_free_records_done", "Free records that all members answered.", &stats.frees_done),
            ("cairn_meta_free_failures", "Requests to free that failed.", &stats.free_failures),
            ("cairn_meta_across_decided", "Operations across partitions that were decided.", &stats.across_decided),
            ("cairn_meta_across_again", "Attempts at such operations that were begun anew.", &stats.across_again),
            ("cairn_meta_across_resolved", "Locks of such operations that were left over.", &stats.across_resolved),
            (
                "cairn_meta_snapshot_schedule_failures",
                "Tries to take a snapshot by schedule that failed.",
                &stats.schedule_failures,
            ),
            ("cairn_meta_garbage_passes", "Passes of garbage collection.", &stats.garbage_passes),
            ("cairn_meta_garbage_chunks_listed", "Chunks that passes looked at.", &stats.garbage_listed),
            ("cairn_meta_garbage_blocks", "Blocks that passes found to be garbage.", &stats.garbage_blocks),
            ("cairn_meta_compacted_files", "Files moved out of packs that were mostly dead.", &stats.compacted_files),
            ("cairn_meta_compacted_bytes", "Bytes of one copy moved out of packs.", &stats.compacted_bytes),
            ("cairn_meta_compaction_kept", "Files that could not be moved out of packs.", &stats.compaction_kept),
            (
                "cairn_meta_appends_ended",
                "Open appends that were closed because nobody wrote to them any more.",
                &stats.appends_ended,
            ),
            ("cairn_meta_defragmented_files", "Files that were defragmented.", &stats.defragmented_files),
            ("cairn_meta_defragmented_bytes", "Bytes that it wrote anew.", &stats.defragmented_bytes),
            ("cairn_meta_defragmented_extents", "Extents that files have fewer by it.", &stats.defragmented_extents),
            (
                "cairn_meta_defragmentation_kept",
                "Parts of files that others kept from it.",
                &stats.defragmentation_kept,
            ),
            ("cairn_meta_encoded_files", "Files with a later scheme that were encoded.", &stats.encoded_files),
            ("cairn_meta_encoded_bytes", "Bytes of files that encoding wrote anew.", &stats.encoded_bytes),
            (
                "cairn_meta_encoded_together_bytes",
                "Of those, bytes that became shards where copies of them lay.",
                &stats.encoded_together_bytes,
            ),
            (
                "cairn_meta_encoding_freed_bytes",
                "Bytes that they take less on all disks by it.",
                &stats.encoding_freed_bytes,
            ),
            ("cairn_meta_encoding_kept", "Files that stay copies, for little would be saved.", &stats.encoding_kept),
            ("cairn_meta_encoding_left", "Times that a file could not be encoded yet.", &stats.encoding_left),
            ("cairn_meta_volatile_cut", "Files cut because their end was never durable.", &stats.volatile_cut),
            ("cairn_meta_reclaim_entries", "Log entries that took dead inodes apart.", &stats.reclaim_entries),
        ];
        for (name, help, counter) in counters {
            samples.counter(name, help, &[], counter.load(Relaxed));
        }
        let lost = stats.lost_files.load(Relaxed) as f64;
        samples.gauge("cairn_meta_lost_files", "Files of which the last check found bytes lost.", &[], lost);
        let memory = &self.common().memory;
        let (used, max) = (memory.used() as f64, memory.max as f64);
        samples.gauge("cairn_meta_memory_used_bytes", "Memory of all namespaces and sessions.", &[], used);
        samples.gauge("cairn_meta_memory_max_bytes", "Beyond it partitions take no new files.", &[], max);
        self.sample_latency(samples);
        self.sample_groups(samples);
        for partition in self.partitions().read().values() {
            sample_partition(partition, samples);
        }
    }

    /// Of all groups of the node.
    fn sample_groups(&self, samples: &mut Samples) {
        let host = &self.roster.host;
        let (groups, asleep) = (host.groups(), host.asleep());
        let help = "Raft groups with a member on this node; those that sleep, or are about to, have nothing to do.";
        for (state, count) in [("awake", groups.saturating_sub(asleep)), ("asleep", asleep)] {
            samples.gauge("cairn_raft_groups", help, &[("state", state)], count as f64);
        }
        let (workers, busy) = host.workers();
        samples.gauge("cairn_raft_workers", "Threads that handle the groups.", &[], workers as f64);
        samples.counter_seconds(
            "cairn_raft_busy_seconds",
            "Time for which they were at work, all together.",
            &[],
            busy,
        );
    }

    fn sample_latency(&self, samples: &mut Samples) {
        let (buckets, sum_us) = self.stats().latency();
        let help = "Time from the arrival of a mutation to its answer.";
        let measured = (&LATENCY_BOUNDS_US[..], &buckets[..], sum_us);
        samples.histogram("cairn_meta_mutation_seconds", help, &[], measured);
    }
}

fn sample_partition(partition: &Partition, samples: &mut Samples) {
    let (counters, memory, time, volatile, fullness) = {
        let namespace = partition.state.namespace.read();
        let fullness = namespace.fullness().degree;
        (namespace.counters(), namespace.memory_bytes(), namespace.time(), namespace.volatile_count(), fullness)
    };
    let id = partition.state.id.to_string();
    let labels = [("partition", id.as_str())];
    let status = partition.handle.status();
    let gauges = [
        ("cairn_meta_inodes", "Inodes.", counters.inodes as f64),
        ("cairn_meta_directories", "Directories.", counters.directories as f64),
        ("cairn_meta_file_bytes", "Sum of the sizes of files.", counters.file_bytes as f64),
        ("cairn_meta_stored_bytes", "Bytes that extents cover.", counters.stored_bytes as f64),
        ("cairn_meta_holds", "Files held open.", counters.holds as f64),
        ("cairn_meta_volatile_files", "Files closed before they were durable.", volatile as f64),
        ("cairn_meta_dead_inodes", "Inodes to be taken apart.", counters.dead_inodes as f64),
        ("cairn_meta_pending_frees", "Free records that members still have to answer.", counters.free_records as f64),
        ("cairn_meta_memory_bytes", "Memory of the namespace.", memory as f64),
        ("cairn_meta_fullness", "1: it takes no new files, 2: nor more data, for want of memory.", fullness.into()),
        ("cairn_meta_sessions_leased", "Sessions with a lease at this leader.", partition.state.leases.len() as f64),
        ("cairn_meta_logged_time_seconds", "Newest time in the log.", time.0 as f64 / 1e9),
        ("cairn_meta_leads", "1 on the member that leads.", f64::from(u8::from(status.leads))),
        ("cairn_meta_raft_term", "Term.", status.core.term as f64),
        ("cairn_meta_raft_applied", "Last applied entry.", partition.handle.applied() as f64),
        ("cairn_meta_checkpoint_bytes", "Size of the last checkpoint.", status.checkpoint_bytes as f64),
        ("cairn_meta_checkpoint_seconds", "Time of the last checkpoint.", status.checkpoint_time.as_secs_f64()),
        ("cairn_meta_restore_seconds", "Time to restore the state at the start.", status.restore_time.as_secs_f64()),
    ];
    for (name, help, value) in gauges {
        samples.gauge(name, help, &labels, value);
    }
    if status.leads {
        sample_packs(partition, &labels, samples);
    }
    let counts = [
        ("cairn_meta_raft_entries", "Log entries proposed here.", status.batches),
        ("cairn_meta_raft_proposals", "Operations in them.", status.proposals),
        ("cairn_meta_checkpoints", "Checkpoints written.", status.checkpoints),
        ("cairn_meta_checkpoint_failures", "Checkpoints that failed.", status.checkpoint_failures),
    ];
    for (name, help, value) in counts {
        samples.counter(name, help, &labels, value);
    }
    let help = "Time for which a thread was at work for the partition's group.";
    samples.counter_seconds("cairn_meta_raft_busy_seconds", help, &labels, status.busy);
}

/// What the last pass found in packs, and fragmented files.
fn sample_packs(partition: &Partition, labels: &[(&'static str, &str)], samples: &mut Samples) {
    let fragmented = partition.state.fragmented.load(Relaxed) as f64;
    samples.gauge("cairn_meta_fragmented_files", "Files that wait to be defragmented.", labels, fragmented);
    let waiting = partition.state.namespace.read().staged_count() as f64;
    samples.gauge("cairn_meta_staged_files", "Files that wait to be encoded.", labels, waiting);
    let packs = &partition.state.packs;
    let gauges = [
        ("cairn_meta_packs", "Packs (sealed chunks of copies) in the last pass.", &packs.count),
        ("cairn_meta_packs_mostly_dead", "Packs of which more than 30 % was dead space.", &packs.mostly_dead),
        ("cairn_meta_pack_bytes", "What packs take on all members.", &packs.held),
        ("cairn_meta_pack_dead_bytes", "Of that, what nothing uses.", &packs.dead),
    ];
    for (name, help, value) in gauges {
        samples.gauge(name, help, labels, value.load(Relaxed) as f64);
    }
}
