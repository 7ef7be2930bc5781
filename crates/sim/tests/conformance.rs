//! Runs the conformance suite against the real disk and the simulated one, so that they agree where nothing fails.

use cairn_env::disk::{Disk, RealDisk};
use cairn_sim::conformance::{CHECKS, check_all};
use cairn_sim::{CrashPolicy, SimDisk, SimDiskOptions};

/// Every other simulated-disk test would prove something about an imaginary file system.
#[test]
fn simulated_disk_conforms() {
    check_all(&SimDisk::new(1));
    check_all(&SimDisk::with_options(SimDiskOptions { direct: false, ..SimDiskOptions::seeded(2) }));
    check_all(&SimDisk::with_options(SimDiskOptions { holes: false, ..SimDiskOptions::seeded(3) }));
}

/// The same must hold on the machine's file system.
#[test]
fn real_disk_conforms() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    check_all(&RealDisk::open(dir.path()).expect("it can be opened"));
}

/// A file system in memory (tmpfs) has other rules for direct I/O and holes; the seam must hide them.
#[test]
fn real_disk_on_tmpfs_conforms() {
    let shm = std::path::Path::new("/dev/shm");
    if !shm.is_dir() {
        return;
    }
    let dir = tempfile::tempdir_in(shm).expect("a temporary directory");
    check_all(&RealDisk::open(dir.path()).expect("it can be opened"));
}

/// A disk that went through crashes must still be a disk.
#[test]
fn simulated_disk_conforms_after_crashes() {
    let disk = SimDisk::new(4);
    for (name, check) in CHECKS {
        for policy in [CrashPolicy::random(), CrashPolicy::LoseAll, CrashPolicy::KeepAll] {
            let dir = format!("{name}-{}", disk.counts().crashes);
            disk.create_dir_all(&dir).expect("a directory");
            check(&disk, &dir);
            disk.crash(policy);
        }
    }
    assert_eq!(disk.counts().crashes, 3 * CHECKS.len() as u64);
}
