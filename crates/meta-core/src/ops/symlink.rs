//! Symlink: a symbolic link. Mode 0777, as everywhere.
use crate::encoding::{Inode, NodeType};
use crate::error::{OpError, Result};
use crate::key;
use crate::message::request;
use crate::message::writer::put_attributes_response;
use crate::namespace::{Context, Namespace};
use crate::permission::inherit;
use crate::view::check_new_name;
use cairn_types::ErrorCode;
use cairn_types::name::SYMLINK_MAX;

/// First byte of a target's value.
pub(super) const TARGET_TAG: u8 = 0x10;

impl Namespace {
    pub(crate) fn symlink(&mut self, context: &Context<'_>, bytes: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let request = request::Symlink::decode(bytes)?;
        check_new_name(self, request.name)?;
        if request.target.is_empty() {
            return Err(OpError::new(ErrorCode::NotFound, "the target of the link is empty"));
        }
        if request.target.len() > SYMLINK_MAX {
            return Err(OpError::new(ErrorCode::NameTooLong, "a link's target has at most 4095 bytes"));
        }
        if request.target.contains(&0) {
            return Err(OpError::new(ErrorCode::InvalidArgument, "the target contains NUL"));
        }
        let directory = self.directory_for_new(request.parent, request.name, context)?;
        let (gid, mode) = inherit(&directory, &context.who, NodeType::Symlink as u16 | 0o777);
        let inode = Inode {
            mode,
            nlink: 1,
            uid: context.who.uid,
            gid,
            size: request.target.len() as u64,
            layout: directory.layout,
            quota: directory.quota,
            ..Inode::at(context.now)
        };
        let id = self.add_named(request.parent, directory, request.name, &inode, context)?;
        let mut value = Vec::with_capacity(1 + request.target.len());
        value.push(TARGET_TAG);
        value.extend_from_slice(request.target);
        self.tree.put(key::target(id).as_bytes(), &value);
        put_attributes_response(out, id, &inode);
        Ok(())
    }
}
