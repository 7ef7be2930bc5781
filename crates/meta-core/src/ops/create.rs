//! Create: a file, fifo, socket or device; on request with its contents, owner and times in one step.
//!
//! What happens with an existing entry: `exclusive` answers Exists. `replace` puts a new inode in the place of a
//! regular file, as a rename over it would. Otherwise the existing entry is answered, and held if asked for; contents
//! that were sent along would get lost, so then the answer is Exists.
use crate::acl::Inherited;
use crate::encoding::{Dentry, Inode, NodeType};
use crate::error::{OpError, Result};
use crate::extent_map::check_incoming;
use crate::inode_table::layout_or;
use crate::limits::FILE_SIZE_MAX;
use crate::message::request;
use crate::message::writer::put_attributes_response;
use crate::namespace::{Context, Namespace};
use crate::permission::{EXEC, READ, WRITE, inherit};
use crate::view::check_new_name;
use crate::writer_session::check_writer;
use cairn_types::ErrorCode;

impl Namespace {
    pub(crate) fn create(&mut self, context: &Context<'_>, bytes: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let request = request::Create::decode(bytes)?;
        check_new_name(self, request.name)?;
        let mode = self.check_create(&request, context)?;
        let mut directory = self.searchable(request.parent, &context.who)?;
        if directory.sharded {
            self.entry(request.parent, &directory, request.name)?;
        }
        let id = self.next_inode()?;
        let (gid, mode) = inherit(&directory, &context.who, mode);
        let inherited = self.inherit_acl(request.parent, &directory, mode, request.umask)?;
        let may_change = self.check_change(request.parent, &directory, &context.who);
        if may_change.is_ok() && (self.has_quota(directory.quota) || self.fullness.degree > 0) {
            let there = self.dentry(request.parent, request.name)?.is_some();
            let is_new = !there || (request.replace && !request.exclusive);
            if is_new {
                if there { self.check_memory_left()? } else { self.check_memory()? }
            }
            let bytes = self.scratch.incoming.iter().map(|extent| extent.length).sum();
            if is_new {
                self.check_quota(directory.quota, bytes, 1)?;
            }
        }
        let there = match may_change {
            // One descent finds out whether the name is free and takes it.
            Ok(()) => {
                let d_type = (mode >> 12) as u8;
                self.put_new_dentry(request.parent, request.name, Dentry { inode: id, d_type })?
            }
            Err(_) => self.dentry(request.parent, request.name)?,
        };
        if let Some(there) = there {
            if !request.replace || request.exclusive {
                return self.open_existing(&request, there, context, out);
            }
            self.replace_victim(request.parent, &directory, there, context)?;
            self.put_dentry(request.parent, request.name, Dentry { inode: id, d_type: (mode >> 12) as u8 });
        } else {
            may_change?;
            directory.size += 1;
        }
        let inode = self.new_file(&request, &directory, gid, &inherited, context);
        self.add_inode(id, &inode);
        self.put_inherited(id, &inherited, &inode);
        if !request.extents.is_empty {
            self.put_sets(id);
            self.put_first_extents(id);
        }
        directory.touch_contents(context.now);
        self.update_directory(request.parent, &directory);
        if request.hold {
            self.add_hold(context.session, id, true);
        }
        put_attributes_response(out, id, &inode);
        Ok(())
    }

