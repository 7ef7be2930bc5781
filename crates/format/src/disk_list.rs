//! [`DiskList`]: the disks that a node ever used and where, so that the empty mount point of one that is absent does
//! not pass for a new disk.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic `CAIRNDSK` |
//! | 8 | 4 | format version |
//! | 12 | 4 | CRC-32C of the file with this field zero |
//! | 16 | 16 | uuid of the node's directory |
//! | 32 | 4 | number of entries, at most [`DISKS_MAX`] |
//! | 36 | 28 | zero |
//! | 64 | | entries, by ascending path |
//!
//! An entry:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 16 | uuid in the label of the disk that was last seen there |
//! | 16 | 2 | bytes of the path, 1 to [`PATH_MAX`] |
//! | 18 | 6 | zero |
//! | 24 | length | path of the disk's directory, UTF-8, filled up with zeros to a multiple of 8 |
//!
//! All numbers little-endian. The file is replaced as a whole.

use std::collections::BTreeMap;

use cairn_types::{DiskUuid, crc32c, crc32c_append};

use crate::le::u32_at;

/// Newest version written and read.
pub const DISK_LIST_VERSION: u32 = 1;
/// Entries of a file.
pub const DISKS_MAX: usize = 1024;
/// Bytes of a path.
pub const PATH_MAX: usize = 4096;
/// Bytes of the longest file.
pub const DISK_LIST_LEN_MAX: usize = HEADER_LEN + DISKS_MAX * (ENTRY_HEAD_LEN + PATH_MAX);

const MAGIC: &[u8; 8] = b"CAIRNDSK";
const HEADER_LEN: usize = 64;
const ENTRY_HEAD_LEN: usize = 24;
const _: () = assert!(PATH_MAX.is_multiple_of(8) && ENTRY_HEAD_LEN.is_multiple_of(8));

/// All disks of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskList {
    /// The node's directory.
    pub node: DiskUuid,
    /// Path → the disk that was last seen there.
    pub disks: BTreeMap<String, DiskUuid>,
}

/// Why a list is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DiskListError {
    /// Not ours.
    #[error("no magic of a list of disks")]
    Magic,
    /// Written by a newer program.
    #[error("format version {0}")]
    Version(u32),
    /// Bytes changed or are missing.
    #[error("checksum of the list of disks does not match")]
    Checksum,
    /// Fields that contradict each other, or reserved bytes set.
    #[error("the fields of the list of disks contradict each other")]
    Shape,
}

fn checksum(file: &[u8]) -> u32 {
    crc32c_append(crc32c_append(crc32c(&file[..12]), &[0; 4]), &file[16..])
}

impl DiskList {
    /// True when the format has room for the list with this path.
    pub fn has_room_for(&self, path: &str) -> bool {
        let fits = !path.is_empty() && path.len() <= PATH_MAX;
        fits && (self.disks.len() < DISKS_MAX || self.disks.contains_key(path))
    }

    /// The file as it goes to disk.
    ///
    /// # Panics
    /// With more or longer entries than the format has room for.
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.disks.len() <= DISKS_MAX, "a node has at most {DISKS_MAX} disks");
        let mut file = vec![0; HEADER_LEN];
        file[..8].copy_from_slice(MAGIC);
        file[8..12].copy_from_slice(&DISK_LIST_VERSION.to_le_bytes());
        file[16..32].copy_from_slice(&self.node.0);
        file[32..36].copy_from_slice(&(self.disks.len() as u32).to_le_bytes());
        for (path, uuid) in &self.disks {
            assert!((1..=PATH_MAX).contains(&path.len()), "a path has 1 to {PATH_MAX} bytes");
            file.extend_from_slice(&uuid.0);
            file.extend_from_slice(&(path.len() as u16).to_le_bytes());
            file.extend_from_slice(&[0; 6]);
            file.extend_from_slice(path.as_bytes());
            file.resize(file.len().next_multiple_of(8), 0);
        }
        let crc = checksum(&file);
        file[12..16].copy_from_slice(&crc.to_le_bytes());
        file
    }

    /// Reads and verifies a whole file.
    pub fn decode(file: &[u8]) -> Result<Self, DiskListError> {
        if file.len() < HEADER_LEN || &file[..8] != MAGIC {
            return Err(DiskListError::Magic);
        }
        if u32_at(file, 12) != checksum(file) {
            return Err(DiskListError::Checksum);
        }
        let version = u32_at(file, 8);
        if version != DISK_LIST_VERSION {
            return Err(DiskListError::Version(version));
        }
        let (header, mut rest) = file.split_at(HEADER_LEN);
        let count = u32_at(header, 32) as usize;
        if header[36..].iter().any(|b| *b != 0) || count > DISKS_MAX {
            return Err(DiskListError::Shape);
        }
        let mut disks = BTreeMap::new();
        for _ in 0..count {
            let (path, uuid, behind) = entry(rest).ok_or(DiskListError::Shape)?;
            if disks.last_key_value().is_some_and(|(last, _): (&String, _)| last.as_str() >= path) {
                return Err(DiskListError::Shape);
            }
            disks.insert(path.to_owned(), uuid);
            rest = behind;
        }
        if !rest.is_empty() {
            return Err(DiskListError::Shape);
        }
        Ok(Self { node: DiskUuid::from_slice(&header[16..32]).expect("the slice has 16 bytes"), disks })
    }
}

