//! `cairn fs rm`: files, and with `-r` whole trees. They go to the trash; with `--skip-trash`, and where nothing is kept, the
//! servers unlink them at once and reclaim them behind.
use super::trash::trash_of;
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::remote::{Found, NamedFor, expand};
use crate::report::{Done, Report};
use crate::walk::{Node, Step, Walk};
use cairn_client::trash::{TRASH_PATH, Trash, is_in_trash};
use cairn_types::ErrorCode;
use clap::Args;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::OsString;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Removals in flight when a tree has to be removed entry by entry.
const IN_FLIGHT_MAX: usize = 64;

#[derive(Args, Debug)]
pub struct RmArgs {
    /// Remote paths or patterns
    #[arg(required = true)]
    paths: Vec<OsString>,
    /// Directories with all that is in them
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    /// What does not exist is fine
    #[arg(short, long)]
    force: bool,
    /// Remove for good, not to the trash
    #[arg(long)]
    skip_trash: bool,
}

impl RmArgs {
    pub async fn run(self, context: &Context) -> Result<()> {
        let report = Arc::new(context.plain_report());
        let mut trashes = Trashes::default();
        for text in &self.paths {
            let found = match expand(context, text, false).await {
                Ok(found) => found,
                Err(error) if self.force && error.is_not_found() => continue,
                Err(error) => {
                    report.fail(&error);
                    continue;
                }
            };
            for found in found {
                if let Err(error) = self.remove(context, &found, &report, &mut trashes).await
                    && !(self.force && error.is_not_found())
                {
                    report.fail(&error);
                }
            }
            if report.is_stopped() {
                break;
            }
        }
        report.finish()
    }

    async fn remove(
        &self,
        context: &Context,
        found: &Found,
        report: &Arc<Report>,
        trashes: &mut Trashes,
    ) -> Result<()> {
        if found.at.path == b"/" {
            let text = format!("{}: the root of a volume is not removed; name what is in it, such as '/*'", found.at);
            return Err(CliError::refused(Exit::Usage, text));
        }
        if found.at.path == TRASH_PATH && !self.skip_trash {
            let text = format!("{} is everybody's trash; cairn fs trash empty empties yours", found.at);
            return Err(CliError::refused(Exit::Usage, text));
        }
        if found.is_directory() && !self.recursive {
            let text = format!("{} is a directory; rm -r removes it with all that is in it", found.at);
            return Err(CliError::refused(Exit::WrongKind, text));
        }
        if !self.skip_trash && to_trash(context, found, trashes).await? {
            report.done(if found.is_directory() { Done::Directory } else { Done::File(0) });
            return Ok(());
        }
        if !found.is_directory() {
            found.volume.unlink(&found.at.path).await.map_err(|e| e.named_for(&found.at))?;
            report.done(Done::File(0));
            return Ok(());
        }
        match found.volume.remove_tree(&found.at.path).await {
            Ok(()) => {
                report.done(Done::Directory);
                Ok(())
            }
            // The server cannot do it at once (another version, or somebody else's directories below): one by one.
            Err(error)
                if matches!(
                    error.code(),
                    Some(
                        ErrorCode::UnknownOperation
                            | ErrorCode::PermissionDenied
                            | ErrorCode::NotPermitted
                            | ErrorCode::CrossVolume
                    )
                ) =>
            {
                remove_each(found, report).await;
                Ok(())
            }
            Err(error) => Err(error.named_for(&found.at).into()),
        }
    }
}

/// Trashes of volumes, as they are needed.
type Trashes = BTreeMap<(Option<Vec<String>>, String), Trash>;

/// Moves something to the trash of its volume. False: it is to be removed for good.
async fn to_trash(context: &Context, found: &Found, trashes: &mut Trashes) -> Result<bool> {
    if is_in_trash(&found.at.path) {
        return Ok(false);
    }
    let trash = match trashes.entry((found.at.cluster.clone(), found.at.volume.clone())) {
        Entry::Occupied(there) => there.into_mut(),
        Entry::Vacant(place) => place.insert(trash_of(context, &found.at).await?),
    };
    match trash.put(&found.at.path).await {
        Ok(kept) => Ok(kept),
        Err(error) if error.code() == Some(ErrorCode::PermissionDenied) => {
            let text =
                format!("{}: cannot be moved to the trash ({error}); rm --skip-trash removes it for good", found.at);
            Err(CliError::refused(Exit::Permission, text))
        }
        Err(error) => Err(error.named_for(&found.at).into()),
    }
}

/// Removes what is in a tree, then the tree: files in parallel, a directory when all in it are gone.
async fn remove_each(found: &Found, report: &Arc<Report>) {
    let mut walk = Walk::new(&found.volume, found.at.clone(), found.attributes);
    let room = Arc::new(Semaphore::new(IN_FLIGHT_MAX));
    let mut tasks = JoinSet::new();
    while let Some(step) = walk.next().await {
        if report.is_stopped() {
            break;
        }
        match step {
            Err(error) => report.fail(&error),
            Ok(Step::Enter(node)) if node.is_directory() => {}
            Ok(Step::Enter(node)) => {
                let Ok(permit) = room.clone().acquire_owned().await else { break };
                while tasks.try_join_next().is_some() {}
                let (volume, report) = (found.volume.clone(), report.clone());
                tasks.spawn(async move {
                    let _permit = permit;
                    match volume.unlink_at(node.parent, node.at.name(), &node.at.path).await {
                        Ok(_) => report.done(Done::File(0)),
                        Err(error) => report.fail(&error.named_for(&node.at).into()),
                    }
                });
            }
            Ok(Step::Leave(node)) => {
                // What is in it has to be gone first.
                while tasks.join_next().await.is_some() {}
                match remove_directory(found, &node).await {
                    Ok(()) => report.done(Done::Directory),
                    Err(error) => report.fail(&error),
                }
            }
        }
    }
    while tasks.join_next().await.is_some() {}
}

async fn remove_directory(found: &Found, node: &Node) -> Result<()> {
    let result = match node.depth {
        0 => found.volume.rmdir(&node.at.path).await,
        _ => found.volume.rmdir_at(node.parent, node.at.name(), &node.at.path).await.map(drop),
    };
    result.map_err(|error| error.named_for(&node.at).into())
}
