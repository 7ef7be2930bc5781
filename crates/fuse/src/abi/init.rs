//! The first request of a connection, and the features that are agreed on with it.
use super::sizes;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub const MAJOR: u32 = 7;
/// Newest minor version whose structures are those of this module.
pub const MINOR: u32 = 41;

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct InitIn {
    pub major: u32,
    pub minor: u32,
    pub max_readahead: u32,
    pub flags: u32,
    pub flags2: u32,
    pub unused: [u32; 11],
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct InitOut {
    pub major: u32,
    pub minor: u32,
    pub max_readahead: u32,
    pub flags: u32,
    pub max_background: u16,
    pub congestion_threshold: u16,
    pub max_write: u32,
    /// Granularity of times in ns.
    pub time_gran: u32,
    pub max_pages: u16,
    pub map_alignment: u16,
    pub flags2: u32,
    pub max_stack_depth: u32,
    pub request_timeout: u16,
    pub unused: [u16; 11],
}

sizes!(InitIn = 64, InitOut = 64);

/// Bytes of [`InitIn`] that the oldest kernels send.
pub const INIT_IN_MIN: usize = 16;

pub const ASYNC_READ: u64 = 1 << 0;
pub const POSIX_LOCKS: u64 = 1 << 1;
pub const EXPORT_SUPPORT: u64 = 1 << 4;
pub const BIG_WRITES: u64 = 1 << 5;
pub const DONT_MASK: u64 = 1 << 6;
pub const FLOCK_LOCKS: u64 = 1 << 10;
pub const DO_READDIRPLUS: u64 = 1 << 13;
pub const ASYNC_DIO: u64 = 1 << 15;
pub const PARALLEL_DIROPS: u64 = 1 << 18;
pub const POSIX_ACL: u64 = 1 << 20;
pub const MAX_PAGES: u64 = 1 << 22;
pub const CACHE_SYMLINKS: u64 = 1 << 23;
pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
pub const SETXATTR_EXT: u64 = 1 << 29;
/// Bits 32 and up are in `flags2`.
pub const INIT_EXT: u64 = 1 << 30;
/// Shared mappings of files that are open for direct I/O.
pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
/// The kernel can hand out again what a dead process had taken (Linux 6.9).
pub const HAS_RESEND: u64 = 1 << 39;
