//! A volume of several meta partitions: made, used while a meta node is away, and gone with all of them.
use crate::members::node;
use crate::support::{Cluster, Shape, lines, text};
use crate::wait::{eventually, until, until_told};
use serde_json::Value;
use std::fs;

/// The partitions of a volume, in the order of their inodes.
fn partitions(cluster: &Cluster, volume: &str) -> Vec<Value> {
    let all = lines(cluster, &["admin", "partition", "ls"]);
    all.into_iter().filter(|partition| partition["volume"] == volume).collect()
}

/// How many partitions of the volume have a leader.
fn led(cluster: &Cluster) -> usize {
    partitions(cluster, "v").iter().filter(|partition| partition["leader"] != 0).count()
}

fn number(partition: &Value, key: &str) -> u64 {
    partition[key].as_u64().expect("a number")
}

/// Partitions in the list on a meta node's disk.
fn kept(cluster: &Cluster, meta: &str) -> usize {
    let list = cluster.path("nodes").join(meta).join("meta/partitions");
    lines(cluster, &["inspect", list.to_str().expect("UTF-8")]).iter().filter(|line| line["partition"].is_u64()).count()
}

/// The volume would be unusable with a meta node less, or leave partitions behind that nobody ever drops.
#[test]
fn a_volume_of_three_partitions_serves_and_goes() {
    let mut cluster = Cluster::start(Shape { managers: 1, metas: 3, datas: 2, racks: 1 });
    for (count, said) in [("0", "at least one partition"), ("4097", "at most 4096 partitions")] {
        let refused = cluster.cairn(&["admin", "volume", "create", "v", "--layout", "r2", "--partitions", count]);
        assert!(!refused.status.success() && text(&refused.stderr).contains(said), "{}", text(&refused.stderr));
    }
    let create = || cluster.cairn(&["admin", "volume", "create", "v", "--layout", "r2", "--partitions", "3"]);
    // The first time it may be a moment too early for the feature level.
    let made = || {
        let output = create();
        output.status.success().then(|| text(&output.stdout))
    };
    until_told("the volume", || made().is_some_and(|said| said.contains("3 partitions")), || text(&create().stderr));
    until("leaders of all three", || led(&cluster) == 3);
    let made = partitions(&cluster, "v");
    assert_eq!((number(&made[0], "inode_first"), number(&made[2], "inode_last")), (1, (3 << 40) - 1));
    assert!(made.windows(2).all(|pair| number(&pair[0], "inode_last") + 1 == number(&pair[1], "inode_first")));
    assert!(made.iter().all(|partition| partition["nodes"].as_array().is_some_and(|nodes| nodes.len() == 3)));
    let volumes = lines(&cluster, &["admin", "volume", "ls"]);
    let listed = volumes.iter().find(|volume| volume["name"] == "v").expect("listed");
    assert_eq!(listed["partitions"].as_array().map(Vec::len), Some(3));
    assert!(cluster.ok(&["admin", "status"]).contains("partitions  4, led by"));
    assert_eq!(cluster.ok(&["admin", "partition", "ls", "v"]).lines().count(), 4);
    assert!(cluster.fails(&["admin", "partition", "ls", "w"], 3).contains("no volume"));

    let local = cluster.path("local");
    fs::write(&local, vec![7u8; 300_000]).expect("a file");
    let put = |cluster: &Cluster, path: &str| cluster.ok(&["fs", "put", local.to_str().expect("UTF-8"), path]);
    cluster.ok(&["fs", "mkdir", "v:/d", "v:/d/e"]);
    put(&cluster, "v:/d/e/one");
    assert_eq!(cluster.cairn(&["fs", "cat", "v:/d/e/one"]).stdout, vec![7; 300_000]);
    assert!(cluster.ok(&["admin", "fsck", "v"]).contains("0 findings"));

    // Who leads the root dies.
    let root = partitions(&cluster, "v").remove(0);
    let leads = format!("n{}", root["leader"]);
    let victim = ["meta1", "meta2", "meta3"].into_iter().find(|name| node(&cluster, name) == leads).expect("a leader");
    cluster.kill(victim);
    let list = || cluster.cairn(&["fs", "ls", "v:/d/e"]);
    until_told("another leader", || list().stdout == b"one\n", || text(&list().stderr));
    put(&cluster, "v:/d/two");
    assert_eq!(cluster.cairn(&["fs", "cat", "v:/d/two"]).stdout, vec![7; 300_000]);
    eventually(&cluster, "leaders of all", || led(&cluster) == 3);

    // It goes with all its partitions, also on the node that is away.
    let refusal = || cluster.cairn(&["admin", "volume", "delete", "v"]);
    until_told("a count of its files", || refusal().status.code() == Some(19), || text(&refusal().stderr));
    cluster.ok(&["fs", "rm", "-r", "--skip-trash", "v:/d"]);
    let deleted = || refusal().status.success() || partitions(&cluster, "v").is_empty();
    until_told("the end of the volume", deleted, || text(&refusal().stderr));
    assert!(partitions(&cluster, "v").is_empty());
    let others: Vec<&str> = ["meta1", "meta2", "meta3"].into_iter().filter(|name| *name != victim).collect();
    eventually(&cluster, "the end of its partitions", || others.iter().all(|meta| kept(&cluster, meta) == 1));
    assert_eq!(kept(&cluster, victim), 4, "it has heard of nothing");
    cluster.restart(victim);
    eventually(&cluster, "the end of what it had", || kept(&cluster, victim) == 1);
    cluster.wait_healthy();
    assert_eq!(cluster.kills, 1);
}
