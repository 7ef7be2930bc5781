//! Snapshots: what is refused, what waits, and what is read at them. Random histories are in `against_model` and `clones`.
use crate::driver::*;
use cairn_meta_core::{LAPSED_NS, NamedScan, Suspects};
use cairn_types::ErrorCode as E;
use cairn_wire::meta::*;

const BLOCK: u64 = 4096;

fn driver() -> Driver {
    let mut d = Driver::new();
    d.set_feature_level(10);
    d
}

fn take(d: &mut Driver, name: &str) {
    assert!(d.create_snapshot(name).expect("allowed").number > 0, "something is waited for");
}

fn at(d: &Driver, path: &str) -> Answer<Attributes> {
    let answer = d.resolve(ROOT, path)?;
    match answer.error {
        0 => Ok(answer.attributes.expect("attributes")),
        code => Err(E::from_code(code as u16).expect("a known code")),
    }
}

fn reclaim_all(d: &mut Driver) {
    while !d.namespace.reclaimable().is_empty() {
        d.reclaim(2, 2);
        d.check();
    }
}

/// A client that goes on overwriting a file in place would change what the snapshot names.
#[test]
fn nobody_overwrites_in_place_what_a_snapshot_names() {
    let mut d = driver();
    let file = d.create(ROOT, "f", 0o644).unwrap().inode;
    d.publish(file, &[extent(0, 4 * BLOCK, 1, 0)]).unwrap();
    d.hold(file, true).unwrap();
    let (number, _) = d.take_lease(file).unwrap();
    assert!(number > 0);
    d.namespace = d.restored();
    let waits = d.create_snapshot("a").unwrap();
    assert_eq!((waits.number, waits.leases), (0, 1), "somebody has a lease, also after a restart");
    assert_eq!(d.namespace.take_wanted_leases(), [(1, file)], "who is told");
    d.give_lease(file, number, true, 0).unwrap();
    assert_eq!(d.take_lease(file).unwrap().0, 0, "none is given meanwhile");
    d.namespace = d.restored();
    assert_eq!(d.take_lease(file).unwrap().0, 0, "nor after a restart");
    take(&mut d, "a");
    d.now += 10 * LAPSED_NS;
    assert_eq!(d.take_lease(file).unwrap().0, 0, "while there is a snapshot");
    d.check();
    d.delete_snapshot("a").unwrap();
    assert!(d.take_lease(file).unwrap().0 > 0);
    d.check();
}

/// Somebody who woke up late would have overwritten what a snapshot names.
#[test]
fn a_lease_that_lapsed_is_waited_out() {
    let mut d = driver();
    let file = d.create(ROOT, "f", 0o666).unwrap().inode;
    d.session = 2;
    d.hold(file, true).unwrap();
    assert!(d.take_lease(file).unwrap().0 > 0);
    d.expire(&[2]);
    d.session = 1;
    let waits = d.create_snapshot("a").unwrap();
    assert!(waits.number == 0 && waits.leases == 0 && waits.lapsed_ms > 0, "{waits:?}");
    d.namespace = d.restored();
    d.now += LAPSED_NS / 2;
    assert_eq!(d.create_snapshot("a").unwrap().number, 0, "nor after a restart");
    d.now += LAPSED_NS;
    take(&mut d, "a");
}

/// A request that its sender gave up would have overwritten what a snapshot names, when it arrived after all.
#[test]
fn a_lease_that_is_given_back_without_all_answers_is_waited_out() {
    let mut d = driver();
    let file = d.create(ROOT, "f", 0o644).unwrap().inode;
    d.hold(file, true).unwrap();
    let (number, _) = d.take_lease(file).unwrap();
    d.give_lease_that(file, number, true, 0, false).unwrap();
    let waits = d.create_snapshot("a").unwrap();
    assert!(waits.number == 0 && waits.leases == 0 && waits.lapsed_ms > 0, "{waits:?}");
    d.namespace = d.restored();
    assert_eq!(d.create_snapshot("a").unwrap().number, 0, "nor after a restart");
    d.now += LAPSED_NS;
    take(&mut d, "a");
    d.delete_snapshot("a").unwrap();
    let (number, _) = d.take_lease(file).unwrap();
    d.give_lease(file, number, true, 0).unwrap();
    assert!(d.create_snapshot("b").unwrap().number > 0, "at once where all was answered");
    d.check();
}

