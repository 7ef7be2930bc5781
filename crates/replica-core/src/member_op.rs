//! What a job has a member do: another one by a message, this one by its disk. The same for both, so that no job asks
//! which it is.

use std::ops::Range;

use cairn_format::overwrite_number::OverwriteNumber;
use cairn_types::{DiskId, Epoch, SessionId};

use crate::disk::{DiskDone, DiskOp, Place};
use crate::epoch::Fencing;
use crate::message::{
    Along, Answer, Append, ChunkSum, Data, Freed, Ordered, Overwrite, Read, Refused, Request, Run, Table, Which,
};

/// What is to be done about one chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemberOp<P> {
    /// What it has of it.
    Sum,
    /// Its table.
    Table,
    /// Verified bytes.
    Read {
        /// From where.
        offset: u64,
        /// How much.
        bytes: u64,
        /// The chunk's epoch.
        made: Epoch,
        /// The member does not serve.
        last_resort: bool,
    },
    /// Bytes at its end, also of a sealed chunk of an earlier epoch.
    Write {
        /// Where.
        offset: u64,
        /// How much.
        bytes: u64,
        /// What.
        data: Data<P>,
    },
    /// Its number, with blocks or without.
    Number {
        /// Above all that were given, except where a member takes later blocks of others.
        number: OverwriteNumber,
        /// Blocks.
        runs: Vec<Run<P>>,
    },
    /// Blocks that others have freed.
    Free(Vec<Range<u32>>),
    /// It takes no more.
    Seal,
    /// Only here: [`DiskOp`] without more ado.
    Own(OwnOp<P>),
}

/// What only this member's disk does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OwnOp<P> {
    /// What is here becomes durable.
    Sync,
    /// A block becomes that of a table.
    Replace {
        /// The block.
        block: u32,
        /// What.
        data: Data<P>,
        /// The table's number.
        as_of: OverwriteNumber,
    },
    /// The beginning of a block becomes that of a table.
    Begin {
        /// The block.
        block: u32,
        /// What.
        data: Data<P>,
        /// How much of it counts.
        known: u64,
        /// The table's number.
        as_of: OverwriteNumber,
    },
    /// The chunk equals a table.
    InStep {
        /// Of that number.
        number: OverwriteNumber,
    },
    /// A block is held against its checksum.
    Verify(u32),
    /// A bad block is replaced.
    Heal {
        /// The block.
        block: u32,
        /// By this.
        data: Data<P>,
    },
    /// A bad block in which nothing was ever written is freed.
    FreeHole(u32),
    /// A shard is made of others.
    Decode {
        /// Of these.
        shards: Vec<(u8, Data<P>)>,
        /// That one.
        shard: u8,
        /// These blocks of it.
        blocks: Range<u32>,
    },
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemberDone<P> {
    /// What it has; `None`: nothing.
    Sum(Option<ChunkSum>),
    /// Its table.
    Table(Table),
    /// Bytes.
    Data(Data<P>),
    /// Whether it was good, was changed, is in step.
    Is(bool),
    /// It was done.
    Done,
}

/// About which chunk, and of whose.
#[derive(Debug, Clone, Copy)]
pub struct About {
    /// The chunk.
    pub index: u32,
    /// The group's epoch.
    pub epoch: Epoch,
    /// The chunk's.
    pub made: Epoch,
    /// Its writer.
    pub session: SessionId,
}

impl<P> MemberOp<P> {
    /// As a message to another member.
    pub fn to_request(self, about: About) -> Request<P> {
        let About { index, epoch, made, session } = about;
        match self {
            Self::Sum => Request::List(Which::One(index)),
            Self::Table => Request::Table { index, fencing: Fencing::At(epoch) },
            Self::Read { offset, bytes, made, last_resort } => Request::Read(Read {
                index,
                fencing: Fencing::At(epoch),
                offset,
                bytes,
                sure: false,
                last_resort: last_resort.then_some(made),
            }),
            Self::Write { offset, bytes, data } => {
                let (chain, sync, repair) = (Vec::new(), false, true);
                Request::Append(Append { index, epoch, session, made, offset, bytes, data, chain, sync, repair })
            }
            Self::Number { number, runs } => Request::Overwrite(Overwrite {
                index,
                epoch,
                session: SessionId(0),
                request: 0,
                floor: 0,
                order: Ordered::Level { number },
                runs,
                chain: Vec::new(),
            }),
            Self::Free(blocks) => Request::Free { index, what: Freed::Blocks(blocks) },
            Self::Seal => Request::Seal(Along { index, epoch, session: SessionId(0), chain: Vec::new() }),
            Self::Own(_) => unreachable!("only this member's own disk is asked for it"),
        }
    }

    /// As an operation of this member's disk.
    pub fn to_disk(self, about: About, serving: bool) -> DiskOp<P> {
        let About { index, epoch, made, session } = about;
        match self {
            Self::Sum => DiskOp::List(Which::One(index)),
            Self::Table => DiskOp::Table { index },
            Self::Read { offset, bytes, .. } => DiskOp::Read { index, offset, bytes },
            Self::Write { offset, bytes, data } => {
                let (may_create, sync, repair) = (true, false, true);
                DiskOp::Append { index, made, session, offset, bytes, data, may_create, sync, repair }
            }
            Self::Number { number, runs } => DiskOp::Overwrite { index, place: Place::Level { number, serving }, runs },
            Self::Free(blocks) => DiskOp::Free { index, what: Freed::Blocks(blocks) },
            Self::Seal => DiskOp::Seal { index },
            Self::Own(OwnOp::Sync) => DiskOp::Sync { index },
            Self::Own(OwnOp::Replace { block, data, as_of }) => DiskOp::Replace { index, block, data, as_of },
            Self::Own(OwnOp::Begin { block, data, known, as_of }) => DiskOp::Begin { index, block, data, known, as_of },
            Self::Own(OwnOp::InStep { number }) => DiskOp::InStep { index, number, epoch },
            Self::Own(OwnOp::Verify(block)) => DiskOp::Verify { index, block },
            Self::Own(OwnOp::Heal { block, data }) => DiskOp::Heal { index, block, data },
            Self::Own(OwnOp::FreeHole(block)) => DiskOp::FreeHole { index, block },
            Self::Own(OwnOp::Decode { shards, shard, blocks }) => DiskOp::Decode { shards, shard, blocks },
        }
    }
}

/// What another member answered.
pub fn from_answer<P>(answer: Answer<P>) -> MemberDone<P> {
    match answer {
        Answer::List { chunks, .. } => MemberDone::Sum(chunks.into_iter().next()),
        Answer::Table(table) => MemberDone::Table(table),
        Answer::Data(data, _) => MemberDone::Data(data),
        Answer::Done | Answer::Indices(_) | Answer::Mark(_) | Answer::Wrote(_) => MemberDone::Done,
    }
}

/// What this member's disk did.
pub fn from_disk<P>(done: DiskDone<P>) -> MemberDone<P> {
    match done {
        DiskDone::List(chunks) => MemberDone::Sum(chunks.into_iter().next()),
        DiskDone::Table(table) => MemberDone::Table(table),
        DiskDone::Data(data) => MemberDone::Data(data),
        DiskDone::Is(is) => MemberDone::Is(is),
        DiskDone::Done | DiskDone::Wrote { .. } | DiskDone::Gone(_) => MemberDone::Done,
    }
}

/// An operation and whose it is.
pub type Call<P> = (DiskId, MemberOp<P>);
/// What came of it.
pub type Came<P> = Result<MemberDone<P>, Refused>;
