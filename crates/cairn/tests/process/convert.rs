//! Conversion to another layout by the servers: same bytes before, between and after, and never over a newer write.
use crate::support::{Cluster, Shape, lines, text};
use crate::trees::{assert_same_tree, make_tree, noise};
use crate::wait::until_told;
use std::fs;

const SHAPE: Shape = Shape { managers: 1, metas: 1, datas: 5, racks: 5 };

fn utf8(path: &std::path::Path) -> &str {
    path.to_str().expect("utf-8")
}

fn job_state(cluster: &Cluster, job: &str) -> serde_json::Value {
    serde_json::from_str(&cluster.ok(&["--json", "fs", "layout", "jobs", job])).expect("one JSON value")
}

fn has_ended(job: &serde_json::Value) -> bool {
    !matches!(job["state"].as_str(), Some("queued" | "running"))
}

/// Begins to convert a tree; the number of the job.
fn begin(cluster: &Cluster, layout: &str, tree: &str) -> String {
    let said = cluster.ok(&["fs", "layout", "convert", "--background", layout, tree]);
    said.trim().strip_prefix("job ").expect("a number").to_owned()
}

fn wait_ended(cluster: &Cluster, job: &str) -> serde_json::Value {
    let value = || job_state(cluster, job);
    until_told("the end of the job", || has_ended(&value()), || value().to_string());
    value()
}

/// Files would change their contents, or stay half converted without a word.
#[test]
fn a_tree_goes_from_copies_to_erasure_and_back() {
    let cluster = Cluster::start(SHAPE);
    let tree = cluster.path("tree");
    make_tree(&tree, 60, 5);
    fs::write(tree.join("large"), noise(9_000_000, 77)).expect("large");
    cluster.ok(&["fs", "put", utf8(&tree), "/tree"]);
    cluster.ok(&["fs", "ln", "/tree/large", "/tree/other-name"]);
    for (round, layout) in ["rs-3-2/64k", "r2", "rs-3-2/4k"].iter().enumerate() {
        cluster.ok(&["fs", "layout", "convert", layout, "/tree"]);
        let got = cluster.ok(&["fs", "layout", "get", "/tree", "/tree/large", "/tree/d0/e0/file-0"]);
        assert!(got.lines().count() == 3 && got.lines().all(|line| line.starts_with(layout)), "{got}");
        let back = cluster.path(&format!("back{round}"));
        cluster.ok(&["fs", "get", "/tree", utf8(&back)]);
        fs::remove_file(back.join("other-name")).expect("the second name was fetched too");
        assert_same_tree(&tree, &back);
        let again = cluster.ok(&["--json", "fs", "layout", "convert", layout, "/tree"]);
        let again: serde_json::Value = serde_json::from_str(&again).expect("JSON");
        assert_eq!(again["files_done"], 0, "nothing is done twice: {again}");
    }
}

/// A conversion that wins against a newer write loses it.
#[test]
fn a_newer_write_is_never_covered() {
    let cluster = Cluster::start(SHAPE);
    let (local, back) = (cluster.path("local"), cluster.path("back"));
    cluster.ok(&["fs", "mkdir", "/d"]);
    for name in 0..6 {
        fs::write(&local, noise(3_000_000, name)).expect("local");
        cluster.ok(&["fs", "put", utf8(&local), &format!("/d/f{name}")]);
    }
    // Written anew, over and over, until a job has run over them; a job may be done before the next write.
    let (mut round, mut during) = (0, 0);
    for layout in ["rs-3-2", "r2"].into_iter().cycle().take(20) {
        let job = begin(&cluster, layout, "/d");
        loop {
            round += 100;
            for name in 0..6u64 {
                fs::write(&local, noise(2_500_000, round + name)).expect("local");
                cluster.ok(&["fs", "put", utf8(&local), &format!("/d/f{name}")]);
                during += usize::from(job_state(&cluster, &job)["state"] == "running");
            }
            if has_ended(&job_state(&cluster, &job)) {
                break;
            }
        }
        let ended = wait_ended(&cluster, &job);
        assert_eq!(ended["state"], "done", "{ended}");
        if during > 0 {
            break;
        }
    }
    assert!(during > 0, "no file was written while a job ran");
    for name in 0..6u64 {
        cluster.ok(&["fs", "get", &format!("/d/f{name}"), utf8(&back)]);
        assert!(fs::read(&back).expect("back") == noise(2_500_000, round + name), "f{name} is not the newest");
    }
}

/// A job would hang for ever, or run twice, when the server that has it dies.
#[test]
fn a_job_outlives_its_server() {
    let mut cluster = Cluster::start(SHAPE);
    let tree = cluster.path("tree");
    make_tree(&tree, 600, 6);
    cluster.ok(&["fs", "put", utf8(&tree), "/tree"]);
    let nodes = lines(&cluster, &["admin", "node", "ls"]);
    let host =
        |node: &serde_json::Value| nodes.iter().find(|n| n["id"] == *node).expect("the node is listed")["host"].clone();
    // A job may end before its server dies.
    let mut orphaned = 0;
    for layout in ["r2", "rs-3-2"].into_iter().cycle().take(20) {
        let job = begin(&cluster, layout, "/tree");
        let mut value = serde_json::Value::Null;
        until_told(
            "a server that has the job",
            || {
                value = job_state(&cluster, &job);
                value["state"] != "queued"
            },
            || "it is queued".to_owned(),
        );
        if value["state"] == "running" {
            cluster.kill(host(&value["node"]).as_str().expect("its host is the name of the process"));
            orphaned += usize::from(!has_ended(&job_state(&cluster, &job)));
            cluster.start_all();
        }
        let ended = wait_ended(&cluster, &job);
        assert_eq!(ended["state"], "done", "{ended}");
        if orphaned > 0 {
            break;
        }
    }
    assert!(orphaned > 0 && cluster.kills > 0, "every job ended before its server died");
    let back = cluster.path("back");
    cluster.ok(&["fs", "get", "/tree", utf8(&back)]);
    assert_same_tree(&tree, &back);
}

/// Bad input: each a clear message, and nothing begun.
#[test]
fn what_cannot_be_converted_says_why() {
    let cluster = Cluster::start(Shape { managers: 1, metas: 1, datas: 3, racks: 3 });
    let error = cluster.fails(&["fs", "layout", "convert", "rs-6-3", "/"], 6);
    assert!(error.contains("needs 9") && error.contains('3'), "{error}");
    assert!(cluster.fails(&["fs", "layout", "convert", "rs-6-3", "/none"], 3).contains("/none"));
    assert!(cluster.fails(&["fs", "layout", "convert", "rs-7-7", "/"], 17).contains("rs-7-7"));
    assert!(cluster.fails(&["fs", "layout", "cancel", "99"], 3).contains("99"));
    assert_eq!(text(&cluster.cairn(&["--json", "fs", "layout", "jobs"]).stdout), "");
}
