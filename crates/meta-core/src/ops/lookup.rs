//! Lookup: the attributes behind a name. `.` and `..` are answered too. Of an inode of another partition only id and
//! type are answered: the rest is asked for there. So of one that a session leads.
use crate::encoding::{Inode, NodeType};
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
        let led = self.led_entry(request.parent, request.name)?;
        let found = if led.is_some() { led } else { self.step(request.parent, &directory, request.name)? };
        let (id, inode) = found.ok_or(OpError::NOT_FOUND)?;
        put_attributes_response(out, id, &inode);
        Ok(())
    }

    /// What is at a name, if a session leads it: to others nothing but its type is told, and that recalls nothing.
    #[inline]
    fn led_entry(&self, directory: u64, name: &[u8]) -> Result<Option<(u64, Inode)>> {
        if !self.has_delegations() {
            return Ok(None);
        }
        let led = self.dentry(directory, name)?.filter(|dentry| self.delegations.hides(dentry.inode));
        Ok(led.map(|dentry| (dentry.inode, of_type(dentry.d_type.into()))))
    }

    /// The inode behind a name in a directory.
    #[inline]
    pub(crate) fn step(&self, id: u64, directory: &Inode, name: &[u8]) -> Result<Option<(u64, Inode)>> {
        let (next, d_type) = match name {
            b"." => return Ok(Some((id, *directory))),
            b".." => (self.above_shards(directory.parent), NodeType::Directory as u16 >> 12),
            _ => match self.entry(id, directory, name) {
                Ok(Some(dentry)) => (dentry.inode, u16::from(dentry.d_type)),
                Ok(None) => return Ok(self.snapshots_entry(id, directory, name)),
                // What a directory's snapshots are is said by itself, never by one of its shards.
                Err(OpError::SHARDED) => {
                    return self.snapshots_entry(id, directory, name).map(Some).ok_or(OpError::SHARDED);
                }
                Err(error) => return Err(error),
            },
        };
        match self.inode(next) {
            // Another partition has it: nothing but its type is known here.
            Err(OpError::FOREIGN) => Ok(Some((next, of_type(d_type)))),
            found => found.map(|inode| Some((next, inode))),
        }
    }
}

/// An inode of which only the type is known.
const fn of_type(d_type: u16) -> Inode {
    Inode { mode: d_type << 12, ..Inode::at(0) }
}
