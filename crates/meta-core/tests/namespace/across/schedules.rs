//! Orders of events that random schedules meet seldom.
use crate::driver::config;
use cairn_meta_core::{AppliedAt, MOVES, Namespace, NamespaceConfig};
use cairn_types::{ErrorCode, PartitionId, WallTime};
use cairn_wire::Opcode;
use cairn_wire::common::{Credentials, Empty};
use cairn_wire::error::WireError;
use cairn_wire::meta::*;
use prost::Message;

pub(super) const FIRST_OF_SECOND: u64 = 1 << 40;

/// One of two partitions, whose log ascends.
pub(super) struct Part(pub Namespace, u64, u32);

impl Part {
    pub fn new(number: u32) -> Part {
        let inodes = if number == 1 { 1..=FIRST_OF_SECOND - 1 } else { FIRST_OF_SECOND..=2 * FIRST_OF_SECOND - 1 };
        let config = NamespaceConfig { partition: PartitionId(number), inodes, root_mode: 0o777, ..config() };
        Part(Namespace::new(&config), 0, number)
    }

    pub fn apply<A: Message + Default>(&mut self, opcode: Opcode, request: &impl Message) -> Result<A, WireError> {
        self.1 += 1;
        let at = AppliedAt { index: self.1, term: 1, time: WallTime(1_000_000 + self.1) };
        let mut out = Vec::new();
        self.0.apply(at, opcode, &request.encode_to_vec(), &mut out)?;
        if let Err(violation) = self.0.check_invariants() {
            panic!("partition {} after {opcode:?}: {violation}", self.2);
        }
        Ok(A::decode(out.as_slice()).expect("an answer"))
    }

    pub fn header(&self, session: u64, sequence: u64) -> Option<MetaHeader> {
        let who = Some(Credentials::default());
        Some(MetaHeader { volume: 1, partition: self.2, session, slot: 0, sequence, who })
    }

    pub fn getattr(&self, inode: u64) -> Result<Attributes, ErrorCode> {
        let mut out = Vec::new();
        let request = GetattrRequest { header: self.header(9, 0), inode };
        self.0.read(Opcode::Getattr, &request.encode_to_vec(), &mut out).map_err(|error| error.code)?;
        Ok(AttributesResponse::decode(out.as_slice()).expect("an answer").attributes.expect("attributes"))
    }

    fn finish(&mut self, tx: &TxId, lock: u64, effects: Option<TxEffects>) {
        let request = TxFinish { tx: Some(*tx), lock, effects };
        self.apply::<Empty>(Opcode::TxFinish, &request).expect("finished");
    }
}

fn tx(number: u64) -> TxId {
    TxId { partition: 1, term: 1, number }
}

/// A member that led, and leads again, proposes what it had prepared before: its participants may have heard that it
/// was not done.
#[test]
fn nothing_is_decided_in_a_later_term() {
    let (mut first, mut second) = (Part::new(1), Part::new(2));
    let tx = TxId { partition: 1, term: 0, number: 1 };
    let request = TxPrepare { tx: Some(tx), new_inode: true, ..TxPrepare::default() };
    let prepared: TxPrepared = second.apply(Opcode::TxPrepare, &request).expect("prepared");
    let header = first.header(7, 1);
    let mkdir = MkdirRequest { header, parent: 1, name: b"d".to_vec(), mode: 0o755, ..MkdirRequest::default() };
    let mut decide = TxDecide {
        tx: Some(tx),
        opcode: Opcode::Mkdir.code().into(),
        request: mkdir.encode_to_vec(),
        participants: vec![TxParticipant { partition: 2, prepared: Some(prepared), seen: Vec::new() }],
        at_limit: 0,
    };
    let refused = first.apply::<AttributesResponse>(Opcode::TxDecide, &decide).map_err(|error| error.code);
    assert_eq!(refused.map(|_| ()), Err(ErrorCode::LeaseHeld));
    assert!(first.0.tx_decisions(1).is_empty());
    decide.tx = Some(TxId { term: 1, ..tx });
    first.apply::<AttributesResponse>(Opcode::TxDecide, &decide).expect("in its own term, under the same number");
}

