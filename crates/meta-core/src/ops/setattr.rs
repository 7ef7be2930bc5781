//! Setattr: mode, owner, size, times, layout. All or nothing, in the order in which Linux checks (`setattr_prepare`).
use crate::encoding::Inode;
use crate::error::{OpError, Result};
use crate::inode_table::layout_or;
use crate::limits::FILE_SIZE_MAX;
use crate::message::request;
use crate::message::writer::put_attributes_response;
use crate::namespace::{Context, Namespace};
use crate::permission::{SETGID, WRITE, check_owner, killed_privileges, mode_after_write, without_privileges};
use cairn_types::ErrorCode;

pub(super) const MODE: u32 = 1 << 0;
pub(super) const UID: u32 = 1 << 1;
pub(super) const GID: u32 = 1 << 2;
pub(crate) const SIZE: u32 = 1 << 3;
pub(super) const ATIME: u32 = 1 << 4;
pub(super) const MTIME: u32 = 1 << 5;
const ATIME_NOW: u32 = 1 << 6;
const MTIME_NOW: u32 = 1 << 7;
const LAYOUT: u32 = 1 << 8;
const KILL_PRIVILEGES: u32 = 1 << 9;
/// The access time is of a read, sent late: the change time stays.
const OF_A_READ: u32 = 1 << 10;
const ALL: u32 = (1 << 11) - 1;

impl Namespace {
    pub(crate) fn setattr(&mut self, context: &Context<'_>, bytes: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let request = request::Setattr::decode(bytes)?;
        let mut inode = self.check_setattr(&request, context)?;
        if request.valid == 0 {
            put_attributes_response(out, request.inode, &inode);
            return Ok(());
        }
        if request.valid & SIZE != 0 {
            if inode.lease.is_some() && self.has_extents(request.inode, &inode, request.size, inode.size)? {
                self.check_lease(request.inode, &inode, context.session, request.lease)?;
            }
            self.set_size(request.inode, &mut inode, request.size)?;
            inode.mode = mode_after_write(&inode, &context.who);
            inode.mtime = context.now;
            inode.note_written();
        }
        if request.valid & KILL_PRIVILEGES != 0 {
            inode.mode = killed_privileges(&inode);
        }
        set_owner_and_mode(&request, &mut inode, context);
        if request.valid & MODE != 0 {
            self.chmod_acl(request.inode, &inode)?;
        }
        if request.valid & (SIZE | UID | GID | KILL_PRIVILEGES) != 0 {
            self.drop_capability(request.inode, &inode);
        }
        set_times(&request, &mut inode, context.now);
        if request.valid & LAYOUT != 0 {
            inode.layout = layout_or(request.layout, inode.layout, self.level)?;
        }
        if request.valid & OF_A_READ == 0 {
            inode.touch(context.now);
        } else {
            inode.generation += 1;
        }
        self.put_inode(request.inode, &inode);
        if inode.shards > 0 && concerns_shards(&request) {
            self.change_shards(request.inode, &inode, request.valid & (MTIME | MTIME_NOW) != 0)?;
        }
        put_attributes_response(out, request.inode, &inode);
        Ok(())
    }

    /// Whether it may be done. The inode as it is.
    pub(super) fn check_setattr(&self, request: &request::Setattr, context: &Context<'_>) -> Result<Inode> {
        if request.valid & !ALL != 0 {
            return Err(OpError::new(ErrorCode::InvalidArgument, "unknown attributes are to be set"));
        }
        let inode = self.live_inode(request.inode)?;
        self.check_size(request, &inode, context)?;
        if request.valid & KILL_PRIVILEGES != 0 && inode.is_regular() && check_owner(&inode, &context.who).is_err() {
            self.check_writable(request.inode, &inode, context)?;
        }
        check_owner_change(request, &inode, context)?;
        if request.valid & MODE != 0 {
            check_owner(&inode, &context.who)?;
            if inode.is_symlink() {
                return Err(OpError::new(ErrorCode::InvalidArgument, "the mode of a symbolic link cannot be changed"));
            }
        }
        let may_write = self.allows(request.inode, &inode, &context.who, WRITE);
        check_times(request, &inode, may_write, context)?;
        check_layout(request, &inode, context, self.level)?;
        if concerns_shards(request) {
            self.check_shards(request.inode, &inode)?;
        }
        Ok(inode)
    }

    fn check_size(&self, request: &request::Setattr, inode: &Inode, context: &Context<'_>) -> Result<()> {
        if request.valid & SIZE == 0 {
            return Ok(());
        }
        if inode.is_dir() {
            return Err(OpError::IS_DIRECTORY);
        }
        if !inode.is_regular() {
            return Err(OpError::new(ErrorCode::InvalidArgument, "only regular files have a size to set"));
        }
        self.check_writable(request.inode, inode, context)?;
        if request.size > FILE_SIZE_MAX { Err(OpError::FILE_TOO_LARGE) } else { Ok(()) }
    }

