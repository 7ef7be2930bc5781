//! A volume gets more meta partitions while it is in use.
use crate::mount::{Mount, SMALL, skipped};
use crate::support::{Cluster, lines, text};
use crate::wait::{until, until_told};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// The partitions of the first volume, in the order of their inodes.
fn partitions(cluster: &Cluster) -> Vec<Value> {
    let mut all = lines(cluster, &["admin", "partition", "ls"]);
    all.retain(|partition| partition["volume"] == "default");
    all
}

fn number(value: &Value) -> u64 {
    value.as_u64().expect("a number")
}

/// Splits the partition of the root; the numbers of the new ones.
fn split(cluster: &Cluster, into: &str) -> Vec<u64> {
    let root = partitions(cluster)[0]["id"].to_string();
    let mut made = Vec::new();
    // The first time it may be a moment too early for the feature level.
    let ok = || {
        let output = cluster.cairn(&["--json", "admin", "partition", "split", &root, "--into", into]);
        let said: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        made = said["made"].as_array().into_iter().flatten().map(number).collect();
        output.status.success()
    };
    until("the split", ok);
    made
}

/// The command would wait without end, and the volume be split by itself long after.
#[test]
fn a_volume_with_snapshots_is_not_split() {
    let cluster = Cluster::start(SMALL);
    let name = ["fs", "snapshot", "create", "kept"];
    until("the snapshot", || cluster.cairn(&name).status.success());
    let root = partitions(&cluster)[0]["id"].to_string();
    let refused = cluster.cairn(&["admin", "partition", "split", &root]);
    assert_eq!(refused.status.code(), Some(12), "{}", text(&refused.stderr));
    assert!(text(&refused.stderr).contains("cairn fs snapshot delete"), "{}", text(&refused.stderr));
    cluster.ok(&["fs", "snapshot", "delete", "kept"]);
    until("its end", || lines(&cluster, &["fs", "snapshot", "ls"]).is_empty());
    assert_eq!(split(&cluster, "2").len(), 1);
    // With several partitions it goes on with snapshots.
    until("another snapshot", || cluster.cairn(&["fs", "snapshot", "create", "later"]).status.success());
    assert_eq!(split(&cluster, "2").len(), 1);
    assert_eq!(partitions(&cluster).len(), 3);
}

/// Who outgrows one machine would have to copy everything into another volume; or lose files, or see errors meanwhile.
#[test]
fn a_volume_gets_more_partitions_while_it_is_used() {
    let mut cluster = Cluster::start(SMALL);
    cluster.ok(&["fs", "mkdir", "/old"]);
    let local = cluster.path("local");
    fs::write(&local, vec![7u8; 200_000]).expect("a file");
    let local = local.to_str().expect("UTF-8").to_owned();
    cluster.ok(&["fs", "put", &local, "/old/f"]);
    let stop = AtomicBool::new(false);
    let (written, made) = thread::scope(|scope| {
        let (cluster, stop, local) = (&cluster, &stop, &local);
        let writer = scope.spawn(move || {
            let mut written = 0;
            while !stop.load(Ordering::Relaxed) || written < 3 {
                let put = cluster.cairn(&["fs", "put", local, &format!("/old/w{written}")]);
                assert!(put.status.success(), "{}", text(&put.stderr));
                written += 1;
            }
            written
        });
        let made = split(cluster, "3");
        stop.store(true, Ordering::Relaxed);
        (writer.join().expect("it writes on"), made)
    });
    assert_eq!(made.len(), 2);
    let all = partitions(&cluster);
    let ranges: Vec<(u64, u64)> = all.iter().map(|p| (number(&p["inode_first"]), number(&p["inode_last"]))).collect();
    assert_eq!(ranges.len(), 3);
    assert!(ranges.windows(2).all(|pair| pair[0].1 + 1 == pair[1].0), "{ranges:?}");

    for (name, partition) in ["a", "b"].into_iter().zip(&made) {
        let path = format!("/old/{name}");
        let mkdir = || cluster.cairn(&["fs", "mkdir", "--partition", &partition.to_string(), &path]);
        // A node may have to hear of the new partitions first.
        until_told("the directory", || mkdir().status.success(), || text(&mkdir().stderr));
        cluster.ok(&["fs", "put", &local, &format!("{path}/f")]);
        assert_eq!(lines(&cluster, &["fs", "stat", &format!("{path}/f")])[0]["partition"], *partition);
    }
    cluster.ok(&["fs", "mv", "/old/f", "/old/a/moved"]);
    cluster.ok(&["fs", "mv", "/old/b", "/old/a/b"]);
    assert_eq!(cluster.cairn(&["fs", "cat", "/old/a/moved"]).stdout, vec![7; 200_000]);

    // Ranges have ends now: it goes at once.
    assert_eq!(split(&cluster, "2").len(), 1);
    cluster.kill_all();
    cluster.start_all();
    until("leaders of all", || partitions(&cluster).iter().all(|partition| partition["leader"] != 0));
    let ids: BTreeSet<u64> = partitions(&cluster).iter().map(|partition| number(&partition["id"])).collect();
    assert_eq!(ids.len(), 4);
    assert_eq!(cluster.cairn(&["fs", "cat", "/old/a/b/f"]).stdout, vec![7; 200_000]);
    // f went to a, beside what is there.
    let found = cluster.ok(&["fs", "find", "/old"]);
    assert_eq!(found.lines().count(), 1 + written + 2 + 3, "{found}");
    let checked = cluster.ok(&["admin", "fsck", "default"]);
    assert!(checked.contains("4 directories") || checked.contains("5 directories"), "{checked}");
    let refused = cluster.fails(&["admin", "partition", "split", "1", "--into", "1"], 2);
    assert!(refused.contains("at least two"), "{refused}");
}

