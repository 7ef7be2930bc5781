//! Writers that can be shut out, as lease recovery of Hadoop needs it.
//!
//! A file of such a writer has a mark, an extended attribute, that whoever shuts others out sets to something new. A
//! writer knows the mark that was there when it opened the file, and compares when it has published. Both are entries
//! of the log of one partition, so that one comes first: **Invariant:** what a flush, sync or close reported as done
//! was published before the mark was set, and is seen by whoever set it. The other way round, a writer may have
//! published before it is told: what it was not told to be done may be there or not.
//!
//! Not shut out: writers that were not opened as [`fenced`](crate::OpenOptions::fenced), and those that may not read
//! the file.
use crate::error::{Error, Result};
use crate::live::Live;
use cairn_vfs::{Attr, VfsError};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// The attribute that is the mark.
pub(crate) const MARK: &[u8] = b"user.cairn.recovered";

/// What a writer knows of the mark.
pub(crate) struct Fence {
    inode: u64,
    mark: Option<Vec<u8>>,
    /// Writes that were done, and how many of them had been when the mark was last found to be the same behind a flush.
    written: AtomicU64,
    checked: AtomicU64,
}

impl Fence {
    /// Of a file that was just opened. One that was just made, and not touched since, has no mark: nobody is asked.
    pub(crate) async fn of(live: &Live, inode: u64, made: Option<&Attr>) -> std::result::Result<Fence, VfsError> {
        let untouched = made.is_some_and(|attr| attr.ino == inode && attr.btime == attr.ctime);
        let mark = if untouched { None } else { mark(live, inode).await?.unwrap_or_default() };
        Ok(Fence { inode, mark, written: AtomicU64::new(0), checked: AtomicU64::new(0) })
    }
    /// Something was written: it has to be asked again.
    pub(crate) fn was_written(&self) {
        self.written.fetch_add(1, Ordering::AcqRel);
    }
    /// Does what publishes, then looks whether the writer had been shut out by then.
    pub(crate) fn guarded(&self, live: &Live, path: &Path, publish: impl FnOnce() -> Result<()>) -> Result<()> {
        let written = self.written.load(Ordering::Acquire);
        publish()?;
        if self.checked.load(Ordering::Acquire) >= written {
            return Ok(());
        }
        // Of a file that it may not read nobody can tell.
        let same = live.run(path, mark(live, self.inode))?.is_none_or(|mark| mark == self.mark);
        if !same {
            let cause = "another program has recovered the file, and what was written last may not be in it";
            return Err(Error::new(libc::ESTALE, &path.to_string_lossy(), cause, "stop writing, or open it anew"));
        }
        self.checked.fetch_max(written, Ordering::AcqRel);
        Ok(())
    }
}

/// The mark of a file; `None` if the process may not read it.
async fn mark(live: &Live, inode: u64) -> std::result::Result<Option<Option<Vec<u8>>>, VfsError> {
    match live.vfs.getxattr(&live.caller, inode, MARK).await {
        Ok(mark) => Ok(Some(Some(mark))),
        Err(error) if error.errno == libc::ENODATA => Ok(Some(None)),
        Err(error) if error.errno == libc::EACCES => Ok(None),
        Err(error) => Err(error),
    }
}
