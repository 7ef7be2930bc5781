//! Attributes: getattr, setattr, access.
use crate::attr::{Attr, SetAttr, SetTime};
use crate::caller::Caller;
use crate::error::Result;
use crate::vfs::{Handle, Vfs};
use cairn_wire::meta::SetattrRequest;
use std::time::Duration;

const MODE: u32 = 1;
const UID: u32 = 1 << 1;
const GID: u32 = 1 << 2;
const SIZE: u32 = 1 << 3;
const ATIME: u32 = 1 << 4;
const MTIME: u32 = 1 << 5;
const ATIME_NOW: u32 = 1 << 6;
const MTIME_NOW: u32 = 1 << 7;
const KILL_PRIVILEGES: u32 = 1 << 9;

/// As the wire carries it.
pub(crate) fn request(set: &SetAttr) -> SetattrRequest {
    let mut request = SetattrRequest::default();
    let mut take = |bit: u32, value: Option<u32>| {
        request.valid |= if value.is_some() { bit } else { 0 };
        value.unwrap_or_default()
    };
    let (mode, uid, gid) = (take(MODE, set.mode), take(UID, set.uid), take(GID, set.gid));
    (request.mode, request.uid, request.gid) = (mode & 0o7777, uid, gid);
    if let Some(size) = set.size {
        request.valid |= SIZE;
        request.size = size;
    }
    let time = |set: Option<SetTime>, bit, now| match set {
        None => (0, 0),
        Some(SetTime::Now) => (now, 0),
        Some(SetTime::At(ns)) => (bit, ns as u64),
    };
    let (bits, atime) = time(set.atime, ATIME, ATIME_NOW);
    request.valid |= bits;
    request.atime_ns = atime;
    let (bits, mtime) = time(set.mtime, MTIME, MTIME_NOW);
    request.valid |= bits;
    request.mtime_ns = mtime;
    request.valid |= if set.kill_privileges { KILL_PRIVILEGES } else { 0 };
    request
}

impl Vfs {
    /// Attributes and how long they may be used.
    pub async fn getattr(&self, caller: &Caller, ino: u64, handle: Option<Handle>) -> Result<(Attr, Duration)> {
        let volume = self.inner.as_user(caller);
        let find = async {
            Ok(match handle.and_then(|handle| self.inner.handles.file(handle).ok()) {
                Some(open) => open.file.lock().await.attributes().await?,
                None => volume.getattr(ino).await?,
            })
        };
        let found = self.inner.limited(&format!("inode {ino}"), find).await?;
        Ok((Attr::of(&found), self.inner.options.attr_ttl))
    }
    /// Changes attributes; a new size cuts or lengthens the file.
    pub async fn setattr(
        &self,
        caller: &Caller,
        ino: u64,
        _handle: Option<Handle>,
        set: SetAttr,
    ) -> Result<(Attr, Duration)> {
        let what = format!("inode {ino}");
        self.inner.check_writable(&what)?;
        let (volume, shown_as) = (self.inner.as_user(caller), what.clone().into_bytes());
        let request = request(&set);
        let change = async move { Ok(volume.setattr(ino, &shown_as, request).await?) };
        let found = self.inner.change(&what, change).await?;
        Ok((Attr::of(&found), self.inner.options.attr_ttl))
    }
    /// Whether the caller may read (4), write (2), execute (1); for kernels that do not check themselves.
    pub async fn access(&self, caller: &Caller, ino: u64, mask: u32) -> Result<()> {
        let volume = self.inner.as_user(caller);
        let check = async { Ok(volume.access_inode(ino, mask & 7).await?) };
        self.inner.limited(&format!("inode {ino}"), check).await
    }
}
