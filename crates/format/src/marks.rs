//! [`MarkList`]: how far members of Raft groups got, as a node remembers it: its own and others.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic `CAIRNMRK` |
//! | 8 | 4 | format version |
//! | 12 | 4 | CRC-32C of the file with this field zero |
//! | 16 | 16 | uuid of the node's directory |
//! | 32 | 4 | number of entries, at most [`MARKS_MAX`] |
//! | 36 | 28 | zero |
//! | 64 | 32 each | entries, by ascending group and node |
//!
//! An entry:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | group |
//! | 4 | 4 | node; 0: not a member, but an entry that is known to be applied when the group had the members that follow |
//! | 8 | 8 | term; of node 0: 1 if a person accepted that this node's member has forgotten something, until it is known again; else 0 |
//! | 16 | 8 | index: the last entry of the term; 1: it voted in the term; 0: neither |
//! | 24 | 8 | zero |
//!
//! All numbers little-endian. The file is replaced as a whole, at most every few seconds: it is a memory of others, and
//! an older one knows less. Not here: what follows from it (cairn-raft).

use cairn_types::{DiskUuid, GroupId, NodeId, crc32c, crc32c_append};

use crate::le::{u32_at, u64_at};

/// Newest version written and read.
pub const MARKS_VERSION: u32 = 1;
/// The term of a group's own entry while something that this node's member has forgotten, as a person accepted, is not
/// known again. Programs of before take no notice of it, and write 0.
pub const LOSS_ACCEPTED: u64 = 1;
/// Entries of a file.
pub const MARKS_MAX: usize = 1 << 20;

const MAGIC: &[u8; 8] = b"CAIRNMRK";
const HEADER_LEN: usize = 64;
const ENTRY_LEN: usize = 32;

/// One member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MarkEntry {
    /// Of which group.
    pub group: GroupId,
    /// Which; 0: the group itself.
    pub node: NodeId,
    /// Term; of the group itself [`LOSS_ACCEPTED`] or 0.
    pub term: u64,
    /// Index.
    pub index: u64,
}

/// All that a node remembers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MarkList {
    /// The node's directory.
    pub node: DiskUuid,
    /// By ascending group and node.
    pub entries: Vec<MarkEntry>,
}

/// Why a list is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MarkListError {
    /// Not ours.
    #[error("no magic of a list of marks")]
    Magic,
    /// Written by a newer program.
    #[error("format version {0}")]
    Version(u32),
    /// Bytes changed or are missing.
    #[error("checksum of the list of marks does not match")]
    Checksum,
    /// Fields that contradict each other, or reserved bytes set.
    #[error("the fields of the list of marks contradict each other")]
    Shape,
}

fn checksum(file: &[u8]) -> u32 {
    crc32c_append(crc32c_append(crc32c(&file[..12]), &[0; 4]), &file[16..])
}