    /// Everything about the request that does not depend on the tree. Leaves its extents in `scratch.incoming`.
    fn check_create(&mut self, request: &request::Create<'_>, context: &Context<'_>) -> Result<u16> {
        let permissions = request.mode as u16 & 0o7777;
        let node_type = match request.mode & !0o7777 {
            0 => NodeType::Regular,
            bits => {
                u16::try_from(bits).ok().and_then(NodeType::of_mode).filter(|t| *t != NodeType::Symlink).ok_or(
                    OpError::new(ErrorCode::InvalidArgument, "a create makes files, fifos, sockets and devices"),
                )?
            }
        };
        match node_type {
            NodeType::Directory => {
                return Err(OpError::new(ErrorCode::NotPermitted, "a create makes no directories; use mkdir"));
            }
            NodeType::CharDevice | NodeType::BlockDevice if !context.who.is_root() => return Err(OpError::NOT_ROOT),
            _ => {}
        }
        layout_or(request.layout, 0, self.level)?;
        if request.set_owner && !context.who.is_root() {
            let own = request.uid == context.who.uid && context.who.in_group(request.gid);
            if !own {
                return Err(OpError::NOT_ROOT);
            }
        }
        let has_contents = request.size > 0 || !request.extents.is_empty || request.replace;
        if has_contents && node_type != NodeType::Regular {
            return Err(OpError::new(ErrorCode::InvalidArgument, "only regular files have contents"));
        }
        if request.size > FILE_SIZE_MAX {
            return Err(OpError::FILE_TOO_LARGE);
        }
        check_incoming(&request.extents, self.level, &mut self.scratch.incoming)?;
        check_writer(request.written_by, !request.extents.is_empty, context)?;
        self.check_sets(&request.sets, None)?;
        Ok(node_type as u16 | permissions)
    }

    fn new_file(
        &self,
        request: &request::Create<'_>,
        directory: &Inode,
        gid: u32,
        inherited: &Inherited,
        context: &Context<'_>,
    ) -> Inode {
        let mode = inherited.mode;
        let mut inode = Inode {
            mode,
            nlink: 1,
            uid: context.who.uid,
            gid,
            // Looked at before.
            layout: layout_or(request.layout, directory.layout, self.level).unwrap_or(directory.layout),
            quota: directory.quota,
            ..Inode::at(context.now)
        };
        if request.set_owner {
            (inode.uid, inode.gid) = (request.uid, request.gid);
        }
        if matches!(NodeType::of_mode(mode), Some(NodeType::CharDevice | NodeType::BlockDevice)) {
            inode.rdev = request.rdev;
        }
        if request.mtime_ns != 0 {
            inode.mtime = request.mtime_ns;
            inode.atime = request.mtime_ns;
        }
        Self::note_inherited(inherited, &mut inode);
        let extents = if request.extents.is_empty { &[] } else { self.scratch.incoming.as_slice() };
        inode.stored = extents.iter().map(|extent| extent.length).sum();
        inode.size = extents.last().map_or(0, |extent| extent.end()).max(request.size);
        inode.data_version = 1;
        inode
    }

    /// Answers what is there already.
    fn open_existing(
        &mut self,
        request: &request::Create<'_>,
        there: Dentry,
        context: &Context<'_>,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        if request.exclusive || request.size > 0 || !request.extents.is_empty {
            return Err(OpError::EXISTS);
        }
        if there.is_dir() {
            return Err(OpError::IS_DIRECTORY);
        }
        let inode = self.inode(there.inode)?;
        if request.hold && !inode.is_symlink() {
            let write = self.allows(there.inode, &inode, &context.who, WRITE);
            let may = |mask| self.allows(there.inode, &inode, &context.who, mask);
            if !write && !may(READ) && !may(EXEC) {
                return Err(OpError::ACCESS_DENIED);
            }
            // One that another partition has is held there, by a request of its own.
            if !self.txs.is_guest(there.inode) {
                self.add_hold(context.session, there.inode, write);
            }
        }
        put_attributes_response(out, there.inode, &inode);
        Ok(())
    }

    /// Takes the name away from the regular file that is replaced.
    fn replace_victim(&mut self, parent: u64, directory: &Inode, there: Dentry, context: &Context<'_>) -> Result<()> {
        let mut victim = self.inode(there.inode)?;
        self.check_delete(parent, directory, &victim, &context.who)?;
        if victim.is_dir() {
            return Err(OpError::IS_DIRECTORY);
        }
        if !victim.is_regular() {
            return Err(OpError::EXISTS);
        }
        victim.nlink -= 1;
        victim.touch(context.now);
        self.put_or_bury(there.inode, &victim)
    }
}
