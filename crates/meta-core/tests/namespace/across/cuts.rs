//! Snapshots of two partitions, step by step: what is refused, what becomes of a cut, and who knows of it. Random
//! histories are in `world`.
use super::schedules::{FIRST_OF_SECOND, Part};
use cairn_types::ErrorCode as E;
use cairn_wire::Opcode;
use cairn_wire::common::Empty;
use cairn_wire::error::WireError;
use cairn_wire::meta::*;
use prost::Message;

fn pair() -> (Part, Part) {
    let (mut first, mut second) = (Part::new(1), Part::new(2));
    for part in [&mut first, &mut second] {
        part.apply::<Empty>(Opcode::SetFeatureLevel, &SetFeatureLevel { level: 16 }).expect("raised");
    }
    (first, second)
}

fn code<T>(outcome: Result<T, WireError>) -> Option<E> {
    outcome.err().map(|error| error.code)
}

fn cut(name: &str) -> CutSnapshot {
    CutSnapshot { term: 1, name: name.into(), ..CutSnapshot::default() }
}

fn create(first: &Part, sequence: u64, name: &str) -> CreateSnapshotRequest {
    CreateSnapshotRequest { header: first.header(5, sequence), name: name.into(), ..CreateSnapshotRequest::default() }
}

fn tell(first: &Part, second: &mut Part) -> FollowSnapshots {
    let list = first.0.snapshots_to_follow().expect("there was one");
    second.apply::<Empty>(Opcode::FollowSnapshots, &list).expect("it follows");
    list
}

/// Cuts both, and completes it.
fn take(first: &mut Part, second: &mut Part, sequence: u64, name: &str) -> u64 {
    let made: CutResponse = first.apply(Opcode::CutSnapshot, &cut(name)).expect("cut");
    let of_second = CutSnapshot { number: made.number, slot: made.slot, created_ns: made.created_ns, ..cut(name) };
    second.apply::<CutResponse>(Opcode::CutSnapshot, &of_second).expect("cut");
    let request = create(first, sequence, name).encode_to_vec();
    let end = EndCut { number: made.number, complete: true, request, ..EndCut::default() };
    let answer: CreateSnapshotResponse = first.apply(Opcode::EndCut, &end).expect("complete");
    assert_eq!(answer.number, made.number);
    made.number
}

fn look_up(part: &Part, directory: u64, name: &str) -> Result<u64, E> {
    let listing = 0x7fff << 48 | directory;
    let request = LookupRequest { header: part.header(9, 0), parent: listing, name: name.into() };
    let mut out = Vec::new();
    part.0.read(Opcode::Lookup, &request.encode_to_vec(), &mut out).map_err(|error| error.code)?;
    let found = AttributesResponse::decode(out.as_slice()).expect("an answer").attributes;
    Ok(found.expect("attributes").inode & ((1 << 48) - 1))
}

/// A snapshot would be taken in one partition alone, or by members of which some do not understand it.
#[test]
fn a_partition_alone_takes_none() {
    let mut old = Part::new(1);
    let request = create(&old, 1, "a");
    assert_eq!(code(old.apply::<CreateSnapshotResponse>(Opcode::CreateSnapshot, &request)), Some(E::UnknownOperation));
    let (mut first, mut second) = pair();
    let refused = first.apply::<CreateSnapshotResponse>(Opcode::CreateSnapshot, &create(&first, 1, "a"));
    assert!(refused.is_err_and(|error| cairn_meta_core::Namespace::needs_cut(&error)), "its leader asks the others");
    let refused = first.apply::<CreateSnapshotResponse>(Opcode::CreateSnapshot, &create(&first, 1, "x/y"));
    assert_eq!(code(refused), Some(E::InvalidArgument), "what may not be is refused for good");
    let by_other =
        CreateSnapshotRequest { header: second.header(5, 1), name: b"a".to_vec(), ..CreateSnapshotRequest::default() };
    assert_eq!(
        code(second.apply::<CreateSnapshotResponse>(Opcode::CreateSnapshot, &by_other)),
        Some(E::UnknownPartition)
    );
    assert_eq!(
        code(second.apply::<CutResponse>(Opcode::CutSnapshot, &cut("a"))),
        Some(E::BadRequest),
        "numbers are the root's"
    );
    assert!(first.0.snapshots().is_empty() && second.0.snapshots().is_empty());
}

/// What a leader let through that knew of no hold would be in one part of a snapshot and not in the other.
#[test]
fn a_cut_is_of_the_term_of_its_hold() {
    let (mut first, mut second) = pair();
    let late = CutSnapshot { term: 2, ..cut("a") };
    assert_eq!(code(first.apply::<CutResponse>(Opcode::CutSnapshot, &late)), Some(E::Conflict));
    let late = CutSnapshot { number: 1, slot: 1, ..late };
    assert_eq!(code(second.apply::<CutResponse>(Opcode::CutSnapshot, &late)), Some(E::Conflict));
    assert!(first.0.snapshots().is_empty() && second.0.snapshots().is_empty());
}

