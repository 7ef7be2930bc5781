//! Snapshots of directories: who shows them, what they are called, and what becomes of them when their directory moves
//! or goes.
use crate::driver::*;
use cairn_types::ErrorCode as E;
use cairn_wire::meta::*;

const BLOCK: u64 = 4096;
const LISTING: u64 = 0x7fff << 48;

fn driver() -> Driver {
    let mut d = Driver::new();
    d.set_feature_level(18);
    d
}

fn take(d: &mut Driver, directory: u64, name: &str) -> u64 {
    let number = d.create_snapshot_of(directory, name).expect("allowed").number;
    assert!(number > 0, "something is waited for");
    number
}

fn at(d: &Driver, path: &str) -> Answer<Attributes> {
    let answer = d.resolve(ROOT, path)?;
    match answer.error {
        0 => Ok(answer.attributes.expect("attributes")),
        code => Err(E::from_code(code as u16).expect("a known code")),
    }
}

fn shown(d: &Driver, directory: &str) -> Vec<String> {
    d.names(at(d, &format!("{directory}/.snapshots")).expect("a list").inode)
}

/// A directory would show what another one has, or a way out of a snapshot lead to what it is not of.
#[test]
fn a_snapshot_of_a_directory_is_shown_by_it_alone() {
    let mut d = driver();
    let dir = d.mkdir(ROOT, "d", 0o755).unwrap().inode;
    let sub = d.mkdir(dir, "sub", 0o755).unwrap().inode;
    let other = d.mkdir(ROOT, "other", 0o755).unwrap().inode;
    d.create(sub, "f", 0o644).unwrap();
    take(&mut d, dir, "one");
    take(&mut d, other, "one");
    take(&mut d, ROOT, "of all");
    d.unlink(sub, "f").unwrap();
    d.rename(ROOT, "d", other, "moved", 0).unwrap();
    d.namespace = d.restored();
    assert!(at(&d, "other/moved/.snapshots/one/sub/f").is_ok(), "a directory keeps its snapshots when it moves");
    assert_eq!(shown(&d, "other/moved"), ["of all", "one"]);
    assert_eq!(shown(&d, "other"), ["of all", "one"]);
    assert_eq!(shown(&d, "."), ["of all"]);
    assert_eq!(shown(&d, "other/moved/sub"), ["of all"]);
    assert_eq!(at(&d, ".snapshots/one"), Err(E::NotFound));
    assert_eq!(at(&d, "other/.snapshots/one/sub"), Err(E::NotFound), "the other directory's own");
    assert_eq!(at(&d, "other/moved").unwrap().inode, dir);
    assert_eq!(at(&d, "other/moved/.snapshots").unwrap().size, 2);
    let then = at(&d, "other/moved/.snapshots/one").unwrap().inode;
    assert_eq!(at(&d, "other/moved/.snapshots/one/sub/..").unwrap().inode, then);
    assert_eq!(at(&d, "other/moved/.snapshots/one/..").unwrap().inode, then, "nothing is above it");
    assert_eq!(at(&d, "other/moved/.snapshots/of all/..").unwrap().inode & !(0xffff << 48), ROOT);
    let infos: Vec<_> = d.namespace.snapshots().into_iter().map(|info| (info.directory, info.name)).collect();
    assert_eq!(infos, [(dir, b"one".to_vec()), (other, b"one".to_vec()), (0, b"of all".to_vec())]);
    d.check();
}

/// A directory would show two snapshots under one name, of which nobody could tell which is read or deleted.
#[test]
fn names_are_clear_in_each_directory() {
    let old = || {
        let mut old = Driver::new();
        old.set_feature_level(16);
        let dir = old.mkdir(ROOT, "d", 0o755).unwrap().inode;
        (old, dir)
    };
    let (mut one, dir) = old();
    assert_eq!(one.create_snapshot_of(dir, "a"), Err(E::UnknownOperation), "not all members understand it");
    let (mut one, dir) = old();
    assert_eq!(one.set_schedule_of(dir, &[SnapshotRule { period: 1, keep: 1 }]), Err(E::UnknownOperation));
    let mut d = driver();
    let dir = d.mkdir(ROOT, "d", 0o755).unwrap().inode;
    let sub = d.mkdir(dir, "sub", 0o755).unwrap().inode;
    let file = d.create(ROOT, "f", 0o644).unwrap().inode;
    let of_dir = take(&mut d, dir, "a");
    assert_eq!(d.create_snapshot_of(dir, "a"), Err(E::Exists));
    assert_eq!(d.create_snapshot("a"), Err(E::Exists), "the directory would show both");
    let of_sub = take(&mut d, sub, "a");
    let of_all = take(&mut d, ROOT, "b");
    assert_eq!(d.create_snapshot_of(sub, "b"), Err(E::Exists), "the directory would show both");
    assert_eq!(d.rename_snapshot_of(of_sub, "a", "b"), Err(E::Exists));
    assert_eq!(d.rename_snapshot("b", "a"), Err(E::Exists));
    assert_eq!(d.delete_snapshot("a"), Err(E::NotFound), "the volume has none of this name");
    for wrong in [file, 999, at(&d, "d/.snapshots/a").unwrap().inode, LISTING | dir] {
        assert!(matches!(d.create_snapshot_of(wrong, "c"), Err(E::NotFound | E::InvalidArgument)), "{wrong}");
    }
    d.rename_snapshot_of(of_sub, "a", "c").unwrap();
    assert_eq!((shown(&d, "d"), shown(&d, "d/sub")), (vec!["a".into(), "b".into()], vec!["b".into(), "c".into()]));
    d.delete_snapshot_of(of_dir, "a").unwrap();
    assert_eq!(d.delete_snapshot_of(of_dir, "a"), Err(E::NotFound));
    d.rename_snapshot("b", "a").unwrap();
    assert_eq!(shown(&d, "d/sub"), ["a", "c"]);
    d.delete_snapshot_of(of_all, "").unwrap();
    d.who = user(1000, 1000, &[]);
    assert_eq!(d.create_snapshot_of(dir, "x"), Err(E::NotPermitted));
    assert_eq!(d.delete_snapshot_of(of_sub, "c"), Err(E::NotPermitted));
    d.check();
}

