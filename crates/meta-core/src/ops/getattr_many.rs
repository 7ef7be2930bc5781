//! GetattrMany: attributes of many inodes in one call. Those that are gone are left out, those that are locked, or led
//! by a session, told apart.
use crate::error::{OpError, Result};
use crate::limits::GETATTR_MANY_MAX;
use crate::message::request;
use crate::message::writer::{put_attributes, put_number};
use crate::namespace::Namespace;
use cairn_types::ErrorCode;

impl Namespace {
    pub(crate) fn getattr_many(&self, bytes: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let request = request::GetattrMany::decode(bytes)?;
        let mut inodes = Vec::new();
        request.inodes.visit(|inode| {
            inodes.push(inode);
            inodes.len() <= GETATTR_MANY_MAX
        })?;
        if inodes.len() > GETATTR_MANY_MAX {
            return Err(OpError::new(ErrorCode::InvalidArgument, "at most 256 inodes in one request"));
        }
        for id in inodes {
            match self.inode_anywhere(id) {
                Ok(inode) => put_attributes(out, 1, id, &inode),
                Err(OpError::STALE) => {}
                Err(OpError::LOCKED | OpError::DELEGATED) if request.apart => put_number(out, 2, id),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
