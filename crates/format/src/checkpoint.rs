//! [`CheckpointHeader`], [`PageHeader`], [`CheckpointFooter`]: a file that holds the state of a Raft group after one
//! log entry.
//!
//! The file is the header (4096 bytes), pages of 256 KiB (the last one shorter, padded with zeros to a multiple of
//! 4096), and the footer (4096 bytes).
//!
//! | header offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic `CAIRNCKP` |
//! | 8 | 4 | format version |
//! | 12 | 4 | CRC-32C of the block with this field zero |
//! | 16 | 16 | cluster id (zero: not known when written) |
//! | 32 | 4 | Raft group |
//! | 36 | 4 | zero |
//! | 40 | 8 | index of the last entry in the state |
//! | 48 | 8 | its term |
//! | 56 | 8 | its logged time, nanoseconds since 1970 |
//! | 64 | 4 | number of voters (at most 64) |
//! | 68 | 4 | number of learners (at most 64) |
//! | 72 | 8 each | voters, then learners, ascending; zeros up to 4096 |
//!
//! | page offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | CRC-32C of bytes 4..32 + length |
//! | 4 | 4 | length of the data |
//! | 8 | 8 | number of the page, from 0 |
//! | 16 | 8 | index of the checkpoint |
//! | 24 | 4 | Raft group |
//! | 28 | 4 | zero |
//! | 32 | length | data |
//!
//! | footer offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic `CAIRNEND` |
//! | 8 | 4 | format version |
//! | 12 | 4 | CRC-32C of the block with this field zero |
//! | 16 | 8 | number of pages |
//! | 24 | 8 | bytes of data in all pages |
//! | 32 | 8 | index of the checkpoint |
//! | 40 | 4 | CRC-32C over the CRCs of all pages in order |
//! | 44 | 4052 | zero |
//!
//! All numbers little-endian. Invariant: a file with a valid footer that agrees with its pages is complete.

use cairn_types::{ClusterId, GroupId, WallTime, crc32c, crc32c_append};

use crate::le::{u32_at, u64_at};

/// Bytes of header and footer, alignment of everything.
pub const CHECKPOINT_BLOCK: usize = 4096;
/// Bytes of a full page with its header.
pub const PAGE_LEN: usize = 256 << 10;
/// Bytes of a page's header.
pub const PAGE_HEADER_LEN: usize = 32;
/// Data bytes of a full page.
pub const PAGE_DATA_MAX: usize = PAGE_LEN - PAGE_HEADER_LEN;
/// Most voters, and most learners, of a group.
pub const MEMBERS_MAX: usize = 64;
/// Newest version written and read.
pub const CHECKPOINT_VERSION: u32 = 1;

const MAGIC: &[u8; 8] = b"CAIRNCKP";
const END_MAGIC: &[u8; 8] = b"CAIRNEND";

/// What the state is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointHeader {
    /// The cluster, or none.
    pub cluster: ClusterId,
    /// The group.
    pub group: GroupId,
    /// Last entry in the state.
    pub index: u64,
    /// Its term.
    pub term: u64,
    /// Its logged time.
    pub time: WallTime,
    /// Voting members, ascending.
    pub voters: Vec<u64>,
    /// Members without a vote, ascending.
    pub learners: Vec<u64>,
}

/// What a page is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageHeader {
    /// Data bytes.
    pub length: u32,
    /// Place in the file.
    pub number: u64,
    /// The checkpoint's index.
    pub index: u64,
    /// The group.
    pub group: GroupId,
    /// Checksum, to be folded into the footer's.
    pub crc: u32,
}

/// What makes the file complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckpointFooter {
    /// Pages.
    pub pages: u64,
    /// Data bytes.
    pub bytes: u64,
    /// The checkpoint's index.
    pub index: u64,
    /// Checksum of the pages' checksums.
    pub pages_crc: u32,
}

/// Why bytes are no part of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    /// Not ours.
    #[error("no magic of a checkpoint")]
    Magic,
    /// Written by a newer program.
    #[error("format version {0}")]
    Version(u32),
    /// Bytes changed.
    #[error("checksum does not match")]
    Checksum,
    /// Fields contradict each other, or reserved bytes are set.
    #[error("the fields contradict each other")]
    Shape,
}

type Block = [u8; CHECKPOINT_BLOCK];

