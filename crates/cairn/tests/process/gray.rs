//! Gray disks: those that are slow or lose blocks are marked, get nothing new and are emptied, until somebody says that
//! they are good.
use crate::disks::{chunks, flip, scrubbed_until_whole};
use crate::drain::{groups_of, node_of};
use crate::namespaces::SlowDisk;
use crate::support::{Cluster, Shape, lines, text};
use crate::trees::noise;
use crate::wait::{eventually, until_told};
use std::collections::BTreeSet;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// In racks of their own, so that a group of three has two other places for each member.
const SHAPE: Shape = Shape { managers: 1, metas: 1, datas: 5, racks: 5 };

/// Why disks are gray, by the number of their nodes.
fn grays(cluster: &Cluster) -> Vec<(u64, String)> {
    let disks = lines(cluster, &["admin", "disk", "ls"]);
    let gray = |disk: &serde_json::Value| {
        let why = disk["gray"].as_str().filter(|why| !why.is_empty())?;
        Some((disk["node"].as_u64()?, why.to_owned()))
    };
    disks.iter().filter_map(gray).collect()
}

fn disk_of(cluster: &Cluster, node: u64) -> String {
    let disks = lines(cluster, &["admin", "disk", "ls"]);
    let id = disks.iter().find(|disk| disk["node"] == node).and_then(|disk| disk["id"].as_u64());
    format!("d{}", id.expect("a disk"))
}

/// New groups are those of a new volume.
fn new_groups_on(cluster: &Cluster, volume: &str, node: u64) -> BTreeSet<u64> {
    cluster.ok(&["admin", "volume", "create", volume]);
    let of_volume = |cluster: &Cluster| {
        let groups = lines(cluster, &["admin", "pg", "ls", "--volume", volume]);
        groups.iter().filter_map(|pg| pg["pg"].as_u64()).collect::<BTreeSet<_>>()
    };
    eventually(cluster, "groups of the new volume", || !of_volume(cluster).is_empty());
    groups_of(cluster, node).intersection(&of_volume(cluster)).copied().collect()
}

/// Everything that has to happen to the disk of a node once it is gray, for that reason.
fn is_avoided_and_emptied(cluster: &Cluster, node: u64, reason: &str) {
    let marked = grays(cluster);
    assert!(marked.len() == 1 && marked[0].0 == node && marked[0].1.contains(reason), "{marked:?}");
    let disk = disk_of(cluster, node);
    let (status, events) = (cluster.ok(&["admin", "status"]), cluster.ok(&["admin", "events"]));
    assert!(status.contains("is gray") && status.contains(reason), "{status}");
    assert!(events.contains("disk-gray") && events.contains(reason), "{events}");
    assert_eq!(new_groups_on(cluster, "while-gray", node), BTreeSet::new());
    eventually(cluster, "its groups to leave it", || groups_of(cluster, node).is_empty());
    assert_eq!(grays(cluster).len(), 1, "what is empty is not good");
    cluster.ok(&["admin", "disk", "clear", &disk]);
    assert_eq!(grays(cluster), []);
    assert!(cluster.ok(&["admin", "events"]).contains("disk-good"));
    let got = new_groups_on(cluster, "after", node);
    assert!(!got.is_empty(), "{disk} is good and empty, and gets nothing");
}