/// What was removed with its directory could not be brought back, be read by those who could not read it before, or
/// keep its space for ever.
#[test]
fn snapshots_outlive_their_directory() {
    let mut d = driver();
    let dir = d.mkdir(ROOT, "d", 0o700).unwrap().inode;
    let file = d.create(dir, "f", 0o644).unwrap().inode;
    d.publish(file, &[extent(0, 4 * BLOCK, 1, 0)]).unwrap();
    let number = take(&mut d, dir, "a");
    d.remove_tree(ROOT, "d").unwrap();
    while !d.namespace.reclaimable().is_empty() {
        d.reclaim(2, 2);
        d.check();
    }
    d.namespace = d.restored();
    let then = d.lookup(LISTING | dir, "a").expect("it is there").inode;
    assert_eq!(d.names(then), ["f"]);
    assert_eq!(d.namespace.snapshots()[0].kept_blocks, 4);
    assert_eq!(d.lookup(LISTING | dir, "b"), Err(E::Stale));
    d.who = user(1000, 1000, &[]);
    assert!(d.lookup(LISTING | dir, "a").is_err(), "who could not search it");
    d.who = user(0, 0, &[]);
    assert_eq!(d.create_snapshot_of(dir, "c"), Err(E::NotFound), "it is gone");
    d.delete_snapshot_of(number, "a").unwrap();
    assert!(d.lookup(LISTING | dir, "a").is_err());
    d.reclaim(100, 100);
    assert!(d.namespace.snapshots().is_empty());
    d.check();
}

/// Snapshots of one directory would be taken or removed by another one's rules, or for ever of one that is gone.
#[test]
fn each_directory_has_its_schedule() {
    const HOUR: u64 = 3_600_000_000_000;
    let mut d = driver();
    let rule = |period, keep| SnapshotRule { period, keep };
    d.now = 1_728_000 * 1_000_000_000;
    let one = d.mkdir(ROOT, "one", 0o755).unwrap().inode;
    let two = d.mkdir(ROOT, "two", 0o755).unwrap().inode;
    d.set_schedule_of(one, &[rule(1, 3)]).unwrap();
    d.set_schedule_of(two, &[rule(1, 1), rule(2, 1)]).unwrap();
    d.set_schedule(&[rule(1, 2)]).unwrap();
    assert_eq!(d.set_schedule_of(two, &[rule(1, 896)]), Err(E::InvalidArgument), "all together");
    let taken = |d: &Driver, directory| {
        let there = d.namespace.snapshots().into_iter().filter(|info| !info.deleting && info.directory == directory);
        there.map(|info| String::from_utf8(info.name).unwrap()).collect::<Vec<_>>()
    };
    for _ in 0..5 {
        d.now += HOUR;
        d.namespace = d.restored();
        assert!(d.namespace.is_schedule_due(d.now));
        d.run_schedule(d.now).unwrap();
        assert!(!d.namespace.is_schedule_due(d.now));
        d.check();
    }
    assert_eq!((taken(&d, one).len(), taken(&d, two).len(), taken(&d, 0).len()), (3, 1, 2));
    assert_eq!(taken(&d, one)[2], "hourly-1970-01-21T05:00Z.dir");
    assert_eq!(shown(&d, "one").len(), 5, "its own and those of the volume: {:?}", shown(&d, "one"));
    d.rmdir(ROOT, "two").unwrap();
    d.set_schedule_of(one, &[]).unwrap();
    d.now += HOUR;
    d.run_schedule(d.now).unwrap();
    assert_eq!((taken(&d, one).len(), taken(&d, two).len()), (3, 1), "they stay");
    d.set_schedule(&[]).unwrap();
    d.now += 100 * HOUR;
    assert!(!d.namespace.is_schedule_due(d.now), "nothing is left of it");
    d.check();
}
