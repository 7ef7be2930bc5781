//! Publish: puts extents, whose bytes are durable, in place of what the file has in their ranges.
//!
//! All or nothing. With `if_data_version` only if nobody changed the contents since. The writing session has the right
//! to write by the file's mode, or because it opened the file when the mode gave it. A conversion to another layout is
//! a publish of the same bytes in other places: for the owner, only on top of the version that it read. To the layout
//! that the file has it is a move (compaction), which changes no time either; so is one to another stage of its layout.
//! What a session published before it was durable (`volatile`) it moves by itself, if it had to write it elsewhere.
use crate::encoding::Inode;
use crate::error::{OpError, Result};
use crate::extent_map::check_incoming;
use crate::inode_table::known_layout;
use crate::limits::FILE_SIZE_MAX;
use crate::message::request;
use crate::message::writer::put_attributes_response;
use crate::namespace::{Context, Namespace};
use crate::permission::{check_owner, killed_privileges, mode_after_write};
use crate::volatile::{VOLATILE, VOLATILE_MOVED};
use crate::writer_session::check_writer;
use cairn_types::{ErrorCode, Layout};

impl Namespace {
    /// `volatile`: it came as `PublishVolatile`.
    pub(crate) fn publish(
        &mut self,
        context: &Context<'_>,
        bytes: &[u8],
        out: &mut Vec<u8>,
        volatile: bool,
    ) -> Result<()> {
        let request = request::Publish::decode(bytes)?;
        if volatile != (request.durability != 0) {
            return Err(OpError::new(ErrorCode::InvalidArgument, "the operation does not go with that durability"));
        }
        check_incoming(&request.extents, self.level, &mut self.scratch.incoming)?;
        check_writer(request.written_by, !request.extents.is_empty, context)?;
        if request.size > FILE_SIZE_MAX {
            return Err(OpError::FILE_TOO_LARGE);
        }
        let end = self.scratch.incoming.last().map_or(0, |extent| extent.end());
        if request.set_size && end > request.size {
            return Err(OpError::new(ErrorCode::InvalidArgument, "an extent goes beyond the size that is set"));
        }
        let own_move = request.durability == VOLATILE_MOVED;
        let mut inode = match own_move {
            // Whoever wrote the bytes may have let go of the file since.
            true => self.volatile_of(request.inode, context.session)?,
            false => self.writable_file(request.inode, context)?,
        };
        let other_version = request.if_data_version != 0 && request.if_data_version != inode.data_version;
        if other_version || (request.check_size && request.if_size != inode.size) {
            return Err(OpError::CHANGED);
        }
        check_conversion(&request, &inode, context, self.level)?;
        self.check_volatile(&request, &inode, context)?;
        if inode.lease.is_some() && self.takes_extents_out(&request, &inode)? {
            // A conversion moves what it read: not even the holder of the lease may have changed it meanwhile.
            let number = if request.layout == 0 { request.lease } else { 0 };
            self.check_lease(request.inode, &inode, context.session, number)?;
        }
        self.check_sets(&request.sets, Some(request.inode))?;
        if request.layout == 0 && !own_move && !request.extents.is_empty {
            self.check_memory_left()?;
        }
        if self.has_quota(inode.quota) {
            self.check_quota(inode.quota, self.growth(request.inode, &inode)?, 0)?;
        }
        self.put_sets(request.inode);
        let size = if request.set_size { request.size } else { inode.size.max(request.size).max(end) };
        let version = inode.data_version;
        self.clear_stale(request.inode, &mut inode, size.max(end))?;
        if inode.stored == 0 {
            self.put_first_extents(request.inode);
            let gained: u64 = self.scratch.incoming.iter().map(|extent| extent.length).sum();
            self.gain_stored(&mut inode, gained);
        } else if !self.scratch.incoming.is_empty() {
            let change = self.replace_extents(request.inode)?;
            self.gain_stored(&mut inode, change.max(0).unsigned_abs());
            self.lose_stored(&mut inode, change.min(0).unsigned_abs());
        }
        self.set_size(request.inode, &mut inode, size)?;
        inode.data_version = version + 1;
        self.attributes_after(&request, &mut inode, context);
        if request.durability == VOLATILE {
            self.add_volatile(request.inode, &mut inode, context.session);
        }
        self.put_inode(request.inode, &inode);
        put_attributes_response(out, request.inode, &inode);
        Ok(())
    }
}

impl Namespace {
    /// Bytes that the file covers more with the checked extents in `scratch.incoming`.
    fn growth(&self, id: u64, inode: &Inode) -> Result<u64> {
        let mut growth: u64 = 0;
        for new in &self.scratch.incoming {
            growth += new.length;
            if inode.stored > 0 {
                self.visit_extents(id, new.file_offset, new.end(), |old| {
                    growth -= old.end().min(new.end()) - old.file_offset.max(new.file_offset);
                    true
                })?;
            }
        }
        Ok(growth)
    }

    /// Mode, layout and times of a file whose contents were published.
    fn attributes_after(&mut self, request: &request::Publish<'_>, inode: &mut Inode, context: &Context<'_>) {
        let own_move = request.durability == VOLATILE_MOVED;
        if request.layout == 0 && !own_move {
            inode.mode = mode_after_write(inode, &context.who);
        }
        if request.kill_privileges {
            inode.mode = killed_privileges(inode);
        }
        // The same bytes in other places and nothing else: nobody but readers of the places has to notice.
        let same = (request.layout ^ inode.layout) & !Layout::STAGE_BITS == 0;
        let is_move = own_move || request.layout != 0 && same && request.keep_mtime;
        if request.layout == 0 && !own_move {
            self.drop_capability(request.inode, inode);
        }
        let (mtime, ctime, layout) = (inode.mtime, inode.ctime, inode.layout);
        inode.touch_contents(context.now);
        match request.layout {
            0 if own_move => inode.layout = layout,
            0 => {}
            bits => self.set_layout(request.inode, inode, bits),
        }
        if is_move {
            inode.ctime = ctime;
        }
        if request.keep_mtime || own_move {
            inode.mtime = mtime;
        } else if request.mtime_ns != 0 {
            inode.mtime = request.mtime_ns;
        }
    }

    /// Whether the file names less of what it named before.
    fn takes_extents_out(&self, request: &request::Publish<'_>, inode: &Inode) -> Result<bool> {
        if request.layout != 0 || request.set_size && request.size < inode.size {
            return Ok(true);
        }
        for new in &self.scratch.incoming {
            if self.has_extents(request.inode, inode, new.file_offset, new.end())? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// A regular file that the caller may write: by its mode, or because the session opened it when that allowed it.
    pub(crate) fn writable_file(&self, id: u64, context: &Context<'_>) -> Result<Inode> {
        let inode = self.live_inode(id)?;
        if inode.is_dir() {
            return Err(OpError::IS_DIRECTORY);
        }
        if !inode.is_regular() {
            return Err(OpError::new(ErrorCode::InvalidArgument, "only regular files have contents"));
        }
        self.check_writable(id, &inode, context)?;
        Ok(inode)
    }
}

fn check_conversion(request: &request::Publish<'_>, inode: &Inode, context: &Context<'_>, level: u16) -> Result<()> {
    if request.layout == 0 {
        return Ok(());
    }
    known_layout(request.layout, level)?;
    if request.if_data_version == 0 {
        return Err(OpError::new(ErrorCode::InvalidArgument, "a change of layout names the version that was read"));
    }
    check_owner(inode, &context.who)
}
