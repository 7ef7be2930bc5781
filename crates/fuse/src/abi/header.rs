//! Headers of requests and answers.
use super::sizes;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Before every request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct InHeader {
    /// Of the whole request with this header.
    pub len: u32,
    pub opcode: u32,
    /// Number of the request, even; with [`UNIQUE_RESEND`] if another process may have seen it before.
    pub unique: u64,
    pub nodeid: u64,
    pub uid: u32,
    pub gid: u32,
    /// Thread that asks, 0 if it is in a process namespace that the mount does not see.
    pub pid: u32,
    /// Length of extensions at the end, in units of 8 bytes.
    pub total_extlen: u16,
    pub padding: u16,
}

/// Before every answer. With `unique` 0 it is a notification, and `error` its code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct OutHeader {
    pub len: u32,
    /// 0 or a negative errno.
    pub error: i32,
    pub unique: u64,
}

sizes!(InHeader = 40, OutHeader = 16);

/// In `unique`: the request was handed out before, and whoever had it died (Linux 6.9).
pub const UNIQUE_RESEND: u64 = 1 << 63;
/// Smallest buffer that the kernel hands requests into.
pub const READ_BUFFER_MIN: usize = 8192;
