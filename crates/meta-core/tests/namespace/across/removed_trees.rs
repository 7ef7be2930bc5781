//! Removed trees that are in two partitions, in orders of events that random schedules meet seldom.
use super::schedules::{FIRST_OF_SECOND, Part};
use crate::driver::restore;
use cairn_meta_core::{MOVES, Namespace, Outcome, TxId};
use cairn_types::ErrorCode;
use cairn_wire::Opcode;
use cairn_wire::common::Empty;
use cairn_wire::error::WireError;
use cairn_wire::meta::*;
use prost::Message;
use std::collections::BTreeMap;

const ROOT: u64 = 1;

/// Two partitions whose leaders lose nothing.
pub(super) struct Two {
    parts: [Part; 2],
    sessions: u64,
    attempts: u64,
}

/// An operation that was prepared.
struct Prepared {
    tx: TxId,
    opcode: Opcode,
    request: Vec<u8>,
    participants: Vec<TxParticipant>,
}

fn owner(inode: u64) -> u32 {
    if inode < FIRST_OF_SECOND { 1 } else { 2 }
}

impl Two {
    pub fn new() -> Two {
        Two { parts: [Part::new(1), Part::new(2)], sessions: 0, attempts: 0 }
    }

    pub fn part(&mut self, number: u32) -> &mut Part {
        &mut self.parts[number as usize - 1]
    }

    /// Each request is of a session of its own.
    pub fn header(&mut self, at: u32) -> Option<MetaHeader> {
        self.sessions += 1;
        let session = self.sessions;
        self.part(at).header(session, 1)
    }

    fn tx(&mut self, decider: u32) -> TxId {
        self.attempts += 1;
        TxId { partition: decider, term: 1, number: self.attempts }
    }

    /// What a leader does until nothing more is wanted.
    fn prepare(&mut self, decider: u32, opcode: Opcode, request: &impl Message) -> Result<Prepared, WireError> {
        let tx = self.tx(decider);
        let mut prepared = Prepared { tx, opcode, request: request.encode_to_vec(), participants: Vec::new() };
        for _ in 0..9 {
            let wants = self.part(decider).0.tx_wants(opcode, &prepared.request, &prepared.participants)?;
            if wants.is_empty() {
                return Ok(prepared);
            }
            let mut asked: BTreeMap<u32, TxPrepare> = BTreeMap::new();
            let moves = wants.moves.then_some(MOVES);
            for inode in wants.inodes.into_iter().chain(moves) {
                let to = if inode == MOVES { 1 } else { owner(inode) };
                asked.entry(to).or_default().inodes.push(inode);
            }
            for (directory, name) in wants.names {
                let request = asked.entry(owner(directory)).or_default();
                request.names.push(TxName { directory, name, ..TxName::default() });
            }
            for (to, request) in asked {
                let request = TxPrepare { tx: Some(tx.wire()), ..request };
                let answer: TxPrepared = self.part(to).apply(Opcode::TxPrepare, &request)?;
                let known = participant(&mut prepared.participants, to).prepared.get_or_insert_default();
                known.lock = answer.lock;
                known.inodes.extend(answer.inodes);
                known.names.extend(answer.names);
            }
            for directory in wants.above {
                let seen = self.part(owner(directory)).0.tx_above(tx, directory)?;
                participant(&mut prepared.participants, owner(directory)).seen.extend(seen);
            }
        }
        panic!("{opcode:?} wants ever more");
    }

    /// The entry of the one that decides; without participants the request itself.
    fn decide(&mut self, prepared: &Prepared) -> Result<(), WireError> {
        let Prepared { tx, opcode, request, participants } = prepared;
        let decide = TxDecide {
            tx: Some(tx.wire()),
            opcode: opcode.code().into(),
            request: request.clone(),
            participants: participants.clone(),
            at_limit: 0,
        };
        self.part(tx.partition).apply::<Empty>(Opcode::TxDecide, &decide).map(drop)
    }

