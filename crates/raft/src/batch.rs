//! [`BatchFrame`]: many proposals in one log entry.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 1 | version (1) |
//! | 1 | 3 | zero |
//! | 4 | 4 | number of items |
//! | 8 | 8 | logged time, nanoseconds since 1970 |
//! | 16 | | per item: length u32, then its bytes |
//!
//! All numbers little-endian. Checksums are those of the log and of the wire around it.

use bytes::{Bytes, BytesMut};
use cairn_types::WallTime;

const VERSION: u8 = 1;
const HEADER: usize = 16;

/// Why an entry is no batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// Written by a newer program.
    #[error("the log has a batch of version {0}; use a newer program")]
    Version(u8),
    /// The bytes contradict themselves.
    #[error("a batch in the log contradicts itself")]
    Shape,
}

/// Collects proposals.
#[derive(Debug)]
pub struct BatchBuilder {
    bytes: BytesMut,
    count: u32,
}

impl BatchBuilder {
    /// An empty batch with room for so many bytes of items.
    pub fn with_capacity(items: usize, bytes: usize) -> Self {
        let mut buffer = BytesMut::with_capacity(HEADER + 4 * items + bytes);
        buffer.resize(HEADER, 0);
        Self { bytes: buffer, count: 0 }
    }

    /// Adds one proposal.
    ///
    /// # Panics
    /// When it is longer than 4 GiB.
    pub fn push(&mut self, item: &[u8]) {
        let len = u32::try_from(item.len()).expect("proposals are far shorter than 4 GiB");
        self.bytes.extend_from_slice(&len.to_le_bytes());
        self.bytes.extend_from_slice(item);
        self.count += 1;
    }

    /// Proposals so far.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The entry's bytes.
    pub fn finish(mut self, time: WallTime) -> Bytes {
        self.bytes[0] = VERSION;
        self.bytes[4..8].copy_from_slice(&self.count.to_le_bytes());
        self.bytes[8..16].copy_from_slice(&time.0.to_le_bytes());
        self.bytes.freeze()
    }
}

/// A batch as read; its items share the entry's memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchFrame {
    /// Logged time.
    pub time: WallTime,
    /// The proposals in order.
    pub items: Vec<Bytes>,
}

impl BatchFrame {
    /// Reads an entry's bytes.
    pub fn decode(entry: &Bytes) -> Result<Self, BatchError> {
        let header: &[u8; HEADER] = entry.first_chunk().ok_or(BatchError::Shape)?;
        if header[0] != VERSION {
            return Err(BatchError::Version(header[0]));
        }
        let number = |range: std::ops::Range<usize>| {
            header[range].iter().rev().fold(0u64, |sum, &byte| sum << 8 | u64::from(byte))
        };
        let count = number(4..8) as usize;
        // Every item takes at least its length field, so a lying count allocates nothing beyond the input.
        if header[1..4] != [0; 3] || count > (entry.len() - HEADER) / 4 {
            return Err(BatchError::Shape);
        }
        let mut items = Vec::with_capacity(count);
        let mut at = HEADER;
        for _ in 0..count {
            let len: &[u8; 4] = entry.get(at..).and_then(|rest| rest.first_chunk()).ok_or(BatchError::Shape)?;
            let len = u32::from_le_bytes(*len) as usize;
            at += 4;
            if entry.len() - at < len {
                return Err(BatchError::Shape);
            }
            items.push(entry.slice(at..at + len));
            at += len;
        }
        if at != entry.len() {
            return Err(BatchError::Shape);
        }
        Ok(Self { time: WallTime(number(8..16)), items })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Bytes {
        let mut batch = BatchBuilder::with_capacity(2, 8);
        batch.push(b"abc");
        batch.push(b"");
        batch.finish(WallTime(0x0102))
    }

    /// An old log could not be applied any more if the bytes changed without a new version.
    #[test]
    fn golden_bytes() {
        let bytes = sample();
        let want = [1, 0, 0, 0, 2, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, b'a', b'b', b'c', 0, 0, 0, 0];
        assert_eq!(&bytes[..], &want);
        let frame = BatchFrame::decode(&bytes).unwrap();
        assert_eq!((frame.time, frame.items.len(), &frame.items[0][..]), (WallTime(0x0102), 2, &b"abc"[..]));
    }

    /// A cut or lying batch must be refused, not read beyond its end.
    #[test]
    fn cuts_and_lies_are_refused() {
        let bytes = sample();
        for len in 0..bytes.len() {
            assert!(BatchFrame::decode(&bytes.slice(..len)).is_err(), "cut at {len}");
        }
        for (at, value) in [(0, 2), (1, 1), (4, 3), (7, 255), (16, 200), (19, 255)] {
            let mut bad = bytes.to_vec();
            bad[at] = value;
            assert!(BatchFrame::decode(&Bytes::from(bad)).is_err(), "byte {at}");
        }
    }
}
