//! Rolling upgrade: builds of different age side by side, and back, until the last one is new.
//!
//! `CAIRN_PREVIOUS` names an earlier build of the binary and `CAIRN_PREVIOUS_LEVEL` the feature level that it
//! understands. Without them the same binary stands for it, told to work on level 0 (`node.feature_level_max`): it
//! announces no more, and stops at what is above.
use crate::mount::cannot_mount;
use crate::secure::{HeldMount, file, give_keys};
use crate::support::{Cluster, Shape, binary, lines, text};
use crate::wait::{until, until_told};
use std::path::PathBuf;
use std::process::Command;

/// The earlier build, if one is given.
fn previous() -> Option<PathBuf> {
    std::env::var_os("CAIRN_PREVIOUS").map(PathBuf::from)
}

/// The feature level that it understands.
fn old_level() -> u64 {
    let told = std::env::var("CAIRN_PREVIOUS_LEVEL").unwrap_or_default();
    if told.is_empty() { 0 } else { told.parse().expect("CAIRN_PREVIOUS_LEVEL is a number") }
}

/// From the next start on.
fn make_old(cluster: &mut Cluster, name: &str) {
    match previous() {
        Some(path) => cluster.set_binary(name, Some(path)),
        None => cluster.set_in_node(name, "feature_level_max", Some("0")),
    }
}

fn make_new(cluster: &mut Cluster, name: &str) {
    cluster.set_binary(name, None);
    cluster.set_in_node(name, "feature_level_max", None);
}

/// One process is replaced as the guide says: stopped, started, and the next one only when all is well.
fn replace(cluster: &mut Cluster, name: &str, with: fn(&mut Cluster, &str)) {
    cluster.kill(name);
    with(cluster, name);
    cluster.restart(name);
    cluster.wait_healthy();
}

/// Files that each step adds to, read back by builds of both ages; and a mount that is in use all the time.
struct Files {
    contents: Vec<u8>,
    steps: usize,
    held: Option<HeldMount>,
}

impl Files {
    fn add(&mut self, cluster: &Cluster) {
        let local = cluster.path("local");
        std::fs::write(&local, &self.contents).expect("a file");
        self.steps += 1;
        let target = format!("/file-{}", self.steps);
        cluster.ok(&["fs", "put", local.to_str().expect("UTF-8"), &target]);
        for program in previous().into_iter().chain([PathBuf::from(binary())]) {
            let mut command = Command::new(&program);
            command.args(["--timeout", crate::wait::PATIENT, "fs", "cat", &target]);
            command.env("CAIRN_CLUSTER", &cluster.address).env("CAIRN_KEY", file(cluster, "alice"));
            let output = command.output().expect("it runs");
            assert!(output.stdout == self.contents, "{}: {}", program.display(), text(&output.stderr));
        }
        self.held.iter_mut().for_each(HeldMount::work);
    }

    fn check(&self, cluster: &Cluster) {
        for step in 1..=self.steps {
            let output = cluster.cairn(&["fs", "cat", &format!("/file-{step}")]);
            assert!(output.stdout == self.contents, "file {step}: {}", text(&output.stderr));
        }
    }
}

/// What this build understands.
const NEWEST: u64 = cairn_types::FEATURE_LEVEL as u64;

fn levels(cluster: &Cluster) -> (u64, Vec<u64>) {
    let status = &lines(cluster, &["admin", "status"])[0];
    let of = |value: &serde_json::Value| value["feature_level"].as_u64().unwrap_or(0);
    (of(status), status["partition_levels"].as_array().into_iter().flatten().map(of).collect())
}

/// What an old manager would not know, and its level: settings, and one of a volume.
const NEWER: [(&[&str], u32); 4] = [
    (&["admin", "config", "set", "spread_leaders_after=30s"], 1),
    (&["admin", "volume", "set", "default", "rebalance_above=80"], 4),
    (&["admin", "config", "set", "stripe_groups=on"], 19),
    (&["admin", "key", "revoke", "nobody"], 27),
];

/// It is refused as long as somebody does not know it.
fn refused_before(cluster: &Cluster, name: &str) {
    for (command, level) in NEWER {
        let early = || cluster.cairn(command);
        assert!(!early().status.success(), "before {name} an older manager would not know {command:?}");
        if previous().is_none() {
            // A manager that leads since a moment ago has not heard of all yet.
            let why = || text(&early().stderr);
            let needs = format!("needs feature level {level} of all members");
            let named = |why: &str| why.contains(&needs) && why.contains("upgrade it");
            until_told("who is behind to be named", || named(&why()), why);
        }
    }
}

