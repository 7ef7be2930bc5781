//! Erasure-coded files and real processes: any m of k + m members may be killed, one may stand still, corrupt or be
//! full.
use crate::disks::{chunks, flip};
use crate::force::waiting;
use crate::support::{Cluster, Shape, lines, text};
use crate::trees::{assert_same_tree, make_tree, noise};
use crate::wait::eventually;
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
    let targets =
        ["data2", "data7"].map(|victim| cluster.put_with_a_death(&local, &format!("/d/without-{victim}"), victim));
    cluster.start_all();
    cluster.wait_healthy();
    // Now three others go: what was written without data2 and data7 has to be on them.
    for victim in ["data1", "data4", "data9"] {
        cluster.kill(victim);
    }
    for target in targets {
        let back = cluster.path("back");
        cluster.ok(&["fs", "get", &target, utf8(&back)]);
        assert!(fs::read(&back).expect("back") == noise(60_000_000, 3), "{target} differs");
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
    // What it takes here and now, with everybody there.
    let back = cluster.path("back");
    let timed = |args: &[&str]| {
        let started = Instant::now();
        cluster.ok(args);
        started.elapsed()
    };
    let (get, put) = (["fs", "get", "/d/f", utf8(&back)], ["fs", "put", utf8(&local)]);
    let usual = timed(&get) + timed(&[&put[..], &["/d/e"]].concat());
    let paused = rustix::process::Pid::from_raw(cluster.pid("data3") as i32).expect("a process");
    rustix::process::kill_process(paused, rustix::process::Signal::STOP).expect("stopped");
    let (read, wrote) = (timed(&get), timed(&[&put[..], &["/d/g"]].concat()));
    rustix::process::kill_process(paused, rustix::process::Signal::CONT).expect("continues");
    // Far above what they take, far below what waiting for the member would take.
    let most = Duration::from_secs(25) + 10 * usual;
    assert!(read < most && wrote < most, "read {read:?}, wrote {wrote:?}; with everybody there both took {usual:?}");
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
            // Behind all tables, in the data.
            if path.metadata().expect("about").len() > 1_500_000 {
                flip(&path, 50_000);
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

/// Zeros or old bytes instead of an error when too many members are gone.
#[test]
fn four_of_nine_gone_is_an_error_that_names_them() {
    let mut cluster = Cluster::start(NINE);
    let tree = put_tree(&cluster);
    for victim in ["data1", "data2", "data3", "data4"] {
        cluster.kill(victim);
    }
    let back = cluster.path("back");
    let output = cluster.cairn(&["--timeout", "10", "fs", "get", "/tree/large", utf8(&back)]);
    assert!(!output.status.success());
    let error = text(&output.stderr);
    assert!(error.contains("large") && error.contains("6"), "{error}");
    assert!(!back.exists(), "nothing half-read is left under the name");
    cluster.start_all();
    cluster.wait_healthy();
    check_tree(&cluster, &tree, "again");
}

/// Shards would be given up with what a stale member lacks, although its old ones decode what is old enough.
#[test]
fn after_force_whatever_decodes_is_read_and_the_rest_is_named() {
    let mut cluster = Cluster::start(Shape { managers: 1, metas: 1, datas: 5, racks: 5 });
    cluster.ok(&["fs", "mkdir", "--layout", "rs-3-2", "/d"]);
    // Whole rows: nothing of it is in groups of copies.
    let content = |seed: u64| noise(3 * 65_536 * 40, seed);
    for (round, name) in ["early", "late"].into_iter().enumerate() {
        let local = cluster.path(name);
        fs::write(&local, content(round as u64)).expect("file");
        cluster.ok(&["fs", "put", utf8(&local), &format!("/d/{name}")]);
        if name == "early" {
            cluster.kill("data5");
            eventually(&cluster, "it to leave its groups", || {
                cluster.ok(&["admin", "status"]).contains("catch up when it returns")
            });
        }
    }
    for name in ["data1", "data2"] {
        cluster.kill(name);
        fs::remove_dir_all(cluster.disk(name)).expect("destroyed");
    }
    cluster.restart("data5");
    // A group that lacks nothing may have caught up already, before the loss is known; the others wait for what is
    // lost.
    let early = cluster.cairn(&["--timeout", "3", "fs", "cat", "/d/early"]);
    let whole = content(0);
    assert!(whole.starts_with(&early.stdout), "two complete members of three decode to other bytes");
    assert!(!early.status.success() || early.stdout.len() == whole.len(), "half a file is told as a whole one");
    let mut forced = 0;
    eventually(&cluster, "every group to be given what it needs", || {
        let groups: Vec<_> = waiting(&cluster).into_iter().filter(|(_, disks)| !disks.is_empty()).collect();
        for (pg, disks) in &groups {
            let (pg, lost) = (pg.to_string(), disks.iter().map(|disk| format!("d{disk}")).collect::<Vec<_>>());
            let mut force = vec!["admin", "pg", "force", &pg, "--yes-lose-data"];
            lost.iter().for_each(|disk| force.extend(["--lost", disk]));
            forced += usize::from(cluster.cairn(&force).status.success());
        }
        groups.is_empty() && forced > 0
    });
    let back = cluster.path("back");
    eventually(&cluster, "the early file", || {
        cluster.cairn(&["--timeout", "20", "fs", "get", "/d/early", utf8(&back)]).status.success()
    });
    assert!(fs::read(&back).expect("back") == content(0), "old shards decode to other bytes");
    let whole = content(1);
    // On a busy machine members may be called away first.
    eventually(&cluster, "what is lost to be told as such", || {
        let lost = cluster.cairn(&["--timeout", "10", "fs", "cat", "/d/late"]);
        let error = text(&lost.stderr);
        assert!(!lost.status.success() && lost.stdout.len() < whole.len(), "what is lost is read: {error}");
        assert!(whole.starts_with(&lost.stdout), "what is lost gives bytes");
        lost.status.code() == Some(21) && error.contains("/d/late") && error.contains("shard")
    });
    // What is lost is known: nobody waits for it for ever, and the file can go.
    cluster.ok(&["fs", "rm", "--skip-trash", "/d/late"]);
    assert!(cluster.kills == 3 && forced > 0, "{} faults fired", cluster.kills);
}

/// Where rows lie in a shard file: behind its tables.
fn data_offset(shard: usize) -> usize {
    69_632 + if shard < 6 { 0 } else { 6 * 65_536 }
}

/// How many members of each group with so many members neither serve nor catch up nor are waited for.
fn away(cluster: &Cluster, members: usize) -> Vec<usize> {
    members_in(cluster, members, "offline")
}

/// How many members of each group with so many members are in this state.
fn members_in(cluster: &Cluster, members: usize, state: &str) -> Vec<usize> {
    let pgs = lines(cluster, &["admin", "pg", "ls"]);
    let states = pgs.iter().filter_map(|pg| pg["members"].as_array().filter(|all| all.len() == members));
    let found: Vec<usize> = states.map(|all| all.iter().filter(|member| member["state"] == state).count()).collect();
    assert!(!found.is_empty(), "no such group: {pgs:?}");
    found
}

/// Rows that lost blocks on several members would be lost with the next member, although each row has six good blocks.
#[test]
fn shards_bad_in_different_rows_and_a_member_killed() {
    let mut cluster = Cluster::start(NINE);
    for expected in ["checksum", "damaged", "a bad block", "cannot catch up", "a chunk's file is gone"] {
        cluster.allow_error(expected);
    }
    let content = noise(6 * 65_536 * 60, 17);
    let local = cluster.path("local");
    fs::write(&local, &content).expect("file");
    cluster.ok(&["fs", "mkdir", "--layout", "rs-6-3", "/d"]);
    cluster.ok(&["fs", "put", utf8(&local), "/d/f"]);
    cluster.kill_all();
    let mut flipped = 0;
    // Three members, each bad in rows of its own, and all three in none; one of them in every third row.
    for (turn, name) in ["data2", "data5", "data8"].into_iter().enumerate() {
        for path in chunks(&cluster.disk(name)) {
            let mut bytes = fs::read(&path).expect("chunk");
            let shard = usize::from(bytes.len() > data_offset(8) + 6 * 65_536) * 8;
            let mut at = data_offset(shard) + turn * 65_536 + 5000;
            while at < bytes.len() {
                bytes[at] ^= 0x08;
                at += 3 * 65_536;
                flipped += 1;
            }
            fs::write(&path, bytes).expect("chunk");
        }
    }
    assert!(flipped > 20, "{flipped} blocks");
    cluster.start_all();
    cluster.wait_volume();
    // Two more go: with the bad one each row has as many losses as it can bear. Some members may still be catching up
    // after the start of all: what they have is read all the same.
    cluster.kill("data1");
    cluster.kill("data6");
    let during = cluster.path("during");
    cluster.ok(&["fs", "get", "/d/f", utf8(&during)]);
    assert!(fs::read(&during).expect("back") == content, "other bytes came");
    // They leave their groups, come back without their chunks, and make their shards of what is good in each row. A
    // member that serves does not know at once what was taken from its disk, and nobody could ask it.
    cluster.start_all();
    cluster.wait_healthy();
    cluster.kill("data1");
    cluster.kill("data6");
    eventually(&cluster, "both to leave their groups", || away(&cluster, 9).iter().all(|count| *count == 2));
    for name in ["data1", "data6"] {
        for path in chunks(&cluster.disk(name)) {
            fs::remove_file(path).expect("removed");
        }
    }
    cluster.start_all();
    cluster.wait_healthy();
    for name in ["data2", "data5", "data8"] {
        cluster.kill(name);
    }
    let back = cluster.path("back");
    cluster.ok(&["fs", "get", "/d/f", utf8(&back)]);
    assert!(fs::read(&back).expect("back") == content, "a rebuilt shard is wrong");
}

/// Shards that are whole would be out of reach because their member waits for others that are gone.
#[test]
fn a_member_that_waits_for_others_gives_the_shards_it_has() {
    let mut cluster = Cluster::start(Shape { managers: 1, metas: 1, datas: 5, racks: 5 });
    // Whole rows: nothing of it is in copies.
    let content = noise(3 * 65_536 * 20, 23);
    let local = cluster.path("local");
    fs::write(&local, &content).expect("file");
    cluster.ok(&["fs", "mkdir", "--layout", "rs-3-2/64k", "/d"]);
    cluster.ok(&["fs", "put", utf8(&local), "/d/f"]);
    let waits_for = |cluster: &Cluster, what: &str, offline: usize, waiting: usize| {
        eventually(cluster, what, || {
            let found = members_in(cluster, 5, "offline").into_iter().zip(members_in(cluster, 5, "waiting"));
            found.into_iter().all(|found| found == (offline, waiting))
        });
    };
    // The first one that goes lacks what the group could write without it; with the others the group stands still.
    cluster.kill("data5");
    waits_for(&cluster, "the groups to go on without it", 1, 0);
    cluster.kill("data4");
    waits_for(&cluster, "the groups to wait for one", 1, 1);
    cluster.kill("data3");
    waits_for(&cluster, "the groups to wait for two", 1, 2);
    eventually(&cluster, "two of three shards to be told", || {
        let output = cluster.cairn(&["--timeout", "5", "fs", "cat", "/d/f"]);
        assert!(!output.status.success(), "two shards of three decode to something");
        output.status.code() == Some(21) && text(&output.stderr).contains("2 of 3 shards")
    });
    cluster.restart("data5");
    let mut read = Vec::new();
    eventually(&cluster, "three of five shards to be enough", || {
        read = cluster.cairn(&["--timeout", "20", "fs", "cat", "/d/f"]).stdout;
        read.len() == content.len()
    });
    assert!(read == content, "other bytes came");
    waits_for(&cluster, "it to be still offline", 1, 2);
    cluster.start_all();
    cluster.wait_healthy();
    assert_eq!(cluster.kills, 3, "every fault fired");
}

/// One full disk would end all writing to a volume whose other disks have room, or keep what is deleted.
#[test]
fn one_full_disk_stops_nobody() {
    let mut cluster = Cluster::prepare(Shape { managers: 1, metas: 1, datas: 10, racks: 10 });
    if !cluster.give_small_disk("data9", 440) {
        eprintln!("skipped: this system lets nobody mount a file system in a name space of its own");
        return;
    }
    cluster.allow_error("space");
    // The first groups need every disk, the small one too. With one disk more there can be groups without it.
    let first: Vec<String> = cluster.names().into_iter().filter(|name| name != "data10").collect();
    cluster.start_some(&first);
    cluster.ok(&["admin", "config", "set", "disk_reserve=16m"]);
    cluster.wait_volume();
    cluster.ok(&["fs", "mkdir", "--layout", "rs-6-3", "/d"]);
    let content = |seed: u64| noise(90_000_000, seed);
    let local = cluster.path("local");
    fs::write(&local, content(100)).expect("file");
    cluster.ok(&["fs", "put", utf8(&local), "/d/first"]);
    cluster.start_all();
    let full = |cluster: &Cluster| cluster.ok(&["admin", "status"]).contains("are full up to the reserve");
    // It takes some 100 MB of shards, each file has 15 MB on every disk of its group.
    let (mut stored, mut after) = (Vec::new(), 0);
    for seed in 0..20 {
        after += u32::from(full(&cluster));
        if after > 3 {
            break;
        }
        fs::write(&local, content(seed)).expect("file");
        let target = format!("/d/{seed}");
        let output = cluster.cairn(&["fs", "put", utf8(&local), &target]);
        assert!(output.status.success(), "put {seed}, {after} after the disk was full: {}", text(&output.stderr));
        stored.push((seed, target));
    }
    assert!(after > 0, "no fault fired: the disk never was full: {}", cluster.ok(&["admin", "disk", "ls"]));
    for (seed, target) in &stored {
        let read = cluster.cairn(&["fs", "cat", target]);
        assert!(read.status.success() && read.stdout == content(*seed), "{target}: {}", text(&read.stderr));
    }
    for (_, target) in &stored {
        cluster.ok(&["fs", "rm", "--skip-trash", target]);
    }
    eventually(&cluster, "the space to come back", || !full(&cluster));
    cluster.ok(&["fs", "put", utf8(&local), "/d/again"]);
    cluster.kill_all();
}
