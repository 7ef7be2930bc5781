//! Staged layouts with real processes: files are written as copies and encoded later, while they are written, and while
//! servers are killed.
use crate::support::{Cluster, Shape, lines, text};
use crate::trees::noise;
use crate::wait::{eventually, until};
use serde_json::Value;
use std::fs;

const MIB: usize = 1 << 20;

fn put(cluster: &Cluster, bytes: &[u8], path: &str) {
    let local = cluster.path("local");
    fs::write(&local, bytes).expect("file");
    cluster.ok(&["fs", "put", local.to_str().expect("utf-8"), path]);
}

fn append(cluster: &Cluster, bytes: &[u8], path: &str) {
    let local = cluster.path("more");
    fs::write(&local, bytes).expect("file");
    let input = fs::File::open(&local).expect("opened");
    let done = cluster.command(&["fs", "append", path]).stdin(input).output().expect("run");
    assert!(done.status.success(), "{path}: {}", text(&done.stderr));
}

fn check(cluster: &Cluster, path: &str, bytes: &[u8]) {
    let read = cluster.cairn(&["fs", "cat", path]);
    assert!(read.status.success() && read.stdout == bytes, "{path}: {}", text(&read.stderr));
}

fn stat(cluster: &Cluster, path: &str) -> Value {
    lines(cluster, &["fs", "stat", path]).remove(0)
}

/// The layout is set as soon as all servers have said that they know it.
fn staged_directory(cluster: &Cluster, layout: &str, path: &str) {
    cluster.ok(&["fs", "mkdir", path]);
    until("the layout is taken", || cluster.cairn(&["fs", "layout", "set", layout, path]).status.success());
}

/// What the background has done in the default volume.
fn background(cluster: &Cluster) -> Value {
    let all = lines(cluster, &["fs", "layout", "jobs"]);
    all.into_iter().find(|line| line["background"] == "encode").unwrap_or_default()
}

/// Bytes would be lost, come back as of before, or stay copies for ever, when files are written while they are encoded
/// and servers die in the middle of it.
#[test]
fn files_are_encoded_while_they_are_written_and_servers_die() {
    let mut cluster = Cluster::start(Shape { managers: 3, metas: 3, datas: 6, racks: 6 });
    staged_directory(&cluster, "r3>rs-3-2@2s", "/warm");
    let mut files: Vec<(String, Vec<u8>)> =
        (0..8u64).map(|i| (format!("/warm/f{i}"), noise(2 * MIB + 300_000 * i as usize + 7, i))).collect();
    for (path, bytes) in &files {
        put(&cluster, bytes, path);
    }
    let small = noise(20_000, 99);
    put(&cluster, &small, "/warm/small");
    for round in 0..3usize {
        match round {
            0 => until("something is encoded", || background(&cluster)["encoded_bytes"].as_u64() > Some(0)),
            // Whoever encodes just now is among them.
            1 => {
                let node = (1..=6).map(|i| format!("data{i}")).nth(files.len() % 6).expect("a name");
                cluster.kill(&node);
            }
            _ => {
                let managers = lines(&cluster, &["admin", "manager", "ls"]);
                let leader = managers.iter().find(|row| row["leads"] == true).expect("a leader")["id"].clone();
                cluster.kill(&format!("manager{leader}"));
            }
        }
        for (i, (path, bytes)) in files.iter_mut().enumerate().skip(round).step_by(3) {
            if i % 2 == 0 {
                let more = noise(150_000, 1000 + (10 * round + i) as u64);
                append(&cluster, &more, path);
                bytes.extend_from_slice(&more);
            } else {
                *bytes = noise(bytes.len() + MIB, 2000 + (10 * round + i) as u64);
                put(&cluster, bytes, path);
            }
            check(&cluster, path, bytes);
        }
        cluster.start_all();
    }
    let is = |path: &str, stage: &str| stat(&cluster, path)["stage"] == stage;
    for (path, bytes) in &files {
        eventually(&cluster, &format!("{path} to be encoded"), || is(path, "encoded"));
        check(&cluster, path, bytes);
        let found = stat(&cluster, path);
        let (raw, layout) = (found["raw_bytes"].as_u64().expect("a number"), &found["layout"]);
        // 5/3, the end as copies, and less than a tenth that is not worth writing anew. Copies alone take 3.
        assert!(raw as f64 <= 1.9 * bytes.len() as f64, "{path}: {} bytes take {raw}", bytes.len());
        assert_eq!((layout, &found["losses_survived"]), (&"r3>rs-3-2@2s".into(), &2.into()), "{path}");
    }
    eventually(&cluster, "the small one to be looked at", || is("/warm/small", "kept"));
    check(&cluster, "/warm/small", &small);
    assert_eq!(cluster.kills, 2, "every fault fired");
    cluster.wait_healthy();
    cluster.ok(&["admin", "fsck"]);
}

