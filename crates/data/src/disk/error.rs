//! [`DataError`]: why a chunk operation failed on this member, cut by what the asker does, and its code on the wire.

use cairn_chunk_core::append::AppendRefusal;
use cairn_chunk_core::overwrite::OverwriteRefusal;
use cairn_env::DiskError;
use cairn_types::{ChunkId, ErrorCode};
use cairn_wire::error::WireError;

/// Why an operation on a chunk failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DataError {
    /// The disk left service; another member has to do it.
    #[error("{disk} left service: {why}; it is verified at the next start")]
    Failed {
        /// The disk's directory.
        disk: String,
        /// The first failure.
        why: String,
    },
    /// The device does not come back from what it does; another member has to do it.
    #[error("{disk} stands still: it has completed nothing for {ms} ms")]
    Stalled {
        /// The disk's directory.
        disk: String,
        /// For how long.
        ms: u64,
    },
    /// A part cannot be read; another member has it.
    #[error("{chunk}: {why}")]
    Unreadable {
        /// The chunk.
        chunk: ChunkId,
        /// What the disk said.
        why: String,
    },
    /// No room on the disk.
    #[error("{disk} has no space for {chunk} ({free} bytes free); free space or add disks")]
    NoSpace {
        /// The disk's directory.
        disk: String,
        /// The chunk.
        chunk: ChunkId,
        /// What is left.
        free: u64,
    },
    /// This member lacks the bytes.
    #[error("{chunk}: bytes {from} to {to} are not here (it has {length})")]
    Missing {
        /// The chunk.
        chunk: ChunkId,
        /// First byte asked for.
        from: u64,
        /// End of what was asked for.
        to: u64,
        /// Bytes that are here.
        length: u64,
    },
    /// There is no such chunk here.
    #[error("{chunk} is not here")]
    NoChunk {
        /// The chunk.
        chunk: ChunkId,
    },
    /// It was deleted, or the blocks were freed.
    #[error("{chunk} was deleted there; refresh the extent map of the file")]
    Deleted {
        /// The chunk.
        chunk: ChunkId,
    },
    /// The append itself is refused.
    #[error("{chunk}: {refusal}")]
    Refused {
        /// The chunk.
        chunk: ChunkId,
        /// Why.
        refusal: AppendRefusal,
    },
    /// The overwrite itself is refused.
    #[error("{chunk}: {refusal}")]
    NotOverwritten {
        /// The chunk.
        chunk: ChunkId,
        /// Why.
        refusal: OverwriteRefusal,
    },
    /// The journal has so much to write home that overwrites wait too long.
    #[error("the journal of {disk} is full of overwrites; write to new space")]
    Saturated {
        /// The disk's directory.
        disk: String,
    },
    /// A block does not match its checksum.
    #[error("{chunk}: block {block} does not match its checksum")]
    Checksum {
        /// The chunk.
        chunk: ChunkId,
        /// The block.
        block: u32,
    },
    /// A queue of the disk is full.
    #[error("{disk} has too much to do; repeat later")]
    Busy {
        /// The disk's directory.
        disk: String,
    },
    /// The store is closing.
    #[error("{disk} is being closed")]
    Stopping {
        /// The disk's directory.
        disk: String,
    },
}

impl DataError {
    /// The code on the wire.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Failed { .. } | Self::Stalled { .. } => ErrorCode::DiskFailed,
            Self::Unreadable { .. } | Self::Missing { .. } | Self::NoChunk { .. } => ErrorCode::Missing,
            Self::NoSpace { .. } => ErrorCode::NoSpace,
            Self::Deleted { .. } => ErrorCode::ChunkDeleted,
            Self::Refused { refusal: AppendRefusal::Malformed, .. } => ErrorCode::BadRequest,
            Self::Refused { refusal: AppendRefusal::Sealed { .. }, .. } => ErrorCode::ChunkSealed,
            Self::Refused { refusal: AppendRefusal::NotAtEnd { .. }, .. } => ErrorCode::OffsetMismatch,
            Self::NotOverwritten { refusal, .. } => match refusal {
                OverwriteRefusal::Malformed => ErrorCode::BadRequest,
                OverwriteRefusal::BeyondDurable { .. } => ErrorCode::Missing,
                OverwriteRefusal::OpenTail { .. } => ErrorCode::NotInPlace,
                OverwriteRefusal::Freed { .. } => ErrorCode::ChunkDeleted,
                OverwriteRefusal::OutOfOrder { .. } => ErrorCode::OffsetMismatch,
                OverwriteRefusal::OldEpoch { .. } => ErrorCode::StaleEpoch,
            },
            Self::Saturated { .. } => ErrorCode::NotInPlace,
            Self::Checksum { .. } => ErrorCode::ChecksumMismatch,
            Self::Busy { .. } => ErrorCode::Overloaded,
            Self::Stopping { .. } => ErrorCode::Unavailable,
        }
    }

    /// As it crosses the wire.
    pub fn to_wire(&self) -> WireError {
        match self {
            Self::NotOverwritten { refusal: OverwriteRefusal::OldEpoch { current, .. }, .. } => {
                WireError::stale_epoch(*current, self.to_string())
            }
            _ => WireError::new(self.code(), self.to_string()),
        }
    }
}

/// Why a disk cannot be used at all.
#[derive(Debug, Clone, thiserror::Error)]
pub enum OpenError {
    /// The disk failed or refused.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The label, the lock.
    #[error(transparent)]
    Store(#[from] cairn_store::StoreError),
    /// A file of the store is not what was written.
    #[error("{file} is corrupt: {what}; the disk stays out of service, its chunks are on the other members")]
    Corrupt {
        /// Directory and file.
        file: String,
        /// What is wrong.
        what: String,
    },
    /// The configuration makes no sense.
    #[error("{dir}: {what}")]
    Config {
        /// The directory.
        dir: String,
        /// What is wrong.
        what: String,
    },
    /// Threads could not be started.
    #[error("{dir}: cannot start a thread: {why}")]
    Thread {
        /// The directory.
        dir: String,
        /// What the system said.
        why: String,
    },
}
