//! Flags of open(2), decoded.

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct OpenFlags {
    pub read: bool,
    pub write: bool,
    /// Every write goes behind the end of the file.
    pub append: bool,
    pub truncate: bool,
    /// With create: fail if the name exists.
    pub exclusive: bool,
    /// O_SYNC or O_DSYNC: every write is durable before it returns.
    pub sync: bool,
    /// Past all caches.
    pub direct: bool,
    /// For execution: needs that permission instead of reading.
    pub execute: bool,
    /// Do not change the access time.
    pub noatime: bool,
}

/// The kernel's own flag of an open for execution.
const FMODE_EXEC: i32 = 0x20;

impl OpenFlags {
    /// The kernel hands writes on as they come. One that only appends through its pages would be cut in two where the
    /// page ends in which it begins, and what others append could come between the parts.
    pub fn past_pages(&self) -> bool {
        self.direct || self.append && !self.read
    }
    /// From the flags of open(2), as the kernel hands them on.
    pub fn from_bits(bits: i32) -> OpenFlags {
        let mode = bits & libc::O_ACCMODE;
        let execute = bits & FMODE_EXEC != 0;
        OpenFlags {
            read: mode == libc::O_RDONLY || mode == libc::O_RDWR,
            write: mode == libc::O_WRONLY || mode == libc::O_RDWR,
            append: bits & libc::O_APPEND != 0,
            truncate: bits & libc::O_TRUNC != 0,
            exclusive: bits & libc::O_EXCL != 0,
            // O_SYNC contains the bit of O_DSYNC.
            sync: bits & libc::O_DSYNC != 0,
            direct: bits & libc::O_DIRECT != 0,
            execute,
            noatime: bits & libc::O_NOATIME != 0,
        }
    }
    /// Permission bits that opening needs: r 4, w 2, x 1.
    pub fn access(self) -> u32 {
        let read = if self.execute { 1 } else { u32::from(self.read) * 4 };
        read | (u32::from(self.write || self.truncate) * 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program could write through a handle that was opened for reading, or not sync what it asked to be synced.
    #[test]
    fn bits_are_decoded() {
        let flags = OpenFlags::from_bits(libc::O_RDWR | libc::O_APPEND | libc::O_SYNC);
        assert!(flags.read && flags.write && flags.append && flags.sync && !flags.direct);
        assert_eq!(flags.access(), 6);
        let flags = OpenFlags::from_bits(libc::O_RDONLY | FMODE_EXEC);
        assert_eq!((flags.access(), flags.write), (1, false));
        assert_eq!(OpenFlags::from_bits(libc::O_WRONLY).access(), 2);
        assert_eq!(OpenFlags::from_bits(libc::O_RDONLY | libc::O_TRUNC).access(), 6);
    }
}
