//! A name in a directory: value of the key (directory, dentry, name). 2–11 bytes, 4–5 in a partition of millions.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 1 | 0x10 + type of the inode (upper four bits of its mode, `d_type`) |
//! | 1 | varint | inode |
use super::varint::Cursor;
use crate::message::writer::put_varint;

const VERSION: u8 = 1;

/// What a name stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dentry {
    pub inode: u64,
    /// `d_type` of the inode.
    pub d_type: u8,
}

impl Dentry {
    pub fn is_dir(&self) -> bool {
        self.d_type == 4
    }

    /// Appends the value.
    #[inline]
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(VERSION << 4 | self.d_type);
        put_varint(out, self.inode);
    }

    /// Reads a value; `None` if no version wrote it.
    #[inline]
    pub fn decode(value: &[u8]) -> Option<Dentry> {
        let mut cursor = Cursor::new(value);
        let tag = cursor.byte()?;
        let inode = cursor.varint()?;
        cursor.end()?;
        (tag >> 4 == VERSION).then_some(Dentry { inode, d_type: tag & 0xf })
    }
}