fn seal(block: &mut Block, magic: &[u8; 8]) {
    block[..8].copy_from_slice(magic);
    block[8..12].copy_from_slice(&CHECKPOINT_VERSION.to_le_bytes());
    let crc = block_crc(block);
    block[12..16].copy_from_slice(&crc.to_le_bytes());
}

fn block_crc(block: &Block) -> u32 {
    crc32c_append(crc32c_append(crc32c(&block[..12]), &[0; 4]), &block[16..])
}

fn verify(block: &Block, magic: &[u8; 8]) -> Result<(), CheckpointError> {
    if &block[..8] != magic {
        return Err(CheckpointError::Magic);
    }
    if u32_at(block, 12) != block_crc(block) {
        return Err(CheckpointError::Checksum);
    }
    match u32_at(block, 8) {
        CHECKPOINT_VERSION => Ok(()),
        other => Err(CheckpointError::Version(other)),
    }
}

fn zeros(bytes: &[u8]) -> Result<(), CheckpointError> {
    if bytes.iter().all(|&b| b == 0) { Ok(()) } else { Err(CheckpointError::Shape) }
}

impl CheckpointHeader {
    /// The block as it goes to disk.
    ///
    /// # Panics
    /// When there are more than [`MEMBERS_MAX`] voters or learners.
    pub fn encode(&self) -> Block {
        assert!(self.voters.len() <= MEMBERS_MAX && self.learners.len() <= MEMBERS_MAX);
        let mut block = [0; CHECKPOINT_BLOCK];
        block[16..32].copy_from_slice(&self.cluster.0);
        block[32..36].copy_from_slice(&self.group.0.to_le_bytes());
        block[40..48].copy_from_slice(&self.index.to_le_bytes());
        block[48..56].copy_from_slice(&self.term.to_le_bytes());
        block[56..64].copy_from_slice(&self.time.0.to_le_bytes());
        block[64..68].copy_from_slice(&(self.voters.len() as u32).to_le_bytes());
        block[68..72].copy_from_slice(&(self.learners.len() as u32).to_le_bytes());
        for (at, member) in self.voters.iter().chain(&self.learners).enumerate() {
            block[72 + 8 * at..80 + 8 * at].copy_from_slice(&member.to_le_bytes());
        }
        seal(&mut block, MAGIC);
        block
    }

    /// Reads and verifies the block.
    pub fn decode(block: &Block) -> Result<Self, CheckpointError> {
        verify(block, MAGIC)?;
        let (voters, learners) = (u32_at(block, 64) as usize, u32_at(block, 68) as usize);
        if voters > MEMBERS_MAX || learners > MEMBERS_MAX {
            return Err(CheckpointError::Shape);
        }
        zeros(&block[36..40])?;
        zeros(&block[72 + 8 * (voters + learners)..])?;
        let members = |from: usize, count: usize| {
            let list: Vec<u64> = (from..from + count).map(|i| u64_at(block, 72 + 8 * i)).collect();
            if list.is_sorted_by(|a, b| a < b) { Ok(list) } else { Err(CheckpointError::Shape) }
        };
        Ok(Self {
            cluster: ClusterId::from_slice(&block[16..32]).expect("the slice has 16 bytes"),
            group: GroupId(u32_at(block, 32)),
            index: u64_at(block, 40),
            term: u64_at(block, 48),
            time: WallTime(u64_at(block, 56)),
            voters: members(0, voters)?,
            learners: members(voters, learners)?,
        })
    }
}

impl PageHeader {
    /// Writes the header of the page whose data stands in `page[32..32 + length]`; gives the page's checksum.
    pub fn seal(page: &mut [u8], length: usize, number: u64, index: u64, group: GroupId) -> u32 {
        assert!(length <= PAGE_DATA_MAX && page.len() >= PAGE_HEADER_LEN + length);
        page[4..8].copy_from_slice(&(length as u32).to_le_bytes());
        page[8..16].copy_from_slice(&number.to_le_bytes());
        page[16..24].copy_from_slice(&index.to_le_bytes());
        page[24..28].copy_from_slice(&group.0.to_le_bytes());
        page[28..32].fill(0);
        let crc = crc32c(&page[4..PAGE_HEADER_LEN + length]);
        page[..4].copy_from_slice(&crc.to_le_bytes());
        crc
    }