/// The first entry and what is behind it.
fn entry(bytes: &[u8]) -> Option<(&str, DiskUuid, &[u8])> {
    let (head, rest) = bytes.split_at_checked(ENTRY_HEAD_LEN)?;
    let len = usize::from(u16::from_le_bytes([head[16], head[17]]));
    if !(1..=PATH_MAX).contains(&len) || head[18..].iter().any(|b| *b != 0) {
        return None;
    }
    let (padded, rest) = rest.split_at_checked(len.next_multiple_of(8))?;
    let (path, zeros) = padded.split_at(len);
    if zeros.iter().any(|b| *b != 0) {
        return None;
    }
    let uuid = DiskUuid::from_slice(&head[..16]).expect("the slice has 16 bytes");
    Some((std::str::from_utf8(path).ok()?, uuid, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> DiskList {
        let disks = [("/mnt/d1", 1), ("/mnt/d10", 2)].map(|(path, n)| (path.to_owned(), DiskUuid([n; 16])));
        DiskList { node: DiskUuid([5; 16]), disks: BTreeMap::from(disks) }
    }

    /// A mount point would pass for a new disk after an upgrade if the bytes changed without a new version.
    #[test]
    fn golden_bytes() {
        let file = sample().encode();
        assert_eq!(file.len(), 64 + 32 + 32);
        assert_eq!(&file[..12], b"CAIRNDSK\x01\0\0\0");
        assert_eq!(&file[12..16], &0x0243_B995_u32.to_le_bytes());
        assert_eq!(&file[32..36], &[2, 0, 0, 0]);
        assert_eq!(&file[64..80], &[1; 16]);
        assert_eq!(&file[80..96], b"\x07\0\0\0\0\0\0\0/mnt/d1\0");
        assert_eq!(DiskList::decode(&file), Ok(sample()));
        let none = DiskList { node: DiskUuid([5; 16]), disks: BTreeMap::new() };
        assert_eq!(DiskList::decode(&none.encode()), Ok(none));
    }

    /// A disk could be forgotten if a flipped bit or a cut file went unnoticed.
    #[test]
    fn any_flipped_bit_and_any_cut_is_detected() {
        let file = sample().encode();
        for bit in 0..file.len() * 8 {
            let mut bad = file.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(DiskList::decode(&bad).is_err(), "bit {bit}");
        }
        for len in 0..file.len() {
            assert!(DiskList::decode(&file[..len]).is_err(), "cut at {len}");
        }
    }

    /// Entries that were not written so, with a right checksum, must not be taken for a list.
    #[test]
    fn contradictions_are_refused() {
        let spoils: [fn(&mut Vec<u8>); 7] = [
            |file| file[32] = 3,
            |file| file[32] = 1,
            |file| file[40] = 1,
            |file| file[80] = 0,
            |file| file[81] = 0xff,
            |file| file[88] = 0xff,
            |file| file[94] = b'2',
        ];
        for (n, spoil) in spoils.into_iter().enumerate() {
            let mut file = sample().encode();
            spoil(&mut file);
            let crc = checksum(&file);
            file[12..16].copy_from_slice(&crc.to_le_bytes());
            assert_eq!(DiskList::decode(&file), Err(DiskListError::Shape), "{n}");
        }
    }

    /// The longest list has to fit the bound that readers use.
    #[test]
    fn the_longest_list_fits() {
        let path = |n: usize| format!("{n:0>width$}", width = PATH_MAX);
        let mut list = DiskList { node: DiskUuid::NONE, disks: BTreeMap::new() };
        for n in 0..DISKS_MAX {
            assert!(list.has_room_for(&path(n)));
            list.disks.insert(path(n), DiskUuid::NONE);
        }
        assert!(!list.has_room_for("/x") && list.has_room_for(&path(3)) && !list.has_room_for(""));
        let file = list.encode();
        assert_eq!(file.len(), DISK_LIST_LEN_MAX);
        assert_eq!(DiskList::decode(&file), Ok(list));
    }
}
