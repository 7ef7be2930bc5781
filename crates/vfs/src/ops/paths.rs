//! Whole paths, for fronts that have no kernel to walk them: the servers resolve a path in one call.
//!
//! What is answered is never older than the call, whatever the times to live of the caches are, and what this mount
//! wrote to an open file is in it. Changes go by directory and name, as a kernel's do (`names`).
use crate::attr::{Attr, KIND};
use crate::caller::Caller;
use crate::error::Result;
use crate::vfs::Vfs;

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub name: Vec<u8>,
    pub ino: u64,
    /// Type bits of the mode (`S_IFMT`).
    pub kind: u32,
    /// Not for who may not search the directory.
    pub attr: Option<Attr>,
}

/// A part of a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListedPage {
    pub entries: Vec<Listed>,
    /// Where the next part begins; `None` at the end.
    pub next: Option<Vec<u8>>,
}

impl Vfs {
    /// What is at an absolute path. `follow`: a symbolic link at its end is followed.
    pub async fn find(&self, caller: &Caller, path: &[u8], follow: bool) -> Result<Attr> {
        let volume = self.inner.as_user(caller);
        let find = async { Ok(volume.stat(path, follow).await?) };
        let found = self.inner.limited(&String::from_utf8_lossy(path), find).await?;
        Ok(Attr::of(&self.inner.seen(&found)))
    }
    /// The part of a directory that begins behind `after`, which is a `next` of before, or empty for the first.
    pub async fn list(&self, caller: &Caller, directory: u64, after: &[u8]) -> Result<ListedPage> {
        let volume = self.inner.as_user(caller);
        let read = async { Ok(volume.readdir(directory, after, true).await?) };
        let page = self.inner.limited(&format!("inode {directory}"), read).await?;
        let next = page.entries.last().filter(|_| !page.end).map(|last| last.cookie.clone());
        let listed = page.entries.into_iter().map(|entry| {
            let attr = entry.attributes.as_ref().map(|found| Attr::of(&self.inner.seen(found)));
            let kind = attr.map_or(entry.kind.mode_bits(), |attr| attr.mode & KIND);
            Listed { name: entry.name, ino: entry.inode, kind, attr }
        });
        Ok(ListedPage { entries: listed.collect(), next })
    }
}
