//! `cairn admin status`: one screen.
use super::{age, status};
use crate::context::Context;
use crate::error::Result;
use crate::human::bytes;
use cairn_client::admin::status::{ClusterMap, ClusterStatus, Problem, ProblemSeverity, WithoutKey};
use cairn_client::map::{Disk, Node};
use clap::Args;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Partitions named in one line.
const PARTITIONS_NAMED: usize = 10;

#[derive(Args, Debug)]
pub struct StatusArgs {}

impl StatusArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        let (status, map) = status(context).await?;
        if context.out.is_json() {
            return context.out.json(&status_json(&status, &map));
        }
        lines(&status, &map).iter().try_for_each(|line| context.out.line(line))
    }
}

/// Size and free bytes of all disks in service. Disks on one file system share them.
pub fn disk_sums(map: &ClusterMap) -> (u64, u64) {
    let mut counted = BTreeSet::new();
    let own = in_service(map).filter(|disk| disk.filesystem == 0 || counted.insert(disk.filesystem));
    own.fold((0, 0), |(total, free), disk| (total + disk.total_bytes, free + disk.free_bytes))
}

/// What of the free bytes data may take; what managers do not tell counts as all that is free.
pub fn writable_sum(map: &ClusterMap) -> u64 {
    let mut counted = BTreeSet::new();
    let own = in_service(map).filter(|disk| disk.filesystem == 0 || counted.insert(disk.filesystem));
    own.map(|disk| disk.writable_bytes.unwrap_or(disk.free_bytes)).sum()
}

/// Disks in service whose nodes are up. The managers keep the state of a disk while its node is away.
fn in_service(map: &ClusterMap) -> impl Iterator<Item = &Disk> {
    let down: BTreeSet<u32> = map.nodes.iter().filter(|node| !node.up).map(|node| node.id).collect();
    map.disks.iter().filter(move |disk| disk.is_in_service() && !down.contains(&disk.node))
}

fn nodes_of<'a>(map: &'a ClusterMap, role: &str) -> Vec<&'a Node> {
    map.nodes.iter().filter(|node| !node.removed && node.roles.iter().any(|r| r == role)).collect()
}

fn lines(status: &ClusterStatus, map: &ClusterMap) -> Vec<String> {
    let leader = map.nodes.iter().find(|node| node.id == status.leader_node);
    let leader = leader.map_or_else(|| format!("n{}", status.leader_node), |n| format!("n{} at {}", n.id, n.address));
    let mut lines = vec![format!("cluster     {}", map.cluster.to_string())];
    if !map.name.is_empty() {
        lines.push(format!("name        {}", map.name));
    }
    lines.push(format!("managers    {} voting, led by {leader} (term {})", status.managers.len(), status.term));
    for role in ["meta", "data"] {
        let nodes = nodes_of(map, role);
        let up = nodes.iter().filter(|node| node.up).count();
        let mut racks: Vec<&str> = nodes.iter().map(|node| node.rack.as_str()).filter(|r| !r.is_empty()).collect();
        racks.sort_unstable();
        racks.dedup();
        let racks = match racks.len() {
            0 => String::new(),
            1 => ", 1 rack".into(),
            several => format!(", {several} racks"),
        };
        lines.push(format!("{:<11} {} of {} nodes up{racks}", role, up, nodes.len()));
    }
    let in_service = in_service(map).count();
    let (total, free) = disk_sums(map);
    let used = total.saturating_sub(free);
    let percent = if total > 0 { used as f64 * 100.0 / total as f64 } else { 0.0 };
    lines.push(format!(
        "disks       {in_service} of {} in service; {} in all, {} free ({percent:.0} % used)",
        map.disks.iter().filter(|disk| !disk.is_removed()).count(),
        bytes(total),
        bytes(free)
    ));
    lines.extend(nearly_full(percent));
    let pgs = status.pgs;
    let all = pgs.complete + pgs.degraded + pgs.read_only + pgs.waiting;
    let mut text = format!("groups      {} of {all} complete", pgs.complete);
    for (count, what) in [
        (pgs.degraded, "degraded (readable and writable with fewer copies)"),
        (pgs.read_only, "read-only (too few copies for writes)"),
        (pgs.waiting, "waiting for their last copy to come back (not readable)"),
        (pgs.closed, "full"),
    ] {
        if count > 0 {
            text.push_str(&format!(", {count} {what}"));
        }
    }
    lines.push(text);
    lines.extend(leaders(map));
    lines.push(features(status, map));
    let inodes: u64 = status.partitions.iter().map(|p| p.inodes).sum();
    let contents: u64 = status.partitions.iter().map(|p| p.file_bytes).sum();
    let volumes = map.volumes.iter().filter(|volume| !volume.deleted).count();
    let inodes = if inodes == 1 { "1 inode".into() } else { format!("{inodes} inodes") };
    lines.push(format!("volumes     {volumes}, with {inodes} and {} in files{}", bytes(contents), unheard(map)));
    let down: Vec<String> = map
        .nodes
        .iter()
        // Who was a manager and is none any more is not missed.
        .filter(|node| !node.up && !node.removed && !node.roles.is_empty())
        .map(|node| format!("n{} ({}, last heard {} ago)", node.id, node.address, age(node.last_heard_ms)))
        .collect();
    if !down.is_empty() {
        lines.push(format!("down        {}", down.join(", ")));
    }
    lines.extend(status.hibernations.iter().map(|h| format!("hibernates  {}", super::hibernate::sentence(h))));
    lines.extend(status.drains.iter().map(|drain| format!("drained     {}", super::drain::sentence(drain))));
    lines.extend(without_key(status));
    lines.push(String::new());
    lines.extend(problems(status));
    lines
}

