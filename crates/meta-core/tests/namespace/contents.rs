//! Publishing, truncating, extended attributes.
use crate::driver::*;
use cairn_types::ErrorCode as E;
use cairn_wire::common::Extent;
use cairn_wire::meta::{CreateRequest, PublishRequest, SetattrRequest};

fn file() -> (Driver, u64) {
    let mut d = Driver::new();
    let file = d.create(ROOT, "f", 0o644).unwrap().inode;
    (d, file)
}

/// Malformed extents would name bytes that do not exist, or two places for one byte.
#[test]
fn malformed_extents_are_refused_whole() {
    let (mut d, f) = file();
    let mut refused = |extents: &[Extent], code| {
        let mut all = vec![extent(1 << 20, 10, 9, 0)];
        all.extend_from_slice(extents);
        assert_eq!(d.publish(f, &all), Err(code), "{extents:?}");
        assert_eq!(d.extents(f).unwrap(), []);
    };
    refused(&[extent(0, 0, 1, 0)], E::InvalidArgument);
    refused(&[extent(1, 10, 1, 2)], E::InvalidArgument);
    refused(&[extent(0, (64 << 20) + 1, 1, 0)], E::InvalidArgument);
    refused(&[extent(0, 64 << 20, 1, 4096)], E::InvalidArgument);
    refused(&[extent(0, 10, 1, u64::MAX - 4095)], E::InvalidArgument);
    refused(&[extent(0, 4097, 1, 0), extent(4096, 1, 2, 0)], E::InvalidArgument);
    refused(&[Extent { flags: 1, ..extent(0, 1, 1, 0) }], E::InvalidArgument);
    refused(&[extent(u64::MAX - 4095, 4096, 1, 0)], E::FileTooLarge);
    let too_many: Vec<Extent> = (0..4097).map(|i| extent(i * 8192, 1, i as u32, 0)).collect();
    refused(&too_many, E::InvalidArgument);
    let request =
        PublishRequest { inode: f, extents: vec![extent(0, 10, 1, 0)], size: 9, set_size: true, ..Default::default() };
    assert_eq!(d.publish_with(request), Err(E::InvalidArgument), "beyond the size that is set");
    d.check();
}

/// Compare-and-set of the contents: the loser changes nothing.
#[test]
fn compare_and_set() {
    let (mut d, f) = file();
    let version = d.publish(f, &[extent(0, 10, 1, 0)]).unwrap().data_version;
    let swap = |index| PublishRequest {
        inode: f,
        extents: vec![extent(0, 10, index, 0)],
        if_data_version: version,
        ..Default::default()
    };
    let after = d.publish_with(swap(2)).unwrap();
    assert!(after.data_version > version);
    assert_eq!(d.publish_with(swap(3)), Err(E::Conflict));
    assert_eq!(d.extents(f).unwrap(), [extent(0, 10, 2, 0)]);
    let version = d.truncate(f, 10).unwrap().data_version;
    assert!(version > after.data_version, "a change of size is a change of the contents");
    d.check();
}

/// A conversion that rewrites the same contents would undo a touch that came in its middle.
#[test]
fn contents_that_stay_the_same_keep_the_time() {
    let (mut d, f) = file();
    let version = d.publish(f, &[extent(0, 10, 1, 0)]).unwrap().data_version;
    let touched = d.setattr(SetattrRequest { inode: f, valid: 1 << 5, mtime_ns: 77, ..Default::default() }).unwrap();
    assert_eq!((touched.mtime_ns, touched.data_version), (77, version), "a touch does not change the contents");
    let swap = PublishRequest {
        inode: f,
        extents: vec![extent(0, 10, 2, 0)],
        if_data_version: version,
        mtime_ns: 5,
        keep_mtime: true,
        ..Default::default()
    };
    let swapped = d.publish_with(swap).unwrap();
    assert_eq!(swapped.mtime_ns, 77);
    assert!(swapped.data_version > version);
    d.check();
}

/// Appending in one chunk keeps one extent; overwriting the middle splits and rejoins.
#[test]
fn maps_stay_compact() {
    let (mut d, f) = file();
    for i in 0..50 {
        d.publish(f, &[extent(i * 1000, 1000, 1, i * 1000)]).unwrap();
    }
    assert_eq!(d.extents(f).unwrap(), [extent(0, 50_000, 1, 0)]);
    d.publish(f, &[extent(8192, 4096, 2, 0)]).unwrap();
    let split = [extent(0, 8192, 1, 0), extent(8192, 4096, 2, 0), extent(12_288, 37_712, 1, 12_288)];
    assert_eq!(d.extents(f).unwrap(), split);
    assert_eq!(d.frees(), [(1, 2, 1)]);
    d.publish(f, &[extent(12_288, 4096, 2, 4096), extent(0, 100, 3, 0)]).unwrap();
    d.check();
    assert_eq!(d.extents(f).unwrap()[2], extent(8192, 8192, 2, 0));
    assert_eq!(d.getattr(f).unwrap().stored_bytes, 50_000);
}

