//! `cairn admin backup DIR`: the metadata of a running cluster, checkpoint by checkpoint, in another place; `--list`
//! and `--verify` look at what is there.
//!
//! Partitions come first, those of one volume as of one moment ([`cut`]), the manager last: so the manager's state
//! knows every group and session that a partition names.
mod cut;

use super::{full_status, listing};
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::human::size;
use crate::table::Align;
use cairn_client::Client;
use cairn_client::admin::backup::Checkpoint;
use cairn_client::admin::status::{ClusterMap, ClusterStatus};
use cairn_client::map::Partition;
use cairn_format::backup_manifest::{BackupEntry, BackupManifest};
use cairn_rescue::{BackupSet, RescueError};
use cairn_types::{GroupId, NodeId, WallTime};
use clap::Args;
use serde_json::json;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Members are asked so often, for elections take a second.
const ROUNDS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(500);
const PART_TRIES: u32 = 5;

#[derive(Args, Debug)]
pub struct BackupArgs {
    /// Directory of the backups, made if it is not there; each run adds one
    dir: PathBuf,
    /// List the backups in the directory, and do nothing else
    #[arg(long, conflicts_with_all = ["verify", "keep", "any_member"])]
    list: bool,
    /// Read every byte of a backup (without a number, of the newest), and do nothing else
    #[arg(long, value_name = "NUMBER", num_args = 0..=1, default_missing_value = "0", conflicts_with_all = ["keep", "any_member"])]
    verify: Option<u64>,
    /// Drop all but the newest so many when the new one is complete
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..))]
    keep: Option<u16>,
    /// Where a group has no leader, take what any member has: it may lack what was acknowledged last. Partitions of a
    /// volume are taken one after the other, where they cannot be as of one moment
    #[arg(long)]
    any_member: bool,
}

/// States of groups, and whether they were brought anew.
#[derive(Default)]
struct Taken {
    entries: Vec<(BackupEntry, bool)>,
    /// Volumes whose partitions are not as of one moment.
    apart: Vec<u32>,
}

/// A group and where its members are, the leader last heard of first.
struct Source {
    group: GroupId,
    members: Vec<(u32, String)>,
}

