//! Disks that are destroyed for good: what only they held is given up, by explicit word, and nothing else.
use crate::support::{Cluster, Shape, text};
use crate::trees::noise;
use crate::wait::eventually;
use std::fs;

/// Groups that cannot be read, with the disks that they wait for.
pub fn waiting(cluster: &Cluster) -> Vec<(u64, Vec<u64>)> {
    let said = cluster.ok(&["admin", "pg", "ls", "--unhealthy", "--json"]);
    let pgs = said.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
    let disks = |pg: &serde_json::Value| {
        let members = pg["members"].as_array().expect("a list").iter();
        let waiting = members.filter(|member| member["state"] == "waiting");
        waiting.map(|member| member["disk"].as_u64().expect("a number")).collect::<Vec<_>>()
    };
    let found = pgs.filter(|pg| pg["health"] == "waiting").map(|pg| (pg["pg"].as_u64().expect("a number"), disks(&pg)));
    found.filter(|(_, disks)| !disks.is_empty()).collect()
}

/// Files that a stale copy has could never be read again, or what it lacks would be read as something else.
#[test]
fn destroyed_disks_are_given_up() {
    let mut cluster = Cluster::start(Shape { managers: 1, metas: 1, datas: 3, racks: 3 });
    let (early, late) = (noise(3_000_000, 21), noise(2_000_000, 22));
    for (name, data) in [("early", &early), ("late", &late)] {
        fs::write(cluster.path(name), data).expect("file");
    }
    let local = |cluster: &Cluster, name: &str| cluster.path(name).to_str().expect("utf-8").to_owned();
    cluster.ok(&["fs", "put", &local(&cluster, "early"), "/early"]);
    cluster.kill("data3");
    eventually(&cluster, "it to leave all groups", || {
        let said = cluster.ok(&["admin", "pg", "ls", "--json"]);
        said.lines().all(|line| line.contains("\"offline\""))
    });
    cluster.ok(&["fs", "put", &local(&cluster, "late"), "/late"]);
    // The two that have everything go, first together with the third, then for ever.
    for name in ["data1", "data2"] {
        cluster.kill(name);
        fs::remove_dir_all(cluster.disk(name)).expect("destroyed");
    }
    cluster.restart("data3");
    eventually(&cluster, "the groups to wait for both", || {
        cluster.ok(&["admin", "status"]).contains("`cairn admin pg force` gives it up")
            && waiting(&cluster).iter().filter(|(_, disks)| disks.len() == 2).count() >= 4
    });
    // A group that was made in between has nothing that could be lost.
    let groups: Vec<_> = waiting(&cluster).into_iter().filter(|(_, disks)| disks.len() == 2).collect();
    for (pg, disks) in &groups {
        let (pg, lost) = (pg.to_string(), disks.iter().map(|disk| format!("d{disk}")).collect::<Vec<_>>());
        let mut force = vec!["admin", "pg", "force", &pg];
        lost.iter().for_each(|disk| force.extend(["--lost", disk]));
        // Nothing happens without the word, nor to a disk that serves.
        let told = cluster.cairn(&force);
        assert_eq!(told.status.code(), Some(2), "{}", text(&told.stderr));
        assert!(text(&told.stdout).contains("are given up for good"), "{}", text(&told.stdout));
        assert!(text(&told.stderr).contains("--yes-lose-data"));
        assert!(waiting(&cluster).iter().any(|(waits, _)| waits.to_string() == pg), "nothing was done");
        force.push("--yes-lose-data");
        let done = cluster.ok(&force);
        assert!(done.contains("done: the last complete copies"), "{done}");
        let again = cluster.cairn(&force);
        assert!(text(&again.stderr).contains("waits for no disk"), "{}", text(&again.stderr));
    }
    let back = cluster.path("back");
    eventually(&cluster, "the early file to be read", || {
        cluster.cairn(&["--timeout", "5", "fs", "get", "/early", &back.display().to_string()]).status.success()
    });
    assert!(fs::read(&back).expect("back") == early, "the stale copy has other bytes");
    let lost = cluster.cairn(&["--timeout", "5", "fs", "cat", "/late"]);
    assert!(!lost.status.success() && !late.starts_with(b"\0"), "what is lost is an error");
    assert!(lost.stdout.is_empty() || late.starts_with(&lost.stdout), "and never other bytes");
    assert!(!groups.is_empty() && cluster.kills == 3);
}
