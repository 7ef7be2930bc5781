//! What members, clients and the manager say to a replica, and what it answers: the messages of `data.proto` with typed
//! fields.
//!
//! Bytes never pass the core: `P` stands for them, and the core goes by the checksums beside it. Not here: which member
//! may be asked what ([`crate::role`]), and under which epoch ([`crate::epoch`]).

use std::ops::Range;
use std::sync::Arc;

use cairn_chunk_core::overwrite::Follow;
use cairn_format::crc_table::PunchedBits;
use cairn_format::overwrite_number::OverwriteNumber;
use cairn_format::pg_state::PgStateRecord;
use cairn_types::{DiskId, Epoch, ErrorCode, Incarnation, SessionId};

use crate::epoch::Fencing;

/// Why something was not done. `ErrorCode` says what the asker does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// As on the wire.
    pub code: ErrorCode,
    /// The member further down the chain that failed.
    pub disk: Option<DiskId>,
    /// The epoch here, where the asker's is older.
    pub current: Option<Epoch>,
}

impl Refused {
    /// Of nobody else.
    pub const fn because(code: ErrorCode) -> Self {
        Self { code, disk: None, current: None }
    }

    /// The asker's epoch is over.
    pub const fn stale(current: Epoch) -> Self {
        Self { code: ErrorCode::StaleEpoch, disk: None, current: Some(current) }
    }

    /// A member further down did not do it.
    pub const fn chain(disk: DiskId) -> Self {
        Self { code: ErrorCode::ChainFailed, disk: Some(disk), current: None }
    }

    /// It says that bytes are not there or not good, and nothing of who was asked.
    pub fn is_about_bytes(&self) -> bool {
        matches!(self.code, ErrorCode::Missing | ErrorCode::ChecksumMismatch | ErrorCode::ChunkDeleted)
    }
}

/// Some bytes: whole blocks, the last one perhaps in part, with a checksum each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Data<P> {
    /// One a block.
    pub crcs: Vec<u32>,
    /// `None`: what stands for freed blocks, to be freed right after; it reads as bad until then, never as zeros.
    pub bytes: Option<P>,
}

/// Blocks next to each other that replace what is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run<P> {
    /// The first one.
    pub block: u32,
    /// Whole blocks.
    pub data: Data<P>,
}

impl<P> Run<P> {
    /// The blocks.
    pub fn blocks(&self) -> Range<u32> {
        self.block..self.block + self.data.crcs.len() as u32
    }
}

/// A member that did its part, and since which start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// The member.
    pub disk: DiskId,
    /// Of its process.
    pub incarnation: Incarnation,
}

/// A chunk as a list names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkSum {
    /// Its index.
    pub index: u32,
    /// Bytes.
    pub length: u64,
    /// Bytes that power can take nothing of.
    pub durable: u64,
    /// Takes no more appends.
    pub sealed: bool,
    /// Epoch in which it was made.
    pub made: Epoch,
    /// Its writer.
    pub session: SessionId,
    /// Checksum of the table of checksums.
    pub table_crc: u32,
    /// Blocks that were freed.
    pub freed: u32,
    /// The last overwrite in place.
    pub number: OverwriteNumber,
    /// How a member that catches up follows overwrites; told to nobody else.
    pub follow: Follow,
}

/// A chunk's table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// As in a list, of the same moment.
    pub sum: ChunkSum,
    /// A checksum a block.
    pub crcs: Vec<u32>,
    /// Freed blocks.
    pub freed: PunchedBits,
}

/// An append.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Append<P> {
    /// The chunk.
    pub index: u32,
    /// The asker's epoch.
    pub epoch: Epoch,
    /// Its writer.
    pub session: SessionId,
    /// The chunk's epoch.
    pub made: Epoch,
    /// Where.
    pub offset: u64,
    /// How much.
    pub bytes: u64,
    /// What.
    pub data: Data<P>,
    /// Where it goes on to.
    pub chain: Vec<DiskId>,
    /// It is answered when it is durable.
    pub sync: bool,
    /// The primary brings a chunk of an earlier epoch up.
    pub repair: bool,
}

