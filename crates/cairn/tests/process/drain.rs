//! Disks that are emptied while they serve and taken away then, nodes that hibernate; what was stored is there, byte by
//! byte.
use crate::disks::chunks;
use crate::support::{Cluster, Shape, lines, text};
use crate::trees::{assert_same_tree, check_trees, make_tree, noise, put_trees};
use crate::wait::eventually;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn utf8(path: &Path) -> &str {
    path.to_str().expect("utf-8")
}

/// Data nodes in racks of their own, and a tree in copies and in shards.
fn with_trees(datas: usize) -> (Cluster, PathBuf) {
    let cluster = Cluster::start(Shape { managers: 1, metas: 1, datas, racks: datas });
    let tree = put_trees(&cluster);
    (cluster, tree)
}

/// The number of the node that is a process.
pub fn node_of(cluster: &Cluster, host: &str) -> u64 {
    let nodes = lines(cluster, &["admin", "node", "ls"]);
    nodes.iter().find(|node| node["host"] == host).and_then(|node| node["id"].as_u64()).expect("a node")
}

/// Groups that have a member on a node.
pub fn groups_of(cluster: &Cluster, node: u64) -> BTreeSet<u64> {
    let of_node = |pg: &&Value| pg["members"].as_array().expect("a list").iter().any(|member| member["node"] == node);
    let groups = lines(cluster, &["admin", "pg", "ls"]);
    groups.iter().filter(of_node).map(|pg| pg["pg"].as_u64().expect("a number")).collect()
}

/// A node could not be taken away without leaving its groups short; or its data would be gone with it.
#[test]
fn a_drained_node_is_empty_and_may_go() {
    let (mut cluster, tree) = with_trees(7);
    let (node, disk) = (node_of(&cluster, "data2"), cluster.disk("data2"));
    let name = format!("n{node}");
    assert!(!groups_of(&cluster, node).is_empty() && !chunks(&disk).is_empty(), "it has nothing to lose");
    let said = cluster.ok(&["admin", "drain", "start", "node", &name]);
    assert!(said.contains(&format!("node n{node} ")), "{said}");
    // Written and deleted meanwhile, in both kinds of groups.
    let late = cluster.path("late");
    make_tree(&late, 20, 77);
    for target in ["/copies/late", "/shards/late"] {
        cluster.ok(&["fs", "put", utf8(&late), target]);
    }
    cluster.ok(&["fs", "rm", "-r", "--skip-trash", "/copies/late", "/shards/late"]);
    let said = cluster.ok(&["admin", "drain", "start", "node", &name, "--wait"]);
    assert_eq!(said, format!("node n{node} is empty: it may be taken away\n"));
    assert!(groups_of(&cluster, node).is_empty());
    cluster.wait_healthy();
    eventually(&cluster, "the old chunks to go", || chunks(&disk).is_empty());
    check_trees(&cluster, &tree, "while it runs");
    // New groups avoid it.
    cluster.ok(&["admin", "volume", "create", "another"]);
    let local = cluster.path("local");
    fs::write(&local, noise(300_000, 7)).expect("local");
    cluster.ok(&["fs", "put", utf8(&local), "another:/f"]);
    assert!(groups_of(&cluster, node).is_empty());
    assert!(cluster.fails(&["admin", "node", "remove", &name], 12).contains("stop its process first"));
    let busy = format!("n{}", node_of(&cluster, "data5"));
    assert!(cluster.fails(&["admin", "node", "remove", &busy], 12).contains("drain it first"));
    cluster.kill("data2");
    eventually(&cluster, "it to be removed", || cluster.cairn(&["admin", "node", "remove", &name]).status.success());
    assert!(lines(&cluster, &["admin", "node", "ls"]).iter().all(|known| known["id"] != node));
    // Nothing is missed of it, and it is not emptied once more.
    cluster.wait_healthy();
    let gone = cluster.fails(&["admin", "drain", "start", "node", &name], 3);
    assert!(gone.contains(&format!("there is no disk in node {name}")), "{gone}");
    // It comes back, and is told why it may not.
    cluster.allow_error("was removed from this cluster");
    cluster.launch("data2");
    eventually(&cluster, "it to be refused", || {
        cluster
            .read_log("data2")
            .contains("was removed from this cluster; to use this machine again, delete everything")
    });
    if cluster.is_running("data2") {
        cluster.kill("data2");
    }
    fs::remove_dir_all(&disk).expect("destroyed");
    // Its groups have all their members elsewhere: two more may go at once.
    cluster.kill("data5");
    cluster.kill("data6");
    check_trees(&cluster, &tree, "without three");
    assert!(cluster.kills >= 3, "every fault fired");
}

