//! Three partitions, their leaders, clients, and a network between the leaders.
mod check;
mod compare;
mod own;
mod sessions;
mod shards;
mod snapshots;

use super::choose::Rng;
use crate::driver::{config, restore};
use crate::translate::{reply, request_to};
use cairn_meta_core::{AppliedAt, MOVES, Namespace, NamespaceConfig, Outcome, TxId};
use cairn_model::{Caller, Model, Operation, Request};
use cairn_types::{ErrorCode, InodeId, PartitionId, WallTime};
use cairn_wire::Opcode;
use cairn_wire::common::Credentials;
use cairn_wire::error::WireError;
use cairn_wire::meta::*;
use compare::{Removed, routed_by};
use own::is_own;
use prost::Message;
use shards::Shards;
use snapshots::Snapshots;
use std::collections::BTreeMap;

pub const PARTITIONS: u32 = 3;
const CLIENTS: usize = 4;
const RANGE: u64 = 1 << 40;

/// A partition's log and the leader of the moment.
struct Partition {
    namespace: Namespace,
    index: u64,
    term: u64,
    attempts: u64,
    /// Decisions and requests that its leader has proposed.
    proposed: Vec<(usize, TxId, Opcode, Vec<u8>)>,
    /// Which participants have finished which operation, as this leader has heard.
    finished: BTreeMap<TxId, Vec<u32>>,
}

/// An operation that is under way.
#[derive(Clone)]
struct Under {
    request: Request,
    operation: Operation,
    /// As it is sent, by shards where the directory has them.
    sent: Operation,
    /// It was refused because it is about names in shards.
    sent_on: bool,
    /// The leader's own operation, instead.
    own: Option<(Opcode, Vec<u8>)>,
    at: u32,
    tx: Option<TxId>,
    participants: Vec<TxParticipant>,
    /// Requests to prepare that were not answered yet.
    waiting: u32,
    proposed: bool,
    /// A new directory goes there.
    elsewhere: u32,
}

impl Under {
    fn new(request: Request, operation: Operation, own: Option<(Opcode, Vec<u8>)>, at: u32) -> Under {
        let (participants, sent) = (Vec::new(), operation.clone());
        let (sent_on, proposed) = (false, false);
        Under { request, operation, sent, sent_on, own, at, tx: None, participants, waiting: 0, proposed, elsewhere: 0 }
    }
}

#[derive(Clone)]
enum Packet {
    Prepare { to: u32, client: usize, request: TxPrepare },
    Prepared { client: usize, tx: TxId, from: u32, answer: Result<TxPrepared, ErrorCode> },
    Finish { to: u32, request: TxFinish },
    Finished { tx: TxId, from: u32 },
}

pub struct World {
    pub rng: Rng,
    pub model: Model,
    pub outcomes: BTreeMap<String, u64>,
    parts: Vec<Partition>,
    /// Behind the clients: what each leader does by itself.
    clients: Vec<Option<Under>>,
    removed: Removed,
    checks: check::Checks,
    shards: Shards,
    snapshots: Snapshots,
    last: BTreeMap<(usize, u32), (Request, Operation, Operation)>,
    sessions: sessions::Sessions,
    sequences: BTreeMap<(usize, u32), u64>,
    packets: Vec<Packet>,
    now: u64,
}

fn owner(inode: u64) -> u32 {
    ((InodeId(inode).now().0 / RANGE) as u32).min(PARTITIONS - 1) + 1
}

