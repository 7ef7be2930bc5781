//! Listing a directory, part by part: one of millions of entries takes no more memory than a small one.
use crate::error::{Error, Result};
use crate::live::Live;
use crate::metadata::{FileKind, Metadata};
use crate::of_process::OfProcess;
use crate::volume::Volume;
use cairn_vfs::VfsError;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An entry of a directory; "." and ".." are none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    pub name: Vec<u8>,
    pub inode: u64,
    pub kind: FileKind,
    /// Not for who may not search the directory.
    pub metadata: Option<Metadata>,
}

/// A part of a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirPage {
    pub entries: Vec<DirEntry>,
    /// Where the next part begins; `None` at the end.
    pub next: Option<Vec<u8>>,
}

impl Volume {
    /// The directory at a path; a symbolic link at its end is followed.
    pub fn directory(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        let path = path.as_ref();
        let found = self.stat(path)?;
        match found.is_directory() {
            true => Ok(found),
            false => Err(Error::of_path(libc::ENOTDIR, path, "it is no directory")),
        }
    }
    /// The part of a directory, which its inode names, that begins behind `after`: a [`DirPage::next`], or nothing for
    /// the first one. For who keeps nothing open in between.
    pub fn list(&self, directory: u64, after: &[u8]) -> Result<DirPage> {
        let live = self.live()?;
        let shown = format!("inode {directory}");
        live.run(Path::new(&shown), page(live, directory, after))
    }
}

async fn page(live: &Live, directory: u64, after: &[u8]) -> std::result::Result<DirPage, VfsError> {
    let page = live.vfs.list(&live.caller, directory, after).await?;
    Ok(DirPage { entries: page.entries.into_iter().map(entry).collect(), next: page.next })
}

/// A directory that is being listed. Entries that are there all the while come exactly once; their order is the
/// servers'.
pub struct Directory {
    live: OfProcess<Arc<Live>>,
    path: PathBuf,
    inode: u64,
    ready: VecDeque<DirEntry>,
    /// `None` at the end.
    after: Option<Vec<u8>>,
}

impl Directory {
    pub(crate) fn new(live: Arc<Live>, path: &Path, inode: u64) -> Directory {
        let after = Some(Vec::new());
        Directory { live: OfProcess::new(live), path: path.to_owned(), inode, ready: VecDeque::new(), after }
    }
    /// The next entry; `None` at the end.
    pub fn next_entry(&mut self) -> Result<Option<DirEntry>> {
        while self.ready.is_empty() {
            let Some(after) = &self.after else { return Ok(None) };
            let live = self.live.get().ok_or_else(|| inherited(&self.path, self.live.pid()))?;
            let page = live.run(&self.path, page(live, self.inode, after))?;
            self.after = page.next;
            self.ready = page.entries.into();
        }
        Ok(self.ready.pop_front())
    }
    /// Begins anew.
    pub fn rewind(&mut self) {
        self.ready.clear();
        self.after = Some(Vec::new());
    }
}

impl Iterator for Directory {
    type Item = Result<DirEntry>;
    /// Ends after an error.
    fn next(&mut self) -> Option<Result<DirEntry>> {
        let next = self.next_entry();
        if next.is_err() {
            self.after = None;
        }
        next.transpose()
    }
}

fn entry(listed: cairn_vfs::Listed) -> DirEntry {
    DirEntry {
        name: listed.name,
        inode: listed.ino,
        kind: FileKind::of_mode(listed.kind),
        metadata: listed.attr.as_ref().map(Metadata::of),
    }
}

/// What a child of the process that opened something is told.
pub(crate) fn inherited(path: &Path, pid: u32) -> Error {
    let cause = format!("it was opened by process {pid}, before this one was forked off");
    Error::new(libc::EBADF, &path.to_string_lossy(), &cause, "open it again in this process")
}
