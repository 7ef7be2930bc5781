//! Rename and link, case by case.
use crate::driver::*;
use cairn_types::ErrorCode as E;

const EXCHANGE: u32 = 2;

fn tree() -> (Driver, u64, u64) {
    let mut d = Driver::new();
    let a = d.mkdir(ROOT, "a", 0o755).unwrap().inode;
    let b = d.mkdir(ROOT, "b", 0o755).unwrap().inode;
    (d, a, b)
}

/// A directory moved below itself would be cut off from the tree.
#[test]
fn not_below_itself() {
    let (mut d, a, _) = tree();
    let sub = d.mkdir(a, "sub", 0o755).unwrap().inode;
    let deep = d.mkdir(sub, "deep", 0o755).unwrap().inode;
    assert_eq!(d.rename(ROOT, "a", a, "x", 0), Err(E::InvalidArgument));
    assert_eq!(d.rename(ROOT, "a", deep, "x", 0), Err(E::InvalidArgument));
    assert_eq!(d.rename(sub, "deep", ROOT, "a", 0), Err(E::NotEmpty), "the target is above the source");
    assert_eq!(d.rename(sub, "deep", ROOT, "a", EXCHANGE), Err(E::InvalidArgument));
    assert_eq!(d.rename(ROOT, "a", sub, "deep", EXCHANGE), Err(E::InvalidArgument));
    d.check();
}

/// Links and `..` follow a directory that moves.
#[test]
fn directories_take_their_links_along() {
    let (mut d, a, b) = tree();
    let sub = d.mkdir(a, "sub", 0o755).unwrap().inode;
    assert_eq!((d.getattr(a).unwrap().nlink, d.getattr(b).unwrap().nlink), (3, 2));
    let before = d.getattr(sub).unwrap();
    d.rename(a, "sub", b, "moved", 0).unwrap();
    assert_eq!((d.getattr(a).unwrap().nlink, d.getattr(b).unwrap().nlink), (2, 3));
    assert_eq!(d.lookup(sub, "..").unwrap().inode, b);
    let after = d.getattr(sub).unwrap();
    assert_eq!((after.ctime_ns, after.mtime_ns), (d.now, before.mtime_ns));
    assert_eq!((d.getattr(a).unwrap().mtime_ns, d.getattr(b).unwrap().ctime_ns), (d.now, d.now));
    d.check();
}

/// What is replaced loses its name, and everything else stays.
#[test]
fn replacing() {
    let (mut d, a, b) = tree();
    let f = d.create(a, "f", 0o644).unwrap().inode;
    let g = d.create(b, "g", 0o644).unwrap().inode;
    d.publish(g, &[extent(0, 4096, 1, 0)]).unwrap();
    assert_eq!(d.rename(a, "f", b, "g", 1), Err(E::Exists));
    d.rename(a, "f", b, "g", 0).unwrap();
    assert_eq!(d.lookup(b, "g").unwrap().inode, f);
    assert_eq!((d.getattr(g), d.frees()), (Err(E::Stale), vec![(1, 0, 1)]));
    let empty = d.mkdir(a, "empty", 0o755).unwrap().inode;
    let full = d.mkdir(b, "full", 0o755).unwrap().inode;
    d.create(full, "x", 0o644).unwrap();
    assert_eq!(d.rename(a, "empty", b, "full", 0), Err(E::NotEmpty));
    assert_eq!(d.rename(a, "empty", b, "g", 0), Err(E::NotDirectory));
    assert_eq!(d.rename(b, "g", a, "empty", 0), Err(E::IsDirectory));
    d.rename(b, "full", a, "empty", 0).unwrap();
    assert_eq!((d.getattr(empty), d.names(a), d.names(b)), (Err(E::Stale), vec!["empty".into()], vec!["g".into()]));
    d.check();
}

/// Exchange swaps any two entries, also a directory with a file.
#[test]
fn exchanging() {
    let (mut d, a, b) = tree();
    let dir = d.mkdir(a, "x", 0o755).unwrap().inode;
    let file = d.create(b, "y", 0o644).unwrap().inode;
    d.create(dir, "inside", 0o644).unwrap();
    assert_eq!(d.rename(a, "x", b, "nothing", EXCHANGE), Err(E::NotFound));
    d.rename(a, "x", b, "y", EXCHANGE).unwrap();
    assert_eq!((d.lookup(a, "x").unwrap().inode, d.lookup(b, "y").unwrap().inode), (file, dir));
    assert_eq!((d.getattr(a).unwrap().nlink, d.getattr(b).unwrap().nlink), (2, 3));
    assert_eq!(d.lookup(dir, "..").unwrap().inode, b);
    assert_eq!(d.rename(a, "x", b, "y", 3), Err(E::InvalidArgument));
    d.check();
}

