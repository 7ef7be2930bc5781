//! What happens to a delegation at its holder ([`Input`]), and what it has done ([`Output`]).

use std::ops::RangeInclusive;

use cairn_types::Time;
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use cairn_wire::meta::{BatchRequest, BatchResponse};

/// A request of a program that the owner answers.
pub type RequestId = u64;
/// A batch that the owner sends. It keeps slot and sequence of its request as long as it is not answered.
pub type CallId = u64;

/// What happens.
#[derive(Debug, Clone)]
pub enum Input {
    /// A program changes something that is covered.
    Change {
        /// For the answer.
        id: RequestId,
        /// What.
        opcode: Opcode,
        /// The message of it; of its header `who` counts.
        request: Vec<u8>,
    },
    /// A program wants everything that was acknowledged up to here to be stored.
    Commit {
        /// For the answer.
        id: RequestId,
    },
    /// A program removes the top.
    RemoveTop {
        /// For the answer.
        id: RequestId,
    },
    /// What the partition said to the removal of the top.
    TopRemoved {
        /// Whether it is gone.
        gone: bool,
    },
    /// Who removes the top has gone, before the partition was asked.
    Withdrawn {
        /// As it was asked for.
        id: RequestId,
    },
    /// The partition answered a batch, or refused it. An answer may come late, or more than once.
    Answered {
        /// Which one.
        call: CallId,
        /// What.
        answer: Result<BatchResponse, WireError>,
    },
    /// Nobody knows what became of a batch: no answer, another leader, no room.
    Unanswered {
        /// Which one.
        call: CallId,
    },
    /// A renewal of the session was answered.
    Renewed {
        /// When it was sent.
        sent: Time,
    },
    /// The session has ended, whoever said so.
    SessionEnded,
    /// It is to end: somebody else wants in, an operation needs it, the mount goes.
    Wanted,
    /// Time has passed.
    Tick,
    /// Something here was left half done by a fault of the program: what is in memory is not to be believed any more.
    Broken,
}

/// What it has done.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    /// A change is answered. If it is done, all programs of the machine see it from now on.
    Answer(RequestId, Result<Vec<u8>, WireError>),
    /// A request cannot be answered now. It comes again behind [`Output::Again`].
    Wait(RequestId),
    /// A request is for the partition. It goes there behind [`Output::Ended`], at once if that has been.
    Elsewhere(RequestId),
    /// Those that were told to wait come again.
    Again,
    /// What was acknowledged before a commit is stored; or it is not and never will be.
    Committed(RequestId, Result<(), WireError>),
    /// A batch goes to the partition, under the same slot and sequence whenever its call is the same.
    Send(CallId, BatchRequest),
    /// The top is to be removed by the partition; what it says is [`Input::TopRemoved`].
    AskToRemove(RequestId),
    /// Numbers that it covers, too.
    Covers(RangeInclusive<u64>),
    /// It has ended with everything stored; what it covered is the partition's.
    Ended,
    /// It has ended, and what was acknowledged from an item on is not stored.
    Lost(Lost),
}

/// What a holder acknowledged and could not store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// Why.
    pub error: WireError,
    /// Number of the first item.
    pub from: u64,
    /// Items.
    pub count: u64,
    /// Inodes that they named, some of them: directories in which something was made or removed, and files.
    pub inodes: Vec<u64>,
    /// The session lives: the partition has to be told that nothing more comes (`EndDelegations`).
    pub give_back: bool,
}
