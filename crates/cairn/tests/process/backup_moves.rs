//! A backup of a volume with several partitions, while files are moved from one to another.
use crate::support::{Cluster, Shape, lines, text};
use crate::wait::{until, until_told};
use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

const FILES: usize = 9;

/// The number of the only meta node, such as n17.
fn meta_node(cluster: &Cluster) -> String {
    let nodes = lines(cluster, &["admin", "node", "ls"]);
    let meta = nodes.iter().find(|node| node["host"] == "meta1").expect("a meta node");
    format!("n{}", meta["id"])
}

/// Moves every third file from directory to directory.
fn shuffle(cluster: &Cluster, end: &AtomicBool, moves: &AtomicU64, first: usize) {
    for round in 0.. {
        for file in (first..FILES).step_by(3) {
            if end.load(Ordering::SeqCst) {
                return;
            }
            let (from, to) = ((round + file) % 3, (round + file + 1) % 3);
            let (from, to) = (format!("v:/d{from}/f{file}"), format!("v:/d{to}/f{file}"));
            let moved = cluster.cairn(&["fs", "mv", &from, &to]);
            assert!(moved.status.success(), "{from} to {to}: {}", text(&moved.stderr));
            moves.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// After going back files would have no name, or two of which each ends the other, although nobody removed anything.
#[test]
fn what_is_moved_during_a_backup_has_one_name_after_it() {
    let mut cluster = Cluster::start(Shape { managers: 1, metas: 1, datas: 1, racks: 1 });
    let create = || cluster.cairn(&["admin", "volume", "create", "v", "--layout", "r1", "--partitions", "3"]);
    until_told("the volume", || create().status.success(), || text(&create().stderr));
    let mut numbers = Vec::new();
    until("leaders", || {
        let partitions = lines(&cluster, &["admin", "partition", "ls", "v"]);
        numbers = partitions.iter().filter(|p| p["leader"] != 0).map(|p| p["id"].to_string()).collect();
        numbers.len() == 3
    });
    for (number, partition) in numbers.iter().enumerate() {
        let make = ["fs", "mkdir", "--partition", partition, &format!("v:/d{number}")];
        until_told("a directory", || cluster.cairn(&make).status.success(), || text(&cluster.cairn(&make).stderr));
    }
    let local = cluster.path("local");
    for file in 0..FILES {
        fs::write(&local, format!("file {file}")).expect("a file");
        cluster.ok(&["fs", "put", local.to_str().expect("UTF-8"), &format!("v:/d{}/f{file}", file % 3)]);
    }
    let backups = cluster.path("backups").display().to_string();
    let (end, moves) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let (cluster, end, moves) = (&cluster, &end, &moves);
        let movers: Vec<_> = (0..3).map(|first| scope.spawn(move || shuffle(cluster, end, moves, first))).collect();
        for number in 1..=4 {
            let before = moves.load(Ordering::SeqCst);
            let backup = cluster.cairn(&["admin", "backup", &backups]);
            if !backup.status.success() {
                end.store(true, Ordering::SeqCst);
            }
            let said = format!("{}{}", text(&backup.stdout), text(&backup.stderr));
            assert!(said.contains(&format!("backup {number} in")) && !said.contains("moment"), "{said}");
            until("moves", || moves.load(Ordering::SeqCst) > before + 3 || movers.iter().any(|m| m.is_finished()));
        }
        end.store(true, Ordering::SeqCst);
    });
    let node = meta_node(&cluster);
    let dir = cluster.path("nodes").join("meta1").display().to_string();
    for number in ["2", "3"] {
        cluster.kill("meta1");
        let args =
            ["admin", "restore", &backups, "--backup", number, "--node", &node, "--dir", &dir, "--over-newer-state"];
        let said = cluster.ok(&args);
        assert!(!said.contains("moment"), "{said}");
        cluster.launch("meta1");
        cluster.wait_ready("meta1");
        let list = || cluster.cairn(&["fs", "ls", "v:/d0", "v:/d1", "v:/d2"]);
        until_told("its names", || list().status.success(), || text(&list().stderr));
        // What was under way is ended first.
        let check = || cluster.cairn(&["admin", "fsck", "v"]);
        until_told(
            "a check without findings",
            || text(&check().stdout).contains("0 findings"),
            || text(&check().stdout),
        );
        let mut names: BTreeMap<String, u32> = BTreeMap::new();
        for name in text(&list().stdout).lines().filter(|line| line.starts_with('f')) {
            *names.entry(name.to_owned()).or_default() += 1;
        }
        let expected: BTreeMap<String, u32> = (0..FILES).map(|file| (format!("f{file}"), 1)).collect();
        assert_eq!(names, expected, "backup {number}");
        cluster.ok(&["fs", "mv", &found(&cluster, 0), "v:/d0/moved"]);
        cluster.ok(&["fs", "mv", "v:/d0/moved", "v:/d0/f0"]);
    }
}

/// Where a file is.
fn found(cluster: &Cluster, file: usize) -> String {
    let at = |directory: usize| format!("v:/d{directory}/f{file}");
    let is_there = |path: &String| cluster.cairn(&["fs", "stat", path]).status.success();
    (0..3).map(at).find(is_there).expect("it has a name")
}
