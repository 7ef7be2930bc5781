//! Hold and Release: a session keeps an inode open. While any session does, an inode that lost its last name stays.
//!
//! A hold is per session, not counted: a client that opens a file twice holds it once and releases it at the last
//! close. Opening for writing is checked here, once; later changes of the mode do not matter, as in POSIX.
use crate::error::{OpError, Result};
use crate::message::request;
use crate::message::writer::put_attributes_response;
use crate::namespace::{Context, Namespace};
use crate::permission::{EXEC, READ, WRITE};
use cairn_types::ErrorCode;

/// Inodes of one Release.
const RELEASES_MAX: usize = 256;

impl Namespace {
    pub(crate) fn hold(&mut self, context: &Context<'_>, bytes: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let request = request::Hold::decode(bytes)?;
        let inode = self.live_inode(request.inode)?;
        if request.write && inode.is_dir() {
            return Err(OpError::IS_DIRECTORY);
        }
        let who = &context.who;
        let allowed = if request.write {
            self.allows(request.inode, &inode, who, WRITE)
        } else {
            self.allows(request.inode, &inode, who, READ) || self.allows(request.inode, &inode, who, EXEC)
        };
        let holds_already = self.hold_of(context.session, request.inode);
        if !allowed && !holds_already.is_some_and(|hold| hold.write || !request.write) {
            return Err(OpError::ACCESS_DENIED);
        }
        self.add_hold(context.session, request.inode, request.write);
        put_attributes_response(out, request.inode, &inode);
        Ok(())
    }

    /// Releasing what is not held is no error: a repeat after a lost answer finds it done.
    pub(crate) fn release(&mut self, context: &Context<'_>, bytes: &[u8]) -> Result<()> {
        let request = request::Release::decode(bytes)?;
        let mut inodes = vec![request.inode];
        request.also.visit(|inode| {
            inodes.push(inode);
            inodes.len() <= RELEASES_MAX
        })?;
        if inodes.len() > RELEASES_MAX {
            return Err(OpError::new(ErrorCode::InvalidArgument, "at most 256 inodes in one request"));
        }
        if inodes.iter().any(|inode| self.is_foreign(*inode)) {
            return Err(OpError::ELSEWHERE);
        }
        // Its holder would not know of it.
        if let Some(led) = inodes.iter().find(|inode| self.delegations.hides(**inode)) {
            return Err(self.refuse_delegated(*led));
        }
        for inode in inodes {
            self.remove_hold(context.session, inode)?;
        }
        Ok(())
    }
}
