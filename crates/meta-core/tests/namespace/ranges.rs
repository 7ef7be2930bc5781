//! Partitions that have some of a volume's inode ids: what is answered about the ids of others.
use crate::driver::*;
use cairn_meta_core::{Namespace, NamespaceBuilder, NamespaceConfig, RestoreError};
use cairn_types::ErrorCode as E;
use cairn_wire::Opcode;
use cairn_wire::common::Empty;
use cairn_wire::meta::*;
use prost::Message;

/// The first id of another partition.
const FOREIGN: u64 = 1 << 32;
const RANGE: std::ops::RangeInclusive<u64> = 1..=FOREIGN - 1;

fn partition(inodes: std::ops::RangeInclusive<u64>) -> Driver {
    Driver::on(Namespace::new(&NamespaceConfig { inodes, ..config() }))
}

/// Every mutation that comes by the inode `at`, with a name for what it is.
fn mutations(d: &mut Driver, at: u64) -> Vec<(&'static str, Answer<()>)> {
    let wrote = vec![extent(0, 10, 1, 0)];
    let publish = |inode| PublishRequest { inode, extents: wrote.clone(), ..Default::default() };
    let set = SetattrRequest { inode: at, valid: 1, mode: 0o600, ..Default::default() };
    let punch = PunchRequest { inode: at, length: 4096, ..Default::default() };
    let clone = CloneRangeRequest { source: 2, inode: at, length: 4096, ..Default::default() };
    let lock = |header| SetLockRequest { header, inode: at, r#type: 1, end: 9, ..Default::default() };
    vec![
        ("create", d.create(at, "n", 0o644).map(drop)),
        ("mkdir", d.mkdir(at, "n", 0o755).map(drop)),
        ("symlink", d.symlink(at, "n", "t").map(drop)),
        ("create_unnamed", d.create_unnamed(at, 0o644).map(drop)),
        ("link", d.link(2, at, "n", false).map(drop)),
        ("unlink", d.unlink(at, "f")),
        ("rmdir", d.rmdir(at, "d")),
        ("remove_tree", d.remove_tree(at, "d")),
        ("rename", d.rename(at, "f", ROOT, "n", 0)),
        ("setattr", d.setattr(set.clone()).map(drop)),
        ("set_xattr", d.set_xattr(at, "user.a", b"b", 0)),
        ("remove_xattr", d.remove_xattr(at, "user.a")),
        ("publish", d.publish_with(publish(at)).map(drop)),
        ("publish_attributes", d.publish_attributes(publish(at), set).map(drop)),
        ("publish_volatile", d.publish_volatile(at, &wrote).map(drop)),
        ("note_durable", d.note_durable(&[(2, 10), (at, 10)])),
        ("hold", d.hold(at, false).map(drop)),
        ("release", d.release(at)),
        ("punch", d.punch(punch).map(drop)),
        ("clone_range", d.clone_range(clone).map(drop)),
        ("overwrite_lease", d.take_lease(at).map(drop)),
        ("set_quota", d.set_quota(at, 1 << 20, 0)),
        ("set_lock", {
            let header = d.next();
            d.mutate::<Empty>(Opcode::SetLock, &lock(header)).map(drop)
        }),
    ]
}

/// Every read that comes by the inode `at`.
fn reads(d: &Driver, at: u64) -> Vec<(&'static str, Answer<()>)> {
    let wait = WaitLockRequest { header: d.header(0), inode: at, r#type: 1, end: 9, ..Default::default() };
    vec![
        ("lookup", d.lookup(at, "f").map(drop)),
        ("resolve", d.resolve(at, "f").map(drop)),
        ("getattr", d.getattr(at).map(drop)),
        ("getattr_many", d.getattr_many(&[2, at]).map(drop)),
        ("readlink", d.readlink(at).map(drop)),
        ("readdir", d.readdir(at).map(drop)),
        ("extents", d.extents(at).map(drop)),
        ("get_xattr", d.get_xattr(at, "user.a").map(drop)),
        ("list_xattr", d.list_xattr(at).map(drop)),
        ("access", d.access(at, 4).map(drop)),
        ("open", d.open(at, 4, 0).map(drop)),
        ("open_at", d.open_at(at, "f", 4).map(drop)),
        ("quota", d.quota(at).map(drop)),
        ("get_lock", d.get_lock(at, false, 0).map(drop)),
        ("wait_lock", d.read::<WaitLockResponse>(Opcode::WaitLock, &wait).map(drop)),
    ]
}

/// A root with the file 2, "f", and the directory 3, "d".
fn with_file(inodes: std::ops::RangeInclusive<u64>) -> Driver {
    let mut d = partition(inodes);
    assert_eq!(d.create(ROOT, "f", 0o644).unwrap().inode, 2);
    assert_eq!(d.mkdir(ROOT, "d", 0o755).unwrap().inode, 3);
    d.truncate(2, 8192).unwrap();
    d
}

/// A client with an old map would take a file that another partition has for removed.
#[test]
fn what_another_partition_has_is_never_said_to_be_gone() {
    let mut d = with_file(RANGE);
    for at in [FOREIGN, FOREIGN + 7, u64::MAX] {
        let (mutated, read) = (mutations(&mut d, at), reads(&d, at));
        for (what, answer) in mutated.into_iter().chain(read) {
            assert_eq!(answer, Err(E::UnknownPartition), "{what} of inode {at}");
        }
    }
    // Its own ids that nobody has are gone, and so is 0, which no partition has.
    for at in [FOREIGN - 1, 77, 0] {
        for (what, answer) in mutations(&mut d, at).into_iter().chain(reads(&d, at)) {
            assert_ne!(answer, Err(E::UnknownPartition), "{what} of inode {at}");
        }
        assert_eq!(d.getattr(at), Err(E::Stale));
    }
    d.check();
}

/// The same for ids below the range, also after a restart: a checkpoint that forgets where the range begins.
#[test]
fn ids_below_the_range_are_others_as_well() {
    let d = partition(FOREIGN..=2 * FOREIGN - 1);
    for mut d in [Driver::on(d.restored()), d] {
        for at in [ROOT, FOREIGN - 1, 2 * FOREIGN] {
            for (what, answer) in mutations(&mut d, at).into_iter().chain(reads(&d, at)) {
                assert_eq!(answer, Err(E::UnknownPartition), "{what} of inode {at}");
            }
        }
        assert_eq!((d.getattr(FOREIGN), d.getattr(2 * FOREIGN - 1)), (Err(E::Stale), Err(E::Stale)));
        assert_eq!(d.namespace.inodes_left(), FOREIGN);
    }
}

/// The request would go on to the partition that has the inode, and its number here be lost; or be answered with the
/// refusal when it is used for the next request.
#[test]
fn a_request_for_another_partition_uses_no_number() {
    let mut d = with_file(RANGE);
    d.session = 9;
    let header = d.header(1);
    let make = |parent| MkdirRequest {
        header: header.clone(),
        parent,
        name: b"x".to_vec(),
        mode: 0o755,
        ..Default::default()
    };
    for _ in 0..2 {
        assert_eq!(d.log(Opcode::Mkdir, make(FOREIGN).encode_to_vec()), Err(E::UnknownPartition));
    }
    assert_eq!(d.namespace.session_state(9), cairn_meta_core::SessionState::Unknown, "nothing is kept of it");
    d.log(Opcode::Mkdir, make(ROOT).encode_to_vec()).unwrap();
    assert_eq!(d.names(ROOT), ["d", "f", "x"]);
}

/// A program would be told that its file is gone, instead of copying it.
#[test]
fn names_in_two_partitions_are_said_to_be_that() {
    let mut d = with_file(RANGE);
    for flags in 0..=2 {
        assert_eq!(d.rename(ROOT, "f", FOREIGN, "g", flags), Err(E::CrossVolume), "flags {flags}");
    }
    assert_eq!(d.link(FOREIGN, ROOT, "g", false), Err(E::CrossVolume));
    let clone = |source, inode| CloneRangeRequest { source, inode, length: 4096, ..Default::default() };
    assert_eq!(d.clone_range(clone(FOREIGN, 2)), Err(E::CrossVolume));
    assert_eq!(E::CrossVolume.errno(), 18, "EXDEV: mv and cp copy");
    // With nothing of it here it goes elsewhere first.
    assert_eq!(d.rename(FOREIGN, "f", FOREIGN, "g", 0), Err(E::UnknownPartition));
    assert_eq!(d.link(FOREIGN, FOREIGN, "g", false), Err(E::UnknownPartition));
    assert_eq!(d.clone_range(clone(FOREIGN, FOREIGN + 1)), Err(E::UnknownPartition));
    assert_eq!((d.rename(ROOT, "f", 77, "g", 0), d.link(77, ROOT, "g", false)), (Err(E::Stale), Err(E::Stale)));
    d.hold(2, false).unwrap();
    let both = ReleaseRequest { header: d.next(), inode: 2, also: vec![FOREIGN] };
    assert_eq!(d.mutate::<Empty>(Opcode::Release, &both).map(drop), Err(E::UnknownPartition));
    assert_eq!(d.namespace.counters().holds, 1, "nothing of it was done");
    assert_eq!(d.names(ROOT), ["d", "f"]);
    d.check();
}

/// Builds from before would take all ids up to the last one for the partition's own.
#[test]
fn a_range_that_begins_later_makes_another_version() {
    let (plain, header) = (partition(RANGE).pages()[0].clone(), partition(FOREIGN..=u64::MAX).pages()[0].clone());
    assert_eq!((plain.len(), plain[9], header.len(), header[9]), (144, 1, 152, 3));
    assert_eq!(header[144..], FOREIGN.to_le_bytes());
    let mut d = partition(FOREIGN..=u64::MAX);
    d.set_feature_level(5);
    let levelled = d.pages()[0].clone();
    assert_eq!(levelled[9..16], [3, 0, 5, 0, 0, 0, 0]);
    assert_eq!((restore(&d.pages()).feature_level(), restore(&d.pages()).inodes_left()), (5, u64::MAX - FOREIGN + 1));
    let with = |version: u8, first: &[u8]| {
        let mut page = header[..144].to_vec();
        page[9] = version;
        page.extend_from_slice(first);
        NamespaceBuilder::new().push_page(&page)
    };
    assert_eq!((with(3, &FOREIGN.to_le_bytes()), with(1, &[])), (Ok(()), Ok(())));
    for (version, first) in
        [(3, &[][..]), (3, &[0; 7]), (3, &[9; 9]), (3, &[0; 8]), (3, &1u64.to_le_bytes()), (1, &[9; 8])]
    {
        let refused = with(version, first);
        assert!(matches!(refused, Err(RestoreError::NotANamespace(_))), "{version} {first:?}: {refused:?}");
    }
}