fn prepare(tx: TxId, inodes: &[u64]) -> TxPrepare {
    TxPrepare { tx: Some(tx), inodes: inodes.to_vec(), ..TxPrepare::default() }
}

/// A directory of the second partition under a name of the first one.
pub(super) fn made_elsewhere(first: &mut Part, second: &mut Part, number: u64, name: &str) -> u64 {
    let request = TxPrepare { tx: Some(tx(number)), new_inode: true, ..TxPrepare::default() };
    let prepared: TxPrepared = second.apply(Opcode::TxPrepare, &request).expect("prepared");
    let made = prepared.new_inode;
    let header = first.header(1, number);
    let mkdir = MkdirRequest { header, parent: 1, name: name.into(), mode: 0o755, ..MkdirRequest::default() };
    let effects = decide(first, number, Opcode::Mkdir, &mkdir, prepared).expect("decided");
    second.finish(&tx(number), effects.lock, Some(effects));
    made
}

fn decide(
    first: &mut Part,
    number: u64,
    opcode: Opcode,
    request: &impl Message,
    prepared: TxPrepared,
) -> Result<TxEffects, WireError> {
    let participants = vec![TxParticipant { partition: 2, prepared: Some(prepared), seen: Vec::new() }];
    let (opcode, request) = (opcode.code().into(), request.encode_to_vec());
    let decide = TxDecide { tx: Some(tx(number)), opcode, request, participants, at_limit: 0 };
    first.apply::<Empty>(Opcode::TxDecide, &decide)?;
    let found = first.0.tx_decisions(9).into_iter().find(|(id, _)| id.number == number).expect("a record");
    Ok(found.1.effects[0].clone())
}

/// A request to prepare that comes when all is over would lock again, and what was decided be done once more.
#[test]
fn what_is_prepared_late_is_not_done_again() {
    let (mut first, mut second) = (Part::new(1), Part::new(2));
    let made = made_elsewhere(&mut first, &mut second, 1, "d");
    let rename = RenameRequest {
        header: first.header(1, 2),
        parent: 1,
        name: b"d".to_vec(),
        new_parent: 1,
        new_name: b"e".to_vec(),
        flags: 0,
    };
    let prepared: TxPrepared = second.apply(Opcode::TxPrepare, &prepare(tx(2), &[made])).expect("prepared");
    assert_eq!(second.getattr(made).map(|found| found.inode), Err(ErrorCode::LeaseHeld), "nobody reads what is locked");
    let effects = decide(&mut first, 2, Opcode::Rename, &rename, prepared).expect("decided");
    second.finish(&tx(2), effects.lock, Some(effects.clone()));
    // Somebody makes a directory in it.
    let header = second.header(5, 1);
    let mkdir = MkdirRequest { header, parent: made, name: b"x".to_vec(), mode: 0o755, ..MkdirRequest::default() };
    second.apply::<AttributesResponse>(Opcode::Mkdir, &mkdir).expect("made");
    let again: TxPrepared = second.apply(Opcode::TxPrepare, &prepare(tx(2), &[made])).expect("prepared");
    assert_ne!(again.lock, effects.lock);
    second.finish(&tx(2), again.lock, Some(effects));
    let found = second.getattr(made).expect("there");
    assert_eq!((found.nlink, found.size), (3, 1), "what came after is there");
}

