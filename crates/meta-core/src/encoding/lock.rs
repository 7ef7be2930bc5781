//! A lock on a range of a file: value of the key (inode, lock, kind, session, owner, first byte). 3–13 bytes.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 1 | 0x10 + 1 for reading, + 2 for writing |
//! | 1 | varint | last byte − first byte; to 2^63 − 1 for "to the end" |
//! | | varint | process id, for whoever asks who is in the way |
use super::varint::Cursor;
use crate::message::writer::put_varint;

const VERSION: u8 = 1;
/// The last byte of a lock that goes to the end of the file, however far.
pub const LOCK_END: u64 = i64::MAX as u64;

/// The first and the last byte that are locked, and how.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct LockRange {
    pub start: u64,
    pub end: u64,
    pub write: bool,
    pub pid: u32,
}

impl LockRange {
    /// Appends the value; the start is in the key.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(VERSION << 4 | if self.write { 2 } else { 1 });
        put_varint(out, self.end - self.start);
        put_varint(out, u64::from(self.pid));
    }

    /// Reads a value; `None` if no version wrote it.
    pub fn decode(start: u64, value: &[u8]) -> Option<LockRange> {
        let mut cursor = Cursor::new(value);
        let tag = cursor.byte()?;
        let length = cursor.varint()?;
        let pid = cursor.varint_u32()?;
        cursor.end()?;
        let end = start.checked_add(length).filter(|end| *end <= LOCK_END)?;
        let write = match tag {
            0x11 => false,
            0x12 => true,
            _ => return None,
        };
        Some(LockRange { start, end, write, pid })
    }
}
