//! Snapshots: what is refused, what waits, and what is read at them. Random histories are in `against_model` and
//! `clones`.
use crate::driver::*;
use cairn_meta_core::{LAPSED_NS, NamedScan, Suspects};
use cairn_types::EXTENT_SHARED;
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
    assert_eq!(d.clone_range(request), Err(E::InvalidArgument), "before level 13 clients copy the bytes instead");
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

/// Blocks of a snapshot would be given back by who hears late that they were published after all, or be taken for
/// garbage.
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
    assert_eq!(d.create_snapshot("b"), Err(E::UnknownOperation), "not all members understand it");
    assert_eq!(at(&d, ".snapshots"), Err(E::NotFound));
}

/// A file brought back from a snapshot would name blocks that are freed with the snapshot, or by somebody else's
/// deletion; or what nobody names would never be freed.
#[test]
fn a_clone_out_of_a_snapshot_has_blocks_of_its_own_right() {
    let mut d = driver();
    d.set_feature_level(13);
    let file = d.create(ROOT, "f", 0o644).unwrap().inode;
    d.publish(file, &[extent(0, 4 * BLOCK, 1, 0)]).unwrap();
    let other = d.create(ROOT, "other", 0o644).unwrap().inode;
    let clone = |source, inode, length| CloneRangeRequest { source, inode, length, ..Default::default() };
    assert_eq!(
        d.clone_range(clone(file, other, BLOCK)).unwrap().length,
        BLOCK,
        "the first block is shared from now on"
    );
    take(&mut d, "a");
    // Of the four blocks the third is gone, the last two are the file's alone.
    d.publish(file, &[extent(BLOCK, BLOCK, 2, 0)]).unwrap();
    let then = at(&d, ".snapshots/a/f").unwrap().inode;
    let back = d.create(ROOT, "back", 0o644).unwrap().inode;
    let version = d.getattr(file).unwrap().data_version;
    assert_eq!(d.clone_range(clone(then, back, 4 * BLOCK)).unwrap().length, 4 * BLOCK);
    assert!(d.getattr(file).unwrap().data_version > version, "whoever knew its extents asks again: they are shared");
    let shared = |from, to| cairn_wire::common::Extent { flags: EXTENT_SHARED, ..extent(from, to - from, 1, from) };
    assert_eq!(crate::translate::joined(&d.extents(back).unwrap()), crate::translate::joined(&[shared(0, 4 * BLOCK)]));
    d.check();
    assert_eq!(d.frees(), [], "nothing is freed by that");
    d.delete_snapshot("a").unwrap();
    reclaim_all(&mut d);
    assert_eq!(d.frees(), [], "the clone has all that the snapshot had");
    d.unlink(ROOT, "f").unwrap();
    d.unlink(ROOT, "other").unwrap();
    reclaim_all(&mut d);
    assert_eq!(d.frees(), [(2, 0, 1)]);
    d.unlink(ROOT, "back").unwrap();
    reclaim_all(&mut d);
    assert_eq!(d.frees().iter().map(|(_, _, blocks)| blocks).sum::<u64>(), 5, "all is freed, once");
    d.check();
}

/// What was brought back into the file that it comes from would be freed with what it replaces; a second snapshot would
/// lose what only the clone had.
#[test]
fn lives_of_a_block_end_on_their_own() {
    let mut d = driver();
    d.set_feature_level(13);
    let file = d.create(ROOT, "f", 0o644).unwrap().inode;
    d.publish(file, &[extent(0, 2 * BLOCK, 1, 0)]).unwrap();
    take(&mut d, "a");
    let then = at(&d, ".snapshots/a/f").unwrap().inode;
    let clone = |source, inode| CloneRangeRequest { source, inode, length: 2 * BLOCK, ..Default::default() };
    // Onto itself, before anything changed and after.
    assert_eq!(d.clone_range(clone(then, file)).unwrap().length, 2 * BLOCK);
    d.check();
    d.unlink(ROOT, "f").unwrap();
    reclaim_all(&mut d);
    for _ in 0..2 {
        let brief = d.create(ROOT, "brief", 0o644).unwrap().inode;
        assert_eq!(d.clone_range(clone(then, brief)).unwrap().length, 2 * BLOCK);
        d.unlink(ROOT, "brief").unwrap();
        reclaim_all(&mut d);
        assert_eq!(d.frees(), [], "the snapshot still has it");
        assert_eq!(d.namespace.snapshots()[0].kept_blocks, 2, "once");
    }
    let back = d.create(ROOT, "back", 0o644).unwrap().inode;
    assert_eq!(d.clone_range(clone(then, back)).unwrap().length, 2 * BLOCK);
    take(&mut d, "b");
    d.unlink(ROOT, "back").unwrap();
    reclaim_all(&mut d);
    d.namespace = d.restored();
    d.check();
    let held: Vec<u64> = d.namespace.snapshots().iter().map(|info| info.kept_blocks).collect();
    assert_eq!(held, [2, 2], "each life has a record of its own");
    d.delete_snapshot("a").unwrap();
    reclaim_all(&mut d);
    assert_eq!(d.frees(), [], "the second snapshot has it");
    assert_eq!(d.extents(at(&d, ".snapshots/b/back").unwrap().inode).unwrap().len(), 1);
    d.delete_snapshot("b").unwrap();
    reclaim_all(&mut d);
    assert_eq!(d.frees().iter().map(|(_, _, blocks)| blocks).sum::<u64>(), 2);
    d.check();
}

