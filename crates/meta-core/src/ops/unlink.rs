//! Unlink: takes a name away. Without a name and a holder the file goes, and its blocks become free records.
use crate::encoding::{Dentry, Inode};
use crate::error::{OpError, Result};
use crate::inode_table::check_entry_name;
use crate::message::request;
use crate::namespace::{Context, Namespace};

impl Namespace {
    pub(crate) fn unlink(&mut self, context: &Context<'_>, bytes: &[u8]) -> Result<()> {
        let request = request::Unlink::decode(bytes)?;
        let (mut directory, dentry, mut victim) = self.victim(request.parent, request.name, context)?;
        if victim.is_dir() {
            return Err(OpError::IS_DIRECTORY);
        }
        self.remove_dentry(request.parent, request.name);
        victim.nlink -= 1;
        victim.touch(context.now);
        self.put_or_bury(dentry.inode, &victim)?;
        directory.size -= 1;
        directory.touch_contents(context.now);
        self.update_directory(request.parent, &directory);
        Ok(())
    }

    /// An entry that `who` may remove, and its directory.
    pub(crate) fn victim(&self, parent: u64, name: &[u8], context: &Context<'_>) -> Result<(Inode, Dentry, Inode)> {
        check_entry_name(name)?;
        let directory = self.searchable(parent, &context.who)?;
        let dentry = self.entry(parent, &directory, name)?.ok_or(OpError::NOT_FOUND)?;
        let victim = self.inode(dentry.inode)?;
        self.check_delete(parent, &directory, &victim, &context.who)?;
        Ok((directory, dentry, victim))
    }
}