/// Truncating gives back whole blocks only, and lengthening makes a hole.
#[test]
fn truncating() {
    let (mut d, f) = file();
    d.publish(f, &[extent(0, 20_000, 1, 4096)]).unwrap();
    let cut = d.truncate(f, 5000).unwrap();
    assert_eq!((cut.size, cut.stored_bytes, d.frees()), (5000, 5000, vec![(1, 3, 3)]));
    let long = d.truncate(f, 1 << 40).unwrap();
    assert_eq!((long.size, long.stored_bytes), (1 << 40, 5000));
    assert_eq!(d.truncate(f, 1 << 63), Err(E::FileTooLarge));
    let set = PublishRequest { inode: f, size: 4096, set_size: true, ..Default::default() };
    assert_eq!(d.publish_with(set).unwrap().stored_bytes, 4096);
    assert_eq!(d.frees(), [(1, 3, 3), (1, 2, 1)]);
    d.truncate(f, 0).unwrap();
    assert_eq!((d.extents(f).unwrap(), d.statfs().file_bytes), (vec![], 0));
    d.check();
}

/// Creating over a file replaces it as a rename would: a new inode, the old one until its holders let go.
#[test]
fn create_with_replace() {
    let (mut d, f) = file();
    d.publish(f, &[extent(0, 100, 1, 0)]).unwrap();
    let link = d.link(f, ROOT, "other", false).unwrap();
    assert_eq!(link.nlink, 2);
    let request = |name: &str, replace| CreateRequest {
        parent: ROOT,
        name: name.into(),
        mode: 0o600,
        replace,
        extents: vec![extent(0, 50, 2, 0)],
        ..Default::default()
    };
    assert_eq!(d.create_with(request("f", false)), Err(E::Exists), "contents would get lost");
    let new = d.create_with(request("f", true)).unwrap();
    assert_ne!(new.inode, f);
    assert_eq!((d.getattr(f).unwrap().nlink, d.getattr(ROOT).unwrap().size), (1, 2));
    d.mkdir(ROOT, "dir", 0o755).unwrap();
    assert_eq!(d.create_with(request("dir", true)), Err(E::IsDirectory));
    d.symlink(ROOT, "link", "f").unwrap();
    assert_eq!(d.create_with(request("link", true)), Err(E::Exists));
    let open = CreateRequest { parent: ROOT, name: b"f".to_vec(), mode: 0o600, ..Default::default() };
    assert_eq!(d.create_with(open).unwrap(), new, "what is there is answered");
    d.check();
}

/// Layouts are inherited and fixed once there are contents.
#[test]
fn layouts() {
    let (mut d, f) = file();
    let set = |inode, layout| SetattrRequest { inode, valid: 1 << 8, layout, ..Default::default() };
    let dir = d.mkdir(ROOT, "d", 0o755).unwrap().inode;
    d.setattr(set(dir, 2)).unwrap();
    assert_eq!(d.create(dir, "x", 0o644).unwrap().layout, 2);
    assert_eq!(d.mkdir(dir, "sub", 0o755).unwrap().layout, 2);
    d.setattr(set(f, 2)).unwrap();
    d.publish(f, &[extent(0, 1, 1, 0)]).unwrap();
    assert_eq!(d.setattr(set(f, 3)), Err(E::BadLayout));
    assert_eq!(d.setattr(set(dir, 0)), Err(E::BadLayout));
    assert_eq!(d.setattr(set(dir, 777)), Err(E::BadLayout));
}

/// Extended attributes are bounded and go with their file.
#[test]
fn extended_attributes() {
    let (mut d, f) = file();
    let has_none = |d: &Driver| d.readdir(ROOT).unwrap().iter().map(|entry| entry.no_xattrs).collect::<Vec<_>>();
    assert_eq!(has_none(&d), [true]);
    d.set_xattr(f, "user.a", b"1", 0).unwrap();
    assert_eq!(has_none(&d), [false]);
    assert_eq!(d.set_xattr(f, "user.a", b"2", 1), Err(E::Exists));
    assert_eq!(d.set_xattr(f, "user.b", b"2", 2), Err(E::NoAttribute));
    d.set_xattr(f, "user.a", &[7; 65_536], 2).unwrap();
    assert_eq!(d.set_xattr(f, "user.b", &[7; 65_537], 0), Err(E::AttributeTooLarge));
    assert_eq!(d.set_xattr(f, &format!("user.{}", "n".repeat(251)), b"", 0), Err(E::OutOfRange));
    for i in 0..3 {
        d.set_xattr(f, &format!("user.{i}"), &[0; 60_000], 0).unwrap();
    }
    assert_eq!(d.set_xattr(f, "user.x", &[0; 60_000], 0), Err(E::NoSpace));
    d.set_xattr(f, "trusted.t", b"", 0).unwrap();
    assert_eq!((d.list_xattr(f).unwrap().len(), d.get_xattr(f, "trusted.t").unwrap()), (5, vec![]));
    d.who = user(1000, 1000, &[]);
    assert_eq!((d.list_xattr(f).unwrap().len(), d.get_xattr(f, "trusted.t")), (4, Err(E::NoAttribute)));
    d.who = user(0, 0, &[]);
    d.remove_xattr(f, "user.a").unwrap();
    assert_eq!(d.get_xattr(f, "user.a"), Err(E::NoAttribute));
    d.check();
    d.unlink(ROOT, "f").unwrap();
    d.check();
}

