//! [`World`]: members of one group, their disks, the network, the manager, clients; one seed decides everything that
//! happens.
//!
//! No threads, no clock: events in the order of their time. Invariant: the same seed gives the same run.

mod clients;
mod converge;
mod faults;
mod frees;

use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

use cairn_replica_core::care::Care;
use cairn_replica_core::disk::DiskOp;
use cairn_replica_core::input::{Input, Note, Output};
use cairn_replica_core::message::{Answer, Refused, Request};
use cairn_replica_core::role::Asker;
use cairn_types::{DiskId, ErrorCode, MemberState, Scheme, Time};

use crate::chance::Chance;
use crate::client::Client;
use crate::count::{Counts, name_of};
use crate::event::{Caller, Event, Mend, Planned};
use crate::manager::Manager;
use crate::model::Model;
use crate::node::Node;
use crate::words::Bytes;

use faults::Budget;
use frees::Free;

/// Milliseconds.
pub(crate) const MS: u64 = 1000;
const CLIENTS: usize = 2;

/// What a seed is to be.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// Inputs of replicas before everything is mended.
    pub steps: u64,
    /// Says what happens.
    pub trace: bool,
}

/// A run.
#[derive(Debug)]
pub struct World {
    pub(crate) now: u64,
    pub(crate) chance: Chance,
    heap: BinaryHeap<Planned>,
    turn: u64,
    pub(crate) nodes: Vec<Node>,
    pub(crate) manager: Manager,
    pub(crate) clients: Vec<Client>,
    pub(crate) model: Model,
    pub(crate) counts: Counts,
    pub(crate) network: Network,
    pub(crate) budget: Budget,
    pub(crate) frees: BTreeMap<u64, Free>,
    pub(crate) next_free: u64,
    /// Chunks that nobody names, and since when.
    pub(crate) garbage: Vec<(u32, u64)>,
    /// Chunks that were freed whole while a member had them open, or before a disk forgot it, and since when they are
    /// listed all the same.
    pub(crate) may_come_back: BTreeMap<u32, Option<u64>>,
    /// Nothing new is begun, nothing breaks any more.
    pub(crate) quiet: bool,
    pub(crate) failure: Option<String>,
    pub(crate) next_session: u64,
    pub(crate) next_value: u32,
    steps: u64,
    /// The number of the seed, for what is said of it.
    seed: u64,
    trace: bool,
}

/// The network between nodes, the manager, clients and metadata, by place.
#[derive(Debug, Default)]
pub(crate) struct Network {
    /// One way that nothing passes.
    pub(crate) cut: Vec<Vec<bool>>,
    last: Vec<Vec<u64>>,
    /// In a thousand.
    pub(crate) loss: u64,
    /// In a thousand.
    pub(crate) twice: u64,
    /// In a thousand.
    pub(crate) reorder: u64,
    /// Longest delay, in microseconds.
    pub(crate) delay: u64,
}

impl World {
    /// A group that begins.
    pub fn new(plan: Plan) -> Self {
        let mut chance = Chance::seeded(plan.seed);
        let schemes = [
            Scheme::Replicated(3),
            Scheme::Replicated(3),
            Scheme::Replicated(3),
            Scheme::Replicated(2),
            Scheme::Replicated(4),
            Scheme::Erasure { k: 2, m: 2 },
            Scheme::Erasure { k: 3, m: 2 },
        ];
        let scheme = schemes[chance.index(schemes.len())];
        let count = scheme.members();
        let mut nodes: Vec<Node> = (0..count).map(Node::new).collect();
        if !scheme.is_replicated() {
            let k = scheme.read_minimum();
            nodes.iter_mut().enumerate().for_each(|(place, node)| node.disk.shards = Some((place as u8, k)));
        }
        let disks: Vec<DiskId> = nodes.iter().map(|node| node.id).collect();
        let manager = Manager::new(scheme, &disks);
        let map = manager.record(disks[0]);
        let places = count + 2 + CLIENTS;
        let network = Network {
            cut: vec![vec![false; places]; places],
            last: vec![vec![0; places]; places],
            delay: 400,
            ..Network::default()
        };
        let model = Model { shards: !scheme.is_replicated(), ..Model::default() };
        let mut world = Self {
            now: 0,
            chance,
            heap: BinaryHeap::new(),
            turn: 0,
            nodes,
            manager,
            clients: (0..CLIENTS).map(|client| Client::new(client as u64 + 1, map.clone())).collect(),
            model,
            counts: Counts { seeds: 1, ..Counts::default() },
            network,
            budget: Budget::default(),
            frees: BTreeMap::new(),
            next_free: 1,
            garbage: Vec::new(),
            may_come_back: BTreeMap::new(),
            quiet: false,
            failure: None,
            next_session: CLIENTS as u64 + 1,
            next_value: 1,
            steps: 0,
            seed: plan.seed,
            trace: plan.trace,
        };
        world.choose_faults();
        for node in 0..count {
            world.plan(1, Event::Start(node));
        }
        for client in 0..CLIENTS {
            world.plan(20 * MS, Event::Client(client));
        }
        world.plan(100 * MS, Event::ManagerTicks);
        world.plan(500 * MS, Event::Frees);
        world.plan(300 * MS, Event::Breaks);
        world
    }

