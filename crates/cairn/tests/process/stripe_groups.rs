//! Stripe groups with real processes: copies of staged layouts lie as they are to be encoded, and stay so when servers
//! die; other files lie elsewhere.
use crate::support::{Cluster, Shape, lines, text};
use crate::trees::noise;
use crate::wait::{eventually, until, until_told};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

const MIB: usize = 1 << 20;

pub fn put(cluster: &Cluster, bytes: &[u8], path: &str) {
    let local = cluster.path("local");
    fs::write(&local, bytes).expect("file");
    cluster.ok(&["fs", "put", local.to_str().expect("utf-8"), path]);
}

pub fn check(cluster: &Cluster, path: &str, bytes: &[u8]) {
    let read = cluster.cairn(&["fs", "cat", path]);
    assert!(read.status.success() && read.stdout == bytes, "{path}: {}", text(&read.stderr));
}

/// Placement groups in which a file has bytes.
fn groups_of(cluster: &Cluster, path: &str) -> BTreeSet<u64> {
    let stat = lines(cluster, &["fs", "stat", "--extents", path]).remove(0);
    let extents = stat["extents"].as_array().expect("extents").iter();
    extents.filter_map(|extent| extent["pg"].as_u64()).collect()
}

/// All groups by their numbers.
fn groups(cluster: &Cluster) -> BTreeMap<u64, Value> {
    let all = lines(cluster, &["admin", "pg", "ls"]);
    all.into_iter().map(|pg| (pg["pg"].as_u64().expect("a number"), pg)).collect()
}

/// The racks of a group's members, in order.
fn racks_of(cluster: &Cluster, pg: &Value) -> Vec<String> {
    let nodes = lines(cluster, &["admin", "node", "ls"]);
    let rack = |node: &Value| {
        let found = nodes.iter().find(|n| n["id"] == *node).expect("a node");
        found["rack"].as_str().expect("a rack").to_owned()
    };
    pg["members"].as_array().expect("members").iter().map(|member| rack(&member["node"])).collect()
}

/// Copies would lie where encoding has to read across racks, or be put there by repair; plain files would be placed for
/// encoding; or what waits be unreadable, or stay copies, because of it.
#[test]
fn copies_that_wait_lie_as_they_are_encoded() {
    let mut cluster = Cluster::start(Shape { managers: 1, metas: 1, datas: 9, racks: 3 });
    // With too few places at a time lost members go to other racks at once: copies come before placement.
    let places = "repair_in_flight_per_disk=100";
    let settings = ["stripe_groups=on", "repair_delay_urgent=1s", "repair_delay=2s", places];
    let set = || cluster.cairn(&[&["admin", "config", "set"], &settings[..]].concat());
    until_told("the setting is taken", || set().status.success(), || text(&set().stderr));
    for (layout, path) in [("r3>rs-3-2", "/warm"), ("r3", "/plain")] {
        cluster.ok(&["fs", "mkdir", path]);
        until("the layout is taken", || cluster.cairn(&["fs", "layout", "set", layout, path]).status.success());
    }
    let told = text(&cluster.cairn(&["fs", "layout", "set", "r3>rs-3-2", "/warm"]).stderr);
    assert!(told.contains("their copies lie in two racks, of which one may fail"), "{told}");
    let bytes = noise(3 * MIB + 7, 1);
    ["/warm/f", "/warm/g", "/plain/f"].iter().for_each(|path| put(&cluster, &bytes, path));
    let all = groups(&cluster);
    let columns =
        |all: &BTreeMap<u64, Value>| all.values().filter(|pg| !pg["stripe"].is_null()).cloned().collect::<Vec<_>>();
    assert!(columns(&all).len() >= 9, "a stripe group of three columns for each rack");
    for column in columns(&all) {
        let (racks, stripe) = (racks_of(&cluster, &column), &column["stripe"]);
        assert!(stripe["core_rack"] == racks[0].as_str() && racks[1] == racks[2] && racks[0] != racks[1], "{column}");
        assert_eq!(
            (&stripe["in_rack"], &stripe["rack_capacity"], &stripe["rack_failures"]),
            (&true.into(), &2.into(), &1.into())
        );
        assert_eq!((&stripe["later"], &column["writable"]), (&"rs-3-2".into(), &true.into()));
    }
    for (path, is_column) in [("/warm/f", true), ("/warm/g", true), ("/plain/f", false)] {
        let found = groups_of(&cluster, path);
        assert!(
            !found.is_empty() && found.iter().all(|pg| all[pg]["stripe"].is_null() != is_column),
            "{path}: {found:?}"
        );
    }
    let pg = *groups_of(&cluster, "/warm/f").first().expect("a group");
    let shown = cluster.ok(&["admin", "pg", &pg.to_string()]);
    assert!(shown.contains("filling: column ") && shown.contains("in its core rack: the copy of d"), "{shown}");
    // The core member of the file's group is lost for good.
    let node = all[&pg]["members"][0]["node"].clone();
    let listed = lines(&cluster, &["admin", "disk", "ls"]);
    let path =
        listed.iter().find(|disk| disk["node"] == node).expect("its disk")["path"].as_str().expect("a path").to_owned();
    let victim = (1..=9).map(|i| format!("data{i}")).find(|name| cluster.disk(name).display().to_string() == path);
    cluster.kill(&victim.expect("a data node"));
    let repaired = |cluster: &Cluster| {
        let all = groups(cluster);
        let lost = |pg: &&Value| pg["members"].as_array().expect("members").iter().any(|member| member["node"] == node);
        !all.values().any(|pg| lost(&pg)) && all.values().all(|pg| pg["health"] == "complete")
    };
    eventually(&cluster, "others to have its places", || repaired(&cluster));
    for column in columns(&groups(&cluster)) {
        assert_eq!(column["stripe"]["in_rack"], true, "{column}");
        assert_eq!(column["stripe"]["core_rack"], racks_of(&cluster, &column)[0].as_str(), "{column}");
    }
    ["/warm/f", "/warm/g", "/plain/f"].iter().for_each(|path| check(&cluster, path, &bytes));
    let told = cluster.ok(&["fs", "layout", "encode", "/warm/f"]);
    assert!(told.contains("1 encoded"), "{told}");
    assert!(groups_of(&cluster, "/warm/f").iter().all(|pg| groups(&cluster)[pg]["stripe"].is_null()));
    check(&cluster, "/warm/f", &bytes);
    // Off again: what is there stays, and nothing more comes.
    cluster.ok(&["admin", "config", "set", "stripe_groups=off"]);
    put(&cluster, &bytes, "/warm/h");
    assert!(groups_of(&cluster, "/warm/h").iter().all(|pg| groups(&cluster)[pg]["stripe"].is_null()));
    ["/warm/g", "/warm/h"].iter().for_each(|path| check(&cluster, path, &bytes));
    assert_eq!(cluster.kills, 1, "every fault fired");
    cluster.ok(&["admin", "fsck"]);
}
