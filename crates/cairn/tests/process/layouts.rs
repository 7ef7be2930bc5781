//! Layouts with real processes: stripe sets from end to end, what is said of files with damage, conversions that are
//! cancelled.
use crate::disks::{self, flip, scrubbed_until_whole};
use crate::mount::{Mount, skipped};
use crate::support::{Cluster, Shape, lines, text};
use crate::trees::noise;
use crate::wait::eventually;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

const FIVE: Shape = Shape { managers: 1, metas: 1, datas: 5, racks: 5 };
const MIB: usize = 1 << 20;

fn utf8(path: &Path) -> &str {
    path.to_str().expect("utf-8")
}

fn put(cluster: &Cluster, layout: &str, bytes: &[u8], path: &str) {
    let local = cluster.path("local");
    fs::write(&local, bytes).expect("file");
    cluster.ok(&["fs", "put", "--layout", layout, utf8(&local), path]);
}

fn check(cluster: &Cluster, path: &str, bytes: &[u8], what: &str) {
    let read = cluster.cairn(&["fs", "cat", path]);
    assert!(read.status.success() && read.stdout == bytes, "{what}: {path}: {}", text(&read.stderr));
}

fn stat(cluster: &Cluster, path: &str) -> Value {
    lines(cluster, &["fs", "stat", path]).remove(0)
}

/// Waits until a file survives so many losses: members that have just started may have to catch up first.
fn survives(cluster: &Cluster, path: &str, losses: u64) {
    eventually(cluster, &format!("{path} to survive {losses}"), || stat(cluster, path)["losses_survived"] == losses);
}

/// Chunk files of a data process that are larger than their tables.
fn chunks(cluster: &Cluster, name: &str) -> Vec<PathBuf> {
    let mut found = disks::chunks(&cluster.disk(name));
    found.retain(|path| path.metadata().is_ok_and(|m| m.len() > 500_000));
    found
}

/// A file over many chunks would be lost with one node, or keep its damage, or change when it gets another layout.
#[test]
fn stripe_sets_bear_a_loss_and_damage_and_are_converted() {
    let mut cluster = Cluster::start(FIVE);
    cluster.allow_error("checksum");
    let content = noise(9 * MIB + 12_345, 3);
    put(&cluster, "r2x3/64k", &content, "/set");
    put(&cluster, "r2x3/64k", &content[..40_000], "/short");
    assert_eq!(cluster.ok(&["fs", "layout", "get", "/set"]).trim(), "r2x3/64k");
    assert_eq!(stat(&cluster, "/set")["chunks"], 3);
    let victims: Vec<String> =
        (1..=5).map(|i| format!("data{i}")).filter(|name| !chunks(&cluster, name).is_empty()).collect();
    assert!(victims.len() >= 2, "three columns of two copies are on {victims:?}");
    for victim in &victims[..2] {
        cluster.kill(victim);
        check(&cluster, "/set", &content, victim);
        check(&cluster, "/short", &content[..40_000], victim);
        put(&cluster, "r2x3/64k", &content[..3 * MIB], &format!("/without-{victim}"));
        check(&cluster, &format!("/without-{victim}"), &content[..3 * MIB], victim);
        cluster.start_all();
        cluster.wait_healthy();
    }
    // Everything is written home, then a block of each chunk of one node gets bad.
    cluster.kill(&victims[0]);
    let damaged = chunks(&cluster, &victims[0]);
    damaged.iter().for_each(|path| flip(path, 300_000));
    assert!(!damaged.is_empty(), "no fault fired");
    cluster.start_all();
    cluster.wait_healthy();
    check(&cluster, "/set", &content, "damaged");
    assert!(scrubbed_until_whole(&cluster) <= damaged.len() as u64, "reading healed some, the scrub the rest");
    check(&cluster, "/set", &content, "healed");
    for layout in ["rs-3-2/64k", "r2x5/4k", "r3", "r2x3/64k"] {
        cluster.ok(&["fs", "layout", "convert", layout, "/set"]);
        assert_eq!(cluster.ok(&["fs", "layout", "get", "/set"]).trim(), layout);
        check(&cluster, "/set", &content, layout);
    }
    assert_eq!(cluster.kills, 3, "every fault fired");
}

