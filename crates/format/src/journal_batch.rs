//! [`JournalBatch`]: what precedes the records of one group commit in a disk's journal, which is a ring.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic `CAIRNJBT` |
//! | 8 | 4 | CRC-32C of bytes 12..64 |
//! | 12 | 4 | CRC-32C of bytes 64..64 + used |
//! | 16 | 8 | sequence: one more than the batch before; the generation that tells it from older laps |
//! | 24 | 4 | block of the ring that it starts at |
//! | 28 | 4 | blocks that it occupies |
//! | 32 | 4 | bytes of records behind the header |
//! | 36 | 4 | block of the oldest batch still needed |
//! | 40 | 8 | sequence of the oldest batch still needed |
//! | 48 | 16 | id of the journal |
//!
//! All numbers little-endian. A batch starts at a block of 4096 bytes and is padded with zeros. Invariants: a batch is
//! written only after the one before was synced, and never over one that the newest durable batch still needs. So only
//! the last batch can be torn, and a gap between the oldest needed and the newest batch proves corruption.

use cairn_types::{DiskUuid, crc32c};

use crate::le::{u32_at, u64_at};

/// Bytes of the header.
pub const JOURNAL_BATCH_LEN: usize = 64;
/// Bytes of a block of the ring.
pub const RING_BLOCK: usize = 4096;

const MAGIC: &[u8; 8] = b"CAIRNJBT";

/// Identity and extent of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JournalBatch {
    /// The journal.
    pub journal: DiskUuid,
    /// Its number.
    pub sequence: u64,
    /// Where it starts in the ring.
    pub block: u32,
    /// Blocks that it occupies.
    pub blocks: u32,
    /// Bytes of records.
    pub used: u32,
    /// Where the oldest batch that is still needed starts.
    pub tail_block: u32,
    /// The number of that one.
    pub tail_sequence: u64,
}

impl JournalBatch {
    /// Blocks for so many bytes of records.
    pub fn blocks_for(used: usize) -> usize {
        (JOURNAL_BATCH_LEN + used).div_ceil(RING_BLOCK)
    }

    /// Writes the header into the first bytes of `batch`, whose records stand behind it; what follows them is zeroed.
    ///
    /// # Panics
    /// When the fields do not fit the buffer.
    pub fn seal(&self, batch: &mut [u8]) {
        let end = JOURNAL_BATCH_LEN + self.used as usize;
        assert!(batch.len() == self.blocks as usize * RING_BLOCK && end <= batch.len());
        batch[end..].fill(0);
        let body_crc = crc32c(&batch[JOURNAL_BATCH_LEN..end]);
        let out = &mut batch[..JOURNAL_BATCH_LEN];
        out[..8].copy_from_slice(MAGIC);
        out[12..16].copy_from_slice(&body_crc.to_le_bytes());
        out[16..24].copy_from_slice(&self.sequence.to_le_bytes());
        out[24..28].copy_from_slice(&self.block.to_le_bytes());
        out[28..32].copy_from_slice(&self.blocks.to_le_bytes());
        out[32..36].copy_from_slice(&self.used.to_le_bytes());
        out[36..40].copy_from_slice(&self.tail_block.to_le_bytes());
        out[40..48].copy_from_slice(&self.tail_sequence.to_le_bytes());
        out[48..64].copy_from_slice(&self.journal.0);
        let crc = crc32c(&out[12..]);
        out[8..12].copy_from_slice(&crc.to_le_bytes());
    }

    /// The header at the start of `bytes` if there is a whole one; its body is not looked at.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..JOURNAL_BATCH_LEN)?;
        if &bytes[..8] != MAGIC || u32_at(bytes, 8) != crc32c(&bytes[12..]) {
            return None;
        }
        let header = Self {
            journal: DiskUuid::from_slice(&bytes[48..64])?,
            sequence: u64_at(bytes, 16),
            block: u32_at(bytes, 24),
            blocks: u32_at(bytes, 28),
            used: u32_at(bytes, 32),
            tail_block: u32_at(bytes, 36),
            tail_sequence: u64_at(bytes, 40),
        };
        let fine = Self::blocks_for(header.used as usize) == header.blocks as usize
            && header.tail_sequence <= header.sequence
            && header.sequence > 0;
        fine.then_some(header)
    }

    /// The records of the batch that `bytes` starts with, if all are there and unchanged.
    pub fn records<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let records = bytes.get(JOURNAL_BATCH_LEN..JOURNAL_BATCH_LEN + self.used as usize)?;
        let body_crc = bytes.get(..JOURNAL_BATCH_LEN).map(|header| u32_at(header, 12))?;
        (crc32c(records) == body_crc).then_some(records)
    }
}

impl std::fmt::Display for JournalBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "batch {} at block {} ({} blocks, {} bytes of records), needed from batch {} at block {}",
            self.sequence, self.block, self.blocks, self.used, self.tail_sequence, self.tail_block
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<u8> {
        let header = JournalBatch {
            journal: DiskUuid([3; 16]),
            sequence: 9,
            block: 5,
            blocks: 1,
            used: 3,
            tail_block: 1,
            tail_sequence: 7,
        };
        let mut bytes = vec![0xee; RING_BLOCK];
        bytes[64..67].copy_from_slice(b"abc");
        header.seal(&mut bytes);
        bytes
    }

    /// An old journal could not be replayed any more if the bytes changed without a new version.
    #[test]
    fn golden_bytes() {
        let bytes = sample();
        assert_eq!(&bytes[..8], MAGIC);
        assert_eq!((u32_at(&bytes, 8), u32_at(&bytes, 12)), (0x17A3_3616, 0x364B_3FB7));
        assert_eq!(
            &bytes[16..48],
            &[9, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]
        );
        let header = JournalBatch::decode(&bytes).expect("a whole header");
        assert_eq!(header.records(&bytes), Some(&b"abc"[..]));
        assert!(bytes[67..].iter().all(|&b| b == 0));
    }

    /// A torn or stale batch would be replayed if a flipped bit went unnoticed.
    #[test]
    fn any_flipped_bit_is_detected() {
        let bytes = sample();
        for bit in 0..(64 + 3) * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let found = JournalBatch::decode(&bad).and_then(|h| h.records(&bad).map(<[u8]>::to_vec));
            assert_eq!(found, None, "bit {bit}");
        }
    }

    /// Garbage lengths must not make the reader index beyond the input.
    #[test]
    fn short_input_is_refused() {
        let bytes = sample();
        assert_eq!(JournalBatch::decode(&bytes[..63]), None);
        let header = JournalBatch::decode(&bytes).expect("a whole header");
        assert_eq!(header.records(&bytes[..66]), None);
    }
}
