//! `cairn fs clone`: a writable copy of a file or a tree that shares its data with its source, as it is now or was at a
//! snapshot.
use crate::at_snapshot::{AtSnapshot, find_at};
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::fs::cp::check_not_into_itself;
use crate::fs::store_flags::end;
use crate::remote::{NamedFor, Target, remote_target};
use crate::report::Report;
use crate::transfer::clone_tree::CloneTree;
use crate::transfer::hidden::Hidden;
use cairn_client::snapshot::Snapshot;
use cairn_client::{RemotePath, Volume};
use clap::Args;
use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

#[derive(Args, Debug)]
#[command(after_help = "PATH@SNAPSHOT is PATH as it was when that snapshot was taken.")]
pub struct CloneArgs {
    /// A file or directory, or what it was: PATH or PATH@SNAPSHOT
    #[arg(value_name = "SOURCE")]
    source: OsString,
    /// Where the clone goes: a directory that is there, or its new path
    #[arg(value_name = "TARGET")]
    target: OsString,
}

impl CloneArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        let started = Instant::now();
        let source = find_at(context, &self.source, false).await?;
        let to = match remote_target(context, &self.target, 1).await? {
            Target::Into(directory) => directory.join(own_name(&source)?),
            Target::As(to) => to,
        };
        let report = Arc::new(context.report("cloning", None));
        let hidden = build(context, &source, &to, true, &report).await?;
        hidden.show(context).await?;
        end(context, &report, "cloned", started)
    }
}

/// The name under which something goes into a directory.
pub fn own_name(source: &AtSnapshot) -> Result<&[u8]> {
    match source.path.name() {
        b"" => {
            let text = format!("{}: the root of a volume has no name; give the clone one", source.path);
            Err(CliError::usage(text))
        }
        name => Ok(name),
    }
}

/// Builds a clone for a path, in a hidden place beside it. `new`: nothing may be there yet.
pub async fn build(
    context: &Context,
    source: &AtSnapshot,
    to: &RemotePath,
    new: bool,
    report: &Arc<Report>,
) -> Result<Arc<Hidden>> {
    if !context.same_volume(&source.found.at, to)? {
        let text = format!(
            "{} and {to} are in different volumes, which share no data; copy with cairn fs cp -r",
            source.found.at
        );
        return Err(CliError::refused(Exit::Usage, text));
    }
    if source.snapshot.is_none() {
        check_not_into_itself(context, &source.found, &to.parent(), to.name())?;
    }
    let volume = &source.found.volume;
    let there = volume.try_stat(&to.path, false).await.map_err(|error| error.named_for(to))?;
    if new && there.is_some() {
        return Err(CliError::refused(Exit::Exists, format!("{to}: it is there already; choose another name")));
    }
    let taken = match &source.snapshot {
        Some(taken) => Some(taken.clone()),
        None => taken(volume, &source.found.at).await?,
    };
    let hidden = Arc::new(Hidden::make(context, volume, to.clone()).await?);
    let tree = Arc::new(CloneTree::new(hidden.clone(), source.found.at.clone(), report).await?);
    let built = tree.clone().build(source.found.attributes).await;
    let (files, bytes) = (tree.copied.0.load(Ordering::Relaxed), tree.copied.1.load(Ordering::Relaxed));
    // What a walk finds missing in a snapshot that is gone, it takes for removed.
    let gone = match &taken {
        Some(taken) => gone_snapshot(volume, &source.found.at, taken).await,
        None => None,
    };
    if let Some(error) = gone.or(built.err()) {
        hidden.remove(context).await;
        return Err(error);
    }
    if files > 0 && !context.args.quiet && !context.out.is_json() {
        let (files, size) = (
            if files == 1 { "1 file was".to_owned() } else { format!("{files} files were") },
            crate::human::bytes(bytes),
        );
        let why = "striped files (erasure codes), files of another meta partition, and files that are being written share no bytes";
        report.warn(&format!("{files} copied in full ({size}): {why}"));
    }
    Ok(hidden)
}

/// The snapshot that a path leads into.
async fn taken(volume: &Volume, at: &RemotePath) -> Result<Option<Snapshot>> {
    let Some((directory, name)) = snapshot_of(&at.path) else { return Ok(None) };
    let there = volume.snapshots().await.map_err(|error| error.named_for(at))?;
    let directory = volume.stat(directory, true).await.map_err(|error| error.named_for(at))?.inode;
    let is_it =
        |one: &Snapshot| !one.deleting && one.name == name && (one.directory == 0 || one.directory == directory);
    match there.into_iter().find(is_it) {
        None => Err(gone(at, name)),
        found => Ok(found),
    }
}

/// Why nothing more of the source can be read, if its snapshot is not there any more.
async fn gone_snapshot(volume: &Volume, at: &RemotePath, taken: &Snapshot) -> Option<CliError> {
    let there = volume.snapshots().await;
    let is_there = there.map_or(true, |all| all.iter().any(|one| !one.deleting && one.number == taken.number));
    (!is_there).then(|| gone(at, &taken.name))
}

fn gone(at: &RemotePath, name: &[u8]) -> CliError {
    let name = String::from_utf8_lossy(name);
    let text = format!(
        "{at}: the snapshot {name:?} was deleted (or renamed) while it was cloned, and nothing is left of the clone; \
         take another one (cairn fs snapshot ls {}:/ shows which there are), or clone what is there now",
        at.volume
    );
    CliError::refused(Exit::NotFound, text)
}

/// The directory whose `.snapshots` a path goes through, and the name behind it.
fn snapshot_of(path: &[u8]) -> Option<(&[u8], &[u8])> {
    const LIST: &[u8] = b"/.snapshots/";
    let cut = path.windows(LIST.len()).position(|part| part == LIST)?;
    let name = path[cut + LIST.len()..].split(|byte| *byte == b'/').next()?;
    let directory = if cut == 0 { b"/" } else { &path[..cut] };
    (!name.is_empty()).then_some((directory, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A deleted snapshot would not be named.
    #[test]
    fn a_snapshot_is_found_in_a_path() {
        assert_eq!(snapshot_of(b"/a/.snapshots/monday/b"), Some((&b"/a"[..], &b"monday"[..])));
        assert_eq!(snapshot_of(b"/.snapshots/x"), Some((&b"/"[..], &b"x"[..])));
        assert!(snapshot_of(b"/a/b").is_none() && snapshot_of(b"/a/.snapshots").is_none());
    }
}
