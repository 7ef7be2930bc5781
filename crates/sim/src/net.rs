//! [`SimNet`]: which messages arrive, how often, when, and which never.
//!
//! It decides fates; the [`Simulation`](crate::simulation::Simulation) schedules the deliveries. Links are one-way:
//! each ordered pair of nodes has its own options and can be cut alone.
//!
//! The network MAY lose, delay, repeat and reorder by the options of a link, and drops everything on a cut link (also
//! what is in flight when the cut comes) and to a node that is down. It MUST NOT change a message, nor invent one;
//! with `reorder` at 0 each link delivers in order.
//!
//! Invariant: a fault is counted once, when it takes effect.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cairn_env::transport::Transport;
use cairn_types::NodeId;
use cairn_types::time::Time;

use crate::rng::SimRng;

/// How one link behaves.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkOptions {
    /// The least delay.
    pub delay_min: Duration,
    /// The largest usual delay; draws are even between the two.
    pub delay_max: Duration,
    /// How likely a message takes `slow_factor` times as long (the tail of real networks).
    pub slow: f64,
    /// How much longer a slow message takes.
    pub slow_factor: u32,
    /// How likely a message is lost.
    pub loss: f64,
    /// How likely a message arrives twice.
    pub duplicate: f64,
    /// How likely a message does not wait for the ones before it, and so may overtake them.
    pub reorder: f64,
}

impl LinkOptions {
    /// 50–500 µs, in order, without loss.
    pub const fn healthy() -> Self {
        Self {
            delay_min: Duration::from_micros(50),
            delay_max: Duration::from_micros(500),
            slow: 0.0,
            slow_factor: 1,
            loss: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
        }
    }

    /// 50 µs – 5 ms with a long tail, 5 % lost, 5 % doubled, half of them free to overtake.
    pub const fn stormy() -> Self {
        Self {
            delay_min: Duration::from_micros(50),
            delay_max: Duration::from_millis(5),
            slow: 0.02,
            slow_factor: 40,
            loss: 0.05,
            duplicate: 0.05,
            reorder: 0.5,
        }
    }
}

/// What the network did so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NetCounts {
    /// Messages handed over.
    pub sent: u64,
    /// Deliveries, repeated ones included.
    pub delivered: u64,
    /// Lost by chance.
    pub lost: u64,
    /// Sent twice by chance.
    pub duplicated: u64,
    /// Deliveries that overtook an earlier message of their link.
    pub reordered: u64,
    /// Slow ones.
    pub slowed: u64,
    /// Dropped on a cut link.
    pub cut: u64,
    /// Dropped because the receiver was down, or restarted since.
    pub receiver_down: u64,
}

impl NetCounts {
    /// All faults together.
    pub fn total(&self) -> u64 {
        self.lost + self.duplicated + self.reordered + self.slowed + self.cut + self.receiver_down
    }
}

/// Why a message did not arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dropped {
    /// By chance.
    Lost,
    /// The link is cut.
    Cut,
    /// The receiver is down or has restarted.
    ReceiverDown,
}

/// The state of all links and nodes.
#[derive(Debug)]
pub struct SimNet {
    rng: SimRng,
    default: LinkOptions,
    links: BTreeMap<(NodeId, NodeId), LinkOptions>,
    cut: BTreeSet<(NodeId, NodeId)>,
    /// Latest delivery planned on each link.
    latest: BTreeMap<(NodeId, NodeId), Time>,
    down: BTreeSet<NodeId>,
    incarnations: BTreeMap<NodeId, u64>,
    pub(crate) counts: NetCounts,
}

impl SimNet {
    /// A healthy network.
    pub fn seeded(seed: u64) -> Self {
        Self {
            rng: SimRng::derived(seed, "net"),
            default: LinkOptions::healthy(),
            links: BTreeMap::new(),
            cut: BTreeSet::new(),
            latest: BTreeMap::new(),
            down: BTreeSet::new(),
            incarnations: BTreeMap::new(),
            counts: NetCounts::default(),
        }
    }

    /// Sets how all links behave that have no options of their own.
    pub fn set_default(&mut self, options: LinkOptions) {
        self.default = options;
    }

    /// Sets how one link behaves, in one direction.
    pub fn set_link(&mut self, from: NodeId, to: NodeId, options: LinkOptions) {
        self.links.insert((from, to), options);
    }

    /// Cuts one direction.
    pub fn cut_one_way(&mut self, from: NodeId, to: NodeId) {
        self.cut.insert((from, to));
    }

