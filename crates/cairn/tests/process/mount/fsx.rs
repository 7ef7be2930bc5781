//! One file under random reads, writes, mappings, truncations, holes and copies, beside a copy in memory: after each
//! step the file is what the copy says. The idea is that of Apple's and the Linux Test Project's fsx.
//!
//! Here is the program; what a single step does is in `steps`.
pub mod buffer;
mod steps;

use super::leases::lead;
use super::seeds::{Rng, seeds, steps as step_count};
use super::{Mount, SMALL, skipped};
use crate::support::{Cluster, Shape, text};
use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Steps that a failure tells.
const TOLD: usize = 60;

/// Sizes of a run.
#[derive(Clone, Copy)]
pub struct Sizes {
    /// Longest file.
    pub file: u64,
    /// Longest read or write.
    pub io: u64,
    /// Not a mount: not everything is expected of it.
    pub local: bool,
}

/// How a handle is open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Cached,
    Direct,
    Sync,
}

struct Handle {
    file: File,
    way: Way,
}

/// The file, and what it should be.
pub struct Fsx {
    path: PathBuf,
    seed: u64,
    rng: Rng,
    sizes: Sizes,
    model: Vec<u8>,
    /// One or two; the second reads and writes as the first does.
    handles: Vec<Handle>,
    /// Pages were changed through a mapping and not synced since: a search for data may miss them.
    mapped: bool,
    step: u64,
    history: VecDeque<String>,
    counts: BTreeMap<&'static str, u64>,
}

impl Fsx {
    pub fn new(path: &Path, seed: u64, sizes: Sizes) -> Fsx {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path).expect("create");
        Fsx {
            path: path.to_owned(),
            seed,
            rng: Rng::new(seed),
            sizes,
            model: Vec::new(),
            handles: vec![Handle { file, way: Way::Cached }],
            mapped: false,
            step: 0,
            history: VecDeque::new(),
            counts: BTreeMap::new(),
        }
    }
    /// So many more steps.
    pub fn run(&mut self, steps: u64) {
        for _ in 0..steps {
            self.one_step();
        }
    }
    /// Closes everything and reads the file anew, whole. What was done, for people.
    pub fn finish(mut self) -> String {
        self.handles.clear();
        let found = fs::read(&self.path).unwrap_or_else(|error| self.fail(&format!("reading at the end: {error}")));
        self.compare("the whole file at the end", 0, &found, self.model.len());
        let counts: Vec<String> = self.counts.iter().map(|(what, count)| format!("{what} {count}")).collect();
        format!("seed {}: {} steps ({})", self.seed, self.step, counts.join(", "))
    }
    pub fn model(&self) -> &[u8] {
        &self.model
    }
    fn open(&self, way: Way) -> Handle {
        let flag = match way {
            Way::Cached => 0,
            Way::Direct => rustix::fs::OFlags::DIRECT.bits(),
            Way::Sync => rustix::fs::OFlags::SYNC.bits(),
        };
        let opened = OpenOptions::new().read(true).write(true).custom_flags(flag as i32).open(&self.path);
        let file = opened.unwrap_or_else(|error| self.fail(&format!("opening ({way:?}): {error}")));
        Handle { file, way }
    }
    /// Notes a step before it is done.
    fn note(&mut self, kind: &'static str, what: String) {
        *self.counts.entry(kind).or_default() += 1;
        if self.history.len() == TOLD {
            self.history.pop_front();
        }
        self.history.push_back(format!("{:>6} {kind} {what}", self.step));
    }
    fn fail(&self, what: &str) -> ! {
        for line in &self.history {
            eprintln!("{line}");
        }
        panic!("{what}\nstep {} of seed {}: repeat it with CAIRN_SEED={}", self.step, self.seed, self.seed);
    }
    fn done<T, E: std::fmt::Display>(&self, what: &str, outcome: Result<T, E>) -> T {
        outcome.unwrap_or_else(|error| self.fail(&format!("{what}: {error}")))
    }
    /// Holds what was read from `offset` on against the copy; `end`: where reading may have ended.
    fn compare(&self, what: &str, offset: usize, found: &[u8], end: usize) {
        let wanted =
            &self.model[offset.min(self.model.len())..end.min(self.model.len()).max(offset.min(self.model.len()))];
        if found.len() != wanted.len() {
            self.fail(&format!(
                "{what}: {} bytes were read from {offset} on, and {} are there",
                found.len(),
                wanted.len()
            ));
        }
        if let Some(bad) = found.iter().zip(wanted).position(|(a, b)| a != b) {
            let differing = found.iter().zip(wanted).filter(|(a, b)| a != b).count();
            let some = |bytes: &[u8]| bytes[bad..].iter().take(16).map(|b| format!("{b:02x}")).collect::<String>();
            self.fail(&format!(
                "{what}: from byte {} on there is {} instead of {}; {differing} bytes of {offset}..{} differ, size {}",
                offset + bad,
                some(found),
                some(wanted),
                offset + found.len(),
                self.model.len(),
            ));
        }
    }
}

