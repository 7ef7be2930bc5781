//! What an operation across partitions has locked in this one. Value of the key (0, tx lock, operation).
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 1 | 0x10 |
//! | 1 | varints | number, logged time, inode id given out for it (0: none), number of inodes, their ids |
use super::varint::Cursor;
use crate::limits::TX_INODES_MAX;
use crate::message::writer::put_varint;

const TAG: u8 = 0x10;

/// Inodes that nobody else may change or read until the operation has finished.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TxLock {
    /// Index of the log entry that took it: one that is taken anew has another.
    pub number: u64,
    /// Nanoseconds since 1970.
    pub since: u64,
    /// Given out for the operation; 0: none.
    pub new_inode: u64,
    /// Ascending. 0: the lock of directories that change their parent.
    pub inodes: Vec<u64>,
}

impl TxLock {
    /// All that is locked: an inode that will be made, too.
    pub fn all(&self) -> impl Iterator<Item = u64> {
        let made = (self.new_inode != 0).then_some(self.new_inode);
        self.inodes.iter().copied().chain(made)
    }

    /// Appends the value.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(TAG);
        put_varint(out, self.number);
        put_varint(out, self.since);
        put_varint(out, self.new_inode);
        put_varint(out, self.inodes.len() as u64);
        self.inodes.iter().for_each(|id| put_varint(out, *id));
    }

    /// Reads a value; `None` if no version wrote it.
    pub fn decode(value: &[u8]) -> Option<TxLock> {
        let mut cursor = Cursor::new(value);
        let tag = cursor.byte()?;
        let (number, since) = (cursor.varint()?, cursor.varint()?);
        let (new_inode, count) = (cursor.varint()?, cursor.varint()?);
        let count = usize::try_from(count).ok().filter(|count| *count <= TX_INODES_MAX)?;
        let inodes: Vec<u64> = (0..count).map(|_| cursor.varint()).collect::<Option<_>>()?;
        cursor.end()?;
        (tag == TAG && inodes.is_sorted_by(|a, b| a < b)).then_some(TxLock { number, since, new_inode, inodes })
    }
}
