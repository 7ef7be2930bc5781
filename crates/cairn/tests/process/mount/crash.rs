//! Bytes of a mount under faults: servers are killed and come back, the mount's own process is killed with data that is
//! not synced. What a sync promised is there.
use super::fsx::{Fsx, Sizes};
use super::seeds::{Rng, seeds};
use super::stamps::{Finished, Share, Stamped};
use super::{Mount, SMALL, skipped};
use crate::support::{Cluster, Shape, text};
use crate::wait::{LIMIT, until};
use rustix::fs::{FlockOperation, fcntl_lock};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Writers at work until they are told to stop.
struct Work {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    writers: Vec<JoinHandle<(String, Finished)>>,
    models: Vec<JoinHandle<String>>,
}

impl Work {
    fn new() -> Work {
        Work { stop: Arc::default(), rounds: Arc::default(), writers: Vec::new(), models: Vec::new() }
    }
    fn writer(&mut self, path: &Path, share: Share, seed: u64, strict: bool) {
        let (path, stop, rounds) = (path.to_owned(), self.stop.clone(), self.rounds.clone());
        self.writers.push(std::thread::spawn(move || {
            let mut own = Stamped::new(&path, share, seed, strict);
            while !stop.load(Ordering::Relaxed) {
                own.round();
                rounds.fetch_add(1, Ordering::Relaxed);
            }
            let told = format!("{} writes, {} syncs, {} told of a loss", own.writes, own.syncs, own.losses);
            (told, own.finish())
        }));
    }
    fn model(&mut self, path: &Path, seed: u64, sizes: Sizes) {
        let (path, stop, rounds) = (path.to_owned(), self.stop.clone(), self.rounds.clone());
        self.models.push(std::thread::spawn(move || {
            let mut fsx = Fsx::new(&path, seed, sizes);
            while !stop.load(Ordering::Relaxed) {
                fsx.run(1);
                rounds.fetch_add(1, Ordering::Relaxed);
            }
            fsx.finish()
        }));
    }
    /// Waits for some more rounds.
    fn go_on(&self, count: u64) {
        let wanted = self.rounds.load(Ordering::Relaxed) + count;
        let started = Instant::now();
        while self.rounds.load(Ordering::Relaxed) < wanted {
            let failed =
                self.writers.iter().any(JoinHandle::is_finished) || self.models.iter().any(JoinHandle::is_finished);
            assert!(!failed, "a writer met an error");
            assert!(started.elapsed() < LIMIT, "the work stands still");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    fn end(self) -> Vec<Finished> {
        self.stop.store(true, Ordering::Relaxed);
        for model in self.models {
            println!("{}", model.join().expect("the model met an error"));
        }
        let ended = self.writers.into_iter().map(|writer| writer.join().expect("a writer met an error"));
        ended
            .map(|(told, finished)| {
                println!("{told}");
                finished
            })
            .collect()
    }
}

fn alone(blocks: u64, bytes: usize) -> Share {
    Share { writer: 0, writers: 1, blocks, bytes }
}

/// A file as another client reads it.
fn cat(cluster: &Cluster, path: &str) -> Vec<u8> {
    let read = cluster.cairn(&["fs", "cat", path]);
    assert!(read.status.success(), "{path}: {}", text(&read.stderr));
    read.stdout
}

/// Bytes that were synced would be gone, or old, after servers died: with copies and with rows, below random
/// operations.
#[test]
fn servers_die_under_verified_writes() {
    if skipped() {
        return;
    }
    for seed in seeds(1..2) {
        let mut rng = Rng::new(seed);
        let mut cluster = Cluster::start(Shape { managers: 1, metas: 3, datas: 6, racks: 6 });
        cluster.ok(&["fs", "mkdir", "--layout", "rs-3-2/4k", "/rows"]);
        let mount = Mount::new(&cluster, "mnt", "/", "");
        let mut work = Work::new();
        work.writer(&mount.path("copies"), alone(150, 4096), seed, true);
        work.writer(&mount.path("rows/stamped"), alone(200, 3000), seed + 100, true);
        work.model(&mount.path("model"), seed + 200, Sizes { file: 400_000, io: 60_000, local: false });
        work.model(&mount.path("rows/model"), seed + 300, Sizes { file: 400_000, io: 100_000, local: false });
        work.go_on(40);
        for _ in 0..3 {
            let victim = rng.pick(&["data1", "data2", "data3", "data4", "data5", "data6", "meta1", "meta2", "meta3"]);
            println!("killing {victim}");
            cluster.kill(victim);
            work.go_on(40);
            cluster.restart(victim);
            work.go_on(20);
        }
        let finished = work.end();
        for (path, finished) in ["/copies", "/rows/stamped"].iter().zip(&finished) {
            finished.check(&cat(&cluster, path));
        }
        println!("seed {seed}: {} servers killed", cluster.kills);
        assert_eq!(cluster.kills, 3);
        let umount = mount.umount();
        assert!(umount.status.success(), "{}", text(&umount.stderr));
    }
}

/// What was synced would be gone with the mount's process, or a loss of what was not would never be told.
#[test]
fn a_worker_dies_with_data_that_is_not_synced() {
    if skipped() {
        return;
    }
    for seed in seeds(1..2) {
        let cluster = Cluster::start(SMALL);
        let mount = Mount::new(&cluster, "mnt", "/", "");
        let mut work = Work::new();
        for writer in 0..3 {
            let path = mount.path(&format!("file-{writer}"));
            work.writer(&path, alone(120, 3000 + writer as usize * 548), seed + writer, false);
        }
        for _ in 0..4 {
            work.go_on(30);
            let dead = mount.kill_worker();
            work.go_on(3);
            mount.worker_after(dead);
        }
        let finished = work.end();
        let other = Mount::new(&cluster, "other", "/", "");
        for (writer, finished) in finished.iter().enumerate() {
            let name = format!("file-{writer}");
            finished.check(&cat(&cluster, &format!("/{name}")));
            finished.check(&fs::read(mount.path(&name)).expect("read"));
            finished.check(&fs::read(other.path(&name)).expect("read"));
        }
        assert_eq!(mount.number(&["restarts"]), Some(4), "no worker was killed");
        for mount in [mount, other] {
            let umount = mount.umount();
            assert!(umount.status.success(), "{}", text(&umount.stderr));
        }
    }
}

/// A program would go on as if it had a lock that another machine has by now, or a lock of a dead process would keep
/// everybody out until its lease ends.
#[test]
fn locks_go_with_the_worker() {
    if skipped() {
        return;
    }
    let cluster = Cluster::start(SMALL);
    let (one, two) = (Mount::new(&cluster, "one", "/", ""), Mount::new(&cluster, "two", "/", ""));
    fs::write(one.path("locked"), "x").expect("write");
    fs::write(one.path("free"), "x").expect("write");
    let open = |mount: &Mount, name: &str| File::options().read(true).write(true).open(mount.path(name)).expect("open");
    let (locked, free, other) = (open(&one, "locked"), open(&one, "free"), open(&two, "locked"));
    let lock = |file: &File| fcntl_lock(file, FlockOperation::NonBlockingLockExclusive);
    lock(&locked).expect("the first lock");
    lock(&free).and_then(|()| fcntl_lock(&free, FlockOperation::Unlock)).expect("a lock that is given back");
    assert!(lock(&other).is_err(), "two mounts have the same lock");
    one.kill_worker();
    until("the lock is free", || lock(&other).is_ok());
    until("the end of its session", || one.logs().contains("the session of the worker that died is ended"));
    free.write_all_at(b"goes on", 0).and_then(|()| free.sync_all()).expect("a file without locks");
    let written = locked.write_all_at(b"behind the lock's back", 0);
    assert_eq!(written.expect_err("the lock is lost").raw_os_error(), Some(5));
    drop(locked);
    fcntl_lock(&other, FlockOperation::Unlock).expect("unlock");
    // The kernel tells of the last close behind the program.
    let mut again = None;
    until("it is closed", || {
        again = Some(open(&one, "locked")).filter(|file| lock(file).is_ok());
        again.is_some()
    });
    let again = again.expect("it is open");
    again.write_all_at(b"y", 0).and_then(|()| again.sync_all()).expect("write");
    drop((free, other, again));
    for mount in [one, two] {
        let umount = mount.umount();
        assert!(umount.status.success(), "{}", text(&umount.stderr));
    }
}
