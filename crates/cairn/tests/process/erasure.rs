//! Erasure-coded files and real processes: any m of k + m members may be killed, one may stand still, corrupt or be full.
use crate::support::{Cluster, Shape, text};
use crate::trees::{assert_same_tree, make_tree, noise};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

const NINE: Shape = Shape { managers: 1, metas: 1, datas: 9, racks: 9 };
/// Seed of the patterns; printed with a failure.
const SEED: u64 = 20_261_121;

fn utf8(path: &Path) -> &str {
    path.to_str().expect("utf-8")
}

fn put_tree(cluster: &Cluster) -> std::path::PathBuf {
    let tree = cluster.path("tree");
    make_tree(&tree, 40, 9);
    fs::write(tree.join("large"), noise(20_000_000, 99)).expect("large");
    cluster.ok(&["fs", "mkdir", "--layout", "rs-6-3", "/tree"]);
    cluster.ok(&["fs", "put", &format!("{}/.", utf8(&tree)), "/tree"]);
    tree
}

fn check_tree(cluster: &Cluster, tree: &Path, name: &str) {
    let back = cluster.path(name);
    cluster.ok(&["fs", "get", "/tree", utf8(&back)]);
    assert_same_tree(tree, &back);
    fs::remove_dir_all(&back).expect("removed");
}

/// Data is lost if any three of nine members are more than the code can bear.
#[test]
fn any_three_of_nine_may_die() {
    let mut cluster = Cluster::start(NINE);
    let tree = put_tree(&cluster);
    let mut patterns: Vec<[usize; 3]> = Vec::new();
    for a in 1..=9 {
        for b in a + 1..=9 {
            patterns.extend((b + 1..=9).map(|c| [a, b, c]));
        }
    }
    let mut x = SEED;
    for round in 0..3 {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let dead = patterns.swap_remove((x >> 33) as usize % patterns.len());
        for i in dead {
            cluster.kill(&format!("data{i}"));
        }
        eprintln!("seed {SEED}, round {round}: without {dead:?}");
        check_tree(&cluster, &tree, &format!("degraded{round}"));
        cluster.start_all();
        cluster.wait_healthy();
        check_tree(&cluster, &tree, &format!("healed{round}"));
    }
    assert_eq!(cluster.kills, 9, "every fault fired");
}

/// A put would fail, or acknowledge what is gone, when members die in its middle; what they missed is made later.
#[test]
fn members_die_during_a_write_and_catch_up() {
    let mut cluster = Cluster::start(NINE);
    let local = cluster.path("local");
    fs::write(&local, noise(60_000_000, 3)).expect("local");
    cluster.ok(&["fs", "mkdir", "--layout", "rs-6-3", "/d"]);
    for (round, victim) in ["data2", "data7"].iter().enumerate() {
        let target = format!("/d/f{round}");
        let before = cluster.stored();
        let mut job = cluster.command(&["fs", "put", utf8(&local), &target]).spawn().expect("put");
        cluster.wait_stored(&mut job, before + (8 << 20));
        cluster.kill(victim);
        let output = job.wait_with_output().expect("put ends");
        assert!(output.status.success(), "put with {victim} killed: {}", text(&output.stderr));
    }
    cluster.start_all();
    cluster.wait_healthy();
    // Now three others go: what was written without data2 and data7 has to be on them.
    for victim in ["data1", "data4", "data9"] {
        cluster.kill(victim);
    }
    for round in 0..2 {
        let back = cluster.path("back");
        cluster.ok(&["fs", "get", &format!("/d/f{round}"), utf8(&back)]);
        assert!(fs::read(&back).expect("back") == noise(60_000_000, 3), "f{round} differs");
    }
    assert_eq!(cluster.kills, 5, "every fault fired");
}

/// Readers would hang for seconds behind one member that stands still.
#[test]
fn a_member_that_stands_still_stops_nobody() {
    let cluster = Cluster::start(NINE);
    let local = cluster.path("local");
    fs::write(&local, noise(40_000_000, 4)).expect("local");
    cluster.ok(&["fs", "mkdir", "--layout", "rs-6-3", "/d"]);
    cluster.ok(&["fs", "put", utf8(&local), "/d/f"]);
    let paused = rustix::process::Pid::from_raw(cluster.pid("data3") as i32).expect("a process");
    rustix::process::kill_process(paused, rustix::process::Signal::STOP).expect("stopped");
    let back = cluster.path("back");
    let started = Instant::now();
    cluster.ok(&["fs", "get", "/d/f", utf8(&back)]);
    let read = started.elapsed();
    let started = Instant::now();
    cluster.ok(&["fs", "put", utf8(&local), "/d/g"]);
    let wrote = started.elapsed();
    rustix::process::kill_process(paused, rustix::process::Signal::CONT).expect("continues");
    // Far above what they take, far below what waiting for the member would take.
    assert!(read < Duration::from_secs(20) && wrote < Duration::from_secs(25), "read {read:?}, wrote {wrote:?}");
    assert!(fs::read(&back).expect("back") == noise(40_000_000, 4));
    cluster.ok(&["fs", "get", "/d/g", utf8(&back)]);
    assert!(fs::read(&back).expect("back") == noise(40_000_000, 4));
}

/// Flipped bits on the disks of two members would reach the reader.
#[test]
fn flipped_bits_on_shards_are_noticed_and_healed() {
    let mut cluster = Cluster::start(NINE);
    cluster.allow_error("checksum");
    cluster.allow_error("damaged");
    let tree = put_tree(&cluster);
    cluster.kill_all();
    let mut flipped = 0;
    for name in ["data5", "data8"] {
        for path in chunks(&cluster.disk(name)) {
            let mut bytes = fs::read(&path).expect("chunk");
            let length = bytes.len();
            // Behind all tables, in the data.
            if length > 1_500_000 {
                bytes[length - 50_000] ^= 4;
                fs::write(&path, bytes).expect("chunk");
                flipped += 1;
            }
        }
    }
    assert!(flipped >= 2, "{flipped} faults fired");
    cluster.start_all();
    cluster.wait_volume();
    check_tree(&cluster, &tree, "once");
    check_tree(&cluster, &tree, "twice");
}

fn chunks(dir: &Path) -> Vec<std::path::PathBuf> {
    let (mut found, mut stack) = (Vec::new(), vec![dir.to_path_buf()]);
    while let Some(dir) = stack.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                stack.push(path);
            } else if path.extension().is_some_and(|e| e == "chunk") {
                found.push(path);
            }
        }
    }
    found
}

/// Zeros or old bytes instead of an error when too many members are gone.
#[test]
fn four_of_nine_gone_is_an_error_that_names_them() {
    let mut cluster = Cluster::start(NINE);
    let tree = put_tree(&cluster);
    for victim in ["data1", "data2", "data3", "data4"] {
        cluster.kill(victim);
    }
    let back = cluster.path("back");
    let output = cluster.cairn(&["--timeout", "5", "fs", "get", "/tree/large", utf8(&back)]);
    assert!(!output.status.success());
    let error = text(&output.stderr);
    assert!(error.contains("large") && error.contains("6"), "{error}");
    assert!(!back.exists(), "nothing half-read is left under the name");
    cluster.start_all();
    cluster.wait_healthy();
    check_tree(&cluster, &tree, "again");
}