impl BackupArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        if self.list {
            return list(context, &BackupSet::open(&self.dir).map_err(failed)?);
        }
        if let Some(number) = self.verify {
            let set = BackupSet::open(&self.dir).map_err(failed)?;
            let manifest = set.manifest(Some(number).filter(|number| *number > 0)).map_err(failed)?;
            return verify(context, &set, &manifest);
        }
        self.take(context).await
    }

    async fn take(&self, context: &Context) -> Result<()> {
        let (_, map) = full_status(context).await?;
        let cluster = Some(map.cluster).filter(|cluster| !cluster.is_none());
        let cluster =
            cluster.ok_or_else(|| CliError::refused(Exit::Other, "the manager names no cluster; try again"))?;
        let set = BackupSet::create(&self.dir).map_err(failed)?;
        let _lock = set.lock().map_err(failed)?;
        let last = set.numbers().map_err(failed)?.last().copied();
        if let Some(last) = last {
            let found = set.manifest(Some(last)).map_err(failed)?.cluster;
            if found != cluster {
                return Err(failed(RescueError::OtherCluster { dir: set.name(), found, expected: cluster }));
            }
        }
        let begun = wall();
        let Taken { mut entries, apart } = self.take_all(context, &set).await?;
        let new = || entries.iter().filter(|(_, new)| *new);
        let (brought, bytes) = (new().count() as u64, new().map(|(entry, _)| entry.bytes).sum::<u64>());
        entries.sort_by_key(|(entry, _)| entry.group);
        let entries: Vec<BackupEntry> = entries.into_iter().map(|(entry, _)| entry).collect();
        let unled = entries.iter().filter(|entry| !entry.led).count();
        let number = last.unwrap_or(0) + 1;
        let manifest = BackupManifest { cluster, number, begun, ended: wall(), entries };
        set.publish(&manifest).map_err(failed)?;
        let dropped = match self.keep {
            Some(keep) => set.prune(usize::from(keep)).map_err(failed)?.len(),
            None => 0,
        };
        let groups = manifest.entries.len();
        if context.out.is_json() {
            return context.out.json(&json!({
                "backup": number, "groups": groups, "brought": brought, "bytes": bytes, "without_leader": unled,
                "dropped": dropped, "volumes_apart": apart,
            }));
        }
        context.out.line(format!(
            "backup {number} in {} is complete: {groups} groups, {brought} brought ({}), {} as they were",
            set.name(),
            size(bytes, true),
            groups as u64 - brought
        ))?;
        for volume in apart {
            context.out.line(format!(
                "the partitions of volume {volume} are not as of one moment: after a restore, cairn admin fsck --repair"
            ))?;
        }
        match unled {
            0 => Ok(()),
            _ => context.out.line(format!("{unled} of them had no leader: what was acknowledged last may be missing")),
        }
    }

    /// Brings the state of every group; again, if partitions were made meanwhile, which the manager's state names.
    async fn take_all(&self, context: &Context, set: &BackupSet) -> Result<Taken> {
        let client = context.client().await?;
        for _ in 0..PART_TRIES {
            let (status, map) = full_status(context).await?;
            let taken = self.take_once(&client, set, &status, &map).await?;
            let (_, now) = full_status(context).await?;
            let has = |group: u32| taken.entries.iter().any(|(entry, _)| entry.group.0 == group);
            if now.partitions.iter().all(|partition| partition.removed || has(partition.id)) {
                return Ok(taken);
            }
        }
        Err(CliError::refused(Exit::Other, "partitions were made while the backup was; there is no new backup, repeat"))
    }

    async fn take_once(
        &self,
        client: &Client,
        set: &BackupSet,
        status: &ClusterStatus,
        map: &ClusterMap,
    ) -> Result<Taken> {
        let mut taken = Taken::default();
        for volume in cut::volumes(map) {
            match self.together(client, map, set, &volume).await {
                Ok(entries) => taken.entries.extend(entries),
                Err(error) if self.any_member => {
                    tracing::debug!(volume = volume.number, %error, "its partitions are taken one after the other");
                    taken.apart.push(volume.number);
                }
                Err(error) => return Err(error),
            }
        }
        for source in sources(status, map) {
            if taken.entries.iter().all(|(entry, _)| entry.group != source.group) {
                taken.entries.push(self.group(client, set, &source).await?);
            }
        }
        Ok(taken)
    }

    /// Brings a group's state, unless it is there already. True: it was brought.
    async fn group(&self, client: &Client, set: &BackupSet, source: &Source) -> Result<(BackupEntry, bool)> {
        let group = source.group;
        let mut last = String::new();
        for _ in 0..PART_TRIES {
            let (node, address, taken) = self.ask(client, source).await?;
            let (index, term) = (taken.index, taken.term);
            let kept = set.kept(group, index, term).map_err(failed)?;
            let new = kept.is_none();
            let kept = match kept {
                Some(kept) => kept,
                // A newer one may have taken its place meanwhile: then it is asked for again.
                None => match bring(client, set, group, &address, index, term).await {
                    Ok(kept) => kept,
                    Err(error) => {
                        last = error.to_string();
                        continue;
                    }
                },
            };
            let (time, bytes, crc, led) = (kept.time, kept.bytes, kept.crc, taken.led);
            let node = NodeId(node);
            return Ok((BackupEntry { group, node, index, term, time, bytes, crc, led, cut: false }, new));
        }
        Err(CliError::refused(Exit::Other, format!("{} could not be brought: {last}", told(group))))
    }

    /// Asks whoever leads the group for a checkpoint.
    async fn ask(&self, client: &Client, source: &Source) -> Result<(u32, String, Checkpoint)> {
        let what = told(source.group);
        let mut last = "it has no members".to_owned();
        for round in 0..ROUNDS {
            // Somebody who leads is better than anybody.
            let any_member = self.any_member && round + 1 == ROUNDS;
            for (node, address) in &source.members {
                match client.take_checkpoint(&what, source.group, address, any_member).await {
                    Ok(Some(taken)) => return Ok((*node, address.clone(), taken)),
                    Ok(None) => last = format!("n{node} does not lead it"),
                    Err(error) => last = error.to_string(),
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
        let hint = if self.any_member { "" } else { "; --any-member takes what any member has" };
        Err(CliError::refused(
            Exit::Unreachable,
            format!("{what}: no leader gave a checkpoint ({last}); there is no new backup{hint}"),
        ))
    }
}

/// All groups: partitions, then the manager.
fn sources(status: &ClusterStatus, map: &ClusterMap) -> Vec<Source> {
    let partitions = map.partitions.iter().filter(|partition| !partition.removed);
    let mut sources: Vec<Source> = partitions.map(|partition| Source::of_partition(map, partition)).collect();
    sources.push(Source::new(map, GroupId::MANAGER, status.leader_node, &status.managers));
    sources
}

impl Source {
    fn new(map: &ClusterMap, group: GroupId, leader: u32, members: &[u32]) -> Self {
        let address = |node: u32| map.nodes.iter().find(|n| n.id == node).map(|n| (node, n.address.clone()));
        let mut members: Vec<(u32, String)> = members.iter().filter_map(|node| address(*node)).collect();
        members.sort_by_key(|(node, _)| *node != leader);
        Self { group, members }
    }

    fn of_partition(map: &ClusterMap, partition: &Partition) -> Self {
        Self::new(map, GroupId(partition.id), partition.leader, &partition.nodes)
    }
}

fn told(group: GroupId) -> String {
    match group {
        GroupId::MANAGER => "the manager's state".to_owned(),
        GroupId(partition) => format!("partition {partition}"),
    }
}

/// Fetches a checkpoint part by part.
async fn bring(
    client: &Client,
    set: &BackupSet,
    group: GroupId,
    address: &str,
    index: u64,
    term: u64,
) -> Result<cairn_rescue::backup_set::Kept> {
    let what = told(group);
    let mut incoming = set.incoming(group).map_err(failed)?;
    loop {
        let mut tries = 0;
        let (total, part) = loop {
            let answer = client.fetch_checkpoint(&what, (group, index), address, incoming.len()).await;
            tries += 1;
            match answer {
                Ok(Some(part)) => break (part.total, part.bytes),
                Err(error) if tries == PART_TRIES => return Err(error.into()),
                Ok(_) if tries == PART_TRIES => {
                    let text = format!("{what}: {address} sent bytes that do not match their checksum");
                    return Err(CliError::refused(Exit::Damaged, text));
                }
                _ => tokio::time::sleep(PAUSE).await,
            }
        };
        incoming.write(&part).map_err(failed)?;
        if incoming.len() >= total {
            return incoming.finish(index, term).map_err(failed);
        }
    }
}

fn list(context: &Context, set: &BackupSet) -> Result<()> {
    let columns = [
        ("BACKUP", Align::Right),
        ("BEGUN", Align::Left),
        ("GROUPS", Align::Right),
        ("BYTES", Align::Right),
        ("CLUSTER", Align::Left),
    ];
    let mut rows = Vec::new();
    for number in set.numbers().map_err(failed)? {
        let manifest = set.manifest(Some(number)).map_err(failed)?;
        let bytes: u64 = manifest.entries.iter().map(|entry| entry.bytes).sum();
        let value = json!({
            "backup": number, "cluster": manifest.cluster.to_string(), "begun_ns": manifest.begun.0,
            "ended_ns": manifest.ended.0, "groups": manifest.entries.len(), "bytes": bytes,
        });
        let cells = vec![
            number.to_string(),
            crate::human::local_time(manifest.begun.0),
            manifest.entries.len().to_string(),
            size(bytes, true),
            manifest.cluster.to_string(),
        ];
        rows.push((value, cells));
    }
    listing::print(context, &columns, rows.into_iter())
}

fn verify(context: &Context, set: &BackupSet, manifest: &BackupManifest) -> Result<()> {
    let mut wrong = set.verify(manifest);
    if let Err(error) = set.manager_state(manifest) {
        wrong.push(error);
    }
    let number = manifest.number;
    if context.out.is_json() {
        let problems: Vec<String> = wrong.iter().map(ToString::to_string).collect();
        context.out.json(&json!({ "backup": number, "groups": manifest.entries.len(), "problems": problems }))?;
    } else {
        wrong.iter().try_for_each(|error| context.out.line(error.to_string()))?;
    }
    if !wrong.is_empty() {
        let text = format!("backup {number} in {} cannot be relied on: {} problems", set.name(), wrong.len());
        return Err(CliError::refused(Exit::Damaged, text));
    }
    match context.out.is_json() {
        true => Ok(()),
        false => context.out.line(format!("backup {number} is whole: {} groups", manifest.entries.len())),
    }
}

/// The machine's calendar.
pub(super) fn wall() -> WallTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    WallTime(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

/// The class of a failure, for scripts.
pub(super) fn failed(error: RescueError) -> CliError {
    use cairn_rescue::error::Kind as K;
    let exit = match error.kind() {
        K::Damaged => Exit::Damaged,
        K::InUse => Exit::InUse,
        K::WrongCluster => Exit::WrongCluster,
        K::NotFound => Exit::NotFound,
        K::Newer => Exit::Exists,
        K::Full => Exit::NoSpace,
        K::Other => Exit::Other,
    };
    CliError::refused(exit, error.to_string())
}
