//! Bounds of the namespace. Each one is a promise to memory or to the time of one log entry.

/// Most links of a file and most subdirectories of a directory, as on XFS. Beyond it: `TooManyLinks`.
pub const LINKS_MAX: u32 = i32::MAX as u32;
/// Largest file, as `off_t` allows. Beyond it: `FileTooLarge`.
pub const FILE_SIZE_MAX: u64 = i64::MAX as u64;
/// Slots of a session in a partition.
pub const SLOTS_MAX: u32 = 256;
/// Bytes of a kept answer: attributes take at most 170, an error its code and text.
pub const KEPT_ANSWER_MAX: usize = 512;
/// Ended sessions that are remembered one by one. When there are more, the older half is replaced by a floor: every
/// unknown session with an id up to it counts as ended, but those that live in other partitions.
pub const ENDED_SESSIONS_MAX: usize = 16 << 10;
/// As many are remembered one by one at most, while the other partitions of the volume do not say who lives there.
/// Their numbers fit one frame.
pub const ENDED_SESSIONS_LIMIT: usize = 4 * ENDED_SESSIONS_MAX;
/// Sessions below a floor that are told another partition.
pub const SPARED_SESSIONS_MAX: usize = 32 << 10;
/// Feature level from which on a floor spares sessions.
pub const SPARE_LEVEL: u16 = 24;
/// Live sessions of a partition. Beyond it new ones get `Overloaded`.
pub const SESSIONS_MAX: usize = 1 << 20;
/// Entries of one readdir page, and of one page of extents.
pub const PAGE_ENTRIES_MAX: u32 = 4096;
/// Inodes of one GetattrMany.
pub const GETATTR_MANY_MAX: usize = 256;
/// Bytes of one readdir answer; the page ends before the entry that would exceed it (frames carry at most 1 MiB).
pub const READDIR_BYTES_MAX: usize = 512 << 10;
/// A file with at most so many extents is taken apart in the entry that removes its last name or holder; a larger one
/// is left to `ReclaimBatch`.
pub const INLINE_EXTENTS_MAX: usize = 64;
/// Extents that a smaller size takes out of a file at once, and stale ones that a write frees in its way. More are left
/// to `ReclaimBatch`. Few in unit tests, so that small files show what happens with large ones.
pub const CUT_EXTENTS_MAX: usize = if cfg!(test) { 3 } else { 256 };
/// Extents of the file that one publish replaces or meets.
pub const REPLACED_EXTENTS_MAX: usize = 64 << 10;
/// Extents of one publish.
pub const PUBLISH_EXTENTS_MAX: usize = 4096;
/// Extents of the source that one clone shares; it does the beginning of a range that has more. Few in unit tests.
pub const CLONE_EXTENTS_MAX: usize = if cfg!(test) { 8 } else { 1024 };
/// Partly covered blocks at the ends of extents for which one clone proves that no other place of the file uses them.
pub const CLONE_PROOFS_MAX: usize = 64;
/// Columns of all stripe sets of one publish.
pub const SET_COLUMNS_PUBLISH_MAX: usize = 8192;
/// Extents that are looked through to prove that a partly covered block is not used by another part of the file. In a
/// file with more, such a block is left to the garbage scan.
pub const SHARED_BLOCK_SCAN_MAX: usize = 1024;
/// Work of one `ReclaimBatch` entry, whatever it asks for.
pub const RECLAIM_INODES_MAX: u32 = 4096;
/// Work of one `ReclaimBatch` entry, whatever it asks for.
pub const RECLAIM_EXTENTS_MAX: u32 = 16 << 10;
/// Entries of an access control list.
pub const ACL_ENTRIES_MAX: usize = 1024;
/// Locks on one inode. Beyond it: `TooManyLocks`. Every request looks through all of them. Few in unit tests.
pub const LOCKS_INODE_MAX: usize = if cfg!(test) { 64 } else { 4096 };
/// Locks of one session in the partition.
pub const LOCKS_SESSION_MAX: usize = 64 << 10;
/// Names and values of all extended attributes of an inode.
pub const XATTR_TOTAL_MAX: usize = 256 << 10;
/// Names of all extended attributes of an inode with one byte each, as in `XATTR_LIST_MAX`.
pub const XATTR_NAMES_MAX: usize = 64 << 10;
/// Most inodes of one partition that an operation across partitions locks.
pub const TX_INODES_MAX: usize = 16;
/// Items of one batch of a delegation.
pub const BATCH_ITEMS_MAX: usize = 256;
/// Numbers of inodes that are given to a delegation at a time.
pub const DELEGATION_IDS_STEP: u32 = 64 << 10;
/// Numbers of inodes of one delegation.
pub const DELEGATION_IDS_MAX: u64 = 1 << 20;
/// Ranges that they are in.
pub const DELEGATION_RANGES_MAX: usize = 32;
/// Delegations of one session. Beyond it a new directory is an ordinary one.
pub const DELEGATIONS_SESSION_MAX: usize = 256;
/// Delegations of a partition: what removes a tree looks upwards from each of them.
pub const DELEGATIONS_MAX: usize = 8 << 10;
/// Delegations that one request ends.
pub const DELEGATIONS_END_MAX: usize = 256;
