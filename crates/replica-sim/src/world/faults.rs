//! What breaks, within what redundancy has to survive.
//!
//! Power may be lost anywhere and at any time, and messages anyhow. What a disk forgets or damages, it does alone: all
//! members serve and have nothing left to do, and until that is so again no other one forgets or ends. Bits flip on one
//! disk at a time.

use std::collections::BTreeMap;

use cairn_types::DiskId;

use super::{MS, World};
use crate::client::Client;
use crate::event::{Event, Mend};

/// What may still break.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    /// Kinds of faults of this seed, a bit each.
    kinds: u32,
    /// A node whose disk forgot: until all are settled nothing else breaks.
    pub(super) fragile: Option<usize>,
    /// A disk forgot: what was freed may be there again.
    pub(crate) forgot: bool,
    /// Indices that were given out.
    pub(crate) given: BTreeMap<u32, ()>,
    /// In a thousand, of a calm network.
    calm: (u64, u64, u64),
}

const CRASH: u32 = 0;
const CUT: u32 = 1;
const BURST: u32 = 2;
const SLOW: u32 = 3;
const FULL: u32 = 4;
const FLIP: u32 = 5;
const FORGET: u32 = 6;
const EPOCH: u32 = 7;
const CLIENT: u32 = 8;
const POWER: u32 = 9;
const DEVICE: u32 = 10;
const KINDS: u64 = 11;

impl World {
    pub(super) fn choose_faults(&mut self) {
        // Some seeds have few kinds, so that they go far with them.
        let all = (1 << KINDS) - 1;
        let kinds = self.chance.draw() as u32 & all | self.chance.draw() as u32 & all;
        self.budget.kinds = kinds | 1;
        if self.chance.per_mille(200) {
            // A disk that forgets needs a group that is well.
            self.budget.kinds = 1 << FORGET | 1 << EPOCH | 1 << CLIENT;
        }
        let calm = [(0, 0, 0), (2, 1, 3), (10, 5, 20)];
        self.budget.calm = calm[self.chance.index(3)];
        self.calm_network();
    }

    pub(super) fn calm_network(&mut self) {
        (self.network.loss, self.network.twice, self.network.reorder) = self.budget.calm;
        self.network.delay = 400;
    }

    // check: long function because it is one table of faults
    pub(super) fn breaks(&mut self) {
        let pause = self.chance.range(80 * MS..1_400 * MS);
        self.plan(pause, Event::Breaks);
        if self.quiet {
            return;
        }
        if let Some(node) = self.budget.fragile {
            if self.is_settled() && self.now > 0 {
                self.budget.fragile = None;
                self.nodes[node].slow = 0;
            } else if self.chance.per_mille(60) && self.nodes[node].runs() {
                self.crash(node);
            }
            return;
        }
        if self.budget.kinds >> FORGET & 1 == 1 && self.chance.per_mille(300) && self.is_settled() {
            let node = self.chance.index(self.nodes.len());
            self.nodes[node].disk.remember();
        }
        // Of two copies the other one may be gone, or be written over by what nobody was told of, before a reader finds
        // the damage.
        if self.nodes.len() == 2 && self.nodes.iter().any(|node| node.disk.has_bad_block()) {
            return self.scrub();
        }
        let mut kind = self.chance.range(0..KINDS) as u32;
        if self.budget.kinds >> FORGET & 1 == 1 && self.chance.per_mille(250) {
            kind = FORGET;
        }
        if self.budget.kinds >> kind & 1 == 0 {
            return;
        }
        let node = self.chance.index(self.nodes.len());
        match kind {
            CRASH if self.nodes[node].runs() => {
                if self.chance.per_mille(500) {
                    self.nodes[node].ends_in = Some(self.chance.range(0..30) as u32);
                } else {
                    self.counts.add("fault: crash");
                    self.crash(node);
                }
            }
            CUT => self.cut_something(),
            BURST => {
                self.counts.add("fault: bad network");
                self.network.loss = self.chance.range(0..200);
                self.network.twice = self.chance.range(0..60);
                self.network.reorder = self.chance.range(0..200);
                self.network.delay = self.chance.range(400..60_000);
                let after = self.chance.range(100 * MS..2_500 * MS);
                self.plan(after, Event::Mends(Mend::Network));
            }
            SLOW => {
                self.counts.add("fault: slow disk");
                self.nodes[node].slow = self.chance.range(5 * MS..2_500 * MS);
                let after = self.chance.range(200 * MS..4_000 * MS);
                self.plan(after, Event::Mends(Mend::Speed(node)));
            }
            FULL => {
                self.counts.add("fault: full disk");
                self.nodes[node].disk.full = true;
                let after = self.chance.range(100 * MS..3_000 * MS);
                self.plan(after, Event::Mends(Mend::Room(node)));
            }
            FLIP => self.flip(node),
            DEVICE => {
                if self.chance.per_mille(500) {
                    self.counts.add("fault: reads fail");
                    self.nodes[node].disk.read_failures = self.chance.range(20..600);
                } else {
                    self.counts.add("fault: a write fails");
                    self.nodes[node].disk.write_fails_in = Some(self.chance.range(0..30) as u32);
                }
                let after = self.chance.range(200 * MS..4_000 * MS);
                self.plan(after, Event::Mends(Mend::Device(node)));
            }
            FORGET => self.forget(node),
            EPOCH => {
                self.counts.add("fault: member put out");
                self.manager.fails(DiskId(node as u32 + 1), self.now);
                self.tell();
            }
            CLIENT => self.client_dies(),
            POWER => {
                self.counts.add("fault: power lost everywhere");
                for node in 0..self.nodes.len() {
                    if self.nodes[node].runs() {
                        self.crash(node);
                    }
                }
            }
            _ => {}
        }
    }

