//! `cairn admin partition ls|split|add|remove|move|renew|accept-loss`: meta partitions and their members.
//!
//! A change is a wish that the manager keeps and carries out step by step; these commands wait until it is done, and
//! it goes on without them.
use super::members::{Wait, accept_loss, node_number};
use super::{partition_list, status};
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use cairn_client::admin::members::MemberChange;
use cairn_client::admin::status::{ClusterMap, ClusterStatus};
use cairn_client::map::Partition;
use cairn_types::PartitionId;
use clap::{Args, Subcommand};
use serde_json::json;

#[derive(Args, Debug)]
pub struct PartitionArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// List the meta partitions; those of a volume of many are one line, with --json or when the volume is named they
    /// are not
    #[command(alias = "list")]
    Ls {
        /// Only those of this volume
        volume: Option<String>,
    },
    /// Give the volume of a partition more partitions: what is in it stays, new directories go where less is
    Split {
        /// Its number, such as 1
        partition: String,
        /// Itself and so many new ones less one
        #[arg(long, default_value_t = 2)]
        into: u32,
        #[command(flatten)]
        wait: Wait,
    },
    /// Give a partition more members: 1 to 3, or 3 to 5
    Add {
        /// Its number, such as 1
        partition: String,
        /// Meta nodes that become members, such as n19
        #[arg(required = true)]
        nodes: Vec<String>,
        #[command(flatten)]
        wait: Wait,
    },
    /// Take members from a partition: 5 to 3, or 3 to 1
    Remove {
        /// Its number, such as 1
        partition: String,
        /// Members that leave; they drop what they have of it
        #[arg(required = true)]
        nodes: Vec<String>,
        #[command(flatten)]
        wait: Wait,
    },
    /// Add a member anew that is an older copy of itself: the leader fills it
    Renew {
        /// Its number, such as 1, or all: every partition that the node has
        partition: String,
        /// The member, such as n18
        node: String,
        #[command(flatten)]
        wait: Wait,
    },
    /// Let a member that is an older copy of itself vote and lead as it is, when those that know more are lost for
    /// good: what was changed since is gone
    AcceptLoss {
        /// Its number, such as 1
        partition: String,
        /// The member, such as n18
        node: String,
        /// Yes, what it has forgotten is lost
        #[arg(long)]
        yes: bool,
    },
    /// Put a meta node in the place of a member, which may be lost for good: the one that is named, or one in another
    /// rack or on another host than the other members that has little in use
    Move {
        /// Its number, such as 1, or all: every partition that the old node has
        partition: String,
        /// The member that leaves, such as n18
        old: String,
        /// The meta node that takes its place, such as n19; without it the managers choose one for each partition
        new: Option<String>,
        #[command(flatten)]
        wait: Wait,
    },
}

impl PartitionArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        match self.verb {
            Verb::Ls { volume } => partition_list::print(context, volume.as_deref()).await,
            Verb::Split { partition, into, wait } => split(context, &partition, into, &wait).await,
            Verb::Add { partition, nodes, wait } => change(context, &partition, &nodes, &[], false, &wait).await,
            Verb::Remove { partition, nodes, wait } => change(context, &partition, &[], &nodes, false, &wait).await,
            Verb::Renew { partition, node, wait } => {
                let node = [node];
                change(context, &partition, &node, &node, false, &wait).await
            }
            Verb::AcceptLoss { partition, node, yes } => accept(context, &partition, &node, yes).await,
            Verb::Move { partition, old, new, wait } => {
                let new: Vec<String> = new.into_iter().collect();
                change(context, &partition, &new, &[old], new.is_empty(), &wait).await
            }
        }
    }
}

/// `n16 n17 n18- n19+`: who leaves, and who has not opened it yet.
pub(super) fn members_text(partition: &Partition) -> String {
    let mark = |node: &u32| {
        let changing = !partition.target.is_empty();
        match (changing && !partition.target.contains(node), changing && !partition.begun.contains(node)) {
            (true, _) => format!("n{node}-"),
            (_, true) => format!("n{node}+"),
            _ => format!("n{node}"),
        }
    };
    partition.nodes.iter().map(mark).collect::<Vec<_>>().join(" ")
}