impl MarkList {
    /// The file as it goes to disk.
    ///
    /// # Panics
    /// With more entries than the format has room for.
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.entries.len() <= MARKS_MAX, "a node remembers at most {MARKS_MAX} marks");
        let mut file = vec![0; HEADER_LEN];
        file[..8].copy_from_slice(MAGIC);
        file[8..12].copy_from_slice(&MARKS_VERSION.to_le_bytes());
        file[16..32].copy_from_slice(&self.node.0);
        file[32..36].copy_from_slice(&(self.entries.len() as u32).to_le_bytes());
        for entry in &self.entries {
            file.extend_from_slice(&entry.group.0.to_le_bytes());
            file.extend_from_slice(&entry.node.0.to_le_bytes());
            file.extend_from_slice(&entry.term.to_le_bytes());
            file.extend_from_slice(&entry.index.to_le_bytes());
            file.extend_from_slice(&[0; 8]);
        }
        let crc = checksum(&file);
        file[12..16].copy_from_slice(&crc.to_le_bytes());
        file
    }

    /// Reads and verifies a whole file.
    pub fn decode(file: &[u8]) -> Result<Self, MarkListError> {
        if file.len() < HEADER_LEN || &file[..8] != MAGIC {
            return Err(MarkListError::Magic);
        }
        if u32_at(file, 12) != checksum(file) {
            return Err(MarkListError::Checksum);
        }
        let version = u32_at(file, 8);
        if version != MARKS_VERSION {
            return Err(MarkListError::Version(version));
        }
        let (header, body) = file.split_at(HEADER_LEN);
        let count = u32_at(header, 32) as usize;
        if header[36..].iter().any(|b| *b != 0) || count > MARKS_MAX || body.len() != count * ENTRY_LEN {
            return Err(MarkListError::Shape);
        }
        let entry = |bytes: &[u8]| MarkEntry {
            group: GroupId(u32_at(bytes, 0)),
            node: NodeId(u32_at(bytes, 4)),
            term: u64_at(bytes, 8),
            index: u64_at(bytes, 16),
        };
        let entries: Vec<MarkEntry> = body.chunks_exact(ENTRY_LEN).map(entry).collect();
        let reserved = body.chunks_exact(ENTRY_LEN).any(|bytes| bytes[24..].iter().any(|b| *b != 0));
        let flags = entries.iter().any(|entry| entry.node.0 == 0 && entry.term > LOSS_ACCEPTED);
        if reserved || flags || !entries.is_sorted_by(|a, b| (a.group, a.node) < (b.group, b.node)) {
            return Err(MarkListError::Shape);
        }
        Ok(Self { node: DiskUuid::from_slice(&header[16..32]).expect("the slice has 16 bytes"), entries })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> MarkList {
        let entry = |group, node, term, index| MarkEntry { group: GroupId(group), node: NodeId(node), term, index };
        let entries = vec![entry(0, 0, 0, 90), entry(0, 1, 3, 91), entry(0, 2, 3, 88), entry(7, 1, 5, 1)];
        MarkList { node: DiskUuid([5; 16]), entries }
    }

    /// What a node remembers could not be read any more if the bytes changed without a new version.
    #[test]
    fn golden_bytes() {
        let file = sample().encode();
        assert_eq!(file.len(), 64 + 4 * 32);
        assert_eq!(&file[..12], b"CAIRNMRK\x01\0\0\0");
        assert_eq!(&file[32..40], &[4, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&file[96..104], &[0, 0, 0, 0, 1, 0, 0, 0]);
        assert_eq!(&file[104..128], &[3, 0, 0, 0, 0, 0, 0, 0, 91, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(MarkList::decode(&file), Ok(sample()));
        let mut accepted = sample();
        accepted.entries[0].term = LOSS_ACCEPTED;
        let file = accepted.encode();
        assert_eq!(
            &file[64..96],
            &[0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 90, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        );
        assert_eq!(MarkList::decode(&file), Ok(accepted));
        let none = MarkList { node: DiskUuid([5; 16]), entries: Vec::new() };
        assert_eq!(MarkList::decode(&none.encode()), Ok(none));
    }

    /// A mark of nobody would shut out a sound member.
    #[test]
    fn any_flipped_bit_and_any_cut_is_detected() {
        let file = sample().encode();
        for bit in 0..file.len() * 8 {
            let mut bad = file.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(MarkList::decode(&bad).is_err(), "bit {bit}");
        }
        for len in 0..file.len() {
            assert!(MarkList::decode(&file[..len]).is_err(), "cut at {len}");
        }
    }

    /// Two marks of one member would leave open which one counts.
    #[test]
    fn contradictions_are_refused() {
        for spoil in [
            |list: &mut MarkList| list.entries.swap(0, 1),
            |list: &mut MarkList| list.entries[1].node = NodeId(2),
            |list: &mut MarkList| list.entries[0].term = 2,
        ] {
            let mut bad = sample();
            spoil(&mut bad);
            assert_eq!(MarkList::decode(&bad.encode()), Err(MarkListError::Shape));
        }
        let mut bad = sample().encode();
        bad[64 + 24] = 1;
        let crc = checksum(&bad);
        bad[12..16].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(MarkList::decode(&bad), Err(MarkListError::Shape));
    }
}
