//! Link: a further name for a file, or the first one of a file made without a name. Directories have one name.
//!
//! With `replace` an existing entry gives way as in a rename.
use crate::encoding::Dentry;
use crate::error::{OpError, Result};
use crate::limits::LINKS_MAX;
use crate::message::request;
use crate::message::writer::put_attributes_response;
use crate::namespace::{Context, Namespace};
use crate::view::check_new_name;
use cairn_types::ErrorCode;

impl Namespace {
    pub(crate) fn link(&mut self, context: &Context<'_>, bytes: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let request = request::Link::decode(bytes)?;
        check_new_name(self, request.name)?;
        let inode = self.live_inode(request.inode);
        let mut inode = inode.map_err(|error| self.apart(error, request.parent))?;
        let mut directory = self.searchable(request.parent, &context.who)?;
        let there = self.entry(request.parent, &directory, request.name)?;
        if there.is_some() && !request.replace {
            return Err(OpError::EXISTS);
        }
        if there.is_some_and(|there| there.inode == request.inode) {
            put_attributes_response(out, request.inode, &inode);
            return Ok(());
        }
        let victim = match there {
            Some(there) => {
                let victim = self.inode(there.inode)?;
                self.check_delete(request.parent, &directory, &victim, &context.who)?;
                if victim.is_dir() {
                    return Err(OpError::IS_DIRECTORY);
                }
                if inode.volatile.is_some() {
                    return Err(OpError::VOLATILE);
                }
                Some((there.inode, victim))
            }
            None => {
                self.check_change(request.parent, &directory, &context.who)?;
                self.check_memory()?;
                None
            }
        };
        if inode.is_dir() {
            return Err(OpError::new(ErrorCode::NotPermitted, "a directory has one name"));
        }
        if inode.nlink == 0 && !inode.unnamed {
            return Err(OpError::new(ErrorCode::NotFound, "the file has lost its last name and gets no new one"));
        }
        if inode.nlink >= LINKS_MAX {
            return Err(OpError::TOO_MANY_LINKS);
        }
        if inode.unnamed {
            self.check_quota_move(request.inode, &inode, directory.quota)?;
            self.move_to_quota(request.inode, &mut inode, directory.quota);
        }
        inode.nlink += 1;
        inode.unnamed = false;
        inode.touch(context.now);
        self.put_dentry(request.parent, request.name, Dentry { inode: request.inode, d_type: inode.d_type() });
        self.put_inode(request.inode, &inode);
        if let Some((id, mut victim)) = victim {
            victim.nlink -= 1;
            victim.touch(context.now);
            self.put_or_bury(id, &victim)?;
        } else {
            directory.size += 1;
        }
        directory.touch_contents(context.now);
        self.update_directory(request.parent, &directory);
        put_attributes_response(out, request.inode, &inode);
        Ok(())
    }
}
