//! [`Label`]: the identity of a node's state directory or of a disk, written once, updated when more becomes known.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic `CAIRNLBL` |
//! | 8 | 4 | format version |
//! | 12 | 4 | CRC-32C of the block with this field zero |
//! | 16 | 16 | cluster id (zero: not known yet) |
//! | 32 | 16 | uuid of this directory, random, never changes |
//! | 48 | 4 | node id (zero: not registered yet) |
//! | 52 | 4 | disk id (zero: not registered yet, or a node's directory) |
//! | 56 | 1 | kind: 1 node, 2 disk |
//! | 57 | 7 | zero |
//! | 64 | 8 | time of creation, nanoseconds since 1970 |
//! | 72 | 4024 | zero |
//!
//! All numbers little-endian. Invariants: cluster, node and disk id change from zero to a value once and never again.

use cairn_types::{ClusterId, DiskId, DiskUuid, NodeId, WallTime, crc32c, crc32c_append};

use crate::le::{u32_at, u64_at};

/// Bytes of a label.
pub const LABEL_LEN: usize = 4096;
/// Newest version written and read.
pub const LABEL_VERSION: u32 = 1;

const MAGIC: &[u8; 8] = b"CAIRNLBL";

/// What the label is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum LabelKind {
    /// A node's state directory.
    Node = 1,
    /// A disk of a data node.
    Disk = 2,
}

impl LabelKind {
    /// The word in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Node => "node directory",
            Self::Disk => "disk",
        }
    }
}

/// Identity of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Label {
    /// What it is.
    pub kind: LabelKind,
    /// The cluster, or none yet.
    pub cluster: ClusterId,
    /// The directory itself.
    pub uuid: DiskUuid,
    /// The node, or 0.
    pub node: NodeId,
    /// The disk, or 0.
    pub disk: DiskId,
    /// When it was made.
    pub created: WallTime,
}

/// Why a label is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LabelError {
    /// Not ours.
    #[error("no magic of a label")]
    Magic,
    /// Written by a newer program.
    #[error("format version {0}")]
    Version(u32),
    /// Bytes changed.
    #[error("checksum of the label does not match")]
    Checksum,
    /// An unknown kind, or reserved bytes set.
    #[error("the label's fields contradict each other")]
    Shape,
}

fn checksum(block: &[u8; LABEL_LEN]) -> u32 {
    crc32c_append(crc32c_append(crc32c(&block[..12]), &[0; 4]), &block[16..])
}

impl Label {
    /// The block as it goes to disk.
    pub fn encode(&self) -> [u8; LABEL_LEN] {
        let mut block = [0; LABEL_LEN];
        block[..8].copy_from_slice(MAGIC);
        block[8..12].copy_from_slice(&LABEL_VERSION.to_le_bytes());
        block[16..32].copy_from_slice(&self.cluster.0);
        block[32..48].copy_from_slice(&self.uuid.0);
        block[48..52].copy_from_slice(&self.node.0.to_le_bytes());
        block[52..56].copy_from_slice(&self.disk.0.to_le_bytes());
        block[56] = self.kind as u8;
        block[64..72].copy_from_slice(&self.created.0.to_le_bytes());
        let crc = checksum(&block);
        block[12..16].copy_from_slice(&crc.to_le_bytes());
        block
    }

    /// Reads and verifies the block.
    pub fn decode(block: &[u8; LABEL_LEN]) -> Result<Self, LabelError> {
        if &block[..8] != MAGIC {
            return Err(LabelError::Magic);
        }
        if u32_at(block, 12) != checksum(block) {
            return Err(LabelError::Checksum);
        }
        let version = u32_at(block, 8);
        if version != LABEL_VERSION {
            return Err(LabelError::Version(version));
        }
        let kind = match block[56] {
            1 => LabelKind::Node,
            2 => LabelKind::Disk,
            _ => return Err(LabelError::Shape),
        };
        if block[57..64].iter().chain(&block[72..]).any(|&b| b != 0) {
            return Err(LabelError::Shape);
        }
        Ok(Self {
            kind,
            cluster: ClusterId::from_slice(&block[16..32]).expect("the slice has 16 bytes"),
            uuid: DiskUuid::from_slice(&block[32..48]).expect("the slice has 16 bytes"),
            node: NodeId(u32_at(block, 48)),
            disk: DiskId(u32_at(block, 52)),
            created: WallTime(u64_at(block, 64)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: Label = Label {
        kind: LabelKind::Disk,
        cluster: ClusterId([1; 16]),
        uuid: DiskUuid([2; 16]),
        node: NodeId(17),
        disk: DiskId(5),
        created: WallTime(99),
    };

    /// An old directory could not be opened any more if the bytes changed without a new version.
    #[test]
    fn golden_bytes() {
        let block = SAMPLE.encode();
        assert_eq!(&block[..12], b"CAIRNLBL\x01\0\0\0");
        assert_eq!(&block[48..72], &[17, 0, 0, 0, 5, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 99, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(u32_at(&block, 12), 0x94A4_307C);
        assert_eq!(Label::decode(&block), Ok(SAMPLE));
    }

    /// A disk could be taken for another one if a flipped bit went unnoticed.
    #[test]
    fn any_flipped_bit_is_detected() {
        let block = SAMPLE.encode();
        for bit in 0..LABEL_LEN * 8 {
            let mut bad = block;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Label::decode(&bad).is_err(), "bit {bit}");
        }
    }
}
