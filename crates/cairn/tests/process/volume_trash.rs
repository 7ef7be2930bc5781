//! Volumes are deleted after a question, and can be restored for a time.
use crate::support::{Cluster, Shape, binary, lines, text};
use crate::wait::{eventually, until_told};
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

fn volume(cluster: &Cluster, name: &str) -> Option<Value> {
    lines(cluster, &["admin", "volume", "ls"]).into_iter().find(|volume| volume["name"] == name)
}

fn has(cluster: &Cluster, kind: &str) -> bool {
    lines(cluster, &["admin", "events", "--kind", kind])
        .iter()
        .any(|event| event["text"].as_str().is_some_and(|t| t.contains("v2")))
}

/// A command on a terminal, and what is typed there.
fn on_a_terminal(cluster: &Cluster, command: &str, typed: &str) -> (bool, String) {
    let mut child = Command::new("script")
        .args(["-qec", &format!("{} {command}", binary()), "/dev/null"])
        .env("CAIRN_CLUSTER", &cluster.address)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("script runs");
    child.stdin.take().expect("a pipe").write_all(typed.as_bytes()).expect("typed");
    let output = child.wait_with_output().expect("it ends");
    (output.status.success(), text(&output.stdout))
}

/// A slip of the pen, or of a script, would be the end of a volume, at once and for good.
#[test]
fn a_deleted_volume_can_be_restored_for_a_time() {
    let mut cluster = Cluster::start(Shape { managers: 1, metas: 1, datas: 2, racks: 2 });
    let local = cluster.path("file");
    fs::write(&local, vec![7; 3 << 20]).expect("a file");
    let put = |cluster: &Cluster| {
        cluster.ok(&["admin", "volume", "create", "v2", "--layout", "r2"]);
        cluster.ok(&["fs", "put", local.to_str().expect("utf-8"), "v2:/file"]);
    };
    put(&cluster);
    // The partition says every few seconds how many files it holds.
    let refusal = cluster.fails(&["admin", "volume", "delete", "v2"], 19);
    assert!(refusal.contains("holds 1 files") && refusal.contains("--yes"), "{refusal}");
    let (done, said) = on_a_terminal(&cluster, "admin volume delete v2", "v3\n");
    assert!(!done && said.contains("Type the name") && said.contains("nothing was done"), "{said}");
    let (done, said) = on_a_terminal(&cluster, "admin volume delete v2", "v2\n");
    assert!(done && said.contains("volume restore v2"), "{said}");

    let trashed = volume(&cluster, "v2").expect("it is listed");
    let time = |key: &str| trashed[key].as_u64().expect("a number");
    assert_eq!(time("trashed_until_ns") - time("trashed_ns"), 72 * 3600 * 1_000_000_000);
    assert!(cluster.ok(&["admin", "volume", "ls"]).contains("until "));
    assert!(cluster.ok(&["fs", "df"]).contains("v2 (in the trash)"), "it takes its space");
    let told = cluster.fails(&["fs", "cat", "v2:/file"], 3);
    assert!(told.contains("in the trash") && told.contains("volume restore v2"), "{told}");
    let told = cluster.fails(&["admin", "volume", "create", "v2", "--layout", "r2"], 4);
    assert!(told.contains("in the trash"), "{told}");
    let told = cluster.fails(&["admin", "volume", "delete", "v2", "--yes"], 12);
    assert!(told.contains("volume purge v2"), "{told}");
    cluster.kill_all();
    cluster.start_all();
    cluster.wait_volume();
    assert_ne!(volume(&cluster, "v2").expect("it is kept")["trashed_ns"], 0);
    cluster.ok(&["admin", "volume", "restore", "v2"]);
    let cat = || cluster.cairn(&["fs", "cat", "v2:/file"]);
    until_told("the file", || cat().stdout == fs::read(&local).expect("a file"), || text(&cat().stderr));
    assert!(cluster.ok(&["admin", "fsck", "v2"]).contains("0 findings"));
    cluster.fails(&["admin", "volume", "restore", "v2"], 12);

    // Its time is over; or it is not waited for.
    let before = cluster.stored();
    assert!(before >= 6 << 20, "{before}");
    cluster.ok(&["admin", "config", "set", "trash_expiry=1s"]);
    cluster.ok(&["admin", "volume", "delete", "v2", "--yes"]);
    eventually(&cluster, "the end of the volume", || volume(&cluster, "v2").is_none());
    eventually(&cluster, "its space", || cluster.stored() + (6 << 20) <= before);
    cluster.ok(&["admin", "config", "set", "trash_expiry=72h"]);
    put(&cluster);
    cluster.fails(&["admin", "volume", "purge", "v2", "--yes"], 12);
    cluster.ok(&["admin", "volume", "delete", "v2", "--yes"]);
    cluster.fails(&["admin", "volume", "purge", "v2"], 2);
    cluster.ok(&["admin", "volume", "purge", "v2", "--yes"]);
    assert!(volume(&cluster, "v2").is_none());
    assert!(has(&cluster, "volume-trashed") && has(&cluster, "volume-restored") && has(&cluster, "volume-deleted"));
    // A cluster that keeps no trash keeps no volumes either.
    cluster.ok(&["admin", "config", "set", "trash_expiry=0s"]);
    put(&cluster);
    assert!(cluster.ok(&["admin", "volume", "delete", "v2", "--yes"]).contains("deleted volume v2"));
    assert!(volume(&cluster, "v2").is_none());
}
