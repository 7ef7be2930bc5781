//! Removing whole trees, large files, large directories: bounded work, and exact in the end.
use crate::driver::*;
use cairn_types::ErrorCode as E;
use cairn_wire::common::Extent;

/// A removed tree is gone for everybody at once and reclaimed behind; what is held or linked elsewhere lives on.
#[test]
fn a_removed_tree_is_gone_at_once() {
    let mut d = Driver::new();
    let top = d.mkdir(ROOT, "top", 0o755).unwrap().inode;
    let (mut at, mut all) = (top, vec![top]);
    for level in 0..6 {
        for i in 0..5 {
            let file = d.create(at, &format!("f{i}"), 0o644).unwrap().inode;
            d.publish(file, &[extent(0, 4096, 100 * level + i, 0)]).unwrap();
        }
        at = d.mkdir(at, "sub", 0o755).unwrap().inode;
        all.push(at);
    }
    let held = d.create(at, "held", 0o644).unwrap().inode;
    d.hold(held, true).unwrap();
    d.hold(at, false).unwrap();
    let linked = d.create(at, "linked", 0o644).unwrap().inode;
    d.link(linked, ROOT, "outside", false).unwrap();
    d.remove_tree(ROOT, "top").unwrap();
    d.check();
    let mut steps = 0;
    loop {
        for directory in &all {
            let answer = d.create(*directory, "new", 0o644).map(|a| a.inode);
            assert!(matches!(answer, Err(E::NotFound | E::Stale)), "{answer:?}");
            assert!(d.readdir(*directory).is_err());
        }
        assert!(d.rename(ROOT, "outside", at, "x", 0).is_err(), "nothing is moved into it");
        assert!(d.rename(all[3], "sub", ROOT, "rescued", 0).is_err(), "nothing is moved out of it");
        if d.namespace.reclaimable().is_empty() {
            break;
        }
        d.reclaim(3, 3);
        d.check();
        steps += 1;
    }
    assert!(steps > 10, "{steps}");
    assert_eq!(d.getattr(linked).unwrap().nlink, 1);
    assert_eq!((d.getattr(held).unwrap().nlink, d.getattr(at).unwrap().nlink), (0, 0));
    assert_eq!(d.frees().len(), 30);
    d.end_session().unwrap();
    assert_eq!(d.statfs().inodes, 2);
    d.check();
}

/// Only the owner of a tree, or root, removes it whole.
#[test]
fn whose_tree_it_is() {
    let mut d = Driver::new();
    let home = d.mkdir(ROOT, "home", 0o777).unwrap().inode;
    let tree = d.mkdir(home, "t", 0o777).unwrap().inode;
    d.who = user(1000, 1000, &[]);
    d.create(tree, "f", 0o644).unwrap();
    assert_eq!(d.remove_tree(home, "t"), Err(E::NotPermitted));
    d.unlink(tree, "f").unwrap();
    d.rmdir(home, "t").unwrap();
    d.mkdir(home, "t", 0o700).unwrap();
    d.remove_tree(home, "t").unwrap();
    d.create(home, "f", 0o644).unwrap();
    assert_eq!(d.remove_tree(home, "f"), Err(E::NotDirectory));
    d.check();
}

/// A file of very many extents is unlinked at once; each reclaiming entry does a bounded part.
#[test]
fn a_fragmented_file_is_reclaimed_in_steps() {
    let mut d = Driver::new();
    let file = d.create(ROOT, "f", 0o644).unwrap().inode;
    let many: Vec<Extent> = (0..1000).map(|i| extent(i * 8192, 100, i as u32, 0)).collect();
    d.publish(file, &many).unwrap();
    d.unlink(ROOT, "f").unwrap();
    assert_eq!((d.getattr(file), d.frees().len()), (Err(E::Stale), 0));
    assert_eq!(d.hold(file, false), Err(E::Stale), "it is too late");
    d.reclaim(1, 300);
    assert_eq!(d.frees().len(), 300);
    d.check();
    while !d.namespace.reclaimable().is_empty() {
        d.reclaim(1, 300);
        d.check();
    }
    assert_eq!((d.frees().len(), d.statfs().stored_bytes), (1000, 0));
    let ids: Vec<u64> = d.namespace.pending_frees(500, 10).iter().map(|f| f.id).collect();
    assert_eq!(ids, (501..511).collect::<Vec<u64>>());
    d.free_done(&ids);
    assert_eq!(d.namespace.pending_frees(500, 1)[0].id, 511);
    d.check();
}