impl World {
    pub fn new(seed: u64) -> World {
        let part = |number: u32| {
            let first = (u64::from(number - 1) * RANGE).max(1);
            let inodes = first..=u64::from(number) * RANGE - 1;
            let config = NamespaceConfig { partition: PartitionId(number), inodes, root_mode: 0o777, ..config() };
            let namespace = Namespace::new(&config);
            Partition { namespace, index: 0, term: 1, attempts: 0, proposed: Vec::new(), finished: BTreeMap::new() }
        };
        World {
            rng: Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d),
            model: Model::new(0o777, 3, 1_000),
            outcomes: BTreeMap::new(),
            parts: (1..=PARTITIONS).map(part).collect(),
            clients: vec![None; CLIENTS + PARTITIONS as usize],
            removed: Removed::default(),
            checks: check::Checks::new(seed),
            shards: Shards::default(),
            snapshots: Snapshots::default(),
            last: BTreeMap::new(),
            sessions: sessions::Sessions::default(),
            sequences: BTreeMap::new(),
            packets: Vec::new(),
            now: 1_000_000,
        }
    }

    fn part(&mut self, number: u32) -> &mut Partition {
        &mut self.parts[number as usize - 1]
    }

    fn note(&mut self, what: &str) {
        *self.outcomes.entry(what.to_owned()).or_default() += 1;
    }

    fn apply(&mut self, at: u32, opcode: Opcode, request: &[u8]) -> Result<Vec<u8>, WireError> {
        self.now += 10;
        let now = self.now;
        let part = self.part(at);
        part.index += 1;
        let place = AppliedAt { index: part.index, term: part.term, time: WallTime(now) };
        let mut out = Vec::new();
        let result = part.namespace.apply(place, opcode, request, &mut out).map(|()| out);
        if let Err(violation) = part.namespace.check_invariants() {
            panic!("partition {at} after {opcode:?}: {violation}");
        }
        result
    }

    pub fn step(&mut self) {
        self.check_a_little();
        self.end_a_session();
        if self.snapshots.wanted {
            self.snapshot_step();
        }
        match self.rng.below(100) {
            0..30 => {
                let client = self.rng.below(self.clients.len() as u64) as usize;
                match self.clients[client] {
                    Some(_) => self.go_on(client),
                    None if client >= CLIENTS => self.begin_own(client),
                    None => self.begin(client),
                }
            }
            30..70 => self.deliver(),
            70..85 => self.commit(),
            85..92 => self.resolve(),
            92..94 => self.send_decisions(),
            94..96 => self.read(),
            96 | 97 => {
                let at = 1 + self.rng.below(PARTITIONS.into()) as u32;
                self.reclaim(at);
            }
            98 if self.rng.below(4) == 0 => self.end_leader(),
            _ if self.rng.below(2) == 0 => self.give_up(),
            _ => {}
        }
    }

    fn begin(&mut self, client: usize) {
        let operation = self.choose(client);
        let Some(sent) = self.by_shards(&operation) else { return };
        let at = owner(routed_by(&sent));
        let elsewhere = if self.rng.below(2) == 0 { 0 } else { 1 + self.rng.below(PARTITIONS.into()) as u32 };
        let session = self.session_of(client);
        let request = Request { caller: self.caller(), session, slot: at, sequence: 0, now: 0 };
        let mut under = Under { sent, ..Under::new(request, operation, None, at) };
        under.elsewhere = if elsewhere == at { 0 } else { elsewhere };
        if let Some((request, operation, sent)) =
            self.last.get(&(client, at)).cloned().filter(|_| self.rng.below(10) == 0)
        {
            self.note("repeat");
            (under.request, under.operation, under.sent) = (request, operation, sent);
        } else {
            under.request.sequence = self.next_sequence(client, at);
        }
        self.clients[client] = Some(under);
    }

    fn next_sequence(&mut self, client: usize, at: u32) -> u64 {
        let sequence = self.sequences.entry((client, at)).or_default();
        *sequence += 1;
        *sequence
    }

    fn bytes(&self, under: &Under) -> (Opcode, Vec<u8>) {
        if let Some(own) = &under.own {
            return own.clone();
        }
        let caller = &under.request.caller;
        let who = Credentials { uid: caller.uid, gid: caller.gid, groups: caller.groups.clone() };
        request_to(under.at, &under.request, who, &under.sent)
    }

    /// What the leader of the partition that decides does next for an operation.
    fn go_on(&mut self, client: usize) {
        if !self.knows_shards(client) {
            return;
        }
        let Some(mut under) = self.clients[client].clone() else { return };
        if under.proposed || under.waiting > 0 {
            return;
        }
        let (opcode, bytes) = self.bytes(&under);
        let wants = self.parts[under.at as usize - 1].namespace.tx_wants(opcode, &bytes, &under.participants);
        let wants = match wants {
            Ok(wants) => wants,
            Err(error) => panic!("{error:?} of {:?}", under.operation),
        };
        let has_new = under.participants.iter().any(|p| p.prepared.as_ref().is_some_and(|p| p.new_inode != 0));
        let makes = matches!(opcode, Opcode::Mkdir | Opcode::AddShard) && under.elsewhere != 0 && !has_new;
        if wants.is_empty() && !makes {
            let part = self.part(under.at);
            let (opcode, bytes) = match under.tx {
                Some(tx) => {
                    let participants = under.participants.clone();
                    let opcode_ = u32::from(opcode.code());
                    let decide =
                        TxDecide { tx: Some(tx.wire()), opcode: opcode_, request: bytes, participants, at_limit: 0 };
                    (Opcode::TxDecide, decide.encode_to_vec())
                }
                None => (opcode, bytes),
            };
            let none = TxId { partition: under.at, term: 0, number: 0 };
            part.proposed.push((client, under.tx.unwrap_or(none), opcode, bytes));
            under.proposed = true;
            self.clients[client] = Some(under);
            return;
        }
        let part = self.part(under.at);
        let tx = under.tx.unwrap_or_else(|| {
            part.attempts += 1;
            TxId { partition: under.at, term: part.term, number: part.attempts }
        });
        under.tx = Some(tx);
        let mut asked: BTreeMap<u32, TxPrepare> = BTreeMap::new();
        let of = |asked: &mut BTreeMap<u32, TxPrepare>, to: u32| {
            asked.entry(to).or_insert_with(|| TxPrepare { tx: Some(tx.wire()), ..TxPrepare::default() }).clone()
        };
        for inode in wants.inodes {
            let mut request = of(&mut asked, owner(inode));
            request.inodes.push(inode);
            asked.insert(owner(inode), request);
        }
        for (directory, name) in wants.names {
            let mut request = of(&mut asked, owner(directory));
            if !request.inodes.contains(&directory) {
                request.inodes.push(directory);
            }
            request.names.push(TxName { directory, name, ..TxName::default() });
            asked.insert(owner(directory), request);
        }
        if makes {
            let mut request = of(&mut asked, under.elsewhere);
            request.new_inode = true;
            asked.insert(under.elsewhere, request);
        }
        if wants.moves {
            let mut request = of(&mut asked, 1);
            request.inodes.push(MOVES);
            asked.insert(1, request);
            self.note("move locked");
        }
        for directory in wants.above {
            let Ok(seen) = self.parts[owner(directory) as usize - 1].namespace.tx_above(tx, directory) else {
                return self.begin_anew(client, "moved a moment ago");
            };
            assert!(!seen.is_empty(), "what is above something is there");
            self.participant(&mut under, owner(directory)).seen.extend(seen);
        }
        under.waiting = asked.len() as u32;
        self.clients[client] = Some(under);
        for (to, request) in asked {
            self.send(Packet::Prepare { to, client, request });
        }
    }

    fn participant<'a>(&self, under: &'a mut Under, partition: u32) -> &'a mut TxParticipant {
        let at = under.participants.iter().position(|p| p.partition == partition).unwrap_or_else(|| {
            under.participants.push(TxParticipant { partition, ..TxParticipant::default() });
            under.participants.len() - 1
        });
        &mut under.participants[at]
    }

    fn send(&mut self, packet: Packet) {
        match self.rng.below(20) {
            0 => self.note("lost"),
            1 | 2 => self.packets.extend([packet.clone(), packet]),
            _ => self.packets.push(packet),
        }
    }

    fn deliver(&mut self) {
        if self.packets.is_empty() {
            return;
        }
        let at = self.rng.below(self.packets.len() as u64) as usize;
        let to = match &self.packets[at] {
            Packet::Prepare { to, .. } | Packet::Finish { to, .. } => *to,
            Packet::Prepared { .. } => 0,
            Packet::Finished { tx, .. } => tx.partition,
        };
        if to != 0 && self.is_held(to) {
            return;
        }
        // Some stay and come again, much later.
        let keep = self.rng.below(12) == 0;
        let packet = if keep { self.packets[at].clone() } else { self.packets.swap_remove(at) };
        match packet {
            Packet::Prepare { to, client, request } => {
                let id =
                    request.tx.as_ref().map(|tx| TxId { partition: tx.partition, term: tx.term, number: tx.number });
                let tx = id.expect("always there");
                let is_late = self.clients[client].as_ref().is_none_or(|under| under.tx != Some(tx));
                let answer = self.apply(to, Opcode::TxPrepare, &request.encode_to_vec());
                if is_late && answer.is_ok() {
                    self.note("lock taken anew");
                }
                let answer = answer.map(|bytes| TxPrepared::decode(bytes.as_slice()).expect("an answer"));
                self.send(Packet::Prepared { client, tx, from: to, answer: answer.map_err(|error| error.code) });
            }
            Packet::Prepared { client, tx, from, answer } => self.prepared(client, tx, from, answer),
            Packet::Finish { to, request } => {
                let wire = request.tx.expect("always there");
                let tx = TxId { partition: wire.partition, term: wire.term, number: wire.number };
                self.apply(to, Opcode::TxFinish, &request.encode_to_vec()).expect("a participant does its part");
                self.send(Packet::Finished { tx, from: to });
            }
            Packet::Finished { tx, from } => self.finished(tx, from),
        }
    }

    fn prepared(&mut self, client: usize, tx: TxId, from: u32, answer: Result<TxPrepared, ErrorCode>) {
        let Some(mut under) = self.clients[client].clone().filter(|under| under.tx == Some(tx) && !under.proposed)
        else {
            return;
        };
        let Ok(answer) = answer else {
            assert_eq!(answer.err(), Some(ErrorCode::LeaseHeld));
            return self.begin_anew(client, "conflict");
        };
        let known = &mut self.participant(&mut under, from).prepared;
        let before = known.clone().unwrap_or_default();
        if before.lock != 0 && before.lock != answer.lock {
            return self.begin_anew(client, "another lock");
        }
        // An answer that comes again; what is locked may be, or be in, a directory that was removed and is taken apart.
        let has = |image: &TxInode| before.inodes.iter().any(|known| known.inode == image.inode);
        let has_name =
            |name: &TxName| before.names.iter().any(|n| (n.directory, &n.name) == (name.directory, &name.name));
        let is_again = known.is_some() && answer.inodes.iter().all(has) && answer.names.iter().all(has_name);
        if is_again && !answer.inodes.is_empty() {
            return;
        }
        if known.is_some() && answer.new_inode == before.new_inode && answer.inodes.is_empty() {
            return;
        }
        let mut now = TxPrepared { lock: answer.lock, new_inode: answer.new_inode.max(before.new_inode), ..before };
        now.inodes.retain(|image| !answer.inodes.iter().any(|other| other.inode == image.inode));
        now.inodes.extend(answer.inodes);
        now.names.extend(answer.names);
        *known = Some(now);
        under.waiting -= 1;
        self.clients[client] = Some(under);
    }

    /// The leader tries once more, under another number, and has released what it has locked; what that does not reach
    /// is resolved by whoever has it.
    fn begin_anew(&mut self, client: usize, why: &str) {
        self.note(why);
        let before = self.clients[client].clone();
        for participant in before.iter().flat_map(|under| &under.participants) {
            let tx = before.as_ref().and_then(|under| under.tx).map(TxId::wire);
            let lock = participant.prepared.as_ref().map_or(0, |prepared| prepared.lock);
            self.send(Packet::Finish { to: participant.partition, request: TxFinish { tx, effects: None, lock } });
        }
        if let Some(under) = self.clients[client].as_mut() {
            (under.tx, under.waiting, under.proposed) = (None, 0, false);
            under.participants.clear();
        }
    }

    /// Applies the first entry that a leader has proposed.
    fn commit(&mut self) {
        let at = 1 + self.rng.below(PARTITIONS.into()) as u32;
        if !self.is_held(at) {
            self.commit_first(at);
        }
    }

    fn commit_first(&mut self, at: u32) -> bool {
        if self.part(at).proposed.is_empty() {
            return false;
        }
        let (client, tx, opcode, bytes) = self.part(at).proposed.remove(0);
        self.applied(at, client, tx, opcode, &bytes);
        true
    }

    fn applied(&mut self, at: u32, client: usize, tx: TxId, opcode: Opcode, bytes: &[u8]) {
        if is_own(opcode, bytes) {
            return self.own_applied(at, client, tx, opcode, bytes);
        }
        let known = self.clients[client].clone();
        let next = { u64::from(at) * RANGE - self.part(at).namespace.inodes_left() };
        let answer = self.apply(at, opcode, bytes);
        // The one whose leader ended does not hear of it, and asks again.
        let under = known.expect("a client waits until it has its answer");
        assert!(under.at == at);
        let code = answer.as_ref().err().map(|error| error.code);
        if code == Some(ErrorCode::LeaseHeld) || answer.as_ref().is_err_and(Namespace::is_prepared_anew) {
            if under.proposed && (under.tx == Some(tx) || opcode != Opcode::TxDecide) {
                self.begin_anew(client, if code == Some(ErrorCode::LeaseHeld) { "locked" } else { "foreign" });
            }
            return;
        }
        if code == Some(ErrorCode::Sharded) {
            return self.go_to_shards(client, &under);
        }
        let asked = if opcode == Opcode::TxDecide {
            let decide = TxDecide::decode(bytes).expect("as it was encoded");
            let prepared = decide.participants.iter().filter_map(|p| p.prepared.as_ref());
            self.model.next_inode = prepared.map(|p| p.new_inode).find(|id| *id != 0).unwrap_or(next);
            Opcode::from_code(decide.opcode as u16).expect("an operation")
        } else {
            self.model.next_inode = next;
            opcode
        };
        let core = reply(asked, &answer.map_err(|error| error.code));
        let request = Request { now: self.now, ..under.request.clone() };
        self.hold_against_model(&request, &under.operation, &core);
        if opcode == Opcode::TxDecide && core.is_ok() {
            let exchange = matches!(under.operation, Operation::Rename { flags: 2, .. });
            self.note(&format!("{}{} across", asked.name(), if exchange { " exchange" } else { "" }));
        }
        self.note(&format!("{} {}", asked.name(), core.err().map_or("done", ErrorCode::name)));
        if under.proposed {
            self.last.insert((client, at), (under.request, under.operation, under.sent));
            self.clients[client] = None;
        }
    }

    /// Leaders send what was decided to the participants, again and again.
    fn send_decisions(&mut self) {
        for at in 1..=PARTITIONS {
            for (tx, decided) in self.part(at).namespace.tx_decisions(8) {
                for effects in decided.effects {
                    let (to, lock) = (effects.partition, effects.lock);
                    let request = TxFinish { tx: Some(tx.wire()), effects: Some(effects), lock };
                    self.send(Packet::Finish { to, request });
                }
            }
        }
    }

    fn finished(&mut self, tx: TxId, from: u32) {
        let part = self.part(tx.partition);
        let heard = part.finished.entry(tx).or_default();
        heard.push(from);
        let decisions = part.namespace.tx_decisions(usize::MAX);
        let Some((_, decided)) = decisions.into_iter().find(|(found, _)| *found == tx) else { return };
        let heard = self.part(tx.partition).finished[&tx].clone();
        if decided.effects.iter().all(|effects| heard.contains(&effects.partition)) {
            let request = TxDone { txs: vec![tx.wire()] };
            self.apply(tx.partition, Opcode::TxDone, &request.encode_to_vec()).expect("forgotten");
            self.note("done late");
        }
    }

    /// A participant asks what became of an operation that has locked something.
    fn resolve(&mut self) {
        let at = 1 + self.rng.below(PARTITIONS.into()) as u32;
        let locks = self.part(at).namespace.tx_locks(64);
        if locks.is_empty() || self.is_held(at) {
            return;
        }
        let (tx, lock) = locks[self.rng.below(locks.len() as u64) as usize].clone();
        let decider = &self.parts[tx.partition as usize - 1];
        let effects = match decider.namespace.tx_outcome(tx, at) {
            Outcome::Done(effects) => Some(effects),
            Outcome::NoRecord if tx.term < decider.term => None,
            Outcome::NoRecord => {
                // This leader knows.
                if self.clients.iter().flatten().any(|under| under.tx == Some(tx)) {
                    return;
                }
                None
            }
        };
        let request = TxFinish { tx: Some(tx.wire()), effects, lock: lock.number };
        self.apply(at, Opcode::TxFinish, &request.encode_to_vec()).expect("resolved");
        self.note("lock resolved");
    }

    /// A leader has waited for long enough.
    fn give_up(&mut self) {
        let waits = |under: &Under| under.waiting > 0 && !under.proposed;
        let waiting: Vec<usize> =
            (0..self.clients.len()).filter(|client| self.clients[*client].as_ref().is_some_and(waits)).collect();
        if !waiting.is_empty() {
            let client = waiting[self.rng.below(waiting.len() as u64) as usize];
            self.begin_anew(client, "given up");
        }
    }

    /// A leader ends: what it had proposed may become entries, or not; the next one starts from the log.
    fn end_leader(&mut self) {
        let at = 1 + self.rng.below(PARTITIONS.into()) as u32;
        self.note("leader ended");
        // Nobody waits for what it did by itself: the next one begins anew.
        self.clients[CLIENTS + at as usize - 1] = None;
        for client in 0..self.clients.len() {
            if let Some(under) = self.clients[client].as_mut().filter(|under| under.at == at) {
                (under.tx, under.waiting, under.proposed) = (None, 0, false);
                under.participants.clear();
            }
        }
        for (client, tx, opcode, bytes) in std::mem::take(&mut self.part(at).proposed) {
            // What waits while it holds was not proposed.
            if self.is_held(at) || self.rng.below(2) == 0 {
                break;
            }
            self.applied(at, client, tx, opcode, &bytes);
        }
        let part = self.part(at);
        part.term += 1;
        part.attempts = 0;
        part.finished.clear();
        let pages: Vec<Vec<u8>> = part.namespace.snapshot().pages(16 << 10).collect();
        part.namespace = restore(&pages);
        self.snapshots_lose_leader(at);
    }

    /// Everything comes to an end once nothing more is asked for.
    pub fn settle(&mut self) {
        self.settle_snapshots();
        for round in 0..4_000 {
            let busy = self.clients.iter().any(Option::is_some);
            if !busy && self.is_all_reclaimed() {
                return;
            }
            for client in 0..self.clients.len() {
                // Those that are in each other's way do not try again at the same time for ever.
                match self.clients[client] {
                    _ if self.rng.below(3) == 0 => {}
                    None if client >= CLIENTS => self.begin_reclaim(client),
                    _ => self.go_on(client),
                }
            }
            (1..=PARTITIONS).for_each(|at| self.reclaim(at));
            (0..8).for_each(|_| self.deliver());
            (0..4).for_each(|_| self.commit());
            (0..2).for_each(|_| self.resolve());
            match round % 16 {
                0 => self.send_decisions(),
                8 => self.give_up(),
                _ => {}
            }
        }
        let open: Vec<_> = self.clients.iter().flatten().map(|under| (&under.request, &under.operation)).collect();
        panic!("operations go on for ever: {open:?}, {:?}", self.outcomes);
    }

    fn caller(&mut self) -> Caller {
        match self.rng.below(6) {
            0..3 => Caller { uid: 0, gid: 0, groups: vec![] },
            3 | 4 => Caller { uid: 1000, gid: 1000, groups: vec![2000] },
            _ => Caller { uid: 1001, gid: 1001, groups: vec![] },
        }
    }
}