    /// Every participant does its part, if there is one, and the record goes.
    fn finish(&mut self, prepared: &Prepared) {
        let tx = prepared.tx;
        for participant in prepared.participants.iter().filter(|p| p.prepared.is_some()) {
            let effects = match self.part(tx.partition).0.tx_outcome(tx, participant.partition) {
                Outcome::Done(effects) => Some(effects),
                Outcome::NoRecord => None,
            };
            let lock = participant.prepared.as_ref().map_or(0, |prepared| prepared.lock);
            let request = TxFinish { tx: Some(tx.wire()), effects, lock };
            self.part(participant.partition).apply::<Empty>(Opcode::TxFinish, &request).expect("finished");
        }
        self.part(tx.partition).apply::<Empty>(Opcode::TxDone, &TxDone { txs: vec![tx.wire()] }).expect("forgotten");
    }

    /// The whole operation.
    pub fn run(&mut self, at: u32, opcode: Opcode, request: &impl Message) -> Result<(), ErrorCode> {
        let prepared = self.prepare(at, opcode, request).map_err(|error| error.code)?;
        if prepared.participants.is_empty() {
            return self.part(at).apply::<AnyAnswer>(opcode, request).map(drop).map_err(|error| error.code);
        }
        let done = self.decide(&prepared).map_err(|error| error.code);
        self.finish(&prepared);
        done
    }

    /// A directory, made where it is asked for.
    pub fn mkdir(&mut self, parent: u64, name: &str, elsewhere: bool) -> u64 {
        let at = owner(parent);
        let header = self.header(at);
        let mkdir = MkdirRequest { header, parent, name: name.into(), mode: 0o777, ..MkdirRequest::default() };
        if !elsewhere {
            let made: AttributesResponse = self.part(at).apply(Opcode::Mkdir, &mkdir).expect("made");
            return made.attributes.expect("attributes").inode;
        }
        let (tx, to) = (self.tx(at), 3 - at);
        let request = TxPrepare { tx: Some(tx.wire()), new_inode: true, ..TxPrepare::default() };
        let answer: TxPrepared = self.part(to).apply(Opcode::TxPrepare, &request).expect("prepared");
        let participants = vec![TxParticipant { partition: to, prepared: Some(answer), seen: Vec::new() }];
        let prepared = Prepared { tx, opcode: Opcode::Mkdir, request: mkdir.encode_to_vec(), participants };
        self.decide(&prepared).expect("decided");
        self.finish(&prepared);
        self.entry(parent, name).expect("made")
    }

    pub fn create(&mut self, parent: u64, name: &str) -> Result<u64, ErrorCode> {
        let at = owner(parent);
        let header = self.header(at);
        let create = CreateRequest { header, parent, name: name.into(), mode: 0o100_644, ..CreateRequest::default() };
        let made: Result<AttributesResponse, _> = self.part(at).apply(Opcode::Create, &create);
        made.map(|made| made.attributes.expect("attributes").inode).map_err(|error| error.code)
    }

    pub fn remove_tree(&mut self, parent: u64, name: &str) -> Result<(), ErrorCode> {
        let at = owner(parent);
        let request = RemoveTreeRequest { header: self.header(at), parent, name: name.into() };
        self.run(at, Opcode::RemoveTree, &request)
    }

    fn rename_request(&mut self, parent: u64, name: &str, new_parent: u64, new_name: &str) -> RenameRequest {
        let header = self.header(owner(parent));
        let (name, new_name) = (name.into(), new_name.into());
        RenameRequest { header, parent, name, new_parent, new_name, flags: 0 }
    }

    pub fn rename(&mut self, parent: u64, name: &str, new_parent: u64, new_name: &str) -> Result<(), ErrorCode> {
        let request = self.rename_request(parent, name, new_parent, new_name);
        self.run(owner(parent), Opcode::Rename, &request)
    }