/// Who speaks without a key where servers have keys: on the way to a cluster that requires them this is to be nobody.
fn without_key(status: &ClusterStatus) -> Vec<String> {
    let line = |all: &[WithoutKey], what: &str| {
        let name = |one: &WithoutKey| {
            let nodes = one.nodes.iter().map(|node| format!("n{node}")).collect();
            format!("{} (to {})", one.who, up_to(PLAIN_NODES_NAMED, nodes))
        };
        let names = up_to(PLAIN_NAMED, all.iter().map(name).collect());
        (!all.is_empty()).then(|| format!("no key      {what}: {names}"))
    };
    let served = line(&status.plain, "served, as security.mode of these servers lets them be");
    let refused = line(&status.plain_refused, "came in the last 10 min, and are refused; give them keys (cairn key)");
    served.into_iter().chain(refused).collect()
}

/// What the sums of inodes and bytes lack.
fn unheard(map: &ClusterMap) -> String {
    match leaderless(map).len() {
        0 => String::new(),
        1 => "; those of the partition without a leader are not known".into(),
        more => format!("; those of the {more} partitions without a leader are not known"),
    }
}

/// Of those without a key, and of the nodes that each comes to.
const PLAIN_NAMED: usize = 8;
const PLAIN_NODES_NAMED: usize = 4;

/// Above this much of the space in use something has to be done soon: repair and writes need room.
const NEARLY_FULL_PERCENT: f64 = 85.0;

/// Said beside the problems: nothing is wrong yet.
fn nearly_full(percent: f64) -> Option<String> {
    (percent > NEARLY_FULL_PERCENT).then(|| {
        format!("            more than {NEARLY_FULL_PERCENT:.0} % used: add disks or delete files before writes and repair find no room")
    })
}

/// What is wrong, or that nothing is.
fn problems(status: &ClusterStatus) -> Vec<String> {
    if status.problems.is_empty() {
        return vec!["healthy: nothing is wrong".into()];
    }
    let named = status.problems.iter().map(|Problem { text, severity }| match severity {
        // What cannot wait stands out.
        ProblemSeverity::Critical => format!("  - CRITICAL: {text}"),
        ProblemSeverity::Notice => format!("  - (notice) {text}"),
        ProblemSeverity::Warning => format!("  - {text}"),
    });
    std::iter::once(format!("{} to look at:", status.problems.len())).chain(named).collect()
}

/// The texts of each severity.
fn by_severity(status: &ClusterStatus) -> Value {
    let of = |wanted: ProblemSeverity| -> Vec<&String> {
        status.problems.iter().filter(|problem| problem.severity == wanted).map(|problem| &problem.text).collect()
    };
    use ProblemSeverity::{Critical, Notice, Warning};
    json!({ "critical": of(Critical), "warning": of(Warning), "notice": of(Notice) })
}