async fn accept(context: &Context, partition: &str, node: &str, yes: bool) -> Result<()> {
    let number = node_number(node)?;
    let (_, map) = status(context).await?;
    let [id] = chosen(&map, partition, &[number])?[..] else {
        return Err(CliError::usage("write the number of one partition: what is lost is looked at for each"));
    };
    let Some(found) = map.nodes.iter().find(|n| n.id == number && !n.address.is_empty()) else {
        return Err(CliError::refused(
            Exit::NotFound,
            format!("there is no node {number}; cairn admin node ls shows all"),
        ));
    };
    accept_loss(context, PartitionId(id).into(), &found.address, yes).await
}

/// Waits until the new partitions are there and led.
async fn split(context: &Context, partition: &str, into: u32, wait: &Wait) -> Result<()> {
    let (_, map) = status(context).await?;
    let [id] = chosen(&map, partition, &[])?[..] else {
        return Err(CliError::usage("write the number of one partition: cairn admin partition ls shows them"));
    };
    let volume = map.partitions.iter().find(|known| known.id == id).map_or(0, |known| known.volume);
    let of_volume = |map: &ClusterMap| -> Vec<u32> {
        map.partitions.iter().filter(|p| p.volume == volume && !p.removed).map(|p| p.id).collect()
    };
    let before = of_volume(&map);
    let client = context.client().await?;
    if ends_a_range(&map, volume) {
        refuse_with_snapshots(&client, &map, volume).await?;
    }
    client.split_partition(&format!("splitting partition {id}"), PartitionId(id), into).await?;
    let settled = |_: &ClusterStatus, map: &ClusterMap| {
        if let Some(waits) = map.partitions.iter().find(|p| p.volume == volume && !p.removed && p.add > 0) {
            return Some(format!("partition {} ends its range of inodes", waits.id));
        }
        let led = |p: &&Partition| p.volume == volume && !p.removed && !before.contains(&p.id) && p.leader != 0;
        let (wanted, led) = (into as usize - 1, map.partitions.iter().filter(led).count());
        (led < wanted).then(|| format!("{led} of {wanted} new partitions have a leader"))
    };
    let done = wait.until(context, settled).await?;
    let (_, map) = status(context).await?;
    let new: Vec<u32> = of_volume(&map).into_iter().filter(|id| !before.contains(id)).collect();
    let names = new.iter().map(|id| format!("p{id}")).collect::<Vec<_>>().join(", ");
    let text = match (done, new.len()) {
        (true, 1) => format!("the volume has partition {names} more: new directories go to it while it has less"),
        (true, _) => format!("the volume has partitions {names} more: new directories go to them while they have less"),
        (false, _) => "the volume gets more partitions; cairn admin partition ls shows them when they are there".into(),
    };
    match context.out.is_json() {
        true => context.out.json(&json!({ "partition": id, "made": new, "done": done })),
        false => context.out.line(text),
    }
}

/// Whether a partition of the volume has all inodes from its first one on, which ends before there are others. It does
/// so without snapshots only.
fn ends_a_range(map: &ClusterMap, volume: u32) -> bool {
    map.partitions.iter().any(|known| known.volume == volume && !known.removed && known.inode_last == u64::MAX)
}

/// What was asked for would wait until the last snapshot is deleted, however long that takes.
async fn refuse_with_snapshots(client: &cairn_client::Client, map: &ClusterMap, volume: u32) -> Result<()> {
    let Some(name) = map.volumes.iter().find(|known| known.id == volume).map(|known| known.name.as_str()) else {
        return Ok(());
    };
    let snapshots = client.volume(name).await?.snapshots().await?;
    if snapshots.is_empty() {
        return Ok(());
    }
    let text = format!(
        "volume {name:?} has one partition and {}: it gets its second partition without snapshots only, and more than \
         that with them; delete them with `cairn fs snapshot delete NAME {name}:/` (`cairn fs snapshot ls {name}:/` shows them), \
         or go on with one partition; nothing was done",
        if snapshots.len() == 1 { "a snapshot".to_owned() } else { format!("{} snapshots", snapshots.len()) }
    );
    Err(CliError::refused(Exit::Changed, text))
}