    fn cut_something(&mut self) {
        self.counts.add("fault: cut");
        let places = self.network.cut.len();
        // Metadata reaches everybody soon: what is freed does not stay anywhere for longer than that.
        let metadata = self.metadata_place();
        let from = self.chance.index(places);
        let mut to = self.chance.index(places);
        if to == from {
            to = (to + 1) % places;
        }
        if from == metadata || to == metadata {
            return;
        }
        let both = self.chance.per_mille(600);
        let after = self.chance.range(100 * MS..5_000 * MS);
        self.network.cut[from][to] = true;
        self.plan(after, Event::Mends(Mend::Link(from, to)));
        if both {
            self.network.cut[to][from] = true;
            self.plan(after, Event::Mends(Mend::Link(to, from)));
        }
    }

    fn flip(&mut self, node: usize) {
        // Every other disk is sound.
        if self.nodes.iter().enumerate().any(|(place, other)| place != node && other.disk.has_bad_block()) {
            return;
        }
        let chunks: Vec<u32> = self.nodes[node].disk.now.chunks.keys().copied().collect();
        let Some(index) = self.chance.one(&chunks) else { return };
        let blocks = self.nodes[node].disk.now.chunks[&index].blocks.len() as u64;
        let block = self.chance.range(0..blocks.max(1)) as u32;
        // What is not the same on all disks nobody can mend.
        let sum = self.nodes[node].disk.now.chunks[&index].crcs.get(block as usize).copied();
        let everywhere = self.nodes.iter().all(|node| {
            let here = node.disk.now.chunks.get(&index);
            let whole = here.is_some_and(|here| here.durable >= (u64::from(block) + 1) * 4096 && !here.is_freed(block));
            node.runs() && whole && here.and_then(|here| here.crcs.get(block as usize).copied()) == sum
        });
        if !everywhere {
            return;
        }
        if self.nodes[node].disk.flip(index, block) {
            self.say(|| format!("a bit flips on d{} in chunk {index} block {block}", node + 1));
            self.counts.add("fault: bit flipped");
            if self.nodes.len() == 2 {
                self.scrub();
            }
        }
    }

    /// A disk loses what it had synced within the last moments.
    fn forget(&mut self, node: usize) {
        let whole = self.network.cut.iter().all(|row| row.iter().all(|cut| !cut));
        let sound = |node: &crate::node::Node| {
            node.runs()
                && !node.disk.full
                && !node.disk.breaks()
                && node.ends_in.is_none()
                && node.slow == 0
                && !node.disk.has_bad_block()
        };
        if !self.is_settled() || !whole || !self.nodes.iter().all(sound) || self.network.delay > 400 {
            return;
        }
        self.crash(node);
        if self.nodes[node].disk.forget(&mut self.chance) {
            self.say(|| format!("d{} forgot what it had synced", node + 1));
            self.counts.add("fault: disk forgot");
            self.budget.forgot = true;
            let gone = self.model.chunks.iter().filter(|(_, chunk)| chunk.gone).map(|(index, _)| (*index, None));
            self.may_come_back.extend(gone);
            self.budget.fragile = Some(node);
        }
    }

    fn client_dies(&mut self) {
        self.counts.add("fault: client died");
        let client = self.chance.index(self.clients.len());
        if self.clients[client].writing.is_some() {
            self.gives_up(client, None);
        }
        if let Some(overwriting) = self.clients[client].overwriting.take() {
            // Nobody knows whether it is there, and nobody sends it again.
            self.model.orphaned(overwriting.index, &overwriting.runs);
        }
        self.next_session += 1;
        let map = self.map(0);
        self.clients[client] =
            Client { next_call: self.clients[client].next_call, ..Client::new(self.next_session, map) };
    }

    /// From now on nothing breaks.
    pub(super) fn mend_everything(&mut self) {
        self.quiet = true;
        self.say(|| "everything is mended".to_owned());
        self.budget.calm = (0, 0, 0);
        self.calm_network();
        self.network.cut.iter_mut().for_each(|row| row.fill(false));
        for node in 0..self.nodes.len() {
            (self.nodes[node].disk.full, self.nodes[node].slow, self.nodes[node].ends_in) = (false, 0, None);
            self.mends(Mend::Device(node));
            if !self.nodes[node].runs() {
                self.plan(10 * MS, Event::Start(node));
            }
        }
        for client in 0..self.clients.len() {
            if self.clients[client].writing.is_some() {
                self.gives_up(client, None);
            }
        }
    }
}
