//! Snapshots of all partitions while everything else goes on: leaders end, holds lapse, and requests to hold come late
//! and again. Each one that is complete has to be what the model was when all held.
use super::compare::set_aside;
use super::{PARTITIONS, World, owner};
use crate::across::choose::Rng;
use cairn_meta_core::Gate;
use cairn_model::Model;
use cairn_types::{ErrorCode, InodeId};
use cairn_wire::Opcode;
use cairn_wire::meta::*;
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};

const SESSION: u64 = 98;
/// More are deleted first.
const MANY: usize = 4;

/// One that is being taken.
struct Taking {
    attempt: CutAttempt,
    /// Who holds, or has held, and in which term.
    held: BTreeMap<u32, u64>,
    /// Of the moment when all held.
    then: Option<(Model, BTreeSet<u64>)>,
    first: CutResponse,
    cut: BTreeSet<u32>,
}

/// One that is complete.
struct Complete {
    slot: u64,
    then: Model,
    /// Directories that had shards.
    sharded: BTreeSet<u64>,
}

#[derive(Default)]
pub struct Snapshots {
    pub wanted: bool,
    /// Its own, so that schedules stay what they are.
    rng: Option<Rng>,
    gates: Vec<Gate<()>>,
    attempts: u64,
    sequence: u64,
    taking: Option<Taking>,
    complete: BTreeMap<u64, Complete>,
}

fn name(number: u64) -> String {
    format!("s{number}")
}

impl World {
    pub fn with_snapshots(seed: u64) -> World {
        Self::with_level(World::new(seed), seed)
    }

    pub fn with_snapshots_and_shards(seed: u64) -> World {
        Self::with_level(World::with_shards(seed), seed)
    }

    fn with_level(mut world: World, seed: u64) -> World {
        let gates = (0..PARTITIONS).map(|_| Gate::default()).collect();
        let rng = Some(Rng(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0x1234_5678_9abc_def1));
        world.snapshots = Snapshots { wanted: true, rng, gates, ..Snapshots::default() };
        for at in 1..=PARTITIONS {
            let level = SetFeatureLevel { level: 16 };
            world.apply(at, Opcode::SetFeatureLevel, &level.encode_to_vec()).expect("raised");
        }
        world
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.snapshots.rng.as_mut().expect("there is one").below(below)
    }

    /// Nothing is proposed there.
    pub(super) fn is_held(&self, at: u32) -> bool {
        self.snapshots.gates.get(at as usize - 1).is_some_and(Gate::is_closed)
    }

    pub(super) fn snapshot_step(&mut self) {
        match self.draw(40) {
            0..4 => self.go_on_taking(),
            12 => self.hold_late(),
            13 => {
                let at = 1 + self.draw(PARTITIONS.into()) as u32;
                if self.is_held(at) && self.draw(4) == 0 {
                    self.note("hold lapsed");
                    let attempt = self.snapshots.taking.as_ref().map(|taking| taking.attempt);
                    attempt.map(|attempt| self.snapshots.gates[at as usize - 1].lapse(attempt));
                }
            }
            14 | 15 => {
                let at = 1 + self.draw(PARTITIONS.into()) as u32;
                self.tell(at);
            }
            16 => self.look_at_a_snapshot(),
            17 if self.draw(8) == 0 => self.delete_one(),
            _ => {}
        }
    }

    fn go_on_taking(&mut self) {
        let Some(mut taking) = self.snapshots.taking.take() else {
            if self.draw(4) != 0 {
                return;
            }
            if self.snapshots.complete.len() >= MANY {
                return self.delete_one();
            }
            self.snapshots.attempts += 1;
            let attempt = CutAttempt { partition: 1, term: self.part(1).term, number: self.snapshots.attempts };
            let (held, then, first, cut) = (BTreeMap::new(), None, CutResponse::default(), BTreeSet::new());
            self.snapshots.taking = Some(Taking { attempt, held, then, first, cut });
            return;
        };
        let left: Vec<u32> = (1..=PARTITIONS).filter(|at| !taking.held.contains_key(at)).collect();
        if !left.is_empty() {
            let at = left[self.draw(left.len() as u64) as usize];
            // What was proposed before is in front of the cut.
            while self.commit_first(at) {}
            let term = self.part(at).term;
            if !self.snapshots.gates[at as usize - 1].close(taking.attempt, term) {
                return self.note("void: an end of its own was late");
            }
            taking.held.insert(at, term);
            if left.len() == 1 {
                taking.then = Some((self.model.clone(), self.shards.known.clone()));
            }
            self.snapshots.taking = Some(taking);
            return;
        }
        let left: Vec<u32> = (1..=PARTITIONS).filter(|at| !taking.cut.contains(at)).collect();
        if left.is_empty() {
            return self.complete(taking);
        }
        let at = if taking.cut.is_empty() { 1 } else { left[self.draw(left.len() as u64) as usize] };
        let term = taking.held[&at];
        let number = taking.first.number;
        let mut cut = CutSnapshot { term, number, slot: taking.first.slot, ..CutSnapshot::default() };
        cut.created_ns = taking.first.created_ns;
        let above = self.parts.iter().map(|part| part.namespace.last_snapshot()).max().unwrap_or(0);
        (cut.above, cut.name) = (above, name(taking.attempt.number).into_bytes());
        if self.snapshots.gates[at as usize - 1].cut(taking.attempt, term).is_none() {
            self.note("void: did not hold");
            return self.give_up_taking(taking);
        }
        match self.apply(at, Opcode::CutSnapshot, &cut.encode_to_vec()) {
            Ok(answer) => {
                let answer = CutResponse::decode(answer.as_slice()).expect("an answer");
                assert!(answer.number > 0, "nobody overwrites in place");
                if at == 1 {
                    taking.first = answer;
                }
                taking.cut.insert(at);
                self.snapshots.taking = Some(taking);
            }
            Err(error) => panic!("{error:?}: the gate let a cut pass in another term"),
        }
    }

