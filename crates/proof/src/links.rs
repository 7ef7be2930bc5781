//! [`Links`]: what the network between the processes of a cluster does to them at this moment, and how often it did it.
//!
//! A link leads from whoever opened a connection to the process that accepted it. A rule names one or both ends and what
//! becomes of the bytes. Nothing here moves bytes: the proxies of [`crate::proxy`] ask for every piece that they carry.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use cairn_sim::SimRng;
use parking_lot::Mutex;
use tokio::sync::watch;

/// Who opened a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// A client.
    Client,
    /// The process in this place of the cluster.
    Place(usize),
    /// A process that has no number yet.
    Unknown,
}

/// Which way bytes go on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// From who connected.
    There,
    /// To who connected.
    Back,
}

/// What becomes of bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Effect {
    /// Connections break, and none comes about.
    Refuse,
    /// Nothing arrives there as long as the rule holds; then everything does, late, as after lost packets.
    HoldThere,
    /// Nothing comes back.
    HoldBack,
    /// Neither.
    HoldBoth,
    /// Each piece waits up to so many milliseconds.
    Delay(u64),
    /// Each piece breaks its connection with this probability, a part of it being delivered.
    Reset(f64),
    /// One bit of a piece changes with this probability, unnoticed by the transport.
    Flip(f64),
}

/// A rule; `None` is everybody.
#[derive(Debug, Clone, Copy)]
pub struct LinkRule {
    /// Who connected.
    pub from: Option<End>,
    /// The place that was connected to.
    pub to: Option<usize>,
    /// What happens.
    pub effect: Effect,
}

/// What becomes of one piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It is delivered.
    Deliver,
    /// It waits until the rules change.
    Hold,
    /// It waits so many milliseconds.
    Delay(u64),
    /// The connection ends behind so many of its bytes.
    Break(usize),
    /// This bit of it is another.
    Flip(usize),
}

/// How often each effect was had.
#[derive(Debug, Default)]
pub struct LinkCounts {
    refused: AtomicU64,
    held: AtomicU64,
    delayed: AtomicU64,
    broken: AtomicU64,
    flipped: AtomicU64,
}

impl LinkCounts {
    /// Everything that happened to bytes or connections.
    pub fn total(&self) -> u64 {
        [&self.refused, &self.held, &self.delayed, &self.broken, &self.flipped].iter().map(|n| n.load(Relaxed)).sum()
    }
}

impl std::fmt::Display for LinkCounts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let n = |count: &AtomicU64| count.load(Relaxed);
        let (refused, held, delayed) = (n(&self.refused), n(&self.held), n(&self.delayed));
        let (broken, flipped) = (n(&self.broken), n(&self.flipped));
        write!(f, "net: {refused} refused, {held} held, {delayed} delayed, {broken} broken, {flipped} flipped")
    }
}

#[derive(Default)]
struct Table {
    rules: BTreeMap<u64, LinkRule>,
    next: u64,
    /// Numbers that the manager gave, by place.
    numbers: BTreeMap<u32, usize>,
}

/// All links of a cluster.
pub struct Links {
    table: Mutex<Table>,
    rng: Mutex<SimRng>,
    changed: watch::Sender<u64>,
    /// What happened.
    pub counts: LinkCounts,
}

impl Links {
    /// Links without faults.
    pub fn new(seed: u64) -> Self {
        Self {
            table: Mutex::default(),
            rng: Mutex::new(SimRng::derived(seed, "links")),
            changed: watch::Sender::new(0),
            counts: LinkCounts::default(),
        }
    }

    /// Puts a rule in force.
    pub fn add(&self, rule: LinkRule) -> u64 {
        let id = {
            let mut table = self.table.lock();
            table.next += 1;
            let id = table.next;
            table.rules.insert(id, rule);
            id
        };
        self.changed.send_modify(|n| *n += 1);
        id
    }

    /// Ends a rule: what it held goes on.
    pub fn remove(&self, id: u64) {
        self.table.lock().rules.remove(&id);
        self.changed.send_modify(|n| *n += 1);
    }

    /// Ends all rules.
    pub fn clear(&self) {
        self.table.lock().rules.clear();
        self.changed.send_modify(|n| *n += 1);
    }

    /// Says which place has this number.
    pub fn learn(&self, number: u32, place: usize) {
        self.table.lock().numbers.insert(number, place);
    }

    /// Hears of every change of the rules.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Which end a process with this number is.
    pub fn end_of(&self, number: u32) -> End {
        self.table.lock().numbers.get(&number).map_or(End::Unknown, |place| End::Place(*place))
    }

    fn effects(&self, from: End, to: usize) -> Vec<Effect> {
        let table = self.table.lock();
        let hits =
            |rule: &&LinkRule| rule.from.is_none_or(|end| end == from) && rule.to.is_none_or(|place| place == to);
        table.rules.values().filter(hits).map(|rule| rule.effect).collect()
    }

    /// Whether connections are broken. Counts if so.
    pub fn refuses(&self, from: End, to: usize) -> bool {
        let refuses = self.effects(from, to).contains(&Effect::Refuse);
        if refuses {
            self.counts.refused.fetch_add(1, Relaxed);
        }
        refuses
    }

    /// What becomes of a piece of so many bytes. `again`: it was held or delayed before.
    pub fn fate(&self, from: End, to: usize, way: Way, length: usize, again: bool) -> Fate {
        for effect in self.effects(from, to) {
            let chance = |p: f64| !again && self.rng.lock().chance(p);
            match (effect, way) {
                (Effect::HoldBoth, _) | (Effect::HoldThere, Way::There) | (Effect::HoldBack, Way::Back) => {
                    self.counts.held.fetch_add(u64::from(!again), Relaxed);
                    return Fate::Hold;
                }
                (Effect::Delay(most), _) if !again => {
                    self.counts.delayed.fetch_add(1, Relaxed);
                    return Fate::Delay(self.rng.lock().range(0..most));
                }
                (Effect::Reset(p), _) if chance(p) => {
                    self.counts.broken.fetch_add(1, Relaxed);
                    return Fate::Break(self.rng.lock().index(length));
                }
                (Effect::Flip(p), _) if chance(p) => {
                    self.counts.flipped.fetch_add(1, Relaxed);
                    return Fate::Flip(self.rng.lock().index(length * 8));
                }
                _ => {}
            }
        }
        Fate::Deliver
    }
}
