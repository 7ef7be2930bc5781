//! Readlink: the target of a symbolic link. Links have all permissions; nothing is checked, as in Linux.
use crate::error::{OpError, Result};
use crate::key;
use crate::message::request;
use crate::message::writer::put_bytes;
use crate::namespace::Namespace;
use cairn_types::ErrorCode;

impl Namespace {
    pub(crate) fn readlink(&self, bytes: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let request = request::Readlink::decode(bytes)?;
        if !self.live_inode(request.inode)?.is_symlink() {
            return Err(OpError::new(ErrorCode::InvalidArgument, "not a symbolic link"));
        }
        put_bytes(out, 1, self.target(request.inode)?);
        Ok(())
    }

    pub(crate) fn target(&self, inode: u64) -> Result<&[u8]> {
        match self.tree.get(key::target(inode).as_bytes()) {
            Some([super::symlink::TARGET_TAG, target @ ..]) => Ok(target),
            _ => Err(OpError::DAMAGED),
        }
    }
}
