//! A part: bytes of one file on their way into a chunk; kept until it is durable on every serving member.
use super::retry::Retry;
use crate::error::{ClientError, Result};
use cairn_env::buf::SharedBuf;
use cairn_types::{ChunkId, ExtentKind};
use cairn_wire::common::StripeSet;
use std::sync::{Arc, OnceLock};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

/// Where a part's first file byte is, in the space of the chunk that extents name.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Placed {
    pub chunk: ChunkId,
    pub offset: u64,
    pub kind: ExtentKind,
    /// The chunks of the set, if it is one.
    pub set: Option<Arc<StripeSet>>,
}

/// A writer that goes on when a part is in the memory of all members, and hears later where it became durable.
#[derive(Debug)]
pub(crate) struct Show {
    /// Told at once; `None`: it was.
    pub tell: Option<oneshot::Sender<Result<Placed>>>,
    /// Where it was then.
    pub at: Arc<OnceLock<Placed>>,
}

/// What is to be stored.
#[derive(Debug)]
pub(crate) enum Bytes {
    /// Up to [`SEGMENT_MAX`](super::SEGMENT_MAX) for one lane. It begins with `lead` filler bytes, so that chunk offset
    /// and file offset agree modulo 4 KiB.
    Segment {
        data: SharedBuf,
        lead: usize,
        /// u32 little-endian per block; the last block is summed as if filled up with zeros.
        crcs: Vec<u8>,
    },
    /// Stripe units of one file, in its order: whole rows, to be encoded, or what goes to the columns of a stripe set
    /// in turn. Of a set the last one may be short.
    Units(Vec<SharedBuf>),
}

impl Bytes {
    pub fn len(&self) -> u64 {
        match self {
            Self::Segment { data, .. } => data.len() as u64,
            Self::Units(units) => units.iter().map(|unit| unit.len() as u64).sum(),
        }
    }
    /// How many stripe units it has.
    pub fn units(&self) -> usize {
        match self {
            Self::Segment { .. } => 0,
            Self::Units(units) => units.len(),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Part {
    pub bytes: Bytes,
    /// Somebody waits for it: make it durable soon.
    pub sync: bool,
    pub done: oneshot::Sender<Result<Placed>>,
    /// Its writer does not wait until it is durable. What was shown is sent again for as long as it takes: it has a
    /// name.
    pub show: Option<Show>,
    /// Chunks that it was sent to and that failed.
    pub retry: Retry,
    /// Memory that it holds until it is durable.
    pub _permit: OwnedSemaphorePermit,
}

impl Part {
    /// Filler before its first file byte.
    pub fn lead(&self) -> u64 {
        match &self.bytes {
            Bytes::Segment { lead, .. } => *lead as u64,
            Bytes::Units(_) => 0,
        }
    }
    /// It will not be stored.
    pub fn fail(self, error: &ClientError) {
        if let Some(tell) = self.show.and_then(|show| show.tell) {
            // Writers that were dropped no longer ask.
            let _gone = tell.send(Err(error.clone()));
        }
        let _gone = self.done.send(Err(error.clone()));
    }
    /// All members have it in memory, there.
    pub fn show(&mut self, placed: &Placed) {
        let Some(show) = &mut self.show else { return };
        if let Some(tell) = show.tell.take()
            && show.at.set(placed.clone()).is_ok()
        {
            let _gone = tell.send(Ok(placed.clone()));
        }
    }
    /// Its writer was told that it is in this chunk, and may have given it a name there.
    pub fn is_shown_in(&self, chunk: ChunkId) -> bool {
        self.show.as_ref().and_then(|show| show.at.get()).is_some_and(|at| at.chunk == chunk)
    }
    /// Nobody waits for it, and it can have no name.
    pub fn is_given_up(&self) -> bool {
        self.show.is_none() && self.done.is_closed()
    }
    pub fn is_shown(&self) -> bool {
        self.show.as_ref().is_some_and(|show| show.at.get().is_some())
    }
}

/// What one lane gets of a part.
#[derive(Debug)]
pub(crate) struct Cut {
    pub parts: Vec<SharedBuf>,
    /// u32 little-endian per 4 KiB block.
    pub crcs: Vec<u8>,
    /// Of a parity shard: the checksums of the k data blocks of each block's row.
    pub row_crcs: Vec<u8>,
}

impl Cut {
    pub fn len(&self) -> u64 {
        self.parts.iter().map(|part| part.len() as u64).sum()
    }
}
