//! [`Payload`]: the raw bytes that follow a message, held by reference so that joining them copies nothing.

use cairn_env::Pipe;
use cairn_env::buf::{AlignedBuf, SharedBuf};

/// What follows the message of a frame. The bytes stay shared with their owner until the kernel has them.
#[derive(Debug, Default)]
pub enum Payload {
    /// Nothing.
    #[default]
    None,
    /// One piece.
    One(SharedBuf),
    /// Several pieces, sent one after the other without being joined in memory.
    Many(Vec<SharedBuf>),
    /// What a pipe holds, which goes to the socket without being copied.
    Piped(Pipe),
}

impl Payload {
    /// Bytes of all pieces.
    pub fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::One(piece) => piece.len(),
            Self::Piped(pipe) => pipe.len(),
            Self::Many(pieces) => pieces.iter().fold(0, |sum, piece| sum.saturating_add(piece.len())),
        }
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<()> for Payload {
    fn from((): ()) -> Self {
        Self::None
    }
}

impl From<SharedBuf> for Payload {
    fn from(piece: SharedBuf) -> Self {
        Self::One(piece)
    }
}

impl From<Pipe> for Payload {
    fn from(pipe: Pipe) -> Self {
        Self::Piped(pipe)
    }
}

impl From<AlignedBuf> for Payload {
    fn from(buf: AlignedBuf) -> Self {
        Self::One(buf.freeze())
    }
}

impl From<Vec<SharedBuf>> for Payload {
    fn from(pieces: Vec<SharedBuf>) -> Self {
        Self::Many(pieces)
    }
}

impl From<Option<SharedBuf>> for Payload {
    fn from(piece: Option<SharedBuf>) -> Self {
        piece.map_or(Self::None, Self::One)
    }
}
