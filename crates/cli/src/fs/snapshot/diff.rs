//! `cairn fs snapshot diff`: what a snapshot and a later one, or what is there now, do not have in common: names that
//! came, went and moved, files with other contents, and other attributes.
use super::tree_diff::{Change, Side, TreeDiff};
use crate::at_snapshot::{check_inside, locate, not_of};
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::output::{printable, put_name};
use crate::remote::NamedFor;
use crate::report::Report;
use cairn_client::{RemotePath, Volume};
use clap::Args;
use serde_json::{Map, Value, json};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;

#[derive(Args, Debug)]
#[command(
    after_help = "+ came, - went, R moved, C other contents, A other attributes. Directories end with a slash.\n\
    What is only moved along with its directory is not shown, nor what only lies elsewhere on the disks."
)]
pub struct DiffArgs {
    /// A snapshot
    #[arg(value_name = "OLD")]
    old: OsString,
    /// A later one; without it what is there now
    #[arg(value_name = "NEW")]
    new: Option<OsString>,
    /// Only what is below this directory
    #[arg(long, value_name = "DIRECTORY", default_value = "/")]
    path: OsString,
}

impl DiffArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        let at = context.remote(&self.path)?;
        let volume = context.volume(&at).await?;
        let old = side(&volume, &at, Some(self.old.as_bytes())).await?;
        let new = side(&volume, &at, self.new.as_ref().map(|name| name.as_bytes())).await?;
        if self.new.as_ref() == Some(&self.old) {
            let text = format!(
                "{} is compared with itself; name another snapshot, or none for what is there now",
                self.old.display()
            );
            return Err(CliError::usage(text));
        }
        if old.taken >= new.taken {
            return Err(CliError::usage("the first snapshot has to be the older one"));
        }
        let report = context.walk_report();
        let mut diff = TreeDiff::new(&volume, old, new).await?;
        let mut counts = [0u64; 5];
        loop {
            let change = diff.next().await?;
            for (path, error) in diff.take_refused() {
                report.fail(&error.named_for(&below(&at, &path)).into());
            }
            let Some(change) = change else { break };
            counts[change.kind as usize] += 1;
            report.progress().looked();
            show(context, &change)?;
        }
        report.progress().finish();
        let (directories, entries, compared) = diff.looked_at();
        let [created, removed, renamed, contents, attributes] = counts;
        if context.out.is_json() {
            let summary = json!({"created": created, "removed": removed, "renamed": renamed, "contents": contents,
                "attributes": attributes, "directories_read": directories, "entries_read": entries, "bytes_compared": compared});
            context.out.json(&json!({ "summary": summary }))?;
            return whole(&report);
        }
        if !context.args.quiet {
            let text = format!(
                "{created} came, {removed} went, {renamed} moved, {contents} with other contents, {attributes} with other attributes; \
                 {directories} directories with {entries} names were read, {} of files compared",
                crate::human::bytes(compared)
            );
            report.warn(&text);
        }
        whole(&report)
    }
}

/// A path that begins below the directory that is compared.
fn below(at: &RemotePath, path: &[u8]) -> RemotePath {
    path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).fold(at.clone(), |at, name| at.join(name))
}

/// What could not be read is no difference that was shown.
fn whole(report: &Report) -> Result<()> {
    match report.failed() {
        0 => Ok(()),
        failed => Err(CliError::Reported { exit: Exit::Partial, failed, done: 0 }),
    }
}

/// One of the two that are compared.
async fn side(volume: &Volume, at: &RemotePath, name: Option<&[u8]>) -> Result<Side> {
    let Some(name) = name else {
        let root = volume.stat(&at.path, true).await.map_err(|error| error.named_for(at))?;
        return Ok(Side { root, taken: u64::MAX, time_ns: u64::MAX });
    };
    let snapshots = volume.snapshots().await.map_err(|error| error.named_for(at))?;
    let known: Vec<_> = snapshots.into_iter().filter(|one| !one.deleting && one.name == name).collect();
    if known.is_empty() {
        let name = String::from_utf8_lossy(name);
        let text = format!(
            "the volume {} has no snapshot {name:?}; cairn fs snapshot ls {}:/ shows which it has",
            at.volume, at.volume
        );
        return Err(CliError::refused(Exit::NotFound, text));
    }
    let Some((snapshot, then)) = locate(volume, at, &known).await? else {
        return Err(not_of(at, name));
    };
    let root = volume.stat(&then.path, true).await.map_err(|error| error.named_for(&then))?;
    check_inside(&then, &root)?;
    Ok(Side { root, taken: snapshot.number, time_ns: snapshot.created_ns })
}

fn show(context: &Context, change: &Change) -> Result<()> {
    if context.out.is_json() {
        let mut object = Map::new();
        object.insert("change".into(), json!(change.kind.name()));
        put_name(&mut object, "path", &change.path);
        if let Some(from) = &change.from {
            put_name(&mut object, "from", from);
        }
        object.insert("directory".into(), json!(change.is_directory));
        return context.out.json(&Value::Object(object));
    }
    let shown = |path: &[u8]| {
        printable(&String::from_utf8_lossy(path), false) + if change.is_directory && path != b"/" { "/" } else { "" }
    };
    let line = match &change.from {
        Some(from) => format!("{} {} -> {}", change.kind.letter(), shown(from), shown(&change.path)),
        None => format!("{} {}", change.kind.letter(), shown(&change.path)),
    };
    context.out.line(&line)
}
