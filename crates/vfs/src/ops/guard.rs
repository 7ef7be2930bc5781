//! Writers that another program can shut out of a file, by an extended attribute that it sets: the file's mark.
use crate::caller::Caller;
use crate::error::Result;
use crate::vfs::{Handle, Vfs, of_file};
use std::sync::atomic::Ordering;

/// Why nobody sees what somebody writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutOff {
    ShutOut,
    /// The file was removed, or another one has its name.
    Nameless,
}

impl Vfs {
    /// From now on, whoever writes through the handle is shut out when that attribute changes: nothing is published of
    /// what he wrote. `made`: the handle is that of a file which was made a moment ago, and has no such attribute.
    pub async fn guard(&self, handle: Handle, mark: &[u8], made: bool) -> Result<()> {
        let open = self.inner.handles.file(handle)?;
        let guard = async {
            // Whether it may be read depends on what was set.
            open.file.data.send_later().await?;
            let generation = open.file.data.guard(&open.volume, mark, made).await?;
            open.guard.store(generation, Ordering::Release);
            Ok(())
        };
        self.inner.limited(&open.what(), guard).await
    }
    /// Why nobody will see what was written through a handle, if that is so. The servers are asked for the mark, and
    /// with `closing` also whether the file still has a name; else what the last answer told of that is enough.
    pub async fn cut_off(&self, handle: Handle, closing: bool) -> Result<Option<CutOff>> {
        let open = self.inner.handles.file(handle)?;
        let data = &open.file.data;
        let look = async {
            let name = async { if closing { data.refresh().await.map(|_| ()) } else { Ok(()) } };
            tokio::try_join!(data.look_at_mark(), name)?;
            Ok(())
        };
        self.inner.limited(&open.what(), look).await?;
        Ok(match data.is_shut_out(open.guard.load(Ordering::Acquire)) {
            true => Some(CutOff::ShutOut),
            false => (of_file(&open.file).nlink == 0).then_some(CutOff::Nameless),
        })
    }
    /// Shuts out all guarded writers of a file: what they were told to be done is there, and nothing of theirs comes
    /// any more. `value` is one that the attribute never had.
    pub async fn shut_out(&self, caller: &Caller, ino: u64, mark: &[u8], value: &[u8]) -> Result<()> {
        let what = format!("inode {ino}");
        self.inner.check_writable(&what)?;
        let (volume, file) = (self.inner.as_user(caller), self.inner.files.get(ino));
        let (mark, value, shown_as) = (mark.to_vec(), value.to_vec(), what.clone());
        let shut_out = async move {
            if let Some(file) = file {
                file.data.send_later().await?;
            }
            Ok(volume.shut_out(ino, shown_as.as_bytes(), &mark, &value).await?)
        };
        let outcome = self.inner.change(&what, shut_out).await;
        self.forget_attributes(ino);
        outcome
    }
}
