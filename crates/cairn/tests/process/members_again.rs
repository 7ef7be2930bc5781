//! Members of a partition that leave and come again.
use crate::support::{Cluster, Shape, lines};
use crate::wait::eventually;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// The command would hang, and the partition be left with members that take no part: who comes again at once still has
/// what it had.
#[test]
fn who_left_is_refused_until_it_has_dropped_what_it_had() {
    let cluster = Cluster::start(Shape { managers: 1, metas: 3, datas: 1, racks: 1 });
    let said = cluster.ok(&["admin", "partition", "ls", "--json"]);
    let row: Value = serde_json::from_str(said.lines().next().expect("a partition")).expect("JSON");
    let members: Vec<String> =
        row["nodes"].as_array().expect("members").iter().map(|node| format!("n{node}")).collect();
    assert_eq!(members.len(), 3, "{said}");
    let leader = format!("n{}", row["leader"]);
    let others: Vec<&str> = members.iter().filter(|node| **node != leader).map(String::as_str).collect();
    cluster.ok(&["fs", "mkdir", "/before"]);
    // One of them hears nothing until it has been refused, however long the commands take.
    let nodes = lines(&cluster, &["admin", "node", "ls"]);
    let deaf = nodes.iter().find(|node| format!("n{}", node["id"]) == others[0]).expect("it is listed");
    let deaf = cluster.pid(deaf["host"].as_str().expect("its host is the name of the process"));
    let signal = |signal| kill_process(Pid::from_raw(deaf as i32).expect("a process"), signal).expect("a signal");
    signal(Signal::STOP);
    cluster.ok(&["admin", "partition", "remove", "1", others[0], others[1]]);
    let refused = cluster.fails(&["admin", "partition", "add", "1", others[0], others[1]], 12);
    assert!(refused.contains("may still have what it had") && refused.contains(others[0]), "{refused}");
    signal(Signal::CONT);
    eventually(&cluster, "them to be taken again", || {
        cluster.cairn(&["admin", "partition", "add", "1", others[0], others[1]]).status.success()
    });
    let said = cluster.ok(&["admin", "partition", "ls", "--json"]);
    let row: Value = serde_json::from_str(said.lines().next().expect("a partition")).expect("JSON");
    assert_eq!(row["nodes"].as_array().map(Vec::len), Some(3), "{said}");
    cluster.ok(&["fs", "mkdir", "/after"]);
    assert!(cluster.ok(&["fs", "ls", "/"]).contains("before"));
}
