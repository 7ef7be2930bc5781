//! Disks that never come back: their groups get complete again on others, and then bear as many losses as before.
use crate::disks::chunks;
use crate::drain;
use crate::support::{Cluster, Shape, lines};
use crate::trees::{assert_same_tree, check_trees, make_tree, noise, put_trees};
use crate::wait::eventually;
use std::fs;
use std::path::{Path, PathBuf};

fn utf8(path: &Path) -> &str {
    path.to_str().expect("utf-8")
}

/// Eight data nodes in racks of their own, and a tree in copies and in shards. What is lost is replaced after a second.
fn with_trees() -> (Cluster, PathBuf) {
    let cluster = Cluster::start(Shape { managers: 1, metas: 1, datas: 8, racks: 8 });
    cluster.ok(&["admin", "config", "set", "repair_delay=1s", "repair_delay_urgent=1s"]);
    let tree = put_trees(&cluster);
    (cluster, tree)
}

/// How many groups have a member on the disk of a node, which may be away.
fn groups_of(cluster: &Cluster, host: &str) -> usize {
    drain::groups_of(cluster, drain::node_of(cluster, host)).len()
}

/// Waits until what was on a disk is on others.
fn wait_replaced(cluster: &Cluster, host: &str) {
    eventually(cluster, "its groups to have other members", || groups_of(cluster, host) == 0);
}

/// Redundancy that a destroyed disk took would never come back: the losses after it add up until data is gone.
#[test]
fn destroyed_disks_are_replaced_and_as_many_more_may_die() {
    let (mut cluster, tree) = with_trees();
    for victim in ["data2", "data5"] {
        assert!(groups_of(&cluster, victim) > 0, "{victim} has nothing to lose");
        cluster.kill(victim);
        fs::remove_dir_all(cluster.disk(victim)).expect("destroyed");
        wait_replaced(&cluster, victim);
        cluster.wait_repaired();
        eventually(&cluster, "nothing to repair", || cluster.ok(&["admin", "repair"]).starts_with("nothing to repair"));
        check_trees(&cluster, &tree, victim);
    }
    // Together with those these are four of eight: more than any of the groups could bear without repair.
    for victim in ["data1", "data7"] {
        cluster.kill(victim);
    }
    check_trees(&cluster, &tree, "in the end");
    assert_eq!(cluster.kills, 4, "every fault fired");
}

/// Three of the first nine data nodes that do not have all members of a group of copies, which may be empty: nobody
/// could know that, and its disks would be waited for.
fn bearable(cluster: &Cluster) -> [&'static str; 3] {
    const SOME: [[&str; 3]; 4] = [
        ["data1", "data4", "data8"],
        ["data1", "data4", "data7"],
        ["data1", "data6", "data8"],
        ["data3", "data4", "data8"],
    ];
    let survives = |victims: &[&str; 3]| {
        let nodes = victims.map(|name| drain::node_of(cluster, name));
        let all_of = |members: &serde_json::Value| {
            let mut members = members.as_array().expect("members").iter();
            members.all(|member| nodes.contains(&member["node"].as_u64().expect("a node")))
        };
        !lines(cluster, &["admin", "pg", "ls"]).iter().any(|pg| all_of(&pg["members"]))
    };
    SOME.into_iter().find(survives).expect("groups of copies are few")
}

/// Three shards of nine that are lost for good would leave a file that bears no more losses for ever.
#[test]
fn three_of_nine_are_replaced_by_spares_and_three_more_may_die() {
    let mut cluster = Cluster::prepare(Shape { managers: 1, metas: 1, datas: 12, racks: 12 });
    let spares = ["data10", "data11", "data12"];
    let first: Vec<String> = cluster.names().into_iter().filter(|name| !spares.contains(&name.as_str())).collect();
    cluster.start_some(&first);
    cluster.wait_volume();
    cluster.ok(&["admin", "config", "set", "repair_delay=1s", "repair_delay_urgent=1s"]);
    let tree = cluster.path("tree");
    make_tree(&tree, 12, 7);
    fs::write(tree.join("large"), noise(4_000_000, 32)).expect("large");
    cluster.ok(&["fs", "mkdir", "--layout", "rs-6-3", "/shards"]);
    cluster.ok(&["fs", "put", &format!("{}/.", utf8(&tree)), "/shards"]);
    let check = |cluster: &Cluster, name: &str| {
        let back = cluster.path(name);
        cluster.ok(&["fs", "get", "/shards", utf8(&back)]);
        assert_same_tree(&tree, &back);
    };
    let lost = bearable(&cluster);
    for victim in lost {
        cluster.kill(victim);
        fs::remove_dir_all(cluster.disk(victim)).expect("destroyed");
    }
    check(&cluster, "without three");
    spares.iter().for_each(|spare| cluster.restart(spare));
    for victim in lost {
        wait_replaced(&cluster, victim);
    }
    cluster.wait_repaired();
    for victim in ["data2", "data5", "data11"] {
        assert!(groups_of(&cluster, victim) > 0, "{victim} has nothing to lose");
        cluster.kill(victim);
    }
    check(&cluster, "without six");
    assert_eq!(cluster.kills, 6, "every fault fired");
}

