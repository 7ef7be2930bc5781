//! Members of the manager's group: lost, replaced, added; and no second cluster, whoever is down.
use crate::support::{Cluster, Shape, free_ports, text};
use crate::wait::until;
use std::fs;

fn lose(cluster: &Cluster, name: &str) {
    fs::remove_dir_all(cluster.path("nodes").join(name)).expect("lost");
}

/// `(number, what it does, whether it answers)` of each manager.
fn table(cluster: &Cluster) -> Vec<(u64, String, bool)> {
    let said = cluster.ok(&["admin", "manager", "ls", "--json"]);
    let row = |line: &str| {
        let row: serde_json::Value = serde_json::from_str(line).expect("JSON");
        let part = match (row["leads"].as_bool(), row["votes"].as_bool()) {
            (Some(true), _) => "leads",
            (_, Some(true)) => "votes",
            _ => "catches up",
        };
        (row["id"].as_u64().expect("a number"), part.to_owned(), row["answers"].as_bool().expect("a flag"))
    };
    said.lines().map(row).collect()
}

/// Two managers with empty directories would be a majority, and begin a cluster that knows of no file, while the third,
/// which remembers everything, is down.
#[test]
fn two_lost_managers_begin_no_second_cluster() {
    let mut cluster = Cluster::start(Shape { managers: 3, metas: 1, datas: 1, racks: 1 });
    let lost = ["manager1", "manager2"];
    for name in ["manager1", "manager2", "manager3"] {
        cluster.kill(name);
    }
    lost.iter().for_each(|name| lose(&cluster, name));
    lost.iter().for_each(|name| cluster.launch(name));
    until("both to wait", || lost.iter().all(|name| cluster.read_log(name).contains("waits for the others")));
    let before = text(&cluster.cairn(&["--timeout", "2", "admin", "status"]).stdout);
    assert!(!before.contains("cluster "), "a second cluster: {before}");
    // Whoever waits can be stopped, and waits again.
    let pid = cluster.pid("manager2").to_string();
    assert!(std::process::Command::new("kill").args(["-TERM", &pid]).status().expect("kill").success());
    until("it to end", || cluster.read_log("manager2").contains("ended before it served"));
    cluster.kill("manager2");
    cluster.launch("manager2");
    cluster.launch("manager3");
    for name in lost {
        until("the refusal", || cluster.read_log(name).contains("only its leader knows"));
    }
    assert!(cluster.read_log("manager1").contains("restore the directory"));
    assert_eq!(cluster.kills, 4);
}

/// A cluster that began with one manager has to get more; one that lost a manager has to get it back.
#[test]
fn managers_are_added_removed_and_come_back_empty() {
    let mut cluster = Cluster::start(Shape { managers: 1, metas: 1, datas: 1, racks: 1 });
    let first = cluster.address.clone();
    let ports = free_ports(2);
    let address = |number: usize| match number {
        1 => first.clone(),
        _ => format!("127.0.0.1:{}", ports[number - 2]),
    };
    let all = (1..=3).map(|number| format!("\"{number}@{}\"", address(number))).collect::<Vec<_>>().join(", ");
    let configure = |cluster: &Cluster, number: usize| {
        let name = format!("manager{number}");
        let text = format!(
            "[node]\ndir = {:?}\nlisten = {:?}\nhttp = \"127.0.0.1:0\"\n[manager]\nmembers = [{all}]\nmember = {number}\n",
            cluster.path("nodes").join(&name).display().to_string(),
            address(number)
        );
        fs::write(cluster.path(&format!("{name}.toml")), text).expect("configuration");
    };
    for number in [2, 3] {
        let name = format!("manager{number}");
        cluster.add(&name, &address(number), 0, "");
        configure(&cluster, number);
        let manager = format!("{number}@{}", address(number));
        let early = cluster.cairn(&["admin", "manager", "add", &manager]);
        assert!(text(&early.stderr).contains("start the new manager first"), "{}", text(&early.stderr));
        cluster.launch(&name);
        until("it to listen", || {
            let output = cluster.cairn(&["admin", "manager", "add", &manager]);
            output.status.success()
        });
        cluster.wait_ready(&name);
    }
    assert_eq!(table(&cluster).iter().map(|(id, ..)| *id).collect::<Vec<_>>(), [1, 2, 3]);
    cluster.address = (1..=3).map(address).collect::<Vec<_>>().join(",");
    until("all to answer", || table(&cluster).iter().all(|(_, part, answers)| part != "catches up" && *answers));
    // The first one's directory is lost: it comes back empty under its number.
    configure(&cluster, 1);
    cluster.kill("manager1");
    lose(&cluster, "manager1");
    cluster.ok(&["fs", "mkdir", "/a"]);
    cluster.launch("manager1");
    until("the refusal", || cluster.read_log("manager1").contains("cairn admin manager remove 1"));
    cluster.kill("manager1");
    until("its removal", || cluster.cairn(&["admin", "manager", "remove", "1"]).status.success());
    assert_eq!(table(&cluster).len(), 2);
    cluster.launch("manager1");
    until("it to be added", || {
        cluster.cairn(&["admin", "manager", "add", &format!("1@{}", address(1))]).status.success()
    });
    cluster.wait_ready("manager1");
    // It counts: without another one the two go on.
    cluster.kill("manager2");
    cluster.ok(&["fs", "mkdir", "/b"]);
    until("a leader of the rest", || table(&cluster).iter().any(|(id, part, _)| part == "leads" && *id != 2));
    cluster.launch("manager2");
    cluster.wait_ready("manager2");
    // Who was removed may hear of it before it is ended, and says so.
    cluster.allow_error("the manager's state here is of a former member");
    // A leader that leaves hands over; and everything starts again with what the directories say.
    until("all to answer again", || table(&cluster).iter().all(|(_, _, answers)| *answers));
    let leader = table(&cluster).into_iter().find(|(_, part, _)| part == "leads").expect("a leader").0;
    until("its removal", || cluster.cairn(&["admin", "manager", "remove", &leader.to_string()]).status.success());
    assert_eq!(table(&cluster).len(), 2);
    cluster.kill(&format!("manager{leader}"));
    for number in (1..=3).filter(|number| *number != leader) {
        let name = format!("manager{number}");
        cluster.kill(&name);
        cluster.launch(&name);
        cluster.wait_ready(&name);
    }
    until("both to vote", || table(&cluster).iter().filter(|(_, _, answers)| *answers).count() == 2);
    assert_eq!(cluster.ok(&["fs", "ls", "/"]).split_whitespace().collect::<Vec<_>>(), ["a", "b"]);
}
