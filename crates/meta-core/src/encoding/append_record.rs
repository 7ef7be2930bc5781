//! An append of a file, open or closed.
//!
//! | bytes | what |
//! |---|---|
//! | 1 | 0x10; 0x11 when it is open |
//! | varint | placement group |
//! | varint | index |
//! | varint | creation epoch |
//! | varint | bytes of the chunk that the file got |
use super::varint::{self, Cursor};

const VERSION: u8 = 1;

/// The chunk that all writers of records of a file append to, and how much of it the file has got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AppendRecord {
    pub open: bool,
    pub pg: u32,
    pub index: u32,
    pub creation_epoch: u64,
    pub published: u64,
}

impl AppendRecord {
    /// Appends the value.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(VERSION << 4 | u8::from(self.open));
        for field in [u64::from(self.pg), u64::from(self.index), self.creation_epoch, self.published] {
            let (bytes, length) = varint::encode(field);
            out.extend_from_slice(&bytes[..length]);
        }
    }

    /// Reads a value; `None` if no version wrote it.
    pub fn decode(value: &[u8]) -> Option<AppendRecord> {
        let mut cursor = Cursor::new(value);
        let tag = cursor.byte().filter(|tag| tag >> 4 == VERSION && tag & 0xe == 0)?;
        let record = AppendRecord {
            open: tag & 1 == 1,
            pg: cursor.varint()?.try_into().ok()?,
            index: cursor.varint()?.try_into().ok()?,
            creation_epoch: cursor.varint()?,
            published: cursor.varint().filter(|bytes| *bytes <= cairn_types::CHUNK_SIZE_MAX)?,
        };
        cursor.end()?;
        Some(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checkpoints of earlier builds would not be read, or a damaged entry be taken for another one.
    #[test]
    fn golden_bytes() {
        let record = AppendRecord { open: true, pg: 300, index: 2, creation_epoch: 5, published: 8192 };
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        assert_eq!(bytes, [0x11, 0xac, 2, 2, 5, 0x80, 0x40]);
        assert_eq!(AppendRecord::decode(&bytes), Some(record));
        for length in 0..bytes.len() {
            assert_eq!(AppendRecord::decode(&bytes[..length]), None);
        }
        assert_eq!(AppendRecord::decode(&[0x12, 1, 2, 5, 0]), None);
    }
}
