//! Random operations on a tree of the mount, side by side with a directory of a local disk: each answers the same,
//! value or errno, and in the end both trees are the same.
//!
//! Times: those that are set lie in the past, so a time that an operation has to change is seen to be new on both sides
//! or on none.
mod apply;
mod choose;
mod look;

use super::leases::{lead, led};
use super::seeds::{Rng, seeds, steps as step_count};
use super::{Mount, SMALL, skipped};
use crate::support::{Cluster, text};
use crate::wait::LIMIT;
use apply::Side;
use choose::Op;
use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Steps that a failure tells.
const TOLD: usize = 40;
/// Both trees are compared whole after so many steps.
const WHOLE_EVERY: u64 = 25;
/// Names lead out of the tree by one step at most; there is room for more.
const DEEP: &str = "1/2/3/tree";

/// Seconds and nanoseconds; `None` where nothing is.
type Time = Option<(i64, i64)>;

/// Both trees.
struct Pair {
    seed: u64,
    rng: Rng,
    local: Side,
    mount: Side,
    step: u64,
    /// Names that were there lately.
    known: Vec<String>,
    history: VecDeque<String>,
    counts: BTreeMap<&'static str, (u64, u64)>,
}

impl Pair {
    fn new(local: &Path, mount: &Path, seed: u64) -> Pair {
        let side = |base: &Path| {
            let root: PathBuf = base.join(DEEP);
            fs::create_dir_all(&root).expect("directory");
            Side::new(root)
        };
        let (local, mount) = (side(local), side(mount));
        let (rng, history, counts) = (Rng::new(seed), VecDeque::new(), BTreeMap::new());
        Pair { seed, rng, local, mount, step: 0, known: Vec::new(), history, counts }
    }
    fn run(&mut self, steps: u64) -> String {
        for _ in 0..steps {
            self.one_step();
            if self.step.is_multiple_of(WHOLE_EVERY) {
                self.compare_whole();
            }
        }
        self.local.close_all();
        self.mount.close_all();
        self.compare_whole();
        let counts = self.counts.iter().map(|(what, (done, refused))| format!("{what} {done}/{refused}"));
        let counts: Vec<String> = counts.collect();
        format!("seed {}: {} steps (done/refused: {})", self.seed, self.step, counts.join(", "))
    }
    fn one_step(&mut self) {
        self.step += 1;
        let op = Op::choose(&mut self.rng, self.local.open(), &self.known);
        let places = op.places();
        let watched = self.step.is_multiple_of(4);
        if watched {
            // Coarse clocks of file systems tick.
            std::thread::sleep(Duration::from_millis(11));
        }
        let before = watched.then(|| (self.local.change_times(&places), self.mount.change_times(&places)));
        let (wanted, got) = (self.local.apply(&op), self.mount.apply(&op));
        let count = self.counts.entry(op.kind()).or_default();
        if wanted.is_ok() {
            count.0 += 1
        } else {
            count.1 += 1
        }
        if self.history.len() == TOLD {
            self.history.pop_front();
        }
        self.history.push_back(format!("{:>6} {op:?}: {wanted:?}", self.step));
        if wanted != got {
            self.fail(&format!("a local disk answers {wanted:?},\nthe mount         {got:?}"));
        }
        if let Some((local, mount)) = before {
            self.compare_changes(&places, &local, &mount);
        }
    }
    /// An operation changed the times of both or of none. What was written through a handle that is open has the
    /// writer's time until it is stored, and the servers' then: so that one may change once more, and be the later one
    /// until then.
    fn compare_changes(&self, places: &[String], local: &[Time], mount: &[Time]) {
        let (local_after, mount_after) = (self.local.change_times(places), self.mount.change_times(places));
        let unstored = self.local.open() > 0;
        for (at, place) in places.iter().enumerate() {
            let (changed, mut seen) = (local[at] != local_after[at], mount[at] != mount_after[at]);
            if changed == seen || seen && unstored {
                continue;
            }
            let started = Instant::now();
            while unstored && !seen && started.elapsed() < LIMIT {
                std::thread::sleep(Duration::from_millis(50));
                seen = self.mount.change_times(std::slice::from_ref(place))[0] != mount[at];
            }
            if changed != seen {
                self.fail(&format!("the change time of {place:?} changed locally: {changed}, on the mount: {seen}"));
            }
        }
    }
    fn compare_whole(&mut self) {
        let (wanted, got) = (look::whole(self.local.root()), look::whole(self.mount.root()));
        for (path, wanted) in &wanted {
            match got.get(path) {
                Some(got) if got == wanted => {}
                got => self.fail(&format!("{path:?} is locally {wanted:?},\non the mount {got:?}")),
            }
        }
        if let Some(more) = got.keys().find(|path| !wanted.contains_key(*path)) {
            self.fail(&format!("{more:?} is on the mount only"));
        }
        self.known = wanted.into_keys().collect();
    }
    fn fail(&self, what: &str) -> ! {
        for line in &self.history {
            eprintln!("{line}");
        }
        panic!("{what}\nstep {} of seed {}: repeat it with CAIRN_SEED={}", self.step, self.seed, self.seed);
    }
}

/// A directory on a local disk; `CAIRN_LOCAL_DIR` says where.
fn local_dir() -> tempfile::TempDir {
    let made = match std::env::var_os("CAIRN_LOCAL_DIR") {
        Some(dir) => tempfile::tempdir_in(dir),
        None => tempfile::tempdir(),
    };
    made.expect("temporary directory")
}

/// The comparison itself would be wrong: two local directories behave the same.
#[test]
fn two_local_trees_are_the_same() {
    for seed in seeds(1..3) {
        let (one, two) = (local_dir(), local_dir());
        println!("{}", Pair::new(one.path(), two.path(), seed).run(step_count(500)));
    }
}

/// A program would get another answer, another error or another time from the mount than from a local disk.
#[test]
fn random_operations_on_a_tree() {
    if skipped() {
        return;
    }
    let cluster = Cluster::start(SMALL);
    let mount = Mount::new(&cluster, "mnt", "/", "");
    for seed in seeds(1..4) {
        let (local, remote) = (local_dir(), mount.path(&format!("seed-{seed}")));
        println!("{}", Pair::new(local.path(), &remote, seed).run(step_count(700)));
    }
    let umount = mount.umount();
    assert!(umount.status.success(), "{}", text(&umount.stderr));
}

/// The same where the mount answers by itself; what another one sees afterwards is the same again.
#[test]
fn random_operations_on_a_tree_that_is_led() {
    if skipped() {
        return;
    }
    let cluster = Cluster::start(SMALL);
    let mount = Mount::new(&cluster, "mnt", "/", "lease=new");
    let other = Mount::new(&cluster, "other", "/", "");
    for seed in seeds(31..33) {
        let (local, remote) = (local_dir(), lead(&mount, &format!("seed-{seed}")));
        println!("{}, led: {}", Pair::new(local.path(), &remote, seed).run(step_count(300)), led(&mount));
        let name = remote.file_name().and_then(|name| name.to_str()).expect("a name");
        assert_eq!(look::whole(&other.path(name)), look::whole(local.path()), "seed {seed}, as another mount sees it");
    }
    for mount in [mount, other] {
        let umount = mount.umount();
        assert!(umount.status.success(), "{}", text(&umount.stderr));
    }
}
