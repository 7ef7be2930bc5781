//! Locks.
use super::sizes;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FileLock {
    pub start: u64,
    /// Included.
    pub end: u64,
    /// `F_RDLCK`, `F_WRLCK`, `F_UNLCK`.
    pub kind: u32,
    pub pid: u32,
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LkIn {
    pub fh: u64,
    pub owner: u64,
    pub lk: FileLock,
    pub lk_flags: u32,
    pub padding: u32,
}

sizes!(FileLock = 24, LkIn = 48);

/// flock(2), not fcntl(2).
pub const LK_FLOCK: u32 = 1;