/// Runs seeds on new files of a directory. What other clients read is the same.
fn run_seeds(mount: &Mount, cluster: &Cluster, dir: &str, seeds: &[u64], count: u64, sizes: Sizes) {
    for seed in seeds {
        let name = format!("{dir}/fsx-{seed}");
        let mut fsx = Fsx::new(&mount.path(&name), *seed, sizes);
        fsx.run(count);
        let model = fsx.model().to_vec();
        println!("{}", fsx.finish());
        let read = cluster.cairn(&["fs", "cat", &format!("/{name}")]);
        assert!(read.status.success(), "{}", text(&read.stderr));
        assert!(read.stdout == model, "seed {seed}: another client reads other bytes of /{name} than the mount");
    }
}

/// The engine itself would be wrong: on a file system that is right it finds nothing.
#[test]
fn fsx_finds_nothing_on_a_local_disk() {
    let dir = tempfile::tempdir().expect("temporary directory");
    for seed in seeds(1..4) {
        let mut fsx = Fsx::new(&dir.path().join("file"), seed, Sizes { file: 600_000, io: 80_000, local: true });
        fsx.run(step_count(2000));
        println!("{}", fsx.finish());
    }
}

/// The engine itself would be blind: bytes that somebody else changes are found.
#[test]
#[should_panic(expected = "repeat it with CAIRN_SEED=1")]
fn fsx_finds_what_is_wrong() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("file");
    let mut fsx = Fsx::new(&path, 1, Sizes { file: 100_000, io: 50_000, local: true });
    for _ in 0..200 {
        fsx.run(10);
        let size = fs::metadata(&path).expect("stat").len();
        if size > 0 {
            let other = File::options().write(true).open(&path).expect("open");
            std::os::unix::fs::FileExt::write_all_at(&other, &[0xee], size / 2).expect("write");
        }
    }
}

/// Some order of writes, mappings, truncations, holes and copies would leave other bytes than on a local disk.
#[test]
fn random_operations_on_a_replicated_file() {
    if skipped() {
        return;
    }
    let cluster = Cluster::start(SMALL);
    let mount = Mount::new(&cluster, "mnt", "/", "");
    run_seeds(
        &mount,
        &cluster,
        ".",
        &seeds(10..13),
        step_count(600),
        Sizes { file: 700_000, io: 100_000, local: false },
    );
    let umount = mount.umount();
    assert!(umount.status.success(), "{}", text(&umount.stderr));
}

/// The same in a directory that the mount leads.
#[test]
fn random_operations_on_a_file_that_is_led() {
    if skipped() {
        return;
    }
    let cluster = Cluster::start(SMALL);
    let mount = Mount::new(&cluster, "mnt", "/", "lease=new");
    let top = lead(&mount, "led");
    let below = top.file_name().and_then(|name| name.to_str()).expect("a name");
    let sizes = Sizes { file: 700_000, io: 100_000, local: false };
    run_seeds(&mount, &cluster, below, &seeds(13..14), step_count(400), sizes);
    let umount = mount.umount();
    assert!(umount.status.success(), "{}", text(&umount.stderr));
}

/// The same on erasure-coded files, where a write covers parts of rows, whole rows, and what was replicated before.
#[test]
fn random_operations_on_an_erasure_coded_file() {
    if skipped() {
        return;
    }
    let cluster = Cluster::start(Shape { managers: 1, metas: 1, datas: 5, racks: 5 });
    cluster.ok(&["fs", "mkdir", "--layout", "rs-3-2/4k", "/rows"]);
    let mount = Mount::new(&cluster, "mnt", "/", "");
    run_seeds(
        &mount,
        &cluster,
        "rows",
        &seeds(20..23),
        step_count(400),
        Sizes { file: 900_000, io: 200_000, local: false },
    );
    let umount = mount.umount();
    assert!(umount.status.success(), "{}", text(&umount.stderr));
}
