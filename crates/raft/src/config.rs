//! [`CoreConfig`]: how a group's member behaves. Timings must be equal on all members.

use std::time::Duration;

use cairn_types::{GroupId, NodeId};

/// Settings of one member of one group.
#[derive(Debug, Clone)]
pub struct CoreConfig {
    /// This member.
    pub node: NodeId,
    /// The group.
    pub group: GroupId,
    /// Time between two calls of [`crate::Input::Tick`]; the host never calls faster, but for single ones after a late
    /// one.
    pub tick: Duration,
    /// Ticks without a leader before an election; the actual number is between this and twice this.
    pub election_ticks: usize,
    /// Ticks between heartbeats.
    pub heartbeat_ticks: usize,
    /// What is taken off a lease for clocks that run at different speeds.
    pub lease_margin: Duration,
    /// Bytes of entries in one message.
    pub message_bytes_max: u64,
    /// Messages under way to one follower.
    pub inflight_max: usize,
    /// Bytes of proposals that are not committed yet.
    pub uncommitted_bytes_max: u64,
    /// Bytes of applied entries kept in memory for followers that lag.
    pub keep_bytes: u64,
    /// Ticks after which a snapshot that nobody confirmed is offered again.
    pub snapshot_retry_ticks: u32,
    /// The feature level that this member announces to the others.
    pub feature_level: u32,
    /// Ticks after its start for which a member waits for what somebody outside of the group knows of it, before the
    /// answers of a majority suffice for taking part in elections ([`crate::marks`]); 0: there is nobody outside.
    pub witness_ticks: u32,
    /// Ticks without anything to do after which the group sleeps; 0: never.
    pub sleep_ticks: u32,
    /// Decides the election timeouts.
    pub seed: u64,
}

impl CoreConfig {
    /// Elections after 0.5–1 s, heartbeats each 100 ms, leases of 400 ms.
    pub fn new(node: NodeId, group: GroupId) -> Self {
        Self {
            node,
            group,
            tick: Duration::from_millis(50),
            election_ticks: 10,
            heartbeat_ticks: 2,
            lease_margin: Duration::from_millis(50),
            message_bytes_max: 512 << 10,
            inflight_max: 256,
            uncommitted_bytes_max: 64 << 20,
            keep_bytes: 16 << 20,
            snapshot_retry_ticks: 40,
            feature_level: cairn_types::FEATURE_LEVEL,
            witness_ticks: 0,
            sleep_ticks: 60,
            seed: u64::from(node.0),
        }
    }

    /// How long a follower that heard from a leader gives no vote to others: one tick less than the shortest
    /// election timeout, because the first tick may come at once.
    pub fn promise(&self) -> Duration {
        self.tick * u32::try_from(self.election_ticks.saturating_sub(1)).unwrap_or(u32::MAX)
    }

    /// How long after sending a message that a quorum answered the leader may serve reads.
    pub fn lease(&self) -> Duration {
        self.promise().saturating_sub(self.lease_margin)
    }
}
