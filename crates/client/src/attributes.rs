//! [`Attributes`] of an inode, and what kind of thing it is.
use crate::malformed::Malformed;
use cairn_wire::meta;

const KIND: u32 = 0o170_000;
/// A type of a mode is told by these bits alone where there is no mode.
const KIND_SHIFT: u32 = 12;

/// What a name can be of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FileKind {
    Fifo,
    CharacterDevice,
    Directory,
    BlockDevice,
    Regular,
    Symlink,
    Socket,
}

impl FileKind {
    const ALL: [FileKind; 7] = [
        Self::Fifo,
        Self::CharacterDevice,
        Self::Directory,
        Self::BlockDevice,
        Self::Regular,
        Self::Symlink,
        Self::Socket,
    ];

    /// Bits of a mode (`S_IFMT`).
    pub const fn mode_bits(self) -> u32 {
        match self {
            Self::Fifo => 0o010_000,
            Self::CharacterDevice => 0o020_000,
            Self::Directory => 0o040_000,
            Self::BlockDevice => 0o060_000,
            Self::Regular => 0o100_000,
            Self::Symlink => 0o120_000,
            Self::Socket => 0o140_000,
        }
    }
    /// Of a mode as stat(2) tells it; `None` if its bits are those of no kind.
    pub fn of_mode(mode: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.mode_bits() == mode & KIND)
    }
    /// Of an entry of a directory (`d_type`).
    pub(crate) fn of_wire(code: u32) -> Result<Self, Malformed> {
        let unknown = Malformed::UnknownCode { part: "type of an entry", code: code.into() };
        if code > KIND >> KIND_SHIFT { Err(unknown) } else { Self::of_mode(code << KIND_SHIFT).ok_or(unknown) }
    }
}

/// What stat(2) shows of an inode, and more. Times are nanoseconds since 1970, negative before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Attributes {
    pub inode: u64,
    /// Type and permission bits.
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    /// Bytes; of a directory its entries.
    pub size: u64,
    pub atime_ns: i64,
    pub mtime_ns: i64,
    pub ctime_ns: i64,
    pub btime_ns: i64,
    /// Bits of a [`Layout`](cairn_types::Layout), which may be one of a later version; of a directory: what new entries
    /// inherit.
    pub layout: u64,
    /// Raised by every change of contents or attributes.
    pub generation: u64,
    /// Raised by every change of the extents, and behind changes in place.
    pub data_version: u64,
    /// Bytes that extents cover.
    pub stored_bytes: u64,
    /// Session that may be changing blocks in place, which `data_version` does not tell of; 0: none.
    pub overwriter: u64,
    /// Session that made bytes visible that are not known to be durable yet; 0: all are.
    pub volatile_of: u64,
    /// Of a directory: its new names go to so many shards.
    pub shards: u32,
    /// Of a shard: its directory; 0: it is none.
    pub shard_of: u64,
}

impl Attributes {
    /// `None` if the bits of the mode are those of no kind.
    pub fn kind(&self) -> Option<FileKind> {
        FileKind::of_mode(self.mode)
    }
    pub fn is_directory(&self) -> bool {
        self.kind() == Some(FileKind::Directory)
    }
    pub fn is_regular(&self) -> bool {
        self.kind() == Some(FileKind::Regular)
    }
    pub fn is_symlink(&self) -> bool {
        self.kind() == Some(FileKind::Symlink)
    }
    /// Of an inode that another partition has: number and type are known, and nothing else.
    pub(crate) fn is_placeholder(&self) -> bool {
        self.mode & 0o7777 == 0 && (self.nlink, self.ctime_ns, self.btime_ns) == (0, 0, 0)
    }

    pub(crate) fn of_wire(found: meta::Attributes) -> Self {
        Self {
            inode: found.inode,
            mode: found.mode,
            nlink: found.nlink,
            uid: found.uid,
            gid: found.gid,
            rdev: found.rdev,
            size: found.size,
            atime_ns: found.atime_ns as i64,
            mtime_ns: found.mtime_ns as i64,
            ctime_ns: found.ctime_ns as i64,
            btime_ns: found.btime_ns as i64,
            layout: found.layout,
            generation: found.generation,
            data_version: found.data_version,
            stored_bytes: found.stored_bytes,
            overwriter: found.overwriter,
            volatile_of: found.volatile_of,
            shards: found.shards,
            shard_of: found.shard_of,
        }
    }
    /// Of an answer that has to have them.
    pub(crate) fn of_answer(found: Option<meta::Attributes>) -> Result<Self, Malformed> {
        found.map(Self::of_wire).ok_or(Malformed::Missing("attributes"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Listings would show something as something else.
    #[test]
    fn kinds_are_those_of_stat() {
        for kind in FileKind::ALL {
            assert_eq!(FileKind::of_mode(kind.mode_bits() | 0o7777), Some(kind));
            assert_eq!(FileKind::of_wire(kind.mode_bits() >> 12), Ok(kind));
        }
        assert_eq!(FileKind::of_mode(0o755), None);
        for code in [0, 3, 15, 16, 1 << 20, u32::MAX] {
            assert!(FileKind::of_wire(code).is_err(), "{code}");
        }
    }

    /// A file from before 1970 would be one of the far future.
    #[test]
    fn times_before_1970_are_negative() {
        let found = meta::Attributes { mtime_ns: (-5_i64) as u64, mode: 0o100_644, ..Default::default() };
        let found = Attributes::of_wire(found);
        assert_eq!((found.mtime_ns, found.is_regular()), (-5, true));
        assert_eq!(Attributes::of_answer(None), Err(Malformed::Missing("attributes")));
    }
}
