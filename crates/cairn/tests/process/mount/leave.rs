//! Unmounting what is used, or mounted at two places: who uses it is said, and no process stays behind.
use super::{Mount, SMALL, skipped};
use crate::support::{Cluster, text};
use crate::wait::until;
use std::fs::{self, File};
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

/// The worker would go on for ever, with the memory and the session of a mount that nobody finds any more.
#[test]
fn a_worker_whose_mount_has_another_place_is_ended() {
    if skipped() {
        return;
    }
    let cluster = Cluster::start(SMALL);
    let mount = Mount::new(&cluster, "mnt", "/", "");
    let worker = mount.worker();
    let supervisor = mount.number(&["supervisor"]).expect("a process");
    let bound = Bound::new(&mount.dir, cluster.path("elsewhere"));
    fs::write(bound.0.join("late"), "written there").expect("file");
    let output = mount.umount();
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains(&format!("its worker (process {worker}) did not end by itself and was ended")), "{said}");
    assert!(said.contains(&format!("mounted elsewhere, too: {}", bound.0.display())), "{said}");
    for pid in [u64::from(worker), supervisor] {
        // It ends behind its answer.
        until(&format!("process {pid} to end"), || !Path::new(&format!("/proc/{pid}")).exists());
    }
    assert_eq!(cluster.ok(&["fs", "cat", "/late"]), "written there");
}