    fn create_request(&mut self, taking: &Taking) -> Vec<u8> {
        self.snapshots.sequence += 1;
        let header =
            self.header(1).map(|header| MetaHeader { session: SESSION, sequence: self.snapshots.sequence, ..header });
        CreateSnapshotRequest {
            header,
            name: name(taking.attempt.number).into_bytes(),
            ..CreateSnapshotRequest::default()
        }
        .encode_to_vec()
    }

    fn complete(&mut self, taking: Taking) {
        let request = self.create_request(&taking);
        let number = taking.first.number;
        let end = EndCut { number, complete: true, request: request.clone(), ..EndCut::default() };
        let mut answers = Vec::new();
        // Repeated, it is answered as before; so is what the client sends again.
        for (opcode, bytes) in [
            (Opcode::EndCut, end.encode_to_vec()),
            (Opcode::EndCut, end.encode_to_vec()),
            (Opcode::CreateSnapshot, request),
        ] {
            let answer = self.apply(1, opcode, &bytes).expect("it is complete");
            answers.push(CreateSnapshotResponse::decode(answer.as_slice()).expect("an answer").number);
        }
        assert_eq!(answers, [number; 3]);
        let (then, sharded) = taking.then.expect("all held");
        let complete = Complete { slot: u64::from(taking.first.slot), then, sharded };
        self.snapshots.complete.insert(number, complete);
        self.note("snapshot complete");
        self.compare_with_snapshot(number, false);
    }

    fn give_up_taking(&mut self, taking: Taking) {
        for gate in &mut self.snapshots.gates {
            gate.lapse(taking.attempt);
        }
        if taking.first.number > 0 {
            let end = EndCut { number: taking.first.number, ..EndCut::default() };
            self.apply(1, Opcode::EndCut, &end.encode_to_vec()).expect("void");
            self.note("void after a cut");
        }
    }

    /// A request to hold comes again, maybe when what it asked for is over.
    fn hold_late(&mut self) {
        let Some(taking) = &self.snapshots.taking else { return };
        let (attempt, asked) = (taking.attempt, taking.held.keys().copied().collect::<Vec<_>>());
        if asked.is_empty() {
            return;
        }
        let at = asked[self.draw(asked.len() as u64) as usize];
        let term = self.part(at).term;
        let was_open = !self.is_held(at);
        if self.snapshots.gates[at as usize - 1].close(attempt, term) && was_open {
            self.note("a new leader was asked late");
        }
    }

    /// The leader of a partition has ended: the next one holds nothing. That of the root's makes void what it finds.
    pub(super) fn snapshots_lose_leader(&mut self, at: u32) {
        if !self.snapshots.wanted {
            return;
        }
        self.snapshots.gates[at as usize - 1] = Gate::default();
        if at != 1 {
            return;
        }
        self.snapshots.taking = None;
        for gate in &mut self.snapshots.gates {
            // They lapse by themselves.
            let attempts = self.snapshots.attempts;
            (0..=attempts).for_each(|number| {
                (1..200).for_each(|term| drop(gate.lapse(CutAttempt { partition: 1, term, number })));
            });
        }
        for number in self.part(1).namespace.pending_snapshots() {
            let end = EndCut { number, ..EndCut::default() };
            self.apply(1, Opcode::EndCut, &end.encode_to_vec()).expect("void");
            self.note("void by the next leader");
        }
    }

