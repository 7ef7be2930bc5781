//! ReclaimEntry: takes an entry out of a removed directory whose inode another partition has: decided there like any
//! operation across partitions, for the leader and not for a session. Also one whose inode was locked when the
//! directory was taken apart, and a bucket of the trash that is over and that another partition has.
//!
//! What the entry names dies where it is: a directory with all that is below it, a file with its last name. Repeated it
//! does nothing.
use crate::encoding::{Dentry, Inode};
use crate::error::{OpError, Result};
use crate::inode_table::check_entry_name;
use crate::message::request;
use crate::namespace::Namespace;
use cairn_types::ErrorCode;
use cairn_types::shard::is_shard_name;

const NOT_REMOVED: OpError = OpError::new(
    ErrorCode::NotPermitted,
    "the directory was not removed, and the entry is not one of the trash that is over",
);

impl Namespace {
    pub(crate) fn reclaim_entry(&mut self, bytes: &[u8]) -> Result<()> {
        let request = request::ReclaimEntry::decode(bytes)?;
        let (id, name) = (request.directory, request.name);
        let Some((mut directory, dentry)) = self.entry_to_reclaim(id, name)? else {
            self.forget_waiting(id, name);
            return Ok(());
        };
        self.inode(id)?;
        let is_there = match self.inode(dentry.inode) {
            Ok(_) => true,
            Err(OpError::STALE) => false,
            Err(error) => return Err(error),
        };
        self.forget_waiting(id, name);
        self.remove_dentry(id, name);
        if is_there {
            self.unlink_dead_entry(dentry)?;
        }
        directory.size -= 1;
        if directory.nlink > 0 {
            directory.nlink -= u32::from(dentry.is_dir());
            directory.touch_contents(self.time);
        } else if directory.size == 0 && self.is_waiting_directory(id) {
            return self.end_dead_directory(id, &directory);
        }
        self.put_inode(id, &directory);
        Ok(())
    }

    /// The entry and its directory, if it is one to be taken out; nothing if it is not there any more.
    pub(crate) fn entry_to_reclaim(&self, id: u64, name: &[u8]) -> Result<Option<(Inode, Dentry)>> {
        if !is_shard_name(name) {
            check_entry_name(name)?;
        }
        let directory = match self.stored_inode(id) {
            Ok(directory) if directory.is_dir() => directory,
            Ok(_) | Err(OpError::STALE) => return Ok(None),
            Err(OpError::FOREIGN) => return Err(OpError::ELSEWHERE),
            Err(error) => return Err(error),
        };
        let Some(dentry) = self.dentry(id, name)? else { return Ok(None) };
        if self.is_removed(&directory) {
            return Ok(Some((directory, dentry)));
        }
        match self.waiting_inode(id, name) {
            Some(noted) if noted == dentry.inode => Ok(Some((directory, dentry))),
            // Somebody has put something else there.
            Some(_) => Ok(None),
            None => Err(NOT_REMOVED),
        }
    }
}