/// A mount would go on with what it knew, and not find what is in the new partitions.
#[test]
fn a_mount_goes_on_while_its_volume_is_split() {
    if skipped() {
        return;
    }
    let cluster = Cluster::start(SMALL);
    let mount = Mount::new(&cluster, "mnt", "/", "");
    fs::create_dir(mount.path("d")).expect("made");
    let stop = AtomicBool::new(false);
    let (count, made) = thread::scope(|scope| {
        let (mount, stop) = (&mount, &stop);
        let writer = scope.spawn(move || {
            let mut count = 0;
            while !stop.load(Ordering::Relaxed) || count < 20 {
                fs::write(mount.path(&format!("d/{count}")), count.to_string()).expect("written");
                count += 1;
            }
            count
        });
        let made = split(&cluster, "2");
        stop.store(true, Ordering::Relaxed);
        (writer.join().expect("it writes on"), made)
    });
    let mkdir = || cluster.cairn(&["fs", "mkdir", "--partition", &made[0].to_string(), "/d/e"]);
    until_told("the directory", || mkdir().status.success(), || text(&mkdir().stderr));
    fs::write(mount.path("d/e/f"), b"in the new one").expect("written");
    fs::rename(mount.path("d/0"), mount.path("d/e/0")).expect("moved");
    assert_eq!(fs::read(mount.path("d/e/0")).expect("read"), b"0");
    assert_eq!(fs::read_dir(mount.path("d")).expect("listed").count(), count, "0 went and e came");
    for number in 1..count {
        assert_eq!(fs::read(mount.path(&format!("d/{number}"))).expect("read"), number.to_string().as_bytes());
    }
    assert_eq!(cluster.cairn(&["fs", "cat", "/d/e/f"]).stdout, b"in the new one");
    assert!(mount.umount().status.success());
}

/// A machine would run out of memory before anybody looked.
#[test]
fn a_volume_whose_partition_is_full_grows_by_itself() {
    let cluster = Cluster::start(SMALL);
    let set = || cluster.cairn(&["admin", "config", "set", "partition_memory=64k"]);
    // The first time it may be a moment too early for the feature level.
    until_told("the setting", || set().status.success(), || text(&set().stderr));
    assert_eq!(partitions(&cluster).len(), 1, "it has room");
    let files = || number(&lines(&cluster, &["fs", "df", "/"])[0]["files"]);
    let create =
        ["bench", "meta", "--clients", "4", "--in-flight", "8", "--seconds", "1", "--operations", "create", "--keep"];
    until_told("files for more than that", || cluster.cairn(&create).status.success() && files() > 8_000, String::new);
    let made = files();
    let all = || cluster.ok(&["admin", "partition", "ls"]);
    until_told("more partitions", || partitions(&cluster).len() > 1, all);
    until_told("leaders", || partitions(&cluster).iter().all(|partition| partition["leader"] != 0), all);
    assert_eq!(files(), made, "what was there is there");
}