/// Snapshots would be taken twice or not at all, or somebody's own be removed.
#[test]
fn a_schedule_takes_and_removes_its_own() {
    const HOUR: u64 = 3_600_000_000_000;
    let mut d = driver();
    let rule = |period, keep| SnapshotRule { period, keep };
    assert_eq!(driver().set_schedule(&[rule(1, 2)]), Err(E::UnknownOperation), "not all members understand it");
    d.set_feature_level(13);
    // A day begins.
    d.now = 1_728_000 * 1_000_000_000;
    for wrong in [vec![rule(1, 0)], vec![rule(9, 1)], vec![rule(1, 1), rule(1, 2)], vec![rule(1, 901)]] {
        assert_eq!(d.set_schedule(&wrong), Err(E::InvalidArgument), "{wrong:?}");
    }
    d.who = user(1000, 1000, &[]);
    assert_eq!(d.set_schedule(&[rule(1, 2)]), Err(E::NotPermitted));
    d.who = user(0, 0, &[]);
    d.set_schedule(&[rule(2, 1), rule(1, 2)]).unwrap();
    take(&mut d, "hourly-own");
    let names = |d: &Driver| -> Vec<String> {
        let there = d.namespace.snapshots().into_iter().filter(|info| !info.deleting);
        there.map(|info| String::from_utf8(info.name).unwrap()).collect()
    };
    assert!(!d.namespace.is_schedule_due(d.now), "it begins with the next period");
    for hour in 1..=4 {
        d.now += HOUR;
        assert!(d.namespace.is_schedule_due(d.now));
        d.run_schedule(d.now - HOUR).unwrap();
        assert_eq!(names(&d).len(), 1 + (hour - 1).min(2), "by a time that a majority has not reached");
        d.run_schedule(d.now).unwrap();
        d.run_schedule(d.now).unwrap();
        d.namespace = d.restored();
        assert!(!d.namespace.is_schedule_due(d.now));
        assert_eq!(names(&d).len(), 1 + hour.min(2), "{:?}", names(&d));
        d.check();
    }
    assert!(names(&d).contains(&"hourly-own".into()));
    // One that got a name is somebody's own.
    let oldest = names(&d)[1].clone();
    d.rename_snapshot(&oldest, "kept").unwrap();
    // What is overwritten in place is waited for, not passed over.
    for _ in 0..20 {
        d.now += HOUR;
        d.run_schedule(d.now).unwrap();
    }
    let daily = names(&d).into_iter().filter(|name| name.starts_with("daily-")).count();
    assert_eq!((names(&d).len(), daily), (5, 1), "{:?}", names(&d));
    d.set_schedule(&[]).unwrap();
    d.now += 100 * HOUR;
    assert!(!d.namespace.is_schedule_due(d.now));
    assert_eq!(names(&d).len(), 5, "they stay");
    d.check();
}

/// A file that is overwritten in place at the full hour would cost the snapshot of that hour.
#[test]
fn a_schedule_waits_for_leases() {
    let mut d = driver();
    d.set_feature_level(13);
    d.set_schedule(&[SnapshotRule { period: 1, keep: 2 }]).unwrap();
    let file = d.create(ROOT, "f", 0o644).unwrap().inode;
    d.publish(file, &[extent(0, 4 * BLOCK, 1, 0)]).unwrap();
    d.hold(file, true).unwrap();
    let (number, _) = d.take_lease(file).unwrap();
    d.now += 3_600_000_000_000;
    d.run_schedule(d.now).unwrap();
    assert!(d.namespace.snapshots().is_empty() && d.namespace.is_schedule_due(d.now));
    assert_eq!(d.namespace.take_wanted_leases(), [(1, file)], "who is told");
    d.give_lease(file, number, true, 0).unwrap();
    d.run_schedule(d.now).unwrap();
    assert_eq!(d.namespace.snapshots().len(), 1);
    d.check();
}