/// Random writes into a file over many chunks, short and long, aligned and not, would be lost or torn.
#[test]
fn stripe_sets_on_a_mount_take_random_writes() {
    if skipped() {
        return;
    }
    let cluster = Cluster::start(FIVE);
    cluster.ok(&["fs", "mkdir", "--layout", "r2x3/64k", "/d"]);
    let mount = Mount::new(&cluster, "mnt", "/d", "");
    let path = mount.path("f");
    let file = fs::File::options().read(true).write(true).create_new(true).open(&path).expect("created");
    let (mut model, mut x) = (Vec::new(), 20_261_121u64);
    let mut random = |below: u64| {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (x >> 33) % below
    };
    for round in 0..40u64 {
        let long = if round % 5 == 0 { 2_500_000 } else { 90_000 };
        let length = 1 + random(long) as usize;
        let at = random(model.len() as u64 + 100_000) as usize;
        let at = if round % 3 == 0 { at / 4096 * 4096 } else { at };
        let bytes = noise(length, round + 7);
        file.write_all_at(&bytes, at as u64).expect("written");
        model.resize(model.len().max(at + length), 0);
        model[at..at + length].copy_from_slice(&bytes);
        if round % 4 == 0 {
            file.sync_all().expect("synced");
        }
        if round % 13 == 12 {
            let cut = model.len() - random(model.len() as u64 / 4) as usize;
            file.set_len(cut as u64).expect("cut");
            model.truncate(cut);
        }
    }
    file.sync_all().expect("synced");
    check(&cluster, "/d/f", &model, "by another client");
    drop(file);
    assert!(fs::read(&path).expect("read") == model, "through the mount");
    cluster.ok(&["fs", "layout", "convert", "rs-3-2/64k", "/d/f"]);
    check(&cluster, "/d/f", &model, "converted");
}

/// A file that cannot be read would be shown as whole, and the cluster as healthy; or for ever as damaged.
#[test]
fn blocks_that_cannot_be_healed_are_told_until_they_are_gone() {
    let mut cluster = Cluster::start(FIVE);
    for expected in ["checksum", "cannot be healed", "a bad block", "damaged"] {
        cluster.allow_error(expected);
    }
    let content = noise(3 * 65_536 * 20, 5);
    put(&cluster, "rs-3-2/64k", &content, "/f");
    survives(&cluster, "/f", 2);
    cluster.kill_all();
    let mut flipped = 0;
    // The last row of three of five shards.
    for name in ["data1", "data2", "data3"] {
        for path in chunks(&cluster, name) {
            flip(&path, 30_000);
            flipped += 1;
        }
    }
    assert!(flipped >= 3, "{flipped} faults fired");
    cluster.start_all();
    cluster.wait_volume();
    cluster.wait_healthy();
    put(&cluster, "r3", &content[..MIB], "/other");
    let error = cluster.fails(&["--timeout", "3600", "fs", "cat", "/f"], 9);
    assert!(error.contains("/f") && error.contains("host data") && error.contains("disk ls"), "{error}");
    let told = |cluster: &Cluster| cluster.ok(&["admin", "status"]).contains("bad and cannot be healed now");
    for round in ["at first", "after a restart"] {
        eventually(&cluster, "all three blocks to be known", || {
            told(&cluster) && stat(&cluster, "/f")["bad_blocks"].as_u64() >= Some(3)
        });
        let said = cluster.ok(&["admin", "status"]);
        assert!(said.contains("/data") && said.contains(" of pg") && said.contains("du -r"), "{round}: {said}");
        let now = stat(&cluster, "/f");
        assert_eq!((&now["losses_survived"], &now["readable"]), (&Value::Null, &Value::Bool(false)), "{round}: {now}");
        assert!(now["shards_missing"].as_u64() >= Some(3), "{round}: {now}");
        assert!(cluster.ok(&["fs", "stat", "/f"]).contains("bad blocks that wait to be healed"));
        let sum = lines(&cluster, &["fs", "du", "-s", "-r", "/"]).remove(0);
        assert_eq!(sum["unreadable_files"], 1, "{round}: {sum}");
        // After the restart its members may still catch up.
        survives(&cluster, "/other", 2);
        if round == "at first" {
            // The lists are written now and then; after the restart nobody reads the file.
            let kept = |name: &str| cluster.disk(name).join("bad-blocks").exists();
            eventually(&cluster, "the lists to be kept", || ["data1", "data2", "data3"].iter().all(|name| kept(name)));
            cluster.kill_all();
            cluster.start_all();
            cluster.wait_volume();
        }
    }
    cluster.ok(&["fs", "rm", "--skip-trash", "/f"]);
    eventually(&cluster, "the bad blocks to be forgotten", || !told(&cluster));
    cluster.wait_healthy();
}

