//! [`Rule`]s: what the network does to connections between hosts at this moment, and how often it did it.
//!
//! A connection leads from the host that opened it to the one that accepted it; a rule names one of them, both or none,
//! and what becomes of bytes. What is held arrives late, when nothing holds it any more, as after lost packets.
//!
//! Invariant: what a host that is down had sent before arrives, in front of the end of its connections; what it sends
//! later does not. Not here: which faults there are (crate `proof`), how bytes go without any ([`crate::tcp`]).

use std::collections::{BTreeMap, BTreeSet};

use crate::files::{Id, Kind, Object};
use crate::tcp::{Segment, Stream};
use crate::trace::What;
use crate::world::{World, managed, with};

/// What becomes of bytes and connections.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Effect {
    /// Connections end, and none comes about.
    Refuse,
    /// Nothing gets to who accepted as long as the rule is in force, and no connection comes about.
    HoldThere,
    /// Nothing gets back to who connected.
    HoldBack,
    /// Neither.
    HoldBoth,
    /// What is sent takes up to so many milliseconds more.
    Delay(u64),
    /// What is sent ends its connection with this probability, a part of it being delivered.
    Break(f64),
    /// One bit of what is sent changes with this probability, unnoticed by the transport.
    Flip(f64),
}

/// What is done to some connections; `None` is everybody.
#[derive(Debug, Clone, Copy)]
pub struct Rule {
    /// The host that connected.
    pub from: Option<usize>,
    /// The host that was connected to.
    pub to: Option<usize>,
    /// What happens.
    pub effect: Effect,
}

/// How often each effect was had.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    pub refused: u64,
    pub held: u64,
    pub delayed: u64,
    pub broken: u64,
    pub flipped: u64,
}

impl Counts {
    /// Everything that happened to bytes or connections.
    pub fn total(&self) -> u64 {
        self.refused + self.held + self.delayed + self.broken + self.flipped
    }
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { refused, held, delayed, broken, flipped } = self;
        write!(f, "net: {refused} refused, {held} held, {delayed} delayed, {broken} broken, {flipped} flipped")
    }
}

/// Which way bytes go on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// From who connected.
    There,
    /// To who connected.
    Back,
}

/// Who connected, and who was connected to.
type Ends = (usize, usize);

/// Of all hosts.
#[derive(Debug, Default)]
pub struct Links {
    rules: BTreeMap<u64, Rule>,
    next: u64,
    /// Hosts whose connections no rule is for.
    spared: BTreeSet<usize>,
    /// Hosts that send and accept nothing.
    down: BTreeSet<usize>,
    counts: Counts,
}

/// What becomes of bytes that are sent.
pub struct Fate {
    /// Nanoseconds that they take more.
    pub late: u64,
    /// The connection ends behind so many of them.
    pub end: Option<usize>,
}

impl Links {
    fn effects(&self, (from, to): Ends) -> impl Iterator<Item = Effect> {
        let spared = !self.rules.is_empty() && self.spared.contains(&from);
        let hits = move |rule: &&Rule| {
            !spared && rule.from.is_none_or(|host| host == from) && rule.to.is_none_or(|host| host == to)
        };
        self.rules.values().filter(hits).map(|rule| rule.effect)
    }

    fn holds(&self, ends: Ends, way: Way) -> bool {
        let other = if way == Way::There { Effect::HoldThere } else { Effect::HoldBack };
        self.effects(ends).any(|effect| effect == Effect::HoldBoth || effect == other)
    }

    fn refuses(&self, ends: Ends) -> bool {
        self.effects(ends).any(|effect| effect == Effect::Refuse)
    }
}

/// Who is at the ends of a connection, and which way bytes go that arrive at this one.
fn ends(host: usize, stream: &Stream) -> (Ends, Way) {
    if stream.opened { ((host, stream.peer_host), Way::Back) } else { ((stream.peer_host, host), Way::There) }
}

/// What is to become of a connection that reaches the other side.
pub enum Reached {
    /// It comes about.
    Accepted,
    /// It is lost on the way: it is tried again after some time.
    Lost,
    /// Nobody is there, or wants it.
    Refused,
    /// It comes about, and ends at once.
    Ended,
}

impl World {
    /// Whether nothing arrives at this end.
    pub fn is_held(&mut self, id: Id) -> bool {
        if self.links.rules.is_empty() {
            return false;
        }
        let Some(object) = self.files.get(id) else { return false };
        let host = object.host;
        let Kind::Stream(stream) = &object.kind else { return false };
        let (ends, way) = ends(host, stream);
        self.links.holds(ends, way)
    }

    /// What arrives at this end waits.
    pub fn hold(&mut self, id: Id) {
        let Some(stream) = self.files.stream(id) else { return };
        if !std::mem::replace(&mut stream.held, true) {
            self.links.counts.held += 1;
            self.note(What::Held, id, 0);
        }
    }

