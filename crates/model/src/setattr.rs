//! chmod(2), chown(2), truncate(2), utimensat(2), and the layout.
use crate::names::check_layout;
use crate::node::Node;
use crate::operation::Setattr;
use crate::state::{Model, Request};
use cairn_types::ErrorCode;

impl Model {
    pub(crate) fn setattr(&mut self, request: &Request, set: &Setattr) -> Result<(), ErrorCode> {
        let caller = &request.caller;
        let node = self.existing(set.inode)?;
        if let Some(size) = set.size {
            self.check_truncate(request, set.inode, node, size)?;
        }
        if set.kill_privileges && node.is_file() && !caller.owns(node) && !self.may_write_contents(set.inode, request) {
            return Err(ErrorCode::PermissionDenied);
        }
        if let Some(uid) = set.uid {
            let unchanged = caller.uid == node.uid && uid == node.uid;
            if !caller.is_root() && !unchanged {
                return Err(ErrorCode::NotPermitted);
            }
        }
        if let Some(gid) = set.gid {
            let own = caller.uid == node.uid && (gid == node.gid || caller.is_member(gid));
            if !caller.is_root() && !own {
                return Err(ErrorCode::NotPermitted);
            }
        }
        if set.mode.is_some() {
            if !caller.owns(node) {
                return Err(ErrorCode::NotPermitted);
            }
            if node.is_symlink() {
                return Err(ErrorCode::InvalidArgument);
            }
        }
        check_utimes(request, set, node)?;
        if let Some(layout) = set.layout {
            if !caller.owns(node) {
                return Err(ErrorCode::NotPermitted);
            }
            if layout == 0 {
                return Err(ErrorCode::BadLayout);
            }
            check_layout(layout)?;
            let empty_file = node.is_file() && node.bytes().is_empty();
            if !node.is_directory() && !empty_file {
                return Err(ErrorCode::BadLayout);
            }
        }
        if *set != (Setattr { inode: set.inode, ..Default::default() }) {
            self.set_all(request, set);
        }
        Ok(())
    }

    fn check_truncate(&self, request: &Request, inode: u64, node: &Node, size: u64) -> Result<(), ErrorCode> {
        if node.is_directory() {
            return Err(ErrorCode::IsDirectory);
        }
        if !node.is_file() {
            return Err(ErrorCode::InvalidArgument);
        }
        if !self.may_write_contents(inode, request) {
            return Err(ErrorCode::PermissionDenied);
        }
        if size > i64::MAX as u64 { Err(ErrorCode::FileTooLarge) } else { Ok(()) }
    }

    fn set_all(&mut self, request: &Request, set: &Setattr) {
        let caller = &request.caller;
        if let Some(size) = set.size {
            self.change_bytes(set.inode, |bytes| bytes.resize(size as usize, None));
            self.after_write(set.inode, request);
            let node = self.node(set.inode);
            node.data_version += 1;
            node.mtime = request.now;
        }
        self.kill_privileges(set.inode, set.kill_privileges);
        let node = self.node(set.inode);
        if (set.uid.is_some() || set.gid.is_some()) && !node.is_directory() {
            node.drop_privileges(caller.is_root() || caller.is_member(node.gid));
        }
        node.uid = set.uid.unwrap_or(node.uid);
        node.gid = set.gid.unwrap_or(node.gid);
        if let Some(mode) = set.mode {
            let keeps_setgid = caller.is_root() || caller.is_member(node.gid);
            let allowed = if keeps_setgid { 0o7777 } else { 0o5777 };
            node.mode = node.mode & 0o170_000 | mode & allowed;
            node.chmod_acl();
        }
        if let Some(atime) = set.atime {
            node.atime = atime;
        }
        if let Some(mtime) = set.mtime {
            node.mtime = mtime;
        }
        if set.atime_now {
            node.atime = request.now;
        }
        if set.mtime_now {
            node.mtime = request.now;
        }
        if set.size.is_some() || set.uid.is_some() || set.gid.is_some() || set.kill_privileges {
            node.drop_capability();
        }
        node.layout = set.layout.unwrap_or(node.layout);
        node.changed(request.now);
    }
}

/// utimensat(2): a time given, or only one of them "now", is for the owner; both "now" for whoever may write. Beside a
/// new size "now" is nothing of its own.
fn check_utimes(request: &Request, set: &Setattr, node: &Node) -> Result<(), ErrorCode> {
    let given = (set.atime.is_some() && !set.atime_now) || (set.mtime.is_some() && !set.mtime_now);
    let one_now = set.atime_now != set.mtime_now && set.size.is_none();
    let both_now = set.atime_now && set.mtime_now && set.size.is_none();
    if request.caller.owns(node) {
        return Ok(());
    }
    if given || one_now {
        return Err(ErrorCode::NotPermitted);
    }
    if both_now && !request.caller.can_write(node) {
        return Err(ErrorCode::PermissionDenied);
    }
    Ok(())
}
