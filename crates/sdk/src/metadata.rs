//! What is known of a file, a directory or a volume.
use cairn_types::{Layout, Scheme};
use cairn_vfs::Attr;

/// What an inode is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    File,
    Directory,
    Symlink,
    /// A device, a pipe or a socket.
    Other,
}

impl FileKind {
    /// From the type bits of a mode.
    pub fn of_mode(mode: u32) -> FileKind {
        match mode & libc::S_IFMT {
            libc::S_IFREG => FileKind::File,
            libc::S_IFDIR => FileKind::Directory,
            libc::S_IFLNK => FileKind::Symlink,
            _ => FileKind::Other,
        }
    }
}

/// What stat(2) tells. Times are nanoseconds since 1970, negative before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Metadata {
    pub inode: u64,
    pub size: u64,
    /// Units of 512 bytes, of one copy and its redundancy.
    pub blocks: u64,
    pub accessed: i64,
    pub modified: i64,
    pub changed: i64,
    pub created: i64,
    /// Type and permission bits.
    pub mode: u32,
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    /// Raised by every published change of the contents.
    pub version: u64,
    /// Copies of each byte; 1 where data is erasure coded. Of a directory: of what is made in it.
    pub copies: u32,
}

impl Metadata {
    pub(crate) fn of(attr: &Attr) -> Metadata {
        Metadata {
            inode: attr.ino,
            size: attr.size,
            blocks: attr.blocks,
            accessed: attr.atime,
            modified: attr.mtime,
            changed: attr.ctime,
            created: attr.btime,
            mode: attr.mode,
            links: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            version: attr.data_version,
            copies: copies(attr.layout),
        }
    }
    pub fn kind(&self) -> FileKind {
        FileKind::of_mode(self.mode)
    }
    pub fn is_file(&self) -> bool {
        self.kind() == FileKind::File
    }
    pub fn is_directory(&self) -> bool {
        self.kind() == FileKind::Directory
    }
}

fn copies(layout: u64) -> u32 {
    match Layout::from_bits(layout).map(Layout::scheme) {
        Some(Scheme::Replicated(copies)) => copies.into(),
        _ => 1,
    }
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    Now,
    /// Nanoseconds since 1970.
    At(i64),
}

impl SetTime {
    fn for_vfs(self) -> cairn_vfs::SetTime {
        match self {
            SetTime::Now => cairn_vfs::SetTime::Now,
            SetTime::At(ns) => cairn_vfs::SetTime::At(ns),
        }
    }
}

/// What is to change of a file or directory; what is `None` stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetMetadata {
    /// Permission bits.
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    /// Cuts or lengthens a file.
    pub size: Option<u64>,
    pub accessed: Option<SetTime>,
    pub modified: Option<SetTime>,
}

impl SetMetadata {
    pub(crate) fn for_vfs(self) -> cairn_vfs::SetAttr {
        cairn_vfs::SetAttr {
            mode: self.mode.map(|mode| mode & 0o7777),
            uid: self.uid,
            gid: self.gid,
            size: self.size,
            atime: self.accessed.map(SetTime::for_vfs),
            mtime: self.modified.map(SetTime::for_vfs),
            kill_privileges: false,
        }
    }
}

/// Space of a volume, after redundancy: what files can have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    pub bytes: u64,
    pub bytes_free: u64,
    pub files: u64,
    pub files_free: u64,
}
