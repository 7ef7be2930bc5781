//! Deaths that are deferred for readers: numbered, told, and taken apart up to what was acknowledged.
use crate::driver::{Driver, ROOT, extent, user};
use cairn_meta_core::Deaths;
use cairn_types::ErrorCode as E;

/// A reader would lose a file that it opened, or would not be told; a hold would come too late.
#[test]
fn deaths_are_numbered_and_wait_for_acknowledgements() {
    let mut d = Driver::new();
    d.set_deferral(true);
    let files: Vec<u64> = ["a", "b", "c"].iter().map(|name| d.create(ROOT, name, 0o644).unwrap().inode).collect();
    for (at, file) in files.iter().enumerate() {
        d.publish(*file, &[extent(0, 4096, at as u32, 0)]).unwrap();
    }
    let start = d.open(files[0], 4, 5).unwrap().index;
    assert!(d.namespace.deaths_after(start, 10).inodes.is_empty());
    for name in ["a", "b", "c"] {
        d.unlink(ROOT, name).unwrap();
        d.check();
    }
    assert_eq!(d.extents(files[1]).unwrap().len(), 1, "as good as held");
    assert_eq!(d.open(files[1], 4, 5).map(|_| ()), Err(E::Stale), "but not to be opened anew");
    let first = d.namespace.deaths_after(start, 2);
    assert_eq!((first.inodes.as_slice(), first.more), (&files[..2], true));
    let rest = d.namespace.deaths_after(first.position, 2);
    assert_eq!((rest.inodes.as_slice(), rest.more), (&files[2..], false));
    d.hold(files[0], false).unwrap();
    d.reclaim_to(first.position);
    d.check();
    assert_eq!((d.extents(files[0]).map(|e| e.len()), d.extents(files[1])), (Ok(1), Err(E::Stale)));
    assert_eq!(d.frees(), [(1, 0, 1)]);
    d.namespace = d.restored();
    d.check();
    assert_eq!(d.namespace.deaths_after(start, 10).inodes, files[2..], "the list outlives a restart");
    d.release(files[0]).unwrap();
    let Deaths { inodes, position, .. } = d.namespace.deaths_after(rest.position, 10);
    assert_eq!(inodes, files[..1], "its second death has a number of its own");
    d.set_deferral(false);
    d.reclaim_to(position);
    d.check();
    assert_eq!((d.frees().len(), d.namespace.deferred_count()), (3, 0));
    let late = d.create(ROOT, "d", 0o644).unwrap().inode;
    d.unlink(ROOT, "d").unwrap();
    assert_eq!(d.getattr(late), Err(E::Stale), "nobody uses Open any more");
}

/// Numbers of different members would differ after a restart of one, and a reader would miss deaths.
#[test]
fn numbers_are_the_same_on_every_member() {
    let mut d = Driver::new();
    d.set_deferral(true);
    for name in ["a", "b", "c"] {
        d.create(ROOT, name, 0o644).unwrap();
    }
    d.unlink(ROOT, "a").unwrap();
    d.reclaim_to(u64::MAX);
    let mut other = Driver::on(d.restored());
    other.log = d.log.clone();
    d.unlink(ROOT, "b").unwrap();
    let entry = d.log.last().unwrap().clone();
    other.namespace.apply(entry.at, entry.opcode, &entry.request, &mut Vec::new()).unwrap();
    assert_eq!(d.namespace.first_deferred(), other.namespace.first_deferred());
    assert_eq!(d.pages(), other.pages());
}

/// Attributes of many files cost a call each, or one that is gone spoils all.
#[test]
fn many_attributes_at_once() {
    let mut d = Driver::new();
    let a = d.create(ROOT, "a", 0o600).unwrap();
    let b = d.mkdir(ROOT, "b", 0o755).unwrap();
    let all = d.getattr_many(&[b.inode, 99, a.inode]).unwrap();
    assert_eq!(all.iter().map(|found| found.inode).collect::<Vec<_>>(), [b.inode, a.inode]);
    assert_eq!(d.getattr_many(&vec![1; 257]), Err(E::InvalidArgument));
    d.who = user(7, 7, &[]);
    assert_eq!(d.open_at(ROOT, "a", 4).map(|_| ()), Err(E::PermissionDenied));
    assert_eq!(d.open_at(ROOT, "b", 5).unwrap().attributes.unwrap().inode, b.inode);
    assert_eq!(d.open_at(ROOT, "x", 4).map(|_| ()), Err(E::NotFound));
}
