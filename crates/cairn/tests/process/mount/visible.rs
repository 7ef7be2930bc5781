//! A mount whose closes make files visible before they are durable: what stays when its worker and all members die at
//! once.
use super::{Mount, SMALL, skipped};
use crate::support::{Cluster, text};
use crate::wait::eventually;
use std::fs::{self, File};
use std::io::Write;

/// Small ones go through the members' journals, the others past them.
fn bytes(file: usize) -> Vec<u8> {
    let length = if file.is_multiple_of(5) { 200_000 + file } else { 100 + 37 * file };
    (0..length).map(|at| (at * 31 + file * 7 + at / 4096) as u8).collect()
}

fn write(mount: &Mount, name: &str, bytes: &[u8], sync: bool) {
    let mut file = File::create(mount.path(name)).expect("create");
    file.write_all(bytes).expect("write");
    if sync {
        file.sync_all().expect("fsync");
    }
}

/// Files that were synced would be gone, others would have bytes that nobody wrote there or answer errors for ever, or
/// one that was to be replaced would be neither the old nor the new one.
#[test]
fn everybody_dies_before_it_is_durable() {
    const FILES: usize = 136;
    if skipped() {
        return;
    }
    let mut cluster = Cluster::start(SMALL);
    let mount = Mount::new(&cluster, "mnt", "/", "close=visible");
    for file in 0..12 {
        write(&mount, &format!("kept-{file}"), b"the old one", true);
    }
    for file in 0..FILES {
        write(&mount, &format!("f{file}"), &bytes(file), file.is_multiple_of(7));
        if file % 7 == 3 {
            File::open(mount.path(&format!("f{file}")))
                .and_then(|f| f.sync_all())
                .expect("a sync by another descriptor");
        }
        if file % 12 == 1 {
            write(&mount, "new", &bytes(file), false);
            fs::rename(mount.path("new"), mount.path(&format!("kept-{}", file / 12))).expect("rename");
        }
    }
    let last = bytes(FILES - 1);
    assert!(fs::read(mount.path(&format!("f{}", FILES - 1))).expect("read") == last);
    assert!(cluster.cairn(&["fs", "cat", &format!("/f{}", FILES - 1)]).stdout == last, "others see it at once");
    let members = ["data1", "data2", "data3"];
    members.iter().for_each(|name| cluster.kill(name));
    let dead = mount.kill_worker();
    members.iter().for_each(|name| cluster.restart(name));
    cluster.wait_healthy();
    mount.worker_after(dead);
    assert_eq!(cluster.kills, 3);
    let mut short = 0;
    for file in 0..FILES {
        let (whole, path) = (bytes(file), format!("/f{file}"));
        let mut found = Vec::new();
        eventually(&cluster, &format!("the end of {path}"), || {
            let read = cluster.cairn(&["--timeout", "10", "fs", "cat", &path]);
            found = read.stdout;
            read.status.success()
        });
        assert!(found.len() <= whole.len() && found[..] == whole[..found.len()], "{path} has other bytes");
        let synced = file.is_multiple_of(7) || file % 7 == 3;
        assert!(!synced || found.len() == whole.len(), "{path} was synced and has {} bytes", found.len());
        short += usize::from(found.len() < whole.len());
    }
    println!("{short} of {FILES} files lost their end");
    for file in 0..12 {
        let found = fs::read(mount.path(&format!("kept-{file}"))).expect("read");
        assert!(found == bytes(12 * file + 1), "kept-{file} has {} bytes", found.len());
    }
    eventually(&cluster, "a check that finds nothing", || cluster.cairn(&["admin", "fsck"]).status.success());
    // What is left goes on.
    write(&mount, "f0", b"anew", true);
    assert_eq!(cluster.ok(&["fs", "cat", "/f0"]), "anew");
    let umount = mount.umount();
    assert!(umount.status.success(), "{}", text(&umount.stderr));
}

/// What was closed would be lost with one server, or with the mount's process, as if nobody had it.
#[test]
fn one_of_them_dies() {
    if skipped() {
        return;
    }
    let mut cluster = Cluster::start(SMALL);
    let mount = Mount::new(&cluster, "mnt", "/", "close=visible");
    for file in 0..30 {
        write(&mount, &format!("f{file}"), &bytes(file), false);
        if file == 20 {
            cluster.kill("data2");
        }
    }
    let dead = mount.kill_worker();
    cluster.restart("data2");
    mount.worker_after(dead);
    for file in 0..30 {
        assert!(fs::read(mount.path(&format!("f{file}"))).expect("read") == bytes(file), "f{file} is another one");
        // Waits until the members have it.
        File::open(mount.path(&format!("f{file}"))).and_then(|f| f.sync_all()).expect("fsync");
    }
    assert_eq!((cluster.kills, mount.number(&["restarts"])), (1, Some(1)));
    let umount = mount.umount();
    assert!(umount.status.success(), "{}", text(&umount.stderr));
}
