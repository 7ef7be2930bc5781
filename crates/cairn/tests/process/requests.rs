//! Request logs of real processes, and the load that is made from them again.
use crate::support::{Cluster, Shape};
use crate::trees::noise;
use crate::wait::eventually;
use serde_json::Value;
use std::fs;
use std::path::PathBuf;

/// Files of the request log of a process, oldest first.
fn logs(cluster: &Cluster, name: &str) -> Vec<String> {
    let dir = cluster.path("nodes").join(name).join("requests");
    let mut files: Vec<PathBuf> = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    files.sort();
    files.into_iter().map(|path| path.to_str().expect("utf-8").to_owned()).collect()
}

/// Requests of an operation at a process, by its logs, and bytes of data of them.
fn count(cluster: &Cluster, name: &str, operation: &str) -> (u64, u64) {
    let mut sum = (0, 0);
    for file in logs(cluster, name) {
        // It is written while it is read.
        let said = cluster.cairn(&["--json", "inspect", &file]);
        let Some(end) = said.stdout.split(|byte| *byte == b'\n').rfind(|line| !line.is_empty()) else { continue };
        let Ok(end) = serde_json::from_slice::<Value>(end) else { continue };
        for of in end["operations"].as_array().into_iter().flatten().filter(|of| of["operation"] == operation) {
            sum.0 += of["requests"].as_u64().unwrap_or_default();
            sum.1 += of["data_bytes"].as_u64().unwrap_or_default();
        }
    }
    sum
}

/// Nobody could tell what a cluster was asked, or try the same load on another one.
#[test]
fn what_was_asked_is_logged_and_can_be_replayed() {
    let cluster = Cluster::start(Shape { managers: 1, metas: 1, datas: 3, racks: 3 });
    let content = noise(5_000_000, 1);
    let local = cluster.path("local");
    fs::write(&local, &content).expect("file");
    let local = local.to_str().expect("utf-8");
    cluster.ok(&["fs", "mkdir", "/d"]);
    for file in 0..5 {
        cluster.ok(&["fs", "put", local, &format!("/d/{file}")]);
    }
    assert!(cluster.cairn(&["fs", "cat", "/d/3"]).stdout == content);
    let all = |operation: &str| {
        let of = ["data1", "data2", "data3"].map(|name| count(&cluster, name, operation));
        (of.iter().map(|of| of.0).sum::<u64>(), of.iter().map(|of| of.1).sum::<u64>())
    };
    // Each byte goes to three members; it is written half a second later.
    eventually(&cluster, "the log of what was written", || all("Append").1 >= 3 * 5 * 5_000_000);
    eventually(&cluster, "the log of what was read", || all("Read").1 >= 5_000_000);
    eventually(&cluster, "the log of names", || count(&cluster, "meta1", "Mkdir").0 > 0);
    let before = all("Append").1;
    let names = ["data1", "data2", "data3", "meta1"];
    let files: Vec<String> = names.iter().flat_map(|name| logs(&cluster, name)).collect();
    let mut args = vec!["--json", "bench", "replay", "--speed", "0", "--parallel", "4", "--set", "1m"];
    args.extend(files.iter().map(String::as_str));
    let said = cluster.ok(&args);
    let rows: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let row = |what: &str| rows.iter().find(|row| row["what"] == what).unwrap_or_else(|| panic!("no {what}: {said}"));
    let written = row("append")["bytes"].as_u64().expect("a number");
    // A member that does not answer in time is left, and what it lacks is written elsewhere once more.
    assert!((25_000_000..50_000_000).contains(&written), "each write once, not once for each member: {said}");
    assert!(row("read")["bytes"].as_u64() >= Some(5_000_000), "{said}");
    assert!(row("mkdir")["operations"].as_u64() > Some(0) && row("all")["errors"] == 0, "{said}");
    eventually(&cluster, "the load to be in the logs", || all("Append").1 >= before + 3 * 25_000_000);
    assert!(!cluster.ok(&["fs", "ls", "-a", "/"]).contains("bench"), "it leaves nothing behind");
    // Neither does one that fails in the middle.
    let too_wide = [&args[..], &["--layout", "r5"]].concat();
    assert!(cluster.fails(&too_wide, 1).contains("preparing the files"));
    assert!(!cluster.ok(&["fs", "ls", "-a", "/"]).contains("bench"), "it leaves what it had prepared");
}
