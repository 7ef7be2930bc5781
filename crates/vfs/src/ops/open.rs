//! Opening, closing, syncing.
use super::handles::{OpenFile, OpenHandle};
use crate::attr::{Entry, REGULAR};
use crate::caller::Caller;
use crate::error::{Result, VfsError};
use crate::flags::OpenFlags;
use crate::vfs::{Handle, Opened, Vfs, named, shown};
use cairn_wire::meta::CreateRequest;
use std::sync::Arc;

impl Vfs {
    /// Opens a regular file. `flags` of open(2); O_CREAT is [`create`](Self::create).
    pub async fn open(&self, caller: &Caller, ino: u64, flags: i32) -> Result<Opened> {
        let decoded = OpenFlags::from_bits(flags);
        let what = format!("inode {ino}");
        if decoded.access() & 2 != 0 {
            self.inner.check_writable(&what)?;
        }
        let (volume, shown_as) = (self.inner.as_user(caller), what.clone().into_bytes());
        let open = async move {
            volume.access_inode(ino, decoded.access()).await?;
            let mut file = volume.open_handle(ino, &shown_as).await?;
            if decoded.truncate {
                file.truncate(0).await?;
            }
            Ok(file)
        };
        let file = self.inner.change(&what, open).await?;
        Ok(self.opened(caller, ino, flags, file))
    }
    fn opened(&self, caller: &Caller, ino: u64, bits: i32, file: cairn_client::FileHandle) -> Opened {
        let flags = OpenFlags::from_bits(bits);
        let open = OpenFile { ino, flags, bits, caller: caller.clone(), file: tokio::sync::Mutex::new(file) };
        let handle = self.inner.handles.add(OpenHandle::File(Arc::new(open)));
        Opened { handle, keep_cache: false, direct: flags.direct }
    }
    /// Makes a regular file and opens it; without O_EXCL an existing one is opened.
    pub async fn create(
        &self,
        caller: &Caller,
        parent: u64,
        name: &[u8],
        mode: u32,
        flags: i32,
    ) -> Result<(Entry, Opened)> {
        let shown_as = named(parent, name);
        let what = shown(&shown_as);
        self.inner.check_writable(&what)?;
        let (volume, name) = (self.inner.as_user(caller), name.to_vec());
        let decoded = OpenFlags::from_bits(flags);
        let request = CreateRequest {
            mode: REGULAR | mode & 0o7777,
            exclusive: decoded.exclusive,
            umask: caller.umask,
            ..Default::default()
        };
        let create = async move {
            let made = volume.create_at(parent, &name, &shown_as, request).await?;
            let mut file = volume.open_handle(made.inode, &shown_as).await?;
            if decoded.truncate && made.size > 0 {
                file.truncate(0).await?;
            }
            Ok((file.attributes().await?, file))
        };
        let (made, file) = self.inner.change(&what, create).await?;
        Ok((self.inner.entry(&made), self.opened(caller, made.inode, flags, file)))
    }

    /// A handle's descriptor is closed: what was written becomes durable and visible; errors of earlier writes come here.
    pub async fn flush(&self, handle: Handle, lock_owner: u64) -> Result<()> {
        let _no_locks_yet = lock_owner;
        self.fsync(handle, false).await
    }
    /// Makes what was written durable and visible to other mounts.
    pub async fn fsync(&self, handle: Handle, _datasync: bool) -> Result<()> {
        let open = self.inner.handles.file(handle)?;
        let what = format!("inode {}", open.ino);
        self.inner.change(&what, async move { Ok(open.file.lock().await.sync().await?) }).await
    }
    /// The last descriptor of a handle is gone. `flock_owner`: its flock(2) locks end.
    pub async fn release(&self, handle: Handle, _flock_owner: Option<u64>) -> Result<()> {
        let Some(OpenHandle::File(open)) = self.inner.handles.remove(handle) else {
            return Err(VfsError::new(libc::EBADF, format!("handle {} is not open", handle.0)));
        };
        let what = format!("inode {}", open.ino);
        let close = async move {
            match Arc::try_unwrap(open) {
                Ok(open) => Ok(open.file.into_inner().close().await?),
                Err(open) => Ok(open.file.lock().await.sync().await?),
            }
        };
        self.inner.change(&what, close).await
    }
}
