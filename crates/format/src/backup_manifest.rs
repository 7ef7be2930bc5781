//! [`BackupManifest`]: what one backup of a cluster's metadata consists of: a checkpoint of each Raft group, by
//! checksum.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic `CAIRNBKP` |
//! | 8 | 4 | format version |
//! | 12 | 4 | CRC-32C of the file with this field zero |
//! | 16 | 16 | cluster id |
//! | 32 | 8 | number of the backup in its directory, from 1 on |
//! | 40 | 8 | when it was begun, nanoseconds since 1970 |
//! | 48 | 8 | when it was complete |
//! | 56 | 4 | number of entries, at most [`ENTRIES_MAX`] |
//! | 60 | 4 | zero |
//! | 64 | 64 each | entries by ascending group |
//!
//! An entry:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | Raft group; 0: the manager's, else the meta partition |
//! | 4 | 4 | node that gave it |
//! | 8 | 8 | index of the last log entry in the state |
//! | 16 | 8 | its term |
//! | 24 | 8 | its logged time |
//! | 32 | 8 | bytes of the checkpoint file |
//! | 40 | 4 | CRC-32C of the whole file |
//! | 44 | 1 | 1: a leader gave it, so all that was acknowledged before the backup was begun is in it; 0: any member did |
//! | 45 | 1 | from version 2 on; 1: of one moment with the other partitions of its volume that have a 1 here |
//! | 46 | 18 | zero |
//!
//! All numbers little-endian. It is written last, so a backup without one is none. Not here: where the files lie.

use cairn_types::{ClusterId, GroupId, NodeId, WallTime, crc32c, crc32c_append};

use crate::le::{u32_at, u64_at};

/// Newest version, which is written. Version 1 has no moments, and is read.
pub const BACKUP_VERSION: u32 = 2;
/// Groups of a backup: the manager's and all partitions.
pub const ENTRIES_MAX: usize = 1 << 20;
/// Bytes of the longest file.
pub const BACKUP_LEN_MAX: usize = HEADER_LEN + ENTRIES_MAX * ENTRY_LEN;

const MAGIC: &[u8; 8] = b"CAIRNBKP";
const HEADER_LEN: usize = 64;
const ENTRY_LEN: usize = 64;

/// One group's checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackupEntry {
    pub group: GroupId,
    /// Who gave it.
    pub node: NodeId,
    pub index: u64,
    pub term: u64,
    /// Logged time of the last entry.
    pub time: WallTime,
    pub bytes: u64,
    pub crc: u32,
    /// A leader gave it.
    pub led: bool,
    /// It is of one moment with all other partitions of its volume.
    pub cut: bool,
}

/// One backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackupManifest {
    pub cluster: ClusterId,
    pub number: u64,
    pub begun: WallTime,
    pub ended: WallTime,
    /// By ascending group.
    pub entries: Vec<BackupEntry>,
}

/// Why a manifest is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BackupManifestError {
    /// Not ours.
    #[error("no magic of a backup")]
    Magic,
    /// Written by a newer program.
    #[error("format version {0} of the backup is not known to this program; use a newer one")]
    Version(u32),
    /// Bytes changed or are missing.
    #[error("checksum of the backup's manifest does not match")]
    Checksum,
    /// Fields that contradict each other, or reserved bytes set.
    #[error("the fields of the backup's manifest contradict each other")]
    Shape,
}

fn checksum(file: &[u8]) -> u32 {
    crc32c_append(crc32c_append(crc32c(&file[..12]), &[0; 4]), &file[16..])
}

impl BackupManifest {
    /// The file as it goes to disk.
    ///
    /// # Panics
    /// With more than [`ENTRIES_MAX`] entries.
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.entries.len() <= ENTRIES_MAX, "a backup has at most {ENTRIES_MAX} groups");
        let mut file = vec![0; HEADER_LEN];
        file[..8].copy_from_slice(MAGIC);
        file[8..12].copy_from_slice(&BACKUP_VERSION.to_le_bytes());
        file[16..32].copy_from_slice(&self.cluster.0);
        file[32..40].copy_from_slice(&self.number.to_le_bytes());
        file[40..48].copy_from_slice(&self.begun.0.to_le_bytes());
        file[48..56].copy_from_slice(&self.ended.0.to_le_bytes());
        file[56..60].copy_from_slice(&(self.entries.len() as u32).to_le_bytes());
        for entry in &self.entries {
            file.extend_from_slice(&entry.encode());
        }
        let crc = checksum(&file);
        file[12..16].copy_from_slice(&crc.to_le_bytes());
        file
    }

    /// Reads and verifies a whole file.
    pub fn decode(file: &[u8]) -> Result<Self, BackupManifestError> {
        if file.len() < HEADER_LEN || &file[..8] != MAGIC {
            return Err(BackupManifestError::Magic);
        }
        if u32_at(file, 12) != checksum(file) {
            return Err(BackupManifestError::Checksum);
        }
        let version = u32_at(file, 8);
        if version == 0 || version > BACKUP_VERSION {
            return Err(BackupManifestError::Version(version));
        }
        let (header, body) = file.split_at(HEADER_LEN);
        let count = u32_at(header, 56) as usize;
        if u32_at(header, 60) != 0 || count > ENTRIES_MAX || body.len() != count * ENTRY_LEN {
            return Err(BackupManifestError::Shape);
        }
        let entries: Option<Vec<_>> =
            body.chunks_exact(ENTRY_LEN).map(|entry| BackupEntry::decode(entry, version)).collect();
        let entries = entries.ok_or(BackupManifestError::Shape)?;
        let cluster = ClusterId::from_slice(&header[16..32]).expect("the slice has 16 bytes");
        let number = u64_at(header, 32);
        if cluster.is_none() || number == 0 || entries.windows(2).any(|pair| pair[0].group >= pair[1].group) {
            return Err(BackupManifestError::Shape);
        }
        let (begun, ended) = (WallTime(u64_at(header, 40)), WallTime(u64_at(header, 48)));
        Ok(Self { cluster, number, begun, ended, entries })
    }

    /// The entry of a group.
    pub fn entry(&self, group: GroupId) -> Option<&BackupEntry> {
        self.entries.iter().find(|entry| entry.group == group)
    }
}