/// Partitions that nobody leads, as far as the managers heard.
fn leaderless(map: &ClusterMap) -> Vec<u32> {
    map.partitions.iter().filter(|p| !p.removed && p.leader == 0).map(|p| p.id).collect()
}

/// The first of them, and how many more there are.
fn up_to(most: usize, mut names: Vec<String>) -> String {
    let more = names.len().saturating_sub(most);
    names.truncate(most);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    names.join(", ") + &more
}

/// How many partitions each meta node leads.
fn leaders(map: &ClusterMap) -> Option<String> {
    let partitions = || map.partitions.iter().filter(|partition| !partition.removed);
    let led = |node: &&Node| partitions().filter(|partition| partition.leader == node.id).count();
    let counts: Vec<String> =
        nodes_of(map, "meta").iter().filter(|node| node.up).map(|node| format!("n{} {}", node.id, led(node))).collect();
    let none = match leaderless(map) {
        none if none.is_empty() => String::new(),
        none => {
            let names = up_to(PARTITIONS_NAMED, none.iter().map(|id| format!("p{id}")).collect());
            format!("; {} without a leader ({names})", none.len())
        }
    };
    (!counts.is_empty() && partitions().next().is_some()).then(|| {
        let all = partitions().count();
        format!("partitions  {all}, led by {}{none}", counts.join(", "))
    })
}

/// What all members of the groups understand, and who keeps them from more.
fn features(status: &ClusterStatus, map: &ClusterMap) -> String {
    // What a node that is down understands is not known, and nothing to do about.
    let is_down = |id: u32| map.nodes.iter().any(|node| node.id == id && !node.up);
    let behind = |nodes: &[u32]| match nodes {
        [] => String::new(),
        nodes => {
            let how = |id: u32| if is_down(id) { "down" } else { "behind" };
            let names: Vec<String> = nodes.iter().map(|node| format!("n{node} is {}", how(*node))).collect();
            format!(" ({})", names.join(", "))
        }
    };
    let mut groups = vec![(status.feature_level, status.feature_behind.clone(), "managers".to_owned())];
    groups.extend(status.partitions.iter().map(|p| {
        let lags = Some(p.behind).filter(|node| *node != 0);
        (p.feature_level, lags.into_iter().collect(), format!("p{}", p.partition))
    }));
    let (first, ..) = groups[0];
    if groups.iter().all(|(level, behind, _)| *level == first && behind.is_empty()) {
        return format!("features    level {first}");
    }
    // Those that differ are what somebody looks for.
    groups[1..].sort_by_key(|(level, nodes, _)| *level == first && nodes.is_empty());
    let texts = groups.iter().map(|(level, nodes, name)| format!("{name} {level}{}", behind(nodes)));
    format!("features    {}", up_to(1 + PARTITIONS_NAMED, texts.collect()))
}

fn who(all: &[WithoutKey]) -> Vec<Value> {
    all.iter().map(|one| json!({ "who": one.who, "nodes": one.nodes })).collect()
}

