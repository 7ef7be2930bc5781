//! The mount as a whole: syncing everything, its state, handing over to another process, the end.
use super::handles::{OpenDir, OpenFile, OpenHandle};
use crate::background::{release_round, send_atimes};
use crate::caller::Caller;
use crate::error::Result;
use crate::flags::OpenFlags;
use crate::state::OpenState;
use crate::status::VfsStatus;
use crate::vfs::{Handle, Vfs};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Files that are synced at a time.
const SYNCING: usize = 64;
/// Access times that the servers do not know are sent for so long at the end.
const ATIMES_WAIT: Duration = Duration::from_secs(5);

impl Vfs {
    /// Makes everything durable and visible. The first error is returned after all was tried.
    pub async fn syncfs(&self) -> Result<()> {
        let mut outcome = Ok(());
        let mut running = tokio::task::JoinSet::new();
        for file in self.inner.files.all().into_iter().filter(|file| !file.data.is_settled()) {
            if running.len() == SYNCING
                && let Some(Ok(synced)) = running.join_next().await
            {
                outcome = outcome.and(synced);
            }
            let inner = self.inner.clone();
            running.spawn(async move {
                let own = file.clone();
                inner.change(&format!("inode {}", file.ino), async move { own.finish(false).await }).await
            });
        }
        while let Some(joined) = running.join_next().await {
            outcome = outcome.and(joined.unwrap_or(Ok(())));
        }
        if self.inner.options.lease_new {
            let volume = self.inner.volume.clone();
            let commit = async move { Ok(volume.commit_all().await?) };
            outcome = outcome.and(self.inner.change("delegated directories", commit).await);
        }
        if self.inner.volume.volatile_count() == 0 {
            return outcome;
        }
        let volume = self.inner.volume.clone();
        let closed = async move { Ok(volume.make_older_durable(Duration::ZERO).await?) };
        outcome.and(self.inner.change("files that were closed", closed).await)
    }
    /// The same, before handles are handed over.
    pub async fn sync_all(&self) -> Result<()> {
        self.syncfs().await
    }
    /// Leads no directory any more. False: what was done in some could not be stored in time.
    pub async fn end_leading(&self, patience: Duration) -> bool {
        self.inner.volume.end_leading(patience).await
    }
    /// Whether no directory is led for the time being.
    pub fn rest_leading(&self, rests: bool) {
        self.inner.volume.rest_leading(rests);
    }
    /// Behind [`end_leading`](Self::end_leading): new directories may be led.
    pub fn lead_again(&self) {
        self.inner.volume.lead_again();
    }
    /// All open handles.
    pub fn open_state(&self) -> Vec<OpenState> {
        let state = |(number, handle): (u64, OpenHandle)| {
            let (ino, flags, directory, caller) = match &handle {
                OpenHandle::File(open) => (open.ino(), open.bits, false, &open.caller),
                OpenHandle::Dir(dir) => (dir.ino, 0, true, &dir.caller),
            };
            let kernel_version = match &handle {
                OpenHandle::File(open) if self.inner.cache.pages(ino).is_some() => open.file.data.data_version(),
                _ => 0,
            };
            let (uid, gid, groups) = (caller.uid, caller.gid, caller.groups.to_vec());
            OpenState { handle: number, ino, flags, directory, uid, gid, groups, kernel_version }
        };
        self.inner.handles.all().into_iter().map(state).collect()
    }
    /// Opens handles again under their numbers. Those that cannot be opened any more answer EBADF from then on; their
    /// numbers are returned. If the contents of a file changed meanwhile the kernel is told.
    pub async fn restore(&self, states: Vec<OpenState>) -> Vec<u64> {
        let mut lost = Vec::new();
        // A program that goes on with one that is lost would get to another's file.
        states.iter().for_each(|state| self.inner.handles.reserve(state.handle));
        for state in states {
            let (uid, gid, groups) = (state.uid, state.gid, Arc::from(state.groups));
            let caller = Caller { uid, gid, groups, pid: 0, umask: 0 };
            if state.directory {
                let dir = OpenDir { ino: state.ino, caller, noatime: false, stream: tokio::sync::Mutex::default() };
                self.inner.handles.put(state.handle, OpenHandle::Dir(Arc::new(dir)));
                continue;
            }
            if state.kernel_version != 0 {
                self.inner.cache.pages_are_of(state.ino, state.kernel_version);
            }
            // As whoever mounted: the permission was checked when it was opened, and the contents are not cut again.
            let flags = state.flags & !(libc::O_TRUNC | libc::O_CREAT | libc::O_EXCL);
            let opened = match self.open_any(&Caller::root(), state.ino, flags).await {
                Err(error) if matches!(error.errno, libc::ESTALE | libc::ENOENT) => {
                    self.take_over_unnamed(state.ino, flags).await
                }
                opened => opened,
            };
            let again = opened.and_then(|opened| Ok((opened, self.inner.handles.file(opened.handle)?)));
            match again {
                Ok((opened, open)) => {
                    self.inner.handles.remove(opened.handle);
                    let user = self.inner.as_user(&caller);
                    let own = OpenFile::new(open.file.clone(), flags, &caller, user);
                    self.inner.handles.put(state.handle, OpenHandle::File(Arc::new(own)));
                    if !opened.keep_cache && !OpenFlags::from_bits(flags).direct {
                        let all = crate::Invalidation::Inode { ino: state.ino, offset: 0, length: 0 };
                        self.inner.invalidate(all);
                    }
                }
                Err(error) => {
                    tracing::warn!(inode = state.ino, %error, "an open file could not be taken over");
                    lost.push(state.handle);
                }
            }
        }
        lost
    }
    /// A file without a name, which the worker before had open. Its session still keeps it.
    async fn take_over_unnamed(&self, ino: u64, flags: i32) -> Result<crate::vfs::Opened> {
        let inner = self.inner.clone();
        let take = async move { inner.take_over_unnamed(&Caller::root(), ino, flags).await };
        self.inner.change(&format!("inode {ino}"), take).await
    }
    /// Whether a handle's data is all durable and visible.
    pub fn is_clean(&self, handle: Handle) -> Result<bool> {
        Ok(self.inner.handles.file(handle)?.file.data.is_clean())
    }
    pub fn status(&self) -> VfsStatus {
        let inner = &self.inner;
        let mut status = VfsStatus {
            volume: inner.volume.name().to_owned(),
            handles: inner.handles.count() as u64,
            open_files: inner.files.count() as u64,
            memory_bytes: inner.budget.used() as u64,
            memory_max: inner.budget.limit() as u64,
            sessions_lost: inner.background.sessions_lost.load(Ordering::Relaxed),
            write_errors: inner.background.write_errors.load(Ordering::Relaxed),
            last_error: inner.background.last_error(),
            volatile_files: inner.volume.volatile_count() as u64,
            ..Default::default()
        };
        for file in inner.files.all() {
            let data = file.data.status();
            status.dirty_bytes += data.dirty_bytes as u64;
            status.writing_bytes += data.flight_bytes as u64;
            status.read_ahead_bytes += data.ahead_bytes as u64;
        }
        let (attributes, entries) = inner.cache.counts();
        (status.led_directories, status.unstored_changes) = inner.volume.led_counts();
        (status.lost_directories, status.lost_changes) = inner.volume.lost_counts();
        (status.cached_attributes, status.cached_entries) = (attributes as u64, entries as u64);
        status
    }
    /// Writes everything out and ends the session. Handles are of no use afterwards.
    pub async fn shutdown(&self) -> Result<()> {
        let synced = self.syncfs().await;
        // Access times are worth no longer wait.
        let _in_time = tokio::time::timeout(ATIMES_WAIT, send_atimes(&self.inner)).await;
        self.inner.background.stop();
        for file in self.inner.files.all() {
            if let Err(error) = file.data.end_lease().await {
                tracing::debug!(inode = file.ino, %error, "the overwrite lease goes with the session");
            }
        }
        release_round(&self.inner, true).await;
        self.inner.volume.close().await;
        synced
    }
}
