//! `cairn fs snapshot schedule set|ls|clear`: snapshots that the cluster takes and removes by itself.
use super::volume;
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::remote::NamedFor;
use crate::table::{Align, Table};
use cairn_wire::meta::SnapshotRule;
use clap::{Args, Subcommand};
use serde_json::json;
use std::ffi::OsString;

/// Periods, in the order of their numbers from 1 on.
const PERIODS: [&str; 4] = ["hourly", "daily", "weekly", "monthly"];

#[derive(Args, Debug)]
pub struct ScheduleArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Say how often snapshots are taken, and how many are kept
    #[command(
        after_help = "They are called by when they were taken, in UTC: hourly-2026-11-26T14:00Z. One that is renamed is kept."
    )]
    Set {
        /// Such as hourly=24,daily=7,weekly=4,monthly=12
        #[arg(value_name = "RULES")]
        name: String,
        /// The volume, as VOLUME:/
        #[arg(default_value = "/")]
        path: OsString,
    },
    /// Show the schedule of a volume
    Ls {
        /// The volume, as VOLUME:/
        #[arg(default_value = "/")]
        path: OsString,
    },
    /// Take no more; those that there are stay
    Clear {
        /// The volume, as VOLUME:/
        #[arg(default_value = "/")]
        path: OsString,
    },
}

impl ScheduleArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        match self.action {
            Action::Set { name, path } => set(context, parse(&name)?, &path).await,
            Action::Clear { path } => set(context, Vec::new(), &path).await,
            Action::Ls { path } => {
                let (at, volume) = volume(context, &path).await?;
                let rules = volume.snapshot_schedule().await.map_err(|error| CliError::from(error.named_for(&at)))?;
                let there = volume.snapshots().await.map_err(|error| CliError::from(error.named_for(&at)))?;
                let mut table = Table::new(&[("PERIOD", Align::Left), ("KEPT", Align::Right), ("THERE", Align::Right)]);
                for rule in rules {
                    let count = there.iter().filter(|one| one.rule == rule.period && !one.deleting).count();
                    let period = PERIODS.get(rule.period.wrapping_sub(1) as usize).copied().unwrap_or("unknown");
                    if context.out.is_json() {
                        context.out.json(&json!({"period": period, "keep": rule.keep, "there": count}))?;
                    } else {
                        table.row(vec![period.to_owned(), rule.keep.to_string(), count.to_string()]);
                    }
                }
                if context.out.is_json() { Ok(()) } else { table.print(&context.out) }
            }
        }
    }
}

async fn set(context: &Context, rules: Vec<SnapshotRule>, path: &OsString) -> Result<()> {
    let (at, volume) = volume(context, path).await?;
    volume.set_snapshot_schedule(rules).await.map_err(|error| error.named_for(&at).into())
}

fn parse(text: &str) -> Result<Vec<SnapshotRule>> {
    let rules: Option<Vec<SnapshotRule>> = text
        .split(',')
        .map(|rule| {
            let (period, keep) = rule.split_once('=')?;
            let period = PERIODS.iter().position(|known| *known == period.trim())? as u32 + 1;
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
        assert_eq!(rules, [SnapshotRule { period: 1, keep: 24 }, SnapshotRule { period: 4, keep: 2 }]);
        for text in ["", "hourly", "hourly=0", "hourly=-1", "yearly=1", "hourly=24;daily=7", "hourly=24,"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
