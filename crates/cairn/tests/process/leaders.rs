//! Leaders of partitions spread over the meta nodes.
use crate::support::{Cluster, Shape, lines};
use crate::wait::until_told;

/// How many partitions each meta node leads, or nothing while one has no leader.
fn led(cluster: &Cluster) -> Option<Vec<u64>> {
    let status = &lines(cluster, &["admin", "status"])[0];
    let leaderless = status["leaders"].as_array()?.iter().any(|leader| leader["node"] == 0);
    let metas = lines(cluster, &["admin", "node", "ls"]);
    let metas = metas.iter().filter(|node| node["roles"].as_array().is_some_and(|r| r.contains(&"meta".into())));
    (!leaderless).then(|| metas.map(|node| node["partitions_led"].as_u64().expect("a number")).collect())
}

fn difference(led: &[u64]) -> u64 {
    led.iter().max().unwrap_or(&0) - led.iter().min().unwrap_or(&0)
}

fn transfers(cluster: &Cluster) -> usize {
    cluster.read_log("manager1").matches("a leadership goes to a node that leads less").count()
}

/// After each restart of a meta node the others would keep what it led, until one node does the work of all.
#[test]
fn leaders_spread_again_after_a_restart() {
    let mut cluster = Cluster::start(Shape { managers: 1, metas: 3, datas: 1, racks: 1 });
    cluster.ok(&["admin", "config", "set", "spread_leaders_after=0s"]);
    for number in 1..6 {
        cluster.ok(&["admin", "volume", "create", &format!("v{number}"), "--layout", "r1"]);
    }
    let told = || cluster.ok(&["admin", "node", "ls"]);
    until_told("leaders of all partitions", || led(&cluster).is_some_and(|led| led.iter().sum::<u64>() == 6), told);
    // Who starts anew leads nothing, and two others lead six.
    cluster.kill("meta1");
    let piled = |cluster: &Cluster| led(cluster).is_some_and(|led| led.iter().sum::<u64>() == 6 && led.contains(&0));
    until_told("the others to lead", || piled(&cluster), || cluster.ok(&["admin", "node", "ls"]));
    cluster.restart("meta1");
    cluster.wait_healthy();
    assert_eq!(transfers(&cluster), 0, "nobody was to move anything");
    cluster.ok(&["admin", "config", "set", "spread_leaders_after=1s"]);
    let told = || cluster.ok(&["admin", "node", "ls"]);
    until_told("leaders to spread", || led(&cluster).is_some_and(|led| difference(&led) < 2), told);
    assert!(cluster.ok(&["admin", "status"]).contains("partitions  6, led by"));
    println!("leaders: {} transfers", transfers(&cluster));
    cluster.ok(&["fs", "mkdir", "/d", "v3:/d"]);
    assert_eq!(cluster.kills, 1);
}
