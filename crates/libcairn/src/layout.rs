//! Structures that C and Rust share, as `cairn.h` has them.
use cairn_sdk::{DirEntry, FileKind, Host, Metadata, Place, Space};
use libc::c_char;

/// Bits of [`COptions::flags`].
pub const READ_ONLY: u32 = 1;
pub const CLOSE_VISIBLE: u32 = 2;
/// Times of `cairn_utimens`.
pub const TIME_OMIT: i64 = i64::MIN;
pub const TIME_NOW: i64 = i64::MAX;
/// Flags of `cairn_rename`.
pub const RENAME_NOREPLACE: u32 = 1;
pub const RENAME_EXCHANGE: u32 = 2;
/// Bytes of a name with the zero byte behind it.
pub const NAME_BYTES: usize = 256;

/// `struct cairn_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct COptions {
    pub size: u64,
    pub flags: u32,
    pub timeout_ms: u32,
    pub connect_timeout_ms: u32,
    pub reserved: u32,
    pub memory_max: u64,
    pub rack: *const c_char,
}

/// `struct cairn_stat`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct CStat {
    pub ino: u64,
    pub size: u64,
    pub blocks: u64,
    pub version: u64,
    pub atime_ns: i64,
    pub mtime_ns: i64,
    pub ctime_ns: i64,
    pub btime_ns: i64,
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
}

impl CStat {
    pub(crate) fn of(found: &Metadata) -> CStat {
        CStat {
            ino: found.inode,
            size: found.size,
            blocks: found.blocks,
            version: found.version,
            atime_ns: found.accessed,
            mtime_ns: found.modified,
            ctime_ns: found.changed,
            btime_ns: found.created,
            mode: found.mode,
            nlink: found.links,
            uid: found.uid,
            gid: found.gid,
        }
    }
}

/// `struct cairn_dirent`.
#[repr(C)]
pub struct CDirent {
    pub stat: CStat,
    pub ino: u64,
    pub r#type: u32,
    pub has_stat: u32,
    pub name: [u8; NAME_BYTES],
}

impl CDirent {
    pub(crate) fn of(entry: &DirEntry) -> CDirent {
        let mut name = [0; NAME_BYTES];
        // Names have 255 bytes at most.
        let length = entry.name.len().min(NAME_BYTES - 1);
        name[..length].copy_from_slice(&entry.name[..length]);
        let kind = match entry.kind {
            FileKind::File => libc::S_IFREG,
            FileKind::Directory => libc::S_IFDIR,
            FileKind::Symlink => libc::S_IFLNK,
            FileKind::Other => entry.metadata.map_or(0, |found| found.mode & libc::S_IFMT),
        };
        CDirent {
            stat: entry.metadata.as_ref().map(CStat::of).unwrap_or_default(),
            ino: entry.inode,
            r#type: kind,
            has_stat: u32::from(entry.metadata.is_some()),
            name,
        }
    }
}

/// Bytes of a host's texts with the zero byte behind them, and hosts of a place.
pub const HOST_BYTES: usize = 256;
pub const HOSTS_MAX: usize = 16;

/// `struct cairn_host`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CHost {
    pub name: [u8; HOST_BYTES],
    pub address: [u8; HOST_BYTES],
    pub rack: [u8; HOST_BYTES],
}

impl CHost {
    const NONE: CHost = CHost { name: [0; HOST_BYTES], address: [0; HOST_BYTES], rack: [0; HOST_BYTES] };

    fn of(host: &Host) -> CHost {
        let room = |text: &str| {
            let mut room = [0; HOST_BYTES];
            let length = text.len().min(HOST_BYTES - 1);
            room[..length].copy_from_slice(&text.as_bytes()[..length]);
            room
        };
        CHost { name: room(&host.name), address: room(&host.address), rack: room(&host.rack) }
    }
}

/// `struct cairn_place`.
#[repr(C)]
pub struct CPlace {
    pub offset: u64,
    pub length: u64,
    pub host_count: u32,
    pub reserved: u32,
    pub hosts: [CHost; HOSTS_MAX],
}

impl CPlace {
    pub(crate) fn of(place: &Place) -> CPlace {
        let mut hosts = [CHost::NONE; HOSTS_MAX];
        let count = place.hosts.len().min(HOSTS_MAX);
        place.hosts.iter().zip(&mut hosts).for_each(|(host, room)| *room = CHost::of(host));
        CPlace { offset: place.offset, length: place.length, host_count: count as u32, reserved: 0, hosts }
    }
}

/// `struct cairn_space`.
#[repr(C)]
pub struct CSpace {
    pub bytes: u64,
    pub bytes_free: u64,
    pub files: u64,
    pub files_free: u64,
}

impl CSpace {
    pub(crate) fn of(space: &Space) -> CSpace {
        let Space { bytes, bytes_free, files, files_free } = *space;
        CSpace { bytes, bytes_free, files, files_free }
    }
}
