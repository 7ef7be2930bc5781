//! The limit of a volume of several meta partitions.
use crate::across::{mkdir, volume_of_three};
use crate::mount::SMALL;
use crate::support::{Cluster, lines, text};
use crate::wait::{until, until_told};
use serde_json::Value;
use std::fs;
use std::thread;

/// Exit code of what a quota refuses.
const REFUSED: i32 = 6;

fn number(value: &Value) -> u64 {
    value.as_u64().expect("a number")
}

/// Use and limit of a volume: bytes, inodes.
fn quota(cluster: &Cluster, path: &str) -> [(u64, u64); 2] {
    let quota = lines(cluster, &["fs", "quota", "get", "--volume", path]).remove(0);
    assert_eq!(quota["being_set"], false);
    [("bytes_used", "bytes_max"), ("inodes_used", "inodes_max")]
        .map(|(used, max)| (number(&quota[used]), number(&quota[max])))
}

fn set(cluster: &Cluster, args: &[&str]) {
    let args = [&["fs", "quota", "set", "--volume"], args].concat();
    let set = || cluster.cairn(&args);
    // The first time it may be a moment too early for the feature level.
    until_told("the limit", || set().status.success(), || text(&set().stderr));
}

/// Puts files into a directory until there is no room; how many.
fn fill(cluster: &Cluster, local: &str, directory: &str) -> u64 {
    for count in 0.. {
        let put = cluster.cairn(&["fs", "put", local, &format!("{directory}/f{count}")]);
        if !put.status.success() {
            let said = text(&put.stderr);
            assert!(put.status.code() == Some(REFUSED) && said.contains("the quota of the volume on"), "{said}");
            return count;
        }
    }
    unreachable!()
}

/// Fills all directories side by side; how many files there are then.
fn fill_all(cluster: &Cluster, local: &str, directories: &[&str]) -> u64 {
    thread::scope(|scope| {
        let writers: Vec<_> =
            directories.iter().map(|directory| scope.spawn(move || fill(cluster, local, directory))).collect();
        writers.into_iter().map(|writer| writer.join().expect("it fills")).sum()
    })
}

fn local(cluster: &Cluster, name: &str, bytes: usize) -> String {
    let local = cluster.path(name);
    fs::write(&local, vec![7u8; bytes]).expect("a file");
    local.to_str().expect("UTF-8").to_owned()
}

/// A volume would take more than it may have, or refuse what there is room for in another partition; or do so after an
/// outage.
#[test]
fn a_volume_of_three_partitions_is_filled_up_to_its_limit() {
    let mut cluster = Cluster::start(SMALL);
    let parts = volume_of_three(&cluster);
    let directories = ["v:/a", "v:/b", "v:/c"];
    directories.iter().zip(&parts).for_each(|(directory, part)| mkdir(&cluster, directory, *part));
    let small = local(&cluster, "small", 10);
    set(&cluster, &["--inodes", "23", "v:/"]);
    assert_eq!(fill_all(&cluster, &small, &directories), 20);
    assert_eq!(quota(&cluster, "v:/")[1], (23, 23));
    let refused = cluster.fails(&["fs", "mkdir", "--partition", &parts[1].to_string(), "v:/d"], REFUSED);
    assert!(refused.contains("number of files is used up"), "{refused}");

    // What goes in one partition makes room in all others.
    let remove = |cluster: &Cluster, path: &str| cluster.ok(&["fs", "rm", "--skip-trash", path]);
    let put = |cluster: &Cluster, path: &str| cluster.cairn(&["fs", "put", &small, path]);
    for (from, to) in [("v:/a/f0", "v:/b/g"), ("v:/b/f0", "v:/c/g"), ("v:/c/f0", "v:/a/g")] {
        remove(&cluster, from);
        until_told("room", || put(&cluster, to).status.success(), || text(&put(&cluster, to).stderr));
        assert_eq!(put(&cluster, "v:/c/h").status.code(), Some(REFUSED));
    }
    cluster.kill_all();
    cluster.start_all();
    until("an answer", || cluster.cairn(&["fs", "ls", "v:/c"]).status.success());
    assert_eq!(quota(&cluster, "v:/")[1], (23, 23));
    assert_eq!(put(&cluster, "v:/a/h").status.code(), Some(REFUSED));
    remove(&cluster, "v:/c/g");
    until_told("room", || put(&cluster, "v:/a/h").status.success(), || text(&put(&cluster, "v:/a/h").stderr));

    // Another limit, on bytes too; a smaller one than is in use; and none.
    let large = local(&cluster, "large", 100_000);
    let used = quota(&cluster, "v:/")[0].0;
    let max = used + 650_000;
    set(&cluster, &["--inodes", "1000", "--bytes", &max.to_string(), "v:/"]);
    for directory in directories {
        cluster.ok(&["fs", "mkdir", &format!("{directory}/more")]);
    }
    let more = directories.map(|directory| format!("{directory}/more"));
    assert_eq!(fill_all(&cluster, &large, &more.each_ref().map(String::as_str)), 6);
    let [bytes, inodes] = quota(&cluster, "v:/");
    assert_eq!((bytes, inodes), ((used + 600_000, max), (23 + 3 + 6, 1000)));
    let listed = lines(&cluster, &["fs", "quota", "ls", "v:/"]).remove(0);
    assert_eq!((number(&listed["bytes_used"]), number(&listed["inodes_used"])), (bytes.0, inodes.0));
    set(&cluster, &["--inodes", "10", "v:/"]);
    for directory in directories {
        assert_eq!(put(&cluster, &format!("{directory}/i")).status.code(), Some(REFUSED));
    }
    assert_eq!(quota(&cluster, "v:/"), [(bytes.0, 0), (inodes.0, 10)]);
    cluster.ok(&["fs", "quota", "rm", "--volume", "v:/"]);
    for directory in directories {
        let to = format!("{directory}/i");
        until_told("room", || put(&cluster, &to).status.success(), || text(&put(&cluster, &to).stderr));
    }
    assert!(cluster.ok(&["admin", "fsck", "v"]).contains("0 findings"));
}

/// A volume with a limit would not grow; or its new partitions would use more than it has.
#[test]
fn a_volume_with_a_limit_gets_more_partitions() {
    let cluster = Cluster::start(SMALL);
    let small = local(&cluster, "small", 10);
    set(&cluster, &["--inodes", "20", "/"]);
    cluster.ok(&["fs", "put", &small, "/f"]);
    let used = quota(&cluster, "/")[1].0;
    let root = lines(&cluster, &["admin", "partition", "ls"]).remove(0)["id"].to_string();
    let mut made = Vec::new();
    let ok = || {
        let output = cluster.cairn(&["--json", "admin", "partition", "split", &root, "--into", "3"]);
        let said: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        made = said["made"].as_array().into_iter().flatten().map(number).collect();
        output.status.success()
    };
    until("the split", ok);
    for (directory, partition) in ["/a", "/b"].into_iter().zip(&made) {
        let mkdir = || cluster.cairn(&["fs", "mkdir", "--partition", &partition.to_string(), directory]);
        // A node may have to hear of the new partitions first.
        until_told("the directory", || mkdir().status.success(), || text(&mkdir().stderr));
    }
    cluster.ok(&["fs", "mkdir", "/c"]);
    assert_eq!(fill_all(&cluster, &small, &["/a", "/b", "/c"]), 20 - 3 - used);
    assert_eq!(quota(&cluster, "/")[1], (20, 20));
}
