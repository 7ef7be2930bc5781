//! `cairn fs snapshot schedule set|ls|clear`: snapshots that the cluster takes and removes by itself.
use super::of::{self, Of};
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::output::put_name;
use crate::remote::NamedFor;
use crate::table::{Align, Table};
use cairn_client::snapshot::{Snapshot, SnapshotPeriod, SnapshotRule};
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use std::ffi::OsString;

#[derive(Args, Debug)]
pub struct ScheduleArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Say how often snapshots are taken, and how many are kept
    #[command(
        after_help = "They are called by when they were taken, in UTC: hourly-2026-11-26T14:00Z, those of a directory hourly-2026-11-26T14:00Z.dir. One that is renamed is kept."
    )]
    Set {
        /// Such as hourly=24,daily=7,weekly=4,monthly=12
        #[arg(value_name = "RULES")]
        name: String,
        /// A directory, or the volume as VOLUME:/
        #[arg(default_value = "/")]
        path: OsString,
    },
    /// Show the schedules of a volume and its directories, or that of a directory
    Ls {
        /// A directory, or the volume as VOLUME:/
        #[arg(default_value = "/")]
        path: OsString,
    },
    /// Take no more; those that there are stay
    Clear {
        /// A directory, or the volume as VOLUME:/
        #[arg(default_value = "/")]
        path: OsString,
    },
}

impl ScheduleArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        match self.action {
            Action::Set { name, path } => set(context, parse(&name)?, &path).await,
            Action::Clear { path } => set(context, Vec::new(), &path).await,
            Action::Ls { path } => list(context, &path).await,
        }
    }
}

async fn list(context: &Context, path: &OsString) -> Result<()> {
    let of = Of::find(context, path).await?;
    let named = |error: cairn_client::ClientError| CliError::from(error.named_for(&of.at));
    let mut schedules = of.volume.snapshot_schedules().await.map_err(named)?;
    schedules.retain(|one| of.directory == 0 || one.directory == of.directory);
    let there = of.volume.snapshots().await.map_err(named)?;
    let paths = of.paths(schedules.iter().map(|one| one.directory)).await?;
    let columns = [("PERIOD", Align::Left), ("KEPT", Align::Right), ("THERE", Align::Right), ("OF", Align::Left)];
    let mut table = Table::new(&columns);
    let rules = schedules.iter().flat_map(|one| one.rules.iter().map(|rule| (one.directory, rule)));
    for (directory, rule) in rules {
        let is_its = |one: &&Snapshot| (one.directory, one.rule, one.deleting) == (directory, Some(rule.period), false);
        let count = there.iter().filter(is_its).count();
        let period = rule.period.name();
        let path = paths.get(&directory);
        if !context.out.is_json() {
            table.row(vec![period.to_owned(), rule.keep.to_string(), count.to_string(), of::shown(directory, path)]);
            continue;
        }
        let mut object = Map::new();
        object.insert("period".into(), json!(period));
        object.insert("keep".into(), json!(rule.keep));
        object.insert("there".into(), json!(count));
        if directory != 0 {
            object.insert("directory".into(), json!(directory));
        }
        if let Some(path) = path {
            put_name(&mut object, "path", path);
        }
        context.out.json(&Value::Object(object))?;
    }
    if context.out.is_json() { Ok(()) } else { table.print(&context.out) }
}

async fn set(context: &Context, rules: Vec<SnapshotRule>, path: &OsString) -> Result<()> {
    let of = Of::find(context, path).await?;
    of.volume.set_snapshot_schedule(of.directory, rules).await.map_err(|error| error.named_for(&of.at).into())
}

fn parse(text: &str) -> Result<Vec<SnapshotRule>> {
    let rules: Option<Vec<SnapshotRule>> = text
        .split(',')
        .map(|rule| {
            let (period, keep) = rule.split_once('=')?;
            let period = SnapshotPeriod::ALL.into_iter().find(|known| known.name() == period.trim())?;
            let keep = keep.trim().parse().ok().filter(|keep| *keep > 0)?;
            Some(SnapshotRule { period, keep })
        })
        .collect();
    rules.ok_or_else(|| {
        CliError::usage(format!("{text:?} is no schedule; write rules such as hourly=24,daily=7,weekly=4,monthly=12"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another schedule than the one that was typed.
    #[test]
    fn rules_are_read() {
        let rules = parse("hourly=24, monthly=2").expect("rules");
        assert_eq!(
            rules,
            [
                SnapshotRule { period: SnapshotPeriod::Hour, keep: 24 },
                SnapshotRule { period: SnapshotPeriod::Month, keep: 2 }
            ]
        );
        for text in ["", "hourly", "hourly=0", "hourly=-1", "yearly=1", "hourly=24;daily=7", "hourly=24,"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
