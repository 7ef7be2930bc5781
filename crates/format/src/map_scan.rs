//! [`MapScan`]: what the directories of a machine say about the cluster: copies of labels, placement group states and
//! lists of partitions, so that a cluster map can be rebuilt on another machine.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic `CAIRNSCN` |
//! | 8 | 4 | format version |
//! | 12 | 4 | CRC-32C of the file with this field zero |
//! | 16 | 4 | number of items, at most [`ITEMS_MAX`] |
//! | 20 | 44 | zero |
//! | 64 | | items |
//!
//! An item: kind u8, zero 3, bytes of the path u16, zero 2, bytes of the contents u32, zero 4; then the path (where it
//! was found, UTF-8), then the contents.
//!
//! | kind | contents |
//! |---|---|
//! | 1 | a [label](crate::label) of a node's directory or of a disk |
//! | 2 | the [state of a placement group](crate::pg_state) of the disk whose label came last |
//! | 3 | a [list of partitions](crate::partition_list) of the node whose label came last |
//! | 4 | the head (first block) of the newest [checkpoint](crate::checkpoint) of a group of that node |
//!
//! All numbers little-endian. The contents carry checksums of their own. Not here: what follows from them
//! (manager-core).

use cairn_types::{crc32c, crc32c_append};

use crate::le::u32_at;

/// Newest version written and read.
pub const MAP_SCAN_VERSION: u32 = 1;
/// Items of a file.
pub const ITEMS_MAX: usize = 1 << 24;
/// Bytes of a path.
pub const PATH_MAX: usize = 4096;
/// Bytes of an item's contents.
pub const CONTENTS_MAX: usize = 8 << 20;

const MAGIC: &[u8; 8] = b"CAIRNSCN";
const HEADER_LEN: usize = 64;
const ITEM_LEN: usize = 16;

/// What an item is a copy of. Codes are never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ScanKind {
    Label = 1,
    PgState = 2,
    PartitionList = 3,
    CheckpointHead = 4,
}

impl ScanKind {
    fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Label,
            2 => Self::PgState,
            3 => Self::PartitionList,
            4 => Self::CheckpointHead,
            _ => return None,
        })
    }
}

/// A file's copy, or a part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScanItem {
    pub kind: ScanKind,
    pub path: String,
    pub contents: Vec<u8>,
}

/// All that was found, in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MapScan {
    pub items: Vec<ScanItem>,
}

/// Why a scan is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MapScanError {
    /// Not ours.
    #[error("no magic of a scan")]
    Magic,
    /// Written by a newer program.
    #[error("format version {0} of the scan is not known to this program; use a newer one")]
    Version(u32),
    /// Bytes changed or are missing.
    #[error("checksum of the scan does not match")]
    Checksum,
    /// Fields that contradict each other, or reserved bytes set.
    #[error("the fields of the scan contradict each other")]
    Shape,
}

fn checksum(file: &[u8]) -> u32 {
    crc32c_append(crc32c_append(crc32c(&file[..12]), &[0; 4]), &file[16..])
}

impl MapScan {
    /// The file as it goes to disk.
    ///
    /// # Panics
    /// With more items, or longer ones, than the format has room for.
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.items.len() <= ITEMS_MAX, "a scan has at most {ITEMS_MAX} items");
        let mut file = vec![0; HEADER_LEN];
        file[..8].copy_from_slice(MAGIC);
        file[8..12].copy_from_slice(&MAP_SCAN_VERSION.to_le_bytes());
        file[16..20].copy_from_slice(&(self.items.len() as u32).to_le_bytes());
        for item in &self.items {
            assert!(item.path.len() <= PATH_MAX && item.contents.len() <= CONTENTS_MAX, "{} is too long", item.path);
            let mut head = [0; ITEM_LEN];
            head[0] = item.kind as u8;
            head[4..6].copy_from_slice(&(item.path.len() as u16).to_le_bytes());
            head[8..12].copy_from_slice(&(item.contents.len() as u32).to_le_bytes());
            file.extend_from_slice(&head);
            file.extend_from_slice(item.path.as_bytes());
            file.extend_from_slice(&item.contents);
        }
        let crc = checksum(&file);
        file[12..16].copy_from_slice(&crc.to_le_bytes());
        file
    }

    /// Reads and verifies a whole file.
    pub fn decode(file: &[u8]) -> Result<Self, MapScanError> {
        if file.len() < HEADER_LEN || &file[..8] != MAGIC {
            return Err(MapScanError::Magic);
        }
        if u32_at(file, 12) != checksum(file) {
            return Err(MapScanError::Checksum);
        }
        let version = u32_at(file, 8);
        if version != MAP_SCAN_VERSION {
            return Err(MapScanError::Version(version));
        }
        let count = u32_at(file, 16) as usize;
        if file[20..HEADER_LEN].iter().any(|&b| b != 0) || count > ITEMS_MAX {
            return Err(MapScanError::Shape);
        }
        let mut rest = &file[HEADER_LEN..];
        let mut items = Vec::with_capacity(count.min(rest.len() / ITEM_LEN));
        for _ in 0..count {
            items.push(ScanItem::take(&mut rest).ok_or(MapScanError::Shape)?);
        }
        if rest.is_empty() { Ok(Self { items }) } else { Err(MapScanError::Shape) }
    }
}

impl ScanItem {
    fn take(rest: &mut &[u8]) -> Option<Self> {
        let (head, behind) = rest.split_at_checked(ITEM_LEN)?;
        if head[1..4].iter().chain(&head[6..8]).chain(&head[12..16]).any(|&b| b != 0) {
            return None;
        }
        let (path, contents) = (usize::from(u16::from_le_bytes([head[4], head[5]])), u32_at(head, 8) as usize);
        if path > PATH_MAX || contents > CONTENTS_MAX {
            return None;
        }
        let (path, behind) = behind.split_at_checked(path)?;
        let (contents, behind) = behind.split_at_checked(contents)?;
        *rest = behind;
        Some(Self {
            kind: ScanKind::from_code(head[0])?,
            path: std::str::from_utf8(path).ok()?.to_owned(),
            contents: contents.to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> MapScan {
        let item =
            |kind, path: &str, contents: &[u8]| ScanItem { kind, path: path.into(), contents: contents.to_vec() };
        MapScan { items: vec![item(ScanKind::Label, "/mnt/d1/label", &[1; 9]), item(ScanKind::PgState, "", &[2; 3])] }
    }

    /// Scans of machines with different versions could not be put together.
    #[test]
    fn golden_bytes() {
        let bytes = sample().encode();
        assert_eq!(bytes.len(), 64 + 16 + 13 + 9 + 16 + 3);
        assert_eq!(&bytes[..12], b"CAIRNSCN\x01\0\0\0");
        assert_eq!(&bytes[64..80], &[1, 0, 0, 0, 13, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&bytes[102..104], &[2, 0]);
        assert_eq!(MapScan::decode(&bytes), Ok(sample()));
    }

    /// A scan that was damaged on its way would rebuild another cluster.
    #[test]
    fn any_flipped_bit_is_detected() {
        let bytes = sample().encode();
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(MapScan::decode(&bad).is_err(), "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert!(MapScan::decode(&bytes[..len]).is_err(), "cut at {len}");
        }
    }
}
