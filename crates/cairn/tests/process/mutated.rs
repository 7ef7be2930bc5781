//! A cluster of which every connection, of clients and between servers, goes through a proxy that changes frames, or
//! records of TLS where keys are required: no
//! wrong byte is read, nothing acknowledged is gone, nothing is done twice, nobody panics, and when it ends everything
//! serves again.
use crate::mount::seeds::Rng;
use crate::proxy::{Mutations, Proxy};
use crate::secure::{file, give_keys};
use crate::support::{Cluster, Shape, free_ports, text};
use crate::trees::noise;
use crate::wait::eventually;
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

const SHAPE: Shape = Shape { managers: 3, metas: 3, datas: 4, racks: 4 };
/// Programs that work at the same time, and the files of each.
const WORKERS: u64 = 3;
const FILES: usize = 3;
const SIZE_MAX: u64 = 600_000;
/// In a test that is one of many: what is changed, and how much is read meanwhile at least.
const COUNT: i64 = 120;
const READS_MIN: u64 = 20;
/// What an operation waits for servers, in seconds.
const PATIENCE: &str = "20";
/// Not found.
const NOT_FOUND: i32 = 3;

/// A cluster behind proxies, which do nothing yet.
fn behind(seed: u64, keys: bool) -> (Cluster, Vec<Proxy>, std::sync::Arc<Mutations>) {
    let count = SHAPE.managers + SHAPE.metas + SHAPE.datas;
    let ports = free_ports(2 * count);
    let (near, far) = ports.split_at(count);
    let at = |port: u16| format!("127.0.0.1:{port}");
    let managers = near[..SHAPE.managers].iter().map(|port| at(*port)).collect();
    let mut cluster = Cluster::prepare_at(SHAPE, managers, |_| "127.0.0.1:0".to_owned());
    let some = |what: &'static str, count: usize| (1..=count).map(move |i| format!("{what}{i}"));
    let names = some("manager", SHAPE.managers).chain(some("meta", SHAPE.metas)).chain(some("data", SHAPE.datas));
    let mutations = Mutations::new(seed);
    let mut proxies = Vec::new();
    for (name, (near, far)) in names.zip(near.iter().zip(far)) {
        cluster.set_in_node(&name, "listen", Some(&format!("{:?}", at(*far))));
        cluster.set_in_node(&name, "advertise", Some(&format!("{:?}", at(*near))));
        proxies.push(Proxy::start(&at(*near), at(*far), mutations.clone()));
    }
    if keys {
        give_keys(&mut cluster);
        cluster.key = Some(file(&cluster, "ops"));
    }
    cluster.start_all();
    cluster.wait_volume();
    (cluster, proxies, mutations)
}

/// What a file may have: the version that was acknowledged last, or any of which that is not known: it may be renamed
/// late.
#[derive(Default)]
struct File {
    acknowledged: Option<Vec<u8>>,
    unknown: Vec<Vec<u8>>,
}

impl File {
    fn versions(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.unknown.iter().chain(&self.acknowledged)
    }
}

#[derive(Default)]
struct Counts {
    stored: AtomicU64,
    refused: AtomicU64,
    read: AtomicU64,
    unread: AtomicU64,
}

struct Worker<'a> {
    cluster: &'a Cluster,
    number: u64,
    rng: Rng,
    files: Vec<File>,
    /// Versions so far.
    begun: u64,
    counts: &'a Counts,
}

impl Worker<'_> {
    fn path(&self, file: usize) -> String {
        format!("/worker{}-{file}", self.number)
    }

    /// Stores a version aside and renames it over the file: done twice, the second time would find nothing.
    fn store(&mut self, file: usize) {
        let bytes = noise(self.rng.below(SIZE_MAX) as usize, self.rng.next());
        let (local, aside) =
            (self.cluster.path(&format!("local{}", self.number)), format!("/aside{}-{}", self.number, self.begun));
        self.begun += 1;
        fs::write(&local, &bytes).expect("file");
        let put = ["--timeout", PATIENCE, "fs", "put", local.to_str().expect("utf-8"), &aside];
        if !self.cluster.cairn(&put).status.success() {
            self.counts.refused.fetch_add(1, SeqCst);
            return;
        }
        let moved = self.cluster.cairn(&["--timeout", PATIENCE, "fs", "mv", &aside, &self.path(file)]);
        let why = text(&moved.stderr);
        assert_ne!(moved.status.code(), Some(NOT_FOUND), "it was done twice, or what was stored is gone: {why}");
        let done = moved.status.success();
        let entry = &mut self.files[file];
        match done {
            true => entry.acknowledged = Some(bytes),
            false => entry.unknown.push(bytes),
        }
        if done { &self.counts.stored } else { &self.counts.refused }.fetch_add(1, SeqCst);
    }

    fn read(&self, file: usize, patience: &str) -> bool {
        let entry = &self.files[file];
        let read = self.cluster.cairn(&["--timeout", patience, "fs", "cat", &self.path(file)]);
        let why = text(&read.stderr);
        if read.status.success() {
            let known = entry.versions().any(|version| *version == read.stdout);
            assert!(known, "{} reads {} bytes that nobody wrote", self.path(file), read.stdout.len());
            self.counts.read.fetch_add(1, SeqCst);
        } else {
            let lost = read.status.code() == Some(NOT_FOUND) && entry.acknowledged.is_some();
            assert!(!lost, "{} was acknowledged and is gone: {why}", self.path(file));
            let begun = entry.versions().any(|version| version.starts_with(&read.stdout));
            assert!(read.stdout.is_empty() || begun, "{} begins with bytes that nobody wrote", self.path(file));
            self.counts.unread.fetch_add(1, SeqCst);
        }
        read.status.success() || entry.acknowledged.is_none()
    }

    fn work(&mut self, goes_on: &impl Fn() -> bool) {
        while goes_on() {
            let file = self.rng.index(FILES);
            match self.rng.below(3) {
                0 => self.store(file),
                _ => drop(self.read(file, PATIENCE)),
            }
        }
    }
}

