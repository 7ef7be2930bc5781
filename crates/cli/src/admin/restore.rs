//! `cairn admin restore`: meta partitions of a backup into the directory of a meta node that does not run.
use super::backup::{failed, wall};
use crate::context::Context;
use crate::error::{CliError, Result};
use cairn_rescue::BackupSet;
use cairn_rescue::restore::{RestoreOrder, restore};
use cairn_types::{NodeId, PartitionId};
use clap::Args;
use serde_json::json;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(after_help = "The node's process must not run. What was written after the backup is gone from the names; \
    docs/guides/recover.md says what is promised about the bytes.")]
pub struct RestoreArgs {
    /// Directory of the backups
    backups: PathBuf,
    /// The meta node that gets the partitions, such as n18; alone, until others are made members
    #[arg(long)]
    node: String,
    /// Its directory (node.dir), made if it is not there
    #[arg(long)]
    dir: PathBuf,
    /// The number of the backup; without it, the newest
    #[arg(long)]
    backup: Option<u64>,
    /// Only this partition; can be given several times
    #[arg(long = "partition", value_name = "NUMBER")]
    partitions: Vec<u32>,
    /// Also where the directory has something newer, which is lost then
    #[arg(long)]
    over_newer_state: bool,
}

/// `n18` or `18`.
pub(super) fn node_id(text: &str) -> Result<NodeId> {
    let number = text.strip_prefix('n').unwrap_or(text).parse().ok().filter(|number| *number > 0);
    number.map(NodeId).ok_or_else(|| CliError::usage(format!("{text:?} is no node; write its number, such as n18")))
}

impl RestoreArgs {
    pub fn run(self, context: &Context) -> Result<()> {
        let node = node_id(&self.node)?;
        let set = BackupSet::open(&self.backups).map_err(failed)?;
        let order = RestoreOrder {
            backup: self.backup,
            node,
            dir: &self.dir,
            partitions: self.partitions.iter().copied().map(PartitionId).collect(),
            over_newer: self.over_newer_state,
            now: wall(),
        };
        let report = restore(&set, &order).map_err(failed)?;
        for one in &report.restored {
            let (partition, time) = (one.partition.get(), crate::human::local_time(one.time.0));
            if context.out.is_json() {
                context.out.json(&json!({
                    "backup": report.number, "partition": partition, "entry": one.backup.index, "time_ns": one.time.0,
                    "goes_on_at": one.place.index,
                }))?;
                continue;
            }
            context.out.line(format!(
                "partition {partition}: as it was at {time} (entry {} of backup {}); goes on at entry {} with {node} alone",
                one.backup.index, report.number, one.place.index
            ))?;
        }
        if context.out.is_json() {
            return Ok(());
        }
        for part in &report.parts {
            context.out.line(format!(
                "{} of {} partitions of volume {} were put in place: the others stay as they are, of another time. Restore all of them where \
                 the volume shall be as it was then",
                part.restored, part.all, part.volume
            ))?;
        }
        for volume in &report.apart {
            context.out.line(format!(
                "backup {} has the partitions of volume {volume} as of several moments (it was made with --any-member, or by an                  earlier build): what was moved between them meanwhile may have two names or none. When the volume runs: cairn \
                 admin fsck {volume} --repair",
                report.number
            ))?;
        }
        context.out.line(
            "what was written since has no names any more and is freed as garbage after garbage_grace: if the newer state may be \
             wanted back, cairn admin config set garbage_period=720h before the node starts, and keep a directory of before",
        )?;
        context.out.line(format!(
            "next: if the managers are lost, too, cairn admin rebuild-map; then start {node}, cairn admin fsck VOLUME, and \
             give the partitions more members (cairn admin partition remove, then add)"
        ))
    }
}
