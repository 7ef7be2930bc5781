//! `cairn fs snapshot create|ls|rename|delete|restore|diff`: moments of a volume that stay readable, as `DIRECTORY/.snapshots/NAME`.
mod diff;
mod restore;
mod same;
mod schedule;
mod tree_diff;

use crate::context::Context;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::human::{size, utc_time};
use crate::output::put_name;
use crate::remote::NamedFor;
use crate::table::{Align, Table};
use cairn_client::{RemotePath, Volume};
use cairn_types::BLOCK_SIZE;
use cairn_wire::meta::Snapshot;
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;

#[derive(Args, Debug)]
pub struct SnapshotArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Debug)]
enum Action {
    /// Take a snapshot of a volume
    #[command(after_help = "It is read below every directory: cairn fs ls /dir/.snapshots/NAME")]
    Create {
        /// What it is called
        name: OsString,
        /// The volume, as VOLUME:/
        #[arg(default_value = "/")]
        path: OsString,
    },
    /// List the snapshots of a volume
    Ls {
        /// The volume, as VOLUME:/
        #[arg(default_value = "/")]
        path: OsString,
        /// Sizes such as 1.5M
        #[arg(long)]
        human: bool,
    },
    /// Rename a snapshot
    Rename {
        /// What it is called
        name: OsString,
        /// What it is called from now on
        new_name: OsString,
        /// The volume, as VOLUME:/
        #[arg(default_value = "/")]
        path: OsString,
    },
    /// Bring back a file or tree as it was
    Restore(restore::RestoreArgs),
    /// Show what changed since a snapshot, or between two
    Diff(diff::DiffArgs),
    /// Snapshots that the cluster takes by itself
    Schedule(schedule::ScheduleArgs),
    /// Delete a snapshot; what it holds is freed behind
    Delete {
        /// What it is called
        name: OsString,
        /// The volume, as VOLUME:/
        #[arg(default_value = "/")]
        path: OsString,
    },
}

impl SnapshotArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        match self.action {
            Action::Create { name, path } => {
                let (at, volume) = volume(context, &path).await?;
                let number = volume.create_snapshot(name.as_bytes()).await.map_err(|error| error.named_for(&at))?;
                if context.out.is_json() {
                    let mut object = Map::new();
                    put_name(&mut object, "name", name.as_bytes());
                    object.insert("number".into(), json!(number));
                    context.out.json(&Value::Object(object))?;
                }
                Ok(())
            }
            Action::Ls { path, human } => list(context, &path, human).await,
            Action::Schedule(args) => args.run(context).await,
            Action::Restore(args) => args.run(context).await,
            Action::Diff(args) => args.run(context).await,
            Action::Rename { name, new_name, path } => {
                let (at, volume) = volume(context, &path).await?;
                let renamed = volume.rename_snapshot(name.as_bytes(), new_name.as_bytes()).await;
                renamed.map_err(|error| error.named_for(&at).into())
            }
            Action::Delete { name, path } => {
                let (at, volume) = volume(context, &path).await?;
                volume.delete_snapshot(name.as_bytes()).await.map_err(|error| error.named_for(&at).into())
            }
        }
    }
}

async fn volume(context: &Context, path: &OsStr) -> Result<(RemotePath, Volume)> {
    let at = context.remote(path)?;
    if at.path != b"/" {
        let text = format!(
            "snapshots are of whole volumes, and {} is a path in one; name the volume alone: {}:/",
            String::from_utf8_lossy(&at.path),
            at.volume
        );
        return Err(CliError::refused(Exit::Usage, text));
    }
    let volume = context.volume(&at).await?;
    Ok((at, volume))
}

async fn list(context: &Context, path: &OsStr, human: bool) -> Result<()> {
    let (at, volume) = volume(context, path).await?;
    let snapshots = volume.snapshots_with_space().await.map_err(|error| CliError::from(error.named_for(&at)))?;
    let columns = [("NUMBER", Align::Right), ("TAKEN", Align::Left), ("HELD", Align::Right), ("NAME", Align::Left)];
    let mut table = Table::new(&columns);
    for snapshot in &snapshots {
        if context.out.is_json() {
            context.out.json(&object(snapshot))?;
            continue;
        }
        let name = String::from_utf8_lossy(&snapshot.name).into_owned();
        table.row(vec![
            snapshot.number.to_string(),
            utc_time(snapshot.created_ns),
            size(held(snapshot), human),
            crate::output::printable(&name, false) + if snapshot.deleting { " (being deleted)" } else { "" },
        ]);
    }
    if context.out.is_json() { Ok(()) } else { table.print(&context.out) }
}

/// Of one copy.
fn held(snapshot: &Snapshot) -> u64 {
    snapshot.kept_blocks * BLOCK_SIZE as u64
}

fn object(snapshot: &Snapshot) -> Value {
    let mut object = Map::new();
    put_name(&mut object, "name", &snapshot.name);
    object.insert("number".into(), json!(snapshot.number));
    object.insert("created".into(), json!(utc_time(snapshot.created_ns)));
    object.insert("held_bytes".into(), json!(held(snapshot)));
    object.insert("deleting".into(), json!(snapshot.deleting));
    Value::Object(object)
}
