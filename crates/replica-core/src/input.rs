//! What happens to a replica ([`Input`]), and what it has done ([`Output`]).

use cairn_types::{DiskId, Epoch, Time};

use crate::care::Care;
use crate::chunk_job::Outcome;
use crate::disk::{DiskDone, DiskOp};
use crate::message::{Answer, ChunkSum, Refused, Request};
use crate::reconcile::Purpose;
use crate::role::{Asker, Role};
use crate::source::SourceKind;

/// A request that the owner answers.
pub type RequestId = u64;
/// A call that the owner makes.
pub type CallId = u64;

/// What the disk has of the chunk that a request names, when it comes.
#[derive(Debug, Clone, Copy)]
pub struct Seen {
    /// As in a list.
    pub sum: ChunkSum,
    /// A block that the request names is freed.
    pub freed: bool,
    /// So much waits to be written home that new space is the better place.
    pub full: bool,
}

/// What happens to a replica.
#[derive(Debug, Clone)]
pub enum Input<P> {
    /// Somebody asks.
    Request {
        /// For the answer.
        id: RequestId,
        /// Who.
        from: Asker,
        /// What.
        request: Request<P>,
        /// What is here of the chunk that it names.
        here: Option<Seen>,
    },
    /// A member answered, or nobody knows whether it did.
    Answer {
        /// Whose call.
        call: CallId,
        /// What.
        outcome: Result<Answer<P>, Refused>,
    },
    /// The disk did something, or not.
    Done {
        /// Whose call.
        call: CallId,
        /// What.
        outcome: Result<DiskDone<P>, Refused>,
    },
    /// The manager answered what it was asked at that time; every state that came with it was told before.
    Word {
        /// When it was asked.
        asked: Time,
    },
    /// The disk found something that is to be looked after.
    Found(Care),
    /// A chunk had no append for long.
    Idle(u32),
    /// Time has passed.
    Tick,
}

/// What a replica has done.
#[derive(Debug, Clone)]
pub enum Output<P> {
    /// A request is answered.
    Reply(RequestId, Result<Answer<P>, Refused>),
    /// A member is asked.
    Ask {
        /// For the answer.
        call: CallId,
        /// Whom.
        to: DiskId,
        /// What.
        request: Request<P>,
    },
    /// The disk does something.
    Disk {
        /// For what comes of it.
        call: CallId,
        /// What.
        op: DiskOp<P>,
    },
    /// A member is in the way: the manager is told.
    Suspect(DiskId),
    /// The manager is asked for news, and told of this member.
    Poke,
    /// For logs and counts.
    Note(Note),
}

/// What a person may want to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Note {
    /// An epoch began.
    Entered(Epoch, Role),
    /// A chunk was compared.
    Compared {
        /// Which.
        index: u32,
        /// In which role.
        role: Role,
        /// Why.
        purpose: Purpose,
        /// Where bytes came from, if any did.
        source: Option<SourceKind>,
        /// What came of it.
        outcome: Outcome,
    },
    /// It holds all that the others have.
    CaughtUp(Epoch),
}
