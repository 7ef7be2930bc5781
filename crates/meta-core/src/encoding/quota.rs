//! Limits and use of a directory with all below it: value of the key (quota, directory). 7–47 bytes.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 1 | 0x10 + 1 if it was removed and is still counted against |
//! | 1 | varints | most bytes, most inodes (0: no limit), bytes, inodes, the quota around it (0: none), references |
//!
//! References are inodes that are counted here first, and quotas right inside this one. The volume's own limits (key:
//! volume quota) have the same form; only the limits count.
use super::varint::Cursor;
use crate::message::writer::put_varint;

const VERSION: u8 = 1;

/// A quota.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QuotaRecord {
    pub removed: bool,
    pub bytes_max: u64,
    pub inodes_max: u64,
    pub bytes: u64,
    pub inodes: u64,
    pub outer: u64,
    pub references: u64,
}

impl QuotaRecord {
    /// Appends the value.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(VERSION << 4 | u8::from(self.removed));
        let fields = [self.bytes_max, self.inodes_max, self.bytes, self.inodes, self.outer, self.references];
        fields.into_iter().for_each(|field| put_varint(out, field));
    }

    /// Reads a value; `None` if no version wrote it.
    pub fn decode(value: &[u8]) -> Option<QuotaRecord> {
        let mut cursor = Cursor::new(value);
        let tag = cursor.byte().filter(|tag| tag >> 4 == VERSION && tag & 0xe == 0)?;
        let mut next = || cursor.varint();
        let record = QuotaRecord {
            removed: tag & 1 == 1,
            bytes_max: next()?,
            inodes_max: next()?,
            bytes: next()?,
            inodes: next()?,
            outer: next()?,
            references: next()?,
        };
        cursor.end()?;
        Some(record)
    }
}