/// An exhausted range of inode ids refuses new files and nothing else.
#[test]
fn inode_ids_run_out() {
    let range = cairn_meta_core::NamespaceConfig { inodes: 1..=3, ..config() };
    let mut d = Driver::on(cairn_meta_core::Namespace::new(&range));
    assert_eq!(d.namespace.inodes_left(), 2);
    d.create(ROOT, "a", 0o644).unwrap();
    d.create(ROOT, "b", 0o644).unwrap();
    assert_eq!((d.create(ROOT, "c", 0o644), d.mkdir(ROOT, "c", 0o755)), (Err(E::NoSpace), Err(E::NoSpace)));
    d.unlink(ROOT, "a").unwrap();
    assert_eq!(d.create(ROOT, "c", 0o644), Err(E::NoSpace), "ids are never given twice");
    assert_eq!((d.names(ROOT), d.namespace.inodes_left()), (vec!["b".to_string()], 0));
    d.check();
}

/// A file would have contents with the mode of before, or attributes that were set after contents that are not there.
#[test]
fn attributes_come_along_with_contents_or_nothing_does() {
    let (mut d, f) = file();
    let other = d.create(ROOT, "g", 0o644).unwrap().inode;
    let publish = |inode, index, durability| PublishRequest {
        inode,
        extents: vec![extent(0, 10, index, 0)],
        if_data_version: 1,
        mtime_ns: 99,
        durability,
        ..Default::default()
    };
    let set = |inode, valid| SetattrRequest {
        inode,
        valid,
        mode: 0o600,
        uid: 5,
        gid: 6,
        atime_ns: 7,
        mtime_ns: 8,
        ..Default::default()
    };
    let before = (d.getattr(f).unwrap(), d.extents(f).unwrap());
    let layout = PublishRequest { layout: 1, ..publish(f, 1, 0) };
    for (request, attributes, code) in [
        (publish(f, 1, 0), set(other, 1), E::InvalidArgument),
        (publish(f, 1, 0), set(f, 1 | 1 << 3), E::InvalidArgument),
        (publish(f, 1, 0), set(f, 1 | 1 << 9), E::InvalidArgument),
        (publish(f, 1, 2), set(f, 1), E::InvalidArgument),
        (layout, set(f, 1), E::InvalidArgument),
        (PublishRequest { if_data_version: 77, ..publish(f, 1, 0) }, set(f, 0b110111), E::Conflict),
    ] {
        assert_eq!(d.publish_attributes(request, attributes), Err(code));
    }
    // Somebody who holds it for writing, and is not its owner.
    d.who = user(1000, 1000, &[]);
    assert_eq!(d.publish_attributes(publish(f, 1, 0), set(f, 1)), Err(E::NotPermitted));
    d.who = user(0, 0, &[]);
    assert_eq!((d.getattr(f).unwrap(), d.extents(f).unwrap()), before);
    // The same as one after the other.
    let both = d.publish_attributes(publish(f, 1, 0), set(f, 0b110111)).unwrap();
    d.setattr(set(other, 0b110111)).unwrap();
    let after = d.publish_with(PublishRequest { mtime_ns: 8, ..publish(other, 2, 0) }).unwrap();
    let of = |a: &cairn_wire::meta::Attributes| {
        (a.mode, a.uid, a.gid, a.atime_ns, a.mtime_ns, a.size, a.data_version, a.stored_bytes)
    };
    assert_eq!(of(&both), of(&after));
    assert_eq!((both.mode & 0o7777, both.uid, both.gid, both.atime_ns, both.mtime_ns), (0o600, 5, 6, 7, 8));
    assert_eq!((d.getattr(f).unwrap(), d.extents(f).unwrap()), (both, vec![extent(0, 10, 1, 0)]));
    // Before it is durable, with the time of the publish.
    let volatile = d.create(ROOT, "h", 0o644).unwrap().inode;
    let shown = d.publish_attributes(publish(volatile, 3, 1), set(volatile, 1)).unwrap();
    assert_eq!((shown.mode & 0o7777, shown.mtime_ns), (0o600, 99));
    assert_ne!(shown.volatile_of, 0);
    d.check();
}
