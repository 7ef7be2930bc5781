//! That a session holds an inode open: value of the key (inode, hold, session).
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 1 | 0x10 + 1 if open for writing |

const VERSION: u8 = 1;

/// A hold of one session on one inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hold {
    /// The session passed the check for writing when it opened the file, and may write whatever the mode is now.
    pub write: bool,
}

impl Hold {
    pub const fn encode(self) -> [u8; 1] {
        [VERSION << 4 | self.write as u8]
    }

    /// Reads a value; `None` if no version wrote it.
    pub fn decode(value: &[u8]) -> Option<Hold> {
        match value {
            [byte] if byte >> 4 == VERSION && byte & 0xe == 0 => Some(Hold { write: byte & 1 == 1 }),
            _ => None,
        }
    }
}
