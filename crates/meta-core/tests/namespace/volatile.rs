//! Bytes that are visible before they are durable: they only add, nobody builds on them, and what a crash took of them
//! is cut off.
use crate::driver::*;
use cairn_types::ErrorCode as E;
use cairn_wire::meta::{CloneRangeRequest, EndVolatile, PublishRequest, PunchRequest};

const BLOCK: u64 = 4096;
const OTHER: u64 = 2;

/// A file of one durable block, and two volatile ones behind it, of session 1.
fn file() -> (Driver, u64) {
    let mut d = Driver::new();
    let f = d.create(ROOT, "f", 0o666).unwrap().inode;
    d.publish(f, &[extent(0, BLOCK, 1, 0)]).unwrap();
    let seen = d.publish_volatile(f, &[extent(BLOCK, 2 * BLOCK, 2, 0)]).unwrap();
    assert_eq!((seen.size, seen.volatile_of), (3 * BLOCK, 1));
    d.check();
    (d, f)
}

fn ended(inode: u64, durable_to: u64) -> EndVolatile {
    EndVolatile { inode, session: 1, from: BLOCK, to: 3 * BLOCK, durable_to }
}

fn only(d: &Driver) -> Vec<(u64, u64, u64)> {
    let (files, last) = d.namespace.ended_volatile(0, 100);
    assert_eq!(last, None);
    files.into_iter().map(|file| (file.inode, file.from, file.to)).collect()
}

/// Others would count on what nobody has promised yet, or nobody would be told when it is.
#[test]
fn the_writer_says_when_it_is_durable() {
    let (mut d, f) = file();
    assert!(d.namespace.is_volatile(f, BLOCK) && !d.namespace.is_volatile(f, 0));
    d.publish_volatile(f, &[extent(3 * BLOCK, BLOCK, 2, 2 * BLOCK)]).expect("it goes on at its end");
    d.session = OTHER;
    d.note_durable(&[(f, u64::MAX)]).expect("passed over");
    assert_eq!(d.getattr(f).unwrap().volatile_of, 1, "another session cannot know");
    d.session = 1;
    let before = d.getattr(f).unwrap();
    d.note_durable(&[(f, 3 * BLOCK), (4711, 5)]).unwrap();
    assert!(!d.namespace.is_volatile(f, 0) && d.namespace.is_volatile(f, 2 * BLOCK), "one extent holds both");
    assert_eq!(d.restored().volatile_count(), 1);
    d.check();
    d.note_durable(&[(f, 4 * BLOCK)]).unwrap();
    let after = d.getattr(f).unwrap();
    assert_eq!((after.volatile_of, d.namespace.volatile_count()), (0, 0));
    assert_eq!((after.data_version, after.mtime_ns), (before.data_version, before.mtime_ns), "nothing was written");
    d.check();
}

/// What was durable would be lost with what was written over it.
#[test]
fn only_what_is_added_is_volatile() {
    let (mut d, f) = file();
    for extents in [extent(0, BLOCK, 3, 0), extent(2 * BLOCK, 5 * BLOCK, 3, 0)] {
        assert_eq!(d.publish_volatile(f, &[extents]), Err(E::Conflict), "it replaces what is there");
    }
    assert_eq!(d.publish_volatile(f, &[]), Err(E::InvalidArgument));
    let unknown = PublishRequest { inode: f, durability: 3, ..Default::default() };
    assert_eq!(d.publish_with(unknown), Err(E::InvalidArgument));
    d.session = OTHER;
    let behind = [extent(3 * BLOCK, BLOCK, 3, 0)];
    assert_eq!(d.publish_volatile(f, &behind), Err(E::Conflict), "ranges of two writers");
    d.publish(f, &behind).expect("durable it may go behind");
    d.session = 1;
    assert_eq!(
        d.publish_volatile(f, &[extent(4 * BLOCK, 9, 2, 8 * BLOCK)]),
        Err(E::Conflict),
        "of which one lies between"
    );
    d.check();
    let g = d.create(ROOT, "g", 0o644).unwrap().inode;
    d.publish(g, &[extent(0, BLOCK, 5, 0)]).unwrap();
    d.hold(g, true).unwrap();
    let (lease, _) = d.take_lease(g).unwrap();
    let added = PublishRequest {
        inode: g,
        extents: vec![extent(BLOCK, 9, 5, BLOCK)],
        lease,
        durability: 1,
        ..Default::default()
    };
    assert_eq!(d.publish_with(added), Err(E::Conflict), "blocks may be changed in place at this moment");
}

/// A change that was made durable would go when the end of the file is cut, or name bytes that members lose.
#[test]
fn nobody_builds_on_volatile_bytes() {
    let (mut d, f) = file();
    let layout = d.getattr(f).unwrap().layout;
    d.create(ROOT, "old", 0o644).unwrap();
    for session in [1, OTHER] {
        d.session = session;
        let version = d.getattr(f).unwrap().data_version;
        let moved = PublishRequest {
            inode: f,
            extents: vec![extent(0, 3 * BLOCK, 9, 0)],
            layout,
            keep_mtime: true,
            if_data_version: version,
            ..Default::default()
        };
        assert_eq!(d.publish_with(moved), Err(E::LeaseHeld), "a move by somebody who read it");
        assert_eq!(d.rename(ROOT, "f", ROOT, "old", 0), Err(E::LeaseHeld), "the old file would be gone after a crash");
        assert_eq!(d.rename(ROOT, "old", ROOT, "f", 2), Err(E::LeaseHeld));
        assert_eq!(d.link(f, ROOT, "old", true), Err(E::LeaseHeld));
        let into = d.create(ROOT, &format!("to {session}"), 0o644).unwrap().inode;
        let clone = CloneRangeRequest { source: f, inode: into, length: 3 * BLOCK, ..Default::default() };
        assert_eq!(d.clone_range(clone), Err(E::LeaseHeld));
        d.hold(f, true).unwrap();
        assert_eq!(d.take_lease(f).unwrap().0, 0);
    }
    assert_eq!(d.publish(f, &[extent(2 * BLOCK, BLOCK, 9, 0)]), Err(E::LeaseHeld));
    d.rename(ROOT, "f", ROOT, "new", 0).expect("a name that nothing had");
    d.session = 1;
    d.publish(f, &[extent(2 * BLOCK, BLOCK, 9, 0)]).expect("its writer makes all of it durable together");
    d.note_durable(&[(f, u64::MAX)]).unwrap();
    d.rename(ROOT, "new", ROOT, "old", 0).expect("durable it takes the name");
    d.check();
}

