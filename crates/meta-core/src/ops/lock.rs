//! SetLock and GetLock: locks on ranges, and who is in the way. Whoever has the file open may lock it; for what it is
//! open is the client's to check. Whether he could have opened it is looked at by who leads, before it is logged.
use crate::error::{OpError, Result};
use crate::locks::{Owner, check_range};
use crate::message::request::{self, Header};
use crate::message::writer::put_number;
use crate::namespace::{Context, Namespace};
use crate::permission::{READ, WRITE};
use cairn_types::ErrorCode;
use cairn_wire::error::WireError;

impl Namespace {
    /// Whether somebody asks for a lock of a file that he can neither read nor write, does not own, and has not open.
    /// What is wrong otherwise is said when it is done.
    pub fn refuses_lock(&self, message: &[u8]) -> Option<WireError> {
        let header = Header::find(message).ok()?;
        let request = request::SetLock::decode(message).ok()?;
        let (_, change) = check_range(request.kind, request.lock_type, request.start, request.end, request.pid).ok()?;
        change.write?;
        let (inode, who) = (self.live_inode(request.inode).ok()?, &header.who);
        let allowed = who.uid == inode.uid
            || self.allows(request.inode, &inode, who, READ)
            || self.allows(request.inode, &inode, who, WRITE)
            || self.hold_of(header.session, request.inode).is_some();
        (!allowed).then(|| OpError::ACCESS_DENIED.to_wire())
    }
    pub(crate) fn set_lock(&mut self, context: &Context<'_>, bytes: &[u8]) -> Result<()> {
        let request = request::SetLock::decode(bytes)?;
        let (kind, change) = check_range(request.kind, request.lock_type, request.start, request.end, request.pid)?;
        self.live_inode(request.inode)?;
        self.change_lock(request.inode, Owner { kind, session: context.session, owner: request.owner }, &change)
    }

    pub(crate) fn get_lock(&self, header: &Header<'_>, bytes: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let request = request::GetLock::decode(bytes)?;
        let (kind, change) = check_range(request.kind, request.lock_type, request.start, request.end, 0)?;
        if change.write.is_none() {
            return Err(OpError::new(ErrorCode::InvalidArgument, "nothing is in the way of an unlock"));
        }
        self.live_inode(request.inode)?;
        let owner = Owner { kind, session: header.session, owner: request.owner };
        if let Some((other, lock)) = self.lock_conflict(request.inode, owner, &change)? {
            put_number(out, 1, if lock.write { 2 } else { 1 });
            put_number(out, 2, lock.start);
            put_number(out, 3, lock.end);
            put_number(out, 4, u64::from(lock.pid));
            put_number(out, 5, other.session);
            put_number(out, 6, other.owner);
        }
        Ok(())
    }

    /// WaitLock: whether the lock is free at this moment. Parking whoever has to wait is the server's.
    pub(crate) fn wait_lock(&self, header: &Header<'_>, bytes: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let request = request::GetLock::decode(bytes)?;
        let (kind, change) = check_range(request.kind, request.lock_type, request.start, request.end, 0)?;
        self.live_inode(request.inode)?;
        let owner = Owner { kind, session: header.session, owner: request.owner };
        let free = self.lock_conflict(request.inode, owner, &change)?.is_none();
        put_number(out, 1, u64::from(free));
        Ok(())
    }
}
