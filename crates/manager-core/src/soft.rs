//! What the leader knows from heartbeats and does not log: loads of disks, sizes of groups, leaders of partitions.
//!
//! It is lost with the leader and complete again a heartbeat later. Invariant: nothing in the state depends on it
//! except through a command.
use crate::items::DiskState;
use crate::state::State;
use cairn_types::{DiskId, Epoch, NodeId, PartitionId, PgId, Time, VolumeId, WallTime};
use cairn_wire::manager::PartitionReport;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Load of a disk as last reported.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct DiskLoad {
    pub total_bytes: u64,
    pub free_bytes: u64,
    pub queue_depth: u32,
    pub latency_us: u32,
    pub chunks: u64,
    pub filesystem: u64,
    /// Blocks found bad since its node started.
    pub bad_blocks: u64,
}

/// A partition as its leader last reported it.
#[derive(Clone, PartialEq, Debug)]
pub struct PartitionLoad {
    pub leader: NodeId,
    pub report: PartitionReport,
}

/// Memory for metadata of a node's process, as it says.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct MetaMemory {
    /// Bytes that namespaces and sessions of all its partitions take.
    pub used: u64,
    /// Bytes beyond which they take no more; `u64::MAX`: it knows no bound.
    pub max: u64,
}

/// What clients are refused for.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Refused {
    pub count: u64,
    /// From the first to the last.
    pub seconds: u64,
    /// What the last one was told.
    pub text: String,
    /// Of the group, as the member knows it.
    pub epoch: Epoch,
}

/// Everything soft.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Soft {
    pub disks: BTreeMap<DiskId, DiskLoad>,
    /// Largest used bytes that any member reported.
    pub pg_used: BTreeMap<PgId, u64>,
    /// Members whose mark of given indices is at its end, as their nodes say.
    pub used_up: BTreeSet<(PgId, DiskId)>,
    /// What syncing members cannot get from anybody, in words.
    pub pg_waits: BTreeMap<(PgId, DiskId), String>,
    /// Why members that are lost for long are not replaced, and what would help, in words.
    pub unreplaced: BTreeMap<(PgId, DiskId), String>,
    /// Bad blocks of members that wait until they can be healed, and whether there are more on the node than it
    /// remembers.
    pub unhealed: BTreeMap<(PgId, DiskId), (u64, bool)>,
    /// Chunks that serving members lack and look for, and how many of them nobody else has.
    pub missing: BTreeMap<(PgId, DiskId), (u64, u64)>,
    /// What clients are refused for, by group, member, whether it is writes, and code of the error.
    pub refused: BTreeMap<(PgId, DiskId, bool, u32), Refused>,
    /// Members with an epoch that this leader does not know.
    pub ahead: BTreeMap<(PgId, DiskId), Epoch>,
    /// What a restored state waits for.
    pub awaited: crate::take_up::Awaited,
    /// Disks that are lost: since when as it is logged, and when this leader saw it first, by its own clock.
    pub lost: BTreeMap<DiskId, (WallTime, Time)>,
    /// Lost members that are due and wait until fewer are being replaced.
    pub repairs_queued: usize,
    /// Why members that are to leave their disks cannot, and what would help, in words.
    pub unmoved: BTreeMap<(PgId, DiskId), String>,
    /// Members that are to leave and wait until fewer disks are being filled.
    pub moves_queued: usize,
    pub partitions: BTreeMap<PartitionId, PartitionLoad>,
    /// Of meta nodes whose builds say it.
    pub meta_memory: BTreeMap<NodeId, MetaMemory>,
    /// Why volumes that need more partitions get none, in words.
    pub unplaced: BTreeMap<VolumeId, String>,
    /// The feature level that each node's process understands, as it says.
    pub levels: BTreeMap<NodeId, u32>,
    /// Which list of revoked keys each node was told last, and how many names it was ever told. Nodes without keys, and
    /// builds that take no list, are not here.
    pub revoked: BTreeMap<NodeId, (u64, u32)>,
    /// Who comes to each node without a key: who is served, and who was refused.
    pub plain: BTreeMap<NodeId, (Vec<String>, Vec<String>)>,
    /// What nodes say is wrong with themselves, in words.
    pub node_problems: BTreeMap<NodeId, String>,
    /// Where a second process with a node's identity tried to register, and when last.
    pub clones: BTreeMap<NodeId, (String, Time)>,
    /// How each change of a partition's members stands, in words.
    pub changes: BTreeMap<PartitionId, String>,
    /// Milliseconds since each node was heard.
    pub silence_ms: BTreeMap<NodeId, u64>,
    /// Whether the nodes that should send heartbeats but do not, answer probes.
    pub mute: BTreeMap<NodeId, bool>,
}

/// A second process with the identity of a node, that was not heard for so long, is taken to be gone.
const CLONE_SILENCE: Duration = Duration::from_secs(60);

impl Soft {
    /// Forgets second processes that have not been heard for a while.
    pub fn forget_clones(&mut self, now: Time) {
        self.clones.retain(|_, (_, at)| now.since(*at) < CLONE_SILENCE);
    }

    /// What a node says is wrong with itself; empty: nothing.
    pub fn note_problem(&mut self, node: NodeId, problem: String) {
        if problem.is_empty() {
            self.node_problems.remove(&node);
        } else {
            self.node_problems.insert(node, problem);
        }
    }

    /// Whether all disks that serve and all partitions were reported to this leader. Before, what is said of space,
    /// names and leaders would be wrong.
    pub fn is_complete(&self, state: &State) -> bool {
        let up = |node: NodeId| state.node(node).is_some_and(|node| node.up);
        let mut disks = state.disks().filter(|disk| disk.state == DiskState::InService && up(disk.node));
        let mut partitions = state.partitions().filter(|partition| !partition.removed);
        disks.all(|disk| self.disks.contains_key(&disk.id))
            && partitions.all(|partition| self.partitions.contains_key(&partition.id))
    }
}
