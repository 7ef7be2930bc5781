//! Attributes of an inode: value of the key (inode, attributes).
//!
//! Directories have fields of fixed width, because their times, counts and generation change with every entry: the
//! value keeps its length and is changed in place. Everything else is packed: 21–40 bytes for a typical file.
//!
//! Directory, 80 bytes (88 with a quota), little-endian:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 1 | 0x12: version 1, directory; 0x13: the same with a quota at its end |
//! | 1 | 1 | bit 0: has an access ACL; bit 1: has a default ACL; bits 2 to 5: its shards; bit 6: new names go to these; bit 7: it is a shard |
//! | 2 | 2 | mode with type bits |
//! | 4 | 4 | uid |
//! | 8 | 4 | gid |
//! | 12 | 4 | nlink: 2 + subdirectories, 0 when removed |
//! | 16 | 8 | entries |
//! | 24 | 8 | atime, nanoseconds since 1970 |
//! | 32 | 8 | mtime |
//! | 40 | 8 | ctime |
//! | 48 | 8 | btime |
//! | 56 | 8 | generation |
//! | 64 | 8 | layout that new entries inherit |
//! | 72 | 8 | parent directory; of the root the root itself, 0 when removed |
//! | 80 | 8 | only with 0x13: directory whose quota counts what is made here, never 0 |
//!
//! Any other type:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 1 | 0x11: version 1, packed |
//! | 1 | 1 | which optional fields follow |
//! | 2 | 2 | mode with type bits |
//! | 4 | 8 | btime, nanoseconds since 1970 |
//! | 12 | varints | uid, gid, size, generation, data version, layout; then, in the order of their bits: |
//!
//! | bit | field | when absent |
//! |---|---|---|
//! | 0 | nlink | 1 |
//! | 1 | zigzag (atime − btime) | 0 |
//! | 2 | zigzag (mtime − btime) | 0 |
//! | 3 | zigzag (ctime − mtime) | 0 |
//! | 4 | rdev | 0 |
//! | 5 | stored bytes | equal to the size |
//! | 6 | (no field) made without a name and not linked yet | |
//! | 7 | more: bit 0 (no field) has an access ACL; bit 1 a varint follows: directory whose quota counts it, never 0; bit 2 then two varints follow: session and number of the overwrite lease, never 0; bit 3 then three: session, first and end of the volatile bytes | 0 |
//!
//! Bit 7, the byte 1 of directories and 0x13 came with access control lists and quotas, bit 2 of "more" with
//! overwriting in place, bit 3 with closing before all is durable; what has none of these is as before.
use super::varint::{self, Cursor, VARINT_MAX, unzigzag, zigzag};
use cairn_types::shard::SHARDS_MAX;

const TAG_PACKED: u8 = 0x11;
const TAG_DIRECTORY: u8 = 0x12;
const TAG_DIRECTORY_QUOTA: u8 = 0x13;
const DIRECTORY_LEN: usize = 80;
const DIRECTORY_QUOTA_LEN: usize = 88;
/// Twelve bytes and nineteen numbers of at most ten.
const PACKED_MAX: usize = 12 + 19 * VARINT_MAX;
const MORE: u8 = 1 << 7;
const MORE_ACL: u64 = 1;
const MORE_QUOTA: u64 = 2;
const MORE_LEASE: u64 = 4;
const MORE_VOLATILE: u64 = 8;

/// What an inode is: the type bits of its mode, as in `stat(2)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum NodeType {
    Fifo = 0o010_000,
    CharDevice = 0o020_000,
    Directory = 0o040_000,
    BlockDevice = 0o060_000,
    Regular = 0o100_000,
    Symlink = 0o120_000,
    Socket = 0o140_000,
}

impl NodeType {
    /// Type bits of a mode.
    pub const MASK: u16 = 0o170_000;

