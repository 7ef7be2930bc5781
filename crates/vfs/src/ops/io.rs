//! Reading and writing.
use crate::error::{Result, VfsError};
use crate::vfs::{Handle, Vfs};
use bytes::Bytes;

impl Vfs {
    /// Up to `size` bytes from `offset` on, in order; fewer only at the end of the file.
    pub async fn read(&self, handle: Handle, offset: u64, size: u32) -> Result<Vec<Bytes>> {
        let open = self.inner.handles.file(handle)?;
        if !open.flags.read && !open.flags.execute {
            return Err(VfsError::new(libc::EBADF, format!("inode {} is not open for reading", open.ino)));
        }
        let what = format!("inode {}", open.ino);
        let read = async { Ok(open.file.lock().await.read_at(offset, size as usize).await?) };
        let bytes = self.inner.limited(&what, read).await?;
        Ok(if bytes.is_empty() { Vec::new() } else { vec![Bytes::from(bytes)] })
    }
    /// Writes all of `data`; with O_APPEND behind the end, wherever `offset` is. Returns its length.
    pub async fn write(&self, handle: Handle, offset: u64, data: Bytes) -> Result<u32> {
        let open = self.inner.handles.file(handle)?;
        if !open.flags.write {
            return Err(VfsError::new(libc::EBADF, format!("inode {} is not open for writing", open.ino)));
        }
        let length = data.len() as u32;
        let what = format!("inode {}", open.ino);
        let write = async move {
            let mut file = open.file.lock().await;
            if open.flags.append {
                file.append(&data).await?;
            } else {
                file.write_at(offset, &data).await?;
            }
            if open.flags.sync {
                file.sync().await?;
            }
            Ok(())
        };
        self.inner.change(&what, write).await?;
        Ok(length)
    }
}
