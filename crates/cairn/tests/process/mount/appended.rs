//! Handles that were opened for appending: what goes behind the end of the file, and what does not.
use super::fsx::buffer::{PAGE, Pages};
use super::{Mount, SMALL, skipped};
use crate::support::Cluster;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt};

/// Pages that a program changed through a mapping would be put behind the end, whoever has the file open for appending,
/// and what they replace would stay; so would what is written after O_APPEND was taken away.
#[test]
fn only_appends_go_behind_the_end() {
    if skipped() {
        return;
    }
    let cluster = Cluster::start(SMALL);
    let mount = Mount::new(&cluster, "mnt", "/", "");
    let other = Mount::new(&cluster, "other", "/", "");
    let mut model = vec![7; 3 * PAGE];
    fs::write(mount.path("f"), &model).expect("write");
    let mut log = File::options().read(true).append(true).open(mount.path("f")).expect("open");
    // Of the handle itself, and of one that came later: kernels write pages through the one that was opened last.
    let file = File::options().read(true).write(true).open(mount.path("f")).expect("open");
    let late = File::options().read(true).append(true).open(mount.path("f")).expect("open");
    for (at, handle) in [&log, &file].into_iter().enumerate() {
        let mut pages = Pages::of(handle, 0, 2 * PAGE, true).expect("mmap");
        pages[at * PAGE + 5] = 100 + at as u8;
        pages.sync().expect("msync");
        model[at * PAGE + 5] = 100 + at as u8;
    }
    log.write_all(b"appended").expect("append");
    model.extend_from_slice(b"appended");
    let flags = fcntl_getfl(&late).expect("flags");
    fcntl_setfl(&late, flags - OFlags::APPEND).expect("set");
    late.write_all_at(b"in place", 50).expect("write");
    model[50..58].copy_from_slice(b"in place");
    fcntl_setfl(&late, flags).expect("set");
    (&late).write_all(b"!").expect("append");
    model.push(b'!');
    for handle in [&log, &file, &late] {
        handle.sync_all().expect("fsync");
    }
    assert!(fs::read(mount.path("f")).expect("read") == model, "here");
    assert!(fs::read(other.path("f")).expect("read") == model, "elsewhere");
    drop((log, file, late));
    a_chown_that_leaves_both(&mount);
}

/// chown(2) with neither owner nor group: programs take the rights of setuid programs away with it.
fn a_chown_that_leaves_both(mount: &Mount) {
    let path = mount.path("program");
    fs::write(&path, "code").expect("write");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o6755)).expect("chmod");
    std::os::unix::fs::chown(&path, None, None).expect("chown");
    assert_eq!(fs::metadata(&path).expect("stat").permissions().mode() & 0o7777, 0o755);
}
