//! Directories of managers and of meta nodes that are put back from copies, while everybody else went on.
use crate::support::{Cluster, Shape, copy_dir, lines, text};
use crate::trees::noise;
use crate::wait::{eventually, until, until_told};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// What a restored manager and its members say of themselves.
const SAID: [&str; 3] = ["is an older copy of itself", "it does nothing before all", "state of partition"];

fn put(cluster: &Cluster, name: &str, seed: u64) -> (String, Vec<u8>) {
    let (local, bytes) = (cluster.path("local"), noise(700_000, seed));
    fs::write(&local, &bytes).expect("file");
    cluster.ok(&["fs", "put", local.to_str().expect("utf-8"), name]);
    (name.to_owned(), bytes)
}

fn reads(cluster: &Cluster, files: &[(String, Vec<u8>)]) {
    for (name, bytes) in files {
        let back = cluster.path("back");
        let _there_may_be_none = fs::remove_file(&back);
        cluster.ok(&["fs", "get", name, back.to_str().expect("utf-8")]);
        assert!(fs::read(&back).expect("file") == *bytes, "{name} is another one");
    }
}

fn numbers(cluster: &Cluster, args: &[&str], key: &str, value: &str) -> BTreeMap<String, u64> {
    let pair = |line: Value| {
        let name = line[key].as_str().map_or_else(|| line[key].to_string(), str::to_owned);
        (name, line[value].as_u64().expect("a number"))
    };
    lines(cluster, args).into_iter().map(pair).collect()
}

fn volumes(cluster: &Cluster) -> BTreeMap<String, u64> {
    numbers(cluster, &["admin", "volume", "ls"], "name", "id")
}

fn epochs(cluster: &Cluster) -> BTreeMap<String, u64> {
    numbers(cluster, &["admin", "pg", "ls"], "pg", "epoch")
}

fn wait_level(cluster: &Cluster) {
    let level = || text(&cluster.cairn(&["admin", "status", "--json"]).stdout);
    let newest = cairn_types::FEATURE_LEVEL;
    let active = || {
        let said = level();
        said.contains(&format!("\"feature_level\":{newest}")) || said.contains(&format!("\"feature_level\": {newest}"))
    };
    until_told("the feature level", active, level);
}

fn copy_of(cluster: &Cluster, name: &str) {
    let old = cluster.path(&format!("old-{name}"));
    copy_dir(&cluster.path("nodes").join(name), &old);
}

fn put_back(cluster: &Cluster, name: &str) {
    let dir = cluster.path("nodes").join(name);
    fs::remove_dir_all(&dir).expect("gone");
    copy_dir(&cluster.path(&format!("old-{name}")), &dir);
}

