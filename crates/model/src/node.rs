//! Nodes of the tree.
use std::collections::BTreeMap;

/// Where a byte lies: placement group, index of the chunk, offset in it.
pub type Place = (u32, u32, u64);

/// What a node holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Body {
    /// For each byte where it lies; `None` in a hole.
    File(Vec<Option<Place>>),
    Directory {
        parent: u64,
        entries: BTreeMap<Vec<u8>, u64>,
    },
    Symlink(Vec<u8>),
    /// Fifo, socket, device.
    Special {
        rdev: u32,
    },
}

/// An inode.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// Type and permission bits.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub atime: u64,
    pub mtime: u64,
    pub ctime: u64,
    pub btime: u64,
    pub layout: u64,
    pub generation: u64,
    pub data_version: u64,
    pub body: Body,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Made by `CreateUnnamed` and without a name since.
    pub linkable: bool,
}

/// What stat(2) shows, and what is Cairn's own.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Attributes {
    pub inode: u64,
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    pub atime: u64,
    pub mtime: u64,
    pub ctime: u64,
    pub btime: u64,
    pub layout: u64,
    pub generation: u64,
    pub rdev: u32,
    pub stored: u64,
    pub data_version: u64,
}

impl Node {
    pub fn is_directory(&self) -> bool {
        matches!(self.body, Body::Directory { .. })
    }
    pub fn is_file(&self) -> bool {
        matches!(self.body, Body::File(_))
    }
    pub fn is_symlink(&self) -> bool {
        matches!(self.body, Body::Symlink(_))
    }
    /// Names in a directory; none in anything else.
    pub fn entries(&self) -> BTreeMap<Vec<u8>, u64> {
        match &self.body {
            Body::Directory { entries, .. } => entries.clone(),
            _ => BTreeMap::new(),
        }
    }
    /// The status changed.
    pub fn changed(&mut self, now: u64) {
        self.ctime = now;
        self.generation += 1;
    }
    /// The contents changed.
    pub fn modified(&mut self, now: u64) {
        self.mtime = now;
        self.changed(now);
    }
    /// capabilities(7): a program that is written to or changes its owner has none any more.
    pub fn drop_capability(&mut self) {
        if self.is_file() && self.mode & 0o111 != 0 {
            self.xattrs.remove(b"security.capability".as_slice());
        }
    }
    /// chown(2), write(2): setuid goes; setgid goes where the group may execute, or where the caller is neither in the
    /// group nor root.
    pub fn drop_privileges(&mut self, in_group_or_root: bool) {
        self.mode &= !0o4000;
        if self.mode & 0o010 != 0 || !in_group_or_root {
            self.mode &= !0o2000;
        }
    }
}