/// Two names of one file: nothing happens, both stay.
#[test]
fn two_names_of_one_file() {
    let (mut d, a, b) = tree();
    let file = d.create(a, "f", 0o644).unwrap().inode;
    assert_eq!(d.link(file, b, "g", false).unwrap().nlink, 2);
    d.rename(a, "f", b, "g", 0).unwrap();
    assert_eq!((d.names(a), d.names(b)), (vec!["f".to_string()], vec!["g".to_string()]));
    d.rename(a, "f", a, "f", 0).unwrap();
    d.unlink(a, "f").unwrap();
    assert_eq!(d.getattr(file).unwrap().nlink, 1);
    d.check();
}

/// Moving a directory elsewhere writes its `..`: it needs w on the directory itself.
#[test]
fn a_moved_directory_is_written() {
    let mut d = Driver::new();
    let (a, b) = (d.mkdir(ROOT, "a", 0o777).unwrap().inode, d.mkdir(ROOT, "b", 0o777).unwrap().inode);
    let sub = d.mkdir(a, "sub", 0o755).unwrap().inode;
    d.who = user(1000, 1000, &[]);
    assert_eq!(d.rename(a, "sub", b, "sub", 0), Err(E::PermissionDenied));
    d.rename(a, "sub", a, "other", 0).unwrap();
    d.who = user(0, 0, &[]);
    d.chmod(sub, 0o757).unwrap();
    d.who = user(1000, 1000, &[]);
    d.rename(a, "other", b, "sub", 0).unwrap();
    d.check();
}

/// Links: not to directories, also to symbolic links, not to what lost its last name.
#[test]
fn links() {
    let (mut d, a, b) = tree();
    assert_eq!(d.link(b, a, "x", false), Err(E::NotPermitted));
    let symlink = d.symlink(a, "s", "target").unwrap();
    assert_eq!((symlink.mode, symlink.size), (0o120_777, 6));
    assert_eq!(d.link(symlink.inode, b, "s", false).unwrap().nlink, 2);
    assert_eq!(d.readlink(symlink.inode).unwrap(), b"target");
    assert_eq!(d.link(symlink.inode, b, "s", false), Err(E::Exists));
    let file = d.create(a, "f", 0o644).unwrap().inode;
    d.hold(file, false).unwrap();
    d.unlink(a, "f").unwrap();
    assert_eq!(d.link(file, a, "f", false), Err(E::NotFound));
    let unnamed = d.create_unnamed(a, 0o600).unwrap();
    assert_eq!(unnamed.nlink, 0);
    assert_eq!(d.link(unnamed.inode, a, "s", true).unwrap().nlink, 1);
    assert_eq!(d.lookup(a, "s").unwrap().inode, unnamed.inode);
    d.unlink(a, "s").unwrap();
    assert_eq!(d.link(unnamed.inode, a, "s", true), Err(E::NotFound), "only its first name was free");
    d.check();
}

/// Names that no directory can have.
#[test]
fn names() {
    let (mut d, a, _) = tree();
    let longest = "x".repeat(255);
    d.create(a, &longest, 0o644).unwrap();
    assert_eq!(d.lookup(a, &longest).unwrap().nlink, 1);
    let longer = "x".repeat(256);
    assert_eq!(d.create(a, &longer, 0o644), Err(E::NameTooLong));
    assert_eq!(d.lookup(a, &longer), Err(E::NameTooLong));
    assert_eq!(d.rename(a, &longest, a, &longer, 0), Err(E::NameTooLong));
    for bad in ["", ".", "..", "a/b", "a\0b"] {
        assert_eq!(d.mkdir(a, bad, 0o755), Err(E::InvalidArgument), "{bad:?}");
    }
    assert_eq!((d.lookup(a, ".").unwrap().inode, d.lookup(a, "..").unwrap().inode), (a, ROOT));
    assert_eq!(d.unlink(ROOT, "a"), Err(E::IsDirectory));
    assert_eq!(d.rmdir(a, &longest), Err(E::NotDirectory));
    assert_eq!(d.rmdir(ROOT, "a"), Err(E::NotEmpty));
    assert_eq!(d.symlink(a, "s", &"t".repeat(4096)), Err(E::NameTooLong));
    d.check();
}