/// A listing in pages neither repeats nor loses what stays, while entries come and go.
#[test]
fn cookies_stay_valid() {
    let mut d = Driver::new();
    let dir = d.mkdir(ROOT, "d", 0o755).unwrap().inode;
    for i in 0..100 {
        d.create(dir, &format!("n{i:03}"), 0o644).unwrap();
    }
    let page = d.readdir_page(dir, b"", 40).unwrap();
    assert_eq!((page.entries.len(), page.end), (40, false));
    assert_eq!(page.entries[0].attributes.as_ref().map(|a| a.nlink), Some(1));
    let cookie = page.entries[39].cookie.clone();
    d.unlink(dir, "n039").unwrap();
    d.unlink(dir, "n050").unwrap();
    d.create(dir, "n039a", 0o644).unwrap();
    d.create(dir, "a", 0o644).unwrap();
    let rest = d.readdir_page(dir, &cookie, 0).unwrap();
    let names: Vec<&[u8]> = rest.entries.iter().map(|e| e.name.as_slice()).collect();
    assert_eq!((names.len(), names[0], rest.end), (60, &b"n039a"[..], true));
    assert!(!names.contains(&&b"n050"[..]));
    let exact = d.readdir_page(dir, b"n098", 1).unwrap();
    assert_eq!((exact.entries.len(), exact.end), (1, true));
    assert_eq!(d.readdir_page(dir, b"zzz", 5).unwrap().entries.len(), 0);
    assert_eq!(d.readdir_page(dir, &[b'x'; 256], 5), Err(E::InvalidArgument));
}

/// A page of long names stays far below the frame's limit.
#[test]
fn pages_are_bounded_in_bytes() {
    let mut d = Driver::new();
    for i in 0..1500 {
        d.create(ROOT, &format!("{i:0255}"), 0o644).unwrap();
    }
    let page = d.readdir_page(ROOT, b"", 4096).unwrap();
    assert!(!page.end && page.entries.len() > 500 && page.entries.len() < 1500);
    assert_eq!(d.names(ROOT).len(), 1500);
}

/// Resolving stops at links, and `..` at the root.
#[test]
fn resolving_paths() {
    let mut d = Driver::new();
    let a = d.mkdir(ROOT, "a", 0o755).unwrap().inode;
    let file = d.create(a, "f", 0o644).unwrap().inode;
    let link = d.symlink(a, "l", "f/x").unwrap().inode;
    let get = |path: &str| {
        let r = d.resolve(ROOT, path).unwrap();
        (r.attributes.unwrap().inode, r.consumed, r.parent, r.error)
    };
    assert_eq!(get("//a///f"), (file, 7, a, 0));
    assert_eq!(get(""), (ROOT, 0, ROOT, 0));
    assert_eq!(get("/"), (ROOT, 1, ROOT, 0));
    assert_eq!(get("a/"), (a, 2, ROOT, 0));
    assert_eq!(get("a/../../a/./f"), (file, 13, a, 0));
    assert_eq!(get("a/none/f"), (a, 1, ROOT, u32::from(E::NotFound.code())));
    assert_eq!(get("a/f/x"), (file, 3, a, u32::from(E::NotDirectory.code())));
    assert_eq!(get("a/f/"), (file, 3, a, u32::from(E::NotDirectory.code())));
    assert_eq!(get("a/l/y"), (link, 3, a, 0));
    assert_eq!(d.resolve(ROOT, "a/l/y").unwrap().symlink, b"f/x");
    assert_eq!(d.resolve(ROOT, &"x/".repeat(3000)), Err(E::NameTooLong));
    assert_eq!(d.resolve(77, "a"), Err(E::Stale));
}
