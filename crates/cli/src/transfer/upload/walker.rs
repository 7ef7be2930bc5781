//! The thread that walks local trees: directories and links go to the tasks, files to the reading threads. Blocks.
use super::read_small::{self, Found};
use super::{Job, QUEUE_MAX, Source, Upload, special};
use crate::error::{CliError, Result};
use crate::transfer::local_file::meta_of;
use crate::transfer::local_tree::{Entry, Event, LocalTree};
use crate::transfer::remote_dir::RemoteDir;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::{Arc, mpsc as std_mpsc};
use tokio::sync::mpsc;

/// Starts the walk and the readers; `jobs` ends when all was seen.
pub(super) fn start(
    upload: &Arc<Upload>,
    root: Arc<RemoteDir>,
    sources: Vec<Source>,
    jobs: mpsc::Sender<Job>,
    readers: usize,
) {
    let (files, queue) = std_mpsc::sync_channel(QUEUE_MAX);
    let queue = Arc::new(parking_lot::Mutex::new(queue));
    for _ in 0..readers {
        let (upload, queue, jobs) = (upload.clone(), queue.clone(), jobs.clone());
        tokio::task::spawn_blocking(move || read_small::run(&upload, &queue, &jobs));
    }
    let walker = Walker { upload: upload.clone(), jobs, files };
    tokio::task::spawn_blocking(move || {
        for source in sources {
            walker.source(&root, source);
        }
    });
}

struct Walker {
    upload: Arc<Upload>,
    jobs: mpsc::Sender<Job>,
    files: std_mpsc::SyncSender<Found>,
}

/// Nobody takes what is found any more.
struct Ended;

impl Walker {
    fn fail(&self, error: &CliError) {
        self.upload.report.fail(error);
    }

    /// An operand: a link on the command line stands for what it leads to.
    fn source(&self, root: &Arc<RemoteDir>, source: Source) {
        if self.upload.report.is_stopped() {
            return;
        }
        let found = match std::fs::metadata(&source.local) {
            Ok(found) => found,
            Err(error) => return self.fail(&CliError::local(&source.local, "looking at it", error)),
        };
        let result = match (found.is_dir(), source.name) {
            (true, None) => self.tree(&source.local, root.clone()),
            (true, Some(name)) => self
                .directory(&source.local, root, &name)
                .and_then(|dir| dir.map_or(Ok(()), |dir| self.tree(&source.local, dir))),
            (false, name) if found.is_file() => {
                let name = name.unwrap_or_default();
                self.file(Found { dir: root.clone(), name, path: source.local, follow: true })
            }
            (false, _) => {
                self.fail(&special(&source.local));
                Ok(())
            }
        };
        // Ended: a fatal failure was reported, the rest is left out.
        drop(result);
    }

    fn tree(&self, path: &Path, dir: Arc<RemoteDir>) -> std::result::Result<(), Ended> {
        let mut tree = LocalTree::new();
        if let Err(error) = tree.enter(path, dir) {
            self.fail(&error);
            return Ok(());
        }
        while let Some(event) = tree.next() {
            if self.upload.report.is_stopped() {
                return Err(Ended);
            }
            match event {
                Event::Failed(error) => self.fail(&error),
                Event::Entry(dir, _) if dir.has_failed() => {}
                Event::Entry(dir, entry) => self.entry(&mut tree, &dir, entry)?,
            }
        }
        Ok(())
    }

    fn entry(
        &self,
        tree: &mut LocalTree<Arc<RemoteDir>>,
        dir: &Arc<RemoteDir>,
        entry: Entry,
    ) -> std::result::Result<(), Ended> {
        let name = entry.path.file_name().unwrap_or_default().as_bytes().to_vec();
        if !self.upload.report.pass().takes(&name, entry.kind.is_dir()) {
            return Ok(());
        }
        if entry.kind.is_file() {
            return self.file(Found { dir: dir.clone(), name, path: entry.path, follow: false });
        }
        if entry.kind.is_dir() {
            if let Some(below) = self.directory(&entry.path, dir, &name)?
                && let Err(error) = tree.enter(&entry.path, below)
            {
                self.fail(&error);
            }
            return Ok(());
        }
        if entry.kind.is_symlink() {
            return match self.symlink(dir, name, &entry.path) {
                Ok(job) => self.jobs.blocking_send(job).map_err(|_| Ended),
                Err(error) => {
                    self.fail(&error);
                    Ok(())
                }
            };
        }
        self.fail(&special(&entry.path));
        Ok(())
    }

    fn file(&self, found: Found) -> std::result::Result<(), Ended> {
        self.files.send(found).map_err(|_| Ended)
    }

    fn directory(
        &self,
        path: &Path,
        above: &Arc<RemoteDir>,
        name: &[u8],
    ) -> std::result::Result<Option<Arc<RemoteDir>>, Ended> {
        let meta = match std::fs::metadata(path) {
            Ok(found) => meta_of(&found),
            Err(error) => {
                self.fail(&CliError::local(path, "looking at it", error));
                return Ok(None);
            }
        };
        let dir = RemoteDir::pending(above, name);
        let job = Job::Directory { dir: dir.clone(), meta };
        self.jobs.blocking_send(job).map(|()| Some(dir)).map_err(|_| Ended)
    }

    fn symlink(&self, dir: &Arc<RemoteDir>, name: Vec<u8>, path: &Path) -> Result<Job> {
        let failed = |error| CliError::local(path, "reading the link", error);
        let target = std::fs::read_link(path).map_err(failed)?.into_os_string().into_vec();
        let meta = meta_of(&path.symlink_metadata().map_err(failed)?);
        Ok(Job::Symlink { dir: dir.clone(), name, target, meta })
    }
}
