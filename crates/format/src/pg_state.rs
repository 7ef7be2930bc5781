//! [`PgStateRecord`]: what a disk knows of one of its placement groups, durable before anything is answered under it.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic `CAIRNPGS` |
//! | 8 | 4 | format version |
//! | 12 | 4 | CRC-32C of the block with this field zero |
//! | 16 | 16 | cluster id |
//! | 32 | 4 | placement group |
//! | 36 | 4 | volume |
//! | 40 | 4 | disk that this is on |
//! | 44 | 4 | high-water mark of indices: every index given out is below it |
//! | 48 | 8 | epoch |
//! | 56 | 8 | epoch in which the group was made |
//! | 64 | 8 | term of the manager that told |
//! | 72 | 1 | scheme code |
//! | 73 | 1 | flags: bit 0 retired, bit 1 comparing (from version 2 on) |
//! | 74 | 1 | number of members |
//! | 75 | 5 | zero |
//! | 80 | 8 | epoch in which all that held everything were found to be older copies, 0: never (from version 2 on) |
//! | 88 | 40 | zero |
//! | 128 | 12 × 32 | members: disk `u32`, node `u32`, state `u8`, 3 zero bytes; unused ones zero |
//!
//! All numbers little-endian. What needs no field of version 2 is written as version 1, which earlier programs read.
//! Invariant: epoch and high-water mark of a disk's record never fall.

use cairn_types::{ClusterId, DiskId, Epoch, MemberState, NodeId, PgId, Scheme, VolumeId, crc32c, crc32c_append};

use crate::le::{u32_at, u64_at};

/// Bytes of the record.
pub const PG_STATE_LEN: usize = 512;
/// Newest version written and read.
pub const PG_STATE_VERSION: u32 = 2;
/// Most members of a group.
pub const PG_MEMBERS_MAX: usize = 32;

const MAGIC: &[u8; 8] = b"CAIRNPGS";
const MEMBERS_AT: usize = 128;
const MEMBER_LEN: usize = 12;
const _: () = assert!(MEMBERS_AT + PG_MEMBERS_MAX * MEMBER_LEN == PG_STATE_LEN);

/// A member of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PgStateMember {
    /// The disk.
    pub disk: DiskId,
    /// The node that has it.
    pub node: NodeId,
    /// What it may do.
    pub state: MemberState,
}

/// State of a placement group as one disk knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PgStateRecord {
    /// The cluster.
    pub cluster: ClusterId,
    /// The group.
    pub pg: PgId,
    /// The volume that owns it.
    pub volume: VolumeId,
    /// The disk that this is on.
    pub disk: DiskId,
    /// Indices at or above it were never given out.
    pub high_water: u32,
    /// Fencing number.
    pub epoch: Epoch,
    /// Epoch in which it was made.
    pub creation_epoch: Epoch,
    /// The manager's term.
    pub term: u64,
    /// How members relate.
    pub scheme: Scheme,
    /// Takes nothing new for ever.
    pub retired: bool,
    /// All that held everything came back as older copies of themselves: nobody serves clients before they were
    /// compared.
    pub comparing: bool,
    /// The epoch in which that was found last; 0: never.
    pub older_epoch: Epoch,
    /// In order; the first serving one is the primary.
    pub members: Vec<PgStateMember>,
}

/// Why a block is no placement group state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PgStateError {
    /// Not ours.
    #[error("no magic of a placement group state")]
    Magic,
    /// Bytes changed.
    #[error("checksum of the placement group state does not match")]
    Checksum,
    /// Written by a newer program.
    #[error("version {0} of the placement group state is not known to this program; use a newer one")]
    Version(u32),
    /// Unknown codes, or reserved bytes set.
    #[error("the fields of the placement group state contradict each other")]
    Shape,
}

fn checksum(block: &[u8; PG_STATE_LEN]) -> u32 {
    crc32c_append(crc32c_append(crc32c(&block[..12]), &[0; 4]), &block[16..])
}