    /// Runs a seed to its end; what it counted, or what is wrong.
    pub fn run(plan: Plan) -> Result<Counts, String> {
        let mut world = Self::new(plan);
        while world.failure.is_none() && (world.steps < plan.steps || world.now < 4_000 * MS) {
            if world.now > 120_000 * MS {
                break;
            }
            world.next();
        }
        world.mend_everything();
        world.converge();
        world.counts.steps = world.steps;
        match world.failure {
            Some(why) => Err(why),
            None => Ok(world.counts),
        }
    }

    pub(crate) fn say(&self, what: impl FnOnce() -> String) {
        if self.trace {
            println!("{:>9}.{:03} {}", self.now / MS, self.now % MS, what());
        }
    }

    /// Something is wrong: the run ends.
    pub(crate) fn fails(&mut self, why: String) {
        self.say(|| format!("FAILED: {why}"));
        self.failure.get_or_insert(format!("seed {} at {} ms: {why}", self.seed, self.now / MS));
    }

    pub(crate) fn plan(&mut self, after: u64, event: Event) {
        self.turn += 1;
        self.heap.push(Planned { at: self.now + after, turn: self.turn, event });
    }

    pub(crate) fn manager_place(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) fn metadata_place(&self) -> usize {
        self.nodes.len() + 1
    }

    pub(crate) fn client_place(&self, client: usize) -> usize {
        self.nodes.len() + 2 + client
    }

    pub(crate) fn place_of(&self, caller: Caller) -> usize {
        match caller {
            Caller::Node { node, .. } => node,
            Caller::Client { client, .. } => self.client_place(client),
            Caller::Metadata { .. } => self.metadata_place(),
            Caller::Manager => self.manager_place(),
        }
    }

    /// Sends something from one place to another.
    pub(crate) fn send(&mut self, from: usize, to: usize, event: Event) {
        if self.network.cut[from][to] {
            self.counts.add("fault: lost in a cut");
            return;
        }
        if self.network.loss > 0 && self.chance.per_mille(self.network.loss) {
            self.counts.add("fault: lost");
            return;
        }
        let asked = matches!(event, Event::Asked { .. });
        if asked && self.network.twice > 0 && self.chance.per_mille(self.network.twice) {
            self.counts.add("fault: sent twice");
            let later = 50 + self.chance.range(0..self.network.delay * 20);
            self.plan(later, event.clone());
        }
        let mut at = self.now + 50 + self.chance.range(0..self.network.delay);
        // What is sent about the end of a chunk takes one connection, and what was on a broken one never comes.
        let streamed = matches!(&event, Event::Asked { request, .. }
            if matches!(request, Request::Append(_) | Request::Sync(_) | Request::Seal(_)));
        if self.network.reorder > 0 && !streamed && self.chance.per_mille(self.network.reorder) {
            self.counts.add("fault: out of order");
            at += self.chance.range(0..self.network.delay * 50);
        } else {
            // On one connection nothing overtakes.
            at = at.max(self.network.last[from][to] + 1);
            self.network.last[from][to] = at;
        }
        let after = at - self.now;
        self.plan(after, event);
    }