fn run(seed: u64, keys: bool, count: i64, length: Duration) {
    let (mut cluster, proxies, mutations) = behind(seed, keys);
    let counts = Counts::default();
    let new = |number| {
        let files = (0..FILES).map(|_| File::default()).collect();
        Worker { cluster: &cluster, number, rng: Rng::new(seed << 8 | number), files, begun: 0, counts: &counts }
    };
    let mut workers: Vec<Worker<'_>> = (0..WORKERS).map(new).collect();
    workers.iter_mut().for_each(|worker| (0..FILES).for_each(|file| worker.store(file)));
    assert_eq!(counts.stored.load(SeqCst), WORKERS * FILES as u64, "nothing was changed yet");
    let began = Instant::now();
    mutations.go_on(count);
    let goes_on = || {
        let enough = mutations.is_over() && counts.read.load(SeqCst) >= READS_MIN;
        !enough && (length.is_zero() || began.elapsed() < length)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = workers.iter_mut().map(|worker| scope.spawn(|| worker.work(&goes_on))).collect();
        threads.into_iter().for_each(|thread| thread.join().expect("nothing wrong was read"));
    });
    mutations.stop();
    let made = mutations.made();
    for worker in &workers {
        (0..FILES).for_each(|file| {
            let path = worker.path(file);
            eventually(&cluster, &format!("{path} to be read again"), || worker.read(file, PATIENCE));
        });
    }
    drop(workers);
    cluster.wait_healthy();
    eventually(&cluster, "a silent check", || text(&cluster.cairn(&["admin", "fsck"]).stdout).contains("0 findings"));
    let [stored, refused, read, unread] =
        [&counts.stored, &counts.refused, &counts.read, &counts.unread].map(|count| count.load(SeqCst));
    println!(
        "mutated: seed {seed}: {made:?} in {} s; {stored} versions stored, {refused} refused, {read} reads checked, {unread} refused",
        began.elapsed().as_secs()
    );
    assert!(made.iter().all(|(_, count)| *count > 0), "a kind of change was never made: {made:?}");
    assert!(read >= READS_MIN, "too little was read");
    // Its processes end before what stands before them.
    cluster.kill_all();
    cluster.check_logs();
    drop(proxies);
}

/// Bytes of a frame that was damaged on its way would be taken for those that were sent, or what came twice be done
/// twice; or a server would end, or remain cut off from the others.
#[test]
fn changed_frames_lose_nothing_and_do_nothing_twice() {
    run(1, false, COUNT, Duration::ZERO);
}

/// The same of records, of frames with codes, and of what stands between them.
#[test]
fn changed_records_lose_nothing_and_do_nothing_twice() {
    run(2, true, COUNT, Duration::ZERO);
}

/// The same for as long as somebody likes.
#[test]
fn mutations() {
    let Ok(minutes) = std::env::var("CAIRN_MUTATION_MINUTES") else {
        return eprintln!("not run here: frames are changed for minutes by make soak");
    };
    let minutes: f64 = minutes.parse().expect("CAIRN_MUTATION_MINUTES is a number");
    let seed = std::env::var("CAIRN_SEED").ok().map_or(7, |seed| seed.parse().expect("CAIRN_SEED is a number"));
    let keys = std::env::var_os("CAIRN_MUTATION_KEYS").is_some();
    run(seed, keys, i64::MAX, Duration::from_secs_f64(minutes * 60.0));
    println!("mutations: passed");
}
