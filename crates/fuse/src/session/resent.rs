//! Requests that a worker had when it died: the kernel hands them to the next one, marked, and nobody knows whether
//! they were done.
//!
//! Of changes that cannot be done twice, the error that a repeat gives is taken as success if what is there now is what
//! the request wanted. The other reading (somebody else did the same at that moment) has the same result for the
//! caller, except that `O_EXCL`-style creation then succeeds for two: so the owner has to fit and the inode has to be
//! young.
use super::Session;
use super::attributes::time;
use super::reply::{Outcome, Reply};
use super::request::Request;
use crate::abi::names::{LinkIn, MkdirIn, MknodIn, Rename2In, RenameIn};
use crate::abi::opcode::Opcode;
use cairn_vfs::{Caller, Entry, VfsError};
use std::time::SystemTime;

/// A worker is replaced in less than this, and so old may an inode be that the dead one made.
const YOUNG_SECONDS: u64 = 120;

impl Session {
    /// What a failed repeat of a change means.
    pub(super) async fn judge_resent(&self, opcode: Opcode, request: &Request, error: VfsError) -> Outcome {
        let done = match (opcode, error.errno) {
            (Opcode::Unlink | Opcode::Rmdir, libc::ENOENT) => Some(Reply::Done),
            (Opcode::Rename | Opcode::Rename2, libc::ENOENT) => self.renamed(opcode, request).await,
            (Opcode::Mkdir | Opcode::Mknod | Opcode::Symlink | Opcode::Link, libc::EEXIST) => {
                self.made(opcode, request).await.map(|entry| Reply::of(&self.entry(&entry)))
            }
            _ => None,
        };
        if done.is_some() {
            tracing::info!(operation = opcode.name(), "a request of the worker that died had been done");
        }
        done.ok_or(error)
    }
    async fn renamed(&self, opcode: Opcode, request: &Request) -> Option<Reply> {
        let (to, skip) = match opcode {
            Opcode::Rename => (request.arg::<RenameIn>().ok()?.newdir, size_of::<RenameIn>()),
            _ => (request.arg::<Rename2In>().ok()?.newdir, size_of::<Rename2In>()),
        };
        let (_, name) = request.two_names(skip).ok()?;
        self.vfs.lookup(&Caller::root(), self.ino(to), name).await.ok().map(|_| Reply::Done)
    }
    /// What is there under the name that was to be made, if it can be what the dead worker made.
    pub(super) async fn made(&self, opcode: Opcode, request: &Request) -> Option<Entry> {
        let (name, kind) = match opcode {
            Opcode::Mkdir => (request.name(size_of::<MkdirIn>()).ok()?, Some(libc::S_IFDIR)),
            Opcode::Mknod => {
                let kind = request.arg::<MknodIn>().ok()?.mode & libc::S_IFMT;
                (request.name(size_of::<MknodIn>()).ok()?, Some(if kind == 0 { libc::S_IFREG } else { kind }))
            }
            Opcode::Symlink => (request.two_names(0).ok()?.0, Some(libc::S_IFLNK)),
            Opcode::Link => (request.name(size_of::<LinkIn>()).ok()?, None),
            _ => (request.name(size_of::<crate::abi::file::CreateIn>()).ok()?, Some(libc::S_IFREG)),
        };
        let found = self.vfs.lookup(&Caller::root(), self.ino(request.header.nodeid), name).await.ok()?;
        let fits = match kind {
            Some(kind) => {
                let same_kind = found.attr.mode & libc::S_IFMT == kind;
                same_kind && found.attr.uid == request.header.uid && is_young(found.attr.btime)
            }
            None => request.arg::<LinkIn>().ok().is_some_and(|asked| self.ino(asked.oldnodeid) == found.attr.ino),
        };
        fits.then_some(found)
    }
}

fn is_young(born: i64) -> bool {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    now.saturating_sub(time(born).0.max(0) as u64) < YOUNG_SECONDS
}
