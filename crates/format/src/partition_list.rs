//! [`PartitionList`]: the meta partitions of which a node is a member, so that it opens them before any manager
//! answers.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic `CAIRNPTL` |
//! | 8 | 4 | format version |
//! | 12 | 4 | CRC-32C of the file with this field zero |
//! | 16 | 16 | uuid of the node's directory |
//! | 32 | 4 | number of entries, at most [`PARTITIONS_MAX`] |
//! | 36 | 28 | zero |
//! | 64 | 96 each | entries, by ascending partition |
//!
//! An entry:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | partition |
//! | 4 | 4 | volume |
//! | 8 | 8 | first inode |
//! | 16 | 8 | last inode |
//! | 24 | 1 | 1: the Raft group has begun on this node, so its log must not be missing; 0: it may not have |
//! | 25 | 1 | number of members it began with, at most [`MEMBERS_MAX`] |
//! | 26 | 6 | zero |
//! | 32 | 32 | their node ids, the rest zero |
//! | 64 | 8 | layout of the volume's root directory, bits |
//! | 72 | 8 | time of the root directory, nanoseconds since 1970 |
//! | 80 | 16 | zero |
//!
//! All numbers little-endian. The file is replaced as a whole. Not here: the members of today (the Raft log knows).

use cairn_types::{DiskUuid, Layout, NodeId, PartitionId, VolumeId, WallTime, crc32c, crc32c_append};

use crate::le::{u32_at, u64_at};

/// Newest version written and read.
pub const PARTITION_LIST_VERSION: u32 = 1;
/// Entries of a file.
pub const PARTITIONS_MAX: usize = 1 << 16;
/// Members of an entry.
pub const MEMBERS_MAX: usize = 8;
/// Bytes before the entries.
pub const PARTITION_LIST_HEADER_LEN: usize = 64;

const MAGIC: &[u8; 8] = b"CAIRNPTL";
const ENTRY_LEN: usize = 96;
const MEMBERS_END: usize = 32 + 4 * MEMBERS_MAX;
const _: () = assert!(MEMBERS_END + 8 + 8 + 16 == ENTRY_LEN);

/// One partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionEntry {
    /// Which.
    pub partition: PartitionId,
    /// Of which volume.
    pub volume: VolumeId,
    /// The inodes it owns, both ends included.
    pub inodes: (u64, u64),
    /// The Raft group has begun here.
    pub begun: bool,
    /// Members it began with.
    pub members: Vec<NodeId>,
    /// Of the root directory.
    pub layout: Layout,
    /// When the volume was made.
    pub created: WallTime,
}

/// All partitions of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionList {
    /// The node's directory.
    pub node: DiskUuid,
    /// By ascending partition.
    pub entries: Vec<PartitionEntry>,
}

/// Why a list is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PartitionListError {
    /// Not ours.
    #[error("no magic of a list of partitions")]
    Magic,
    /// Written by a newer program.
    #[error("format version {0}")]
    Version(u32),
    /// Bytes changed or are missing.
    #[error("checksum of the list of partitions does not match")]
    Checksum,
    /// Fields that contradict each other, or reserved bytes set.
    #[error("the fields of the list of partitions contradict each other")]
    Shape,
}

fn checksum(file: &[u8]) -> u32 {
    crc32c_append(crc32c_append(crc32c(&file[..12]), &[0; 4]), &file[16..])
}

impl PartitionList {
    /// The file as it goes to disk.
    ///
    /// # Panics
    /// With more entries or members than the format has room for.
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.entries.len() <= PARTITIONS_MAX, "a node has at most {PARTITIONS_MAX} partitions");
        let mut file = vec![0; PARTITION_LIST_HEADER_LEN];
        file[..8].copy_from_slice(MAGIC);
        file[8..12].copy_from_slice(&PARTITION_LIST_VERSION.to_le_bytes());
        file[16..32].copy_from_slice(&self.node.0);
        file[32..36].copy_from_slice(&(self.entries.len() as u32).to_le_bytes());
        for entry in &self.entries {
            file.extend_from_slice(&entry.encode());
        }
        let crc = checksum(&file);
        file[12..16].copy_from_slice(&crc.to_le_bytes());
        file
    }

    /// Reads and verifies a whole file.
    pub fn decode(file: &[u8]) -> Result<Self, PartitionListError> {
        if file.len() < PARTITION_LIST_HEADER_LEN || &file[..8] != MAGIC {
            return Err(PartitionListError::Magic);
        }
        if u32_at(file, 12) != checksum(file) {
            return Err(PartitionListError::Checksum);
        }
        let version = u32_at(file, 8);
        if version != PARTITION_LIST_VERSION {
            return Err(PartitionListError::Version(version));
        }
        let (header, body) = file.split_at(PARTITION_LIST_HEADER_LEN);
        let count = u32_at(header, 32) as usize;
        if header[36..].iter().any(|b| *b != 0) || count > PARTITIONS_MAX || body.len() != count * ENTRY_LEN {
            return Err(PartitionListError::Shape);
        }
        let entries = body.chunks_exact(ENTRY_LEN).map(PartitionEntry::decode);
        let entries = entries.collect::<Option<Vec<_>>>().ok_or(PartitionListError::Shape)?;
        if !entries.is_sorted_by(|a, b| a.partition < b.partition) {
            return Err(PartitionListError::Shape);
        }
        Ok(Self { node: DiskUuid::from_slice(&header[16..32]).expect("the slice has 16 bytes"), entries })
    }
}