/// The end of an attempt that was given up, told once more, would open what a later attempt has locked.
#[test]
fn what_is_told_late_ends_no_later_attempt() {
    let (mut first, mut second) = (Part::new(1), Part::new(2));
    let made = made_elsewhere(&mut first, &mut second, 1, "d");
    let given_up: TxPrepared = second.apply(Opcode::TxPrepare, &prepare(tx(2), &[made])).expect("prepared");
    second.finish(&tx(2), given_up.lock, None);
    assert_eq!(second.getattr(made).map(|found| found.inode), Ok(made), "nothing is locked");
    let later: TxPrepared = second.apply(Opcode::TxPrepare, &prepare(tx(2), &[made])).expect("prepared");
    second.finish(&tx(2), given_up.lock, None);
    assert_eq!(second.getattr(made).map(|found| found.inode), Err(ErrorCode::LeaseHeld), "it is locked still");
    second.finish(&tx(2), later.lock, None);
    assert_eq!(second.getattr(made).map(|found| found.inode), Ok(made));
}

/// A file without a name, held by a session, would be gone when another partition gives it one as that session ends.
#[test]
fn what_is_locked_outlives_who_held_it() {
    let (mut first, mut second) = (Part::new(1), Part::new(2));
    let made = made_elsewhere(&mut first, &mut second, 1, "d");
    let header = second.header(7, 1);
    let request = CreateUnnamedRequest { header, parent: made, mode: 0o100_644, ..CreateUnnamedRequest::default() };
    let file: AttributesResponse = second.apply(Opcode::CreateUnnamed, &request).expect("made");
    let file = file.attributes.expect("attributes").inode;
    for (number, done) in [(2, false), (3, true)] {
        let prepared: TxPrepared = second.apply(Opcode::TxPrepare, &prepare(tx(number), &[file])).expect("prepared");
        let effects = done.then(|| {
            let request = EndSessionRequest { header: second.header(7, 0) };
            second.apply::<Empty>(Opcode::EndSession, &request).expect("ended");
            second.apply::<Empty>(Opcode::ReclaimBatch, &ReclaimBatch::default()).expect("let go");
            let header = first.header(1, number - 1);
            let link = LinkRequest { header, inode: file, parent: 1, name: b"f".to_vec(), replace: false };
            decide(&mut first, number, Opcode::Link, &link, prepared.clone()).expect("decided")
        });
        second.finish(&tx(number), prepared.lock, effects);
        let links = second.getattr(file).expect("there").nlink;
        assert_eq!(links, u32::from(done));
    }
    // Of another one that gets no name nothing is left.
    let header = second.header(8, 1);
    let request = CreateUnnamedRequest { header, parent: made, mode: 0o100_644, ..CreateUnnamedRequest::default() };
    let file: AttributesResponse = second.apply(Opcode::CreateUnnamed, &request).expect("made");
    let file = file.attributes.expect("attributes").inode;
    let prepared: TxPrepared = second.apply(Opcode::TxPrepare, &prepare(tx(4), &[file])).expect("prepared");
    second.apply::<Empty>(Opcode::EndSession, &EndSessionRequest { header: second.header(8, 0) }).expect("ended");
    second.apply::<Empty>(Opcode::ReclaimBatch, &ReclaimBatch::default()).expect("let go");
    second.finish(&tx(4), prepared.lock, None);
    assert_eq!(second.getattr(file).map(|found| found.nlink), Err(ErrorCode::Stale));
}