/// A volume would have two snapshots of one name, or anybody could delete them.
#[test]
fn what_is_refused() {
    let mut old = Driver::new();
    assert!(old.mkdir(ROOT, ".snapshots", 0o755).is_ok(), "a name like any other");
    assert_eq!(old.create_snapshot("a"), Err(E::UnknownOperation), "not all members understand it");
    let mut d = driver();
    take(&mut d, "a");
    take(&mut d, "b");
    for name in ["", ".", "..", "x/y"] {
        assert_eq!(d.create_snapshot(name), Err(E::InvalidArgument), "{name:?}");
    }
    assert_eq!(d.create_snapshot("a"), Err(E::Exists));
    assert_eq!(d.rename_snapshot("a", "b"), Err(E::Exists));
    assert_eq!(d.rename_snapshot("a", "a"), Ok(()));
    assert_eq!(d.rename_snapshot("c", "d"), Err(E::NotFound));
    assert_eq!(d.delete_snapshot("c"), Err(E::NotFound));
    d.who = user(1000, 1000, &[]);
    assert_eq!(d.create_snapshot("c"), Err(E::NotPermitted));
    assert_eq!(d.delete_snapshot("a"), Err(E::NotPermitted));
    d.who = user(0, 0, &[]);
    for refused in [
        d.mkdir(ROOT, ".snapshots", 0o755).map(|_| ()),
        d.create(ROOT, ".snapshots", 0o644).map(|_| ()),
        d.symlink(ROOT, ".snapshots", "x").map(|_| ()),
    ] {
        assert_eq!(refused, Err(E::Exists), "every directory has this name");
    }
    d.check();
}

/// Somebody would change a snapshot, or be told that it is gone.
#[test]
fn nothing_at_a_snapshot_is_changed() {
    let mut d = driver();
    let file = d.create(ROOT, "f", 0o644).unwrap().inode;
    d.mkdir(ROOT, "d", 0o755).unwrap();
    d.publish(file, &[extent(0, 4 * BLOCK, 1, 0)]).unwrap();
    take(&mut d, "a");
    let (root, then) = (at(&d, ".snapshots/a").unwrap().inode, at(&d, ".snapshots/a/f").unwrap().inode);
    let listing = at(&d, ".snapshots").unwrap().inode;
    for parent in [root, listing] {
        for refused in [
            d.mkdir(parent, "new", 0o755).map(|_| ()),
            d.create(parent, "new", 0o644).map(|_| ()),
            d.unlink(parent, "f"),
            d.rmdir(parent, "d"),
            d.remove_tree(parent, "d"),
            d.rename(parent, "f", parent, "g", 0),
            d.rename(parent, "f", ROOT, "g", 0),
            d.rename(ROOT, "f", parent, "g", 0),
            d.link(file, parent, "g", false).map(|_| ()),
            d.chmod(parent, 0o700).map(|_| ()),
        ] {
            assert_eq!(refused, Err(E::ReadOnly));
        }
    }
    assert_eq!(d.truncate(then, 0), Err(E::ReadOnly));
    assert_eq!(d.link(then, ROOT, "g", false), Err(E::ReadOnly));
    assert_eq!(d.publish(then, &[extent(0, BLOCK, 9, 0)]), Err(E::ReadOnly));
    assert_eq!(d.set_xattr(then, "user.x", b"1", 0), Err(E::ReadOnly));
    assert_eq!(d.open(then, 2, 0), Err(E::ReadOnly));
    assert_eq!(d.access(then, 2), Err(E::ReadOnly));
    assert_eq!(d.open(then, 4, 10).unwrap().extents, [extent(0, 4 * BLOCK, 1, 0)]);
    assert_eq!(d.open_at(root, "f", 4).unwrap().attributes.unwrap().inode, then);
    assert_eq!(d.open_at(ROOT, ".snapshots", 4).unwrap().attributes.unwrap().inode, listing);
    assert_eq!(d.open_at(listing, "a", 4).unwrap().attributes.unwrap().inode, root);
    let target = d.create(ROOT, "copy", 0o644).unwrap().inode;
    let request = CloneRangeRequest { source: then, inode: target, length: BLOCK, ..Default::default() };
    assert_eq!(d.clone_range(request), Err(E::InvalidArgument), "clients copy the bytes instead");
    assert_eq!(d.extents(then).unwrap(), [extent(0, 4 * BLOCK, 1, 0)]);
    d.check();
}

