//! [`download`]: remote files and trees into the local file system.
//!
//! The walk is a page of a directory ahead; files are fetched [`SMALL_IN_FLIGHT`] at a time, larger ones
//! [`LARGE_IN_FLIGHT`], each written under a temporary name and renamed when it is complete. Bounds: a page of entries
//! a level, [`cairn_client::READ_AHEAD`] pieces a file.
mod fetch;
mod local_dir;

use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::mode::{is_regular, is_symlink, type_name};
use crate::remote::Found;
use crate::report::{Done, Report};
use crate::transfer::{LARGE_IN_FLIGHT, Overwrite, SMALL_IN_FLIGHT, SMALL_MAX};
use crate::walk::{Node, Step, Walk};
use cairn_client::Volume;
use local_dir::LocalDir;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Threads that write small files: more only spin on the lock of the directory that they all create in.
const WRITERS: usize = 4;

/// Choices for everything that is fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchOptions {
    pub overwrite: Overwrite,
    /// Owners too.
    pub owner: bool,
    /// Wait until each file is on stable storage.
    pub sync: bool,
    /// Read each file again from the local disk and compare.
    pub checksum: bool,
}

/// A remote source and the local path that it becomes.
pub struct Fetch {
    pub found: Found,
    pub target: PathBuf,
}

/// What tasks of one download share.
pub(super) struct Download {
    pub options: FetchOptions,
    pub report: Arc<Report>,
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
    /// Small files being written to the local disk.
    pub writers: Semaphore,
}

/// Fetches all; failures are in the report.
pub async fn download(fetches: Vec<Fetch>, options: FetchOptions, report: Arc<Report>) {
    let download = Arc::new(Download {
        options,
        report: report.clone(),
        small: Arc::new(Semaphore::new(SMALL_IN_FLIGHT)),
        large: Arc::new(Semaphore::new(LARGE_IN_FLIGHT)),
        writers: Semaphore::new(WRITERS),
    });
    let work = async {
        let mut tasks = JoinSet::new();
        for fetch in fetches {
            download.tree(fetch, &mut tasks).await;
        }
        while tasks.join_next().await.is_some() {}
    };
    report.or_stopped(work).await;
}

impl Download {
    async fn tree(self: &Arc<Self>, fetch: Fetch, tasks: &mut JoinSet<()>) {
        let Found { at, volume, attributes } = fetch.found;
        let mut walk = Walk::new(&volume, at, attributes);
        let mut open: Vec<Arc<LocalDir>> = Vec::new();
        while let Some(step) = walk.next().await {
            if self.report.is_stopped() {
                return;
            }
            let node = match step {
                Err(error) => {
                    self.report.fail(&error);
                    continue;
                }
                Ok(Step::Leave(_)) => {
                    open.pop();
                    continue;
                }
                Ok(Step::Enter(node)) => node,
            };
            if node.depth > 0 && !self.report.pass().takes(node.at.name(), node.is_directory()) {
                if node.is_directory() {
                    walk.skip();
                }
                continue;
            }
            let above = open.last().cloned();
            let target = match &above {
                Some(above) => above.path.join(OsStr::from_bytes(node.at.name())),
                None => fetch.target.clone(),
            };
            if !node.is_directory() {
                self.entry(&volume, node, target, above, tasks).await;
                continue;
            }
            match LocalDir::make(target, &node.attributes, &self.options, &self.report, above) {
                Ok(dir) => open.push(dir),
                Err(error) => {
                    self.report.fail(&error);
                    walk.skip();
                }
            }
        }
    }

    async fn entry(
        self: &Arc<Self>,
        volume: &Volume,
        node: Node,
        target: PathBuf,
        above: Option<Arc<LocalDir>>,
        tasks: &mut JoinSet<()>,
    ) {
        let mode = node.attributes.mode;
        if !is_regular(mode) && !is_symlink(mode) {
            let text =
                format!("{}: it is a {}, which has no contents to fetch; it was left out", node.at, type_name(mode));
            return self.report.fail(&CliError::refused(Exit::WrongKind, text));
        }
        let is_large = is_regular(mode) && node.attributes.size > SMALL_MAX;
        let room = if is_large { &self.large } else { &self.small };
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        while tasks.try_join_next().is_some() {}
        let (download, volume) = (self.clone(), volume.clone());
        tasks.spawn(async move {
            let _permit = permit;
            let result = match is_symlink(mode) {
                true => {
                    fetch::symlink(&download, &volume, &node, &target).await.map(|new| new.then_some(Done::Symlink))
                }
                false => {
                    let fetched = fetch::file(&download, &volume, &node, &target).await;
                    fetched.map(|bytes| bytes.map(Done::File))
                }
            };
            match result {
                Ok(Some(done)) => download.report.done(done),
                Ok(None) => download.report.skipped(),
                Err(error) => download.report.fail(&error),
            }
            drop(above);
        });
    }
}

/// The local target of a fetch has to have a directory above it.
pub fn check_parent(target: &Path) -> Result<()> {
    let parent = target.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match parent.metadata() {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(CliError::refused(
            Exit::WrongKind,
            format!("{}: not a directory; check the local path", parent.display()),
        )),
        Err(error) => Err(CliError::local(parent, "looking for the directory to fetch into", error)),
    }
}
