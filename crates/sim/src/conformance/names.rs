//! Conformance of opening, renaming, removing, directories and locks.

use cairn_env::disk::{DirEntry, Disk, DiskError, DiskOp, OpenOptions};

use super::{content, create};

/// Each mode makes, keeps or refuses a file as it says.
pub(super) fn open_modes(disk: &dyn Disk, dir: &str) {
    let path = format!("{dir}/f");
    let missing = Err(DiskError::NotFound { path: path.clone() });
    assert_eq!(disk.open(&path, OpenOptions::READ).map(|_| ()), missing);
    assert_eq!(disk.open(&path, OpenOptions::READ_WRITE).map(|_| ()), missing);
    assert_eq!(disk.exists(&path), Ok(false));
    let file = disk.open(&path, OpenOptions::CREATE_NEW).expect("a new file");
    file.write_at(b"abc", 0).expect("write");
    assert_eq!(disk.exists(&path), Ok(true));
    let taken = Err(DiskError::Exists { path: path.clone() });
    assert_eq!(disk.open(&path, OpenOptions::CREATE_NEW).map(|_| ()), taken);
    let again = disk.open(&path, OpenOptions::CREATE).expect("create opens what is there");
    assert_eq!(content(&*again), b"abc");
    assert_eq!(disk.open(dir, OpenOptions::READ).map(|_| ()), Err(DiskError::IsDirectory { path: dir.into() }));
    let below = format!("{path}/x");
    let refused = Err(DiskError::NotDirectory { path: below.clone() });
    assert_eq!(disk.open(&below, OpenOptions::CREATE).map(|_| ()), refused);
    assert_eq!(disk.exists(&below), Ok(false));
    let orphan = format!("{dir}/none/x");
    assert_eq!(disk.open(&orphan, OpenOptions::CREATE).map(|_| ()), Err(DiskError::NotFound { path: orphan.clone() }));
    let senseless = OpenOptions { write: false, ..OpenOptions::CREATE };
    assert!(matches!(disk.open(&path, senseless), Err(DiskError::BadUse { .. })));
    assert!(matches!(disk.open(&path, OpenOptions::default()), Err(DiskError::BadUse { .. })));
}

/// A rename replaces; open handles keep their file.
pub(super) fn rename_replaces(disk: &dyn Disk, dir: &str) {
    let (a, b) = (format!("{dir}/a"), format!("{dir}/sub/b"));
    disk.create_dir_all(&format!("{dir}/sub")).expect("directory");
    create(disk, dir, "a").write_at(b"new", 0).expect("write");
    let old = create(disk, dir, "sub/b");
    old.write_at(b"old", 0).expect("write");
    disk.rename(&a, &b).expect("rename");
    disk.sync_dir(dir).expect("sync_dir");
    disk.sync_dir(&format!("{dir}/sub")).expect("sync_dir");
    assert_eq!(disk.exists(&a), Ok(false));
    assert_eq!(content(&*disk.open(&b, OpenOptions::READ).expect("open")), b"new");
    assert_eq!(content(&*old), b"old", "a replaced file lives while it is open");
    disk.rename(&b, &b).expect("a rename onto itself does nothing");
    assert_eq!(disk.exists(&b), Ok(true));
    assert!(matches!(disk.rename(&a, &b), Err(DiskError::NotFound { .. })));
    assert!(disk.rename(&b, dir).is_err(), "a directory is not replaced by a file");
    let sub = format!("{dir}/sub");
    assert_eq!(disk.rename(&sub, &a), Err(DiskError::IsDirectory { path: sub.clone() }));
    assert!(matches!(disk.rename(&b, &format!("{dir}/none/b")), Err(DiskError::NotFound { .. })));
    assert_eq!(disk.exists(&b), Ok(true), "a refused rename changes nothing");
}

/// A removed name is gone, its open file is not.
pub(super) fn removed_files_live_until_closed(disk: &dyn Disk, dir: &str) {
    let path = format!("{dir}/f");
    let file = create(disk, dir, "f");
    file.write_at(b"abc", 0).expect("write");
    disk.remove(&path).expect("remove");
    disk.sync_dir(dir).expect("sync_dir");
    assert_eq!(disk.exists(&path), Ok(false));
    assert_eq!(disk.remove(&path), Err(DiskError::NotFound { path: path.clone() }));
    file.write_at(b"def", 3).expect("an open file can still be written");
    file.sync_data().expect("and synced");
    assert_eq!(content(&*file), b"abcdef");
    let other = create(disk, dir, "f");
    assert_eq!(content(&*other), b"", "a new file of the name is another one");
}

