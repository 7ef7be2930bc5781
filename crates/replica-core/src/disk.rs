//! What the core has a disk do, and what the disk tells: the calls of `DiskStore`.
//!
//! The disk accepts operations in the order of the outputs and finishes them in any order; what a later operation sees
//! is what earlier ones were accepted to do. It judges nothing but its own: lengths of appends
//! ([`cairn_chunk_core::append`]), the order of overwrites, what is durable.

use std::ops::Range;
use std::sync::Arc;

use cairn_format::overwrite_number::OverwriteNumber;
use cairn_format::pg_state::PgStateRecord;
use cairn_types::{Epoch, SessionId};

use crate::message::{ChunkSum, Data, Freed, Run, Table, Which};

/// In which order the disk takes an overwrite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Only right behind the one before it.
    After {
        /// That one.
        previous: OverwriteNumber,
        /// Its own.
        number: OverwriteNumber,
    },
    /// As a member that catches up: what is here of its blocks, whatever came before.
    Follow {
        /// The one before it.
        previous: OverwriteNumber,
        /// Its own.
        number: OverwriteNumber,
    },
    /// Members are made equal: whatever came before, also without blocks.
    Level {
        /// The chunk's from now on.
        number: OverwriteNumber,
        /// This one serves; one that does not has to copy again.
        serving: bool,
    },
}

/// What the disk is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DiskOp<P> {
    /// The group's state, durably.
    Save(Arc<PgStateRecord>),
    /// What is here.
    List(Which),
    /// A chunk's table.
    Table {
        /// The chunk.
        index: u32,
    },
    /// Verified bytes; whole blocks, the last one perhaps in part.
    Read {
        /// The chunk.
        index: u32,
        /// From where.
        offset: u64,
        /// How much.
        bytes: u64,
    },
    /// New bytes at the end; at 0 they make the chunk if they may.
    Append {
        /// The chunk.
        index: u32,
        /// Its epoch.
        made: Epoch,
        /// Its writer.
        session: SessionId,
        /// Where.
        offset: u64,
        /// How much.
        bytes: u64,
        /// What.
        data: Data<P>,
        /// It may begin here.
        may_create: bool,
        /// Done when durable.
        sync: bool,
        /// Also at the end of a sealed chunk.
        repair: bool,
    },
    /// All of a chunk becomes durable.
    Sync {
        /// The chunk.
        index: u32,
    },
    /// It takes no more, durably.
    Seal {
        /// The chunk.
        index: u32,
    },
    /// Blocks are freed; a chunk of which all are freed and that is sealed, or that is freed whole, is gone.
    Free {
        /// The chunk.
        index: u32,
        /// What.
        what: Freed,
    },
    /// Whole blocks are replaced, durably.
    Overwrite {
        /// The chunk.
        index: u32,
        /// Its place.
        place: Place,
        /// What.
        runs: Vec<Run<P>>,
    },
    /// One block becomes that of a table as of `as_of`, unless a newer overwrite came for it.
    Replace {
        /// The chunk.
        index: u32,
        /// The block.
        block: u32,
        /// What.
        data: Data<P>,
        /// The table's number.
        as_of: OverwriteNumber,
    },
    /// The first `known` bytes of a block become those of `data`, what is behind them stays.
    Begin {
        /// The chunk.
        index: u32,
        /// The block.
        block: u32,
        /// What.
        data: Data<P>,
        /// How much of it counts.
        known: u64,
        /// The table's number.
        as_of: OverwriteNumber,
    },
    /// The chunk was made equal to a table of that number.
    InStep {
        /// The chunk.
        index: u32,
        /// The number.
        number: OverwriteNumber,
        /// When the table was taken.
        epoch: Epoch,
    },
    /// Whether a block matches its checksum.
    Verify {
        /// The chunk.
        index: u32,
        /// The block.
        block: u32,
    },
    /// A bad block is replaced by a good one, under its checksum.
    Heal {
        /// The chunk.
        index: u32,
        /// The block.
        block: u32,
        /// What.
        data: Data<P>,
    },
    /// A bad block in which nothing was ever written is freed.
    FreeHole {
        /// The chunk.
        index: u32,
        /// The block.
        block: u32,
    },
    /// Block `block` of shard `shard` is made of those of others.
    Decode {
        /// Where each is from, with as many blocks as are wanted.
        shards: Vec<(u8, Data<P>)>,
        /// Which one is wanted.
        shard: u8,
        /// How many blocks.
        blocks: Range<u32>,
    },
}

/// What it did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DiskDone<P> {
    /// Nothing more to say.
    Done,
    /// Of a list.
    List(Vec<ChunkSum>),
    /// Of a table.
    Table(Table),
    /// Of a read, and of what was decoded.
    Data(Data<P>),
    /// Of what writes: length and durable length of the chunk.
    Wrote {
        /// Bytes.
        length: u64,
        /// Bytes that power can take nothing of.
        durable: u64,
    },
    /// Whether it was good, was changed, is in step.
    Is(bool),
    /// Of a free, or of a seal of what was freed: the chunk is gone altogether, and was so long; `None`: there is
    /// something left.
    Gone(Option<u64>),
}
