//! Locks across mounts: flock(2) and fcntl(2). They live in the volume's log and end with the session.
use crate::error::{Result, VfsError};
use crate::lock::{Lock, LockKind, LockRange};
use crate::vfs::{Handle, Vfs};
use cairn_client::ClientError;
use cairn_types::ErrorCode;
use cairn_wire::meta::SetLockRequest;
use std::time::Duration;

const POSIX: u32 = 0;
const FLOCK: u32 = 1;
/// One wait at the server.
const WAIT_STEP: Duration = Duration::from_secs(2);

fn kind_bits(kind: LockKind) -> u32 {
    match kind {
        LockKind::Unlock => 0,
        LockKind::Read => 1,
        LockKind::Write => 2,
    }
}

fn is_locked(error: &ClientError) -> bool {
    error.code() == Some(ErrorCode::Locked)
}

impl Vfs {
    /// The lock of somebody else that is in the way of this one.
    pub async fn getlk(&self, handle: Handle, owner: u64, lock: Lock) -> Result<Option<Lock>> {
        let open = self.inner.handles.file(handle)?;
        let volume = self.inner.as_user(&open.caller);
        let request = lock_request(owner, POSIX, lock);
        let find = async { Ok(volume.get_lock(open.ino, &request).await?) };
        let found = self.inner.limited("getlk", find).await?;
        Ok(found.map(|found| Lock {
            kind: if found.r#type == 2 { LockKind::Write } else { LockKind::Read },
            range: LockRange { start: found.start, end: found.end },
            pid: found.pid,
        }))
    }
    /// Takes or gives back a lock of fcntl(2); EAGAIN if another owner is in the way, unless `wait`. Dropping the future
    /// ends the wait.
    pub async fn setlk(&self, handle: Handle, owner: u64, lock: Lock, wait: bool) -> Result<()> {
        self.set_lock(handle, lock_request(owner, POSIX, lock), wait).await
    }
    /// The same for flock(2): whole files, by open file description.
    pub async fn flock(&self, handle: Handle, owner: u64, kind: LockKind, wait: bool) -> Result<()> {
        let lock = Lock { kind, range: LockRange::ALL, pid: 0 };
        self.set_lock(handle, lock_request(owner, FLOCK, lock), wait).await
    }

    async fn set_lock(&self, handle: Handle, request: SetLockRequest, wait: bool) -> Result<()> {
        let open = self.inner.handles.file(handle)?;
        let volume = self.inner.as_user(&open.caller);
        let ino = open.ino;
        loop {
            let (volume, request) = (volume.clone(), request.clone());
            let waiter = volume.clone();
            let ask = request.clone();
            let set = async move {
                match volume.set_lock(ino, b"lock", request).await {
                    Ok(()) => Ok(true),
                    Err(error) if is_locked(&error) => Ok(false),
                    Err(error) => Err(error.into()),
                }
            };
            if self.inner.change("lock", set).await? {
                return Ok(());
            }
            if !wait {
                return Err(VfsError::new(libc::EAGAIN, format!("inode {ino} is locked by somebody else")));
            }
            waiter.wait_lock(ino, &ask, WAIT_STEP).await?;
        }
    }
}

fn lock_request(owner: u64, kind: u32, lock: Lock) -> SetLockRequest {
    let LockRange { start, end } = lock.range;
    SetLockRequest { owner, kind, r#type: kind_bits(lock.kind), start, end, pid: lock.pid, ..Default::default() }
}