    /// What becomes of a connection between two hosts.
    pub fn reached(&mut self, from: usize, to: usize) -> Reached {
        if self.links.down.contains(&from) || self.links.down.contains(&to) {
            Reached::Refused
        } else if self.links.holds((from, to), Way::There) {
            Reached::Lost
        } else if self.links.refuses((from, to)) {
            self.links.counts.refused += 1;
            if self.faults.one_in(2) { Reached::Refused } else { Reached::Ended }
        } else {
            Reached::Accepted
        }
    }

    /// What becomes of bytes that this end sends; one bit may be another one then.
    pub fn fate(&mut self, id: Id, bytes: &mut [u8]) -> Fate {
        let mut fate = Fate { late: 0, end: None };
        if self.links.rules.is_empty() || bytes.is_empty() {
            return fate;
        }
        let Some(Object { host, kind: Kind::Stream(stream), .. }) = self.files.get(id) else { return fate };
        let (ends, _) = ends(*host, stream);
        let effects: Vec<Effect> = self.links.effects(ends).collect();
        for effect in effects {
            match effect {
                Effect::Delay(most) => {
                    self.links.counts.delayed += 1;
                    fate.late += self.faults.below(most * 1_000_000);
                }
                Effect::Break(p) if self.faults.chance(p) => {
                    self.links.counts.broken += 1;
                    fate.end = Some(self.faults.below(bytes.len() as u64) as usize);
                }
                Effect::Flip(p) if self.faults.chance(p) => {
                    self.links.counts.flipped += 1;
                    let bit = self.faults.below(bytes.len() as u64 * 8) as usize;
                    bytes[bit / 8] ^= 1 << (bit % 8);
                    self.note(What::Flip, id, bit as u64);
                }
                _ => {}
            }
        }
        fate
    }

    /// Ends a connection from the middle of the network: each end hears of it behind what is on its way to it.
    pub fn sever(&mut self, id: Id) {
        let Some(stream) = self.files.stream(id).filter(|stream| stream.peer != 0) else { return };
        let peer = stream.peer;
        self.note(What::Cut, id, peer);
        for end in [id, peer] {
            let Some(stream) = self.files.stream(end) else { continue };
            stream.peer = 0;
            // Who waits for room hears of nothing else.
            let reset = stream.wants_room || self.faults.one_in(2);
            self.put_on_way(end, if reset { Segment::Reset } else { Segment::End }, 0);
        }
    }

    fn sever_all(&mut self, which: impl Fn(&World, usize, &Stream) -> bool) -> u64 {
        let mut ending = Vec::new();
        for (id, object) in self.files.all() {
            if let Kind::Stream(stream) = &object.kind
                && stream.opened
                && stream.peer != 0
                && which(self, object.host, stream)
            {
                ending.push(id);
            }
        }
        ending.iter().for_each(|id| self.sever(*id));
        ending.len() as u64
    }

    /// What was held and is so no more arrives.
    fn let_go_held(&mut self) {
        let waiting = |(id, object): (Id, &Object)| match &object.kind {
            Kind::Stream(stream) if stream.held => Some(id),
            _ => None,
        };
        let waiting: Vec<Id> = self.files.all().filter_map(waiting).collect();
        for id in waiting {
            if !self.is_held(id) {
                if let Some(stream) = self.files.stream(id) {
                    stream.held = false;
                }
                self.arrive(id);
            }
        }
    }
}

/// Puts a rule in force; its number. Outside of a run it does nothing, as the others here.
pub fn add(rule: Rule) -> u64 {
    if !managed() {
        return 0;
    }
    with(|world| {
        world.links.next += 1;
        let number = world.links.next;
        world.links.rules.insert(number, rule);
        if rule.effect == Effect::Refuse {
            let refused = world.sever_all(|world, host, stream| world.links.refuses(ends(host, stream).0));
            world.links.counts.refused += refused;
        }
        number
    })
}

/// Ends a rule: what it alone held arrives.
pub fn remove(number: u64) {
    if managed() {
        with(|world| {
            world.links.rules.remove(&number);
            world.let_go_held();
        });
    }
}

/// Ends all rules.
pub fn clear() {
    if managed() {
        with(|world| {
            world.links.rules.clear();
            world.let_go_held();
        });
    }
}

/// No rule is for connections that this host opens.
pub fn spare(host: usize) {
    if managed() {
        with(|world| world.links.spared.insert(host));
    }
}

/// Nothing that a host sends gets anywhere from now on, its connections end and it gets no new ones; or it has
/// connections again.
pub fn set_down(host: usize, down: bool) {
    if !managed() {
        return;
    }
    with(|world| {
        if !down {
            world.links.down.remove(&host);
        } else if world.links.down.insert(host) {
            world.sever_all(|_, opener, stream| opener == host || stream.peer_host == host);
        }
    });
}

/// What happened so far.
pub fn counts() -> Counts {
    if managed() { with(|world| world.links.counts) } else { Counts::default() }
}
