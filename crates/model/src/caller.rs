//! Who asks, and what the mode bits give him.
use crate::node::Node;
use cairn_types::ErrorCode;

/// Credentials of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Caller {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

impl Caller {
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    pub fn is_member(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    pub fn owns(&self, node: &Node) -> bool {
        self.is_root() || self.uid == node.uid
    }

    fn bits(&self, node: &Node) -> u32 {
        if self.is_root() {
            let executable = node.is_directory() || node.mode & 0o111 != 0;
            return if executable { 7 } else { 6 };
        }
        if self.uid == node.uid {
            (node.mode >> 6) & 7
        } else if self.is_member(node.gid) {
            (node.mode >> 3) & 7
        } else {
            node.mode & 7
        }
    }

    pub fn can_read(&self, node: &Node) -> bool {
        self.has_all(node, 4)
    }
    pub fn can_write(&self, node: &Node) -> bool {
        self.has_all(node, 2)
    }
    pub fn can_execute(&self, node: &Node) -> bool {
        self.has_all(node, 1)
    }
    /// All of the mask at once: of several groups one has to give all of it.
    pub fn has_all(&self, node: &Node, mask: u32) -> bool {
        let by_list = if self.is_root() { None } else { crate::acl::check(self, node, mask) };
        by_list.unwrap_or(self.bits(node) & mask == mask)
    }

    /// unlink(2), rename(2): EACCES without w and x on the directory, EPERM by its sticky bit.
    pub fn may_take_away(&self, directory: &Node, entry: &Node) -> Result<(), ErrorCode> {
        if !self.has_all(directory, 3) {
            return Err(ErrorCode::PermissionDenied);
        }
        let sticky = directory.mode & 0o1000 != 0;
        if sticky && !self.owns(entry) && !self.owns(directory) {
            return Err(ErrorCode::NotPermitted);
        }
        Ok(())
    }

    pub fn may_add(&self, directory: &Node) -> Result<(), ErrorCode> {
        if self.has_all(directory, 3) { Ok(()) } else { Err(ErrorCode::PermissionDenied) }
    }
}
