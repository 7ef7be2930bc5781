//! A mount under faults: a server that is gone is a pause, a dead or replaced worker is a pause, never an error.
use crate::mount::{Mount, SMALL, skipped};
use crate::support::{Cluster, Shape, text};
use crate::wait::{LIMIT, until};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A writer that makes, writes, syncs, reads and removes files until it is told to stop.
struct Load {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    longest_ms: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    fn start(dir: &Path, threads: usize) -> Load {
        let (stop, rounds, longest_ms) =
            (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let start = |number: usize| {
            let (dir, stop, rounds, longest) = (dir.to_owned(), stop.clone(), rounds.clone(), longest_ms.clone());
            std::thread::spawn(move || {
                let mut round = 0u64;
                while !stop.load(Ordering::Relaxed) {
                    let started = Instant::now();
                    one_round(&dir, number, round);
                    longest.fetch_max(started.elapsed().as_millis() as u64, Ordering::Relaxed);
                    rounds.fetch_add(1, Ordering::Relaxed);
                    round += 1;
                }
            })
        };
        let threads = (0..threads).map(start).collect();
        Load { stop, rounds, longest_ms, threads }
    }
    /// Waits for some more rounds.
    fn go_on(&self, count: u64) {
        let wanted = self.rounds.load(Ordering::Relaxed) + count;
        let started = Instant::now();
        while self.rounds.load(Ordering::Relaxed) < wanted {
            assert!(!self.threads.iter().any(JoinHandle::is_finished), "a writer met an error");
            assert!(started.elapsed() < LIMIT, "the load stands still");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().expect("a writer met an error");
        }
        self.longest_ms.load(Ordering::Relaxed)
    }
}

fn one_round(dir: &Path, number: usize, round: u64) {
    let path = dir.join(format!("load-{number}-{}", round % 8));
    let data = vec![(round % 251) as u8; 50_000];
    let mut file = File::create(&path).expect("create");
    file.write_all(&data).expect("write");
    file.sync_all().expect("fsync");
    drop(file);
    assert!(fs::read(&path).expect("read") == data, "{path:?} is not what was written");
    let other = dir.join(format!("load-{number}-renamed"));
    fs::rename(&path, &other).expect("rename");
    fs::remove_file(&other).expect("unlink");
}

/// A lost data node or a new leader would be an error for programs, although there is redundancy for it.
#[test]
fn servers_die_under_a_mount() {
    if skipped() {
        return;
    }
    let mut cluster = Cluster::start(Shape { managers: 3, metas: 3, datas: 4, racks: 4 });
    let mount = Mount::new(&cluster, "mnt", "/", "");
    let load = Load::start(&mount.dir, 3);
    load.go_on(5);
    for victim in ["data2", "meta1", "manager1"] {
        cluster.kill(victim);
        load.go_on(20);
        cluster.restart(victim);
        load.go_on(10);
    }
    let longest = load.end();
    println!("servers killed: {}, longest round: {longest} ms", cluster.kills);
    assert_eq!(cluster.kills, 3);
    let umount = mount.umount();
    assert!(umount.status.success(), "{}", text(&umount.stderr));
}

/// Programs would get "Transport endpoint is not connected", or lose the files that they have open.
#[test]
fn a_worker_dies_under_load() {
    if skipped() {
        return;
    }
    let cluster = Cluster::start(SMALL);
    let mount = Mount::new(&cluster, "mnt", "/", "");
    let open = File::options().read(true).write(true).create_new(true).open(mount.path("open")).expect("create");
    open.write_all_at(b"synced before", 0).expect("write");
    open.sync_all().expect("fsync");
    let mut kills = 0;
    for _ in 0..2 {
        let dead = mount.kill_worker();
        kills += 1;
        // The first access after the death, by name and by the open file.
        let started = Instant::now();
        assert_eq!(fs::metadata(mount.path("open")).expect("stat").len(), 13);
        let mut back = [0; 13];
        open.read_exact_at(&mut back, 0).expect("the open file goes on");
        assert_eq!(&back, b"synced before");
        println!("pause after the death of worker {dead}: {} ms", started.elapsed().as_millis());
        mount.worker_after(dead);
    }
    open.write_all_at(b"written after", 0).expect("write");
    open.sync_all().expect("fsync");
    assert_eq!(fs::read_to_string(mount.path("open")).expect("read"), "written after");
    let upgraded = mount.cairn(&["mount", "--upgrade", mount.dir.to_str().expect("path")]);
    assert!(upgraded.status.success(), "{}", text(&upgraded.stderr));
    println!("{}", text(&upgraded.stdout));
    open.write_all_at(b"after upgrade", 0).expect("write");
    open.sync_all().expect("fsync");
    drop(open);
    assert_eq!(fs::read_to_string(mount.path("open")).expect("read"), "after upgrade");
    assert_eq!((kills, mount.number(&["restarts"])), (2, Some(3)));
    let umount = mount.umount();
    assert!(umount.status.success(), "{}", text(&umount.stderr));
}

/// A temporary file that a program removed while it has it open would be lost with the worker, although nobody closed
/// it.
#[test]
fn a_file_without_a_name_outlives_workers() {
    if skipped() {
        return;
    }
    let cluster = Cluster::start(SMALL);
    let mount = Mount::new(&cluster, "mnt", "/", "");
    let data: Vec<u8> = (0..100_000u32).flat_map(|i| (i as u16).to_le_bytes()).collect();
    let written = File::options().read(true).write(true).create_new(true).open(mount.path("gone")).expect("create");
    written.write_all_at(&data, 0).expect("write");
    written.sync_all().expect("fsync");
    fs::write(mount.path("kept"), &data).expect("write");
    let read_only = File::open(mount.path("kept")).expect("open");
    fs::remove_file(mount.path("gone")).expect("unlink");
    fs::remove_file(mount.path("kept")).expect("unlink");
    let mut more = 0u8;
    let mut check = |mount: &Mount| {
        for file in [&written, &read_only] {
            // Past the pages that the kernel has.
            rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed).expect("fadvise");
            let mut back = vec![0; data.len()];
            file.read_exact_at(&mut back, 0).expect("the open file goes on");
            assert!(back == data, "other bytes came back");
        }
        more += 1;
        written.write_all_at(&[more], data.len() as u64).expect("write");
        written.sync_all().expect("fsync");
        assert_eq!(written.metadata().expect("fstat").nlink(), 0);
        assert!(!mount.path("gone").exists());
    };
    for _ in 0..2 {
        let dead = mount.kill_worker();
        check(&mount);
        mount.worker_after(dead);
        let upgraded = mount.cairn(&["mount", "--upgrade", mount.dir.to_str().expect("path")]);
        assert!(upgraded.status.success(), "{}", text(&upgraded.stderr));
        check(&mount);
    }
    drop((written, read_only));
    let umount = mount.umount();
    assert!(umount.status.success(), "{}", text(&umount.stderr));
}