    /// The next thing that happens.
    pub(crate) fn next(&mut self) {
        let Some(Planned { at, event, .. }) = self.heap.pop() else { return };
        self.now = at;
        match event {
            Event::Asked { node, from, request } => self.asked(node, from, request),
            Event::Answered { to, outcome } => self.answered(to, outcome),
            Event::TimedOut(caller) => self.answered(caller, Err(Refused::because(ErrorCode::DeadlineExceeded))),
            Event::DiskDone { node, life, call, outcome, commit } => {
                if self.nodes[node].life == life {
                    let outcome = match commit {
                        // What was accepted before a write failed is not done any more.
                        Some(_) if self.nodes[node].disk.failed => Err(Refused::because(ErrorCode::DiskFailed)),
                        commit => {
                            commit.into_iter().for_each(|commit| self.nodes[node].disk.committed(commit));
                            outcome
                        }
                    };
                    self.step(node, Input::Done { call, outcome });
                }
            }
            Event::Wake(node, life) => {
                if self.nodes[node].life == life && self.nodes[node].wake_at.is_some_and(|at| at <= self.now) {
                    self.nodes[node].wake_at = None;
                    self.step(node, Input::Tick);
                }
            }
            Event::Start(node) => self.start(node),
            Event::Register(node, life) => self.register(node, life),
            Event::Registered(node, life, incarnation) => {
                if self.nodes[node].life == life && self.nodes[node].incarnation.get() == 0 {
                    self.nodes[node].incarnation = incarnation;
                    self.plan(1, Event::Beat(node, life));
                }
            }
            Event::Beat(node, life) => self.beat(node, life, true),
            Event::Beats { node, incarnation, epoch, caught_up, asked } => {
                if self.manager.beats(node, incarnation, epoch, caught_up, self.now) {
                    let state = self.manager.record(self.nodes[node].id);
                    let life = self.nodes[node].life;
                    let place = self.manager_place();
                    self.send(place, node, Event::Heard { node, life, asked, state });
                    self.tell();
                }
            }
            Event::Heard { node, life, asked, state } => {
                if self.nodes[node].life == life && self.nodes[node].incarnation.get() != 0 {
                    self.asked(node, Caller::Manager, Request::Apply(state));
                    self.step(node, Input::Word { asked: Time(asked * 1000) });
                }
            }
            Event::Suspected(disk) => {
                let answers = self.probe((disk.get() - 1) as usize);
                // Who is well is not put out while another one's disk may have forgotten: that would be a second loss.
                if !answers || self.budget.fragile.is_none() {
                    self.manager.suspected(disk, answers, self.now);
                    self.tell();
                }
            }
            Event::ManagerTicks => self.manager_ticks(),
            Event::Client(client) => self.client_acts(client),
            Event::Frees => self.free_something(),
            Event::FreeAgain(free) => self.free_again(free),
            Event::Breaks => self.breaks(),
            Event::Mends(mend) => self.mends(mend),
        }
    }

    pub(crate) fn mends(&mut self, mend: Mend) {
        match mend {
            Mend::Link(from, to) => self.network.cut[from][to] = false,
            Mend::Network => self.calm_network(),
            Mend::Room(node) => self.nodes[node].disk.full = false,
            Mend::Speed(node) => self.nodes[node].slow = 0,
            Mend::Device(node) => {
                let disk = &mut self.nodes[node].disk;
                (disk.read_failures, disk.write_fails_in) = (0, None);
                if disk.failed && self.nodes[node].runs() {
                    self.crash(node);
                }
            }
        }
    }

    /// Whether the manager finds a node.
    fn probe(&self, node: usize) -> bool {
        let manager = self.manager_place();
        let cut = self.network.cut[manager][node] || self.network.cut[node][manager];
        self.nodes[node].runs() && !cut && !self.nodes[node].disk.failed && self.nodes[node].slow < 1_500 * MS
    }

    fn manager_ticks(&mut self) {
        self.plan(400 * MS, Event::ManagerTicks);
        let answers: Vec<bool> = (0..self.nodes.len()).map(|node| self.probe(node)).collect();
        self.manager.ticks(|node| answers[node], self.now);
        self.tell();
    }

    /// The manager tells what is new.
    pub(crate) fn tell(&mut self) {
        for node in self.manager.to_tell() {
            let request = Request::Apply(self.manager.record(self.nodes[node].id));
            let from = self.manager_place();
            self.send(from, node, Event::Asked { node, from: Caller::Manager, request });
        }
    }

    fn start(&mut self, node: usize) {
        if self.nodes[node].runs() {
            return;
        }
        self.say(|| format!("d{} starts", node + 1));
        self.nodes[node].start();
        let life = self.nodes[node].life;
        self.plan(1, Event::Register(node, life));
    }

