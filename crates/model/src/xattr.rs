//! setxattr(2) and friends, after xattr(7).
use crate::caller::Caller;
use crate::node::Node;
use crate::state::{Model, Request};
use cairn_types::ErrorCode;

fn check_name(name: &[u8]) -> Result<(), ErrorCode> {
    if name.is_empty() || name.len() > 255 {
        return Err(ErrorCode::OutOfRange);
    }
    if is_acl(name) {
        return Ok(());
    }
    for prefix in ["user.", "trusted.", "security."] {
        if name.starts_with(prefix.as_bytes()) {
            let sound = name.len() > prefix.len() && !name.contains(&0);
            return if sound { Ok(()) } else { Err(ErrorCode::InvalidArgument) };
        }
    }
    Err(ErrorCode::NotSupported)
}

fn is_acl(name: &[u8]) -> bool {
    name == crate::ACCESS || name == crate::DEFAULT
}

fn check_write(name: &[u8], node: &Node, caller: &Caller) -> Result<(), ErrorCode> {
    if !name.starts_with(b"user.") {
        return if caller.is_root() { Ok(()) } else { Err(ErrorCode::NotPermitted) };
    }
    let plain = node.is_file() || node.is_directory();
    let sticky = node.is_directory() && node.mode & 0o1000 != 0;
    if !plain || (sticky && !caller.owns(node)) {
        return Err(ErrorCode::NotPermitted);
    }
    if caller.can_write(node) { Ok(()) } else { Err(ErrorCode::PermissionDenied) }
}

impl Model {
    pub(crate) fn set_xattr(
        &mut self,
        request: &Request,
        inode: u64,
        name: &[u8],
        value: &[u8],
        flags: u32,
    ) -> Result<(), ErrorCode> {
        if flags > 2 {
            return Err(ErrorCode::InvalidArgument);
        }
        if value.len() > 65536 {
            return Err(ErrorCode::AttributeTooLarge);
        }
        check_name(name)?;
        if is_acl(name) {
            return self.set_acl(request, inode, name, value);
        }
        let node = self.existing(inode)?;
        check_write(name, node, &request.caller)?;
        match (node.xattrs.contains_key(name), flags) {
            (true, 1) => return Err(ErrorCode::Exists),
            (false, 2) => return Err(ErrorCode::NoAttribute),
            _ => {}
        }
        let node = self.node(inode);
        node.xattrs.insert(name.to_vec(), value.to_vec());
        node.changed(request.now);
        Ok(())
    }

    pub(crate) fn remove_xattr(&mut self, request: &Request, inode: u64, name: &[u8]) -> Result<(), ErrorCode> {
        check_name(name)?;
        if is_acl(name) {
            return self.set_acl(request, inode, name, b"");
        }
        let node = self.existing(inode)?;
        check_write(name, node, &request.caller)?;
        if !node.xattrs.contains_key(name) {
            return Err(ErrorCode::NoAttribute);
        }
        let node = self.node(inode);
        node.xattrs.remove(name);
        node.changed(request.now);
        Ok(())
    }
}
