//! Who may do what, as Linux decides it (fs/namei.c, fs/attr.c, fs/inode.c), with POSIX access control lists (`acl`).
use crate::encoding::{Inode, NodeType};
use crate::error::{OpError, Result};
use crate::message::request::Who;
use crate::namespace::Namespace;

pub(crate) const READ: u16 = 4;
pub(crate) const WRITE: u16 = 2;
pub(crate) const EXEC: u16 = 1;

pub(crate) const SETUID: u16 = 0o4000;
pub(crate) const SETGID: u16 = 0o2000;
pub(crate) const STICKY: u16 = 0o1000;
const GROUP_EXEC: u16 = 0o010;

/// True when the mode bits give all of `mask` (r 4, w 2, x 1). Root may all, but executes only what has an x bit.
#[inline]
fn mode_allows(inode: &Inode, who: &Who<'_>, mask: u16) -> bool {
    if who.is_root() {
        return mask & EXEC == 0 || inode.is_dir() || inode.mode & 0o111 != 0;
    }
    let class = if who.uid == inode.uid {
        inode.mode >> 6
    } else if who.in_group(inode.gid) {
        inode.mode >> 3
    } else {
        inode.mode
    };
    class & mask == mask
}

impl Namespace {
    /// True when the mode, or the access control list, gives all of `mask` (r 4, w 2, x 1).
    #[inline]
    pub(crate) fn allows(&self, id: u64, inode: &Inode, who: &Who<'_>, mask: u16) -> bool {
        if inode.acl && !who.is_root() { self.acl_allows(id, inode, who, mask) } else { mode_allows(inode, who, mask) }
    }

    /// Search permission, needed for every look at a name.
    #[inline]
    pub(crate) fn check_search(&self, id: u64, directory: &Inode, who: &Who<'_>) -> Result<()> {
        if self.allows(id, directory, who, EXEC) { Ok(()) } else { Err(OpError::SEARCH_DENIED) }
    }

    /// Permission to add or remove names.
    #[inline]
    pub(crate) fn check_change(&self, id: u64, directory: &Inode, who: &Who<'_>) -> Result<()> {
        if self.allows(id, directory, who, WRITE | EXEC) { Ok(()) } else { Err(OpError::DIR_WRITE_DENIED) }
    }

    /// Permission to remove or rename an entry: that of the directory, and ownership where it is sticky.
    #[inline]
    pub(crate) fn check_delete(&self, id: u64, directory: &Inode, victim: &Inode, who: &Who<'_>) -> Result<()> {
        self.check_change(id, directory, who)?;
        let owner = who.is_root() || who.uid == victim.uid || who.uid == directory.uid;
        if directory.mode & STICKY != 0 && !owner { Err(OpError::STICKY) } else { Ok(()) }
    }
}

pub(crate) fn check_owner(inode: &Inode, who: &Who<'_>) -> Result<()> {
    if who.is_root() || who.uid == inode.uid { Ok(()) } else { Err(OpError::NOT_OWNER) }
}

/// Group and mode of what is made in `directory`: a setgid directory hands down its group, to subdirectories its bit
/// too.
pub(crate) fn inherit(directory: &Inode, who: &Who<'_>, mode: u16) -> (u32, u16) {
    if directory.mode & SETGID == 0 {
        return (who.gid, mode);
    }
    if mode & NodeType::MASK == NodeType::Directory as u16 {
        return (directory.gid, mode | SETGID);
    }
    let executable_by_group = mode & (SETGID | GROUP_EXEC) == SETGID | GROUP_EXEC;
    if executable_by_group && !who.is_root() && !who.in_group(directory.gid) {
        return (directory.gid, mode & !SETGID);
    }
    (directory.gid, mode)
}

/// The mode without the setuid and setgid bits that a change of owner takes away: setgid stays where it does not mean
/// execution (no x for the group) and the caller is in the group.
pub(crate) fn without_privileges(inode: &Inode, who: &Who<'_>) -> u16 {
    let mut mode = inode.mode & !SETUID;
    let executable_by_group = mode & GROUP_EXEC != 0;
    if executable_by_group || !(who.is_root() || who.in_group(inode.gid)) {
        mode &= !SETGID;
    }
    mode
}

/// The mode after a write on whose behalf is not known: setuid goes, and setgid where it means execution.
pub(crate) fn killed_privileges(inode: &Inode) -> u16 {
    if !inode.is_regular() {
        return inode.mode;
    }
    let setgid = if inode.mode & GROUP_EXEC != 0 { SETGID } else { 0 };
    inode.mode & !(SETUID | setgid)
}

/// The mode after somebody wrote to the file: as [`without_privileges`], but root's writing changes nothing.
pub(crate) fn mode_after_write(inode: &Inode, who: &Who<'_>) -> u16 {
    if who.is_root() || !inode.is_regular() { inode.mode } else { without_privileges(inode, who) }
}
