//! What the mount tells the kernel by itself, and interrupts of requests.
use super::sizes;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct InvalInode {
    pub ino: u64,
    /// Negative: attributes only.
    pub off: i64,
    /// 0: to the end.
    pub len: i64,
}

/// Followed by the name and a zero byte.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct InvalEntry {
    pub parent: u64,
    pub namelen: u32,
    pub flags: u32,
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct InterruptIn {
    /// The request that is not wanted any more.
    pub unique: u64,
}

sizes!(InvalInode = 24, InvalEntry = 16, InterruptIn = 8);

pub const NOTIFY_INVAL_INODE: i32 = 2;
pub const NOTIFY_INVAL_ENTRY: i32 = 3;
/// Hand out again all that was handed out and not answered.
pub const NOTIFY_RESEND: i32 = 7;
