//! Operations and their results.
use crate::contents::Piece;
use crate::locks::SetLock;
use crate::node::Attributes;
use cairn_types::ErrorCode;

/// Parameters of a create.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Create {
    pub parent: u64,
    pub name: Vec<u8>,
    pub mode: u32,
    pub rdev: u32,
    pub layout: u64,
    pub exclusive: bool,
    pub replace: bool,
    pub hold: bool,
    pub size: u64,
    pub pieces: Vec<Piece>,
    pub mtime: u64,
    /// Session that wrote the pieces.
    pub written_by: u64,
    pub owner: Option<(u32, u32)>,
    pub umask: u32,
}

/// What to set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Setattr {
    pub inode: u64,
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<u64>,
    pub mtime: Option<u64>,
    pub atime_now: bool,
    pub mtime_now: bool,
    pub layout: Option<u64>,
    pub kill_privileges: bool,
}

/// Parameters of a publish.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Publish {
    pub inode: u64,
    pub pieces: Vec<Piece>,
    pub size: u64,
    pub set_size: bool,
    pub if_data_version: u64,
    pub mtime: u64,
    /// Session that wrote the pieces.
    pub written_by: u64,
    /// The size that the caller expects.
    pub if_size: Option<u64>,
    pub kill_privileges: bool,
}

/// Parameters of a punch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Punch {
    pub inode: u64,
    pub offset: u64,
    pub length: u64,
    pub extend: bool,
    pub if_data_version: u64,
    pub kill_privileges: bool,
}

/// A mutation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Operation {
    Mkdir {
        parent: u64,
        name: Vec<u8>,
        mode: u32,
        layout: u64,
        umask: u32,
    },
    Create(Create),
    Symlink {
        parent: u64,
        name: Vec<u8>,
        target: Vec<u8>,
    },
    CreateUnnamed {
        parent: u64,
        mode: u32,
        layout: u64,
        umask: u32,
    },
    Link {
        inode: u64,
        parent: u64,
        name: Vec<u8>,
        replace: bool,
    },
    Unlink {
        parent: u64,
        name: Vec<u8>,
    },
    Rmdir {
        parent: u64,
        name: Vec<u8>,
    },
    RemoveTree {
        parent: u64,
        name: Vec<u8>,
    },
    Rename {
        parent: u64,
        name: Vec<u8>,
        new_parent: u64,
        new_name: Vec<u8>,
        flags: u32,
    },
    Setattr(Setattr),
    SetXattr {
        inode: u64,
        name: Vec<u8>,
        value: Vec<u8>,
        flags: u32,
    },
    RemoveXattr {
        inode: u64,
        name: Vec<u8>,
    },
    Publish(Publish),
    Punch(Punch),
    SetLock(SetLock),
    /// With limits that nothing reaches, or none: what is counted is checked by a recount.
    SetQuota {
        inode: u64,
        limited: bool,
    },
    Hold {
        inode: u64,
        write: bool,
    },
    Release {
        inode: u64,
    },
}

/// An answer without an error: attributes, or just done.
pub type Reply = Result<Option<Attributes>, ErrorCode>;