/// Processes that die in the middle would leave a drain half done for ever, or data with too few copies.
#[test]
fn a_drain_survives_the_death_of_everybody_concerned() {
    let (mut cluster, tree) = with_trees(7);
    let node = node_of(&cluster, "data3");
    cluster.ok(&["admin", "config", "set", "repair_rate_per_disk=1m", "repair_delay_urgent=2s", "repair_delay=2s"]);
    cluster.ok(&["admin", "drain", "start", "node", &format!("n{node}")]);
    let moving =
        |cluster: &Cluster| lines(cluster, &["admin", "drain", "ls"]).first().and_then(|d| d["moving"].as_u64());
    eventually(&cluster, "moves to begin", || moving(&cluster).is_some_and(|moving| moving > 0));
    for victim in ["manager1", "data3", "data4"] {
        cluster.kill(victim);
        cluster.restart(victim);
    }
    cluster.ok(&["admin", "config", "set", "repair_rate_per_disk=0"]);
    eventually(&cluster, "the node to be empty", || groups_of(&cluster, node).is_empty());
    cluster.wait_healthy();
    check_trees(&cluster, &tree, "after it");
    // Partitions hear of the last step with their next heartbeat.
    eventually(&cluster, "all files to have all their copies", || cluster.cairn(&["admin", "fsck"]).status.success());
    assert_eq!(cluster.kills, 3, "every fault fired");
}

/// A drain begun by mistake could not be stopped, or the disk would get nothing any more.
#[test]
fn a_cancelled_drain_leaves_things_as_they_are() {
    let (cluster, tree) = with_trees(6);
    let node = node_of(&cluster, "data1");
    let (name, before) = (format!("n{node}"), groups_of(&cluster, node));
    assert!(cluster.fails(&["admin", "drain", "cancel", "node", &name], 3).contains("is not being drained"));
    assert!(cluster.fails(&["admin", "drain", "start", "disk", "d99"], 3).contains("there is no disk d99"));
    cluster.ok(&["admin", "config", "set", "repair_in_flight=0"]);
    cluster.ok(&["admin", "drain", "start", "node", &name]);
    assert!(cluster.ok(&["admin", "status"]).contains(&format!("drained     node n{node} still has members of")));
    assert!(cluster.ok(&["admin", "drain", "cancel", "node", &name]).contains("keeps what it has"));
    cluster.ok(&["admin", "config", "set", "repair_in_flight="]);
    assert_eq!(cluster.ok(&["admin", "drain", "ls"]), "nothing is being drained\n");
    cluster.wait_healthy();
    // There may be new ones by now.
    assert!(before.is_subset(&groups_of(&cluster, node)), "it has lost some of {before:?}");
    check_trees(&cluster, &tree, "after it");
}

/// Announces that a node is away for a while. It is refused as long as a group lacks a member, as after a missed
/// heartbeat.
fn hibernate(cluster: &Cluster, node: &[&str]) -> String {
    let start = [&["admin", "hibernate", "start", "node"], node].concat();
    let mut output = cluster.cairn(&start);
    eventually(cluster, "hibernation", || {
        let done = output.status.success();
        if !done {
            output = cluster.cairn(&start);
        }
        done
    });
    text(&output.stdout)
}