/// A disk that comes back after it was replaced would keep its space for ever, or serve what is old.
#[test]
fn a_replaced_disk_that_comes_back_gives_its_space_back() {
    let (mut cluster, tree) = with_trees();
    let disk = cluster.disk("data3");
    cluster.kill("data3");
    assert!(!chunks(&disk).is_empty(), "it has nothing");
    wait_replaced(&cluster, "data3");
    cluster.wait_repaired();
    // What is dead is named as long as it is, also when nothing needs it.
    let status = cluster.ok(&["admin", "status"]);
    assert!(status.contains("1 to look at:") && status.contains("`cairn admin node remove n"), "{status}");
    // Samples carry their role.
    let counted = |severity: &str| {
        let begins = format!("cairn_manager_problems{{role=\"manager\",severity=\"{severity}\"}}");
        cluster.metric("manager1", &begins)
    };
    assert_eq!(["critical", "warning", "notice"].map(counted), [0.0, 1.0, 0.0].map(Some), "{status}");
    cluster.restart("data3");
    eventually(&cluster, "the old chunks to go", || chunks(&disk).is_empty());
    cluster.wait_healthy();
    check_trees(&cluster, &tree, "after it");
    assert_eq!(cluster.kills, 1, "every fault fired");
}

/// With as many disks as shards, one full one would end all writing of new files.
#[test]
fn nine_disks_and_one_is_full() {
    let mut cluster = Cluster::prepare(Shape { managers: 1, metas: 1, datas: 9, racks: 9 });
    if !cluster.give_small_disk("data9", 440) {
        eprintln!("skipped: this system lets nobody mount a file system in a name space of its own");
        return;
    }
    cluster.allow_error("space");
    cluster.start_all();
    cluster.ok(&["admin", "config", "set", "disk_reserve=16m"]);
    cluster.wait_volume();
    cluster.ok(&["fs", "mkdir", "--layout", "rs-6-3", "/d"]);
    let content = |seed: u64| noise(6 * 65_536 * 200, seed);
    let local = cluster.path("local");
    let full = |cluster: &Cluster| cluster.ok(&["admin", "status"]).contains("are full up to the reserve");
    let (mut stored, mut after) = (Vec::new(), 0);
    for seed in 0..24 {
        after += u32::from(full(&cluster));
        if after > 3 {
            break;
        }
        fs::write(&local, content(seed)).expect("file");
        let target = format!("/d/{seed}");
        cluster.ok(&["fs", "put", utf8(&local), &target]);
        stored.push((seed, target));
    }
    assert!(after > 3, "no fault fired: the disk never was full: {}", cluster.ok(&["admin", "disk", "ls"]));
    for (seed, target) in &stored {
        let read = cluster.cairn(&["fs", "cat", target]);
        assert!(read.status.success() && read.stdout == content(*seed), "{target}");
    }
    // What was written without the full disk gets its last shard when there is room.
    for (_, target) in &stored[..stored.len() - 2] {
        cluster.ok(&["fs", "rm", "--skip-trash", target]);
    }
    cluster.wait_healthy();
    cluster.kill("data1");
    cluster.kill("data2");
    cluster.kill("data3");
    for (seed, target) in &stored[stored.len() - 2..] {
        let read = cluster.cairn(&["fs", "cat", target]);
        assert!(read.status.success() && read.stdout == content(*seed), "{target} without three others");
    }
    cluster.kill_all();
}
