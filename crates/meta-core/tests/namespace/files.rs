//! Files and directories, one rule of Linux a test.

use crate::driver::*;
use cairn_meta_core::AppliedAt;
use cairn_types::{ErrorCode as E, WallTime, first_term};
use cairn_wire::Opcode;
use cairn_wire::meta::CreateRequest;

/// A file that was created, published and listed is found with the same attributes everywhere.
#[test]
fn a_file_from_create_to_unlink() {
    let mut d = Driver::new();
    let dir = d.mkdir(ROOT, "dir", 0o755).unwrap();
    assert_eq!((dir.mode, dir.nlink, dir.size), (0o040_755, 2, 0));
    let file = d.create(dir.inode, "file", 0o644).unwrap();
    assert_eq!((file.mode, file.nlink, file.size, file.layout), (0o100_644, 1, 0, 3));
    let file = d.publish(file.inode, &[extent(0, 5000, 1, 8192)]).unwrap();
    assert_eq!((file.size, file.stored_bytes), (5000, 5000));
    assert_eq!(d.lookup(dir.inode, "file").unwrap(), file);
    assert_eq!(d.getattr(file.inode).unwrap(), file);
    assert_eq!(d.extents(file.inode).unwrap(), [extent(0, 5000, 1, 8192)]);
    let listed = d.readdir(dir.inode).unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].attributes.as_ref(), Some(&file));
    d.check();
    d.unlink(dir.inode, "file").unwrap();
    assert_eq!(d.getattr(file.inode), Err(E::Stale));
    assert_eq!(d.frees(), [(1, 2, 2)]);
    d.rmdir(ROOT, "dir").unwrap();
    d.check();
    assert_eq!(d.statfs().inodes, 1);
}

/// Create with contents in one operation gives the same file as create and publish.
#[test]
fn create_with_contents() {
    let mut d = Driver::new();
    let request = CreateRequest {
        parent: ROOT,
        name: b"f".to_vec(),
        mode: 0o600,
        exclusive: true,
        extents: vec![extent(4096, 100, 1, 4096), extent(0, 4096, 1, 0)],
        mtime_ns: 77,
        ..Default::default()
    };
    let file = d.create_with(request).unwrap();
    assert_eq!((file.size, file.stored_bytes, file.mtime_ns), (4196, 4196, 77));
    assert_eq!(d.extents(file.inode).unwrap(), [extent(0, 4196, 1, 0)]);
    d.check();
}

/// A mount that knows inodes which the partition has forgotten would change the files that got their numbers.
#[test]
fn numbers_that_may_have_been_given_are_skipped() {
    let mut first = Driver::new();
    let before = first.create(ROOT, "before", 0o644).unwrap().inode;
    let mut d = Driver::on(first.restored());
    assert_eq!(first.create(ROOT, "forgotten", 0o644).unwrap().inode, before + 1);
    d.set_feature_level(5);
    d.session = 2;
    for first in [1 << 32, 2 << 32, 3 << 32] {
        d.skip_inodes();
        let file = d.create(ROOT, &format!("file-{first}"), 0o644).unwrap().inode;
        assert_eq!(file, first);
    }
    assert_eq!(d.mkdir(ROOT, "dir", 0o755).unwrap().inode, (3 << 32) + 1);
}

/// A backup that is put back a second time would give numbers again that were given after the first time, and that
/// other partitions still name.
#[test]
fn a_state_that_is_put_back_twice_gives_numbers_apart() {
    let mut backup = Driver::new();
    backup.create(ROOT, "before", 0o644).unwrap();
    backup.set_feature_level(26);
    let first_of_life = |era: u64| {
        let mut life = Driver::on(backup.restored());
        let at = AppliedAt { index: 1 << 32, term: first_term(era), time: WallTime(2_000_000) };
        life.namespace.apply(at, Opcode::SkipInodes, &[], &mut Vec::new()).expect("passed over");
        life.session = 2;
        life.create(ROOT, "after", 0o644).unwrap().inode
    };
    let (first, second) = (first_of_life(1_795_000_000), first_of_life(1_795_000_060));
    assert!(first >= 1 << 32, "beyond what the backup may not know of");
    assert!(second >= first + 60 * 10_000, "beyond what a minute can have given: {first}, then {second}");
}
