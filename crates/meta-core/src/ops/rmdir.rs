//! Rmdir: removes an empty directory. That of the top of a delegation by its holder, who has stored all, ends it.
use crate::encoding::DelegationRecord;
use crate::error::{OpError, Result};
use crate::inode_table::check_entry_name;
use crate::message::request;
use crate::namespace::{Context, Namespace};

impl Namespace {
    pub(crate) fn rmdir(&mut self, context: &Context<'_>, bytes: &[u8]) -> Result<()> {
        let request = request::Rmdir::decode(bytes)?;
        let Some((top, record)) = self.uncover_own_top(&request, context.session) else {
            return self.remove_directory(context, &request);
        };
        let removed = self.remove_directory(context, &request);
        match removed {
            Ok(()) => self.end_delegation(top),
            Err(_) => self.cover(top, record),
        }
        removed
    }

    /// What is named, if the session that asks leads it.
    #[inline]
    fn uncover_own_top(&mut self, request: &request::Rmdir<'_>, session: u64) -> Option<(u64, DelegationRecord)> {
        if !self.has_delegations() || self.delegations.acting().is_some() {
            return None;
        }
        // What is wrong with the name is said later on; a key has no room for a longer one.
        check_entry_name(request.name).ok()?;
        let top = self.dentry(request.parent, request.name).ok()??.inode;
        Some((top, self.uncover(top, session)?))
    }

    fn remove_directory(&mut self, context: &Context<'_>, request: &request::Rmdir<'_>) -> Result<()> {
        let (mut directory, dentry, mut victim) = self.victim(request.parent, request.name, context)?;
        if !victim.is_dir() {
            return Err(OpError::NOT_DIRECTORY);
        }
        self.check_empty(dentry.inode, &victim)?;
        self.remove_dentry(request.parent, request.name);
        self.remove_shards(dentry.inode, &mut victim, context.now)?;
        victim.nlink = 0;
        victim.parent = 0;
        victim.touch(context.now);
        self.put_or_bury(dentry.inode, &victim)?;
        directory.size -= 1;
        directory.nlink -= 1;
        directory.touch_contents(context.now);
        self.update_directory(request.parent, &directory);
        Ok(())
    }
}
