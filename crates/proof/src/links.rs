//! Rules of the network by what the hosts of the scheduler are here: clients, and the places of a cluster.
//!
//! Not here: what a rule does (`cairn_dst::links`), which faults there are ([`crate::faults`]).

use cairn_dst::links::{Rule, add};

pub use cairn_dst::links::Effect;

/// The host of clients, and of what steers a run.
const CLIENTS: usize = 0;

/// Who opened a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// A client of the workload.
    Client,
    /// The process in this place of the cluster.
    Place(usize),
}

/// The host that a place is.
pub fn host_of(place: usize) -> usize {
    place + 1
}

/// Puts a rule in force for connections of whoever opened them (`None` is everybody) to a place, or to all; its number.
pub fn cut(from: Option<End>, to: Option<usize>, effect: Effect) -> u64 {
    let host = |end| match end {
        End::Client => CLIENTS,
        End::Place(place) => host_of(place),
    };
    add(Rule { from: from.map(host), to: to.map(host_of), effect })
}
