//! `cairn admin scrub status|start`: disks read through at rest, and what was found.
use super::target::disk_number;
use super::{age, listing, status};
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::human::size;
use crate::table::Align;
use cairn_client::admin::data::ScrubReport;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use std::time::{SystemTime, UNIX_EPOCH};

#[derive(Args, Debug)]
pub struct ScrubArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// How far each disk was read, and what was found
    Status {
        /// Only this disk, such as d3
        disk: Option<String>,
    },
    /// Read disks through now, as fast as scrub_rate_max allows
    Start {
        /// The disk, such as d3; without it, all
        disk: Option<String>,
    },
}

impl ScrubArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        let (disk, start) = match self.verb {
            Verb::Status { disk } => (disk, false),
            Verb::Start { disk } => (disk, true),
        };
        ask(context, disk.map(disk_number).transpose()?, start).await
    }
}

async fn ask(context: &Context, only: Option<u32>, start: bool) -> Result<()> {
    let (_, map) = status(context).await?;
    let client = context.client().await?;
    let disks = || map.disks.iter().filter(|disk| !disk.is_removed());
    if let Some(disk) = only.filter(|disk| !disks().any(|known| known.id == *disk)) {
        return Err(CliError::refused(
            Exit::NotFound,
            format!("there is no disk d{disk}; cairn admin disk ls lists them"),
        ));
    }
    let (mut rows, mut silent) = (Vec::new(), Vec::new());
    for node in &map.nodes {
        let mut disks = disks().filter(|disk| disk.node == node.id && only.is_none_or(|only| only == disk.id));
        let Some(first) = disks.next() else { continue };
        let what = format!("scrub of the disks of node n{}", node.id);
        let answer = match node.up {
            true => client.scrubs(&what, &node.address, only, start).await,
            false => {
                silent.push(format!("node n{} is down", node.id));
                continue;
            }
        };
        match answer {
            Ok(reports) => rows.extend(reports.iter().map(|report| row(report, node.id))),
            Err(error) if only.is_some() => return Err(error.into()),
            Err(error) => silent.push(format!("disk d{} of node n{}: {error}", first.id, node.id)),
        }
    }
    rows.sort_by_key(|(disk, ..)| *disk);
    let columns = [
        ("DISK", Align::Right),
        ("NODE", Align::Right),
        ("STATE", Align::Left),
        ("READ", Align::Right),
        ("OF ABOUT", Align::Right),
        ("RATE", Align::Right),
        ("BAD", Align::Right),
        ("HEALED", Align::Right),
        ("BEGAN", Align::Left),
        ("LAST PASS", Align::Left),
    ];
    listing::print(context, &columns, rows.into_iter().map(|(_, value, cells)| (value, cells)))?;
    match silent.is_empty() {
        true => Ok(()),
        false => {
            let text = format!("not all disks answered: {}; see cairn admin status", silent.join("; "));
            Err(CliError::refused(Exit::Partial, text))
        }
    }
}

fn row(report: &ScrubReport, node: u32) -> (u32, Value, Vec<String>) {
    let state = match (report.running, report.asked) {
        (true, true) => "running, asked for",
        (true, false) => "running",
        (false, _) if report.pass == 0 => "not begun",
        (false, _) => "waiting",
    };
    let value = json!({
        "disk": report.disk, "node": node, "state": state, "pass": report.pass, "bytes": report.bytes,
        "total_bytes": report.total_bytes, "rate": report.rate, "bad_blocks": report.bad_blocks,
        "healed_blocks": report.healed_blocks, "began_ns": report.began_ns, "ended_ns": report.ended_ns,
        "last_ended_ns": report.last_ended_ns, "last_bad_blocks": report.last_bad_blocks,
    });
    // The last one that came to its end, with what it found.
    let last = match (report.ended_ns, report.last_ended_ns) {
        (0, 0) => "-".to_owned(),
        (0, ended) => format!("{} ago, {} bad", ago(ended), report.last_bad_blocks),
        (ended, _) => format!("{} ago, {} bad", ago(ended), report.bad_blocks),
    };
    let cells = vec![
        format!("d{}", report.disk),
        format!("n{node}"),
        state.to_owned(),
        size(report.bytes, true),
        size(report.total_bytes, true),
        format!("{}/s", size(report.rate, true)),
        report.bad_blocks.to_string(),
        report.healed_blocks.to_string(),
        if report.began_ns == 0 { "-".into() } else { format!("{} ago", ago(report.began_ns)) },
        last,
    ];
    (report.disk, value, cells)
}

/// Time since a moment of the servers' clocks.
fn ago(ns: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    let ms = now.saturating_sub(u128::from(ns)) / 1_000_000;
    age(u64::try_from(ms).unwrap_or(u64::MAX))
}
