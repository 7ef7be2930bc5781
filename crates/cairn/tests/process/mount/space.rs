//! No more room: a full volume says ENOSPC, a quota EDQUOT; both go on when something is deleted.
use super::seeds::Rng;
use super::{Mount, SMALL, skipped};
use crate::support::{Cluster, text};
use crate::wait::{LIMIT, until};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const NO_SPACE: i32 = 28;
const OVER_QUOTA: i32 = 122;

fn bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    (0..length.div_ceil(8)).flat_map(|_| rng.next().to_le_bytes()).take(length).collect()
}

/// Writes and syncs a file.
fn store(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    bytes.chunks(1 << 20).try_for_each(|part| file.write_all(part))?;
    file.sync_all()
}

fn errno(outcome: &io::Result<()>) -> Option<i32> {
    outcome.as_ref().err().and_then(io::Error::raw_os_error)
}

/// Programs would hang, or believe that something was stored which was not, or the volume would stay full for ever.
#[test]
fn a_full_volume_says_so_and_recovers() {
    if skipped() {
        return;
    }
    let mut cluster = Cluster::prepare(SMALL);
    for name in ["data1", "data2", "data3"] {
        if !cluster.give_small_disk(name, 400) {
            return eprintln!("skipped: this system lets nobody mount a file system in a name space of its own");
        }
    }
    cluster.allow_error("space");
    cluster.start_all();
    cluster.ok(&["admin", "config", "set", "disk_reserve=32m"]);
    cluster.wait_volume();
    let mount = Mount::new(&cluster, "mnt", "/", "");
    fs::write(mount.path("small"), "is there").expect("write");
    let mut stored = Vec::new();
    let (refused, waited) = loop {
        let (seed, began) = (stored.len() as u64, Instant::now());
        let path = mount.path(&format!("file-{seed}"));
        let outcome = store(&path, &bytes(seed, 20_000_000));
        if outcome.is_err() {
            break (outcome, began.elapsed());
        }
        stored.push((seed, path));
        assert!(stored.len() < 30, "disks of 400 MB took {} MB", stored.len() * 20);
    };
    println!("{} files stored, then {refused:?} after {waited:?}", stored.len());
    assert_eq!(errno(&refused), Some(NO_SPACE), "{refused:?}");
    assert!(!stored.is_empty());
    // What was stored is there, and names can still be changed.
    assert_eq!(fs::read_to_string(mount.path("small")).expect("read"), "is there");
    fs::create_dir(mount.path("dir")).expect("mkdir needs no space of disks");
    fs::rename(mount.path("small"), mount.path("dir/small")).expect("rename");
    for (seed, path) in &stored {
        assert!(fs::read(path).expect("read") == bytes(*seed, 20_000_000), "{} is damaged", path.display());
    }
    fs::remove_file(mount.path(&format!("file-{}", stored.len()))).expect("unlink what did not fit");
    for (_, path) in &stored {
        fs::remove_file(path).expect("unlink");
    }
    let deleted = Instant::now();
    loop {
        let outcome = store(&mount.path("again"), &bytes(99, 20_000_000));
        if outcome.is_ok() {
            break;
        }
        assert_eq!(errno(&outcome), Some(NO_SPACE), "{outcome:?}");
        assert!(deleted.elapsed() < LIMIT, "the space did not come back");
        std::thread::sleep(Duration::from_millis(200));
    }
    println!("room again {:?} after the deletes", deleted.elapsed());
    assert!(fs::read(mount.path("again")).expect("read") == bytes(99, 20_000_000));
    let umount = mount.umount();
    assert!(umount.status.success(), "{}", text(&umount.stderr));
    cluster.kill_all();
}

/// A quota would be passed, or its error would be another one, or it would refuse after something was deleted.
#[test]
fn quotas_say_so_and_recover() {
    if skipped() {
        return;
    }
    let cluster = Cluster::start(SMALL);
    let mount = Mount::new(&cluster, "mnt", "/", "");
    fs::create_dir(mount.path("ann")).expect("mkdir");
    let used = |what: &str| -> u64 {
        let told = cluster.ok(&["--json", "fs", "quota", "get", "--volume", "/"]);
        let told: serde_json::Value = serde_json::from_str(&told).expect("JSON");
        told[what].as_u64().unwrap_or_else(|| panic!("{what}: {told}"))
    };
    cluster.ok(&["fs", "quota", "set", "--volume", "--bytes", "100g", "--inodes", "1000", "/"]);
    until("the count behind the quota", || !cluster.ok(&["fs", "quota", "get", "--volume", "/"]).contains("counting"));
    let before = [used("bytes_used"), used("inodes_used")];
    cluster.ok(&["fs", "quota", "set", "--bytes", "2m", "--inodes", "5", "/ann"]);
    until("the count behind the quota", || !cluster.ok(&["fs", "quota", "get", "/ann"]).contains("counting"));
    // Whoever mounts the directory alone sees its space, not that of the cluster.
    let below = Mount::new(&cluster, "below", "/ann", "");
    for path in [mount.path("ann"), below.dir.clone()] {
        let stat = Command::new("stat").args(["-f", "-c", "%b %S %c"]).arg(&path).output().expect("stat");
        assert_eq!(text(&stat.stdout).trim(), "512 4096 5", "{}: {}", path.display(), text(&stat.stderr));
    }
    let umount = below.umount();
    assert!(umount.status.success(), "{}", text(&umount.stderr));
    quota(&mount.path("ann"), 5);
    cluster.ok(&["fs", "quota", "rm", "/ann"]);
    // What was removed counts until its last handle is known to be closed.
    until("all of it is free again", || [used("bytes_used"), used("inodes_used")] == before);
    let (bytes, inodes) = (before[0] + (2 << 20), before[1] + 5);
    cluster.ok(&[
        "fs",
        "quota",
        "set",
        "--volume",
        "--bytes",
        &bytes.to_string(),
        "--inodes",
        &inodes.to_string(),
        "/",
    ]);
    quota(&mount.dir, 5);
    let umount = mount.umount();
    assert!(umount.status.success(), "{}", text(&umount.stderr));
}

/// A directory with 2 MiB and `files` more inodes free.
fn quota(dir: &Path, files: usize) {
    for number in 0..files {
        fs::write(dir.join(format!("file-{number}")), "x").expect("within the quota");
    }
    let one_more = fs::create_dir(dir.join("dir"));
    assert_eq!(errno(&one_more), Some(OVER_QUOTA), "{}: {one_more:?}", dir.display());
    let one_more = File::create(dir.join("more")).map(drop);
    assert_eq!(errno(&one_more), Some(OVER_QUOTA), "{one_more:?}");
    for number in 1..files {
        fs::remove_file(dir.join(format!("file-{number}"))).expect("unlink");
    }
    let large = dir.join("large");
    until("an inode is free again", || File::create(&large).is_ok());
    let too_much = store(&large, &bytes(1, 6_000_000));
    assert_eq!(errno(&too_much), Some(OVER_QUOTA), "{too_much:?}");
    fs::remove_file(&large).expect("unlink");
    until("the bytes are free again", || store(&large, &bytes(2, 1_000_000)).is_ok());
    assert!(fs::read(&large).expect("read") == bytes(2, 1_000_000));
    fs::remove_file(&large).expect("unlink");
    fs::remove_file(dir.join("file-0")).expect("unlink");
}
