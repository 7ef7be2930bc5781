//! [`BatchHeader`]: what precedes the records of one group commit in the write-ahead log.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic `CAIRNBAT` |
//! | 8 | 4 | CRC-32C of bytes 12..64 |
//! | 12 | 4 | CRC-32C of bytes 64..length |
//! | 16 | 8 | number of the batch, one more than the one before |
//! | 24 | 8 | number of the segment |
//! | 32 | 4 | length of the batch with header and padding, a multiple of 4096 |
//! | 36 | 4 | bytes of records behind the header |
//! | 40 | 4 | number of records |
//! | 44 | 4 | bytes 8..12 of the batch before it; zero in the first batch of a log and in segments of version 1 |
//! | 48 | 16 | id of the log |
//!
//! All numbers little-endian. A batch starts at a multiple of 4096 and is padded with zeros, so no write ever touches
//! the bytes of an earlier one. Invariant: a batch is written only after the one before was synced. So only the last
//! batch of a log can be torn, and a valid batch behind a bad one proves corruption. Bytes 8..12 cover the field at 44,
//! so they stand for the whole log up to this batch: another history, or an older copy of a part, does not join.

use cairn_types::{DiskUuid, crc32c};

use crate::le::{u32_at, u64_at};

/// Bytes of the header.
pub const BATCH_HEADER_LEN: usize = 64;
/// Alignment of batches within a segment.
pub const BATCH_ALIGN: usize = 4096;
/// Longest batch.
pub const BATCH_LEN_MAX: usize = 128 << 20;

const MAGIC: &[u8; 8] = b"CAIRNBAT";

/// Identity and extent of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchHeader {
    /// The log.
    pub log: DiskUuid,
    /// The segment.
    pub segment: u64,
    /// Its place in the log.
    pub number: u64,
    /// Bytes with header and padding.
    pub length: u32,
    /// Bytes of records.
    pub used: u32,
    /// Number of records.
    pub records: u32,
    /// [`chain`](Self::chain) of the batch before it; 0: it does not say.
    pub before: u32,
    /// Checksum of all behind the header.
    pub body_crc: u32,
}

/// Why bytes are no batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// No header of a batch.
    #[error("no batch header")]
    NoHeader,
    /// The header's fields contradict each other.
    #[error("the batch header contradicts itself")]
    Shape,
    /// The body was changed or is incomplete.
    #[error("checksum of batch {0} does not match")]
    Body(u64),
}

impl BatchHeader {
    /// Writes the header of the batch whose body stands in `batch[64..]` into its first 64 bytes. The length is
    /// `batch.len()`; `used`, the checksums and the length in `self` are computed here.
    ///
    /// # Panics
    /// When the batch is not a multiple of 4096 or longer than [`BATCH_LEN_MAX`].
    pub fn seal(batch: &mut [u8], log: DiskUuid, segment: u64, number: u64, used: u32, records: u32, before: u32) {
        assert!(batch.len().is_multiple_of(BATCH_ALIGN) && batch.len() <= BATCH_LEN_MAX);
        let length = u32::try_from(batch.len()).expect("checked against the limit above");
        assert!(used as usize <= batch.len() - BATCH_HEADER_LEN);
        let body_crc = crc32c(&batch[BATCH_HEADER_LEN..]);
        let header = Self { log, segment, number, length, used, records, before, body_crc };
        batch[..BATCH_HEADER_LEN].copy_from_slice(&header.encode());
    }

