//! Extended attributes, among them the POSIX ACLs (`system.posix_acl_access`, `system.posix_acl_default`).
use crate::caller::Caller;
use crate::error::{Result, VfsError};
use crate::file::File;
use crate::vfs::Vfs;
use cairn_types::name::XATTR_NAME_MAX;
use std::sync::Arc;

const CAPABILITY: &[u8] = b"security.capability";
const BOTH: u32 = (libc::XATTR_CREATE | libc::XATTR_REPLACE) as u32;

/// An ACL and the mode are one.
async fn send_later(file: Option<Arc<File>>) -> Result<()> {
    match file {
        Some(file) => Ok(file.data.send_later().await?),
        None => Ok(()),
    }
}

/// Before an attribute is set: what was written before does not take a capability away when it is published.
async fn settle_before(file: Option<Arc<File>>, name: &[u8]) -> Result<()> {
    match file {
        Some(file) if name == CAPABILITY => file.flush().await,
        file => send_later(file).await,
    }
}

/// Whether a server keeps attributes of such a name; of others it says what is wrong with them.
fn may_be_stored(name: &[u8]) -> bool {
    let acl: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];
    let prefixes: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    let is_whole = |prefix: &&[u8]| name.starts_with(prefix) && name.len() > prefix.len();
    acl.contains(&name) || prefixes.iter().any(is_whole) && name.len() <= XATTR_NAME_MAX && !name.contains(&0)
}

impl Vfs {
    pub async fn getxattr(&self, caller: &Caller, ino: u64, name: &[u8]) -> Result<Vec<u8>> {
        if may_be_stored(name) && self.inner.cache.is_without_xattrs(ino) {
            return Err(VfsError::new(libc::ENODATA, "the file has no extended attributes"));
        }
        let is_capability = name == CAPABILITY;
        if is_capability && self.inner.cache.is_incapable(ino) {
            return Err(VfsError::new(libc::ENODATA, "the file has no capability"));
        }
        let (volume, file) = (self.inner.as_user(caller), self.inner.files.get(ino));
        let get = async {
            send_later(file).await?;
            Ok(volume.get_xattr(ino, name).await?)
        };
        let outcome = self.inner.limited("getxattr", get).await;
        if is_capability && outcome.as_ref().is_err_and(|error: &VfsError| error.errno == libc::ENODATA) {
            self.inner.cache.put_incapable(ino, self.inner.options.attr_ttl);
        }
        outcome
    }
    /// `flags` of setxattr(2): XATTR_CREATE, XATTR_REPLACE.
    pub async fn setxattr(&self, caller: &Caller, ino: u64, name: &[u8], value: &[u8], flags: u32) -> Result<()> {
        self.inner.check_writable("setxattr")?;
        if flags == BOTH {
            // As local file systems: it has to be there, and must not.
            self.getxattr(caller, ino, name).await?;
            return Err(VfsError::new(libc::EEXIST, "there is an extended attribute of this name"));
        }
        self.inner.cache.gives_xattrs(ino);
        let (volume, name, value) = (self.inner.as_user(caller), name.to_vec(), value.to_vec());
        let file = self.inner.files.get(ino);
        let set = async move {
            settle_before(file, &name).await?;
            Ok(volume.set_xattr(ino, &name, &value, flags).await?)
        };
        let outcome = self.inner.change("setxattr", set).await;
        self.inner.cache.forget_incapable(ino);
        // The time of change, and by an ACL the mode.
        self.forget_attributes(ino);
        outcome
    }
    pub async fn listxattr(&self, caller: &Caller, ino: u64) -> Result<Vec<Vec<u8>>> {
        if self.inner.cache.is_without_xattrs(ino) {
            return Ok(Vec::new());
        }
        let volume = self.inner.as_user(caller);
        self.inner.limited("listxattr", async { Ok(volume.list_xattr(ino).await?) }).await
    }
    /// A kernel takes the capability away when somebody writes, on his behalf, and checks by itself who may do it
    /// otherwise.
    pub async fn removexattr(&self, caller: &Caller, ino: u64, name: &[u8]) -> Result<()> {
        self.inner.check_writable("removexattr")?;
        let who = if name == CAPABILITY { &Caller::root() } else { caller };
        let (volume, name, file) = (self.inner.as_user(who), name.to_vec(), self.inner.files.get(ino));
        let remove = async move {
            send_later(file).await?;
            Ok(volume.remove_xattr(ino, &name).await?)
        };
        let outcome = self.inner.change("removexattr", remove).await;
        self.forget_attributes(ino);
        outcome
    }
}
