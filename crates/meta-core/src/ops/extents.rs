//! GetExtents: the extents that overlap a range of a file, in pages. Permission: r or x by the mode, ownership, or
//! that the session holds the file open.
use crate::error::{OpError, Result};
use crate::limits::PAGE_ENTRIES_MAX;
use crate::message::request::{self, Header};
use crate::message::writer::{put_extent, put_message, put_number};
use crate::namespace::Namespace;
use crate::permission::{EXEC, READ, check_owner};
use crate::stripe_set::set_of;
use cairn_types::ErrorCode;

impl Namespace {
    pub(crate) fn get_extents(&self, header: &Header<'_>, bytes: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let request = request::GetExtents::decode(bytes)?;
        let inode = self.live_inode(request.inode)?;
        if inode.is_dir() {
            return Err(OpError::IS_DIRECTORY);
        }
        if !inode.is_regular() {
            return Err(OpError::new(ErrorCode::InvalidArgument, "only regular files have contents"));
        }
        let may_read = self.allows(request.inode, &inode, &header.who, READ)
            || self.allows(request.inode, &inode, &header.who, EXEC)
            || check_owner(&inode, &header.who).is_ok()
            || self.hold_of(header.session, request.inode).is_some();
        if !may_read {
            return Err(OpError::READ_DENIED);
        }
        let count_max = match request.count_max {
            0 => PAGE_ENTRIES_MAX,
            count => count.min(PAGE_ENTRIES_MAX),
        };
        // Length 0 asks for all to the end. What may be behind it is being freed.
        let to = if request.length == 0 { u64::MAX } else { request.offset.saturating_add(request.length) };
        let to = to.min(inode.size);
        let (mut count, mut is_end) = (0, true);
        let mut sets = Vec::new();
        self.visit_extents(request.inode, request.offset, to, |extent| {
            let extent = self.within(extent, &inode);
            let parts = if request.shared_now { self.shared_now(extent) } else { vec![extent] };
            // A page may have ended within this extent.
            for part in parts.iter().filter(|part| part.end() > request.offset) {
                if count == count_max {
                    is_end = false;
                    return false;
                }
                put_message(out, 1, |out| put_extent(out, part));
                // A long run of extents of one set names it once.
                sets.extend(set_of(part).filter(|set| sets.last() != Some(set)));
                count += 1;
            }
            true
        })?;
        put_number(out, 2, u64::from(is_end));
        put_number(out, 3, inode.size);
        put_number(out, 4, inode.data_version);
        self.answer_sets(request.inode, 5, sets, out)
    }
}