    pub fn entry(&mut self, parent: u64, name: &str) -> Option<u64> {
        let at = owner(parent);
        let request = ReaddirRequest { header: self.header(at), inode: parent, ..ReaddirRequest::default() };
        let mut out = Vec::new();
        self.part(at).0.read(Opcode::Readdir, &request.encode_to_vec(), &mut out).ok()?;
        let listed = ReaddirResponse::decode(out.as_slice()).expect("an answer").entries;
        listed.into_iter().find(|entry| entry.name == name.as_bytes()).map(|entry| entry.inode)
    }

    pub fn blocked(&mut self, at: u32) -> Vec<(u64, String)> {
        let blocked = self.part(at).0.reclaim_blocked(100);
        blocked.into_iter().map(|(directory, name)| (directory, String::from_utf8(name).expect("a name"))).collect()
    }

    /// Batches until there is nothing more that a partition can do alone.
    pub fn batches(&mut self, at: u32) {
        for _ in 0..100 {
            if self.part(at).0.reclaimable().is_empty() {
                return;
            }
            let request = ReclaimBatch { inodes_max: 1, ..ReclaimBatch::default() };
            self.part(at).apply::<Empty>(Opcode::ReclaimBatch, &request).expect("a batch");
        }
        panic!("batches go on for ever: {:?}", self.part(at).0.reclaimable());
    }

    pub fn reclaim_entry(&mut self, directory: u64, name: &str) -> Result<(), ErrorCode> {
        let request = ReclaimEntry { directory, name: name.into() };
        self.run(owner(directory), Opcode::ReclaimEntry, &request)
    }

    /// All that leaders do, until nothing is left to do.
    pub fn reclaim_all(&mut self) {
        for _ in 0..100 {
            (1..=2).for_each(|at| self.batches(at));
            let blocked: Vec<(u64, String)> = (1..=2).flat_map(|at| self.blocked(at)).collect();
            if blocked.is_empty() {
                return;
            }
            for (directory, name) in blocked {
                self.reclaim_entry(directory, &name).expect("nothing is in the way");
            }
        }
        panic!("entries are left for ever");
    }

    /// Inodes of both partitions.
    pub fn counted(&self) -> [u64; 2] {
        [0, 1].map(|at: usize| self.parts[at].0.counters().inodes)
    }

    /// A leader ends; the next one starts from a checkpoint.
    pub fn restart(&mut self, at: u32) {
        let pages: Vec<Vec<u8>> = self.part(at).0.snapshot().pages(16 << 10).collect();
        self.part(at).0 = restore(&pages);
        self.part(at).0.check_invariants().expect("sound");
    }
}

fn participant(participants: &mut Vec<TxParticipant>, partition: u32) -> &mut TxParticipant {
    let at = participants.iter().position(|p| p.partition == partition).unwrap_or_else(|| {
        participants.push(TxParticipant { partition, ..TxParticipant::default() });
        participants.len() - 1
    });
    &mut participants[at]
}

/// Whatever the answer is.
#[derive(Clone, PartialEq, Message)]
struct AnyAnswer {}

/// Of a tree whose top another partition has, what is below would stay for ever.
#[test]
fn the_top_is_in_another_partition() {
    let mut two = Two::new();
    let top = two.mkdir(ROOT, "top", true);
    let sub = two.mkdir(top, "sub", false);
    let back = two.mkdir(sub, "back", true);
    assert_eq!([owner(top), owner(sub), owner(back)], [2, 2, 1]);
    for directory in [top, sub, back] {
        two.create(directory, "f").expect("made");
    }
    two.remove_tree(ROOT, "top").expect("removed");
    assert_eq!(two.entry(ROOT, "top"), None);
    assert_eq!(two.create(sub, "g"), Err(ErrorCode::NotFound), "it is below what was removed");
    two.batches(2);
    assert_eq!(two.blocked(2), [(sub, "back".into())]);
    two.create(back, "late").expect("its partition does not know yet");
    two.reclaim_all();
    assert_eq!(two.counted(), [1, 0]);
}