/// A disk that works, but far slower than others, would hold up everybody who writes to it for as long as nobody looks.
#[test]
fn a_slow_disk_is_marked_avoided_and_emptied() {
    let mut cluster = Cluster::prepare(SHAPE);
    let skipped =
        "skipped: it needs root, loop devices, mkfs.ext4 and limits of block devices (control groups, version 1)";
    let Some(slow) = SlowDisk::new(&cluster.disk("data1"), 2048) else { return eprintln!("{skipped}") };
    cluster.give_space("data1", slow.enter());
    // The others are memory: however busy this machine is, they are faster.
    for n in 2..=SHAPE.datas {
        if !cluster.give_small_disk(&format!("data{n}"), 1024) {
            return eprintln!("skipped: this system lets nobody mount a file system in a name space of its own");
        }
    }
    cluster.start_all();
    cluster.wait_volume();
    // It is to be seen as slow, before reports of writers take it out of its groups as one that does not answer.
    cluster.ok(&["admin", "config", "set", "disk_reserve=16m", "gray_after=3s", "slow_reports=1000"]);
    cluster.ok(&["fs", "mkdir", "--layout", "r3", "/d"]);
    let node = node_of(&cluster, "data1");
    slow.slow_down(cluster.pid("data1"), 6);
    let (ends, written) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let (cluster, ends, written) = (&cluster, &ends, &written);
        let write = |writer: u64| {
            move || {
                let local = cluster.path(&format!("local-{writer}"));
                fs::write(&local, noise(300_000, writer)).expect("local");
                for file in 0.. {
                    let name = format!("/d/{writer}-{file}");
                    let output = cluster.cairn(&["fs", "put", local.to_str().expect("utf-8"), &name]);
                    assert!(output.status.success(), "{name}: {}", text(&output.stderr));
                    written.fetch_add(1, Ordering::Relaxed);
                    if ends.load(Ordering::Relaxed) {
                        return;
                    }
                }
            }
        };
        let writers: Vec<_> = (0..4).map(|writer| scope.spawn(write(writer))).collect();
        let marked = || !grays(cluster).is_empty() || writers.iter().any(|writer| writer.is_finished());
        let told = || cluster.ok(&["admin", "disk", "ls"]);
        let waited = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            until_told("the slow disk to be marked", marked, told)
        }));
        ends.store(true, Ordering::Relaxed);
        waited.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    println!("gray: {} files were written, {:?}", written.load(Ordering::Relaxed), grays(&cluster));
    // As soon as it is good, that is: else it would be marked again.
    slow.slow_down(cluster.pid("data1"), 0);
    is_avoided_and_emptied(&cluster, node, "its writes took");
    for writer in 0..4 {
        let output = cluster.cairn(&["fs", "cat", &format!("/d/{writer}-0")]);
        assert!(output.status.success() && output.stdout == noise(300_000, writer), "/d/{writer}-0");
    }
    cluster.kill_all();
}

/// A disk that loses one block after the other would be trusted with new data until it loses everything.
#[test]
fn a_disk_that_loses_blocks_is_marked_avoided_and_emptied() {
    const BAD: u64 = 20;
    let cluster = Cluster::start(SHAPE);
    let local = cluster.path("local");
    fs::write(&local, noise(3_000_000, 1)).expect("local");
    cluster.ok(&["fs", "mkdir", "--layout", "r3", "/d"]);
    cluster.ok(&["fs", "put", local.to_str().expect("utf-8"), "/d/f"]);
    let holds =
        |name: &String| chunks(&cluster.disk(name)).iter().any(|p| fs::metadata(p).is_ok_and(|m| m.len() > 3_000_000));
    let victim = cluster.names().into_iter().filter(|name| name.starts_with("data")).find(holds).expect("a copy");
    let node = node_of(&cluster, &victim);
    let all = chunks(&cluster.disk(&victim));
    let chunk = all.iter().max_by_key(|path| fs::metadata(path).map_or(0, |about| about.len())).expect("a chunk");
    // What is found before the leader has looked at the disk for the first time does not count: it goes on losing
    // blocks.
    eventually(&cluster, "the bad disk to be marked", || {
        if grays(&cluster).is_empty() {
            (1..=BAD).for_each(|block| flip(chunk, 1_000_000 + block * 4096));
            let bad = scrubbed_until_whole(&cluster);
            assert!(bad >= BAD, "{bad} bad");
        }
        !grays(&cluster).is_empty()
    });
    is_avoided_and_emptied(&cluster, node, "of its blocks were found bad within an hour");
    let output = cluster.cairn(&["fs", "cat", "/d/f"]);
    assert!(output.status.success() && output.stdout == noise(3_000_000, 1), "{}", text(&output.stderr));
}
