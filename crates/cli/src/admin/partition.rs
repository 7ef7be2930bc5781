//! `cairn admin partition ls`.
use super::status;
use crate::context::Context;
use crate::error::Result;
use crate::human::size;
use crate::table::{Align, Table};
use clap::{Args, Subcommand};
use serde_json::json;

#[derive(Args, Debug)]
pub struct PartitionArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// List the meta partitions
    #[command(alias = "list")]
    Ls,
}

impl PartitionArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        let Verb::Ls = self.verb;
        let (status, map) = status(context).await?;
        let mut table = Table::new(&[
            ("PARTITION", Align::Right),
            ("VOLUME", Align::Left),
            ("INODES FROM", Align::Right),
            ("TO", Align::Right),
            ("MEMBERS", Align::Left),
            ("LEADER", Align::Right),
            ("TERM", Align::Right),
            ("APPLIED", Align::Right),
            ("INODES", Align::Right),
            ("MEMORY", Align::Right),
        ]);
        for partition in map.partitions.iter().filter(|partition| !partition.removed) {
            let volume = map.volumes.iter().find(|v| v.id == partition.volume);
            let volume = volume.map_or_else(|| format!("v{}", partition.volume), |v| v.name.clone());
            let report = status.partitions.iter().find(|report| report.partition == partition.id);
            let report = report.copied().unwrap_or_default();
            if context.out.is_json() {
                context.out.json(&json!({
                    "id": partition.id, "volume": volume, "inode_first": partition.inode_first,
                    "inode_last": partition.inode_last, "nodes": partition.nodes, "leader": partition.leader,
                    "term": report.term, "applied": report.applied, "inodes": report.inodes,
                    "file_bytes": report.file_bytes, "memory_bytes": report.memory_bytes,
                }))?;
            }
            let members: Vec<String> = partition.nodes.iter().map(|node| format!("n{node}")).collect();
            let last = match partition.inode_last {
                u64::MAX => "no end".to_owned(),
                last => last.to_string(),
            };
            table.row(vec![
                partition.id.to_string(),
                volume,
                partition.inode_first.to_string(),
                last,
                members.join(" "),
                if partition.leader == 0 { "-".into() } else { format!("n{}", partition.leader) },
                report.term.to_string(),
                report.applied.to_string(),
                report.inodes.to_string(),
                size(report.memory_bytes, true),
            ]);
        }
        match context.out.is_json() {
            true => Ok(()),
            false => table.print(&context.out),
        }
    }
}