    pub const fn of_mode(mode: u16) -> Option<Self> {
        Some(match mode & Self::MASK {
            0o010_000 => Self::Fifo,
            0o020_000 => Self::CharDevice,
            0o040_000 => Self::Directory,
            0o060_000 => Self::BlockDevice,
            0o100_000 => Self::Regular,
            0o120_000 => Self::Symlink,
            0o140_000 => Self::Socket,
            _ => return None,
        })
    }
    /// The number of `d_type` in `readdir(3)`.
    pub const fn d_type(self) -> u8 {
        (self as u16 >> 12) as u8
    }
}

/// Attributes of an inode, unpacked. Times are nanoseconds since 1970, signed (two's complement).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inode {
    /// Type and permission bits.
    pub mode: u16,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    /// Bytes; of a directory its entries; of a symbolic link the length of its target.
    pub size: u64,
    pub atime: u64,
    pub mtime: u64,
    pub ctime: u64,
    pub btime: u64,
    /// Bits of `types::Layout`.
    pub layout: u64,
    /// Raised by every change.
    pub generation: u64,
    pub rdev: u32,
    /// Bytes that extents cover.
    pub stored: u64,
    /// Raised by every change of size or extents.
    pub data_version: u64,
    /// Made without a name and not linked yet: may still get its first name.
    pub unnamed: bool,
    /// Of a directory: its parent.
    pub parent: u64,
    /// It has an access control list of more than its mode says.
    pub acl: bool,
    /// Of a directory: new entries inherit from its default access control list.
    pub default_acl: bool,
    /// Of a directory: entries of it that are its shards.
    pub shards: u8,
    /// Of a directory: all its shards are there, and new names go to these.
    pub sharded: bool,
    /// Of a directory: it is a shard of its parent.
    pub is_shard: bool,
    /// The directory whose quota counts it (of a directory: counts what is made in it); 0: none.
    pub quota: u64,
    /// Of a regular file: who may overwrite blocks in place.
    pub lease: Option<OverwriteLease>,
    /// Of a regular file: bytes that are visible and not known to be durable.
    pub volatile: Option<Volatile>,
}

/// The right to change blocks of a file where they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OverwriteLease {
    pub session: u64,
    /// Ascends for each file.
    pub number: u64,
}

/// A range of a file that was published when it was in all members' memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Volatile {
    /// Who wrote it and makes it durable.
    pub session: u64,
    pub from: u64,
    /// Exclusive; beyond `from`.
    pub to: u64,
}

impl Inode {
    pub const fn is_dir(&self) -> bool {
        self.mode & NodeType::MASK == NodeType::Directory as u16
    }
    pub const fn is_regular(&self) -> bool {
        self.mode & NodeType::MASK == NodeType::Regular as u16
    }
    pub const fn is_symlink(&self) -> bool {
        self.mode & NodeType::MASK == NodeType::Symlink as u16
    }
    /// Permission bits with setuid, setgid and sticky.
    pub const fn permissions(&self) -> u16 {
        self.mode & 0o7777
    }
    pub fn d_type(&self) -> u8 {
        (self.mode >> 12) as u8
    }

    /// Appends the value.
    #[inline]
    pub fn encode(&self, out: &mut Vec<u8>) {
        if self.is_dir() { self.encode_directory(out) } else { self.encode_packed(out) }
    }

    fn encode_directory(&self, out: &mut Vec<u8>) {
        let mut bytes = [0u8; DIRECTORY_LEN];
        self.encode_directory_into(&mut bytes);
        out.extend_from_slice(&bytes);
        if self.quota != 0 {
            out.extend_from_slice(&self.quota.to_le_bytes());
        }
    }

    fn encode_directory_into(&self, bytes: &mut [u8; DIRECTORY_LEN]) {
        bytes[0] = if self.quota == 0 { TAG_DIRECTORY } else { TAG_DIRECTORY_QUOTA };
        bytes[1] = u8::from(self.acl)
            | u8::from(self.default_acl) << 1
            | (self.shards & SHARDS_MAX) << 2
            | u8::from(self.sharded) << 6
            | u8::from(self.is_shard) << 7;
        bytes[2..4].copy_from_slice(&self.mode.to_le_bytes());
        for (at, field) in [(4, self.uid), (8, self.gid), (12, self.nlink)] {
            bytes[at..at + 4].copy_from_slice(&field.to_le_bytes());
        }
        let long =
            [self.size, self.atime, self.mtime, self.ctime, self.btime, self.generation, self.layout, self.parent];
        for (i, field) in long.into_iter().enumerate() {
            bytes[16 + 8 * i..24 + 8 * i].copy_from_slice(&field.to_le_bytes());
        }
    }

