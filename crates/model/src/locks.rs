//! fcntl(2) and flock(2): who has locked which byte. Small files only: bytes up to [`LOCK_BYTES`].
use crate::state::{Model, Request};
use cairn_types::ErrorCode;

/// Bytes that can be locked.
pub const LOCK_BYTES: u64 = 12;

/// What to lock, and how: `write` none takes the lock back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SetLock {
    pub inode: u64,
    pub owner: u64,
    pub flock: bool,
    pub write: Option<bool>,
    pub start: u64,
    pub end: u64,
}

/// Session, owner.
pub type LockOwner = (u64, u64);

impl Model {
    pub(crate) fn set_lock(&mut self, request: &Request, lock: &SetLock) -> Result<(), ErrorCode> {
        if lock.start > lock.end {
            return Err(ErrorCode::InvalidArgument);
        }
        self.existing(lock.inode)?;
        let me = (request.session, lock.owner);
        let bytes = lock.start..=lock.end;
        if let Some(write) = lock.write {
            for byte in bytes.clone() {
                let others = self.locks.get(&(lock.inode, lock.flock, byte)).into_iter().flatten();
                if others.into_iter().any(|(other, writes)| *other != me && (write || *writes)) {
                    return Err(ErrorCode::Locked);
                }
            }
        }
        for byte in bytes {
            let owners = self.locks.entry((lock.inode, lock.flock, byte)).or_default();
            match lock.write {
                Some(write) => owners.insert(me, write),
                None => owners.remove(&me),
            };
        }
        Ok(())
    }
}
