//! Locks across mounts: flock(2) and fcntl(2). They live in the volume's log and end with the session.
//!
//! As in NFS, taking a lock asks whether somebody else changed the file, and giving one back writes out what was
//! written under it, so programs that lock what they share see each other's bytes.
//!
//! Invariants owned here: no lock outlives the handle through which it was taken, unless its owner took locks of the
//! file through another one, too; whoever is told that his wait was interrupted has not got the lock.
use super::handles::OpenFile;
use crate::error::{Result, VfsError};
use crate::file::Held;
use crate::lock::{Interrupted, Lock, LockKind, LockRange};
use crate::vfs::{Handle, Vfs};
use cairn_client::locks::{FileLock, LockFamily, LockMode};
use cairn_client::{ClientError, LockWait};
use cairn_types::ErrorCode;
use std::sync::Arc;
use std::time::Duration;

/// One wait at the server.
const WAIT_STEP: Duration = Duration::from_secs(2);

fn mode(kind: LockKind) -> LockMode {
    match kind {
        LockKind::Unlock => LockMode::Unlock,
        LockKind::Read => LockMode::Read,
        LockKind::Write => LockMode::Write,
    }
}

fn is_locked(error: &ClientError) -> bool {
    error.code() == Some(ErrorCode::Locked)
}

impl Vfs {
    /// The lock of somebody else that is in the way of this one.
    pub async fn getlk(&self, handle: Handle, owner: u64, lock: Lock) -> Result<Option<Lock>> {
        let open = self.inner.handles.file(handle)?;
        let asked = asked(owner, LockFamily::Posix, lock);
        let find = async { Ok(open.volume.get_lock(open.ino(), asked).await?) };
        let found = self.inner.limited("getlk", find).await?;
        Ok(found.map(|found| Lock {
            kind: if found.mode == LockMode::Write { LockKind::Write } else { LockKind::Read },
            range: LockRange { start: found.start, end: found.end },
            pid: found.pid,
        }))
    }
    /// Takes or gives back a lock of fcntl(2); EAGAIN if another owner is in the way, unless it is to be waited for,
    /// until that is interrupted. Dropping the future ends the wait, too, but the lock may be granted then: the handle
    /// has to be closed.
    pub async fn setlk(&self, handle: Handle, owner: u64, lock: Lock, wait: Option<Interrupted>) -> Result<()> {
        let open = self.inner.handles.file(handle)?;
        self.set_lock(handle, &open, asked(owner, LockFamily::Posix, lock), wait).await
    }
    /// The same for flock(2): whole files, by open file description.
    pub async fn flock(&self, handle: Handle, owner: u64, kind: LockKind, wait: Option<Interrupted>) -> Result<()> {
        let open = self.inner.handles.file(handle)?;
        let lock = Lock { kind, range: LockRange::ALL, pid: 0 };
        self.set_lock(handle, &open, asked(owner, LockFamily::Flock, lock), wait).await
    }

    /// Locks of a handle's file were those of another process, which is gone: the file fails until it is closed.
    pub fn lose_locks(&self, handle: Handle) {
        if let Ok(open) = self.inner.handles.file(handle) {
            if let Err(error) = open.file.note_lock(Held { owner: 0, flock: false }, handle.0) {
                tracing::debug!(%error, "others are noted already");
            }
            open.file.lose_locks();
        }
    }

    /// The last descriptor of a handle is gone: whoever took locks through it has none any more. The kernel tells of
    /// the end of fcntl(2)'s locks by process with the flush of each close, and never of those by open file
    /// description.
    pub async fn unlock_handle(&self, handle: Handle) -> Result<()> {
        let open = self.inner.handles.file(handle)?;
        if !open.file.has_locks_of_handle(handle.0) {
            return Ok(());
        }
        // The kernel names owners by addresses: the next open file may have this one's before its locks are given back.
        let _unlocking = open.file.unlocking.lock().await;
        let flushed = self.flush_locked(&open).await;
        let mut outcome = Ok(());
        for Held { owner, flock } in open.file.take_locks_of_handle(handle.0) {
            outcome = outcome.and(self.unlock_all(&open, owner, flock).await);
        }
        flushed.and(outcome)
    }
    /// What was written under a lock is to be seen by who has it next.
    async fn flush_locked(&self, open: &Arc<OpenFile>) -> Result<()> {
        if open.file.data.is_clean() {
            return Ok(());
        }
        let own = open.file.clone();
        self.inner.change(&open.what(), async move { own.flush().await }).await
    }