    /// Reads and verifies a page; the data follows the header.
    pub fn decode(page: &[u8]) -> Result<Self, CheckpointError> {
        if page.len() < PAGE_HEADER_LEN {
            return Err(CheckpointError::Shape);
        }
        let length = u32_at(page, 4) as usize;
        if length > PAGE_DATA_MAX || page.len() < PAGE_HEADER_LEN + length {
            return Err(CheckpointError::Shape);
        }
        let crc = u32_at(page, 0);
        if crc != crc32c(&page[4..PAGE_HEADER_LEN + length]) {
            return Err(CheckpointError::Checksum);
        }
        zeros(&page[28..32])?;
        zeros(&page[PAGE_HEADER_LEN + length..])?;
        Ok(Self {
            length: length as u32,
            number: u64_at(page, 8),
            index: u64_at(page, 16),
            group: GroupId(u32_at(page, 24)),
            crc,
        })
    }
}

impl CheckpointFooter {
    /// The block as it goes to disk.
    pub fn encode(&self) -> Block {
        let mut block = [0; CHECKPOINT_BLOCK];
        block[16..24].copy_from_slice(&self.pages.to_le_bytes());
        block[24..32].copy_from_slice(&self.bytes.to_le_bytes());
        block[32..40].copy_from_slice(&self.index.to_le_bytes());
        block[40..44].copy_from_slice(&self.pages_crc.to_le_bytes());
        seal(&mut block, END_MAGIC);
        block
    }

    /// Reads and verifies the block.
    pub fn decode(block: &Block) -> Result<Self, CheckpointError> {
        verify(block, END_MAGIC)?;
        zeros(&block[44..])?;
        Ok(Self {
            pages: u64_at(block, 16),
            bytes: u64_at(block, 24),
            index: u64_at(block, 32),
            pages_crc: u32_at(block, 40),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> CheckpointHeader {
        CheckpointHeader {
            cluster: ClusterId([3; 16]),
            group: GroupId(7),
            index: 1000,
            term: 4,
            time: WallTime(77),
            voters: vec![1, 2, 3],
            learners: vec![20],
        }
    }

    const FOOTER: CheckpointFooter = CheckpointFooter { pages: 2, bytes: 300_000, index: 1000, pages_crc: 5 };

    /// An old checkpoint could not be read any more if the bytes changed without a new version.
    #[test]
    fn golden_bytes() {
        let block = header().encode();
        assert_eq!(&block[..8], b"CAIRNCKP");
        assert_eq!(&block[32..48], &[7, 0, 0, 0, 0, 0, 0, 0, 0xe8, 3, 0, 0, 0, 0, 0, 0]);
        assert_eq!(u32_at(&block, 12), 0xD7D4_F283);
        assert_eq!(CheckpointHeader::decode(&block), Ok(header()));
        let block = FOOTER.encode();
        assert_eq!(u32_at(&block, 12), 0x026F_EF84);
        assert_eq!(CheckpointFooter::decode(&block), Ok(FOOTER));
        let mut page = vec![0; 4096];
        page[32..35].copy_from_slice(b"abc");
        assert_eq!(PageHeader::seal(&mut page, 3, 1, 1000, GroupId(7)), 0x9A48_2C91);
    }

    /// A state would be restored wrong if a flipped bit went unnoticed.
    #[test]
    fn any_flipped_bit_is_detected() {
        let mut page = vec![0; 4096];
        page[32..35].copy_from_slice(b"abc");
        PageHeader::seal(&mut page, 3, 1, 1000, GroupId(7));
        for bit in 0..CHECKPOINT_BLOCK * 8 {
            let flip = |bytes: &mut [u8]| bytes[bit / 8] ^= 1 << (bit % 8);
            let mut block = header().encode();
            flip(&mut block);
            assert!(CheckpointHeader::decode(&block).is_err(), "header bit {bit}");
            let mut block = FOOTER.encode();
            flip(&mut block);
            assert!(CheckpointFooter::decode(&block).is_err(), "footer bit {bit}");
            let mut bad = page.clone();
            flip(&mut bad);
            assert!(PageHeader::decode(&bad).is_err(), "page bit {bit}");
        }
    }

    /// Lying counts with a right checksum must not index beyond the block.
    #[test]
    fn lying_counts_are_refused() {
        for at in [64, 68] {
            let mut block = header().encode();
            block[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
            seal(&mut block, MAGIC);
            assert_eq!(CheckpointHeader::decode(&block), Err(CheckpointError::Shape));
        }
    }
}
