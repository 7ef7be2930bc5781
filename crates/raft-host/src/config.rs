//! [`HostConfig`]: timings and bounds of the groups on a node. Timings must be equal on all nodes of a cluster.

use std::sync::Arc;
use std::time::Duration;

use cairn_raft::CoreConfig;
use cairn_types::{ClusterId, DiskUuid, GroupId, NodeId};

use crate::book::MarkBook;

/// Settings of a node's host.
#[derive(Debug, Clone)]
pub struct HostConfig {
    /// This node.
    pub node: NodeId,
    /// Uuid of the node's label; the log carries it.
    pub log: DiskUuid,
    /// The cluster, or none while it is not known; checkpoints carry it.
    pub cluster: ClusterId,
    /// Time between ticks.
    pub tick: Duration,
    /// Ticks without a leader before an election (up to twice as many, by chance).
    pub election_ticks: usize,
    /// Ticks between heartbeats.
    pub heartbeat_ticks: usize,
    /// Taken off leases for clocks of different speed.
    pub lease_margin: Duration,
    /// Proposals that may wait in a group's queue.
    pub proposals_max: usize,
    /// Their bytes.
    pub proposal_bytes_max: usize,
    /// Longest single proposal: its entry has to fit one message on the wire. Equal on all nodes.
    pub item_bytes_max: usize,
    /// Bytes of proposals put into one entry.
    pub batch_bytes_max: usize,
    /// Entries proposed and not applied yet, per group.
    pub batches_in_flight_max: usize,
    /// Bytes of messages that may wait in a group's queue; more are dropped (and sent again by their senders).
    pub message_bytes_max: usize,
    /// Bytes of log entries after which a group makes a checkpoint.
    pub checkpoint_log_bytes: u64,
    /// Checkpoints kept of each group; the log reaches back to the second newest.
    pub checkpoint_generations: usize,
    /// Bytes of log entries in memory beyond which a group takes no proposals until a checkpoint is done.
    pub log_memory_max: u64,
    /// The same of all groups of the node together: beyond that their checkpoints come sooner.
    pub node_log_memory_max: u64,
    /// Segments of the log beyond which the group that holds the oldest one makes a checkpoint.
    pub segments_max: u64,
    /// A leader whose group is idle puts an empty entry into the log after so long, again and again, while a member is
    /// of a build that does not ask for one: a member writes no second checkpoint of the same entry, so without one its
    /// log could not be given up further.
    pub idle_entry: Duration,
    /// A group, other than the manager's, for which there is nothing to do for so long sleeps; zero: never.
    pub sleep_after: Duration,
    /// Bytes of a segment of the log; raised to what the longest proposals need.
    pub segment_bytes: u64,
    /// Bytes of one part of a checkpoint that goes to another node.
    pub fetch_part_bytes: u32,
    /// The feature level that this node announces to the other members of its groups.
    pub feature_level: u32,
    /// How long a member that starts waits for what somebody outside of its group knows of it (the manager, or nodes),
    /// before a majority of its group suffices for taking part in elections; zero: there is nobody.
    pub witness_wait: Duration,
    /// What the node remembers of members; `None`: the host opens it in its directory.
    pub marks: Option<Arc<MarkBook>>,
    /// Threads that handle the groups; 0: one a core.
    pub workers: usize,
    /// A panic of a group ends the process: its state machine may hold half a change, which must neither be
    /// read nor written into a checkpoint. `false`: only the member stops (for tests).
    pub abort_on_panic: bool,
}

impl HostConfig {
    /// The usual settings.
    pub fn new(node: NodeId, log: DiskUuid) -> Self {
        Self {
            node,
            log,
            cluster: ClusterId::NONE,
            tick: Duration::from_millis(50),
            election_ticks: 10,
            heartbeat_ticks: 2,
            lease_margin: Duration::from_millis(50),
            proposals_max: 64 << 10,
            proposal_bytes_max: 32 << 20,
            item_bytes_max: 960 << 10,
            batch_bytes_max: 512 << 10,
            batches_in_flight_max: 4,
            message_bytes_max: 64 << 20,
            checkpoint_log_bytes: 64 << 20,
            checkpoint_generations: cairn_store::checkpoint::GENERATIONS,
            log_memory_max: 512 << 20,
            node_log_memory_max: u64::MAX,
            segments_max: 8,
            idle_entry: Duration::from_secs(60),
            sleep_after: Duration::from_secs(3),
            segment_bytes: 64 << 20,
            fetch_part_bytes: 1 << 20,
            feature_level: cairn_types::FEATURE_LEVEL,
            witness_wait: Duration::ZERO,
            marks: None,
            workers: 0,
            abort_on_panic: true,
        }
    }

    /// A segment takes records of a quarter of its size, and an entry may hold one longest proposal.
    pub(crate) fn segment(&self) -> u64 {
        let entry = self.item_bytes_max.max(self.batch_bytes_max) as u64 + (64 << 10);
        self.segment_bytes.max(4 * entry).next_multiple_of(4096)
    }

    fn ticks(&self, time: Duration) -> u32 {
        time.as_nanos().div_ceil(self.tick.as_nanos().max(1)).try_into().unwrap_or(u32::MAX)
    }

    pub(crate) fn core(&self, group: GroupId, seed: u64) -> CoreConfig {
        CoreConfig {
            tick: self.tick,
            election_ticks: self.election_ticks,
            heartbeat_ticks: self.heartbeat_ticks,
            lease_margin: self.lease_margin,
            feature_level: self.feature_level,
            seed,
            // Every node asks the manager every second, and there is one.
            sleep_ticks: if group == GroupId::MANAGER { 0 } else { self.ticks(self.sleep_after) },
            witness_ticks: self.ticks(self.witness_wait),
            ..CoreConfig::new(self.node, group)
        }
    }
}
