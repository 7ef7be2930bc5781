//! Readdir: a page of a directory in the order of names. `.` and `..` are not listed.
//!
//! The cookie of an entry is its name: a page starts behind that name whether it still exists or not, so entries that
//! come and go neither repeat nor hide others. A page costs what it holds, however large the directory is.
use crate::encoding::{Dentry, Inode};
use crate::error::{OpError, Result};
use crate::key::{self, Kind};
use crate::limits::{PAGE_ENTRIES_MAX, READDIR_BYTES_MAX};
use crate::message::request::{self, Who};
use crate::message::writer::{put_attributes, put_bytes, put_message, put_number};
use crate::namespace::Namespace;
use crate::permission::{EXEC, READ};
use cairn_types::ErrorCode;
use cairn_types::name::NAME_MAX;
use cairn_types::shard::is_shard_name;

impl Namespace {
    pub(crate) fn readdir(&self, who: &Who<'_>, bytes: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let request = request::Readdir::decode(bytes)?;
        if request.after.len() > NAME_MAX {
            return Err(OpError::new(ErrorCode::InvalidArgument, "not a cookie of this directory"));
        }
        let directory = self.directory(request.inode)?;
        if !self.allows(request.inode, &directory, who, READ) {
            return Err(OpError::READ_DENIED);
        }
        if request.shards {
            for (name, dentry) in self.list_shards(request.inode, &directory) {
                put_entry(out, &name, dentry, (None, false));
            }
            put_number(out, 2, 1);
            return Ok(());
        }
        // Names may be listed with r alone; what is behind them takes x.
        let with_attributes = request.attributes && self.allows(request.inode, &directory, who, EXEC);
        let count_max = match request.count_max {
            0 => PAGE_ENTRIES_MAX,
            count => count.min(PAGE_ENTRIES_MAX),
        };
        let prefix = key::prefix(request.inode, Kind::Dentry);
        let start = out.len();
        let mut cursor = self.tree.cursor();
        let after = key::dentry(request.inode, request.after);
        let mut found = cursor.seek(after.as_bytes());
        if found && !request.after.is_empty() && cursor.key() == after.as_bytes() {
            found = cursor.advance();
        }
        let mut count = 0;
        while found {
            let Some(name) = cursor.key().strip_prefix(prefix.as_bytes()) else { break };
            if is_shard_name(name) {
                found = cursor.advance();
                continue;
            }
            if count == count_max || out.len() - start > READDIR_BYTES_MAX {
                return Ok(());
            }
            let dentry = self.read_dentry(cursor.value())?;
            // Those of another partition are asked for there. Of one that a session leads nobody has asked yet.
            let here = with_attributes && self.is_own(dentry.inode) && !self.delegations.hides(dentry.inode);
            let inode = match here.then(|| self.inode(dentry.inode)) {
                // Who wants its attributes asks for them, and waits; nobody waits for the rest.
                None | Some(Err(OpError::LOCKED)) => None,
                Some(inode) => Some(inode?),
            };
            let has_none = inode.is_some() && !self.has_xattrs(dentry.inode);
            put_entry(out, name, dentry, (inode.as_ref(), has_none));
            count += 1;
            found = cursor.advance();
        }
        put_number(out, 2, 1);
        put_number(out, 3, if directory.sharded { directory.shards.into() } else { 0 });
        Ok(())
    }
}

/// With the inode, if it is to be told, and whether it is known to have no extended attributes.
pub(crate) fn put_entry(out: &mut Vec<u8>, name: &[u8], dentry: Dentry, (inode, no_xattrs): (Option<&Inode>, bool)) {
    put_message(out, 1, |out| {
        put_bytes(out, 1, name);
        put_number(out, 2, dentry.inode);
        put_number(out, 3, u64::from(dentry.d_type));
        if let Some(inode) = inode {
            put_attributes(out, 4, dentry.inode, inode);
        }
        put_bytes(out, 5, name);
        put_number(out, 6, u64::from(no_xattrs));
    });
}
