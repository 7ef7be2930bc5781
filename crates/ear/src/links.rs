//! Disks, ports and transfers: what both link models have in common.
use crate::setting::Setting;

/// A block on its way. Nodes are numbered through all racks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Transfer {
    /// Read from a disk and taken into memory elsewhere.
    Fetch { from: usize, to: usize },
    /// Read from a disk and written to another one; nothing if both are one node.
    Store { from: usize, to: usize },
    /// A client's write: read at the writer, which is the first node, then handed on from node to node.
    Chain(Vec<usize>),
}

impl Transfer {
    /// From node to node.
    pub fn hops(&self) -> Vec<(usize, usize)> {
        match self {
            Self::Fetch { from, to } | Self::Store { from, to } => vec![(*from, *to)],
            Self::Chain(nodes) => nodes.windows(2).map(|pair| (pair[0], pair[1])).collect(),
        }
    }
}

/// Transfers under way. Times are nanoseconds since the start.
pub trait Links {
    /// A transfer starts; its id comes back when it has ended.
    fn start(&mut self, now: u64, id: usize, transfer: &Transfer);

    /// Goes on until some transfer has ended, or until `until`, and says when that was; ids of what ended are added to
    /// `done`.
    fn run(&mut self, until: u64, done: &mut Vec<usize>) -> u64;
}

/// Numbers of resources: disks, ports of nodes out and in, ports of racks out and in.
#[derive(Clone, Copy, Debug)]
pub struct Resources {
    nodes: usize,
    racks: usize,
    per_rack: usize,
}

impl Resources {
    pub fn of(setting: &Setting) -> Self {
        Self { nodes: setting.nodes(), racks: setting.racks, per_rack: setting.nodes_per_rack }
    }

    /// How many there are.
    pub fn count(self) -> usize {
        3 * self.nodes + 2 * self.racks
    }

    pub fn disk(self, node: usize) -> usize {
        node
    }

    /// Whether this is a port of a rack.
    pub fn is_rack_port(self, resource: usize) -> bool {
        resource >= 3 * self.nodes
    }

    /// Ports of a path in the order in which they are taken: those of racks before those of nodes. None within a node.
    pub fn ports(self, from: usize, to: usize) -> impl Iterator<Item = usize> {
        let (out, into) = (from / self.per_rack, to / self.per_rack);
        let crosses = out != into;
        let racks = [3 * self.nodes + out, 3 * self.nodes + self.racks + into];
        let nodes = [self.nodes + from, 2 * self.nodes + to];
        let racks = racks.into_iter().filter(move |_| crosses);
        racks.chain(nodes.into_iter().filter(move |_| from != to))
    }
}