    fn register(&mut self, node: usize, life: u64) {
        if self.nodes[node].life != life || self.nodes[node].incarnation.get() != 0 {
            return;
        }
        self.plan(300 * MS, Event::Register(node, life));
        let manager = self.manager_place();
        if self.network.cut[node][manager] || self.network.cut[manager][node] {
            return;
        }
        let incarnation = self.manager.registers(node, life, self.now);
        self.send(manager, node, Event::Registered(node, life, incarnation));
        self.tell();
    }

    fn beat(&mut self, node: usize, life: u64, again: bool) {
        let of = &self.nodes[node];
        let Some(replica) = of.replica.as_ref().filter(|_| of.life == life) else { return };
        let epoch = replica.record().map_or(cairn_types::Epoch(0), |record| record.epoch);
        let beats =
            Event::Beats { node, incarnation: of.incarnation, epoch, caught_up: replica.caught_up(), asked: self.now };
        let manager = self.manager_place();
        self.send(node, manager, beats);
        if again {
            self.plan(300 * MS, Event::Beat(node, life));
        }
    }

    /// A request arrives.
    fn asked(&mut self, node: usize, from: Caller, request: Request<Bytes>) {
        let of = &mut self.nodes[node];
        if of.replica.is_none() || of.incarnation.get() == 0 {
            let to = self.place_of(from);
            self.send(node, to, Event::Answered { to: from, outcome: Err(Refused::because(ErrorCode::Unavailable)) });
            return;
        }
        of.next_request += 1;
        let id = of.next_request;
        of.callers.insert(id, (from, name_of(&request)));
        let asker = if matches!(from, Caller::Client { .. }) { Asker::Client } else { Asker::Server };
        let input = Input::request(id, asker, request, |index, blocks| of.disk.look(index, blocks));
        self.step(node, input);
    }

    fn answered(&mut self, to: Caller, outcome: Result<Answer<Bytes>, Refused>) {
        match to {
            Caller::Node { node, life, call } => {
                if self.nodes[node].life == life && self.nodes[node].calls.remove(&call) {
                    self.step(node, Input::Answer { call, outcome });
                }
            }
            Caller::Client { client, call } => self.client_hears(client, call, outcome),
            Caller::Metadata { free } => self.free_heard(free, &outcome),
            Caller::Manager => {}
        }
    }

    /// A replica takes an input, and its outputs are carried out.
    pub(crate) fn step(&mut self, node: usize, input: Input<Bytes>) {
        let Some(replica) = self.nodes[node].replica.as_mut() else { return };
        self.steps += 1;
        let mut out = Vec::new();
        replica.step(Time(self.now * 1000), input, &mut out);
        replica.check_invariants();
        let due = replica.due();
        for output in out {
            if let Some(left) = self.nodes[node].ends_in.as_mut() {
                if *left == 0 {
                    self.counts.add("fault: crash at an output");
                    self.crash(node);
                    return;
                }
                *left -= 1;
            }
            self.carry_out(node, output);
        }
        if let Some(due) = due {
            let at = (due.0 / 1000 + 1).max(self.now + 1);
            if self.nodes[node].wake_at.is_none_or(|wake| wake > at) {
                self.nodes[node].wake_at = Some(at);
                let life = self.nodes[node].life;
                let after = at - self.now;
                self.plan(after, Event::Wake(node, life));
            }
        }
    }

    fn carry_out(&mut self, node: usize, output: Output<Bytes>) {
        match output {
            Output::Reply(id, outcome) => {
                let Some((to, what)) = self.nodes[node].callers.remove(&id) else {
                    return self.fails(format!("d{} answers request {id} twice", node + 1));
                };
                let role = self.nodes[node].replica.as_ref().and_then(|replica| replica.role());
                self.counts.answered(role, what, outcome.is_ok());
                let place = self.place_of(to);
                self.send(node, place, Event::Answered { to, outcome });
            }
            Output::Ask { call, to, request } => {
                let life = self.nodes[node].life;
                self.nodes[node].calls.insert(call);
                let from = Caller::Node { node, life, call };
                let deadline = match &request {
                    Request::Append(asked) => 400 + 100 * asked.chain.len() as u64,
                    Request::Overwrite(asked) => 300 + 100 * asked.chain.len() as u64,
                    Request::Sync(asked) | Request::Seal(asked) => 500 + 100 * asked.chain.len() as u64,
                    _ => 700,
                };
                self.plan(deadline * MS, Event::TimedOut(from));
                let place = (to.get() - 1) as usize;
                self.say(|| format!("d{} asks {to} {}", node + 1, brief(&request)));
                self.send(node, place, Event::Asked { node: place, from, request });
            }
            Output::Disk { call, op } => self.disk_does(node, call, op),
            Output::Suspect(disk) => {
                let manager = self.manager_place();
                self.send(node, manager, Event::Suspected(disk));
            }
            Output::Poke => {
                if self.now > self.nodes[node].poked_at + 20 * MS {
                    self.nodes[node].poked_at = self.now;
                    let life = self.nodes[node].life;
                    self.beat(node, life, false);
                }
            }
            Output::Note(note) => self.noted(node, &note),
        }
    }