/// Two directories could be moved into each other, each in a partition that does not see the other move.
#[test]
fn directories_with_others_in_them_move_one_at_a_time() {
    let mut first = Part::new(1);
    let mkdir = |first: &mut Part, sequence: u64, parent: u64, name: &str| {
        let header = first.header(1, sequence);
        let request = MkdirRequest { header, parent, name: name.into(), mode: 0o755, ..MkdirRequest::default() };
        first.apply::<AttributesResponse>(Opcode::Mkdir, &request).expect("made").attributes.expect("attributes").inode
    };
    let a = mkdir(&mut first, 1, 1, "a");
    mkdir(&mut first, 2, a, "x");
    let b = mkdir(&mut first, 3, 1, "b");
    let rename = RenameRequest {
        header: first.header(1, 4),
        parent: 1,
        name: b"a".to_vec(),
        new_parent: b,
        new_name: b"a".to_vec(),
        flags: 0,
    };
    let wants = first.0.tx_wants(Opcode::Rename, &rename.encode_to_vec(), &[]).expect("wants");
    assert!(wants.moves && wants.inodes.is_empty(), "{wants:?}");
    let refused = first.apply::<Empty>(Opcode::Rename, &rename).expect_err("not without the lock of moves");
    assert!(Namespace::is_prepared_anew(&refused), "{refused:?}");
    let prepared: TxPrepared = first.apply(Opcode::TxPrepare, &prepare(tx(1), &[MOVES])).expect("prepared");
    let other = TxId { partition: 2, ..tx(1) };
    let second = first.apply::<Empty>(Opcode::TxPrepare, &prepare(other, &[MOVES])).expect_err("one at a time");
    assert_eq!(second.code, ErrorCode::LeaseHeld);
    let lock = prepared.lock;
    decide(&mut first, 1, Opcode::Rename, &rename, prepared).expect("with the lock it is done");
    first.finish(&tx(1), lock, None);
    assert_eq!(first.getattr(b).expect("there").nlink, 3);
}

/// What is above a directory would be what it was before a move that is decided and not finished here: two directories
/// could come to be in each other.
#[test]
fn what_may_have_been_moved_is_waited_for() {
    let (mut first, mut second) = (Part::new(1), Part::new(2));
    let made = made_elsewhere(&mut first, &mut second, 1, "d");
    let prepared: TxPrepared = second.apply(Opcode::TxPrepare, &prepare(tx(2), &[made])).expect("prepared");
    let id = |number: u64| cairn_meta_core::TxId { partition: 1, term: 1, number };
    assert_eq!(second.0.tx_above(id(3), made).expect_err("another one has it").code, ErrorCode::LeaseHeld);
    assert_eq!(second.0.tx_above(id(2), made).expect("its own").len(), 1);
    second.finish(&tx(2), prepared.lock, None);
    assert_eq!(second.0.tx_above(id(3), made).expect("free").len(), 1);
}

/// A file that another partition gives a name would have one link too many, or be gone, when the directory of its first
/// name is taken apart meanwhile.
#[test]
fn what_is_locked_is_not_taken_apart() {
    let (mut first, mut second) = (Part::new(1), Part::new(2));
    let made = made_elsewhere(&mut first, &mut second, 1, "d");
    let header = second.header(5, 1);
    let mkdir = MkdirRequest { header, parent: made, name: b"e".to_vec(), mode: 0o755, ..MkdirRequest::default() };
    let inner: AttributesResponse = second.apply(Opcode::Mkdir, &mkdir).expect("made");
    let header = second.header(5, 2);
    let parent = inner.attributes.expect("attributes").inode;
    let create = CreateRequest { header, parent, name: b"f".to_vec(), mode: 0o100_644, ..CreateRequest::default() };
    let file: AttributesResponse = second.apply(Opcode::Create, &create).expect("made");
    let file = file.attributes.expect("attributes").inode;
    let prepared: TxPrepared = second.apply(Opcode::TxPrepare, &prepare(tx(2), &[file])).expect("prepared");
    let remove = RemoveTreeRequest { header: second.header(5, 3), parent: made, name: b"e".to_vec() };
    second.apply::<Empty>(Opcode::RemoveTree, &remove).expect("removed");
    second.apply::<Empty>(Opcode::ReclaimBatch, &ReclaimBatch::default()).expect("waits");
    assert!(second.0.reclaimable().is_empty() && second.0.reclaim_blocked(9).is_empty(), "nothing can be done");
    let entry = ReclaimEntry { directory: parent, name: b"f".to_vec() };
    let refused = second.apply::<Empty>(Opcode::ReclaimEntry, &entry).expect_err("it waits");
    assert_eq!(refused.code, ErrorCode::LeaseHeld);
    let header = first.header(1, 2);
    let link = LinkRequest { header, inode: file, parent: 1, name: b"g".to_vec(), replace: false };
    let effects = decide(&mut first, 2, Opcode::Link, &link, prepared).expect("decided");
    second.finish(&tx(2), effects.lock, Some(effects));
    assert_eq!(second.0.reclaim_blocked(9), [(parent, b"f".to_vec())], "it can be done now");
    second.apply::<Empty>(Opcode::ReclaimEntry, &entry).expect("goes on");
    assert_eq!(second.getattr(parent).map(|found| found.nlink), Err(ErrorCode::Stale), "the directory goes with it");
    assert_eq!(second.getattr(file).expect("it has a name in the first partition").nlink, 1);
}