/// In the first seconds after a loss a file would be said to survive what it does not.
#[test]
fn a_loss_is_seen_before_the_cluster_knows_of_it() {
    let mut cluster = Cluster::start(FIVE);
    put(&cluster, "rs-3-2/64k", &noise(3 * 65_536 * 4, 6), "/f");
    survives(&cluster, "/f", 2);
    for (left, victim) in [(1, "data2"), (0, "data5")] {
        cluster.kill(victim);
        // Never more from now on; less as long as a living member is too slow to answer.
        let now = stat(&cluster, "/f");
        assert!(now["losses_survived"].as_u64() <= Some(left), "{now}");
        survives(&cluster, "/f", left);
        assert!(cluster.ok(&["fs", "du", "-s", "-r", "/f"]).contains("survives"), "{now}");
    }
    assert_eq!(cluster.kills, 2, "every fault fired");
}

fn job(cluster: &Cluster, id: &str) -> Value {
    lines(cluster, &["fs", "layout", "jobs", id]).remove(0)
}

/// A job would be called cancelled while it goes on, and what it did be forgotten.
#[test]
fn a_cancelled_conversion_has_stopped_and_counts_what_it_did() {
    let cluster = Cluster::start(FIVE);
    let tree = cluster.path("tree");
    fs::create_dir(&tree).expect("directory");
    for i in 0..60 {
        fs::write(tree.join(format!("f{i}")), noise(2_000_000, i)).expect("file");
    }
    cluster.ok(&["fs", "put", "-r", utf8(&tree), "/tree"]);
    let with = |layout: &str| {
        let all = cluster.ok(&["fs", "layout", "get", "/tree/*"]);
        all.lines().filter(|line| line.starts_with(&format!("{layout} "))).count() as u64
    };
    let mut cancelled = 0;
    // Whoever cancels may come too late.
    for layout in ["rs-3-2/64k", "r2", "rs-3-2/4k", "r4"] {
        let started = cluster.ok(&["fs", "layout", "convert", "--background", layout, "/tree"]);
        let id = started.trim().strip_prefix("job ").expect("a number").to_owned();
        eventually(&cluster, "the job to be given to a server", || job(&cluster, &id)["state"] != "queued");
        let output = cluster.cairn(&["fs", "layout", "cancel", &id]);
        let (said, ended) = (text(&output.stdout) + &text(&output.stderr), job(&cluster, &id));
        assert!(!matches!(ended["state"].as_str(), Some("running" | "cancelling")), "{ended}");
        assert_eq!(ended["files_done"], with(layout), "{said}: {ended}");
        if ended["state"] == "cancelled" {
            assert!(output.status.success() && said.contains("cancelled: "), "{said}");
            cancelled += 1;
        }
        let again = cluster.fails(&["fs", "layout", "cancel", &id], 12);
        assert!(again.contains("nothing to cancel"), "{again}");
        std::thread::sleep(std::time::Duration::from_secs(1));
        assert_eq!(ended["files_done"], with(layout), "it goes on after its end");
    }
    assert!(cancelled > 0, "every job had ended before it could be cancelled");
    let done = cluster.ok(&["--json", "fs", "layout", "convert", "r1", "/tree"]);
    let done: Value = serde_json::from_str(&done).expect("JSON");
    let numbers = ["files_done", "files_total", "bytes_done", "bytes_total", "bytes_under_way"];
    let numbers: Vec<u64> = numbers.iter().map(|key| done[key].as_u64().expect("a number")).collect();
    assert_eq!(numbers, [60, 60, 120_000_000, 120_000_000, 0], "directories are no files: {done}");
    assert_eq!(done["total_known"], true);
}

/// Whoever interrupts a conversion that waits would not know that it goes on, nor how to end it.
#[test]
fn an_interrupted_convert_names_its_job() {
    let cluster = Cluster::start(Shape { managers: 1, metas: 1, datas: 3, racks: 3 });
    put(&cluster, "r3", &noise(3 * MIB, 8), "/f");
    let mut command = cluster.command(&["fs", "layout", "convert", "r2", "/f"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started");
    // Servers ask for work every few seconds.
    eventually(&cluster, "the job", || !lines(&cluster, &["fs", "layout", "jobs"]).is_empty());
    let pid = rustix::process::Pid::from_raw(child.id() as i32).expect("a process");
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("a signal");
    let output = child.wait_with_output().expect("ended");
    let said = text(&output.stderr);
    if output.status.code() == Some(130) {
        assert!(said.contains("job 1 goes on") && said.contains("layout cancel 1"), "{said}");
    } else {
        assert!(output.status.success(), "it was done before the signal came: {said}");
    }
    eventually(&cluster, "the job to be done without it", || job(&cluster, "1")["state"] == "done");
}