/// The way to a snapshot would end somewhere else, or show what was not there.
#[test]
fn paths_lead_into_snapshots() {
    let mut d = driver();
    let dir = d.mkdir(ROOT, "d", 0o755).unwrap().inode;
    let sub = d.mkdir(dir, "sub", 0o755).unwrap().inode;
    d.create(sub, "f", 0o644).unwrap();
    d.symlink(sub, "l", "f").unwrap();
    take(&mut d, "one");
    let later = d.mkdir(ROOT, "later", 0o755).unwrap().inode;
    d.unlink(sub, "f").unwrap();
    take(&mut d, "two");
    d.rename(dir, "sub", later, "moved", 0).unwrap();
    assert!(at(&d, "d/.snapshots/one/sub/f").is_ok());
    assert_eq!(at(&d, "d/.snapshots/two/sub/f"), Err(E::NotFound));
    assert_eq!(d.names(at(&d, "later/.snapshots").unwrap().inode), ["two"], "it was not there before");
    assert_eq!(at(&d, "later/.snapshots/one"), Err(E::NotFound));
    assert!(at(&d, "later/moved/.snapshots/one/f").is_ok(), "a directory keeps its snapshots when it moves");
    assert_eq!(at(&d, "d/.snapshots/three"), Err(E::NotFound));
    assert_eq!(at(&d, "d/.snapshots/one/.snapshots"), Err(E::NotFound));
    assert_eq!(at(&d, "d/.snapshots/../sub"), Err(E::NotFound), "that is the directory of now");
    assert_eq!(at(&d, "d/.snapshots/..").unwrap().inode, dir);
    let link = d.resolve(ROOT, "d/.snapshots/one/sub/l").unwrap();
    assert_eq!(link.symlink, b"f");
    let listing = at(&d, "d/.snapshots").unwrap();
    assert_eq!((listing.mode, listing.size), (0o040_555, 2));
    assert_eq!(d.list_xattr(listing.inode), Ok(vec![]));
    d.who = user(1000, 1000, &[]);
    assert!(at(&d, "d/.snapshots/one/sub").is_ok());
    d.who = user(0, 0, &[]);
    d.chmod(dir, 0o700).unwrap();
    d.who = user(1000, 1000, &[]);
    assert_eq!(at(&d, "d/.snapshots/one"), Err(E::PermissionDenied), "who may not search it now");
    d.check();
}

/// Blocks of a snapshot would be given back by who hears late that they were published after all, or be taken for garbage.
#[test]
fn what_a_snapshot_has_is_neither_discarded_nor_garbage() {
    let mut d = driver();
    let file = d.create(ROOT, "f", 0o644).unwrap().inode;
    let written = extent(0, 4 * BLOCK, 1, 0);
    d.publish(file, &[written]).unwrap();
    take(&mut d, "a");
    d.unlink(ROOT, "f").unwrap();
    let header = d.next();
    let request = DiscardRequest { header, extents: vec![written], written_by: 1, ..Default::default() };
    d.mutate::<cairn_wire::common::Empty>(cairn_wire::Opcode::Discard, &request).unwrap();
    reclaim_all(&mut d);
    assert_eq!(d.frees(), []);
    let mut suspects = Suspects::default();
    suspects.add(7, 1, 1, [(0, 4)]);
    let (snapshot, mut scan) = (d.namespace.snapshot(), NamedScan::new());
    while scan.step(&snapshot, 3, |named| suspects.strike(named)).unwrap() {}
    assert_eq!(suspects.into_garbage().count(), 0);
    d.delete_snapshot("a").unwrap();
    reclaim_all(&mut d);
    assert_eq!(d.frees(), [(1, 0, 4)]);
}