/// A hold would be left where the file is not, which would be gone while it is open; or a file be opened without
/// permissions, owner and contents.
#[test]
fn what_another_partition_has_is_neither_held_nor_opened() {
    let (mut first, mut second) = (Part::new(1), Part::new(2));
    let directory = made_elsewhere(&mut first, &mut second, 1, "d");
    let create = |header, parent| CreateRequest {
        header,
        parent,
        name: b"f".to_vec(),
        mode: 0o100_640,
        hold: true,
        ..CreateRequest::default()
    };
    let file: AttributesResponse = second.apply(Opcode::Create, &create(second.header(5, 1), directory)).expect("made");
    let file = file.attributes.expect("attributes").inode;
    let header = first.header(1, 2);
    let link = LinkRequest { header, inode: file, parent: 1, name: b"f".to_vec(), replace: false };
    let prepared: TxPrepared = second.apply(Opcode::TxPrepare, &prepare(tx(2), &[file])).expect("prepared");
    let effects = decide(&mut first, 2, Opcode::Link, &link, prepared).expect("decided");
    second.finish(&tx(2), effects.lock, Some(effects));

    let prepared: TxPrepared = second.apply(Opcode::TxPrepare, &prepare(tx(3), &[file])).expect("prepared");
    let request = create(first.header(1, 3), 1);
    let effects = decide(&mut first, 3, Opcode::Create, &request, prepared).expect("it is there");
    second.finish(&tx(3), effects.lock, Some(effects));
    assert_eq!((first.0.counters().holds, second.0.counters().holds), (0, 1));

    let header = first.header(9, 0);
    let open =
        OpenRequest { header, parent: 1, name: b"f".to_vec(), access: 4, extents_max: 8, ..OpenRequest::default() };
    let mut out = Vec::new();
    first.0.read(Opcode::Open, &open.encode_to_vec(), &mut out).expect("answered");
    let opened = OpenResponse::decode(out.as_slice()).expect("an answer");
    let found = opened.attributes.expect("number and type");
    assert_eq!((found.inode, found.mode, found.nlink, found.ctime_ns), (file, 0o100_000, 0, 0));
    assert!(!opened.end && opened.extents.is_empty());
}

/// A client whose map is old would make files where their directory is not.
#[test]
fn what_came_to_the_wrong_partition_is_refused_and_not_prepared() {
    let (mut first, mut second) = (Part::new(1), Part::new(2));
    let directory = made_elsewhere(&mut first, &mut second, 1, "d");
    let header = first.header(1, 2);
    let create = CreateRequest { header, parent: directory, name: b"f".to_vec(), ..CreateRequest::default() };
    let wants = first.0.tx_wants(Opcode::Create, &create.encode_to_vec(), &[]).expect("readable");
    assert!(wants.is_empty(), "{wants:?}");
    let refused = first.apply::<AttributesResponse>(Opcode::Create, &create).expect_err("not here");
    assert_eq!(refused.code, ErrorCode::UnknownPartition);
    let header = first.header(1, 2);
    let (name, new_name) = (b"x".to_vec(), b"y".to_vec());
    let rename = RenameRequest { header, parent: directory, name, new_parent: 1, new_name, flags: 0 };
    let wants = first.0.tx_wants(Opcode::Rename, &rename.encode_to_vec(), &[]).expect("readable");
    assert!(wants.is_empty(), "{wants:?}");
    let refused = first.apply::<Empty>(Opcode::Rename, &rename).expect_err("not here");
    assert_eq!(refused.code, ErrorCode::UnknownPartition);
}