fn status_json(status: &ClusterStatus, map: &ClusterMap) -> Value {
    let (total, free) = disk_sums(map);
    let pgs = status.pgs;
    let count = |role: &str, up: bool| nodes_of(map, role).iter().filter(|node| !up || node.up).count();
    json!({
        "cluster": map.cluster.to_string(), "name": map.name, "map_version": map.version,
        "leader_node": status.leader_node, "term": status.term, "managers": status.managers,
        "meta_nodes": count("meta", false), "meta_nodes_up": count("meta", true),
        "data_nodes": count("data", false), "data_nodes_up": count("data", true),
        "disks": map.disks.iter().filter(|d| !d.is_removed()).count(), "disks_in_service": in_service(map).count(),
        "total_bytes": total, "free_bytes": free,
        "pgs": { "complete": pgs.complete, "degraded": pgs.degraded, "read_only": pgs.read_only,
                 "waiting": pgs.waiting, "closed": pgs.closed },
        "leaders": map.partitions.iter().filter(|p| !p.removed).map(|p| json!({ "partition": p.id, "node": p.leader })).collect::<Vec<_>>(),
        "partitions": map.partitions.iter().filter(|p| !p.removed).count(), "partitions_without_leader": leaderless(map),
        "feature_level": status.feature_level, "feature_behind": status.feature_behind,
        "partition_levels": status.partitions.iter().map(|p| json!({ "partition": p.partition, "feature_level": p.feature_level, "behind": p.behind })).collect::<Vec<_>>(),
        "volumes": map.volumes.iter().filter(|v| !v.deleted).count(),
        "inodes": status.partitions.iter().map(|p| p.inodes).sum::<u64>(),
        "file_bytes": status.partitions.iter().map(|p| p.file_bytes).sum::<u64>(),
        "without_key": who(&status.plain), "without_key_refused": who(&status.plain_refused),
        "healthy": status.problems.is_empty(), "problems": status.problems.iter().map(|problem| &problem.text).collect::<Vec<_>>(),
        "problems_by_severity": by_severity(status),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_client::admin::status::PgCounts;

    /// A cluster would be made to require keys while somebody works in it who has none.
    #[test]
    fn who_has_no_key_is_named() {
        let one = |who: &str, nodes: &[u32]| WithoutKey { who: who.into(), nodes: nodes.to_vec() };
        let status = ClusterStatus {
            plain: vec![one("10.0.0.7", &[16, 17]), one("n18 at 10.0.0.8", &[16])],
            plain_refused: vec![one("10.0.0.9", &[1])],
            ..ClusterStatus::default()
        };
        let said = without_key(&status);
        assert!(said[0].ends_with("10.0.0.7 (to n16, n17), n18 at 10.0.0.8 (to n16)"), "{said:?}");
        assert!(said.len() == 2 && said[1].contains("refused") && said[1].ends_with("10.0.0.9 (to n1)"), "{said:?}");
        assert!(without_key(&ClusterStatus::default()).is_empty());
    }

    /// A person in trouble would not see what is wrong.
    #[test]
    fn problems_are_on_the_screen() {
        let node = |id: u32, up: bool| Node {
            id,
            address: format!("h{id}:1"),
            rack: format!("r{}", id % 2),
            roles: vec!["data".into()],
            up,
            last_heard_ms: 75_000,
            ..Node::default()
        };
        let map = ClusterMap {
            nodes: vec![node(16, true), node(17, false), Node { id: 2, address: "h2:1".into(), ..Node::default() }],
            // Two disks on one file system have its space once.
            disks: (1..=2)
                .map(|id| Disk { id, total_bytes: 4 << 30, free_bytes: 1 << 30, filesystem: 7, ..Disk::default() })
                .collect(),
            ..ClusterMap::default()
        };
        let problem = |text: &str, severity| Problem { text: text.into(), severity };
        let status = ClusterStatus {
            leader_node: 1,
            pgs: PgCounts { complete: 3, degraded: 2, ..PgCounts::default() },
            problems: vec![
                problem("p1 has no leader", ProblemSeverity::Critical),
                problem("node n17 is down; its groups go on with the others", ProblemSeverity::Warning),
            ],
            ..ClusterStatus::default()
        };
        let text = lines(&status, &map).join("\n");
        for part in [
            "data        1 of 2 nodes up, 2 racks",
            "4.0 GiB",
            "75 % used",
            "3 of 5 complete, 2 degraded",
            "n17 (h17:1, last heard 75 s ago)",
            "2 to look at:\n  - CRITICAL: p1 has no leader\n  - node n17 is down",
        ] {
            assert!(text.contains(part), "{part:?} is missing in\n{text}");
        }
        assert!(!text.contains("more than 85 % used"), "{text}");
        let mut full = map.clone();
        full.disks.iter_mut().for_each(|disk| disk.free_bytes = 256 << 20);
        assert!(
            lines(&status, &full).join("\n").contains("more than 85 % used: add disks"),
            "nobody is told before writes fail"
        );
        assert!(!text.contains("n2 (h2:1"), "a manager that was removed is not missed:\n{text}");
        let told = status_json(&status, &map);
        assert_eq!(told["healthy"], false);
        let wanted =
            json!({ "critical": [status.problems[0].text], "warning": [status.problems[1].text], "notice": [] });
        assert_eq!(told["problems_by_severity"], wanted);
    }
}
