//! Open files: holds, and files without a name.
use crate::names::check_layout;
use crate::node::Body;
use crate::state::{Model, Request};
use cairn_types::ErrorCode;

impl Model {
    pub(crate) fn note_hold(&mut self, session: u64, inode: u64, write: bool) {
        let held = self.holds.entry((session, inode)).or_insert(false);
        *held |= write;
    }

    pub(crate) fn hold(&mut self, request: &Request, inode: u64, write: bool) -> Result<(), ErrorCode> {
        let node = self.existing(inode)?;
        if write && node.is_directory() {
            return Err(ErrorCode::IsDirectory);
        }
        let caller = &request.caller;
        let by_mode = if write { caller.can_write(node) } else { caller.can_read(node) || caller.can_execute(node) };
        let by_hold = match self.holds.get(&(request.session, inode)) {
            Some(writes) => *writes || !write,
            None => false,
        };
        if !by_mode && !by_hold {
            return Err(ErrorCode::PermissionDenied);
        }
        self.note_hold(request.session, inode, write);
        Ok(())
    }

    pub(crate) fn create_unnamed(
        &mut self,
        request: &Request,
        parent: u64,
        mode: u32,
        layout: u64,
        umask: u32,
    ) -> Result<u64, ErrorCode> {
        check_layout(layout)?;
        let directory = self.searchable(parent, &request.caller)?;
        request.caller.may_add(directory)?;
        let mut node = self.fresh(request, parent, 0o100_000 | mode & 0o7777, layout, Body::File(Vec::new()));
        node.linkable = true;
        node.inherit_acl(&self.nodes[&parent], umask);
        let inode = self.add(node);
        self.holds.insert((request.session, inode), true);
        Ok(inode)
    }
}