    async fn set_lock(
        &self,
        handle: Handle,
        open: &Arc<OpenFile>,
        lock: FileLock,
        wait: Option<Interrupted>,
    ) -> Result<()> {
        let file = &open.file;
        let held = Held { owner: lock.owner, flock: lock.family == LockFamily::Flock };
        if lock.mode == LockMode::Unlock {
            self.flush_locked(open).await?;
            return self.try_lock(open, lock).await.map(|_| ());
        }
        file.check_locks()?;
        // Before it is granted: the file's release must not miss it.
        let no_unlock = file.unlocking.lock().await;
        file.note_lock(held, handle.0)?;
        drop(no_unlock);
        let waits = wait.is_some();
        let interrupted = async {
            if let Some(wait) = wait
                && wait.await.is_ok()
            {
                return;
            }
            // Nobody interrupts it any more.
            std::future::pending().await
        };
        tokio::pin!(interrupted);
        while !self.try_lock(open, lock).await? {
            if !waits {
                return Err(VfsError::new(libc::EAGAIN, format!("{} is locked by somebody else", open.what())));
            }
            // Only this is a wait without an end, and only this is interrupted: who asks for a lock has to know whether
            // he got it.
            tokio::select! {
                biased;
                () = &mut interrupted => return Err(VfsError::new(libc::EINTR, "a signal came")),
                waited = open.volume.wait_lock(open.ino(), lock, WAIT_STEP) => {
                    if waited? == LockWait::Deadlock {
                        let text = format!("{}: who has it waits for this lock's owner", open.what());
                        return Err(VfsError::new(libc::EDEADLK, text));
                    }
                }
            }
        }
        self.inner.limited("lock", async { Ok(file.data.refresh().await?) }).await?;
        self.inner.tell_changes(file);
        Ok(())
    }
    async fn try_lock(&self, open: &Arc<OpenFile>, lock: FileLock) -> Result<bool> {
        // The question goes on if nobody waits for its answer any more: locks are given back behind it.
        let asking = match lock.mode {
            LockMode::Unlock => None,
            _ => Some(open.file.asking_for_locks.clone().read_owned().await),
        };
        let own = open.clone();
        let set = async move {
            let _until_answered = asking;
            own.set_lock(lock).await
        };
        self.inner.change("lock", set).await
    }
    /// Gives back all locks of an owner, if it may have some.
    pub(crate) async fn unlock_owner(&self, open: &Arc<OpenFile>, owner: u64, flock: bool) -> Result<()> {
        if !open.file.take_locks(Held { owner, flock }) {
            return Ok(());
        }
        self.unlock_all(open, owner, flock).await
    }
    async fn unlock_all(&self, open: &Arc<OpenFile>, owner: u64, flock: bool) -> Result<()> {
        let lock = Lock { kind: LockKind::Unlock, range: LockRange::ALL, pid: 0 };
        let lock = asked(owner, if flock { LockFamily::Flock } else { LockFamily::Posix }, lock);
        let own = open.clone();
        // Nothing is noted of them any more: it is done whoever waits for it.
        let unlock = async move {
            let _none_is_asked_for = own.file.asking_for_locks.write().await;
            own.set_lock(lock).await.map(|_| ())
        };
        self.inner.change("lock", unlock).await
    }
}

impl OpenFile {
    /// False: somebody else is in the way.
    async fn set_lock(&self, lock: FileLock) -> Result<bool> {
        let ino = self.ino();
        match self.volume.set_lock(ino, format!("inode {ino}").as_bytes(), lock).await {
            Ok(()) => Ok(true),
            Err(error) if is_locked(&error) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

fn asked(owner: u64, family: LockFamily, lock: Lock) -> FileLock {
    let LockRange { start, end } = lock.range;
    FileLock { family, mode: mode(lock.kind), owner, start, end, pid: lock.pid }
}
