//! Attributes as programs see them.
use cairn_client::attributes::Attributes;
pub use cairn_client::changes::SetTime;
use std::time::Duration;

/// File type bits of a mode.
pub(crate) const KIND: u32 = 0o170_000;
pub(crate) const REGULAR: u32 = 0o100_000;
pub(crate) const DIRECTORY: u32 = 0o040_000;
pub(crate) const SYMLINK: u32 = 0o120_000;

/// What stat(2) shows. Sizes and times include what this mount wrote and has not published yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Attr {
    pub ino: u64,
    pub size: u64,
    /// Units of 512 bytes.
    pub blocks: u64,
    /// Nanoseconds since 1970, negative before.
    pub atime: i64,
    pub mtime: i64,
    pub ctime: i64,
    pub btime: i64,
    /// Type and permission bits.
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    /// Preferred size of I/O.
    pub blksize: u32,
    /// Version of the contents: raised by every change of them that was published.
    pub data_version: u64,
    /// Layout bits (`types::Layout`).
    pub layout: u64,
}

/// Preferred size of I/O: small, since libraries allocate as much as this for each open file.
const BLKSIZE: u32 = 128 << 10;

impl Attr {
    pub(crate) fn of(from: &Attributes) -> Attr {
        let directory = from.is_directory();
        Attr {
            ino: from.inode,
            // Programs expect a directory's size to be some number of bytes that is not 0.
            size: if directory { 4096 } else { from.size },
            blocks: if directory { 8 } else { from.stored_bytes.div_ceil(512) },
            atime: from.atime_ns,
            mtime: from.mtime_ns,
            ctime: from.ctime_ns,
            btime: from.btime_ns,
            mode: from.mode,
            nlink: from.nlink,
            uid: from.uid,
            gid: from.gid,
            rdev: from.rdev,
            blksize: BLKSIZE,
            data_version: from.data_version,
            layout: from.layout,
        }
    }
    pub fn is_directory(&self) -> bool {
        self.mode & KIND == DIRECTORY
    }
    pub fn is_regular(&self) -> bool {
        self.mode & KIND == REGULAR
    }
    pub fn is_symlink(&self) -> bool {
        self.mode & KIND == SYMLINK
    }
}

/// An entry that was found or made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub attr: Attr,
    /// How long the name may be taken as this inode without asking.
    pub entry_ttl: Duration,
    /// How long the attributes may be used without asking.
    pub attr_ttl: Duration,
}

/// Attributes to change; those that are `None` stay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits.
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<SetTime>,
    pub mtime: Option<SetTime>,
    /// Take setuid and setgid away as a write of an ordinary user does.
    pub kill_privileges: bool,
}
