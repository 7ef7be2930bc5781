//! [`DataConfig`]: disks, timings and bounds of the data service.

use std::sync::Arc;
use std::time::Duration;

use cairn_env::Disk;
use cairn_store::KnownDisks;

use crate::disk::DiskConfig;

/// How a data server works.
#[derive(Clone)]
pub struct DataConfig {
    /// Directories, one a disk.
    pub disks: Vec<Arc<dyn Disk>>,
    /// Disks of the configuration that could not be opened at all, and why.
    pub left_out: Vec<String>,
    /// Which disks the node had and where; none: every empty directory becomes a new disk.
    pub known: Option<Arc<KnownDisks>>,
    /// Sizes and bounds of each.
    pub disk: DiskConfig,
    /// What the last member of a chain may take. For slow disks: members that stand still are found by the writer.
    pub hop_deadline: Duration,
    /// The same of an overwrite in place, which goes through the journal alone. It holds up whoever overwrites the same
    /// chunk, so it is short.
    pub overwrite_deadline: Duration,
    /// What each member before it may take in addition, so that the member nearest to a fault reports it.
    pub hop_margin: Duration,
    /// What a sync or seal of a member further down may take.
    pub sync_deadline: Duration,
    /// A reservation of indices, for which a writer waits: less than the writer's own deadline, so that the member that
    /// does not answer is named, and not the primary.
    pub reserve_deadline: Duration,
    /// Calls to members that are not on the path of an append (lists, copies).
    pub peer_deadline: Duration,
    /// An open chunk without appends for this long is sealed by its primary.
    pub idle_seal: Duration,
    /// Indices made durable on all members at a time.
    pub reserve_step: u32,
    /// Pause after a failed attempt to enter an epoch, to seal, to catch up.
    pub retry_pause: Duration,
    /// Chunks that all catch-ups of the node copy at the same time.
    pub catch_up_chunks: usize,
    /// A source of a rebuilt shard that takes longer is not waited for alone.
    pub rebuild_hedge: Duration,
    /// What a member of an erasure group cannot rebuild, with all members there, is given up after this time.
    pub lose_after: Duration,
    /// Pause before a chunk that a reader missed here is brought back: a deletion under way reaches everybody.
    pub restore_delay: Duration,
    /// Pause before the same chunk is looked for again.
    pub restore_again: Duration,
    /// So long after its start a member that serves looks for chunks that others have and it has not.
    pub look_after: Duration,
    /// What members list is compared with what the others list once in this time, or in the scrub period if that is
    /// shorter.
    pub compare_every: Duration,
    /// Pause after a bad block could not be healed; it doubles with each failure.
    pub heal_pause: Duration,
    /// Groups whose use is reported in one heartbeat, besides those that changed.
    pub report_sample: usize,
    /// Readers who want to be sure get copies while the manager's word is younger. The same on all servers.
    pub word_max: Duration,
    /// For so long after the first word they get none, where others serve: copies are compared meanwhile.
    pub compared_within: Duration,
    /// So long nothing is overwritten in place after a member left: longer than `word_max`, by any clock.
    pub quiet: Duration,
}

impl DataConfig {
    /// The defaults for these disks.
    pub fn new(disks: Vec<Arc<dyn Disk>>) -> Self {
        Self {
            disks,
            left_out: Vec::new(),
            known: None,
            disk: DiskConfig::default(),
            hop_deadline: Duration::from_secs(4),
            overwrite_deadline: Duration::from_secs(1),
            hop_margin: Duration::from_millis(250),
            sync_deadline: Duration::from_secs(5),
            reserve_deadline: Duration::from_secs(2),
            peer_deadline: Duration::from_secs(3),
            idle_seal: Duration::from_secs(60),
            reserve_step: 256,
            retry_pause: Duration::from_millis(200),
            catch_up_chunks: 4,
            rebuild_hedge: Duration::from_millis(250),
            lose_after: Duration::from_secs(60),
            restore_delay: Duration::from_secs(10),
            restore_again: Duration::from_secs(30),
            compare_every: Duration::from_secs(600),
            heal_pause: Duration::from_secs(1),
            report_sample: 64,
            word_max: Duration::from_secs(5),
            compared_within: Duration::from_secs(1),
            look_after: Duration::from_secs(5),
            quiet: Duration::from_secs(6),
        }
    }
}