impl PgStateRecord {
    /// The block as it goes to disk.
    ///
    /// # Panics
    /// With more than [`PG_MEMBERS_MAX`] members; whoever takes groups in refuses those.
    pub fn encode(&self) -> [u8; PG_STATE_LEN] {
        assert!(self.members.len() <= PG_MEMBERS_MAX, "{} has too many members", self.pg);
        let mut out = [0; PG_STATE_LEN];
        out[..8].copy_from_slice(MAGIC);
        let version = if self.comparing || self.older_epoch.get() != 0 { PG_STATE_VERSION } else { 1 };
        out[8..12].copy_from_slice(&version.to_le_bytes());
        out[16..32].copy_from_slice(&self.cluster.0);
        out[32..36].copy_from_slice(&self.pg.0.to_le_bytes());
        out[36..40].copy_from_slice(&self.volume.0.to_le_bytes());
        out[40..44].copy_from_slice(&self.disk.0.to_le_bytes());
        out[44..48].copy_from_slice(&self.high_water.to_le_bytes());
        out[48..56].copy_from_slice(&self.epoch.0.to_le_bytes());
        out[56..64].copy_from_slice(&self.creation_epoch.0.to_le_bytes());
        out[64..72].copy_from_slice(&self.term.to_le_bytes());
        out[72] = self.scheme.code();
        out[73] = u8::from(self.retired) | u8::from(self.comparing) << 1;
        out[74] = self.members.len() as u8;
        out[80..88].copy_from_slice(&self.older_epoch.0.to_le_bytes());
        for (member, at) in self.members.iter().zip(out[MEMBERS_AT..].chunks_exact_mut(MEMBER_LEN)) {
            at[..4].copy_from_slice(&member.disk.0.to_le_bytes());
            at[4..8].copy_from_slice(&member.node.0.to_le_bytes());
            at[8] = member.state.code();
        }
        let crc = checksum(&out);
        out[12..16].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads and verifies the block.
    pub fn decode(block: &[u8; PG_STATE_LEN]) -> Result<Self, PgStateError> {
        if &block[..8] != MAGIC {
            return Err(PgStateError::Magic);
        }
        if u32_at(block, 12) != checksum(block) {
            return Err(PgStateError::Checksum);
        }
        let version = u32_at(block, 8);
        if version == 0 || version > PG_STATE_VERSION {
            return Err(PgStateError::Version(version));
        }
        let count = usize::from(block[74]);
        let scheme = Scheme::from_code(block[72]).ok_or(PgStateError::Shape)?;
        let (comparing, older_epoch) = (block[73] & 2 != 0, Epoch(u64_at(block, 80)));
        let plain = !comparing && older_epoch.get() == 0;
        let reserved = block[75..80].iter().chain(&block[88..MEMBERS_AT]);
        if block[73] > 3 || plain != (version == 1) || count > PG_MEMBERS_MAX || reserved.into_iter().any(|&b| b != 0) {
            return Err(PgStateError::Shape);
        }
        let mut members = Vec::with_capacity(count);
        for (i, at) in block[MEMBERS_AT..].chunks_exact(MEMBER_LEN).enumerate() {
            if i >= count || at[9..].iter().any(|&b| b != 0) {
                if at.iter().any(|&b| b != 0) {
                    return Err(PgStateError::Shape);
                }
                continue;
            }
            let state = MemberState::from_code(at[8]).ok_or(PgStateError::Shape)?;
            members.push(PgStateMember { disk: DiskId(u32_at(at, 0)), node: NodeId(u32_at(at, 4)), state });
        }
        Ok(Self {
            cluster: ClusterId::from_slice(&block[16..32]).expect("the slice has 16 bytes"),
            pg: PgId(u32_at(block, 32)),
            volume: VolumeId(u32_at(block, 36)),
            disk: DiskId(u32_at(block, 40)),
            high_water: u32_at(block, 44),
            epoch: Epoch(u64_at(block, 48)),
            creation_epoch: Epoch(u64_at(block, 56)),
            term: u64_at(block, 64),
            scheme,
            retired: block[73] & 1 != 0,
            comparing,
            older_epoch,
            members,
        })
    }
}

impl std::fmt::Display for PgStateRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "placement group {} on {} (volume {})", self.pg, self.disk, self.volume)?;
        writeln!(f, "cluster         {}", self.cluster)?;
        writeln!(f, "scheme          {}{}", self.scheme, if self.retired { ", retired" } else { "" })?;
        writeln!(f, "epoch           {} (made in {}, term {})", self.epoch, self.creation_epoch, self.term)?;
        write!(f, "high water      {}", self.high_water)?;
        if self.older_epoch.get() != 0 {
            let now = if self.comparing { ", being compared" } else { "" };
            write!(f, "\nolder copies    all that held everything, found in {}{now}", self.older_epoch)?;
        }
        for member in &self.members {
            write!(f, "\nmember          {} on {}: {}", member.disk, member.node, member.state)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> PgStateRecord {
        PgStateRecord {
            cluster: ClusterId([7; 16]),
            pg: PgId(3),
            volume: VolumeId(1),
            disk: DiskId(20),
            high_water: 256,
            epoch: Epoch(4),
            creation_epoch: Epoch(1),
            term: 2,
            scheme: Scheme::Replicated(2),
            retired: false,
            comparing: false,
            older_epoch: Epoch(0),
            members: vec![
                PgStateMember { disk: DiskId(20), node: NodeId(16), state: MemberState::Serving },
                PgStateMember { disk: DiskId(21), node: NodeId(17), state: MemberState::Syncing },
            ],
        }
    }

    /// An old disk could not be opened any more if the bytes changed without a new version.
    #[test]
    fn golden_bytes() {
        let block = sample().encode();
        assert_eq!(&block[..12], b"CAIRNPGS\x01\0\0\0");
        assert_eq!(&block[72..76], &[2, 0, 2, 0]);
        assert_eq!(&block[128..152], &[20, 0, 0, 0, 16, 0, 0, 0, 1, 0, 0, 0, 21, 0, 0, 0, 17, 0, 0, 0, 2, 0, 0, 0]);
        assert_eq!(u32_at(&block, 12), 0x8958_CCEF);
        assert_eq!(PgStateRecord::decode(&block), Ok(sample()));
        assert!(sample().to_string().contains("d21 on n17: syncing"));
    }

    /// A member would serve before it was compared, or an earlier program would not read what it could.
    #[test]
    fn version_2_is_written_only_where_it_is_needed() {
        let older = PgStateRecord { comparing: true, older_epoch: Epoch(4), ..sample() };
        let block = older.encode();
        assert_eq!((&block[8..12], block[73], &block[80..88]), (&[2, 0, 0, 0][..], 2, &[4, 0, 0, 0, 0, 0, 0, 0][..]));
        assert_eq!(PgStateRecord::decode(&block), Ok(older.clone()));
        let later = PgStateRecord { comparing: false, retired: true, ..older };
        assert_eq!(PgStateRecord::decode(&later.encode()), Ok(later.clone()));
        assert!(later.to_string().contains("found in e4"), "{later}");
        let mut claimed = block;
        claimed[8] = 1;
        let crc = checksum(&claimed);
        claimed[12..16].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(PgStateRecord::decode(&claimed), Err(PgStateError::Shape));
    }

    /// A member could answer under a wrong epoch if a flipped bit went unnoticed.
    #[test]
    fn any_flipped_bit_is_detected() {
        let block = sample().encode();
        for bit in 0..PG_STATE_LEN * 8 {
            let mut bad = block;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(PgStateRecord::decode(&bad).is_err(), "bit {bit}");
        }
    }
}