/// A client that overwrites in place would change what the snapshot has, in whatever partition.
#[test]
fn nobody_overwrites_in_place_in_any_partition() {
    let (mut first, _) = pair();
    let make = CreateRequest {
        header: first.header(1, 1),
        parent: 1,
        name: b"f".to_vec(),
        mode: 0o644,
        ..CreateRequest::default()
    };
    let file = first.apply::<AttributesResponse>(Opcode::Create, &make).expect("made").attributes.expect("attributes");
    let hold = HoldRequest { header: first.header(1, 2), inode: file.inode, write: true };
    first.apply::<AttributesResponse>(Opcode::Hold, &hold).expect("held");
    let lease = |first: &Part, sequence| OverwriteLeaseRequest {
        header: first.header(1, sequence),
        inode: file.inode,
        ..OverwriteLeaseRequest::default()
    };
    let request = lease(&first, 3);
    let given: OverwriteLeaseResponse = first.apply(Opcode::OverwriteLease, &request).expect("given");
    assert!(given.number > 0);
    let waits: CutResponse = first.apply(Opcode::QuietSnapshots, &QuietSnapshots {}).expect("asked");
    assert_eq!((waits.number, waits.leases), (0, 1));
    let waits: CutResponse = first.apply(Opcode::CutSnapshot, &cut("a")).expect("no failure");
    assert_eq!((waits.number, waits.leases), (0, 1), "nor a leader that did not ask before");
    assert!(first.0.snapshots().is_empty());
    // The client hears it.
    let request = EndCut { request: create(&first, 1, "a").encode_to_vec(), leases: 1, ..EndCut::default() };
    let answer: CreateSnapshotResponse = first.apply(Opcode::EndCut, &request).expect("answered");
    assert_eq!((answer.number, answer.leases), (0, 1));
}

/// A snapshot that some partition does not have would be read, or one that all have stay hidden in one of them.
#[test]
fn nobody_relies_on_a_cut_before_it_is_complete() {
    let (mut first, mut second) = pair();
    let directory = super::schedules::made_elsewhere(&mut first, &mut second, 1, "d");
    assert!(directory >= FIRST_OF_SECOND);
    let made: CutResponse = first.apply(Opcode::CutSnapshot, &cut("a")).expect("cut");
    let of_second = CutSnapshot { number: made.number, slot: made.slot, ..cut("a") };
    second.apply::<CutResponse>(Opcode::CutSnapshot, &of_second).expect("cut");
    let again = second.apply::<CutResponse>(Opcode::CutSnapshot, &of_second);
    assert_eq!(code(again), Some(E::BadRequest), "a number is cut once");
    assert_eq!(look_up(&first, 1, "a"), Err(E::NotFound));
    assert_eq!(look_up(&second, directory, "a"), Err(E::LeaseHeld), "the partition of the root may know more");
    tell(&first, &mut second);
    assert_eq!(look_up(&second, directory, "a"), Err(E::LeaseHeld), "it is open there, too");
    let request = create(&first, 1, "a").encode_to_vec();
    let end = EndCut { number: made.number, complete: true, request, ..EndCut::default() };
    first.apply::<CreateSnapshotResponse>(Opcode::EndCut, &end).expect("complete");
    assert_eq!(look_up(&first, 1, "a"), Ok(1));
    let list = tell(&first, &mut second);
    assert_eq!(look_up(&second, directory, "a"), Ok(directory));
    assert_eq!(second.0.lacks_snapshots(&list), [0; 0]);
    // A leader that comes too late with what it thought.
    let void = EndCut { number: made.number, ..EndCut::default() };
    first.apply::<Empty>(Opcode::EndCut, &void).expect("nothing is done");
    assert_eq!(look_up(&first, 1, "a"), Ok(1));
}

/// A cut that came to nothing would keep its space for ever, or take the name of the next one.
#[test]
fn what_is_void_is_deleted_everywhere() {
    let (mut first, mut second) = pair();
    let made: CutResponse = first.apply(Opcode::CutSnapshot, &cut("a")).expect("cut");
    let of_second = CutSnapshot { number: made.number, slot: made.slot, ..cut("a") };
    second.apply::<CutResponse>(Opcode::CutSnapshot, &of_second).expect("cut");
    assert_eq!(first.0.pending_snapshots(), [made.number], "which the next leader finds");
    let void = EndCut { number: made.number, ..EndCut::default() };
    first.apply::<Empty>(Opcode::EndCut, &void).expect("void");
    let request = create(&first, 1, "a").encode_to_vec();
    let late = EndCut { number: made.number, complete: true, request, ..EndCut::default() };
    assert_eq!(code(first.apply::<CreateSnapshotResponse>(Opcode::EndCut, &late)), Some(E::LeaseHeld));
    let number = take(&mut first, &mut second, 1, "a");
    assert_eq!(number, made.number + 1);
    let list = tell(&first, &mut second);
    for part in [&mut first, &mut second] {
        while !part.0.reclaimable().is_empty() {
            part.apply::<Empty>(Opcode::ReclaimBatch, &ReclaimBatch { inodes_max: 2, extents_max: 2, deferred_to: 0 })
                .expect("deleted");
        }
        let there: Vec<(u64, bool)> = part.0.snapshots().iter().map(|info| (info.number, info.pending)).collect();
        assert_eq!(there, [(number, false)]);
    }
    // What was told before comes late.
    second
        .apply::<Empty>(
            Opcode::FollowSnapshots,
            &FollowSnapshots { version: list.version - 1, last: 99, snapshots: vec![] },
        )
        .expect("left out");
    assert_eq!(second.0.snapshots().len(), 1);
}