/// What was announced as a short absence would be copied anew; or two would be away at once; or it would last for ever.
#[test]
fn a_node_that_hibernates_is_not_repaired() {
    let (mut cluster, tree) = with_trees(7);
    let (node, other) = (node_of(&cluster, "data4"), node_of(&cluster, "data1"));
    let name = format!("n{node}");
    cluster.ok(&["admin", "config", "set", "repair_delay=0s", "repair_delay_urgent=0s"]);
    cluster.wait_healthy();
    let said = hibernate(&cluster, &[&name]);
    assert!(said.contains("may be stopped: for 30 min nothing is repaired for it"), "{said}");
    let second = cluster.fails(&["admin", "hibernate", "start", "node", &format!("n{other}")], 12);
    assert!(second.contains(&format!("node n{node} hibernates already")), "{second}");
    let before = groups_of(&cluster, node);
    cluster.kill("data4");
    // Written meanwhile; and seen to be down.
    let local = cluster.path("meanwhile");
    fs::write(&local, noise(3_000_000, 9)).expect("local");
    for target in ["/copies/meanwhile", "/shards/meanwhile"] {
        cluster.ok(&["fs", "put", utf8(&local), target]);
    }
    let down = |cluster: &Cluster| {
        lines(cluster, &["admin", "node", "ls"]).iter().any(|n| n["id"] == node && n["up"] == false)
    };
    eventually(&cluster, "it to be marked down", || down(&cluster));
    check_trees_with(&cluster, &tree, "without it", &local);
    std::thread::sleep(std::time::Duration::from_secs(6));
    assert!(before.is_subset(&groups_of(&cluster, node)), "it is repaired although it hibernates");
    assert!(cluster.ok(&["admin", "status"]).contains(&format!("hibernates  node n{node}, for")));
    cluster.restart("data4");
    cluster.ok(&["admin", "hibernate", "end", "node", &name]);
    assert_eq!(cluster.ok(&["admin", "hibernate", "ls"]), "nothing hibernates\n");
    cluster.wait_healthy();
    check_trees_with(&cluster, &tree, "after it", &local);
    // A window ends by itself, and then it is repaired.
    cluster.wait_healthy();
    hibernate(&cluster, &[&name, "--for", "3s"]);
    cluster.kill("data4");
    eventually(&cluster, "its groups to have other members", || groups_of(&cluster, node).is_empty());
    assert_eq!(cluster.ok(&["admin", "hibernate", "ls"]), "nothing hibernates\n");
    cluster.wait_repaired();
    check_trees_with(&cluster, &tree, "in the end", &local);
    assert_eq!(cluster.kills, 2, "every fault fired");
}

/// The trees, and what was put into them later.
fn check_trees_with(cluster: &Cluster, tree: &Path, name: &str, late: &Path) {
    for target in ["/copies", "/shards"] {
        let back = cluster.path(name);
        cluster.ok(&["fs", "get", target, utf8(&back)]);
        assert_eq!(fs::read(back.join("meanwhile")).expect("it is there"), fs::read(late).expect("local"));
        fs::remove_file(back.join("meanwhile")).expect("removed");
        assert_same_tree(tree, &back);
        fs::remove_dir_all(&back).expect("removed");
    }
}

/// Copies that were in racks of their own would stay in one, and be lost together.
#[test]
fn a_node_that_comes_back_in_another_rack_is_audited() {
    let mut cluster = Cluster::start(Shape { managers: 1, metas: 1, datas: 6, racks: 3 });
    let tree = cluster.path("tree");
    make_tree(&tree, 30, 5);
    for (layout, target) in [("r3", "/copies"), ("rs-3-2", "/shards")] {
        cluster.ok(&["fs", "mkdir", "--layout", layout, target]);
        cluster.ok(&["fs", "put", &format!("{}/.", utf8(&tree)), target]);
    }
    let racks = |cluster: &Cluster| -> std::collections::BTreeMap<u64, String> {
        let nodes = lines(cluster, &["admin", "node", "ls"]);
        nodes.iter().map(|n| (n["id"].as_u64().expect("id"), n["rack"].as_str().expect("rack").to_owned())).collect()
    };
    // The most members of a group in one rack.
    let crowds = |cluster: &Cluster, scheme: &str| {
        let racks = racks(cluster);
        let crowd = |pg: &Value| {
            let members = pg["members"].as_array().expect("a list").iter();
            let mut found: Vec<&String> = members.map(|m| &racks[&m["node"].as_u64().expect("id")]).collect();
            found.sort();
            found.chunk_by(|a, b| a == b).map(<[_]>::len).max().unwrap_or(0)
        };
        let pgs = lines(cluster, &["admin", "pg", "ls"]);
        pgs.iter().filter(|pg| pg["scheme"] == scheme).map(crowd).max().expect("groups")
    };
    cluster.wait_healthy();
    assert_eq!((crowds(&cluster, "r3"), crowds(&cluster, "rs-3-2")), (1, 2));
    cluster.kill("data1");
    let config = cluster.dir.path().join("data1.toml");
    let text = fs::read_to_string(&config).expect("configuration");
    fs::write(&config, text.replace("rack = \"rack1\"", "rack = \"rack0\"")).expect("configuration");
    cluster.launch("data1");
    cluster.wait_ready("data1");
    eventually(&cluster, "its groups to be seen", || {
        cluster.ok(&["admin", "status"]).contains("more members in one rack or on one host than they need to")
            || crowds(&cluster, "r3") == 1 && cluster.read_log("manager1").contains("a member leaves its disk")
    });
    eventually(&cluster, "the groups to be mended", || crowds(&cluster, "r3") == 1 && crowds(&cluster, "rs-3-2") <= 2);
    cluster.wait_healthy();
    assert!(cluster.read_log("manager1").contains("a member leaves its disk"), "nothing had to be moved");
    check_trees(&cluster, &tree, "after it");
    // The loss of the rack that it is in now.
    for victim in ["data1", "data3", "data6"] {
        cluster.kill(victim);
    }
    check_trees(&cluster, &tree, "without a rack");
    assert_eq!(cluster.kills, 4, "every fault fired");
}