    fn disk_does(&mut self, node: usize, call: u64, op: DiskOp<Bytes>) {
        let index = match &op {
            DiskOp::Append { index, .. }
            | DiskOp::Sync { index }
            | DiskOp::Seal { index }
            | DiskOp::Overwrite { index, .. }
            | DiskOp::Free { index, .. }
            | DiskOp::Replace { index, .. }
            | DiskOp::Begin { index, .. }
            | DiskOp::Heal { index, .. }
            | DiskOp::InStep { index, .. } => Some(*index),
            DiskOp::Save(_) => Some(u32::MAX),
            _ => None,
        };
        let read =
            if let DiskOp::Read { index, offset, .. } = &op { Some((*index, (*offset / 4096) as u32)) } else { None };
        let named = self.trace.then(|| format!("{op:?}"));
        let (outcome, commit) = self.nodes[node].disk.submit(op);
        if let Some(named) = named {
            let named: String = named.chars().take(150).collect();
            self.say(|| format!("d{} disk {named} -> {:?}", node + 1, outcome.as_ref().err().map(|e| e.code)));
        }
        let of = &mut self.nodes[node];
        let mut at = self.now + 50 + self.chance.range(0..600) + of.slow;
        if let Some(index) = index {
            // What is done for one chunk is done in its order.
            let last = of.done_at.entry(index).or_default();
            at = at.max(*last + 1);
            *last = at;
        }
        let (life, after) = (of.life, at - self.now);
        if let (Some((index, block)), Err(Refused { code: ErrorCode::ChecksumMismatch, .. })) = (read, &outcome) {
            // Whoever reads tells the member.
            self.found_bad(node, index, block);
        }
        self.plan(after, Event::DiskDone { node, life, call, outcome, commit });
    }

    /// Bad blocks that a read found, from a block on.
    fn found_bad(&mut self, node: usize, index: u32, from: u32) {
        for block in from..from + 3 {
            let place = self.metadata_place();
            let request = Request::BadBlock { index, block };
            self.send(place, node, Event::Asked { node, from: Caller::Manager, request });
        }
    }

    fn noted(&mut self, node: usize, note: &Note) {
        self.say(|| format!("d{} {note:?}", node + 1));
        self.counts.note(note);
    }

    /// A process ends, as by a loss of power.
    pub(crate) fn crash(&mut self, node: usize) {
        self.say(|| format!("d{} crashes", node + 1));
        let of = &mut self.nodes[node];
        of.replica = None;
        of.life += 1;
        of.ends_in = None;
        of.disk.crash(&mut self.chance);
        let after = if self.quiet { 50 * MS } else { self.chance.range(20 * MS..4_000 * MS) };
        self.plan(after, Event::Start(node));
    }

    pub(crate) fn all_serve(&self) -> bool {
        self.manager.pg.members.iter().all(|member| member.state == MemberState::Serving)
    }

    /// Everybody is in the present epoch and has nothing left to do.
    pub(crate) fn is_settled(&self) -> bool {
        let settled = |node: &Node| {
            let Some(replica) = &node.replica else { return false };
            let current = replica.record().is_some_and(|record| record.epoch == self.manager.pg.epoch);
            let open = replica.cares().any(|care| !matches!(care, Care::Restore(_)));
            current && replica.role().is_some_and(|role| role.serves()) && replica.is_settled() && !open
        };
        self.all_serve() && self.nodes.iter().all(settled)
    }

    pub(crate) fn map(&self, node: usize) -> Arc<cairn_format::pg_state::PgStateRecord> {
        self.manager.record(self.nodes[node].id)
    }
}

fn brief(request: &Request<Bytes>) -> String {
    let text = format!("{request:?}");
    text.chars().take(130).collect()
}
