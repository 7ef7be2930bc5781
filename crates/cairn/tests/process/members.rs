//! Members of meta partitions: replaced when they are lost for ever, moved under load, whoever dies in the middle.
use crate::support::{Cluster, Shape, text};
use crate::wait::{LIMIT, until, until_told};
use std::collections::BTreeSet;
use std::process::Child;
use std::time::{Duration, Instant};

/// Three metas with a partition on all of them, and a fourth one that is spare.
fn with_spare() -> Cluster {
    let mut cluster = Cluster::start(Shape { managers: 3, metas: 3, datas: 1, racks: 2 });
    cluster.add("meta4", "127.0.0.1:0", 1, "[meta]\n");
    cluster.launch("meta4");
    cluster.wait_ready("meta4");
    assert_eq!(partition(&cluster)["nodes"].as_array().map(Vec::len), Some(3));
    cluster
}

/// What `admin partition ls` says of the only partition.
pub fn partition(cluster: &Cluster) -> serde_json::Value {
    let said = cluster.ok(&["admin", "partition", "ls", "--json"]);
    serde_json::from_str(said.lines().next().expect("a partition")).expect("JSON")
}

/// The node number of a process, as the map has it by its host.
pub fn node(cluster: &Cluster, name: &str) -> String {
    let said = cluster.ok(&["admin", "node", "ls", "--json"]);
    let nodes = said.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
    let found = nodes.into_iter().find(|node| node["host"] == name).expect("a node");
    format!("n{}", found["id"])
}

fn members(cluster: &Cluster) -> BTreeSet<String> {
    partition(cluster)["nodes"].as_array().expect("a list").iter().map(|id| format!("n{id}")).collect()
}

/// Name of the process that leads the partition.
pub fn leader(cluster: &Cluster) -> String {
    let mut found = None;
    until("a leader", || {
        let leader = format!("n{}", partition(cluster)["leader"]);
        let mut metas = (1..=4).map(|i| format!("meta{i}"));
        found = metas.find(|name| cluster.is_running(name) && node(cluster, name) == leader);
        found.is_some()
    });
    found.expect("just found")
}

/// Who left a moment ago is refused until it has dropped what it had.
fn until_taken(cluster: &Cluster, args: &[&str]) {
    let said = std::cell::RefCell::new(String::new());
    let taken = || {
        let output = cluster.cairn(args);
        *said.borrow_mut() = text(&output.stderr);
        output.status.success()
    };
    let told = || {
        format!("{}{}{}", said.borrow(), cluster.ok(&["admin", "partition", "ls"]), cluster.ok(&["admin", "status"]))
    };
    until_told("the change to be taken", taken, told);
}

fn settled(cluster: &Cluster) {
    let wanted = || partition(cluster)["target"].as_array().is_none_or(|target| target.is_empty());
    until_told("the members that are wanted", wanted, || cluster.ok(&["admin", "status"]));
}

/// Makes directories one after the other, in a process of its own; those acknowledged are in the file.
struct Load {
    job: Child,
    log: std::path::PathBuf,
}

impl Load {
    fn start(cluster: &Cluster, name: &str) -> Load {
        let log = cluster.path(&format!("{name}.done"));
        std::fs::write(&log, "").expect("log");
        let script = format!(
            "i=0; while :; do i=$((i+1)); {cairn} fs mkdir /{name}-$i && echo {name}-$i >> {log}; done",
            cairn = crate::support::binary(),
            log = log.display()
        );
        let mut command = std::process::Command::new("bash");
        command.args(["-c", &script]).env("CAIRN_CLUSTER", &cluster.address).stderr(std::process::Stdio::null());
        Load { job: command.spawn().expect("bash"), log }
    }

    /// Ends it; the names that were acknowledged.
    fn end(mut self) -> Vec<String> {
        self.stop();
        std::fs::read_to_string(&self.log).expect("log").lines().map(str::to_owned).collect()
    }

    /// Also when the test fails before: nothing is left behind.
    fn stop(&mut self) {
        self.job.kill().expect("kill");
        self.job.wait().expect("wait");
    }

    fn done(&self) -> usize {
        std::fs::read_to_string(&self.log).expect("log").lines().count()
    }