/// New disks would stay empty and old ones get full, in a volume that has limits of its own.
#[test]
fn full_disks_give_groups_to_an_empty_one() {
    let mut cluster = Cluster::prepare(Shape { managers: 1, metas: 1, datas: 4, racks: 4 });
    for n in 1..=4 {
        if !cluster.give_small_disk(&format!("data{n}"), 700) {
            eprintln!("skipped: this system lets nobody mount a file system in a name space of its own");
            return;
        }
    }
    let first: Vec<String> = cluster.names().into_iter().filter(|name| name != "data4").collect();
    first.iter().for_each(|name| cluster.launch(name));
    first.iter().for_each(|name| cluster.wait_ready(name));
    cluster.wait_volume();
    cluster.ok(&["admin", "config", "set", "disk_reserve=16m", "rebalance_above=0"]);
    cluster.ok(&["fs", "mkdir", "--layout", "r2", "/d"]);
    let local = cluster.path("local");
    for seed in 0..32 {
        fs::write(&local, noise(5_000_000, seed)).expect("local");
        cluster.ok(&["fs", "put", utf8(&local), &format!("/d/{seed}")]);
    }
    let old: BTreeSet<u64> =
        lines(&cluster, &["admin", "pg", "ls"]).iter().filter_map(|pg| pg["pg"].as_u64()).collect();
    cluster.launch("data4");
    cluster.wait_ready("data4");
    let node = node_of(&cluster, "data4");
    // Percent of each disk in use: that of the new one, and the least of the others.
    let used = |cluster: &Cluster| {
        let disks = lines(cluster, &["admin", "disk", "ls"]);
        let percent = |d: &Value| {
            let (total, free) = (d["total_bytes"].as_u64().expect("size"), d["free_bytes"].as_u64().expect("size"));
            (total - free) * 100 / total
        };
        let of = |new: bool| disks.iter().filter(|d| (d["node"] == node) == new).map(percent).min().expect("disks");
        (of(true), of(false))
    };
    // What a disk keeps for itself is told when it is open: more than a third of this one.
    eventually(&cluster, "loads of the new disk", || {
        let (new, others) = used(&cluster);
        new > 30 && new + 8 < others
    });
    let above = used(&cluster).1 - 1;
    let said = cluster.fails(&["admin", "volume", "set", "default", "rebalance_above=100", "repair_rate=1"], 11);
    assert!(
        said.contains("2 mistakes") && said.contains("from 0 to 99") && said.contains("no setting of a volume"),
        "{said}"
    );
    // The cluster's limits stay: only this volume is rebalanced.
    let limits = [format!("rebalance_above={above}"), format!("rebalance_below={above}")];
    cluster.ok(&["admin", "volume", "set", "default", &limits[0], &limits[1]]);
    assert!(
        cluster.ok(&["admin", "volume", "ls"]).contains(&limits.join(" ")),
        "{}",
        cluster.ok(&["admin", "volume", "ls"])
    );
    // Of those that were there before it: new ones would be made there anyway.
    let got = |cluster: &Cluster| groups_of(cluster, node).iter().any(|pg| old.contains(pg));
    eventually(&cluster, "it to get a group", || got(&cluster));
    eventually(&cluster, "no move to be under way", || {
        cluster.ok(&["admin", "repair"]).starts_with("nothing to repair")
    });
    assert!(got(&cluster) && cluster.read_log("manager1").contains("a member leaves its disk"));
    for seed in 0..32 {
        let read = cluster.cairn(&["fs", "cat", &format!("/d/{seed}")]);
        assert!(read.status.success() && read.stdout == noise(5_000_000, seed), "/d/{seed}");
    }
    cluster.kill_all();
}