    /// Permission to write to a file: by its mode, or because the session opened it when that allowed it.
    pub(crate) fn check_writable(&self, id: u64, inode: &Inode, context: &Context<'_>) -> Result<()> {
        if self.allows(id, inode, &context.who, WRITE) || self.may_write_by_hold(context.session, id) {
            Ok(())
        } else {
            Err(OpError::WRITE_DENIED)
        }
    }

    /// Cuts a regular file, or lengthens it by a hole.
    pub(crate) fn set_size(&mut self, id: u64, inode: &mut Inode, size: u64) -> Result<()> {
        if inode.stored > 0 {
            match size < inode.size {
                true => self.cut_off(id, inode, size)?,
                false => self.clear_stale(id, inode, size)?,
            }
        }
        self.counters.file_bytes = self.counters.file_bytes - inode.size + size;
        inode.size = size;
        inode.data_version += 1;
        self.trim_volatile(id, inode);
        Ok(())
    }
}

/// Whether the shards of a directory have to follow; not if it was only read.
pub(crate) const fn concerns_shards(request: &request::Setattr) -> bool {
    request.valid & OF_A_READ == 0
}

fn check_owner_change(request: &request::Setattr, inode: &Inode, context: &Context<'_>) -> Result<()> {
    let who = &context.who;
    if who.is_root() {
        return Ok(());
    }
    if request.valid & UID != 0 && (who.uid != inode.uid || request.uid != inode.uid) {
        return Err(OpError::NOT_ROOT);
    }
    let may_give = who.uid == inode.uid && (request.gid == inode.gid || who.in_group(request.gid));
    if request.valid & GID != 0 && !may_give {
        return Err(OpError::new(
            ErrorCode::NotPermitted,
            "only the owner may change the group, and only to one of his own",
        ));
    }
    Ok(())
}

/// Setting both times to now takes the right to write; anything else takes the owner. Along with a new size, "now" says
/// nothing that the size does not say.
fn check_times(request: &request::Setattr, inode: &Inode, may_write: bool, context: &Context<'_>) -> Result<()> {
    let now = request.valid & (ATIME_NOW | MTIME_NOW);
    let explicit =
        (request.valid & ATIME != 0 && now & ATIME_NOW == 0) || (request.valid & MTIME != 0 && now & MTIME_NOW == 0);
    if explicit {
        return check_owner(inode, &context.who);
    }
    if now == 0 || request.valid & SIZE != 0 {
        return Ok(());
    }
    if now != ATIME_NOW | MTIME_NOW {
        return check_owner(inode, &context.who);
    }
    if check_owner(inode, &context.who).is_ok() || may_write { Ok(()) } else { Err(OpError::WRITE_DENIED) }
}

fn check_layout(request: &request::Setattr, inode: &Inode, context: &Context<'_>, level: u16) -> Result<()> {
    if request.valid & LAYOUT == 0 {
        return Ok(());
    }
    check_owner(inode, &context.who)?;
    if request.layout == 0 {
        return Err(OpError::new(ErrorCode::BadLayout, "a layout has a scheme"));
    }
    layout_or(request.layout, 0, level)?;
    let is_empty_file = inode.is_regular() && inode.size == 0 && inode.stored == 0;
    if inode.is_dir() || is_empty_file {
        Ok(())
    } else {
        Err(OpError::new(ErrorCode::BadLayout, "the layout of a file with contents is fixed; copy the file"))
    }
}

/// A change of owner takes setuid and setgid away from what is not a directory, unless the request sets the mode.
fn set_owner_and_mode(request: &request::Setattr, inode: &mut Inode, context: &Context<'_>) {
    if request.valid & (UID | GID) != 0 && !inode.is_dir() {
        inode.mode = without_privileges(inode, &context.who);
    }
    if request.valid & UID != 0 {
        inode.uid = request.uid;
    }
    if request.valid & GID != 0 {
        inode.gid = request.gid;
    }
    if request.valid & MODE != 0 {
        let mut permissions = request.mode as u16 & 0o7777;
        if !context.who.is_root() && !context.who.in_group(inode.gid) {
            permissions &= !SETGID;
        }
        inode.mode = inode.mode & !0o7777 | permissions;
    }
}

fn set_times(request: &request::Setattr, inode: &mut Inode, now: u64) {
    if request.valid & ATIME_NOW != 0 {
        inode.atime = now;
    } else if request.valid & ATIME != 0 {
        inode.atime = request.atime_ns;
    }
    if request.valid & MTIME_NOW != 0 {
        inode.mtime = now;
    } else if request.valid & MTIME != 0 {
        inode.mtime = request.mtime_ns;
    }
}
