//! Writers that can be shut out, as lease recovery of Hadoop needs it.
//!
//! A file of such a writer has a mark, an extended attribute, that whoever shuts others out sets to something new. The
//! contents are guarded by it ([`cairn_vfs::Vfs::guard`]): **Invariant:** what a flush, sync or close reported as done
//! was published before the writer was shut out, and is seen by whoever did that; and once it has returned, nothing of
//! the writer's comes any more, whatever he does or has under way. What he was not told to be done may be there or not
//! until then.
//!
//! Besides, such a writer is told when his file has no name any more: nobody will see what he writes.
//!
//! Not shut out: writers that were not opened as [`fenced`](crate::OpenOptions::fenced), and those that may not read
//! the file.
use crate::error::{Error, Result};
use crate::live::Live;
use cairn_vfs::{Attr, CutOff, Handle, VfsError};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// The attribute that is the mark.
pub(crate) const MARK: &[u8] = b"user.cairn.recovered";

/// What a writer knows of what he wrote.
pub(crate) struct Fence {
    handle: Handle,
    /// Writes that were done, and how many of them had been when it was last found behind a flush that he goes on.
    written: AtomicU64,
    checked: AtomicU64,
}

impl Fence {
    /// Of a file that was just opened. One that was just made, and not touched since, has no mark: nobody is asked.
    pub(crate) async fn of(live: &Live, handle: Handle, made: Option<&Attr>) -> std::result::Result<Fence, VfsError> {
        let untouched = made.is_some_and(|attr| attr.btime == attr.ctime);
        live.vfs.guard(handle, MARK, untouched).await?;
        Ok(Fence { handle, written: AtomicU64::new(0), checked: AtomicU64::new(0) })
    }
    /// Something was written: it has to be asked again.
    pub(crate) fn was_written(&self) {
        self.written.fetch_add(1, Ordering::AcqRel);
    }
    /// Does what publishes, then looks whether the writer had been cut off by then.
    pub(crate) fn guarded(
        &self,
        live: &Live,
        path: &Path,
        closing: bool,
        publish: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let written = self.written.load(Ordering::Acquire);
        publish()?;
        if self.checked.load(Ordering::Acquire) >= written {
            return Ok(());
        }
        let (cause, next) = match live.run(path, live.vfs.cut_off(self.handle, closing))? {
            None => {
                self.checked.fetch_max(written, Ordering::AcqRel);
                return Ok(());
            }
            Some(CutOff::ShutOut) => (
                "another program has recovered the file, and what was written last may not be in it",
                "stop writing, or open it anew",
            ),
            Some(CutOff::Nameless) => (
                "another program has removed or replaced the file, and nobody sees what was written",
                "stop writing, or create it anew",
            ),
        };
        Err(Error::new(libc::ESTALE, &path.to_string_lossy(), cause, next))
    }
}
