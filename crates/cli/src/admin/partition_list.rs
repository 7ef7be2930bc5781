//! `cairn admin partition ls`: the meta partitions, in the order of volumes and inodes.
//!
//! A volume may have thousands of partitions: where it is not named, those of a volume of more than [`FOLD`] are one
//! line with their sums, and of those that nobody leads or whose members change so many as fit on a screen. `--json`
//! has them all.
use super::partition::members_text;
use super::{listing, status};
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::human::size;
use crate::table::Align;
use cairn_client::admin::status::{ClusterMap, ClusterStatus, PartitionReport};
use cairn_client::map::Partition;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Partitions of a volume that are listed without being asked for.
const FOLD: usize = 16;
/// Of a volume with more, those that need a look.
const SHOWN: usize = 10;

const COLUMNS: [(&str, Align); 12] = [
    ("PARTITION", Align::Right),
    ("VOLUME", Align::Left),
    ("INODES FROM", Align::Right),
    ("TO", Align::Right),
    ("MEMBERS (+ comes, - goes)", Align::Left),
    ("LEADER", Align::Right),
    ("TERM", Align::Right),
    ("APPLIED", Align::Right),
    ("INODES", Align::Right),
    ("MEMORY", Align::Right),
    ("CHANGES/S", Align::Right),
    ("BUSY", Align::Right),
];

/// A partition with what its leader reported.
struct Row<'a> {
    partition: &'a Partition,
    report: PartitionReport,
}

impl Row<'_> {
    fn needs_a_look(&self) -> bool {
        self.partition.leader == 0 || !self.partition.target.is_empty() || self.report.full_node != 0
    }

    fn value(&self, volume: &str) -> Value {
        let Row { partition, report } = self;
        json!({
            "id": partition.id, "volume": volume, "inode_first": partition.inode_first,
            "inode_last": partition.inode_last, "nodes": partition.nodes, "target": partition.target,
            "leader": partition.leader, "term": report.term, "applied": report.applied, "inodes": report.inodes,
            "file_bytes": report.file_bytes, "memory_bytes": report.memory_bytes,
            "changes_per_second": report.changes_per_second, "busy_percent": f64::from(report.busy_permille) / 10.0, "full_node": report.full_node,
        })
    }

    fn cells(&self, volume: &str) -> Vec<String> {
        let Row { partition, report } = self;
        vec![
            format!("p{}", partition.id),
            volume.to_owned(),
            partition.inode_first.to_string(),
            last_text(partition.inode_last),
            members_text(partition),
            if partition.leader == 0 { "-".into() } else { format!("n{}", partition.leader) },
            report.term.to_string(),
            report.applied.to_string(),
            report.inodes.to_string(),
            memory_text(report),
            report.changes_per_second.to_string(),
            busy_text(report.busy_permille),
        ]
    }
}

/// With a sign where a member's node has no memory left.
fn memory_text(report: &PartitionReport) -> String {
    let text = size(report.memory_bytes, true);
    if report.full_node == 0 { text } else { format!("{text} full") }
}

/// Of the time of the thread that applies a partition's log.
fn busy_text(permille: u32) -> String {
    format!("{}%", permille.div_ceil(10))
}

fn last_text(inode: u64) -> String {
    if inode == u64::MAX { "no end".to_owned() } else { inode.to_string() }
}

/// Prints those of one volume, or of all.
pub async fn print(context: &Context, volume: Option<&str>) -> Result<()> {
    let (status, map) = status(context).await?;
    let volumes = by_volume(&status, &map);
    if let Some(name) = volume
        && !volumes.iter().any(|(known, _)| known == name)
    {
        let text = format!("there is no volume {name:?}; cairn admin volume ls shows those that exist");
        return Err(CliError::refused(Exit::NotFound, text));
    }
    let wanted = || volumes.iter().filter(|(name, _)| volume.is_none_or(|only| only == name));
    let folds = !context.out.is_json() && volume.is_none();
    let rows = wanted().flat_map(|(name, rows)| match folds && rows.len() > FOLD {
        true => folded(name, rows).into_iter().map(|cells| (Value::Null, cells)).collect(),
        false => rows.iter().map(|row| (row.value(name), row.cells(name))).collect::<Vec<_>>(),
    });
    listing::print(context, &COLUMNS, rows)?;
    for (name, rows) in wanted().filter(|(_, rows)| folds && rows.len() > FOLD) {
        let more = rows.iter().filter(|row| row.needs_a_look()).count().saturating_sub(SHOWN);
        let more = if more > 0 {
            format!("; {more} more lack a leader, get other members or are full")
        } else {
            String::new()
        };
        context.out.line(format!(
            "volume {name} has {} partitions{more}; cairn admin partition ls {name} shows each",
            rows.len()
        ))?;
    }
    let rows: Vec<&Row<'_>> = wanted().flat_map(|(_, rows)| rows).collect();
    let full = if context.out.is_json() { Vec::new() } else { full_texts(&rows) };
    for text in full {
        context.out.line(text)?;
    }
    Ok(())
}

/// What to do about partitions of which a member's node has no memory left.
fn full_texts(rows: &[&Row<'_>]) -> Vec<String> {
    let mut nodes: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.report.full_node != 0) {
        nodes.entry(row.report.full_node).or_default().push(row.partition.id);
    }
    let text = |(node, partitions): (u32, Vec<u32>)| {
        format!(
            "the memory for metadata of n{node} is used up: {} {} no new files; remove files, move partitions to other nodes (cairn \
             admin partition move p{} n{node} NODE), or give the node more (memory_max_mib in [meta])",
            if partitions.len() == 1 {
                format!("p{}", partitions[0])
            } else {
                format!("{} partitions", partitions.len())
            },
            if partitions.len() == 1 { "takes" } else { "take" },
            partitions[0]
        )
    };
    nodes.into_iter().map(text).collect()
}