/// An upgrade would be seen by programs, or data that was not written out would be lost with the old process.
#[test]
fn workers_are_replaced_under_load() {
    if skipped() {
        return;
    }
    let cluster = Cluster::start(SMALL);
    let mount = Mount::new(&cluster, "mnt", "/", "");
    let load = Load::start(&mount.dir, 3);
    for _ in 0..2 {
        load.go_on(10);
        let upgraded = mount.cairn(&["mount", "--upgrade", mount.dir.to_str().expect("path")]);
        assert!(upgraded.status.success(), "{}", text(&upgraded.stderr));
        println!("{}", text(&upgraded.stdout));
    }
    load.go_on(10);
    println!("longest round: {} ms", load.end());
    assert_eq!(mount.number(&["restarts"]), Some(2));
    let umount = mount.umount();
    assert!(umount.status.success(), "{}", text(&umount.stderr));
}

/// A program on a mount without servers would wait for ever, and could not even be killed.
#[test]
fn without_servers_operations_end() {
    if skipped() {
        return;
    }
    let mut cluster = Cluster::start(SMALL);
    let mount = Mount::new(&cluster, "mnt", "/", "timeout=10,attr_timeout=0,entry_timeout=0");
    let patient = Mount::new(&cluster, "patient", "/", "timeout=3600,attr_timeout=0,entry_timeout=0");
    fs::write(mount.path("file"), "x").expect("write");
    cluster.kill_all();
    let mut stuck = Command::new("cat").arg(patient.path("other")).spawn().expect("cat");
    let failed = fs::read(mount.path("file"));
    assert!(failed.is_err_and(|error| error.raw_os_error() == Some(5)), "EIO was expected");
    // The other one would wait for an hour.
    assert!(stuck.try_wait().expect("wait").is_none(), "it did not wait for the servers");
    stuck.kill().expect("kill");
    until("a killed process ends", || stuck.try_wait().expect("wait").is_some());
    cluster.start_all();
    for mount in [mount, patient] {
        until("the mount works again", || fs::read_to_string(mount.path("file")).is_ok_and(|text| text == "x"));
        let umount = mount.umount();
        assert!(umount.status.success(), "{}", text(&umount.stderr));
    }
}
