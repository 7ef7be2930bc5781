//! Lookup: the attributes behind a name. `.` and `..` are answered too.
use crate::encoding::Inode;
use crate::error::{OpError, Result};
use crate::inode_table::check_entry_name;
use crate::message::request::{self, Who};
use crate::message::writer::put_attributes_response;
use crate::namespace::Namespace;

impl Namespace {
    pub(crate) fn lookup(&self, who: &Who<'_>, bytes: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let request = request::Lookup::decode(bytes)?;
        if !matches!(request.name, b"." | b"..") {
            check_entry_name(request.name)?;
        }
        // Whoever has the directory by a name that he knows looks that up again.
        let removed = |error| if error == OpError::REMOVED { OpError::STALE } else { error };
        let directory = self.searchable(request.parent, who).map_err(removed)?;
        let (id, inode) = self.step(request.parent, &directory, request.name)?.ok_or(OpError::NOT_FOUND)?;
        put_attributes_response(out, id, &inode);
        Ok(())
    }

    /// The inode behind a name in a directory.
    #[inline]
    pub(crate) fn step(&self, id: u64, directory: &Inode, name: &[u8]) -> Result<Option<(u64, Inode)>> {
        let next = match name {
            b"." => return Ok(Some((id, *directory))),
            b".." => directory.parent,
            _ => match self.dentry(id, name)? {
                Some(dentry) => dentry.inode,
                None => return Ok(None),
            },
        };
        Ok(Some((next, self.inode(next)?)))
    }
}