/// Partitions by their volumes, in the order of ids and inodes.
fn by_volume<'a>(status: &ClusterStatus, map: &'a ClusterMap) -> Vec<(String, Vec<Row<'a>>)> {
    let reports: BTreeMap<u32, PartitionReport> =
        status.partitions.iter().map(|report| (report.partition, *report)).collect();
    let names: BTreeMap<u32, &str> = map.volumes.iter().map(|volume| (volume.id, volume.name.as_str())).collect();
    let mut used: Vec<&Partition> = map.partitions.iter().filter(|partition| !partition.removed).collect();
    used.sort_by_key(|partition| (partition.volume, partition.inode_first, partition.id));
    let of_one = used.chunk_by(|a, b| a.volume == b.volume);
    let rows = of_one.map(|partitions| {
        let id = partitions[0].volume;
        let name = names.get(&id).map_or_else(|| format!("v{id}"), |name| (*name).to_owned());
        let report = |partition: &Partition| reports.get(&partition.id).copied().unwrap_or_default();
        (name, partitions.iter().map(|partition| Row { partition, report: report(partition) }).collect())
    });
    rows.collect()
}

/// A line with the sums, and lines of some that need a look.
fn folded(name: &str, rows: &[Row<'_>]) -> Vec<Vec<String>> {
    let nodes: BTreeSet<u32> = rows.iter().flat_map(|row| &row.partition.nodes).copied().collect();
    let leaders: BTreeSet<u32> = rows.iter().map(|row| row.partition.leader).filter(|node| *node != 0).collect();
    let sum = |of: fn(&PartitionReport) -> u64| rows.iter().map(|row| of(&row.report)).sum::<u64>();
    let (first, last) = (rows[0].partition, rows[rows.len() - 1].partition);
    let sums = vec![
        format!("{} of them", rows.len()),
        name.to_owned(),
        first.inode_first.to_string(),
        last_text(last.inode_last),
        format!("on {} nodes", nodes.len()),
        format!("{} nodes", leaders.len()),
        "-".into(),
        "-".into(),
        sum(|report| report.inodes).to_string(),
        size(sum(|report| report.memory_bytes), true),
        sum(|report| report.changes_per_second).to_string(),
        busy_text(rows.iter().map(|row| row.report.busy_permille).max().unwrap_or(0)),
    ];
    let look = rows.iter().filter(|row| row.needs_a_look()).take(SHOWN).map(|row| row.cells(name));
    std::iter::once(sums).chain(look).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_client::map::VolumeEntry;

    fn partition(id: u32, volume: u32, at: u64) -> Partition {
        Partition {
            id,
            volume,
            inode_first: at << 40,
            inode_last: ((at + 1) << 40) - 1,
            nodes: vec![16, 17, 18],
            leader: if id.is_multiple_of(100) { 0 } else { 16 + id % 3 },
            ..Partition::default()
        }
    }

    /// A thousand lines would scroll away the one that matters; or sums be those of other volumes.
    #[test]
    fn many_partitions_are_few_lines() {
        let volumes = [(1, "small"), (2, "large")].map(|(id, name)| VolumeEntry {
            id,
            name: name.into(),
            ..VolumeEntry::default()
        });
        let mut partitions: Vec<Partition> = (2..2002).rev().map(|id| partition(id, 2, u64::from(id) - 2)).collect();
        partitions.push(Partition { inode_first: 1, inode_last: u64::MAX, ..partition(1, 1, 0) });
        partitions.push(Partition { removed: true, ..partition(5000, 2, 0) });
        let map = ClusterMap { volumes: volumes.to_vec(), partitions, ..ClusterMap::default() };
        let reports = (1..2002).map(|partition| PartitionReport { partition, inodes: 3, ..PartitionReport::default() });
        let status = ClusterStatus { partitions: reports.collect(), ..ClusterStatus::default() };
        let found = by_volume(&status, &map);
        assert_eq!(
            found.iter().map(|(name, rows)| (&name[..], rows.len())).collect::<Vec<_>>(),
            [("small", 1), ("large", 2000)]
        );
        assert_eq!(found[0].1[0].cells("small")[3], "no end");
        let rows = &found[1].1;
        assert!(rows.windows(2).all(|pair| pair[0].partition.inode_last + 1 == pair[1].partition.inode_first));
        let lines = folded("large", rows);
        assert_eq!(lines.len(), 1 + SHOWN, "of twenty that have no leader");
        assert_eq!((&lines[0][0][..], &lines[0][4][..], &lines[0][8][..]), ("2000 of them", "on 3 nodes", "6000"));
        assert_eq!((&lines[1][0][..], &lines[1][5][..]), ("p100", "-"));
        assert!(lines.iter().all(|line| line.len() == COLUMNS.len()));
        assert!(full_texts(&rows.iter().collect::<Vec<_>>()).is_empty());
        let value = rows[7].value("large");
        assert_eq!((&value["id"], &value["inodes"], &value["volume"]), (&json!(9), &json!(3), &json!("large")));

        let full = PartitionReport { full_node: 17, ..rows[7].report };
        let full = Row { partition: rows[7].partition, report: full };
        assert!(full.needs_a_look() && full.cells("large")[9].ends_with(" full"));
        let said = full_texts(&[&rows[8], &full]);
        assert!(said.len() == 1 && said[0].contains("n17 is used up: p9 takes no new files"), "{said:?}");
    }
}
