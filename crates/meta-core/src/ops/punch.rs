//! Punch: cuts a range out of a file, which reads as zeros from then on.
//!
//! Extents are cut to the byte; a block that is covered in part keeps its place in the chunk for the bytes around the
//! hole, a block that nothing in the file names any more is freed. With `extend` the size becomes at least the end of
//! the range, as zero-range without keep-size has it.
use crate::error::{OpError, Result};
use crate::limits::FILE_SIZE_MAX;
use crate::message::request;
use crate::message::writer::put_attributes_response;
use crate::namespace::{Context, Namespace};
use crate::permission::{killed_privileges, mode_after_write};
use cairn_types::ErrorCode;

impl Namespace {
    pub(crate) fn punch(&mut self, context: &Context<'_>, bytes: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let request = request::Punch::decode(bytes)?;
        if request.length == 0 {
            return Err(OpError::new(ErrorCode::InvalidArgument, "the range is empty"));
        }
        let end = request.offset.checked_add(request.length).filter(|end| *end <= FILE_SIZE_MAX);
        let end = end.ok_or(OpError::FILE_TOO_LARGE)?;
        let mut inode = self.writable_file(request.inode, context)?;
        if request.if_data_version != 0 && request.if_data_version != inode.data_version {
            return Err(OpError::CHANGED);
        }
        if inode.lease.is_some() && self.has_extents(request.inode, &inode, request.offset, end)? {
            self.check_lease(request.inode, &inode, context.session, request.lease)?;
        }
        if request.extend && end > inode.size {
            // Refused, if at all, before anything is changed.
            self.clear_stale(request.inode, &mut inode, end)?;
        }
        let lost = match end.min(inode.size) {
            to if request.offset < to && inode.stored > 0 => self.cut_range(request.inode, request.offset, to)?,
            _ => 0,
        };
        self.lose_stored(&mut inode, lost);
        if request.extend && end > inode.size {
            self.set_size(request.inode, &mut inode, end)?;
        } else {
            inode.data_version += 1;
        }
        inode.mode = mode_after_write(&inode, &context.who);
        if request.kill_privileges {
            inode.mode = killed_privileges(&inode);
        }
        self.drop_capability(request.inode, &inode);
        inode.touch_contents(context.now);
        self.put_inode(request.inode, &inode);
        put_attributes_response(out, request.inode, &inode);
        Ok(())
    }
}
