//! `cairn fs rm`: files, and with `-r` whole trees. They go to the trash; with `--skip-trash`, and where nothing is
//! kept, the servers unlink them at once and reclaim them behind.
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

/// Removals in flight.
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
        let mut removals = Removals::new(report.clone(), self.force);
        let mut trashes = Trashes::default();
        for text in &self.paths {
            if removals.directories {
                removals.finish().await;
            }
            let found = match expand(context, text, false).await {
                Ok(found) => found,
                Err(error) if self.force && error.is_not_found() => continue,
                Err(error) => {
                    report.fail(&error);
                    continue;
                }
            };
            if found.iter().any(Found::is_directory) {
                removals.finish().await;
            }
            for found in found {
                match self.removal(context, found, &mut trashes).await {
                    Ok(removal) => removals.begin(removal).await,
                    Err(error) => report.fail(&error),
                }
                if report.is_stopped() {
                    break;
                }
            }
            if report.is_stopped() {
                break;
            }
        }
        removals.finish().await;
        report.finish()
    }

    /// What is to be done for something that was found.
    async fn removal(&self, context: &Context, found: Found, trashes: &mut Trashes) -> Result<Removal> {
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
        if self.skip_trash || is_in_trash(&found.at.path) {
            return Ok(Removal { found, trash: None });
        }
        let trash = match trashes.entry((found.at.cluster.clone(), found.at.volume.clone())) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(place) => place.insert(Arc::new(trash_of(context, &found.at).await?)),
        };
        Ok(Removal { trash: Some(trash.clone()), found })
    }
}

/// Trashes of volumes, as they are needed.
type Trashes = BTreeMap<(Option<Vec<String>>, String), Arc<Trash>>;

/// Something that goes.
struct Removal {
    found: Found,
    /// Where it is kept; `None`: it goes for good.
    trash: Option<Arc<Trash>>,
}

impl Removal {
    async fn run(&self, report: &Arc<Report>) -> Result<()> {
        let Found { at, volume, .. } = &self.found;
        if let Some(trash) = &self.trash
            && self.to_trash(trash).await?
        {
            report.done(if self.found.is_directory() { Done::Directory } else { Done::File(0) });
            return Ok(());
        }
        if !self.found.is_directory() {
            volume.unlink(&at.path).await.map_err(|e| e.named_for(at))?;
            report.done(Done::File(0));
            return Ok(());
        }
        match volume.remove_tree(&at.path).await {
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
                remove_each(&self.found, report).await;
                Ok(())
            }
            Err(error) => Err(error.named_for(at).into()),
        }
    }

    /// Moves it to the trash of its volume. False: it is to be removed for good.
    async fn to_trash(&self, trash: &Trash) -> Result<bool> {
        let at = &self.found.at;
        match trash.put(&at.path).await {
            Ok(kept) => Ok(kept),
            Err(error) => {
                let exit = match error.code() {
                    Some(ErrorCode::PermissionDenied) => Exit::Permission,
                    // The trash counts in the volume.
                    Some(ErrorCode::QuotaExceeded | ErrorCode::NoSpace) => Exit::NoSpace,
                    _ => return Err(error.named_for(at).into()),
                };
                let text = format!("{at}: cannot be moved to the trash ({error}); rm --skip-trash removes it for good");
                Err(CliError::refused(exit, text))
            }
        }
    }
}

/// Removals that are under way. What one operand names, and files of several ones, go at the same time; a directory is
/// gone before the next operand is looked at, which may lie in it.
struct Removals {
    report: Arc<Report>,
    force: bool,
    room: Arc<Semaphore>,
    tasks: JoinSet<()>,
    directories: bool,
}

impl Removals {
    fn new(report: Arc<Report>, force: bool) -> Self {
        let room = Arc::new(Semaphore::new(IN_FLIGHT_MAX));
        Self { report, force, room, tasks: JoinSet::new(), directories: false }
    }

    async fn begin(&mut self, removal: Removal) {
        let Ok(permit) = self.room.clone().acquire_owned().await else { return };
        while self.tasks.try_join_next().is_some() {}
        let (report, force) = (self.report.clone(), self.force);
        self.directories |= removal.found.is_directory();
        self.tasks.spawn(async move {
            let _permit = permit;
            if let Err(error) = removal.run(&report).await
                && !(force && error.is_not_found())
            {
                report.fail(&error);
            }
        });
    }

    async fn finish(&mut self) {
        while self.tasks.join_next().await.is_some() {}
        self.directories = false;
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