/// A member that fails between memory and disk would lose what was closed: its writer sends it elsewhere.
#[test]
fn its_writer_moves_it() {
    let (mut d, f) = file();
    d.chmod(f, 0o4755).unwrap();
    let before = d.getattr(f).unwrap();
    let moved = |version, from, index| PublishRequest {
        inode: f,
        extents: vec![extent(from, BLOCK, index, from)],
        durability: 2,
        if_data_version: version,
        ..Default::default()
    };
    d.who = user(1000, 1000, &[]);
    assert_eq!(d.publish_with(moved(before.data_version, 0, 7)), Err(E::Conflict), "what it did not write like this");
    assert_eq!(d.publish_with(moved(before.data_version - 1, BLOCK, 7)), Err(E::Conflict), "of another version");
    let after = d.publish_with(moved(before.data_version, BLOCK, 7)).expect("it may, whoever may write now");
    assert_eq!((after.mode, after.mtime_ns, after.ctime_ns), (before.mode, before.mtime_ns, before.ctime_ns));
    assert_eq!((after.data_version, after.volatile_of), (before.data_version + 1, 1));
    d.session = OTHER;
    assert_eq!(d.publish_with(moved(after.data_version, BLOCK, 8)), Err(E::Conflict));
    d.check();
}

/// A file would keep naming bytes that nobody has, or lose some that members have.
#[test]
fn what_a_crash_took_is_cut_off() {
    for (durable_to, size) in [(BLOCK, BLOCK), (2 * BLOCK + 7, 2 * BLOCK + 7), (3 * BLOCK, 3 * BLOCK)] {
        let (mut d, f) = file();
        d.end_volatile(ended(f, BLOCK));
        assert_eq!(d.getattr(f).unwrap().size, 3 * BLOCK, "its writer lives");
        assert_eq!(only(&d), []);
        d.expire(&[1]);
        assert_eq!(only(&d), [(f, BLOCK, 3 * BLOCK)]);
        let (files, _) = d.namespace.ended_volatile(0, 1);
        let parts: Vec<_> = d.namespace.volatile_parts(&files[0], 0);
        assert_eq!(
            parts.iter().map(|p| (p.file_offset, p.length, p.index)).collect::<Vec<_>>(),
            [(BLOCK, 2 * BLOCK, 2)]
        );
        d.end_volatile(EndVolatile { to: 4 * BLOCK, ..ended(f, BLOCK) });
        assert_eq!(only(&d).len(), 1, "it was another range when members were asked");
        d.end_volatile(ended(f, durable_to));
        d.session = OTHER;
        let seen = d.getattr(f).unwrap();
        assert_eq!((seen.size, seen.volatile_of, d.namespace.volatile_count()), (size, 0, 0));
        d.check();
    }
}

/// What somebody else made durable behind it would go too.
#[test]
fn what_others_added_behind_it_stays() {
    let (mut d, f) = file();
    d.session = OTHER;
    d.publish(f, &[extent(3 * BLOCK, BLOCK, 4, 0)]).unwrap();
    d.expire(&[1]);
    d.end_volatile(ended(f, BLOCK));
    let seen = d.getattr(f).unwrap();
    assert_eq!((seen.size, seen.stored_bytes, seen.volatile_of), (4 * BLOCK, 4 * BLOCK, 0));
    d.check();
}

/// The list would name files that are gone or cut, and never end.
#[test]
fn what_is_cut_or_removed_is_not_volatile() {
    let (mut d, f) = file();
    d.punch(PunchRequest { inode: f, offset: 2 * BLOCK, length: BLOCK, ..Default::default() }).unwrap();
    d.truncate(f, 2 * BLOCK).unwrap();
    assert_eq!(d.getattr(f).unwrap().volatile_of, 1);
    d.check();
    d.truncate(f, BLOCK).unwrap();
    assert_eq!((d.getattr(f).unwrap().volatile_of, d.namespace.volatile_count()), (0, 0));
    d.publish_volatile(f, &[extent(BLOCK, BLOCK, 3, 0)]).unwrap();
    d.hold(f, false).unwrap();
    d.unlink(ROOT, "f").unwrap();
    assert_eq!(d.namespace.volatile_count(), 1, "it is open");
    d.check();
    d.release(f).unwrap();
    assert_eq!(d.namespace.volatile_count(), 0);
    d.mkdir(ROOT, "d", 0o755).unwrap();
    let dir = d.lookup(ROOT, "d").unwrap().inode;
    let g = d.create(dir, "g", 0o644).unwrap().inode;
    d.publish_volatile(g, &[extent(0, BLOCK, 4, 0)]).unwrap();
    d.remove_tree(ROOT, "d").unwrap();
    d.check();
    d.reclaim(100, 1000);
    d.reclaim(100, 1000);
    assert_eq!(d.namespace.volatile_count(), 0);
    d.check();
}