/// Directories are made with those above, listed in order, and removed when empty.
pub(super) fn directories(disk: &dyn Disk, dir: &str) {
    let deep = format!("{dir}/x/y/z");
    disk.create_dir_all(&deep).expect("make");
    disk.create_dir_all(&deep).expect("make again");
    create(disk, &deep, "b").write_at(b"12345", 0).expect("write");
    create(disk, &deep, "a");
    disk.create_dir_all(&format!("{deep}/c")).expect("make");
    let entry = |name: &str, is_dir, len| DirEntry { name: name.into(), is_dir, len };
    assert_eq!(disk.list(&deep), Ok(vec![entry("a", false, 0), entry("b", false, 5), entry("c", true, 0)]));
    assert_eq!(disk.list(&format!("{dir}/x")), Ok(vec![entry("y", true, 0)]), "only direct entries");
    let root = disk.list("").expect("the root can be listed");
    assert!(root.contains(&entry(dir, true, 0)));
    assert_eq!(disk.remove_dir(&deep), Err(DiskError::NotEmpty { path: deep.clone() }));
    let c = format!("{deep}/c");
    assert_eq!(disk.remove(&c), Err(DiskError::IsDirectory { path: c.clone() }));
    disk.remove_dir(&c).expect("an empty directory goes");
    assert_eq!(disk.exists(&c), Ok(false));
    let file = format!("{deep}/a");
    assert_eq!(disk.remove_dir(&file), Err(DiskError::NotDirectory { path: file.clone() }));
    assert_eq!(disk.list(&file), Err(DiskError::NotDirectory { path: file.clone() }));
    assert!(matches!(disk.create_dir_all(&format!("{file}/q")), Err(DiskError::NotDirectory { .. })));
    let none = format!("{dir}/none");
    assert_eq!(disk.list(&none), Err(DiskError::NotFound { path: none.clone() }));
    assert_eq!(disk.sync_dir(&none), Err(DiskError::NotFound { path: none.clone() }));
    disk.sync_dir("").expect("the root can be synced");
    disk.create_dir_all("").expect("the root is there");
}

/// Paths that could leave the disk are refused by every call.
pub(super) fn bad_paths(disk: &dyn Disk, dir: &str) {
    for bad in ["/etc/passwd", "../x", "a/../../x", "a//b", "./a", "a/"] {
        let all = [
            disk.open(bad, OpenOptions::CREATE).map(|_| ()),
            disk.remove(bad),
            disk.remove_dir(bad),
            disk.rename(bad, &format!("{dir}/x")),
            disk.rename(&format!("{dir}/x"), bad),
            disk.sync_dir(bad),
            disk.create_dir_all(bad),
            disk.list(bad).map(|_| ()),
            disk.exists(bad).map(|_| ()),
            disk.lock(bad).map(|_| ()),
        ];
        for (at, result) in all.iter().enumerate() {
            assert!(matches!(result, Err(DiskError::BadPath { .. })), "{bad} by call {at}: {result:?}");
        }
    }
    for result in [disk.remove(""), disk.remove_dir(""), disk.open("", OpenOptions::READ).map(|_| ())] {
        assert!(matches!(result, Err(DiskError::BadPath { .. })), "the root is no file: {result:?}");
    }
}

/// One holder at a time, named to the others.
pub(super) fn locks_exclude(disk: &dyn Disk, dir: &str) {
    let path = format!("{dir}/LOCK");
    let guard = disk.lock(&path).expect("a free lock");
    let holder = Some(std::process::id());
    assert_eq!(disk.lock(&path).map(|_| ()), Err(DiskError::Locked { path: path.clone(), holder }));
    let other = disk.lock(&format!("{dir}/LOCK2")).expect("another lock");
    drop(guard);
    let again = disk.lock(&path).expect("a released lock");
    drop((other, again));
    let none = format!("{dir}/none/LOCK");
    let refused = disk.lock(&none).map(|_| ());
    assert!(matches!(refused, Err(DiskError::NotFound { .. })), "{refused:?}");
    assert!(DiskOp::Lock.to_string() == "lock");
}