    /// The header as it goes to disk.
    pub fn encode(&self) -> [u8; BATCH_HEADER_LEN] {
        let mut out = [0; BATCH_HEADER_LEN];
        out[..8].copy_from_slice(MAGIC);
        out[12..16].copy_from_slice(&self.body_crc.to_le_bytes());
        out[16..24].copy_from_slice(&self.number.to_le_bytes());
        out[24..32].copy_from_slice(&self.segment.to_le_bytes());
        out[32..36].copy_from_slice(&self.length.to_le_bytes());
        out[36..40].copy_from_slice(&self.used.to_le_bytes());
        out[40..44].copy_from_slice(&self.records.to_le_bytes());
        out[44..48].copy_from_slice(&self.before.to_le_bytes());
        out[48..64].copy_from_slice(&self.log.0);
        let crc = crc32c(&out[12..]);
        out[8..12].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// What the next batch names: it stands for this batch and all before it.
    pub fn chain(&self) -> u32 {
        u32_at(&self.encode(), 8)
    }

    /// Reads a header; the body is not looked at.
    pub fn decode(bytes: &[u8]) -> Result<Self, BatchError> {
        let bytes = bytes.get(..BATCH_HEADER_LEN).ok_or(BatchError::NoHeader)?;
        if &bytes[..8] != MAGIC || u32_at(bytes, 8) != crc32c(&bytes[12..]) {
            return Err(BatchError::NoHeader);
        }
        let header = Self {
            log: DiskUuid::from_slice(&bytes[48..64]).expect("the slice has 16 bytes"),
            segment: u64_at(bytes, 24),
            number: u64_at(bytes, 16),
            length: u32_at(bytes, 32),
            used: u32_at(bytes, 36),
            records: u32_at(bytes, 40),
            before: u32_at(bytes, 44),
            body_crc: u32_at(bytes, 12),
        };
        let length = header.length as usize;
        let fits = length.is_multiple_of(BATCH_ALIGN)
            && (BATCH_ALIGN..=BATCH_LEN_MAX).contains(&length)
            && header.used as usize <= length - BATCH_HEADER_LEN;
        if fits { Ok(header) } else { Err(BatchError::Shape) }
    }

    /// Verifies the body in `batch`, which has exactly `length` bytes, and gives the bytes of its records.
    pub fn body<'a>(&self, batch: &'a [u8]) -> Result<&'a [u8], BatchError> {
        if batch.len() != self.length as usize || crc32c(&batch[BATCH_HEADER_LEN..]) != self.body_crc {
            return Err(BatchError::Body(self.number));
        }
        let end = BATCH_HEADER_LEN + self.used as usize;
        if batch[end..].iter().any(|&b| b != 0) {
            return Err(BatchError::Shape);
        }
        Ok(&batch[BATCH_HEADER_LEN..end])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(before: u32) -> Vec<u8> {
        let mut batch = vec![0; 4096];
        batch[64..67].copy_from_slice(b"abc");
        BatchHeader::seal(&mut batch, DiskUuid([9; 16]), 5, 6, 3, 1, before);
        batch
    }

    fn sample() -> Vec<u8> {
        after(0)
    }

    /// An old log could not be read any more if the bytes changed without a new version.
    #[test]
    fn golden_bytes() {
        let batch = sample();
        assert_eq!(&batch[..8], b"CAIRNBAT");
        assert_eq!((u32_at(&batch, 8), u32_at(&batch, 12)), (0x1BB5_4804, 0xBE58_84B5));
        assert_eq!(
            &batch[16..48],
            &[6, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]
        );
        let header = BatchHeader::decode(&batch).unwrap();
        assert_eq!(header.body(&batch), Ok(&b"abc"[..]));
        assert_eq!(header.chain(), 0x1BB5_4804);
        let batch = after(0x0403_0201);
        assert_eq!(batch[44..48], [1, 2, 3, 4]);
        assert_eq!(u32_at(&batch, 8), 0x30A8_5176);
        let header = BatchHeader::decode(&batch).unwrap();
        assert_eq!((header.before, header.chain()), (0x0403_0201, u32_at(&batch, 8)));
    }

    /// A torn or rotten batch would be replayed if a flipped bit went unnoticed.
    #[test]
    fn any_flipped_bit_is_detected() {
        let batch = after(7);
        for bit in 0..batch.len() * 8 {
            let mut bad = batch.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let found = BatchHeader::decode(&bad).and_then(|h| h.body(&bad).map(<[u8]>::to_vec));
            assert!(found.is_err(), "bit {bit}");
        }
    }

    /// Garbage lengths must not make the reader allocate or index beyond the input.
    #[test]
    fn short_input_is_refused() {
        assert_eq!(BatchHeader::decode(&[0; 10]), Err(BatchError::NoHeader));
        let batch = sample();
        let header = BatchHeader::decode(&batch).unwrap();
        assert!(header.body(&batch[..100]).is_err());
    }
}
