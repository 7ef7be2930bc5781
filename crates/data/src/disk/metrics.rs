//! [`DiskMetrics`]: what a disk counts.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use cairn_telemetry::Samples;

macro_rules! metrics {
    ($($(#[$doc:meta])* $field:ident, $kind:ident, $name:literal, $help:literal;)*) => {
        /// Counters of one disk.
        #[derive(Debug, Default)]
        pub struct DiskMetrics { $($(#[$doc])* pub $field: AtomicU64,)* }

        impl DiskMetrics {
            /// Appends all samples, labelled with the disk.
            pub fn sample(&self, disk: &str, out: &mut Samples) {
                $(metrics!(@$kind out, $name, $help, disk, self.$field.load(Relaxed));)*
            }
        }
    };
    (@counter $out:ident, $name:literal, $help:literal, $disk:ident, $value:expr) => {
        $out.counter($name, $help, &[("disk", $disk)], $value);
    };
    (@nanoseconds $out:ident, $name:literal, $help:literal, $disk:ident, $value:expr) => {
        $out.counter_seconds($name, $help, &[("disk", $disk)], Duration::from_nanos($value));
    };
    (@gauge $out:ident, $name:literal, $help:literal, $disk:ident, $value:expr) => {
        $out.gauge($name, $help, &[("disk", $disk)], $value as f64);
    };
}

metrics! {
    /// Appends taken.
    appends, counter, "cairn_data_appends", "Appends taken.";
    /// Their bytes.
    append_bytes, counter, "cairn_data_append_bytes", "Bytes of appends taken.";
    /// Overwrites in place taken.
    overwrites, counter, "cairn_data_overwrites", "Overwrites in place taken.";
    /// Their blocks.
    overwritten_blocks, counter, "cairn_data_overwritten_blocks", "Blocks of overwrites in place taken.";
    /// Overwrites sent to new space.
    overwrites_refused, counter, "cairn_data_overwrites_refused", "Overwrites in place refused because the journal had too much to write home.";
    /// Blocks sent to other members.
    settled_blocks, counter, "cairn_data_settled_blocks", "Blocks sent to other members because an overwrite had not reached all.";
    /// Reads answered.
    reads, counter, "cairn_data_reads", "Reads answered.";
    /// Those of them that needed no thread of the disk.
    reads_in_memory, counter, "cairn_data_reads_in_memory", "Reads answered from memory on the thread of their connection.";
    /// Those that waited for their reader to take answers.
    reads_parked, counter, "cairn_data_reads_parked", "Reads that waited because their reader held its part of the memory of reads in answers that it had not taken.";
    /// Their bytes.
    read_bytes, counter, "cairn_data_read_bytes", "Bytes of reads answered.";
    /// Syncs of chunk files for askers.
    syncs, counter, "cairn_data_syncs", "Syncs of chunk files.";
    /// Time in them.
    sync_ns, nanoseconds, "cairn_data_sync_seconds", "Time spent in syncs of chunk files.";
    /// Group commits of the journal.
    journal_batches, counter, "cairn_data_journal_batches", "Group commits of the journal.";
    /// Bytes of them.
    journal_bytes, counter, "cairn_data_journal_bytes", "Bytes written to the journal.";
    /// Time in them.
    journal_ns, nanoseconds, "cairn_data_journal_seconds", "Time spent in group commits of the journal.";
    /// Times that the journal was written home.
    flushes, counter, "cairn_data_journal_flushes", "Times that the journal's contents were written home and its space freed.";
    /// Blocks written home from the journal.
    home_blocks, counter, "cairn_data_home_blocks", "Blocks written home from the journal.";
    /// Reads of bad blocks on this disk.
    crc_errors, counter, "cairn_data_crc_errors", "Times that a block did not match its checksum when it was read from this disk.";
    /// Blocks found bad on this disk, each once.
    bad_blocks, counter, "cairn_data_bad_blocks", "Blocks found bad on this disk, each counted once until it is healed.";
    /// Payloads that arrived damaged.
    receive_crc_errors, counter, "cairn_data_receive_crc_errors", "Payloads that did not match their checksums on receipt.";
    /// Bytes read by the scrub.
    scrub_bytes, counter, "cairn_data_scrub_bytes", "Bytes read at rest by the scrub.";
    /// Bad blocks found by it.
    scrub_bad, counter, "cairn_data_scrub_bad_blocks", "Bad blocks that the scrub found.";
    /// Blocks healed from another member.
    heals, counter, "cairn_data_heals", "Blocks healed from other members.";
    /// Bytes copied to catch up.
    catch_up_bytes, counter, "cairn_data_catch_up_bytes", "Bytes copied or rebuilt to catch up.";
    /// Bytes of shards rebuilt.
    rebuilt_bytes, counter, "cairn_data_rebuilt_bytes", "Bytes of shards rebuilt from other shards.";
    /// Chunks brought back.
    restored_chunks, counter, "cairn_data_restored_chunks", "Chunks that were missing on a serving member and were brought back.";
    /// Blocks freed.
    punched_blocks, counter, "cairn_data_punched_blocks", "Blocks freed.";
    /// Chunks deleted.
    deleted_chunks, counter, "cairn_data_deleted_chunks", "Chunks deleted.";
    /// Errors of the device.
    io_errors, counter, "cairn_data_io_errors", "Errors of the device.";
    /// Requests refused because a queue was full.
    overloads, counter, "cairn_data_overloads", "Requests refused because a queue was full.";
    /// Changes in the queue.
    queued_ops, gauge, "cairn_data_queued_operations", "Changes that wait for or are with a thread of the disk.";
    /// Their bytes.
    queued_bytes, gauge, "cairn_data_queued_bytes", "Payload bytes of those.";
    /// Bytes of holes not punched yet.
    holes_pending, gauge, "cairn_data_holes_pending_bytes", "Bytes that were freed and did not go back to the file system yet.";
    /// Bytes on their way home.
    overlay_bytes, gauge, "cairn_data_overlay_bytes", "Bytes in the journal that are not written home yet.";
}

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Relaxed);
}
