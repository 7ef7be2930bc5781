//! The trash: made by anybody as root's, emptied by time.
use crate::driver::*;
use cairn_types::{ErrorCode as E, WallTime};
use cairn_wire::Opcode;
use cairn_wire::common::Empty;
use cairn_wire::meta::{ExpireTrash, SetattrRequest};

const SECOND: u64 = 1_000_000_000;

fn expire(d: &mut Driver) {
    d.mutate::<Empty>(Opcode::ExpireTrash, &ExpireTrash { up_to_ns: 0 }).unwrap();
    d.check();
}

/// The first user of the trash would own that of all others, or nobody but root could have one.
#[test]
fn whoever_makes_it_it_is_roots() {
    let mut d = Driver::new();
    assert_eq!(d.getattr(ROOT).unwrap().mode & 0o777, 0o755, "the root is root's alone");
    d.who = user(1000, 100, &[]);
    assert_eq!(d.mkdir(ROOT, "other", 0o777).unwrap_err(), E::PermissionDenied);
    let trash = d.mkdir(ROOT, ".trash", 0o700).unwrap();
    assert_eq!((trash.mode & 0o7777, trash.uid, trash.gid), (0o1777, 0, 0));
    assert_eq!(d.mkdir(ROOT, ".trash", 0o700), Err(E::Exists));
    let own = d.mkdir(trash.inode, "1000", 0o700).unwrap();
    assert_eq!((own.mode & 0o7777, own.uid), (0o700, 1000));
    assert_eq!(
        d.setattr(SetattrRequest { inode: trash.inode, valid: 1, mode: 0o777, ..Default::default() }),
        Err(E::NotPermitted)
    );
    d.who = user(2000, 100, &[]);
    assert_eq!(d.rmdir(trash.inode, "1000"), Err(E::NotPermitted), "sticky");
    assert_eq!(d.mkdir(own.inode, "mine", 0o700).unwrap_err(), E::PermissionDenied);
    d.check();
}

/// Trash of three days would go for good because logged time, which never falls, followed a clock that was five days
/// ahead.
#[test]
fn logged_time_alone_removes_nothing() {
    let mut d = Driver::new();
    d.now = 1_000 * SECOND;
    let trash = d.mkdir(ROOT, ".trash", 0o700).unwrap().inode;
    let own = d.mkdir(trash, "0", 0o700).unwrap().inode;
    for time in [1_500, 2_000] {
        d.mkdir(own, &format!("{time:012}"), 0o700).unwrap();
    }
    d.now = 9_000 * SECOND;
    let up_to = |seconds: u64| ExpireTrash { up_to_ns: seconds * SECOND };
    for (reached, left) in [(1_499, 2), (1_700, 1), (1_999, 1), (8_000, 0)] {
        d.mutate::<Empty>(Opcode::ExpireTrash, &up_to(reached)).unwrap();
        d.check();
        assert_eq!(d.names(own).len(), left, "by the clocks of a majority it is {reached}");
    }
}

/// Space of trashed files would never come back, or they would go before their time.
#[test]
fn buckets_go_when_their_time_is_over() {
    let mut d = Driver::new();
    d.now = 1_000 * SECOND;
    let trash = d.mkdir(ROOT, ".trash", 0o700).unwrap().inode;
    for uid in [0, 7] {
        let own = d.mkdir(trash, &uid.to_string(), 0o700).unwrap().inode;
        d.mkdir(own, "notes", 0o700).unwrap();
        for time in [1_500, 2_000, 3_000] {
            let bucket = d.mkdir(own, &format!("{time:012}"), 0o700).unwrap().inode;
            let entry = d.mkdir(bucket, "entry", 0o700).unwrap().inode;
            let file = d.create(entry, "file", 0o644).unwrap().inode;
            d.publish(file, &[extent(0, 5000, time as u32 + uid, 0)]).unwrap();
        }
    }
    let names = |d: &Driver, uid: &str| d.names(d.lookup(trash, uid).unwrap().inode);
    assert!(!d.namespace.is_trash_due(WallTime(1_499 * SECOND)));
    expire(&mut d);
    assert_eq!(names(&d, "0").len(), 4, "nothing is due");
    assert!(d.namespace.is_trash_due(WallTime(1_500 * SECOND)));
    d.now = 2_000 * SECOND;
    expire(&mut d);
    for uid in ["0", "7"] {
        assert_eq!(names(&d, uid), ["000000003000", "notes"]);
    }
    d.reclaim(0, 0);
    d.check();
    let mut freed: Vec<u32> = d.frees().iter().map(|(index, ..)| *index).collect();
    freed.sort_unstable();
    assert_eq!(freed, [1_500, 1_507, 2_000, 2_007]);
    assert!(!d.namespace.is_trash_due(WallTime(2_999 * SECOND)));
}