    /// Cuts both directions.
    pub fn cut(&mut self, a: NodeId, b: NodeId) {
        self.cut_one_way(a, b);
        self.cut_one_way(b, a);
    }

    /// Cuts all links between nodes of different groups (on top of what is cut already).
    pub fn partition(&mut self, groups: &[&[NodeId]]) {
        for (at, group) in groups.iter().enumerate() {
            for other in &groups[at + 1..] {
                for &a in *group {
                    other.iter().for_each(|&b| self.cut(a, b));
                }
            }
        }
    }

    /// Joins one direction again.
    pub fn join_one_way(&mut self, from: NodeId, to: NodeId) {
        self.cut.remove(&(from, to));
    }

    /// Joins everything and makes all links healthy. Nodes that are down stay so.
    pub fn heal(&mut self) {
        self.cut.clear();
        self.links.clear();
        self.default = LinkOptions::healthy();
    }

    /// The node stops: nothing reaches it, its timers die.
    pub fn stop(&mut self, node: NodeId) {
        self.down.insert(node);
        *self.incarnations.entry(node).or_default() += 1;
    }

    /// The node runs again; what was on its way to its earlier life does not arrive.
    pub fn start(&mut self, node: NodeId) {
        self.down.remove(&node);
    }

    /// Whether the node runs.
    pub fn is_up(&self, node: NodeId) -> bool {
        !self.down.contains(&node)
    }

    /// How often the node was stopped.
    pub fn incarnation(&self, node: NodeId) -> u64 {
        self.incarnations.get(&node).copied().unwrap_or(0)
    }

    /// What happened so far.
    pub fn counts(&self) -> NetCounts {
        self.counts
    }

    /// Decides about a message sent now: the times of its deliveries, or why there is none.
    pub fn route(&mut self, now: Time, from: NodeId, to: NodeId) -> Result<Vec<Time>, Dropped> {
        self.counts.sent += 1;
        self.passable(from, to, self.incarnation(to))?;
        let link = self.links.get(&(from, to)).copied().unwrap_or(self.default);
        if self.rng.chance(link.loss) {
            self.counts.lost += 1;
            return Err(Dropped::Lost);
        }
        let mut times = vec![self.delivery(now, from, to, link)];
        if self.rng.chance(link.duplicate) {
            self.counts.duplicated += 1;
            times.push(self.delivery(now, from, to, link));
        }
        Ok(times)
    }

    fn delivery(&mut self, now: Time, from: NodeId, to: NodeId, link: LinkOptions) -> Time {
        let nanos = |d: Duration| u64::try_from(d.as_nanos()).expect("delays are far below 584 years");
        let (least, most) = (nanos(link.delay_min), nanos(link.delay_max));
        let mut delay = self.rng.range(least..most.max(least) + 1);
        if self.rng.chance(link.slow) {
            self.counts.slowed += 1;
            delay = delay.saturating_mul(u64::from(link.slow_factor));
        }
        let mut at = now + Duration::from_nanos(delay);
        let latest = self.latest.entry((from, to)).or_default();
        if at < *latest {
            if self.rng.chance(link.reorder) {
                self.counts.reordered += 1;
            } else {
                at = *latest;
            }
        }
        *latest = at.max(*latest);
        at
    }

    /// Whether a message to this life of the receiver gets through now; counts it if not.
    pub(crate) fn passable(&mut self, from: NodeId, to: NodeId, incarnation: u64) -> Result<(), Dropped> {
        if self.cut.contains(&(from, to)) {
            self.counts.cut += 1;
            return Err(Dropped::Cut);
        }
        if !self.is_up(to) || self.incarnation(to) != incarnation {
            self.counts.receiver_down += 1;
            return Err(Dropped::ReceiverDown);
        }
        Ok(())
    }
}

/// A message with its receiver.
type Addressed = (NodeId, Vec<u8>);

/// A [`Transport`] for code that sends bytes: it keeps them until the simulation collects them
/// ([`Ctx::flush`](crate::simulation::Ctx::flush)). Bounded by the messages of one event.
#[derive(Debug, Clone, Default)]
pub struct Outbox {
    messages: Arc<Mutex<Vec<Addressed>>>,
}

impl Outbox {
    /// Takes everything sent so far, in order.
    pub fn take(&self) -> Vec<Addressed> {
        std::mem::take(&mut *self.messages.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Transport for Outbox {
    fn send(&self, to: NodeId, msg: Vec<u8>) {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).push((to, msg));
    }
}
