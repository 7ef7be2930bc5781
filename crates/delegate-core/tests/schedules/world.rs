//! The world: clients, a partition, a network, a clock, and the model.
use crate::clients::Client;
use crate::driver::{Driver, config as namespace_config};
use crate::network::Packet;
use crate::oracle::Oracle;
use crate::random::Random;
use cairn_delegate_core::config::Config;
use cairn_delegate_core::input::Input;
use cairn_meta_core::{Namespace, NamespaceConfig};
use cairn_types::{ErrorCode, Time};
use cairn_wire::Opcode;
use cairn_wire::common::Credentials;
use cairn_wire::meta::{
    Attributes, AttributesResponse, DirEntry, GetattrRequest, MetaHeader, ReaddirRequest, ReaddirResponse,
};
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub struct World {
    pub random: Random,
    pub now: Time,
    pub partition: Driver,
    pub oracle: Oracle,
    pub clients: Vec<Client>,
    pub packets: Vec<Packet>,
    pub counts: BTreeMap<&'static str, u64>,
    /// Items of each delegation that the partition has executed.
    pub stored: BTreeMap<u64, u64>,
    /// Delegations and their sessions.
    pub grants: BTreeMap<u64, u64>,
    /// Delegations that ended otherwise than by their holder's batch.
    pub ended: BTreeSet<u64>,
    pub ended_sessions: BTreeSet<u64>,
    /// Those whose client has heard of it.
    pub told_sessions: BTreeSet<u64>,
    /// Sessions whose client is gone, and when they end.
    pub dying: Vec<(u64, Time)>,
    pub sequences: BTreeMap<(u64, u32), u64>,
    pub next_chunk: u32,
    last_session: u64,
    pub steps: u64,
}

/// Everything is small, so that every bound is met.
pub fn config() -> Config {
    Config {
        batch_items: 8,
        batch_bytes: 1 << 10,
        flush_age: Duration::from_millis(150),
        queue_age: Duration::from_millis(500),
        queue_bytes: 4 << 10,
        lease: Duration::from_secs(4),
        idle: Duration::from_secs(6),
        inodes: 40,
    }
}

impl World {
    pub fn new(seed: u64) -> World {
        let root_mode = 0o777;
        let mut partition = Driver::on(Namespace::new(&NamespaceConfig { root_mode, ..namespace_config() }));
        partition.set_feature_level(29);
        let mut world = World {
            random: Random(seed),
            now: Time(0),
            partition,
            oracle: Oracle::new(),
            clients: Vec::new(),
            packets: Vec::new(),
            counts: BTreeMap::new(),
            stored: BTreeMap::new(),
            grants: BTreeMap::new(),
            ended: BTreeSet::new(),
            ended_sessions: BTreeSet::new(),
            told_sessions: BTreeSet::new(),
            dying: Vec::new(),
            sequences: BTreeMap::new(),
            next_chunk: 0,
            last_session: 0,
            steps: 0,
        };
        for _ in 0..2 + seed % 3 {
            let client = Client::new(world.next_session(), world.now);
            world.clients.push(client);
        }
        world
    }

    pub fn next_session(&mut self) -> u64 {
        self.last_session += 1;
        self.last_session
    }

