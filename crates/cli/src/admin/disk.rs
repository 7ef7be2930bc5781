//! `cairn admin disk ls|remove|clear`.
use super::target::{Kind, TargetArgs, disk_number, remove};
use super::{listing, status};
use crate::context::Context;
use crate::error::Result;
use crate::human::size;
use crate::table::Align;
use cairn_client::map::{Disk, DiskState};
use clap::{Args, Subcommand};
use serde_json::json;

#[derive(Args, Debug)]
pub struct DiskArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// List the disks
    #[command(alias = "list")]
    Ls,
    /// Take a disk that keeps nothing out of the cluster for good
    Remove {
        /// Its number, such as d3
        disk: String,
    },
    /// Say that a gray disk is good: it gets new data again
    Clear {
        /// Its number, such as d3
        disk: String,
    },
}

/// For people. Of a node that is down, nobody knows more than what was known before.
fn state_text(disk: &Disk, is_up: bool) -> String {
    let state = match (disk.state, is_up) {
        (state, true) => state.name().to_owned(),
        (DiskState::InService, false) => "node is down".to_owned(),
        (state, false) => format!("{}, node is down", state.name()),
    };
    if disk.gray.is_empty() { state } else { format!("{state}, gray") }
}

impl DiskArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        match self.verb {
            Verb::Remove { disk } => {
                let target = TargetArgs::new(Kind::Disk, disk).target()?;
                return remove(context, &target, "").await;
            }
            Verb::Clear { disk } => return clear(context, disk).await,
            Verb::Ls => {}
        }
        let (_, map) = status(context).await?;
        let is_up = |disk: &Disk| map.nodes.iter().any(|node| node.id == disk.node && node.up);
        let rows = map.disks.iter().filter(|disk| !disk.is_removed()).map(|disk| {
            let value = json!({
                "id": disk.id, "node": disk.node, "uuid": disk.uuid.to_string(), "state": disk.state.name(),
                "total_bytes": disk.total_bytes, "free_bytes": disk.free_bytes, "pgs": disk.pgs,
                "chunks": disk.chunks, "queue_depth": disk.queue_depth, "latency_us": disk.latency_us,
                "path": disk.path, "problem": disk.problem, "node_up": is_up(disk), "gray": disk.gray, "gray_since_ns": disk.gray_since_ns,
            });
            let cells = vec![
                format!("d{}", disk.id),
                format!("n{}", disk.node),
                state_text(disk, is_up(disk)),
                size(disk.total_bytes, true),
                size(disk.free_bytes, true),
                disk.pgs.to_string(),
                disk.chunks.to_string(),
                disk.queue_depth.to_string(),
                format!("{} us", disk.latency_us),
                disk.path.clone(),
                if disk.problem.is_empty() { disk.gray.clone() } else { disk.problem.clone() },
            ];
            (value, cells)
        });
        let columns = [
            ("DISK", Align::Right),
            ("NODE", Align::Right),
            ("STATE", Align::Left),
            ("SIZE", Align::Right),
            ("FREE", Align::Right),
            ("GROUPS", Align::Right),
            ("CHUNKS", Align::Right),
            ("QUEUE", Align::Right),
            ("WRITE", Align::Right),
            ("PATH", Align::Left),
            ("PROBLEM", Align::Left),
        ];
        listing::print(context, &columns, rows)
    }
}

async fn clear(context: &Context, disk: String) -> Result<()> {
    let disk = disk_number(disk)?;
    let name = format!("disk d{disk}");
    let client = context.client().await?;
    client.clear_gray(&format!("clearing {name}"), disk).await?;
    match context.out.is_json() {
        true => context.out.json(&json!({ "target": name, "outcome": "good" })),
        false => context.out.line(format!("{name} gets new data again; it is marked anew if it is as slow as before")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk that nobody can reach would be shown in service.
    #[test]
    fn a_disk_of_a_node_that_is_down_is_not_in_service() {
        use DiskState::{Failed, InService};
        let disk = |state, gray: &str| Disk { state, gray: gray.into(), ..Disk::default() };
        assert_eq!(state_text(&disk(InService, ""), true), "in service");
        assert_eq!(state_text(&disk(InService, ""), false), "node is down");
        assert_eq!(state_text(&disk(Failed, ""), false), "failed, node is down");
        assert_eq!(state_text(&disk(InService, "slow"), true), "in service, gray");
    }
}