/// What a person asks for would not be done or told, or a layout be taken that this cluster cannot keep; snapshots,
/// clones, quotas and the trash would not know what to do with encoded files.
#[test]
fn encoding_now_and_what_is_told() {
    let cluster = Cluster::start(Shape { managers: 1, metas: 1, datas: 5, racks: 5 });
    staged_directory(&cluster, "r3>rs-3-2", "/warm");
    let refused = cluster.fails(&["fs", "layout", "set", "r3>rs-6-3", "/warm"], 6);
    assert!(refused.contains("rs-6-3 needs 9 disks"), "{refused}");
    let refused = cluster.fails(&["fs", "layout", "encode", "/"], 17);
    assert!(refused.contains("cairn fs layout convert 'r3>rs-6-3'"), "{refused}");
    let bytes = noise(5 * MIB, 1);
    cluster.ok(&["fs", "quota", "set", "/warm", "--bytes", "12m"]);
    put(&cluster, &bytes, "/warm/f");
    let before = stat(&cluster, "/warm/f");
    assert_eq!((&before["stage"], before["raw_bytes"].as_u64()), (&"copies".into(), Some(3 * bytes.len() as u64)));
    assert!(cluster.ok(&["fs", "stat", "/warm/f"]).contains("stage     copies, to be encoded as rs-3-2 from"));
    assert!(cluster.ok(&["fs", "du", "-s", "/warm"]).contains("to be encoded"));
    cluster.ok(&["fs", "snapshot", "create", "before"]);
    cluster.ok(&["fs", "cp", "/warm/f", "/warm/clone"]);
    let told = cluster.ok(&["fs", "layout", "encode", "/warm"]);
    assert!(told.contains("0 encoded") && told.contains("stay copies"), "a clone shares all of it: {told}");
    cluster.ok(&["fs", "rm", "--skip-trash", "/warm/clone"]);
    put(&cluster, &bytes, "/warm/g");
    let refused = cluster.cairn(&["fs", "cp", "/warm/g", "/warm/too-much"]);
    assert!(!refused.status.success(), "the quota counts what files contain");
    let told = cluster.ok(&["fs", "layout", "encode", "/warm/g"]);
    assert!(told.contains("1 encoded") && told.contains("came back"), "{told}");
    assert_eq!(stat(&cluster, "/warm/g")["stage"], "encoded");
    assert!(cluster.ok(&["fs", "ls", "-l", "/warm"]).contains("r3>rs-3-2:encoded"));
    assert_eq!(cluster.ok(&["fs", "layout", "get", "/warm/g"]).trim(), "r3>rs-3-2:encoded");
    let jobs = lines(&cluster, &["fs", "layout", "jobs"]);
    assert!(jobs.iter().any(|job| job["kind"] == "encode" && job["bytes_freed"].as_u64() > Some(0)), "{jobs:?}");
    let read = cluster.ok(&["fs", "cp", "/.snapshots/before/warm/f", "/restored"]);
    assert!(read.is_empty() || !read.contains("error"), "{read}");
    check(&cluster, "/restored", &bytes);
    cluster.ok(&["fs", "rm", "/warm/g"]);
    check(&cluster, "/warm/f", &bytes);
    cluster.ok(&["admin", "fsck"]);
}