/// One entry of another partition would stop the reclaiming of everything else, or be forgotten by a restart.
#[test]
fn the_rest_goes_on() {
    let mut two = Two::new();
    let top = two.mkdir(ROOT, "top", false);
    let sub = two.mkdir(top, "n", false);
    for (parent, names) in [(top, ["a", "z"]), (sub, ["b", "y"])] {
        for name in names {
            two.create(parent, name).expect("made");
        }
        two.mkdir(parent, "m", true);
    }
    let other = two.mkdir(ROOT, "other", false);
    two.create(other, "f").expect("made");
    two.remove_tree(ROOT, "top").expect("removed");
    two.remove_tree(ROOT, "other").expect("removed");
    two.batches(1);
    assert_eq!(two.counted(), [3, 2], "the root and the two directories that have such an entry");
    assert_eq!(two.blocked(1), [(top, "m".into()), (sub, "m".into())]);
    assert_eq!(two.part(1).0.reclaim_blocked(1), [(top, b"m".to_vec())]);
    assert_eq!(two.part(1).0.reclaim_blocked_after(top, b"m", 9), [(sub, b"m".to_vec())], "one after the other");
    two.restart(1);
    assert!(two.part(1).0.reclaimable().is_empty(), "no batch for what waits");
    assert_eq!(two.blocked(1).len(), 2);
    two.reclaim_entry(sub, "m").expect("done");
    assert_eq!(two.counted(), [2, 1], "a directory goes with its last entry");
    two.reclaim_entry(top, "m").expect("done");
    assert_eq!((two.counted(), two.blocked(1)), ([1, 0], vec![]));
}

/// An entry would be taken out twice, or an inode stay without a name, when the leader changes in between.
#[test]
fn the_leader_ends_before_the_finish() {
    let mut two = Two::new();
    let top = two.mkdir(ROOT, "top", false);
    let x = two.mkdir(top, "x", true);
    two.create(x, "f").expect("made");
    two.remove_tree(ROOT, "top").expect("removed");
    two.batches(1);
    let entry = ReclaimEntry { directory: top, name: b"x".to_vec() };
    // Before the decision: the next leader takes it up again when the lock is gone.
    let first = two.prepare(1, Opcode::ReclaimEntry, &entry).expect("prepared");
    two.restart(1);
    assert_eq!(two.blocked(1), [(top, "x".into())]);
    let refused = two.prepare(1, Opcode::ReclaimEntry, &entry).map(|_| ()).expect_err("it is locked");
    assert_eq!(refused.code, ErrorCode::LeaseHeld);
    two.finish(&first);
    // Behind it: there is nothing to take up, and the record is carried out.
    let second = two.prepare(1, Opcode::ReclaimEntry, &entry).expect("prepared");
    two.decide(&second).expect("decided");
    two.restart(1);
    two.restart(2);
    assert_eq!((two.blocked(1), two.counted()[0]), (vec![], 1), "the directory is gone");
    two.reclaim_entry(top, "x").expect("a repeat does nothing");
    assert_eq!(two.counted(), [1, 2]);
    assert_eq!(two.part(2).getattr(x).map(|_| ()), Err(ErrorCode::LeaseHeld));
    two.finish(&second);
    two.finish(&second);
    two.reclaim_all();
    assert_eq!(two.counted(), [1, 0]);
}