impl BackupEntry {
    fn encode(&self) -> [u8; ENTRY_LEN] {
        let mut out = [0; ENTRY_LEN];
        out[..4].copy_from_slice(&self.group.0.to_le_bytes());
        out[4..8].copy_from_slice(&self.node.0.to_le_bytes());
        for (at, number) in [(8, self.index), (16, self.term), (24, self.time.0), (32, self.bytes)] {
            out[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
        out[40..44].copy_from_slice(&self.crc.to_le_bytes());
        out[44] = u8::from(self.led);
        out[45] = u8::from(self.cut);
        out
    }

    fn decode(entry: &[u8], version: u32) -> Option<Self> {
        let cut_max = u8::from(version > 1);
        if entry[44] > 1 || entry[45] > cut_max || entry[46..].iter().any(|&b| b != 0) {
            return None;
        }
        Some(Self {
            group: GroupId(u32_at(entry, 0)),
            node: NodeId(u32_at(entry, 4)),
            index: u64_at(entry, 8),
            term: u64_at(entry, 16),
            time: WallTime(u64_at(entry, 24)),
            bytes: u64_at(entry, 32),
            crc: u32_at(entry, 40),
            led: entry[44] == 1,
            cut: entry[45] == 1,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> BackupManifest {
        let entry = |group, led| BackupEntry {
            group: GroupId(group),
            node: NodeId(16 + group),
            index: 1 << 33,
            term: 7,
            time: WallTime(99),
            bytes: 1 << 20,
            crc: 0xAABB_CCDD,
            led,
            cut: !led,
        };
        BackupManifest {
            cluster: ClusterId([5; 16]),
            number: 3,
            begun: WallTime(1 << 60),
            ended: WallTime((1 << 60) + 9),
            entries: vec![entry(0, true), entry(4, false)],
        }
    }

    /// A backup could not be read by the next version.
    #[test]
    fn golden_bytes() {
        let bytes = sample().encode();
        assert_eq!(bytes.len(), 192);
        assert_eq!(&bytes[..12], b"CAIRNBKP\x02\0\0\0");
        assert_eq!(&bytes[28..42], &[5, 5, 5, 5, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&bytes[56..72], &[2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0]);
        assert_eq!(&bytes[104..112], &[0xDD, 0xCC, 0xBB, 0xAA, 1, 0, 0, 0]);
        assert_eq!(&bytes[168..176], &[0xDD, 0xCC, 0xBB, 0xAA, 0, 1, 0, 0]);
        assert_eq!(BackupManifest::decode(&bytes), Ok(sample()));
    }

    /// Backups of before could not be restored, or one of them would claim to be of one moment.
    #[test]
    fn version_1_is_read() {
        let mut file = sample().encode();
        let rewrite = |file: &mut Vec<u8>| {
            file[8] = 1;
            let crc = checksum(file);
            file[12..16].copy_from_slice(&crc.to_le_bytes());
        };
        rewrite(&mut file);
        assert_eq!(BackupManifest::decode(&file), Err(BackupManifestError::Shape));
        let mut before = sample();
        before.entries[1].cut = false;
        file = before.encode();
        rewrite(&mut file);
        assert_eq!(BackupManifest::decode(&file), Ok(before));
    }

    /// A damaged manifest would vouch for files that it does not know.
    #[test]
    fn any_flipped_bit_is_detected() {
        let bytes = sample().encode();
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(BackupManifest::decode(&bad).is_err(), "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert!(BackupManifest::decode(&bytes[..len]).is_err(), "cut at {len}");
        }
    }

    /// Two entries of a group would leave open which state is restored.
    #[test]
    fn groups_ascend() {
        let mut bad = sample();
        bad.entries[1].group = GroupId(0);
        assert_eq!(BackupManifest::decode(&bad.encode()), Err(BackupManifestError::Shape));
        assert_eq!(sample().entry(GroupId(4)).map(|entry| entry.node), Some(NodeId(20)));
    }
}
