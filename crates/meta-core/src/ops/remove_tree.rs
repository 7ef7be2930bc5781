//! RemoveTree: unlinks a directory with all that is below it, in one step for the caller. What was below is no longer
//! part of the tree from then on (its directories answer NotFound) and is reclaimed behind; files that are held live
//! on.
//!
//! While a session leads a directory below, it waits for the end of that.
//!
//! Permission: that of removing the entry, and the caller owns the directory or is root. Directories of others below it
//! go too, which removing entry by entry would refuse; who does not want that, or gets NotPermitted, removes entry by
//! entry.
use crate::error::{OpError, Result};
use crate::message::request;
use crate::namespace::{Context, Namespace};
use crate::permission::check_owner;

impl Namespace {
    pub(crate) fn remove_tree(&mut self, context: &Context<'_>, bytes: &[u8]) -> Result<()> {
        let request = request::RemoveTree::decode(bytes)?;
        let (mut directory, dentry, mut victim) = self.victim(request.parent, request.name, context)?;
        if !victim.is_dir() {
            return Err(OpError::NOT_DIRECTORY);
        }
        check_owner(&victim, &context.who)?;
        if self.has_delegation_below(dentry.inode) {
            return Err(OpError::DELEGATED);
        }
        self.remove_dentry(request.parent, request.name);
        victim.nlink = 0;
        victim.parent = 0;
        victim.touch(context.now);
        if victim.size == 0 {
            self.put_or_bury(dentry.inode, &victim)?;
        } else {
            self.put_inode(dentry.inode, &victim);
            self.list_dead(dentry.inode, &victim);
        }
        directory.size -= 1;
        directory.nlink -= 1;
        directory.touch_contents(context.now);
        self.update_directory(request.parent, &directory);
        Ok(())
    }
}
