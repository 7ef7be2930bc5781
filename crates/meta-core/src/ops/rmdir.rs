//! Rmdir: removes an empty directory.
use crate::error::{OpError, Result};
use crate::message::request;
use crate::namespace::{Context, Namespace};

impl Namespace {
    pub(crate) fn rmdir(&mut self, context: &Context<'_>, bytes: &[u8]) -> Result<()> {
        let request = request::Rmdir::decode(bytes)?;
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
