//! What one run simulates. The defaults and constants are those of the authors' program.

/// Blocks are this large (MB).
pub const BLOCK_MB: u32 = 64;
/// A disk is busy for so long for each MB that it reads (6.5 ÷ 900 s), in nanoseconds.
pub const READ_NS: u64 = 7_222_222;
/// The same for writing (1.2 ÷ 90 s).
pub const WRITE_NS: u64 = 13_333_333;
/// Links carry this part of their nominal rate: 1 Gb/s is 125 MB/s, of which 72 arrive.
pub const LINK_SHARE: f64 = 72.0 / 125.0;
/// What a write costs beside its transfers.
pub const WRITE_OVERHEAD_NS: u64 = 330_000_000;
/// Encoding starts when writers have been at it for a while.
pub const ENCODING_STARTS_NS: u64 = 30_000_000_000;
/// One encoding process after the other starts.
pub const PROCESS_STAGGER_NS: u64 = 1_000_000_000;
/// Computing the parities of a stripe.
pub const COMPUTE_NS: u64 = 4_000_000_000;
/// Between two stripes of a process.
pub const SWITCH_NS: u64 = 3_500_000_000;

/// How copies are placed, and who encodes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Policy {
    /// One copy on a random node, the others in another random rack; a random node encodes.
    Random,
    /// The same, and blocks that have to move for rack failures to be survived are moved.
    RandomRelocating,
    /// EAR, drawn block by block; a random node of the core rack encodes.
    Ear,
    /// EAR by so many stripe groups with chosen racks; a parity's node in the core rack encodes.
    Groups(usize),
}

/// How transfers share links.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LinkModel {
    /// As in the authors' program: 0.1 MB at a time, which holds every port of its path.
    Held,
    /// All transfers at once, at rates that are max-min fair.
    Fair,
}

/// One run.
#[derive(Clone, PartialEq, PartialOrd, Debug)]
pub struct Setting {
    pub policy: Policy,
    pub links: LinkModel,
    pub racks: usize,
    pub nodes_per_rack: usize,
    pub k: usize,
    pub m: usize,
    pub copies: usize,
    /// Most shards of a stripe in a rack (c).
    pub rack_capacity: usize,
    /// Racks that shards may lie in (R′).
    pub target_racks: Option<usize>,
    /// Of a node's link, in Mb/s.
    pub node_mbit: f64,
    /// Of a rack's link to the others, in Mb/s.
    pub rack_mbit: f64,
    pub writes_per_s: f64,
    /// Encoding processes; with EAR process i has rack i, over again when there are more.
    pub processes: usize,
    pub stripes_per_process: usize,
}

impl Setting {
    /// 20 racks of 20 nodes, (14, 10), 3 copies, 1 Gb/s, a write a second, 20 processes of 50 stripes.
    pub fn standard(policy: Policy, links: LinkModel) -> Self {
        Self {
            policy,
            links,
            racks: 20,
            nodes_per_rack: 20,
            k: 10,
            m: 4,
            copies: 3,
            rack_capacity: 1,
            target_racks: None,
            node_mbit: 1_000.0,
            rack_mbit: 1_000.0,
            writes_per_s: 1.0,
            processes: 20,
            stripes_per_process: 50,
        }
    }

    /// All nodes.
    pub fn nodes(&self) -> usize {
        self.racks * self.nodes_per_rack
    }

    /// The rack of a node.
    pub fn rack_of(&self, node: usize) -> usize {
        node / self.nodes_per_rack
    }

    /// Seconds for a MB on a link of this nominal rate.
    pub fn seconds_per_mb(mbit: f64) -> f64 {
        1.0 / (mbit / 8.0 * LINK_SHARE)
    }
}