    /// Overwrites a directory's value in place; false when the bytes are no directory's.
    #[must_use]
    #[inline]
    pub(crate) fn overwrite_directory(&self, value: &mut [u8]) -> bool {
        let Some((bytes, quota)) = value.split_first_chunk_mut::<DIRECTORY_LEN>() else { return false };
        match (bytes[0], quota.len(), self.quota) {
            (TAG_DIRECTORY, 0, 0) => {}
            (TAG_DIRECTORY_QUOTA, 8, 1..) => quota.copy_from_slice(&self.quota.to_le_bytes()),
            _ => return false,
        }
        self.encode_directory_into(bytes);
        self.is_dir()
    }

    #[inline]
    fn encode_packed(&self, out: &mut Vec<u8>) {
        let atime = self.atime.wrapping_sub(self.btime) as i64;
        let mtime = self.mtime.wrapping_sub(self.btime) as i64;
        let ctime = self.ctime.wrapping_sub(self.mtime) as i64;
        let optional = [
            (self.nlink != 1, u64::from(self.nlink)),
            (atime != 0, zigzag(atime)),
            (mtime != 0, zigzag(mtime)),
            (ctime != 0, zigzag(ctime)),
            (self.rdev != 0, u64::from(self.rdev)),
            (self.stored != self.size, self.stored),
        ];
        let more = (u64::from(self.acl) * MORE_ACL)
            | (u64::from(self.quota != 0) * MORE_QUOTA)
            | (u64::from(self.lease.is_some()) * MORE_LEASE)
            | (u64::from(self.volatile.is_some()) * MORE_VOLATILE);
        let mut flags = u8::from(self.unnamed) << 6 | u8::from(more != 0) << 7;
        for (i, (present, _)) in optional.iter().enumerate() {
            flags |= u8::from(*present) << i;
        }
        let mut bytes = [0u8; PACKED_MAX];
        bytes[0] = TAG_PACKED;
        bytes[1] = flags;
        bytes[2..4].copy_from_slice(&self.mode.to_le_bytes());
        bytes[4..12].copy_from_slice(&self.btime.to_le_bytes());
        let mut len = 12;
        let mut put = |number: u64| {
            let (digits, length) = varint::encode(number);
            bytes[len..len + VARINT_MAX].copy_from_slice(&digits);
            len += length;
        };
        let fixed =
            [u64::from(self.uid), u64::from(self.gid), self.size, self.generation, self.data_version, self.layout];
        fixed.into_iter().for_each(&mut put);
        for (present, number) in optional {
            if present {
                put(number);
            }
        }
        if more != 0 {
            put(more);
        }
        if self.quota != 0 {
            put(self.quota);
        }
        if let Some(lease) = self.lease {
            put(lease.session);
            put(lease.number);
        }
        if let Some(volatile) = self.volatile {
            put(volatile.session);
            put(volatile.from);
            put(volatile.to);
        }
        out.extend_from_slice(&bytes[..len]);
    }

    /// Reads a value; `None` if no version wrote it.
    #[inline]
    pub fn decode(value: &[u8]) -> Option<Inode> {
        match *value.first()? {
            TAG_PACKED => Self::decode_packed(value),
            TAG_DIRECTORY => Self::decode_directory(value.try_into().ok()?),
            TAG_DIRECTORY_QUOTA if value.len() == DIRECTORY_QUOTA_LEN => {
                let (fixed, quota) = value.split_first_chunk()?;
                let quota = quota.try_into().map(u64::from_le_bytes).ok().filter(|quota| *quota != 0)?;
                Some(Inode { quota, ..Self::decode_directory(fixed)? })
            }
            _ => None,
        }
    }