/// What was removed whole would be gone from the snapshot: names, contents, attributes of any kind.
#[test]
fn what_is_removed_whole_stays_at_the_snapshot() {
    let mut d = driver();
    let dir = d.mkdir(ROOT, "d", 0o755).unwrap().inode;
    let file = d.create(dir, "f", 0o644).unwrap().inode;
    let pieces: Vec<_> = (0..300).map(|i| extent(2 * i * BLOCK, BLOCK, 1, i * BLOCK)).collect();
    d.publish(file, &pieces).unwrap();
    d.set_xattr(file, "user.a", b"1", 0).unwrap();
    d.set_xattr(dir, "user.b", b"2", 0).unwrap();
    take(&mut d, "a");
    let then = at(&d, "d/.snapshots/a/f").unwrap().inode;
    d.remove_tree(ROOT, "d").unwrap();
    reclaim_all(&mut d);
    assert_eq!(at(&d, "d/.snapshots/a"), Err(E::NotFound), "the directory is gone");
    let found = at(&d, ".snapshots/a/d/f").unwrap();
    assert_eq!((found.inode, found.size), (then, (2 * 299 + 1) * BLOCK));
    assert_eq!(d.extents(then).unwrap(), pieces);
    assert_eq!(d.get_xattr(then, "user.a").unwrap(), b"1");
    assert_eq!(d.get_xattr(at(&d, ".snapshots/a/d").unwrap().inode, "user.b").unwrap(), b"2");
    d.truncate(ROOT, 0).unwrap_err();
    d.delete_snapshot("a").unwrap();
    assert_eq!(d.getattr(then), Err(E::Stale));
    reclaim_all(&mut d);
    assert_eq!(d.frees().iter().map(|(_, _, blocks)| blocks).sum::<u64>(), 300);
}

/// Bytes that were not durable when a snapshot was taken would be promised by it.
#[test]
fn a_snapshot_ends_before_what_is_not_durable() {
    let mut d = driver();
    let file = d.create(ROOT, "f", 0o644).unwrap().inode;
    d.publish(file, &[extent(0, 2 * BLOCK, 1, 0)]).unwrap();
    d.hold(file, true).unwrap();
    d.publish_volatile(file, &[extent(2 * BLOCK, 100, 1, 2 * BLOCK)]).unwrap();
    take(&mut d, "a");
    d.note_durable(&[(file, 2 * BLOCK + 100)]).unwrap();
    let then = at(&d, ".snapshots/a/f").unwrap();
    assert_eq!(then.size, 2 * BLOCK);
    assert_eq!(d.extents(then.inode).unwrap(), [extent(0, 2 * BLOCK, 1, 0)]);
    d.check();
}

/// A volume that gets more partitions would have snapshots of which nobody knows in them.
#[test]
fn a_volume_with_snapshots_stays_one_partition() {
    let mut d = driver();
    take(&mut d, "a");
    let end = |d: &mut Driver| d.log(cairn_wire::Opcode::EndRange, Vec::new()).map(|_| ());
    assert_eq!(end(&mut d), Err(E::NotSupported));
    d.delete_snapshot("a").unwrap();
    assert_eq!(end(&mut d), Err(E::NotSupported), "it is not gone yet");
    reclaim_all(&mut d);
    assert_eq!(end(&mut d), Ok(()));
    assert_eq!(d.create_snapshot("b"), Err(E::NotSupported));
    assert_eq!(at(&d, ".snapshots"), Err(E::NotFound));
}
