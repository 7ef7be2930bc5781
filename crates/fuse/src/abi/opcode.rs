//! Numbers of operations. A closed table of the kernel's; names are what statistics show.

/// An operation of the kernel's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum Opcode {
    Lookup = 1,
    Forget = 2,
    Getattr = 3,
    Setattr = 4,
    Readlink = 5,
    Symlink = 6,
    Mknod = 8,
    Mkdir = 9,
    Unlink = 10,
    Rmdir = 11,
    Rename = 12,
    Link = 13,
    Open = 14,
    Read = 15,
    Write = 16,
    Statfs = 17,
    Release = 18,
    Fsync = 20,
    Setxattr = 21,
    Getxattr = 22,
    Listxattr = 23,
    Removexattr = 24,
    Flush = 25,
    Init = 26,
    Opendir = 27,
    Readdir = 28,
    Releasedir = 29,
    Fsyncdir = 30,
    Getlk = 31,
    Setlk = 32,
    Setlkw = 33,
    Access = 34,
    Create = 35,
    Interrupt = 36,
    Bmap = 37,
    Destroy = 38,
    Ioctl = 39,
    Poll = 40,
    NotifyReply = 41,
    BatchForget = 42,
    Fallocate = 43,
    Readdirplus = 44,
    Rename2 = 45,
    Lseek = 46,
    CopyFileRange = 47,
    Syncfs = 50,
    Tmpfile = 51,
    Statx = 52,
    CopyFileRange64 = 53,
}

use Opcode as O;

impl Opcode {
    /// The whole table.
    pub const ALL: [Opcode; 49] = [
        O::Lookup,
        O::Forget,
        O::Getattr,
        O::Setattr,
        O::Readlink,
        O::Symlink,
        O::Mknod,
        O::Mkdir,
        O::Unlink,
        O::Rmdir,
        O::Rename,
        O::Link,
        O::Open,
        O::Read,
        O::Write,
        O::Statfs,
        O::Release,
        O::Fsync,
        O::Setxattr,
        O::Getxattr,
        O::Listxattr,
        O::Removexattr,
        O::Flush,
        O::Init,
        O::Opendir,
        O::Readdir,
        O::Releasedir,
        O::Fsyncdir,
        O::Getlk,
        O::Setlk,
        O::Setlkw,
        O::Access,
        O::Create,
        O::Interrupt,
        O::Bmap,
        O::Destroy,
        O::Ioctl,
        O::Poll,
        O::NotifyReply,
        O::BatchForget,
        O::Fallocate,
        O::Readdirplus,
        O::Rename2,
        O::Lseek,
        O::CopyFileRange,
        O::Syncfs,
        O::Tmpfile,
        O::Statx,
        O::CopyFileRange64,
    ];
    /// Numbers are below this.
    pub const LIMIT: usize = 64;

    pub fn of(number: u32) -> Option<Opcode> {
        Self::ALL.into_iter().find(|opcode| *opcode as u32 == number)
    }
    /// As in statistics: `copy_file_range`.
    pub fn name(self) -> String {
        let mut name = String::new();
        for letter in format!("{self:?}").chars() {
            if letter.is_ascii_uppercase() && !name.is_empty() {
                name.push('_');
            }
            name.push(letter.to_ascii_lowercase());
        }
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A number that is missing in the list would be answered as an unknown operation.
    #[test]
    fn every_opcode_is_found_by_its_number() {
        for opcode in Opcode::ALL {
            assert_eq!(Opcode::of(opcode as u32), Some(opcode));
            assert!((opcode as usize) < Opcode::LIMIT);
        }
        assert_eq!(Opcode::of(7), None);
        assert_eq!(Opcode::CopyFileRange.name(), "copy_file_range");
    }
}