/// A sync or a seal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Along {
    /// The chunk.
    pub index: u32,
    /// The asker's epoch.
    pub epoch: Epoch,
    /// The writer; of a seal, whoever.
    pub session: SessionId,
    /// Where it goes on to.
    pub chain: Vec<DiskId>,
}

/// Place of an overwrite among others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ordered {
    /// By a client: the primary gives it the next number.
    Next,
    /// By the primary.
    After {
        /// The one before it.
        previous: OverwriteNumber,
        /// Its own.
        number: OverwriteNumber,
    },
    /// By the primary, which makes members equal: whatever came before.
    Level {
        /// The chunk's from now on.
        number: OverwriteNumber,
    },
}

/// An overwrite in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overwrite<P> {
    /// The chunk.
    pub index: u32,
    /// The asker's epoch.
    pub epoch: Epoch,
    /// The client's session.
    pub session: SessionId,
    /// Its number for it.
    pub request: u64,
    /// Nothing below is waited for.
    pub floor: u64,
    /// Its place.
    pub order: Ordered,
    /// What.
    pub runs: Vec<Run<P>>,
    /// Where it goes on to.
    pub chain: Vec<DiskId>,
}

/// Which chunks a list names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// All.
    All,
    /// Those that still take appends.
    Open,
    /// Those that were overwritten in place.
    Overwritten,
    /// One.
    One(u32),
}

/// What is freed of a chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Freed {
    /// All of it, whatever its length.
    Whole,
    /// Some blocks.
    Blocks(Vec<Range<u32>>),
}

/// A range of a chunk that is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Read {
    /// The chunk.
    pub index: u32,
    /// The asker's epoch, if it matters.
    pub fencing: Fencing,
    /// From where.
    pub offset: u64,
    /// How much.
    pub bytes: u64,
    /// Only a member that is sure of its membership answers.
    pub sure: bool,
    /// Nobody better answers; the epoch in which the chunk was made, as one who serves told it.
    pub last_resort: Option<Epoch>,
}

/// What a replica is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request<P> {
    /// A state of the group, by the manager or the primary.
    Apply(Arc<PgStateRecord>),
    /// Indices for new chunks.
    Allocate {
        /// The asker's epoch.
        epoch: Epoch,
        /// How many.
        count: u32,
    },
    /// The primary raises the mark below which indices are given out.
    Reserve {
        /// Its epoch.
        epoch: Epoch,
        /// The mark.
        mark: u32,
    },
    /// New bytes.
    Append(Append<P>),
    /// What was written is to be durable.
    Sync(Along),
    /// A chunk takes no more.
    Seal(Along),
    /// Blocks are replaced.
    Overwrite(Overwrite<P>),
    /// Bytes.
    Read(Read),
    /// What is here.
    List(Which),
    /// One chunk's table.
    Table {
        /// The chunk.
        index: u32,
        /// The asker's epoch, if it matters.
        fencing: Fencing,
    },
    /// Metadata names these blocks no more.
    Free {
        /// The chunk.
        index: u32,
        /// What of it.
        what: Freed,
    },
    /// A reader found a block that does not match its checksum.
    BadBlock {
        /// The chunk.
        index: u32,
        /// The block.
        block: u32,
    },
}

/// What it answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer<P> {
    /// Nothing more to say.
    Done,
    /// Indices.
    Indices(Range<u32>),
    /// The mark here.
    Mark(u32),
    /// Of an append, sync, seal or overwrite.
    Wrote(Wrote),
    /// Of a read, with the epoch in which the chunk was made.
    Data(Data<P>, Epoch),
    /// Of a list.
    List {
        /// The member's epoch.
        epoch: Epoch,
        /// Its mark.
        mark: u32,
        /// In the order of indices.
        chunks: Vec<ChunkSum>,
    },
    /// Of a table.
    Table(Table),
}

/// What a chain did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Wrote {
    /// Length on the first member.
    pub length: u64,
    /// Least durable length.
    pub durable: u64,
    /// All that did it.
    pub members: Vec<Stamp>,
}
