//! Reading and writing.
use super::handles::OpenFile;
use crate::atimes::changes;
use crate::error::Result;
use crate::file::File;
use crate::invalidation::Invalidation;
use crate::vfs::{Handle, Inner, Vfs, now_ns, of_file};
use bytes::Bytes;
use cairn_env::buf::SharedBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// While a file is read its attributes are asked for again so often, in the background.
const REVALIDATE: Duration = Duration::from_secs(2);
/// Reads past all caches see what others published this long ago.
const DIRECT_AGE: Duration = Duration::from_millis(100);

/// Where written bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    At(u64),
    /// Behind the end of the file, which the kernel takes to be there.
    End(u64),
}

impl Vfs {
    /// Up to `size` bytes from `offset` on, in order; fewer only at the end of the file.
    pub async fn read(&self, handle: Handle, offset: u64, size: u32) -> Result<Vec<Bytes>> {
        let open = self.inner.handles.file(handle)?;
        open.check_read()?;
        open.file.check_locks()?;
        let inner = &self.inner;
        let file = &open.file;
        let read = async {
            let end = offset.saturating_add(u64::from(size));
            let age = file.data.age();
            if open.flags.direct && age > DIRECT_AGE {
                file.data.refresh().await?;
            } else if end > file.data.attributes().size && age > inner.options.attr_ttl {
                // Somebody else may have made it longer.
                file.data.refresh().await?;
            } else if age > REVALIDATE {
                inner.revalidate(file);
            }
            let pattern = (!open.flags.direct).then_some(&open.pattern);
            Ok(file.data.read(offset, u64::from(size), pattern, inner.options.read_ahead_max as u64).await?)
        };
        let parts = inner.limited("read", read).await?;
        inner.tell_changes(file);
        inner.was_read(&open);
        Ok(parts.into_iter().map(Bytes::from_owner).collect())
    }
    /// What is read through the handle next goes into a kernel's pages.
    pub fn fills_pages(&self, handle: Handle) -> Result<()> {
        self.inner.handles.file(handle)?.file.has_pages.store(true, Ordering::Release);
        Ok(())
    }
    /// Whether a kernel may have parts of the file in its pages that were read since it was opened.
    pub fn may_have_pages(&self, handle: Handle) -> bool {
        self.inner.handles.file(handle).is_ok_and(|open| open.file.has_pages.load(Ordering::Acquire))
    }
    /// Writes all of `data`; behind the end if the handle was opened with O_APPEND. Returns its length.
    pub async fn write(&self, handle: Handle, offset: u64, data: Bytes) -> Result<u32> {
        let appends = self.inner.handles.file(handle)?.flags.append;
        self.write_to(handle, if appends { Place::End(offset) } else { Place::At(offset) }, data).await
    }
    /// Writes all of `data`, whatever the handle was opened with. Returns its length.
    pub async fn write_to(&self, handle: Handle, place: Place, data: Bytes) -> Result<u32> {
        let open = self.inner.handles.file(handle)?;
        open.check_write()?;
        open.file.check_locks()?;
        let length = data.len() as u32;
        if data.is_empty() {
            return Ok(0);
        }
        let file = &open.file;
        if let Some(error) = file.stuck() {
            // Nothing is taken in that cannot be written out either.
            tracing::debug!(inode = file.ino, %error, "trying again before more is written");
            let own = file.clone();
            self.inner.change(&open.what(), async move { own.flush().await }).await?;
        }
        self.inner.reserve(data.len()).await?;
        let data = SharedBuf::from_owner(data);
        let by = open.writer(now_ns());
        match place {
            Place::End(offset) => {
                let at = file.data.append(by, data)?;
                if at != offset && !open.flags.direct {
                    self.inner.landed_elsewhere(file, offset, length);
                }
            }
            Place::At(offset) => file.data.write(by, offset, data)?,
        }
        if self.inner.handles.file(handle).is_err() {
            // It was closed while this waited for memory: nobody else writes it out any more.
            let own = file.clone();
            self.inner.change(&open.what(), async move { own.finish(false).await }).await?;
        } else if open.flags.sync {
            let own = file.clone();
            self.inner.change(&open.what(), async move { own.flush().await }).await?;
            self.inner.commit(&open.what(), file.ino).await?;
        } else if file.may_write_behind() {
            file.data.write_behind();
        }
        Ok(length)
    }
}

impl Inner {
    /// Waits for memory while data is written out.
    pub(crate) async fn reserve(&self, bytes: usize) -> Result<()> {
        if self.budget.try_reserve(bytes) {
            return Ok(());
        }
        self.background.hurry();
        let wait = async {
            self.budget.reserve(bytes).await;
            Ok(())
        };
        self.limited("waiting for memory while written data cannot be stored", wait).await
    }
    /// Asks for a file's attributes in the background.
    fn revalidate(self: &Inner, file: &Arc<File>) {
        if file.refreshing.swap(true, Ordering::AcqRel) {
            return;
        }
        let file = file.clone();
        tokio::spawn(async move {
            if let Err(error) = file.data.refresh().await {
                tracing::debug!(inode = file.ino, %error, "a file that is being read could not be revalidated");
            }
            file.refreshing.store(false, Ordering::Release);
        });
    }
    /// Tells the kernel if somebody else changed the contents.
    pub(crate) fn tell_changes(&self, file: &File) {
        if file.is_to_be_told() {
            self.cache.forget_attributes(file.ino);
            self.invalidate(Invalidation::Inode { ino: file.ino, offset: 0, length: 0 });
        }
    }
    /// The kernel has the bytes of an append in its pages where the file ended as far as it knew; somebody else had
    /// made the file longer.
    fn landed_elsewhere(&self, file: &File, offset: u64, length: u32) {
        self.cache.forget_pages(file.ino);
        self.cache.forget_attributes(file.ino);
        self.invalidate(Invalidation::Inode { ino: file.ino, offset, length: u64::from(length) });
    }
    /// Notes the access time, if it is to change.
    fn was_read(&self, open: &OpenFile) {
        let now = now_ns();
        let notes = !open.flags.noatime && !self.options.read_only;
        if notes && changes(self.options.atime, &of_file(&open.file), now) {
            open.file.set_atime(now);
        }
    }
}