impl PartitionEntry {
    fn encode(&self) -> [u8; ENTRY_LEN] {
        assert!(self.members.len() <= MEMBERS_MAX, "a partition begins with at most {MEMBERS_MAX} members");
        let mut bytes = [0; ENTRY_LEN];
        bytes[..4].copy_from_slice(&self.partition.0.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.volume.0.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.inodes.0.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.inodes.1.to_le_bytes());
        bytes[24] = u8::from(self.begun);
        bytes[25] = self.members.len() as u8;
        for (at, member) in bytes[32..MEMBERS_END].chunks_exact_mut(4).zip(&self.members) {
            at.copy_from_slice(&member.0.to_le_bytes());
        }
        bytes[64..72].copy_from_slice(&self.layout.to_bits().to_le_bytes());
        bytes[72..80].copy_from_slice(&self.created.0.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let count = usize::from(bytes[25]);
        if bytes[24] > 1 || count > MEMBERS_MAX || bytes[26..32].iter().any(|b| *b != 0) {
            return None;
        }
        let (members, rest) = bytes[32..MEMBERS_END].split_at(4 * count);
        let entry = Self {
            partition: PartitionId(u32_at(bytes, 0)),
            volume: VolumeId(u32_at(bytes, 4)),
            inodes: (u64_at(bytes, 8), u64_at(bytes, 16)),
            begun: bytes[24] == 1,
            members: members.chunks_exact(4).map(|id| NodeId(u32_at(id, 0))).collect(),
            layout: Layout::from_bits(u64_at(bytes, 64))?,
            created: WallTime(u64_at(bytes, 72)),
        };
        let sound = entry.partition.0 != 0
            && entry.volume.0 != 0
            && entry.inodes.0 <= entry.inodes.1
            && entry.members.iter().all(|member| member.0 != 0)
            && rest.iter().chain(&bytes[80..]).all(|b| *b == 0);
        sound.then_some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> PartitionList {
        let entry = |partition: u32, begun| PartitionEntry {
            partition: PartitionId(partition),
            volume: VolumeId(7),
            inodes: (1, u64::MAX),
            begun,
            members: vec![NodeId(16), NodeId(17)],
            layout: Layout::replicated(3),
            created: WallTime(8),
        };
        PartitionList { node: DiskUuid([5; 16]), entries: vec![entry(3, true), entry(4, false)] }
    }

    /// An old directory could not be opened any more if the bytes changed without a new version.
    #[test]
    fn golden_bytes() {
        let file = sample().encode();
        assert_eq!(file.len(), 64 + 2 * 96);
        assert_eq!(&file[..12], b"CAIRNPTL\x01\0\0\0");
        assert_eq!(&file[64..80], &[3, 0, 0, 0, 7, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(
            &file[80..104],
            &[255, 255, 255, 255, 255, 255, 255, 255, 1, 2, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 17, 0, 0, 0]
        );
        assert_eq!(&file[128..144], &[3, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(PartitionList::decode(&file), Ok(sample()));
        let none = PartitionList { node: DiskUuid([5; 16]), entries: Vec::new() };
        assert_eq!(PartitionList::decode(&none.encode()), Ok(none));
    }

    /// A partition could be begun anew over its own data if a flipped bit or a cut file went unnoticed.
    #[test]
    fn any_flipped_bit_and_any_cut_is_detected() {
        let file = sample().encode();
        for bit in 0..file.len() * 8 {
            let mut bad = file.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(PartitionList::decode(&bad).is_err(), "bit {bit}");
        }
        for len in 0..file.len() {
            assert!(PartitionList::decode(&file[..len]).is_err(), "cut at {len}");
        }
    }

    /// A list that contradicts itself would open a partition twice or one that does not exist.
    #[test]
    fn contradictions_are_refused() {
        for spoil in [
            |list: &mut PartitionList| list.entries.swap(0, 1),
            |list: &mut PartitionList| list.entries[1].partition = PartitionId(3),
            |list: &mut PartitionList| list.entries[0].inodes = (2, 1),
            |list: &mut PartitionList| list.entries[0].members[0] = NodeId(0),
            |list: &mut PartitionList| list.entries[0].volume = VolumeId(0),
        ] {
            let mut bad = sample();
            spoil(&mut bad);
            assert_eq!(PartitionList::decode(&bad.encode()), Err(PartitionListError::Shape));
        }
    }
}