    #[inline]
    fn decode_directory(value: &[u8; DIRECTORY_LEN]) -> Option<Inode> {
        let short = |at: usize| u32::from_le_bytes([value[at], value[at + 1], value[at + 2], value[at + 3]]);
        let long = |i: usize| u64::from(short(16 + 8 * i)) | u64::from(short(20 + 8 * i)) << 32;
        let inode = Inode {
            mode: u16::from_le_bytes([value[2], value[3]]),
            uid: short(4),
            gid: short(8),
            nlink: short(12),
            size: long(0),
            atime: long(1),
            mtime: long(2),
            ctime: long(3),
            btime: long(4),
            generation: long(5),
            layout: long(6),
            parent: long(7),
            rdev: 0,
            stored: 0,
            data_version: 0,
            unnamed: false,
            acl: value[1] & 1 != 0,
            default_acl: value[1] & 2 != 0,
            shards: value[1] >> 2 & SHARDS_MAX,
            sharded: value[1] & 1 << 6 != 0,
            is_shard: value[1] & 1 << 7 != 0,
            quota: 0,
            lease: None,
            volatile: None,
        };
        let has_shards = inode.shards > 0;
        let sound = (has_shards || !inode.sharded) && !(has_shards && inode.is_shard);
        (inode.is_dir() && sound).then_some(inode)
    }

    #[inline]
    fn decode_packed(value: &[u8]) -> Option<Inode> {
        let mut cursor = Cursor::new(&value[1..]);
        let flags = cursor.byte()?;
        let mode = cursor.u16()?;
        let btime = cursor.u64()?;
        let (uid, gid) = (cursor.varint_u32()?, cursor.varint_u32()?);
        let size = cursor.varint()?;
        let generation = cursor.varint()?;
        let data_version = cursor.varint()?;
        let layout = cursor.varint()?;
        let mut optional = |bit: u8| if flags >> bit & 1 == 1 { cursor.varint().map(Some) } else { Some(None) };
        let nlink = optional(0)?.unwrap_or(1);
        let atime = btime.wrapping_add(unzigzag(optional(1)?.unwrap_or(0)) as u64);
        let mtime = btime.wrapping_add(unzigzag(optional(2)?.unwrap_or(0)) as u64);
        let ctime = mtime.wrapping_add(unzigzag(optional(3)?.unwrap_or(0)) as u64);
        let rdev = optional(4)?.unwrap_or(0);
        let stored = optional(5)?.unwrap_or(size);
        let more = if flags & MORE == 0 { 0 } else { cursor.varint().filter(|more| matches!(more, 1..=15))? };
        let quota = if more & MORE_QUOTA == 0 { 0 } else { cursor.varint().filter(|quota| *quota != 0)? };
        let lease = if more & MORE_LEASE == 0 {
            None
        } else {
            let (session, number) = (cursor.varint()?, cursor.varint()?);
            Some(OverwriteLease { session, number }).filter(|_| session != 0 && number != 0)
        };
        if lease.is_none() && more & MORE_LEASE != 0 {
            return None;
        }
        let mut volatile = None;
        if more & MORE_VOLATILE != 0 {
            let (session, from, to) = (cursor.varint()?, cursor.varint()?, cursor.varint()?);
            volatile = Some(Some(Volatile { session, from, to }).filter(|_| session != 0 && from < to)?);
        }
        cursor.end()?;
        NodeType::of_mode(mode)?;
        let inode = Inode {
            mode,
            nlink: u32::try_from(nlink).ok()?,
            uid,
            gid,
            size,
            atime,
            mtime,
            ctime,
            btime,
            layout,
            generation,
            rdev: u32::try_from(rdev).ok()?,
            stored,
            data_version,
            unnamed: flags >> 6 & 1 == 1,
            parent: 0,
            acl: more & MORE_ACL != 0,
            default_acl: false,
            shards: 0,
            sharded: false,
            is_shard: false,
            quota,
            lease,
            volatile,
        };
        (!inode.is_dir()).then_some(inode)
    }
}
