//! [`MetaConfig`] and [`MetaTimings`]: where the role keeps its list of partitions, its timings and bounds.

use std::time::Duration;

use cairn_types::DiskUuid;

/// How a meta role is set up.
#[derive(Debug, Clone)]
pub struct MetaConfig {
    /// Identity of the node's state directory.
    pub node_uuid: DiskUuid,
    /// Directory on the node's disk for what this role keeps beside log and checkpoints; made when absent.
    pub dir: String,
    /// Bytes of memory for metadata, of all partitions together, beyond which they take no more.
    pub memory_max: u64,
    /// Timings and bounds.
    pub timings: MetaTimings,
}

impl MetaConfig {
    /// The defaults, in the directory `meta`, with all memory.
    pub fn new(node_uuid: DiskUuid) -> Self {
        Self { node_uuid, dir: "meta".into(), memory_max: u64::MAX, timings: MetaTimings::default() }
    }
}

/// Timings and bounds of the leader's duties.
#[derive(Debug, Clone)]
pub struct MetaTimings {
    /// A session that is not heard of for so long ends. Told to clients with each KeepAlive.
    pub lease: Duration,
    /// How often leases are looked at; also the resolution of "last heard".
    pub lease_tick: Duration,
    /// A delegation that others want for so long is ended, though its session is heard. Holders wait 2 s at most before
    /// they store something, and acknowledge nothing when they are told: this is many times what they need.
    pub delegation_wanted: Duration,
    /// How often a partition's leader looks for dead inodes and free records when it had nothing to do.
    pub reclaim_idle: Duration,
    /// Pause after each reclaiming entry, as a multiple of the time that it took: 4 means at most a fifth of the time.
    pub reclaim_pause_factor: u32,
    /// Inodes taken apart by one entry.
    pub reclaim_inodes: u32,
    /// Extents freed by one entry.
    pub reclaim_extents: u32,
    /// Free records wait so long, so that readers with an old extent map are not hit at once.
    pub free_grace: Duration,
    /// Deadline of one `Free` call.
    pub free_deadline: Duration,
    /// Free records looked at together, so the memory of a sweep.
    pub free_page: usize,
    /// Items of one `Free` call.
    pub free_items_max: usize,
    /// Records of which some members have answered already, remembered while the rest cannot be reached. Beyond it
    /// such records are offered to all their members again later.
    pub free_partial_max: usize,
    /// First waiting time after a node failed to free; doubles up to `free_retry_max`.
    pub free_retry_min: Duration,
    /// Longest waiting time for a node that fails to free.
    pub free_retry_max: Duration,
    /// Deadline of one `ListChunks` call.
    pub list_deadline: Duration,
    /// Pause between passes of garbage collection, unless the cluster's settings say otherwise.
    pub garbage_period: Duration,
    /// Chunks that got an append more recently are left alone by it, unless the cluster's settings say otherwise.
    pub garbage_grace: Duration,
    /// A writer makes itself known to the partition within some seconds; one that has not after this is not there any
    /// more.
    pub unknown_grace: Duration,
    /// Heartbeats after which the map counts as one that was asked for: the second one began after the first was
    /// answered.
    pub map_rounds: u64,
    /// A check of the volume that nobody asked for follows the one before after so long.
    pub check_period: Duration,
    /// Between two looks of a check at what did not seem to fit in several partitions.
    pub look_pause: Duration,
    /// Operations across partitions that have something locked for longer are findings of a check.
    pub old_lock: Duration,
    /// Entries with which a directory gets shards, in a volume of several partitions.
    pub shard_entries: u64,
    /// Bytes of memory of a partition from which on it gets them with far fewer.
    pub shard_memory: u64,
    /// Other partitions that it waits for until then, and until the partition has twice that in use.
    pub shard_others: usize,
    /// How often the leader looks for files that got many extents.
    pub defragment_tick: Duration,
    /// From the beginning of a leadership to a walk through all files for fragmented ones.
    pub defragment_first_walk: Duration,
    /// Between two such walks.
    pub defragment_walk: Duration,
    /// First pause before a file is tried again that others were changing; doubles.
    pub defragment_retry: Duration,
    /// How often the leader looks for files whose time to be encoded has come.
    pub stage_tick: Duration,
    /// First pause before a file that could not be encoded is tried again; doubles.
    pub stage_retry: Duration,
    /// How often the leader looks whether trash is to be removed.
    pub trash_tick: Duration,
    /// How often the leader looks whether a snapshot is due.
    pub schedule_tick: Duration,
    /// How often the leader looks after files that writers closed and did not live to make durable.
    pub volatile_tick: Duration,
    /// How often the leader looks for open appends that nobody publishes.
    pub append_tick: Duration,
    /// What is durable in an append of which nothing was published for so long is published, and the append closed: its
    /// writers are dead.
    pub append_silent: Duration,
    /// An append of which nothing was published for so long is closed in any case.
    pub append_idle: Duration,
    /// How often the memory of the node's partitions is looked at.
    pub memory_tick: Duration,
    /// Between two attempts to open a partition that could not be opened.
    pub open_retry: Duration,
    /// How long a partition may take to stop when the role stops.
    pub stop_grace: Duration,
}

impl Default for MetaTimings {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(20),
            lease_tick: Duration::from_millis(250),
            delegation_wanted: Duration::from_mins(1),
            reclaim_idle: Duration::from_millis(250),
            reclaim_pause_factor: 4,
            reclaim_inodes: 256,
            reclaim_extents: 2048,
            free_grace: Duration::from_secs(5),
            free_deadline: Duration::from_secs(5),
            free_page: 4096,
            free_items_max: 512,
            free_partial_max: 64 << 10,
            free_retry_min: Duration::from_secs(1),
            free_retry_max: Duration::from_secs(30),
            list_deadline: Duration::from_secs(5),
            garbage_period: Duration::from_secs(3600),
            garbage_grace: Duration::from_secs(600),
            unknown_grace: Duration::from_secs(20),
            map_rounds: 2,
            check_period: Duration::from_secs(24 * 3600),
            look_pause: Duration::from_secs(1),
            old_lock: Duration::from_secs(10),
            shard_entries: cairn_meta_core::HUGE,
            shard_memory: 2 << 30,
            shard_others: 3,
            defragment_tick: Duration::from_secs(1),
            defragment_first_walk: Duration::from_secs(60),
            defragment_walk: Duration::from_secs(24 * 3600),
            defragment_retry: Duration::from_secs(10),
            stage_tick: Duration::from_secs(1),
            stage_retry: Duration::from_secs(2),
            trash_tick: Duration::from_secs(30),
            schedule_tick: Duration::from_secs(5),
            volatile_tick: Duration::from_secs(1),
            append_tick: Duration::from_secs(1),
            append_silent: Duration::from_secs(5),
            append_idle: Duration::from_secs(60),
            memory_tick: Duration::from_millis(500),
            open_retry: Duration::from_secs(10),
            stop_grace: Duration::from_secs(2),
        }
    }
}
