//! What is asked to be made or changed: [`NewFile`], [`SetAttributes`], [`CloneRange`].
use cairn_wire::meta::{CloneRangeRequest, CreateRequest, SetattrRequest};

const MODE: u32 = 1;
const UID: u32 = 1 << 1;
const GID: u32 = 1 << 2;
const SIZE: u32 = 1 << 3;
const ATIME: u32 = 1 << 4;
const MTIME: u32 = 1 << 5;
const ATIME_NOW: u32 = 1 << 6;
const MTIME_NOW: u32 = 1 << 7;
const LAYOUT: u32 = 1 << 8;
const KILL_PRIVILEGES: u32 = 1 << 9;
const ATIME_OF_A_READ: u32 = 1 << 10;

/// A file that is to be made, without contents.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NewFile {
    /// Type and permission bits: regular, fifo, socket, device.
    pub mode: u32,
    /// Taken off the mode, unless the directory has a default access control list.
    pub umask: u32,
    pub rdev: u32,
    /// Bits of a [`Layout`](cairn_types::Layout); 0: that of the directory.
    pub layout: u64,
    /// `Exists` if there is one; else the existing one is answered.
    pub exclusive: bool,
    /// An existing regular file gives way to a new one, as in a rename over it.
    pub replace: bool,
    /// The session holds it open.
    pub hold: bool,
    /// Its owner and group, for root; else who asks.
    pub owner: Option<(u32, u32)>,
}

impl NewFile {
    pub(crate) fn to_wire(self) -> CreateRequest {
        let (uid, gid) = self.owner.unwrap_or_default();
        CreateRequest {
            mode: self.mode,
            umask: self.umask,
            rdev: self.rdev,
            layout: self.layout,
            exclusive: self.exclusive,
            replace: self.replace,
            hold: self.hold,
            set_owner: self.owner.is_some(),
            uid,
            gid,
            ..CreateRequest::default()
        }
    }
}

/// A time to set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetTime {
    /// The server's clock.
    Now,
    /// Nanoseconds since 1970, negative before.
    At(i64),
}

impl SetTime {
    /// Bit of `at` or of `now`, and the time.
    fn to_wire(set: Option<SetTime>, at: u32, now: u32) -> (u32, u64) {
        match set {
            None => (0, 0),
            Some(SetTime::Now) => (now, 0),
            Some(SetTime::At(ns)) => (at, ns as u64),
        }
    }
}

/// Attributes that are to be changed; those that are `None` stay.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SetAttributes {
    /// Permission bits.
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<SetTime>,
    pub mtime: Option<SetTime>,
    /// Bits of a [`Layout`](cairn_types::Layout), of directories and empty files.
    pub layout: Option<u64>,
    /// Setuid and setgid go, as by a write of somebody who is not root.
    pub kill_privileges: bool,
    /// The access time is of a read, and told late: the change time stays.
    pub atime_is_late: bool,
}

impl SetAttributes {
    /// The size alone.
    pub fn to_size(size: u64) -> Self {
        Self { size: Some(size), ..Self::default() }
    }
    /// Whether nothing is to be changed.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
    pub(crate) fn to_wire(self) -> SetattrRequest {
        let bit = |is_set: bool, bit: u32| if is_set { bit } else { 0 };
        let (atime, atime_ns) = SetTime::to_wire(self.atime, ATIME, ATIME_NOW);
        let (mtime, mtime_ns) = SetTime::to_wire(self.mtime, MTIME, MTIME_NOW);
        let valid = bit(self.mode.is_some(), MODE)
            | bit(self.uid.is_some(), UID)
            | bit(self.gid.is_some(), GID)
            | bit(self.size.is_some(), SIZE)
            | bit(self.layout.is_some(), LAYOUT)
            | bit(self.kill_privileges, KILL_PRIVILEGES)
            | bit(self.atime_is_late, ATIME_OF_A_READ)
            | atime
            | mtime;
        SetattrRequest {
            valid,
            mode: self.mode.unwrap_or(0),
            uid: self.uid.unwrap_or(0),
            gid: self.gid.unwrap_or(0),
            size: self.size.unwrap_or(0),
            layout: self.layout.unwrap_or(0),
            atime_ns,
            mtime_ns,
            ..SetattrRequest::default()
        }
    }
}

/// A range of a file that is to name the bytes of a range of another file, or of the same one apart from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CloneRange {
    pub source: u64,
    pub source_offset: u64,
    /// The file that gets them.
    pub inode: u64,
    pub offset: u64,
    pub length: u64,
    /// Only if the file that gets them is of that version.
    pub if_data_version: Option<u64>,
    /// Only if the source is.
    pub if_source_version: Option<u64>,
    /// Of the file that gets them, since 1970; `None`: the server's time.
    pub mtime_ns: Option<i64>,
}

impl CloneRange {
    pub(crate) fn to_wire(self) -> CloneRangeRequest {
        CloneRangeRequest {
            source: self.source,
            source_offset: self.source_offset,
            inode: self.inode,
            offset: self.offset,
            length: self.length,
            // In the request 0 says that any will do.
            if_data_version: self.if_data_version.unwrap_or(0),
            if_source_version: self.if_source_version.unwrap_or(0),
            mtime_ns: self.mtime_ns.map_or(0, |ns| ns as u64),
            ..CloneRangeRequest::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Something else would be set than was asked for.
    #[test]
    fn each_attribute_has_its_bit() {
        let none = SetAttributes::default();
        let all = [
            (1, SetAttributes { mode: Some(0o640), ..none }),
            (2, SetAttributes { uid: Some(3), ..none }),
            (4, SetAttributes { gid: Some(4), ..none }),
            (8, SetAttributes { size: Some(0), ..none }),
            (1 << 4, SetAttributes { atime: Some(SetTime::At(-1)), ..none }),
            (1 << 5, SetAttributes { mtime: Some(SetTime::At(7)), ..none }),
            (1 << 6, SetAttributes { atime: Some(SetTime::Now), ..none }),
            (1 << 7, SetAttributes { mtime: Some(SetTime::Now), ..none }),
            (1 << 8, SetAttributes { layout: Some(3), ..none }),
            (1 << 9, SetAttributes { kill_privileges: true, ..none }),
            (1 << 10, SetAttributes { atime_is_late: true, ..none }),
        ];
        for (valid, set) in all {
            assert_eq!(set.to_wire().valid, valid, "{set:?}");
            assert!(!set.is_empty());
        }
        assert_eq!(all[4].1.to_wire().atime_ns, u64::MAX, "before 1970");
        assert_eq!(none.to_wire(), SetattrRequest::default());
    }

    /// A file would belong to root because nobody was named.
    #[test]
    fn an_owner_is_set_only_if_one_is_named() {
        let new = NewFile { mode: 0o100_644, ..NewFile::default() };
        assert!(!new.to_wire().set_owner);
        let owned = NewFile { owner: Some((0, 5)), ..new }.to_wire();
        assert_eq!((owned.set_owner, owned.uid, owned.gid), (true, 0, 5));
    }
}
