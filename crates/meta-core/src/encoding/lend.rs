//! What partitions may use of the volume's limit. Values of the keys (0, lent, partition), (0, setting) and (0, bound).
//!
//! | value | bytes |
//! |---|---|
//! | lent | 0x10; varints number, then what the partition is to have and what it has at most, each bytes and inodes |
//! | setting | 0x10 + 1 if not all partitions are known to have bounds; varint: index of the entry that set the limit |
//! | bound | 0x10; varints number, bytes, inodes |
//!
//! 2^64 - 1 bytes or inodes: any number.
use super::varint::Cursor;
use crate::lend::Amounts;
use crate::message::writer::put_varint;

const TAG: u8 = 0x10;

fn put(out: &mut Vec<u8>, amounts: Amounts) {
    put_varint(out, amounts.bytes);
    put_varint(out, amounts.inodes);
}

fn read(cursor: &mut Cursor<'_>) -> Option<Amounts> {
    Some(Amounts { bytes: cursor.varint()?, inodes: cursor.varint()? })
}

/// What the partition of the root has lent to another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LentRecord {
    /// Ascending; of what the partition was told last.
    pub number: u64,
    /// What it was told, or has said that it has.
    pub target: Amounts,
    /// It has and uses no more than this.
    pub ceiling: Amounts,
}

impl LentRecord {
    /// Appends the value.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(TAG);
        put_varint(out, self.number);
        put(out, self.target);
        put(out, self.ceiling);
    }

    /// Reads a value; `None` if no version wrote it.
    pub fn decode(value: &[u8]) -> Option<LentRecord> {
        let mut cursor = Cursor::new(value);
        let tag = cursor.byte()?;
        let record = LentRecord { number: cursor.varint()?, target: read(&mut cursor)?, ceiling: read(&mut cursor)? };
        cursor.end()?;
        (tag == TAG).then_some(record)
    }
}

/// That a limit was set, and partitions may not have heard of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SettingRecord {
    /// Index of the entry.
    pub number: u64,
    /// Every partition without a record begins with a bound of nothing.
    pub listed: bool,
}

impl SettingRecord {
    /// Appends the value.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(TAG | u8::from(!self.listed));
        put_varint(out, self.number);
    }

    /// Reads a value; `None` if no version wrote it.
    pub fn decode(value: &[u8]) -> Option<SettingRecord> {
        let mut cursor = Cursor::new(value);
        let tag = cursor.byte().filter(|tag| tag & 0xfe == TAG)?;
        let record = SettingRecord { number: cursor.varint()?, listed: tag & 1 == 0 };
        cursor.end()?;
        Some(record)
    }
}

/// What a partition may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BoundRecord {
    /// Of what it was told.
    pub number: u64,
    pub max: Amounts,
}

impl BoundRecord {
    /// Appends the value.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(TAG);
        put_varint(out, self.number);
        put(out, self.max);
    }

    /// Reads a value; `None` if no version wrote it.
    pub fn decode(value: &[u8]) -> Option<BoundRecord> {
        let mut cursor = Cursor::new(value);
        let tag = cursor.byte()?;
        let record = BoundRecord { number: cursor.varint()?, max: read(&mut cursor)? };
        cursor.end()?;
        (tag == TAG).then_some(record)
    }
}
