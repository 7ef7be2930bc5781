//! The threads that open local files and read small ones whole; larger ones are handed on opened. Block.
use super::{Item, Job, Upload};
use crate::error::Result;
use crate::transfer::local_file::{open, take_buffer};
use crate::transfer::remote_dir::RemoteDir;
use std::path::PathBuf;
use std::sync::{Arc, mpsc as std_mpsc};
use tokio::sync::mpsc;

/// A regular file that the walk found.
pub(super) struct Found {
    pub dir: Arc<RemoteDir>,
    pub name: Vec<u8>,
    pub path: PathBuf,
    pub follow: bool,
}

/// Takes files until the walk ends.
pub(super) fn run(upload: &Upload, queue: &parking_lot::Mutex<std_mpsc::Receiver<Found>>, jobs: &mpsc::Sender<Job>) {
    loop {
        let next = queue.lock().recv();
        let Ok(found) = next else { return };
        if upload.report.is_stopped() || found.dir.has_failed() {
            continue;
        }
        match read(upload, found) {
            Ok(Some(job)) => {
                if jobs.blocking_send(job).is_err() {
                    return;
                }
            }
            Ok(None) => {}
            Err(error) => upload.report.fail(&error),
        }
    }
}

fn read(upload: &Upload, found: Found) -> Result<Option<Job>> {
    let Found { dir, name, path, follow } = found;
    let opened = open(&path, follow)?;
    let is_small = opened.is_small() && opened.size > 0;
    let item = Item { dir, name, path, opened };
    if !is_small && item.opened.size > 0 {
        return Ok(Some(Job::Large { item }));
    }
    if item.opened.size == 0 {
        // Empty, or one of those (in /proc) that do not say how long they are.
        let mut probe = [0];
        let contents = std::os::unix::fs::FileExt::read_at(&item.opened.file, &mut probe, 0);
        if matches!(contents, Ok(1..)) {
            return Ok(Some(Job::Large { item }));
        }
    }
    if upload.dirs.replacing.is_update() {
        return Ok(Some(Job::Unread { item }));
    }
    let Some(buffer) = take_buffer(&upload.pool, item.opened.size as usize, || upload.report.is_stopped()) else {
        return Ok(None);
    };
    let data = item.opened.read_small(&item.path, buffer)?;
    Ok(Some(Job::Small { item, data }))
}