    /// A partition hears which snapshots there are.
    fn tell(&mut self, at: u32) {
        let Some(list) = self.part(1).namespace.snapshots_to_follow() else { return };
        if at == 1 || self.is_held(at) || list.version <= self.part(at).namespace.snapshots_version() {
            return;
        }
        self.apply(at, Opcode::FollowSnapshots, &list.encode_to_vec()).expect("it follows");
        assert_eq!(self.part(at).namespace.lacks_snapshots(&list), [0; 0], "all partitions have what is complete");
    }

    fn delete_one(&mut self) {
        let numbers: Vec<u64> = self.snapshots.complete.keys().copied().collect();
        if numbers.is_empty() || self.is_held(1) {
            return;
        }
        let number = numbers[self.draw(numbers.len() as u64) as usize];
        let named = self.part(1).namespace.snapshots().into_iter().find(|info| info.number == number);
        let name = named.expect("it is there").name;
        self.snapshots.sequence += 1;
        let sequence = self.snapshots.sequence;
        let header = self.header(1).map(|header| MetaHeader { session: SESSION, sequence, ..header });
        let request = DeleteSnapshotRequest { header, name, ..DeleteSnapshotRequest::default() };
        self.apply(1, Opcode::DeleteSnapshot, &request.encode_to_vec()).expect("deleted");
        self.snapshots.complete.remove(&number);
        self.note("snapshot deleted");
    }

    fn look_at_a_snapshot(&mut self) {
        let numbers: Vec<u64> = self.snapshots.complete.keys().copied().collect();
        if !numbers.is_empty() {
            let number = numbers[self.draw(numbers.len() as u64) as usize];
            self.compare_with_snapshot(number, false);
        }
    }

    /// What is there at a snapshot is what the model was. What an operation has locked since is waited for, but not in
    /// the end.
    fn compare_with_snapshot(&mut self, number: u64, in_the_end: bool) {
        let complete = &self.snapshots.complete[&number];
        let outward = complete.slot << InodeId::SNAPSHOT_BITS;
        let aside = set_aside(&complete.then);
        let (mut waits, mut seen) = (0, 0);
        for (inode, node) in complete.then.nodes.iter().filter(|(inode, _)| !aside.contains(inode)) {
            let expected = complete.then.attributes(*inode);
            let found = match self.look_at(inode | outward) {
                Err(ErrorCode::LeaseHeld) if !in_the_end => {
                    waits += 1;
                    continue;
                }
                found => {
                    found.map(|found| Some(cairn_model::Attributes { inode: InodeId(found.inode).now().0, ..found }))
                }
            };
            let is_same = self.same_at(&found, &expected, complete.sharded.contains(inode));
            let part = &self.parts[owner(*inode) as usize - 1].namespace;
            assert!(
                is_same,
                "inode {inode} at snapshot {number}: {found:?}, {expected:?}; {:?}, locks {:?}",
                part.snapshots(),
                part.tx_locks(9)
            );
            seen += 1;
            if node.is_directory() {
                let list: Vec<(Vec<u8>, u64)> =
                    self.list(inode | outward).into_iter().map(|(name, id)| (name, InodeId(id).now().0)).collect();
                let expected: Vec<(Vec<u8>, u64)> = node.entries().into_iter().collect();
                let locked = self.shards_of(inode | outward).iter().any(|shard| self.look_at(*shard).is_err());
                assert!(
                    locked && !in_the_end || list == expected,
                    "entries of {inode} at snapshot {number}: {list:?}, {expected:?}"
                );
            }
        }
        if waits > 0 {
            self.note("snapshot read waits");
        }
        if seen > 8 {
            self.note(if in_the_end { "snapshot compared in the end" } else { "snapshot compared" });
        }
    }

    /// Everything is told, and each snapshot is looked at once more.
    pub(super) fn settle_snapshots(&mut self) {
        if !self.snapshots.wanted {
            return;
        }
        if let Some(taking) = self.snapshots.taking.take() {
            self.give_up_taking(taking);
        }
        (2..=PARTITIONS).for_each(|at| self.tell(at));
    }

    pub(super) fn compare_snapshots(&mut self) {
        let numbers: Vec<u64> = self.snapshots.complete.keys().copied().collect();
        for number in numbers {
            self.compare_with_snapshot(number, true);
        }
        for at in 1..=PARTITIONS {
            let there: Vec<u64> = self.part(at).namespace.snapshots().into_iter().map(|info| info.number).collect();
            let known: Vec<u64> = self.snapshots.complete.keys().copied().collect();
            assert!(!self.snapshots.wanted || there == known, "partition {at} has {there:?} instead of {known:?}");
        }
    }
}
