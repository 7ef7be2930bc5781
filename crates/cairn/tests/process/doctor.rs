//! `cairn doctor` on the machine of a running cluster.
use crate::support::{Cluster, Shape, text};
use serde_json::Value;
use std::fs;

fn look(cluster: &Cluster, config: &str, code: &[i32]) -> Vec<Value> {
    let output = cluster.cairn(&["doctor", "--json", "--config", config]);
    assert!(code.contains(&output.status.code().unwrap_or(-1)), "{output:?}");
    text(&output.stdout).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// An operator would look for what is wrong with a node by hand; or be told that all is well with one that cannot work.
#[test]
fn a_node_is_looked_at() {
    let mut cluster = Cluster::start(Shape { managers: 1, metas: 1, datas: 2, racks: 2 });
    let config = cluster.dir.path().join("data1.toml");
    let name = config.to_str().expect("utf-8").to_owned();
    // The machine of a test may have its own faults; those of the node are made below.
    let found = look(&cluster, &name, &[0, 1, 10]);
    let of = |found: &[Value], check: &str, level: &str| {
        let these = found.iter().filter(|f| f["check"] == check && f["level"] == level);
        these.map(|f| f["what"].as_str().expect("text").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(of(&found, "manager", "good").len(), 1, "{found:?}");
    assert_eq!(of(&found, "port", "good").len(), 1, "{found:?}");
    assert!(
        of(&found, "node", "good").iter().filter(|what| what.contains("clock is within")).count() >= 4,
        "{found:?}"
    );
    assert!(of(&found, "versions", "good")[0].contains(env!("CARGO_PKG_VERSION")), "{found:?}");
    assert!(of(&found, "disk", "good").iter().any(|what| what.contains("takes writes, syncs")), "{found:?}");
    let told = |f: &Value| ["why", "todo"].iter().all(|key| f[*key].as_str().is_some_and(|text| !text.is_empty()));
    assert!(found.iter().filter(|f| f["level"] != "good").all(told), "why and what to do: {found:?}");
    // A disk that is not mounted, and a manager that is gone.
    let wrong = cluster.path("wrong.toml");
    let text = fs::read_to_string(&config).expect("configuration");
    let disk = cluster.disk("data1").display().to_string();
    assert!(text.contains(&disk), "{text}");
    fs::write(&wrong, text.replace(&disk, &format!("{disk}-of-another-device"))).expect("configuration");
    cluster.kill("manager1");
    let found = look(&cluster, wrong.to_str().expect("utf-8"), &[1]);
    assert!(of(&found, "disk", "warning").iter().any(|what| what.contains("does not exist")), "{found:?}");
    assert_eq!((of(&found, "manager", "bad").len(), of(&found, "cluster", "bad").len()), (1, 1), "{found:?}");
    // In words, and with mistakes of the configuration.
    let output = cluster.cairn(&["doctor", "--config", &name]);
    assert!(crate::support::text(&output.stdout).contains("do:  "), "{output:?}");
    fs::write(&wrong, "nonsense = 1\n").expect("configuration");
    cluster.fails(&["doctor", "--config", wrong.to_str().expect("utf-8")], 11);
}
