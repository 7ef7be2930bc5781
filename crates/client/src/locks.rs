//! Locks of files: what is asked for, and who is in the way.
use crate::malformed::Malformed;
use cairn_wire::meta::{GetLockRequest, GetLockResponse, MetaHeader, SetLockRequest, WaitLockRequest};

/// The end of a lock that goes on however long the file becomes.
pub const LOCK_TO_THE_END: u64 = i64::MAX as u64;

/// Locks of one family do not know of those of the other.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum LockFamily {
    /// Of ranges, by fcntl(2).
    #[default]
    Posix,
    /// Of whole files, by flock(2).
    Flock,
}

/// What a lock is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum LockMode {
    /// It is given back.
    #[default]
    Unlock,
    /// Shared.
    Read,
    /// Nobody else has one.
    Write,
}

/// A lock that is asked for or given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileLock {
    pub family: LockFamily,
    pub mode: LockMode,
    /// A number of the session's own.
    pub owner: u64,
    /// First byte.
    pub start: u64,
    /// Last byte; [`LOCK_TO_THE_END`].
    pub end: u64,
    /// Told to who asks what is in the way.
    pub pid: u32,
}

/// The first lock that is in the way of another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockHolder {
    pub mode: LockMode,
    pub start: u64,
    pub end: u64,
    pub pid: u32,
    /// Session of who has it.
    pub session: u64,
    pub owner: u64,
}

impl LockFamily {
    const fn code(self) -> u32 {
        match self {
            Self::Posix => 0,
            Self::Flock => 1,
        }
    }
}

impl LockMode {
    const fn code(self) -> u32 {
        match self {
            Self::Unlock => 0,
            Self::Read => 1,
            Self::Write => 2,
        }
    }
    fn of_wire(code: u32) -> Result<Self, Malformed> {
        match code {
            0 => Ok(Self::Unlock),
            1 => Ok(Self::Read),
            2 => Ok(Self::Write),
            code => Err(Malformed::UnknownCode { part: "lock", code: code.into() }),
        }
    }
}

impl FileLock {
    pub(crate) fn to_set(self, header: MetaHeader, inode: u64) -> SetLockRequest {
        let FileLock { owner, start, end, pid, .. } = self;
        let (kind, r#type) = (self.family.code(), self.mode.code());
        SetLockRequest { header: Some(header), inode, owner, kind, r#type, start, end, pid }
    }
    pub(crate) fn to_get(self, header: MetaHeader, inode: u64) -> GetLockRequest {
        let FileLock { owner, start, end, .. } = self;
        let (kind, r#type) = (self.family.code(), self.mode.code());
        GetLockRequest { header: Some(header), inode, owner, kind, r#type, start, end }
    }
    pub(crate) fn to_wait(self, header: MetaHeader, inode: u64, wait_ms: u32) -> WaitLockRequest {
        let FileLock { owner, start, end, .. } = self;
        let (kind, r#type) = (self.family.code(), self.mode.code());
        WaitLockRequest { header: Some(header), inode, owner, kind, r#type, start, end, wait_ms }
    }
}

impl LockHolder {
    /// `None`: nothing is in the way.
    pub(crate) fn of_wire(found: GetLockResponse) -> Result<Option<Self>, Malformed> {
        let GetLockResponse { r#type, start, end, pid, session, owner } = found;
        let mode = LockMode::of_wire(r#type)?;
        Ok((mode != LockMode::Unlock).then_some(Self { mode, start, end, pid, session, owner }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A lock for reading would be one for writing.
    #[test]
    fn a_holder_is_told_as_the_server_says() {
        let of = |code| GetLockResponse { r#type: code, pid: 5, ..Default::default() };
        assert_eq!(LockHolder::of_wire(of(0)), Ok(None));
        for mode in [LockMode::Read, LockMode::Write] {
            let found = LockHolder::of_wire(of(mode.code())).expect("known").expect("held");
            assert_eq!((found.mode, found.pid), (mode, 5));
        }
        assert!(LockHolder::of_wire(of(3)).is_err());
    }
}
