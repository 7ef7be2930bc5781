//! [`upload`]: local files and trees into the cluster.
//!
//! One thread walks, a few threads open and read small files whole, tasks store them: one data round trip and one
//! create each, [`SMALL_IN_FLIGHT`] at a time. Larger files are read ahead part by part by a thread each,
//! [`LARGE_IN_FLIGHT`] at a time. Bounds: [`POOL_BYTES`] of buffers, [`QUEUE_MAX`] entries between the stages, whatever
//! the size of the tree.
mod read_small;
mod store;
mod walker;

use crate::context::Context;
use crate::error::{CliError, Result};
use crate::report::Report;
use crate::transfer::remote_dir::{DirShared, Ready, RemoteDir};
use crate::transfer::remote_make::{MakeOptions, Meta, make_dir};
use crate::transfer::replace::{New, Replacing};
use crate::transfer::{LARGE_IN_FLIGHT, SMALL_IN_FLIGHT};
use cairn_client::{Client, RemotePath, Volume};
use cairn_env::buf::{AlignedBuf, BufPool};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::{Semaphore, mpsc};

use crate::transfer::local_file::Opened;

/// Buffers of all files in flight.
const POOL_BYTES: usize = 128 << 20;
/// Entries between the walking thread, the readers and the tasks.
const QUEUE_MAX: usize = 128;
/// Threads that open and read small files.
const READERS: usize = 4;
/// Calls for directories in flight.
const DIRECTORIES_IN_FLIGHT: usize = 16;

/// A local source and the remote directory that it goes into.
pub struct Source {
    pub local: PathBuf,
    /// Its name there; `None`: the contents of the local directory go right into the remote one.
    pub name: Option<Vec<u8>>,
}

/// What the stages of one upload share.
pub(super) struct Upload {
    pub volume: Volume,
    pub options: MakeOptions,
    pub report: Arc<Report>,
    pub pool: BufPool,
    pub dirs: Arc<DirShared>,
}

/// Work for the tasks.
pub(super) enum Job {
    Directory {
        dir: Arc<RemoteDir>,
        meta: Meta,
    },
    Symlink {
        dir: Arc<RemoteDir>,
        name: Vec<u8>,
        target: Vec<u8>,
        meta: Meta,
    },
    Small {
        item: Item,
        data: AlignedBuf,
    },
    /// A small file of which the contents are perhaps not needed. Where there are these, no `Small` ones hold buffers
    /// while they wait.
    Unread {
        item: Item,
    },
    Large {
        item: Item,
    },
}

/// An opened file and where it goes.
pub(super) struct Item {
    pub dir: Arc<RemoteDir>,
    pub name: Vec<u8>,
    pub path: PathBuf,
    pub opened: Opened,
}

impl Item {
    fn as_new(&self) -> New<'static> {
        New::File { size: self.opened.size, mtime_ns: self.opened.meta.mtime_ns }
    }
}

/// Stores all sources in the directory `into`; failures are in the report.
pub async fn upload(
    (client, volume): (&Client, &Volume),
    into: RemotePath,
    ready: Ready,
    sources: Vec<Source>,
    options: MakeOptions,
    report: Arc<Report>,
) {
    let (running, mut all_done) = mpsc::channel(1);
    let room = Arc::new(Semaphore::new(DIRECTORIES_IN_FLIGHT));
    let replacing = Replacing::new(options.replace, client.clone(), volume.clone());
    let dirs = Arc::new(DirShared { volume: volume.clone(), report: report.clone(), replacing, room, running });
    let root = RemoteDir::existing(dirs.clone(), into, ready);
    let pool = BufPool::new(POOL_BYTES);
    let upload = Arc::new(Upload { volume: volume.clone(), options, report: report.clone(), pool, dirs });
    let (jobs, receiver) = mpsc::channel(QUEUE_MAX);
    walker::start(&upload, root, sources, jobs, READERS);
    let work = async {
        run_jobs(upload, receiver).await;
        // Ends when the last task and the last directory to be finished are gone.
        let none = all_done.recv().await;
        debug_assert!(none.is_none(), "nothing is ever sent");
    };
    report.or_stopped(work).await;
}

async fn run_jobs(upload: Arc<Upload>, mut jobs: mpsc::Receiver<Job>) {
    let small = Arc::new(Semaphore::new(SMALL_IN_FLIGHT));
    let large = Arc::new(Semaphore::new(LARGE_IN_FLIGHT));
    while let Some(job) = jobs.recv().await {
        if upload.report.is_stopped() {
            if let Job::Directory { dir, .. } = &job {
                dir.set_failed();
            }
            continue;
        }
        let room = match &job {
            Job::Directory { .. } => upload.dirs.room.clone(),
            Job::Large { .. } => large.clone(),
            Job::Small { .. } | Job::Unread { .. } | Job::Symlink { .. } => small.clone(),
        };
        let Ok(permit) = room.acquire_owned().await else { return };
        let (upload, tasks) = (upload.clone(), upload.report.tasks().clone());
        tasks.spawn(async move {
            let _permit = permit;
            match job {
                Job::Directory { dir, meta } => make_dir(&upload.dirs, &dir, &meta, &upload.options).await,
                Job::Symlink { dir, name, target, meta } => {
                    store::symlink(&upload, &dir, &name, &target, &meta).await;
                }
                Job::Small { item, data } => store::small(&upload, item, data).await,
                Job::Unread { item } => store::unread(&upload, item).await,
                Job::Large { item } => store::large(&upload, item).await,
            }
        });
    }
}

/// Standard input as the file `at` in a directory that exists.
pub async fn upload_stdin(context: &Context, at: &RemotePath, options: MakeOptions, report: &Report) -> Result<()> {
    store::stdin(context, at, options, report).await
}

/// The last component of a local path as a name in the cluster; `None` where it has none (`.`, `..`, `/`).
pub fn name_of(local: &std::path::Path) -> Option<Vec<u8>> {
    use std::os::unix::ffi::OsStrExt;
    let text = local.as_os_str().as_bytes();
    let last = text.rsplit(|b| *b == b'/').find(|part| !part.is_empty())?;
    (last != b"." && last != b"..").then(|| last.to_vec())
}

/// Something that is neither file, directory nor link.
pub(super) fn special(path: &std::path::Path) -> CliError {
    let text =
        format!("{}: it is a pipe, socket or device, which has no contents to copy; it was left out", path.display());
    CliError::refused(crate::exit::Exit::WrongKind, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// A tree would be stored under another name than cp gives it.
    #[test]
    fn names_of_local_sources() {
        for (path, name) in [
            ("a", Some("a")),
            ("/x/y/", Some("y")),
            ("./a/.", None),
            (".", None),
            ("..", None),
            ("a/..", None),
            ("/", None),
            ("./.hidden", Some(".hidden")),
        ] {
            assert_eq!(name_of(Path::new(path)), name.map(|n| n.as_bytes().to_vec()), "{path}");
        }
    }
}
