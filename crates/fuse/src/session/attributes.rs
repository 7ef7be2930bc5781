//! Attributes and entries as the kernel wants them.
use super::Session;
use crate::abi;
use cairn_vfs::{Attr, Entry, Space};
use std::time::Duration;

const NANOS: i64 = 1_000_000_000;

impl Session {
    pub(crate) fn attr(&self, from: &Attr) -> abi::attr::Attr {
        self.privileged.see(from.ino, from.mode);
        attr(from, self.node(from.ino))
    }
    pub(crate) fn entry(&self, from: &Entry) -> abi::attr::EntryOut {
        let ((entry_valid, entry_valid_nsec), (attr_valid, attr_valid_nsec)) =
            (seconds(from.entry_ttl), seconds(from.attr_ttl));
        let attr = self.attr(&from.attr);
        let nodeid = attr.ino;
        abi::attr::EntryOut { nodeid, generation: 0, entry_valid, attr_valid, entry_valid_nsec, attr_valid_nsec, attr }
    }
    pub(crate) fn attr_out(&self, from: &Attr, ttl: Duration) -> abi::attr::AttrOut {
        let (attr_valid, attr_valid_nsec) = seconds(ttl);
        abi::attr::AttrOut { attr_valid, attr_valid_nsec, dummy: 0, attr: self.attr(from) }
    }
}

/// Seconds and nanoseconds.
pub fn seconds(ttl: Duration) -> (u64, u32) {
    (ttl.as_secs(), ttl.subsec_nanos())
}

/// Nanoseconds since 1970, also before.
pub fn time(ns: i64) -> (i64, u32) {
    (ns.div_euclid(NANOS), ns.rem_euclid(NANOS) as u32)
}

/// Back again; times that do not fit are cut off at the ends.
pub fn nanos(seconds: i64, nanos: u32) -> i64 {
    seconds.saturating_mul(NANOS).saturating_add(i64::from(nanos))
}

pub fn attr(from: &Attr, node: u64) -> abi::attr::Attr {
    let ((atime, atimensec), (mtime, mtimensec), (ctime, ctimensec)) =
        (time(from.atime), time(from.mtime), time(from.ctime));
    abi::attr::Attr {
        ino: node,
        size: from.size,
        blocks: from.blocks,
        atime,
        mtime,
        ctime,
        atimensec,
        mtimensec,
        ctimensec,
        mode: from.mode,
        nlink: from.nlink,
        uid: from.uid,
        gid: from.gid,
        rdev: from.rdev,
        blksize: from.blksize,
        flags: 0,
    }
}

pub fn statx(from: &Attr, node: u64, ttl: Duration) -> abi::statx::StatxOut {
    let (attr_valid, attr_valid_nsec) = seconds(ttl);
    let at = |ns| {
        let (sec, nsec) = time(ns);
        abi::statx::SxTime { sec, nsec, reserved: 0 }
    };
    // Of the kernel's 32 bits of a device number: 12 for the major, 20 for the minor one.
    let (major, minor) = ((from.rdev >> 8) & 0xfff, (from.rdev & 0xff) | ((from.rdev >> 12) & 0xf_ff00));
    abi::statx::StatxOut {
        attr_valid,
        attr_valid_nsec,
        mask: libc::STATX_BASIC_STATS | libc::STATX_BTIME,
        blksize: from.blksize,
        nlink: from.nlink,
        uid: from.uid,
        gid: from.gid,
        mode: from.mode as u16,
        ino: node,
        size: from.size,
        blocks: from.blocks,
        atime: at(from.atime),
        btime: at(from.btime),
        ctime: at(from.ctime),
        mtime: at(from.mtime),
        rdev_major: major,
        rdev_minor: minor,
        ..Default::default()
    }
}

pub fn statfs(space: &Space) -> abi::attr::StatfsOut {
    abi::attr::StatfsOut {
        blocks: space.blocks,
        bfree: space.blocks_free,
        bavail: space.blocks_free,
        files: space.files,
        ffree: space.files_free,
        bsize: space.block_size,
        frsize: space.block_size,
        namelen: space.name_max,
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times before 1970 would come out with negative nanoseconds.
    #[test]
    fn times_before_1970_have_positive_nanoseconds() {
        assert_eq!(time(-1), (-1, 999_999_999));
        assert_eq!(time(1_500_000_000), (1, 500_000_000));
        assert_eq!(nanos(-1, 999_999_999), -1);
        assert_eq!(nanos(i64::MAX, 5), i64::MAX);
    }
}