    pub fn note(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// The partition's clock.
    pub fn wall(&self) -> u64 {
        1_000_000 + self.now.0
    }

    pub fn client_of(&self, session: u64) -> Option<usize> {
        self.clients.iter().position(|client| client.session == session)
    }

    pub fn numbers_of(&self, client: usize) -> Vec<u64> {
        self.clients[client].holders.keys().copied().collect()
    }

    /// An entry of the partition's log.
    pub fn log(&mut self, opcode: Opcode, request: Vec<u8>) -> Result<Vec<u8>, ErrorCode> {
        self.partition.now = self.partition.now.max(self.wall());
        // Requests are numbered here.
        (self.partition.session, self.partition.slot) = (0, 0);
        self.partition.log(opcode, request)
    }

    pub fn step(&mut self) {
        self.steps += 1;
        self.now = self.now + Duration::from_millis(self.random.below(40) as u64);
        let client = self.random.below(self.clients.len());
        match self.random.below(1000) {
            0..=3 => self.kill(client),
            4..=8 => self.cut_off(client),
            12..=21 => self.new_leader(),
            22..=26 => self.now = self.now + Duration::from_millis(self.random.below(1500) as u64),
            27..=60 => self.hear_of_the_end(client),
            61..=300 => self.deliver(),
            301..=420 => self.renew(),
            421..=450 => self.sync(client),
            451..=456 => self.remove_some_top(client),
            457..=530 => self.look_at_own(client),
            _ => self.burst(client),
        }
        (0..3).for_each(|_| self.deliver());
        self.heal();
        self.remove_tops(client);
        self.repeat();
        self.expire();
        self.reclaim();
        self.recall();
        self.tick();
        if self.steps.is_multiple_of(8) {
            self.partition.check();
            self.compare_parts();
        }
    }

    /// Programs do one thing, or many without a pause.
    fn burst(&mut self, client: usize) {
        let count = if self.random.once_in(3) { 1 + self.random.below(16) } else { 1 };
        (0..count).for_each(|_| self.operation(client));
    }

    fn tick(&mut self) {
        for client in 0..self.clients.len() {
            for number in self.numbers_of(client) {
                let due = |world: &World| world.clients[client].holders[&number].machine.tick_at();
                if due(self).is_some_and(|at| self.now >= at) {
                    self.happen(client, number, Input::Tick);
                    assert!(due(self).is_none_or(|at| at > self.now), "whoever sleeps until then would never sleep");
                }
                self.drop_what_is_lost(client, number);
            }
        }
    }

    /// A program met the error; from then on the directory is an ordinary one.
    fn drop_what_is_lost(&mut self, client: usize, number: u64) {
        let is_over = |world: &World| world.clients[client].holders.get(&number).is_some_and(|h| h.machine.is_over());
        if is_over(self) {
            self.is_refused_when_lost(client, number);
            self.clients[client].holders.remove(&number);
            self.clients[client].led.remove(number);
        }
    }

    /// For a while nothing comes to a client, and nothing from it.
    fn cut_off(&mut self, client: usize) {
        self.clients[client].is_cut_off = true;
        self.note("cut off");
    }

    fn heal(&mut self) {
        for client in 0..self.clients.len() {
            if self.clients[client].is_cut_off && self.random.once_in(120) {
                self.clients[client].is_cut_off = false;
                self.note("healed");
            }
        }
    }

    /// Works off what is dead; the model did it at once.
    pub fn reclaim(&mut self) {
        while !self.partition.namespace.reclaimable().is_empty() {
            // What is in a removed tree changes at the time of its removal.
            self.partition.now -= 10;
            self.partition.reclaim(3, 3);
        }
    }

    /// All that holders have, against the model.
    fn compare_parts(&self) {
        for (session, number, holder) in self
            .clients
            .iter()
            .flat_map(|client| client.holders.iter().map(|(number, holder)| (client.session, *number, holder)))
            // Where the end has come to the partition, others may have changed it.
            .filter(|(session, number, _)| self.partition.namespace.is_led_by(*session, *number))
        {
            let part = holder.machine.part();
            let who = Some(Credentials { uid: 0, gid: 0, groups: vec![] });
            let header = Some(MetaHeader { volume: 1, partition: 1, session, who, ..MetaHeader::default() });
            let led = &self.clients[self.client_of(session).unwrap()].led;
            for (inode, node) in self.oracle.model.nodes.iter().filter(|(inode, _)| led.of(**inode) == Some(number)) {
                let request = GetattrRequest { header: header.clone(), inode: *inode };
                let found: AttributesResponse = read(part, Opcode::Getattr, &request);
                let found: Attributes = found.attributes.unwrap();
                let expected = self.oracle.model.attributes(*inode);
                assert_eq!(crate::translate::attributes(&found), expected, "inode {inode} at the holder of {number}");
                if node.is_directory() && self.oracle.model.links(*inode) > 0 {
                    let request = ReaddirRequest { header: header.clone(), inode: *inode, ..ReaddirRequest::default() };
                    let request = ReaddirRequest { count_max: 1000, ..request };
                    let listed: ReaddirResponse = read(part, Opcode::Readdir, &request);
                    let entry = |entry: DirEntry| (entry.name, entry.inode);
                    let entries: BTreeMap<Vec<u8>, u64> = listed.entries.into_iter().map(entry).collect();
                    assert_eq!(entries, node.entries(), "entries of {inode} at the holder of {number}");
                }
            }
        }
    }

    /// All is well again: everything that is led comes to its end, and the partition has what the model has.
    pub fn settle(&mut self) {
        for round in 0..2_000 {
            if self.clients.iter().all(|client| client.holders.is_empty()) && self.packets.is_empty() {
                break;
            }
            assert!(round < 1_999, "what is recalled ends");
            self.now = self.now + Duration::from_millis(10);
            for client in 0..self.clients.len() {
                self.clients[client].is_cut_off = false;
                self.hear_of_the_end(client);
                self.remove_tops(client);
                for number in self.numbers_of(client) {
                    self.happen(client, number, Input::Wanted);
                }
            }
            self.renew();
            (0..20).for_each(|_| self.deliver());
            self.repeat();
            self.expire();
            self.tick();
        }
        self.dying.iter_mut().for_each(|(_, at)| *at = Time(0));
        self.expire();
        for (number, session) in self.grants.clone() {
            if self.partition.namespace.is_led_by(session, number) {
                self.give_back(session, number);
            }
        }
        self.reclaim();
        self.partition.check();
        let frees = BTreeSet::new();
        crate::translate::compare_trees(&self.partition.namespace, &self.oracle.model, &frees);
    }
}

fn read<A: Message + Default>(part: &Namespace, opcode: Opcode, request: &impl Message) -> A {
    let mut out = Vec::new();
    part.read(opcode, &request.encode_to_vec(), &mut out).expect("it is covered");
    A::decode(out.as_slice()).expect("the answer is protobuf")
}
