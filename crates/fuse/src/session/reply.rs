//! What an operation answers.
use bytes::Bytes;
use cairn_vfs::VfsError;
use zerocopy::{Immutable, IntoBytes};

/// An answer without its header.
#[derive(Clone, Debug)]
pub enum Reply {
    Errno(i32),
    /// EIO: data of this handle is lost. It counts as told once the kernel has the answer.
    Lost(u64),
    /// Success, nothing to say.
    Done,
    Small(Vec<u8>),
    /// File data in parts, written to the kernel from where they lie.
    Data(Vec<Bytes>),
}

/// Outcome of an operation.
pub type Outcome = Result<Reply, VfsError>;

impl Reply {
    /// One structure.
    pub fn of(value: &(impl IntoBytes + Immutable)) -> Reply {
        Reply::Small(value.as_bytes().to_vec())
    }
    /// Two structures, one after the other.
    pub fn of_two(one: &(impl IntoBytes + Immutable), two: &(impl IntoBytes + Immutable)) -> Reply {
        Reply::Small([one.as_bytes(), two.as_bytes()].concat())
    }
    pub fn is_error(&self) -> bool {
        matches!(self, Reply::Lost(_)) || matches!(self, Reply::Errno(errno) if *errno != 0)
    }
}
