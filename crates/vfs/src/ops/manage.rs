//! The mount as a whole: syncing everything, its state, handing over to another process, the end.
use super::handles::{OpenDir, OpenFile, OpenHandle};
use crate::caller::Caller;
use crate::error::Result;
use crate::flags::OpenFlags;
use crate::state::OpenState;
use crate::status::VfsStatus;
use crate::vfs::Vfs;
use std::sync::Arc;

impl Vfs {
    /// Makes everything durable and visible. The first error is returned after all was tried.
    pub async fn syncfs(&self) -> Result<()> {
        let mut outcome = Ok(());
        for (_, handle) in self.inner.handles.all() {
            if let OpenHandle::File(open) = handle {
                let what = format!("inode {}", open.ino);
                let synced = self.inner.change(&what, async move { Ok(open.file.lock().await.sync().await?) }).await;
                outcome = outcome.and(synced);
            }
        }
        outcome
    }
    /// The same, before handles are handed over.
    pub async fn sync_all(&self) -> Result<()> {
        self.syncfs().await
    }
    /// All open handles.
    pub fn open_state(&self) -> Vec<OpenState> {
        let state = |(number, handle): (u64, OpenHandle)| {
            let (ino, flags, directory, caller) = match &handle {
                OpenHandle::File(open) => (open.ino, open.bits, false, &open.caller),
                OpenHandle::Dir(dir) => (dir.ino, 0, true, &dir.caller),
            };
            let (uid, gid, groups) = (caller.uid, caller.gid, caller.groups.to_vec());
            OpenState { handle: number, ino, flags, directory, uid, gid, groups, kernel_version: 0 }
        };
        self.inner.handles.all().into_iter().map(state).collect()
    }
    /// Opens handles again under their numbers. Those that cannot be opened any more answer EBADF from then on; their
    /// numbers are returned.
    pub async fn restore(&self, states: Vec<OpenState>) -> Vec<u64> {
        let mut lost = Vec::new();
        for state in states {
            let (uid, gid, groups) = (state.uid, state.gid, Arc::from(state.groups));
            let caller = Caller { uid, gid, groups, pid: 0, umask: 0 };
            let flags = OpenFlags::from_bits(state.flags);
            if state.directory {
                let dir = OpenDir { ino: state.ino, caller, stream: tokio::sync::Mutex::default() };
                self.inner.handles.put(state.handle, OpenHandle::Dir(Arc::new(dir)));
                continue;
            }
            // The permission was checked when it was opened.
            let shown_as = format!("inode {}", state.ino);
            match self.inner.volume.open_handle(state.ino, shown_as.as_bytes()).await {
                Ok(file) => {
                    let file = tokio::sync::Mutex::new(file);
                    let open = OpenFile { ino: state.ino, flags, bits: state.flags, caller, file };
                    self.inner.handles.put(state.handle, OpenHandle::File(Arc::new(open)));
                }
                Err(error) => {
                    tracing::warn!(inode = state.ino, %error, "an open file could not be taken over");
                    lost.push(state.handle);
                }
            }
        }
        lost
    }
    pub fn status(&self) -> VfsStatus {
        VfsStatus {
            volume: self.inner.volume.name().to_owned(),
            handles: self.inner.handles.count() as u64,
            memory_max: self.inner.options.memory_max as u64,
            ..Default::default()
        }
    }
    /// Writes everything out and ends the session. Handles are of no use afterwards.
    pub async fn shutdown(&self) -> Result<()> {
        let synced = self.syncfs().await;
        self.inner.volume.close().await;
        synced
    }
}
