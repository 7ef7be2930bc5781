//! Unmounting what is used, or mounted at two places: who uses it is said, no process stays behind, and none ends that
//! is needed.
use super::{Mount, SMALL, skipped};
use crate::support::{Cluster, text};
use crate::wait::until;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A second place of a mount; gone when dropped.
struct Bound(PathBuf);

impl Bound {
    fn new(from: &Path, at: PathBuf) -> Bound {
        fs::create_dir(&at).expect("directory");
        let done = Command::new("mount").arg("--bind").args([from, &at]).status().expect("mount");
        assert!(done.success(), "{} cannot be bound", from.display());
        Bound(at)
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        let done = Command::new("umount").arg("--lazy").arg(&self.0).status();
        assert!(done.is_ok_and(|done| done.success()) || std::thread::panicking(), "the bind mount stays");
    }
}

/// Somebody would look for what keeps a mount in use, by hand.
#[test]
fn who_uses_a_mount_is_named() {
    if skipped() {
        return;
    }
    let cluster = Cluster::start(SMALL);
    let mount = Mount::new(&cluster, "mnt", "/", "");
    let file = File::create(mount.path("open")).expect("file");
    let output = mount.umount_now();
    let said = text(&output.stderr);
    let wanted = format!("process {} (", std::process::id());
    assert!(!output.status.success() && said.contains("is in use: ") && said.contains(&wanted), "{said}");
    assert!(said.contains("/open") && said.contains("--lazy"), "{said}");
    drop(file);
    let output = mount.umount();
    assert!(output.status.success(), "{}", text(&output.stderr));
}

/// A container that has the file system, too, would get errors because it was unmounted on its host, and lose what it
/// writes.
#[test]
fn a_worker_whose_mount_has_another_place_serves_there() {
    if skipped() {
        return;
    }
    let cluster = Cluster::start(SMALL);
    let mount = Mount::new(&cluster, "mnt", "/", "");
    let worker = mount.worker();
    let supervisor = mount.number(&["supervisor"]).expect("a process");
    let bound = Bound::new(&mount.dir, cluster.path("elsewhere"));
    let open = File::create(bound.0.join("open")).expect("file");
    for _ in 0..2 {
        // The second time it is only said again.
        let output = mount.umount();
        let said = text(&output.stderr);
        assert!(output.status.success() && !mount.is_mounted(), "{said}");
        assert!(said.contains(&format!("and goes on there: {}", bound.0.display())), "{said}");
    }
    (&open).write_all(b"written there").expect("it serves there");
    drop(open);
    assert_eq!(mount.worker(), worker, "another one serves");
    assert_eq!(cluster.ok(&["fs", "cat", "/open"]), "written there");
    // Mounted again at the same place, that is what is unmounted there.
    let again = Mount::new(&cluster, "mnt", "/", "");
    let output = again.umount();
    assert!(output.status.success() && text(&output.stderr).is_empty(), "{}", text(&output.stderr));
    assert_eq!(fs::read_to_string(bound.0.join("open")).expect("it serves there"), "written there");
    drop(bound);
    for pid in [u64::from(worker), supervisor] {
        until(&format!("process {pid} to end"), || !Path::new(&format!("/proc/{pid}")).exists());
    }
}

/// What programs had written would be lost with the worker: nobody asks them to write it again.
#[test]
fn a_worker_that_cannot_write_everything_is_left() {
    if skipped() {
        return;
    }
    let mut cluster = Cluster::start(SMALL);
    let mount = Mount::new(&cluster, "mnt", "/", "close=visible,timeout=10");
    let (worker, supervisor) = (mount.worker(), mount.number(&["supervisor"]).expect("a process"));
    let datas = ["data1", "data2", "data3"];
    fs::write(mount.path("file"), "kept").expect("file");
    datas.iter().for_each(|name| cluster.kill(name));
    // As a program does that knows nothing of Cairn.
    let done = Command::new("umount").arg(&mount.dir).status().expect("umount");
    assert!(done.success() && !mount.is_mounted());
    let output = mount.umount();
    let said = text(&output.stderr);
    assert!(!output.status.success() && said.contains("not everything that was written there is stored: "), "{said}");
    assert!(said.contains(&format!("process {worker} keeps it")) && said.contains("once more"), "{said}");
    assert!(Path::new(&format!("/proc/{worker}")).exists(), "it was ended");
    cluster.start_all();
    for pid in [u64::from(worker), supervisor] {
        until(&format!("process {pid} to end"), || !Path::new(&format!("/proc/{pid}")).exists());
    }
    assert_eq!(cluster.ok(&["fs", "cat", "/file"]), "kept");
    assert_eq!(cluster.kills, 3, "every fault fired");
}

/// A mount whose cluster is gone could never be left.
#[test]
fn a_mount_that_cannot_write_is_detached() {
    if skipped() {
        return;
    }
    let mut cluster = Cluster::start(SMALL);
    let mount = Mount::new(&cluster, "mnt", "/", "close=visible,timeout=10");
    let worker = mount.worker();
    fs::write(mount.path("file"), "kept").expect("file");
    ["data1", "data2", "data3"].iter().for_each(|name| cluster.kill(name));
    let stays = mount.umount();
    let said = text(&stays.stderr);
    assert!(!stays.status.success() && mount.is_mounted(), "{said}");
    assert!(said.contains("cairn umount --lazy") && said.contains("gives up what is not written"), "{said}");
    let dir = mount.dir.to_str().expect("a temporary path");
    let left = mount.cairn(&["umount", "--lazy", dir]);
    let said = text(&left.stderr);
    assert!(left.status.success() && !mount.is_mounted(), "{said}");
    assert!(said.contains(&format!("process {worker} keeps it and tries again")), "{said}");
    cluster.start_all();
    until("the worker to end", || !Path::new(&format!("/proc/{worker}")).exists());
    assert_eq!(cluster.ok(&["fs", "cat", "/file"]), "kept");
    assert_eq!(cluster.kills, 3, "every fault fired");
}