/// A partition that is made later would say that the snapshot is not there below its directories, or that it lacks it;
/// one that was put back from an older copy would be taken for one.
#[test]
fn a_new_partition_has_nothing_at_older_snapshots() {
    let (mut first, mut second) = pair();
    take(&mut first, &mut second, 1, "a");
    let mut new = Part::new(2);
    new.apply::<Empty>(Opcode::SetFeatureLevel, &SetFeatureLevel { level: 16 }).expect("raised");
    let list = tell(&first, &mut new);
    assert_eq!(new.0.lacks_snapshots(&list), [0; 0]);
    let directory = super::schedules::made_elsewhere(&mut first, &mut new, 1, "d");
    assert_eq!(look_up(&new, directory, "a"), Err(E::NotFound), "it was not there then");

    let mut old = Part::new(2);
    old.apply::<Empty>(Opcode::SetFeatureLevel, &SetFeatureLevel { level: 16 }).expect("raised");
    super::schedules::made_elsewhere(&mut first, &mut old, 2, "e");
    let list = tell(&first, &mut old);
    assert_eq!(old.0.lacks_snapshots(&list), [1]);
    first.apply::<Empty>(Opcode::EndCut, &EndCut { number: 1, lacks: true, ..EndCut::default() }).expect("deleted");
    assert_eq!(look_up(&first, 1, "a"), Err(E::NotFound));
}

/// What the partition of the root has forgotten would live on elsewhere, and its numbers be given twice.
#[test]
fn numbers_go_on_behind_those_of_all_partitions() {
    let (mut first, mut second) = pair();
    let made: CutResponse = first.apply(Opcode::CutSnapshot, &CutSnapshot { above: 7, ..cut("a") }).expect("cut");
    assert_eq!(made.number, 8);
    let small = CutSnapshot { number: 8, slot: made.slot, ..cut("a") };
    second.apply::<CutResponse>(Opcode::CutSnapshot, &small).expect("cut");
    let smaller = CutSnapshot { number: 3, slot: made.slot, ..cut("a") };
    assert_eq!(code(second.apply::<CutResponse>(Opcode::CutSnapshot, &smaller)), Some(E::BadRequest));
}

/// One of a directory of another partition would be shown by the root, be taken of what is gone, or be read as what it
/// is not.
#[test]
fn a_directory_of_another_partition() {
    let (mut first, mut second) = pair();
    let of_directory = |name: &str| CutSnapshot { directory: FIRST_OF_SECOND + 7, ..cut(name) };
    assert_eq!(code(first.apply::<CutResponse>(Opcode::CutSnapshot, &of_directory("a"))), Some(E::UnknownOperation));
    for part in [&mut first, &mut second] {
        part.apply::<Empty>(Opcode::SetFeatureLevel, &SetFeatureLevel { level: 18 }).expect("raised");
    }
    let made: CutResponse = first.apply(Opcode::CutSnapshot, &of_directory("a")).expect("it does not know better");
    let (number, slot) = (made.number, made.slot);
    let there = CutSnapshot { number, slot, ..of_directory("a") };
    let refused = second.apply::<CutResponse>(Opcode::CutSnapshot, &there).expect_err("there is none");
    assert!(cairn_meta_core::Namespace::lacks_directory(&refused), "{refused:?}");
    first.apply::<Empty>(Opcode::EndCut, &EndCut { number, ..EndCut::default() }).expect("void");

    // A partition that has made nothing yet hears of one, and whose it is.
    let made: CutResponse = first.apply(Opcode::CutSnapshot, &of_directory("b")).expect("cut");
    let request = CreateSnapshotRequest { directory: FIRST_OF_SECOND + 7, ..create(&first, 1, "b") }.encode_to_vec();
    let other = EndCut {
        number: made.number,
        complete: true,
        request: create(&first, 1, "b").encode_to_vec(),
        ..EndCut::default()
    };
    assert_eq!(
        code(first.apply::<CreateSnapshotResponse>(Opcode::EndCut, &other)),
        Some(E::LeaseHeld),
        "of the volume"
    );
    let end = EndCut { number: made.number, complete: true, request, ..EndCut::default() };
    first.apply::<CreateSnapshotResponse>(Opcode::EndCut, &end).expect("complete");
    tell(&first, &mut second);
    assert_eq!(second.0.snapshots()[0].directory, FIRST_OF_SECOND + 7);
    assert_eq!(look_up(&first, 1, "b"), Err(E::NotFound), "the root has none");
}