/// A manager of before would give volumes, groups, epochs and sessions a second time, forget volumes and bring others
/// back, let a disk serve that was away, or never be listened to again; and a directory that a client makes would not
/// be made.
fn a_restored_cluster_goes_on(managers: usize) {
    let mut cluster = Cluster::start(Shape { managers, metas: 1, datas: 3, racks: 3 });
    SAID.iter().for_each(|text| cluster.allow_error(text));
    let names: Vec<String> = (1..=managers).map(|i| format!("manager{i}")).collect();
    let mut files = vec![put(&cluster, "/before", 1)];
    cluster.ok(&["admin", "volume", "create", "gone"]);
    cluster.wait_healthy();
    wait_level(&cluster);
    names.iter().for_each(|name| cluster.stop(name));
    names.iter().for_each(|name| copy_of(&cluster, name));
    cluster.start_some(&names);
    cluster.wait_healthy();

    // Terms and epochs rise, volumes come and go, clients begin sessions, and in the end one disk misses what was
    // written.
    for name in &names {
        cluster.kill(name);
        cluster.restart(name);
    }
    cluster.kill("data2");
    eventually(&cluster, "a write without it", || cluster.cairn(&["fs", "mkdir", "/without"]).status.success());
    files.push(put(&cluster, "/during", 2));
    cluster.restart("data2");
    cluster.wait_healthy();
    cluster.ok(&["admin", "volume", "delete", "gone", "--force"]);
    cluster.ok(&["admin", "volume", "create", "made"]);
    files.push(put(&cluster, "made:/file", 3));
    cluster.ok(&["admin", "volume", "create", "short"]);
    let given: BTreeSet<u64> = volumes(&cluster).into_values().collect();
    cluster.ok(&["admin", "volume", "delete", "short", "--force"]);
    cluster.ok(&["fs", "mkdir", "/after"]);
    cluster.wait_healthy();
    cluster.kill("data1");
    files.push(put(&cluster, "/later", 4));
    let (kept, before) = (volumes(&cluster), epochs(&cluster));

    names.iter().for_each(|name| cluster.kill(name));
    names.iter().for_each(|name| put_back(&cluster, name));
    names.iter().for_each(|name| cluster.launch(name));
    for (name, address) in names.iter().zip(cluster.address.split(',')) {
        until("it to find itself older", || cluster.read_log(name).contains("is an older copy of itself"));
        // The last one may have been filled by those before it.
        let said = cluster.cairn(&["admin", "manager", "accept-loss", address, "--yes"]);
        assert!(said.status.success() || text(&said.stderr).contains("no older copy of itself"), "{said:?}");
    }
    // One disk's node is away: nobody knows what it knows.
    let said = || text(&cluster.cairn(&["admin", "status"]).stdout);
    until_told("it to wait", || said().contains("older than what they once gave"), said);
    until_told("it to say for whom", || said().contains("go-on --yes"), said);
    // A busy machine may not even hear the answer in that time.
    let refused = || cluster.cairn(&["--timeout", "3", "admin", "volume", "create", "early"]);
    until("a refusal with its reason", || {
        let refused = refused();
        assert!(!refused.status.success(), "{refused:?}");
        text(&refused.stderr).contains("older than what they once gave")
    });
    cluster.restart("data1");
    names.iter().for_each(|name| cluster.wait_ready(name));
    cluster.wait_healthy();

    reads(&cluster, &files);
    assert_eq!(volumes(&cluster), kept);
    let now = epochs(&cluster);
    for (pg, epoch) in &before {
        assert!(now.get(pg).is_some_and(|now| now > epoch), "group {pg} had epoch {epoch}: {now:?}");
    }
    cluster.ok(&["fs", "mkdir", "/acts"]);
    let listed = cluster.ok(&["fs", "ls", "/"]);
    assert!(["acts", "after", "without", "later"].iter().all(|name| listed.contains(name)), "{listed}");
    cluster.ok(&["admin", "volume", "create", "new"]);
    let new = volumes(&cluster)["new"];
    assert!(given.iter().all(|id| new > *id), "{new} after {given:?}");
    files.push(put(&cluster, "new:/file", 5));
    files.push(put(&cluster, "/last", 6));
    let (pgs, known) = (epochs(&cluster), before.len());
    assert!(pgs.len() > known);
    // It is no older copy of itself any more: it starts again like any other.
    names.iter().for_each(|name| cluster.kill(name));
    cluster.start_some(&names);
    cluster.wait_healthy();
    reads(&cluster, &files);
}

#[test]
fn a_restored_manager_gives_no_number_twice() {
    a_restored_cluster_goes_on(1);
}

#[test]
fn three_restored_managers_give_no_number_twice() {
    a_restored_cluster_goes_on(3);
}

/// The cluster would stand still for a node that never comes back.
#[test]
fn nodes_that_are_lost_for_good_are_given_up() {
    let mut cluster = Cluster::start(Shape { managers: 1, metas: 1, datas: 3, racks: 3 });
    SAID.iter().for_each(|text| cluster.allow_error(text));
    cluster.allow_error("disks that may know more of these groups were given up");
    let mut files = vec![put(&cluster, "/before", 1)];
    cluster.wait_healthy();
    wait_level(&cluster);
    cluster.stop("manager1");
    copy_of(&cluster, "manager1");
    cluster.restart("manager1");
    cluster.wait_healthy();
    let refused = cluster.fails(&["admin", "manager", "go-on", "--yes"], 2);
    assert!(refused.contains("wait for no node"), "{refused}");
    files.push(put(&cluster, "/after", 2));
    cluster.kill("data3");
    cluster.kill("manager1");
    put_back(&cluster, "manager1");
    cluster.launch("manager1");
    until("it to find itself older", || cluster.read_log("manager1").contains("is an older copy of itself"));
    let address = cluster.address.clone();
    cluster.ok(&["admin", "manager", "accept-loss", &address, "--yes"]);
    let said = || text(&cluster.cairn(&["admin", "status"]).stdout);
    until_told("it to say for whom it waits", || said().contains("go-on --yes"), said);
    cluster.fails(&["admin", "manager", "go-on"], 2);
    cluster.ok(&["admin", "manager", "go-on", "--yes"]);
    eventually(&cluster, "it to go on", || cluster.cairn(&["--timeout", "9", "fs", "mkdir", "/acts"]).status.success());
    files.push(put(&cluster, "/last", 3));
    reads(&cluster, &files);
}