/// What is made below a removed directory whose partition does not know yet would be left over.
#[test]
fn what_is_made_meanwhile_goes_too() {
    let mut two = Two::new();
    let top = two.mkdir(ROOT, "top", false);
    let x = two.mkdir(top, "x", true);
    let y = two.mkdir(x, "y", false);
    two.remove_tree(ROOT, "top").expect("removed");
    two.create(x, "one").expect("not known there yet");
    two.batches(1);
    two.mkdir(y, "two", true);
    let entry = ReclaimEntry { directory: top, name: b"x".to_vec() };
    let prepared = two.prepare(1, Opcode::ReclaimEntry, &entry).expect("prepared");
    assert_eq!(two.create(x, "three"), Err(ErrorCode::LeaseHeld), "it is locked");
    two.create(y, "three").expect("that one is not");
    two.decide(&prepared).expect("decided");
    two.create(y, "four").expect("its partition does not know yet");
    two.finish(&prepared);
    for directory in [x, y] {
        assert_eq!(two.create(directory, "five"), Err(ErrorCode::NotFound), "now it does");
    }
    two.reclaim_all();
    assert_eq!(two.counted(), [1, 0]);
}

/// What somebody moves out of a removed tree in time would be lost, or what nobody can move any more come back.
#[test]
fn what_is_moved_out_in_time_stays() {
    let mut two = Two::new();
    let top = two.mkdir(ROOT, "top", false);
    let x = two.mkdir(top, "x", true);
    for name in ["y", "z"] {
        let below = two.mkdir(x, name, false);
        two.create(below, "f").expect("made");
    }
    two.remove_tree(ROOT, "top").expect("removed");
    assert_eq!(two.rename(top, "x", ROOT, "x"), Err(ErrorCode::NotFound), "nothing is moved out of what was removed");
    two.rename(x, "y", ROOT, "saved").expect("not known there yet");
    two.batches(1);
    // The other one is prepared in time, and decided when it is too late.
    let request = two.rename_request(x, "z", ROOT, "late");
    let late = two.prepare(2, Opcode::Rename, &request).expect("prepared");
    let entry = ReclaimEntry { directory: top, name: b"x".to_vec() };
    let reclaim = two.prepare(1, Opcode::ReclaimEntry, &entry).expect("prepared");
    assert_eq!(two.decide(&late).expect_err("it is locked").code, ErrorCode::LeaseHeld);
    two.decide(&reclaim).expect("decided");
    two.finish(&reclaim);
    assert_eq!(two.decide(&late).expect_err("it is gone").code, ErrorCode::NotFound);
    two.finish(&late);
    two.reclaim_all();
    let saved = two.entry(ROOT, "saved").expect("there");
    assert!(two.entry(saved, "f").is_some());
    assert_eq!(two.counted(), [1, 2]);
}

/// A file with another name would go with the tree, or one without stay.
#[test]
fn files_lose_a_name_each() {
    let mut two = Two::new();
    let (top, beside) = (two.mkdir(ROOT, "top", false), two.mkdir(ROOT, "beside", true));
    let linked = two.create(beside, "linked").expect("made");
    two.create(beside, "moved").expect("made");
    let link = LinkRequest { header: two.header(1), inode: linked, parent: top, name: b"l".to_vec(), replace: false };
    two.run(1, Opcode::Link, &link).expect("linked");
    two.rename(beside, "moved", top, "m").expect("moved");
    two.remove_tree(ROOT, "top").expect("removed");
    two.reclaim_all();
    assert_eq!(two.part(2).getattr(linked).expect("it has a name").nlink, 1);
    assert_eq!(two.counted(), [1, 2]);
}

