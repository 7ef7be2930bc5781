//! Who is silent, whom to probe, whom to mark down. Pure; time and answers come in.
//!
//! Rules:
//! - A node is probed when nothing was heard of it for `timeout`; a new leader grants everybody a full timeout.
//! - Nobody is marked down without a failed probe: one usually; [`MASS_PROBES`] in a row, each after another second,
//!   when more than a third of the nodes or nodes of more than one rack are silent at once, for then it is rather the
//!   network or this leader.
//! - When three or more nodes are silent and nobody else is left, nobody is marked down: it is this leader that hears
//!   nothing, and no member would be left to go on anyway.
//! - All that are due are marked down together.
use cairn_types::{NodeId, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Failed probes in a row that are needed while many are silent.
pub const MASS_PROBES: u32 = 3;
/// Least time between two probes of a node.
pub const PROBE_PAUSE: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Default, Debug)]
struct Peer {
    heard: Time,
    probed: Option<Time>,
    in_flight: bool,
    failed: u32,
    /// A probe was answered since it was heard last.
    mute: bool,
}

/// What the leader knows about who lives.
#[derive(Clone, Default, Debug)]
pub struct Liveness {
    /// Begin of this leader's rule.
    since: Time,
    peers: BTreeMap<NodeId, Peer>,
}

impl Liveness {
    /// This process begins to lead now.
    pub fn new(now: Time) -> Self {
        Self { since: now, peers: BTreeMap::new() }
    }

    /// A heartbeat or a registration came.
    pub fn heard(&mut self, node: NodeId, now: Time) {
        self.peers.insert(node, Peer { heard: now, ..Peer::default() });
    }

    /// Whether anything was heard of the node since this process leads.
    pub fn was_heard(&self, node: NodeId) -> bool {
        self.peers.get(&node).is_some_and(|peer| peer.heard > Time(0))
    }

    /// Time since the node was heard, or since this process leads.
    pub fn silence(&self, node: NodeId, now: Time) -> Duration {
        now.since(self.peers.get(&node).map_or(self.since, |peer| peer.heard.max(self.since)))
    }

    /// The node answers probes but sends no heartbeats.
    pub fn is_mute(&self, node: NodeId) -> bool {
        self.peers.get(&node).is_some_and(|peer| peer.mute)
    }

    /// Nodes to probe now; each counts as being probed until [`probed`](Self::probed). `up`: all nodes that send
    /// heartbeats and count as up, with their racks.
    pub fn to_probe(&mut self, now: Time, timeout: Duration, up: &[(NodeId, String)]) -> Vec<NodeId> {
        let silent: Vec<NodeId> = up.iter().map(|(n, _)| *n).filter(|n| self.silence(*n, now) >= timeout).collect();
        let mut probes = Vec::new();
        for node in silent {
            let heard = Time(0);
            let peer = self.peers.entry(node).or_insert(Peer { heard, ..Peer::default() });
            // An answered probe is good for half a timeout.
            let pause = if peer.mute { (timeout / 2).max(PROBE_PAUSE) } else { PROBE_PAUSE };
            if !peer.in_flight && peer.probed.is_none_or(|at| now.since(at) >= pause) {
                peer.in_flight = true;
                peer.probed = Some(now);
                probes.push(node);
            }
        }
        probes
    }

    /// A probe's outcome. A certain failure (the address refuses connections) counts as [`MASS_PROBES`].
    pub fn probed(&mut self, node: NodeId, outcome: ProbeOutcome) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        peer.in_flight = false;
        match outcome {
            ProbeOutcome::Alive | ProbeOutcome::Starting => (peer.failed, peer.mute) = (0, true),
            ProbeOutcome::Silent => (peer.failed, peer.mute) = (peer.failed + 1, false),
            ProbeOutcome::Refused => (peer.failed, peer.mute) = (peer.failed.max(MASS_PROBES), false),
        }
    }

    /// Nodes to mark down now, together.
    pub fn verdicts(&self, now: Time, timeout: Duration, up: &[(NodeId, String)]) -> Vec<NodeId> {
        let silent = |node: &NodeId| self.silence(*node, now) >= timeout && !self.is_mute(*node);
        let quiet: Vec<&(NodeId, String)> = up.iter().filter(|(node, _)| silent(node)).collect();
        let racks: BTreeSet<&str> = quiet.iter().map(|(_, rack)| rack.as_str()).collect();
        let mass = quiet.len() > 1 && (quiet.len() * 3 > up.len() || racks.len() > 1);
        if quiet.len() >= 3 && quiet.len() == up.len() {
            return Vec::new();
        }
        let needed = if mass { MASS_PROBES } else { 1 };
        let failed = |node: &NodeId| self.peers.get(node).is_some_and(|peer| peer.failed >= needed);
        quiet.into_iter().map(|(node, _)| *node).filter(failed).collect()
    }
}

/// What came of a probe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProbeOutcome {
    Alive,
    /// The process answers, but the service that was asked is not open (yet, or any more).
    Starting,
    /// No answer in time.
    Silent,
    /// Nobody listens there: the process is gone.
    Refused,
}

#[cfg(test)]
mod tests;