/// Somebody would be told that a file cannot be reached, for good, because something on the way was being moved; or not
/// get a listing at all.
#[test]
fn a_walk_through_what_is_locked_waits_and_a_listing_does_not() {
    let mut part = Part::new(1);
    let made = |part: &mut Part, sequence, parent, name: &str| {
        let header = part.header(7, sequence);
        let request = MkdirRequest { header, parent, name: name.into(), mode: 0o755, ..MkdirRequest::default() };
        let answer: AttributesResponse = part.apply(Opcode::Mkdir, &request).expect("made");
        answer.attributes.expect("attributes").inode
    };
    let outer = made(&mut part, 1, 1, "outer");
    let inner = made(&mut part, 2, outer, "inner");
    made(&mut part, 3, inner, "last");
    let tx = TxId { partition: 2, ..tx(1) };
    part.apply::<TxPrepared>(Opcode::TxPrepare, &prepare(tx, &[inner])).expect("locked");
    let read = |part: &Part, opcode, request: Vec<u8>| {
        let mut out = Vec::new();
        part.0.read(opcode, &request, &mut out).map(|()| out)
    };
    let resolve =
        ResolveRequest { header: part.header(9, 0), start: 1, path: b"outer/inner/last".to_vec(), in_shard: false };
    let refused = read(&part, Opcode::Resolve, resolve.encode_to_vec()).expect_err("it waits");
    assert!(Namespace::is_locked_across(&refused), "{refused}");
    let list =
        ReaddirRequest { header: part.header(9, 0), inode: outer, attributes: true, ..ReaddirRequest::default() };
    let listed = read(&part, Opcode::Readdir, list.encode_to_vec()).expect("a listing");
    let listed = ReaddirResponse::decode(listed.as_slice()).expect("a listing");
    assert_eq!(listed.entries.iter().map(|e| (e.inode, e.attributes.is_some())).collect::<Vec<_>>(), [(inner, false)]);
}

/// Of a hundred directories one that is being moved would keep the attributes of all others back; or be taken for gone.
#[test]
fn what_is_locked_is_told_apart() {
    let mut part = Part::new(1);
    let made = |part: &mut Part, sequence, name: &str| {
        let header = part.header(7, sequence);
        let request = MkdirRequest { header, parent: 1, name: name.into(), mode: 0o755, ..MkdirRequest::default() };
        let answer: AttributesResponse = part.apply(Opcode::Mkdir, &request).expect("made");
        answer.attributes.expect("attributes").inode
    };
    let (one, two) = (made(&mut part, 1, "one"), made(&mut part, 2, "two"));
    let tx = TxId { partition: 2, ..tx(1) };
    part.apply::<TxPrepared>(Opcode::TxPrepare, &prepare(tx, &[two])).expect("locked");
    let ask = |apart| {
        let request = GetattrManyRequest { header: part.header(9, 0), inodes: vec![one, two, 99], apart };
        let mut out = Vec::new();
        let answer = part.0.read(Opcode::GetattrMany, &request.encode_to_vec(), &mut out);
        answer.map(|()| GetattrManyResponse::decode(out.as_slice()).expect("an answer"))
    };
    let refused = ask(false).expect_err("a client of before waits");
    assert!(Namespace::is_locked_across(&refused), "{refused}");
    let told = ask(true).expect("told");
    assert_eq!((told.attributes.len(), told.attributes[0].inode, told.locked), (1, one, vec![two]));
}