/// Who comes and who leaves; `choose`: the managers say who comes.
async fn change(
    context: &Context,
    partition: &str,
    add: &[String],
    remove: &[String],
    choose: bool,
    wait: &Wait,
) -> Result<()> {
    let numbers = |nodes: &[String]| nodes.iter().map(|node| node_number(node)).collect::<Result<Vec<u32>>>();
    let (add, remove) = (numbers(add)?, numbers(remove)?);
    let (_, map) = status(context).await?;
    let mut partitions = chosen(&map, partition, &remove)?;
    if partition == "all" && add == remove {
        // What it leads it has.
        let led = |id: &u32| map.partitions.iter().any(|p| p.id == *id && add.contains(&p.leader));
        let (leads, others): (Vec<u32>, Vec<u32>) = partitions.into_iter().partition(led);
        partitions = others;
        if !leads.is_empty() && !context.out.is_json() {
            context.out.line(left_as_they_are(&leads, &add))?;
        }
    }
    let client = context.client().await?;
    for id in &partitions {
        let change = MemberChange { add: add.clone(), remove: remove.clone(), choose, ..MemberChange::default() };
        let what = format!("changing the members of partition {id}");
        client.change_members(&what, PartitionId(*id).into(), change).await?;
    }
    let settled = |_: &ClusterStatus, map: &ClusterMap| {
        let busy = map.partitions.iter().find(|p| partitions.contains(&p.id) && !p.removed && !p.target.is_empty());
        busy.map(|p| format!("partition {}: {}", p.id, members_text(p)))
    };
    let done = wait.until(context, settled).await?;
    let (_, map) = status(context).await?;
    for p in map.partitions.iter().filter(|p| partitions.contains(&p.id)) {
        match context.out.is_json() {
            true => context.out.json(&json!({ "id": p.id, "nodes": p.nodes, "target": p.target, "done": done }))?,
            false if done => context.out.line(format!("partition {} has the members {}", p.id, members_text(p)))?,
            false => context.out.line(format!("partition {} is changing: {}", p.id, members_text(p)))?,
        }
    }
    Ok(())
}

/// What is said of partitions that a member leads which is to be added anew.
fn left_as_they_are(leads: &[u32], nodes: &[u32]) -> String {
    let names = |letter: char, ids: &[u32]| ids.iter().map(|id| format!("{letter}{id}")).collect::<Vec<_>>().join(", ");
    format!(
        "{} led by {}, which has everything of them: they are left as they are",
        names('p', leads),
        names('n', nodes)
    )
}

/// The partitions that are meant.
fn chosen(map: &ClusterMap, text: &str, remove: &[u32]) -> Result<Vec<u32>> {
    let used = map.partitions.iter().filter(|p| !p.removed);
    if text == "all" {
        let mine: Vec<u32> = used.filter(|p| remove.iter().any(|node| p.nodes.contains(node))).map(|p| p.id).collect();
        return match mine.is_empty() {
            true => {
                Err(CliError::refused(Exit::NotFound, "no partition has that member; see cairn admin partition ls"))
            }
            false => Ok(mine),
        };
    }
    let digits = text.strip_prefix('p').unwrap_or(text);
    let id: Option<u32> = digits.parse().ok();
    let Some(id) = id else {
        return Err(CliError::usage(format!("{text:?} is no partition: write its number, such as 1; see ls")));
    };
    match used.clone().any(|p| p.id == id) {
        true => Ok(vec![id]),
        false => Err(CliError::refused(
            Exit::NotFound,
            format!("there is no partition {id}; cairn admin partition ls shows those that exist"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Partitions would be passed over without a word, as if they had been renewed.
    #[test]
    fn what_is_left_as_it_is_is_named() {
        assert_eq!(
            left_as_they_are(&[1, 3], &[21]),
            "p1, p3 led by n21, which has everything of them: they are left as they are"
        );
    }
}
