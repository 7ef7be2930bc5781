//! Open: permission, attributes and the first extents of an inode in one read, without a log entry.
//!
//! Of an entry whose inode another partition has, number and type are answered, and nothing is opened. What keeps the
//! inode alive afterwards is in `defer`. An inode without a name is opened only by a session that holds it: others were
//! told of its death already, or are not going to be.
use crate::encoding::Inode;
use crate::error::{OpError, Result};
use crate::inode_table::check_entry_name;
use crate::limits::PAGE_ENTRIES_MAX;
use crate::message::request::{self, Header};
use crate::message::writer::{put_attributes, put_extent, put_message, put_number};
use crate::namespace::Namespace;
use crate::permission::WRITE;
use crate::stripe_set::set_of;
use crate::view::{READ_ONLY, is_apart};
use cairn_types::ErrorCode;

impl Namespace {
    pub(crate) fn open(&self, header: &Header<'_>, bytes: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let request = request::Open::decode(bytes)?;
        let (id, inode) = match request.inode {
            0 => self.open_entry(&request, header)?,
            id => (id, self.routed(id)?),
        };
        if is_apart(id) && self.has_views() {
            return self.open_listing(id, &header.who, out);
        }
        self.open_found(header, (id, inode), &request, out)
    }

    pub(crate) fn open_found(
        &self,
        header: &Header<'_>,
        (id, inode): (u64, Inode),
        request: &request::Open<'_>,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let access = match u16::try_from(request.access) {
            Ok(access @ 0..=7) => access,
            _ => return Err(OpError::new(ErrorCode::InvalidArgument, "access has more than the bits r, w, x")),
        };
        if self.is_foreign(id) {
            // As for a lookup: it is opened at its own partition, which asks whether it may be.
            put_attributes(out, 1, id, &inode);
            put_number(out, 5, self.death_position());
            return Ok(());
        }
        let hold = self.hold_of(header.session, id);
        if inode.nlink == 0 && hold.is_none() {
            return Err(OpError::STALE);
        }
        if self.is_view && access & WRITE != 0 {
            return Err(READ_ONLY);
        }
        if !self.allows(id, &inode, &header.who, access) {
            return Err(OpError::ACCESS_DENIED);
        }
        put_attributes(out, 1, id, &inode);
        if inode.is_regular() && request.extents_max > 0 {
            self.put_open_extents(id, &inode, request.extents_max.min(PAGE_ENTRIES_MAX), out)?;
        }
        put_number(out, 5, self.death_position());
        Ok(())
    }

    fn open_entry(&self, request: &request::Open<'_>, header: &Header<'_>) -> Result<(u64, Inode)> {
        check_entry_name(request.name)?;
        let directory = self.searchable(request.parent, &header.who)?;
        self.step(request.parent, &directory, request.name)?.ok_or(OpError::NOT_FOUND)
    }

    fn put_open_extents(&self, id: u64, inode: &Inode, max: u32, out: &mut Vec<u8>) -> Result<()> {
        let (mut count, mut is_end, mut sets) = (0, true, Vec::new());
        if inode.stored > 0 {
            self.visit_extents(id, 0, inode.size, |extent| {
                if count == max {
                    is_end = false;
                    return false;
                }
                let extent = self.within(extent, inode);
                put_message(out, 2, |out| put_extent(out, &extent));
                sets.extend(set_of(&extent).filter(|set| sets.last() != Some(set)));
                count += 1;
                true
            })?;
        }
        self.answer_sets(id, 3, sets, out)?;
        put_number(out, 4, u64::from(is_end));
        Ok(())
    }
}