/// Entries of directories that were not removed would vanish by an entry of the log that came late; other entries of
/// leaders would be decided.
#[test]
fn nothing_else_is_taken_out() {
    let mut two = Two::new();
    let top = two.mkdir(ROOT, "top", false);
    two.mkdir(top, "x", true);
    assert_eq!(two.reclaim_entry(top, "x"), Err(ErrorCode::NotPermitted));
    assert_eq!(two.reclaim_entry(top, "y"), Ok(()), "an entry that is gone");
    assert_eq!(two.reclaim_entry(77, "x"), Ok(()), "a directory that is gone");
    let elsewhere = ReclaimEntry { directory: FIRST_OF_SECOND, name: b"x".to_vec() };
    let refused = two.part(1).apply::<Empty>(Opcode::ReclaimEntry, &elsewhere).expect_err("not its own");
    assert_eq!(refused.code, ErrorCode::UnknownPartition);
    let tx = Some(two.tx(1).wire());
    for opcode in [Opcode::ReclaimBatch, Opcode::TxDone, Opcode::MendNamespace] {
        let decide = TxDecide { tx, opcode: opcode.code().into(), ..TxDecide::default() };
        assert_eq!(
            two.part(1).apply::<Empty>(Opcode::TxDecide, &decide).map_err(|e| e.code),
            Err(ErrorCode::BadRequest)
        );
    }
    two.remove_tree(ROOT, "top").expect("removed");
    let entry = ReclaimEntry { directory: top, name: b"x".to_vec() };
    let refused = two.part(1).apply::<Empty>(Opcode::ReclaimEntry, &entry).expect_err("not without its partition");
    assert!(Namespace::is_prepared_anew(&refused), "{refused:?}");
    two.reclaim_entry(top, "x").expect("before a batch has met it, too");
    two.reclaim_all();
    assert_eq!(two.counted(), [1, 0]);
}

/// A leader would ask for ever what is above a directory that is gone.
#[test]
fn above_what_is_gone_there_is_nothing() {
    let mut two = Two::new();
    let top = two.mkdir(ROOT, "top", true);
    let inner = two.mkdir(top, "inner", true);
    let moved = two.mkdir(ROOT, "moved", false);
    two.mkdir(moved, "below", false);
    two.remove_tree(ROOT, "top").expect("removed");
    two.batches(2);
    let entry = ReclaimEntry { directory: top, name: b"inner".to_vec() };
    let reclaim = two.prepare(2, Opcode::ReclaimEntry, &entry).expect("prepared");
    two.decide(&reclaim).expect("decided");
    assert_eq!(two.counted()[1], 0, "the directory above is gone, and the one below does not know yet");
    assert_eq!(two.rename(ROOT, "moved", inner, "moved"), Err(ErrorCode::LeaseHeld));
    two.finish(&reclaim);
    assert_eq!(two.rename(ROOT, "moved", inner, "moved"), Err(ErrorCode::Stale));
    two.reclaim_all();
    assert_eq!(two.counted(), [3, 0]);
}

/// A directory would be moved out of a removed tree as one that was removed, when the tree goes between what is
/// prepared of it: it would have a name and not be there.
#[test]
fn a_tree_is_removed_while_something_in_it_is_prepared() {
    let mut two = Two::new();
    let top = two.mkdir(ROOT, "top", false);
    let inner = two.mkdir(top, "inner", false);
    let x = two.mkdir(inner, "x", false);
    let other = two.mkdir(ROOT, "other", true);
    two.mkdir(other, "m", false);
    let request = RenameRequest { flags: 2, ..two.rename_request(other, "m", inner, "x") };
    let tx = two.tx(2);
    let names = vec![TxName { directory: inner, name: b"x".to_vec(), ..TxName::default() }];
    let first = TxPrepare { tx: Some(tx.wire()), inodes: vec![inner], names, new_inode: false };
    let mut answer: TxPrepared = two.part(1).apply(Opcode::TxPrepare, &first).expect("prepared");
    two.remove_tree(ROOT, "top").expect("removed");
    let second = TxPrepare { tx: Some(tx.wire()), inodes: vec![x], ..TxPrepare::default() };
    let more: TxPrepared = two.part(1).apply(Opcode::TxPrepare, &second).expect("prepared");
    answer.inodes.extend(more.inodes);
    let participants = vec![TxParticipant { partition: 1, prepared: Some(answer), seen: Vec::new() }];
    let prepared = Prepared { tx, opcode: Opcode::Rename, request: request.encode_to_vec(), participants };
    assert_eq!(two.decide(&prepared).expect_err("it was removed").code, ErrorCode::NotFound);
    two.finish(&prepared);
    two.reclaim_all();
    assert_eq!(two.counted(), [1, 2]);
}