    /// Waits for some more.
    fn goes_on(&self) {
        let (begin, before) = (Instant::now(), self.done());
        while self.done() < before + 3 {
            assert!(begin.elapsed() < LIMIT, "nothing was made any more after {before}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop();
    }
}

fn all_there(cluster: &Cluster, names: &[String]) {
    let there: BTreeSet<String> = cluster.ok(&["fs", "ls", "/"]).split_whitespace().map(str::to_owned).collect();
    let lost: Vec<&String> = names.iter().filter(|name| !there.contains(*name)).collect();
    assert!(lost.is_empty(), "of {} acknowledged names {lost:?} are gone", names.len());
}

/// A meta node whose machine burnt down would leave its partitions with one loss less to survive, for ever.
#[test]
fn a_member_lost_for_ever_is_replaced() {
    let mut cluster = with_spare();
    let load = Load::start(&cluster, "a");
    load.goes_on();
    let (gone, new) = (leader(&cluster), node(&cluster, "meta4"));
    let old = node(&cluster, &gone);
    cluster.kill(&gone);
    std::fs::remove_dir_all(cluster.path("nodes").join(&gone)).expect("lost");
    load.goes_on();
    // What the operator is told to do works as it is written.
    let (hint, status) = (format!("`cairn admin partition move all {old}`"), || cluster.ok(&["admin", "status"]));
    until_told(&hint, || status().contains(&hint), status);
    let said = cluster.ok(&["admin", "partition", "move", "all", &old]);
    assert!(said.contains("partition 1 has the members") && said.contains(&new), "{said}");
    let now = members(&cluster);
    assert!(now.len() == 3 && now.contains(&new) && !now.contains(&old), "{now:?}");
    load.goes_on();
    // The new one counts: another loss is survived.
    let next = leader(&cluster);
    cluster.kill(&next);
    load.goes_on();
    let names = load.end();
    cluster.launch(&next);
    cluster.wait_ready(&next);
    all_there(&cluster, &names);
    assert_eq!(cluster.kills, 2);
}

/// Acknowledged names would be lost, or clients stay behind, if leadership and members moved the wrong way.
#[test]
fn a_partition_moves_under_load() {
    let cluster = with_spare();
    let loads: Vec<Load> = ["x", "y"].iter().map(|name| Load::start(&cluster, name)).collect();
    let mut spare = node(&cluster, "meta4");
    for round in 0..3 {
        loads.iter().for_each(Load::goes_on);
        // The leader itself leaves, each time another one.
        let old = node(&cluster, &leader(&cluster));
        until_taken(&cluster, &["admin", "partition", "move", "p1", &old, &spare]);
        let now = members(&cluster);
        assert!(now.len() == 3 && now.contains(&spare) && !now.contains(&old), "round {round}: {now:?}");
        // Who did not hear the answer may ask again.
        cluster.ok(&["admin", "partition", "move", "p1", &old, &spare]);
        spare = old;
    }
    loads.iter().for_each(Load::goes_on);
    let names: Vec<String> = loads.into_iter().flat_map(Load::end).collect();
    assert!(names.len() > 15);
    all_there(&cluster, &names);
    // Down to one member, and up again with nodes that were members before.
    let all: Vec<String> = members(&cluster).into_iter().collect();
    cluster.ok(&["admin", "partition", "remove", "1", &all[0], &all[1]]);
    assert_eq!(members(&cluster), BTreeSet::from([all[2].clone()]));
    all_there(&cluster, &names);
    until_taken(&cluster, &["admin", "partition", "add", "1", &all[0], &spare]);
    assert_eq!(members(&cluster).len(), 3);
    cluster.fails(&["admin", "partition", "remove", "1", &all[0]], 2);
    all_there(&cluster, &names);
    cluster.wait_healthy();
}

/// A change that stops half-way when somebody dies would stay half-way, or begin a second partition.
#[test]
fn a_change_survives_the_death_of_everybody_who_takes_part() {
    let mut cluster = with_spare();
    let load = Load::start(&cluster, "k");
    load.goes_on();
    let mut spare = node(&cluster, "meta4");
    let mut pause = 0;
    for victim in ["new", "leader", "manager", "all"] {
        let names: Vec<String> = (1..=4).map(|i| format!("meta{i}")).collect();
        let leads = leader(&cluster);
        // A member that does not lead leaves, so that the leader has to carry the change.
        let stays = |name: &&String| **name != leads && node(&cluster, name) != spare;
        let old = node(&cluster, names.iter().find(stays).expect("three members"));
        let new = names.iter().find(|name| node(&cluster, name) == spare).expect("there").clone();
        until_taken(&cluster, &["admin", "partition", "move", "1", &old, &spare, "--no-wait"]);
        // Each time at another moment.
        std::thread::sleep(Duration::from_millis(pause));
        pause += 250;
        let victims: Vec<String> = match victim {
            "new" => vec![new],
            "leader" => vec![leads],
            "manager" => (1..=3).map(|i| format!("manager{i}")).take(1).collect(),
            _ => cluster.names(),
        };
        victims.iter().for_each(|name| cluster.kill(name));
        cluster.start_all();
        settled(&cluster);
        let now = members(&cluster);
        assert!(now.len() == 3 && now.contains(&spare) && !now.contains(&old), "{victim}: {now:?}");
        load.goes_on();
        spare = old;
    }
    let names = load.end();
    all_there(&cluster, &names);
    assert_eq!(cluster.kills, 3 + cluster.names().len());
}

/// A partition without a majority would be changed into one that has forgotten names.
#[test]
fn without_a_majority_nothing_is_changed() {
    let mut cluster = with_spare();
    let leads = leader(&cluster);
    let dead: Vec<String> = (1..=3).map(|i| format!("meta{i}")).filter(|name| *name != leads).collect();
    let (old, new) = (node(&cluster, &dead[0]), node(&cluster, "meta4"));
    dead.iter().for_each(|name| cluster.kill(name));
    // The old leader holds its lease for a moment.
    let status = || cluster.ok(&["admin", "status"]);
    until_told("no leader", || status().contains("p1 (volume default) reports no leader"), status);
    let error = text(&cluster.cairn(&["admin", "partition", "move", "1", &old, &new, "--no-wait"]).stderr);
    assert!(error.contains("has no leader now") && error.contains("a majority of its members"), "{error}");
    cluster.start_all();
    cluster.wait_healthy();
}