/// A mount that has a file open from before would write into the one that got its number.
#[test]
fn inodes_that_a_partition_has_forgotten_are_not_given_again() {
    let mut cluster = Cluster::start(Shape { managers: 1, metas: 1, datas: 1, racks: 1 });
    SAID.iter().for_each(|text| cluster.allow_error(text));
    cluster.wait_healthy();
    until("the feature level", || cluster.read_log("meta1").contains("the feature level is raised"));
    cluster.stop("meta1");
    copy_of(&cluster, "meta1");
    cluster.restart("meta1");
    cluster.wait_healthy();
    let inode = |cluster: &Cluster, path: &str| {
        lines(cluster, &["fs", "stat", path]).remove(0)["inode"].as_u64().expect("a number")
    };
    cluster.ok(&["fs", "mkdir", "/forgotten"]);
    let forgotten = inode(&cluster, "/forgotten");
    // Marks are told with heartbeats.
    cluster.wait_healthy();
    std::thread::sleep(std::time::Duration::from_secs(10));
    cluster.kill("meta1");
    put_back(&cluster, "meta1");
    cluster.launch("meta1");
    until("it to find itself older", || cluster.read_log("meta1").contains("is an older copy of itself"));
    let row = lines(&cluster, &["admin", "partition", "ls"]).remove(0);
    let (id, node) = (row["id"].to_string(), format!("n{}", row["nodes"][0]));
    cluster.ok(&["admin", "partition", "accept-loss", &id, &node, "--yes"]);
    cluster.wait_ready("meta1");
    eventually(&cluster, "a directory", || cluster.cairn(&["--timeout", "9", "fs", "mkdir", "/new"]).status.success());
    let new = inode(&cluster, "/new");
    assert!(new > forgotten && new >= 1 << 32, "{new} after {forgotten}");
}

/// A majority of members that forgot would keep the only whole one from leading, for ever.
#[test]
fn two_older_meta_nodes_elect_the_whole_one() {
    let mut cluster = Cluster::start(Shape { managers: 1, metas: 3, datas: 1, racks: 1 });
    SAID.iter().for_each(|text| cluster.allow_error(text));
    let metas = ["meta1", "meta2", "meta3"].map(str::to_owned);
    cluster.wait_healthy();
    metas.iter().for_each(|name| cluster.stop(name));
    metas[..2].iter().for_each(|name| copy_of(&cluster, name));
    cluster.start_some(&metas);
    cluster.wait_healthy();
    (0..20).for_each(|i| drop(cluster.ok(&["fs", "mkdir", &format!("/d{i}")])));
    cluster.wait_healthy();
    std::thread::sleep(std::time::Duration::from_secs(10));
    metas.iter().for_each(|name| cluster.kill(name));
    metas[..2].iter().for_each(|name| put_back(&cluster, name));
    cluster.start_some(&metas);
    eventually(&cluster, "all of them", || {
        text(&cluster.cairn(&["--timeout", "5", "fs", "ls", "/"]).stdout).matches('d').count() >= 20
    });
    cluster.wait_healthy();
    cluster.kill("meta3");
    eventually(&cluster, "the others to have all of them", || {
        text(&cluster.cairn(&["--timeout", "5", "fs", "ls", "/"]).stdout).matches('d').count() >= 20
    });
}

/// A meta node that forgot votes and entries would elect a leader that lacks what was acknowledged.
#[test]
fn an_older_meta_node_takes_no_part_and_is_added_anew() {
    let mut cluster = Cluster::start(Shape { managers: 1, metas: 3, datas: 1, racks: 1 });
    SAID.iter().for_each(|text| cluster.allow_error(text));
    cluster.wait_healthy();
    let row = lines(&cluster, &["admin", "partition", "ls"]).remove(0);
    let nodes = lines(&cluster, &["admin", "node", "ls"]);
    let old = nodes.iter().find(|node| {
        let member = row["nodes"].as_array().is_some_and(|members| members.contains(&node["id"]));
        member && node["id"] != row["leader"]
    });
    let old = old.expect("a member that does not lead");
    let (name, id) = (old["host"].as_str().expect("its name").to_owned(), format!("n{}", old["id"]));
    cluster.stop(&name);
    copy_of(&cluster, &name);
    cluster.restart(&name);
    for i in 0..20 {
        cluster.ok(&["fs", "mkdir", &format!("/d{i}")]);
    }
    cluster.wait_healthy();
    cluster.kill(&name);
    put_back(&cluster, &name);
    cluster.launch(&name);
    until("it to find itself older", || cluster.read_log(&name).contains("takes no part in elections"));
    let said = || text(&cluster.cairn(&["admin", "status"]).stdout);
    let named = || {
        cluster.read_log(&name).contains("is an older copy of itself") || said().contains("is an older copy of itself")
    };
    until_told("it to be named", named, said);
    eventually(&cluster, "it to be added anew", || {
        cluster.cairn(&["admin", "partition", "renew", "all", &id]).status.success()
    });
    cluster.wait_healthy();
    // It counts: without another one the two go on.
    let other = ["meta1", "meta2", "meta3"].into_iter().find(|other| *other != name).expect("another one");
    cluster.kill(other);
    let listed = cluster.ok(&["fs", "ls", "/"]);
    assert!((0..20).all(|i| listed.contains(&format!("d{i}"))), "{listed}");
    cluster.ok(&["fs", "mkdir", "/after"]);
}