/// The volume of before gets a second partition while it is in use: what there is stays where it is, and new
/// directories go there.
fn split(cluster: &Cluster, files: &mut Files) {
    let partitions = || lines(cluster, &["admin", "partition", "ls", "default"]);
    let root = partitions()[0]["id"].to_string();
    let split = || cluster.cairn(&["admin", "partition", "split", &root]);
    until_told("the split", || split().status.success(), || format!("{:?}", partitions()));
    let second = partitions()[1]["id"].to_string();
    files.add(cluster);
    let made = || cluster.cairn(&["fs", "mkdir", "--partition", &second, "/elsewhere"]);
    until_told("a directory in it", || made().status.success(), || text(&made().stderr));
    cluster.ok(&["fs", "mv", "/file-1", "/elsewhere/f"]);
    cluster.ok(&["fs", "mv", "/elsewhere/f", "/file-1"]);
    files.add(cluster);
    cluster.ok(&["admin", "fsck"]);
}

/// In a cluster whose servers require keys. An upgrade would need all of a cluster to stop, or end where an older
/// process meets what it cannot read; or nothing new would ever work.
#[test]
fn processes_are_replaced_one_by_one_and_back() {
    let mut cluster = Cluster::prepare(Shape { managers: 3, metas: 3, datas: 2, racks: 1 });
    let names = cluster.names();
    names.iter().for_each(|name| make_old(&mut cluster, name));
    give_keys(&mut cluster);
    cluster.key = Some(file(&cluster, "ops"));
    cluster.start_all();
    cluster.wait_volume();
    let held = cannot_mount().is_none().then(|| HeldMount::begin(&cluster, "upgraded", Some("alice")));
    let mut files = Files { contents: (0..200_000u32).map(|i| (i / 7) as u8).collect(), steps: 0, held };
    files.add(&cluster);
    // What is asked of others comes before who asks.
    let role = |role: &str| names.iter().filter(|name| name.starts_with(role)).cloned().collect::<Vec<_>>();
    let (old, status) = (old_level(), |cluster: &Cluster| cluster.ok(&["admin", "status"]));
    let before = |cluster: &Cluster| levels(cluster).0 == old && levels(cluster).1.iter().all(|level| *level == old);
    until_told("the levels of before", || before(&cluster), || status(&cluster));
    for name in role("manager") {
        if old == 0 {
            refused_before(&cluster, &name);
        }
        assert_eq!(levels(&cluster).0, old, "before {name} was replaced");
        replace(&mut cluster, &name, make_new);
        files.add(&cluster);
    }
    until_told("the managers' level", || levels(&cluster).0 == NEWEST, || status(&cluster));
    role("data").iter().for_each(|name| replace(&mut cluster, name, make_new));
    files.add(&cluster);
    replace(&mut cluster, "meta1", make_new);
    files.add(&cluster);
    // The way back is open as long as one member of its groups is old.
    replace(&mut cluster, "meta1", make_old);
    files.add(&cluster);
    assert!(levels(&cluster).1.iter().all(|level| *level == old), "the way back is not open: {:?}", levels(&cluster));
    for name in role("meta") {
        replace(&mut cluster, &name, make_new);
    }
    until_told("the partitions' level", || levels(&cluster) == (NEWEST, vec![NEWEST]), || status(&cluster));
    files.add(&cluster);
    NEWER.iter().for_each(|(command, _)| drop(cluster.ok(command)));
    assert!(cluster.ok(&["admin", "events"]).contains("feature level"), "{}", cluster.ok(&["admin", "events"]));
    split(&cluster, &mut files);
    files.check(&cluster);
    files.held.take().into_iter().for_each(HeldMount::end);
    cluster.check_logs();
    println!("upgrade: {} processes replaced, {} files", cluster.kills, files.steps);
}

/// A process that went back too late would leave out what it does not know, and go on with other names than the rest.
#[test]
fn who_goes_back_too_late_stops_and_says_so() {
    let mut cluster = Cluster::start(Shape { managers: 3, metas: 3, datas: 1, racks: 1 });
    until_told("all levels", || levels(&cluster) == (NEWEST, vec![NEWEST]), || cluster.ok(&["admin", "status"]));
    // They end with the panic that the log of the process names.
    cluster.allow_error("it needs feature level");
    cluster.allow_error("src/machine.rs");
    cluster.allow_error("the group's thread panicked");
    cluster.allow_error("the process ends, so that nothing of a half-changed state is used");
    for name in ["manager3", "meta3"] {
        cluster.kill(name);
        cluster.set_in_node(name, "feature_level_max", Some("0"));
        cluster.launch(name);
        let said = |cluster: &Cluster| cluster.read_log(name);
        until_told("the reason", || said(&cluster).contains("understands 0: start the newer build"), || said(&cluster));
        // The others go on, and it comes back as what it was.
        cluster.ok(&["fs", "mkdir", &format!("/{name}")]);
        cluster.kill(name);
        cluster.set_in_node(name, "feature_level_max", None);
        cluster.restart(name);
        cluster.wait_healthy();
    }
    until("both names", || cluster.ok(&["fs", "ls", "/"]).split_whitespace().count() == 2);
}
