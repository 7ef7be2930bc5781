//! What happened is told afterwards, by any manager, and to whoever looks on.
use crate::support::{Cluster, Shape};
use crate::wait::eventually;
use serde_json::Value;
use std::fs::{self, File};
use std::process::Stdio;

fn events(cluster: &Cluster, args: &[&str]) -> Vec<Value> {
    let said = cluster.ok(&[&["admin", "events", "--json"], args].concat());
    said.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn has(cluster: &Cluster, kind: &str, node: u64) -> bool {
    events(cluster, &["--kind", kind]).iter().any(|event| event["node"] == node || node == 0)
}

/// An operator could not say what happened at night, or in which order; or only until a manager is restarted.
#[test]
fn what_happened_is_told_afterwards() {
    let mut cluster = Cluster::start(Shape { managers: 3, metas: 1, datas: 3, racks: 3 });
    let local = cluster.path("local");
    fs::write(&local, vec![7; 100_000]).expect("local");
    cluster.ok(&["fs", "put", local.to_str().expect("utf-8"), "/f"]);
    let said = cluster.ok(&["admin", "node", "ls", "--json"]);
    let nodes: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let node = nodes.iter().find(|node| node["host"] == "data2").and_then(|node| node["id"].as_u64()).expect("a node");
    // Somebody looks on.
    let seen = cluster.path("seen");
    let mut follower = cluster
        .command(&["admin", "events", "--follow", "-n", "1"])
        .stdin(Stdio::null())
        .stdout(File::create(&seen).expect("file"))
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary starts");
    cluster.kill("data2");
    eventually(&cluster, "the node to be lost", || has(&cluster, "node-down", node));
    cluster.launch("data2");
    cluster.wait_ready("data2");
    cluster.wait_healthy();
    eventually(&cluster, "its groups to be whole", || has(&cluster, "groups-whole", 0));
    let name = format!("n{node}");
    let of_node = events(&cluster, &["--node", &name]);
    let kinds: Vec<&str> = of_node.iter().filter_map(|event| event["kind"].as_str()).collect();
    let down = kinds.iter().position(|kind| *kind == "node-down").expect("it fell");
    assert!(kinds[..down].contains(&"node-up") && kinds[down..].contains(&"node-up"), "{kinds:?}");
    assert!(kinds[..down].contains(&"disk-added"), "{kinds:?}");
    eventually(&cluster, "the one who looks on to see it", || {
        let seen = fs::read_to_string(&seen).unwrap_or_default();
        seen.contains("node-down") && seen.contains("groups-whole")
    });
    follower.kill().expect("it looked on");
    follower.wait().expect("ended");
    cluster.ok(&["admin", "drain", "start", "node", &name]);
    cluster.ok(&["admin", "drain", "cancel", "node", &name]);
    cluster.ok(&["admin", "config", "set", "repair_delay=20m"]);
    let before = events(&cluster, &[]);
    for kind in ["leader", "volume-made", "groups-made", "drain-begun", "drain-cancelled", "settings", "epochs"] {
        assert!(before.iter().any(|event| event["kind"] == kind), "{kind}: {before:?}");
    }
    assert!(before.windows(2).all(|pair| pair[0]["number"].as_u64() < pair[1]["number"].as_u64()));
    // All managers restart.
    let managers: Vec<String> = cluster.names().into_iter().filter(|name| name.starts_with("manager")).collect();
    managers.iter().for_each(|name| cluster.kill(name));
    managers.iter().for_each(|name| cluster.launch(name));
    managers.iter().for_each(|name| cluster.wait_ready(name));
    eventually(&cluster, "another leader to be noted", || {
        cluster.cairn(&["admin", "events"]).status.success()
            && events(&cluster, &["--kind", "leader"]).len()
                > before.iter().filter(|event| event["kind"] == "leader").count()
    });
    let after = events(&cluster, &[]);
    assert_eq!(after[..before.len()], before[..], "nothing is lost or other than before");
    let text = cluster.ok(&["admin", "events", "--kind", "node-down,settings", "--since", "1h", "--meaning"]);
    assert!(
        text.contains("fell silent") && text.contains("repair_delay=20m") && !text.contains("drain-begun"),
        "{text}"
    );
    assert!(text.contains("its groups go on without it"), "{text}");
    assert!(cluster.fails(&["admin", "events", "--kind", "nonsense"], 2).contains("node-down, disk-added"));
    assert!(cluster.fails(&["admin", "disk", "clear", "d1"], 3).contains("is not gray"));
}
