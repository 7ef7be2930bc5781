//! `cairn fs snapshot create|ls|rename|delete|restore|diff`: moments of a volume or a directory that stay readable, as
//! `DIRECTORY/.snapshots/NAME`.
mod diff;
mod of;
mod restore;
mod same;
mod schedule;
mod tree_diff;

use crate::context::Context;
use crate::error::{CliError, Result};
use crate::human::{size, utc_time};
use crate::output::put_name;
use crate::remote::NamedFor;
use crate::table::{Align, Table};
use cairn_client::snapshot::Snapshot;
use cairn_types::BLOCK_SIZE;
use clap::{Args, Subcommand};
use of::Of;
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
    /// Take a snapshot of a volume or a directory
    #[command(
        after_help = "One of a volume is read below every directory, one of a directory below that: cairn fs ls /dir/.snapshots/NAME"
    )]
    Create {
        /// What it is called
        name: OsString,
        /// A directory, or the volume as VOLUME:/
        #[arg(default_value = "/")]
        path: OsString,
    },
    /// List the snapshots of a volume, or those of a directory alone
    #[command(after_help = "Each holds what changed in the whole volume since, also one of a directory.")]
    Ls {
        /// A directory, or the volume as VOLUME:/
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
        /// Its directory, or the volume as VOLUME:/
        #[arg(default_value = "/")]
        path: OsString,
        /// Which of several of one name, as `snapshot ls` shows it
        #[arg(long)]
        number: Option<u64>,
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
        /// Its directory, or the volume as VOLUME:/
        #[arg(default_value = "/")]
        path: OsString,
        /// Which of several of one name, as `snapshot ls` shows it
        #[arg(long)]
        number: Option<u64>,
    },
}

impl SnapshotArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        match self.action {
            Action::Create { name, path } => create(context, name.as_bytes(), &path).await,
            Action::Ls { path, human } => list(context, &path, human).await,
            Action::Schedule(args) => args.run(context).await,
            Action::Restore(args) => args.run(context).await,
            Action::Diff(args) => args.run(context).await,
            Action::Rename { name, new_name, path, number } => {
                let of = Of::find(context, &path).await?;
                let snapshot = of.one(name.as_bytes(), number).await?;
                let renamed = of.volume.rename_snapshot(&snapshot, new_name.as_bytes()).await;
                renamed.map_err(|error| error.named_for(&of.at).into())
            }
            Action::Delete { name, path, number } => {
                let of = Of::find(context, &path).await?;
                let snapshot = of.one(name.as_bytes(), number).await?;
                of.volume.delete_listed(&snapshot).await.map_err(|error| error.named_for(&of.at).into())
            }
        }
    }
}

async fn create(context: &Context, name: &[u8], path: &OsStr) -> Result<()> {
    let of = Of::find(context, path).await?;
    let made = match of.directory {
        0 => of.volume.create_snapshot(name).await,
        directory => of.volume.create_snapshot_of(directory, name).await,
    };
    let number = made.map_err(|error| error.named_for(&of.at))?;
    if context.out.is_json() {
        let mut object = Map::new();
        put_name(&mut object, "name", name);
        object.insert("number".into(), json!(number));
        context.out.json(&Value::Object(object))?;
    }
    Ok(())
}

async fn list(context: &Context, path: &OsStr, human: bool) -> Result<()> {
    let of = Of::find(context, path).await?;
    let named = |error: cairn_client::ClientError| CliError::from(error.named_for(&of.at));
    let mut snapshots = of.volume.snapshots_with_space().await.map_err(named)?;
    snapshots.retain(|snapshot| of.directory == 0 || snapshot.directory == of.directory);
    let paths = of.paths(snapshots.iter().map(|snapshot| snapshot.directory)).await?;
    let columns = [
        ("NUMBER", Align::Right),
        ("TAKEN", Align::Left),
        ("HELD", Align::Right),
        ("OF", Align::Left),
        ("NAME", Align::Left),
    ];
    let mut table = Table::new(&columns);
    for snapshot in &snapshots {
        let path = paths.get(&snapshot.directory);
        if context.out.is_json() {
            context.out.json(&object(snapshot, path))?;
            continue;
        }
        let name = String::from_utf8_lossy(&snapshot.name).into_owned();
        table.row(vec![
            snapshot.number.to_string(),
            utc_time(snapshot.created_ns),
            size(held(snapshot), human),
            of::shown(snapshot.directory, path),
            crate::output::printable(&name, false) + if snapshot.deleting { " (being deleted)" } else { "" },
        ]);
    }
    if context.out.is_json() {
        return Ok(());
    }
    table.print(&context.out)?;
    if !context.args.quiet && snapshots.iter().any(|snapshot| snapshot.directory != 0) {
        let text = "a snapshot of a directory holds what changed in the whole volume since; HELD counts all of it";
        context.report("listing", None).warn(text);
    }
    Ok(())
}

/// Of one copy.
fn held(snapshot: &Snapshot) -> u64 {
    snapshot.kept_blocks * BLOCK_SIZE as u64
}

fn object(snapshot: &Snapshot, path: Option<&Vec<u8>>) -> Value {
    let mut object = Map::new();
    put_name(&mut object, "name", &snapshot.name);
    object.insert("number".into(), json!(snapshot.number));
    object.insert("created".into(), json!(utc_time(snapshot.created_ns)));
    object.insert("held_bytes".into(), json!(held(snapshot)));
    object.insert("deleting".into(), json!(snapshot.deleting));
    if snapshot.directory != 0 {
        object.insert("directory".into(), json!(snapshot.directory));
    }
    // None: the directory was removed.
    if let Some(path) = path {
        put_name(&mut object, "path", path);
    }
    Value::Object(object)
}
