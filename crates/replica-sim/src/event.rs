//! What happens in a run, in the order of its time.

use std::cmp::Ordering;

use cairn_replica_core::disk::DiskDone;
use cairn_replica_core::message::{Answer, Refused, Request};
use cairn_types::{DiskId, Epoch, Incarnation};

use crate::words::Bytes;

/// Who waits for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caller {
    /// A member, in one of its lives.
    Node {
        /// Which.
        node: usize,
        /// Its life.
        life: u64,
        /// Its call.
        call: u64,
    },
    /// A client.
    Client {
        /// Which.
        client: usize,
        /// Its call.
        call: u64,
    },
    /// Metadata, which frees.
    Metadata {
        /// Which free.
        free: u64,
    },
    /// Nobody.
    Manager,
}

/// What happens.
#[derive(Debug, Clone)]
pub enum Event {
    /// A request arrives at a member.
    Asked {
        /// Which.
        node: usize,
        /// From whom.
        from: Caller,
        /// What.
        request: Request<Bytes>,
    },
    /// An answer arrives.
    Answered {
        /// At whom.
        to: Caller,
        /// What.
        outcome: Result<Answer<Bytes>, Refused>,
    },
    /// Nobody answered in time.
    TimedOut(Caller),
    /// A disk did something.
    DiskDone {
        /// Whose.
        node: usize,
        /// In which life.
        life: u64,
        /// For which call.
        call: u64,
        /// What.
        outcome: Result<DiskDone<Bytes>, Refused>,
        /// What is durable by it.
        commit: Option<u64>,
    },
    /// A member is woken.
    Wake(usize, u64),
    /// A process starts.
    Start(usize),
    /// It asks to be registered.
    Register(usize, u64),
    /// The manager did.
    Registered(usize, u64, Incarnation),
    /// A heartbeat is due.
    Beat(usize, u64),
    /// It arrives.
    Beats {
        /// Of whom.
        node: usize,
        /// Its process.
        incarnation: Incarnation,
        /// The epoch on its disk.
        epoch: Epoch,
        /// The one under which it caught up.
        caught_up: Option<Epoch>,
        /// When it was sent.
        asked: u64,
    },
    /// Its answer arrives.
    Heard {
        /// At whom.
        node: usize,
        /// In which life.
        life: u64,
        /// When it was asked.
        asked: u64,
        /// What the manager has.
        state: std::sync::Arc<cairn_format::pg_state::PgStateRecord>,
    },
    /// The manager hears of a member that is in the way.
    Suspected(DiskId),
    /// It looks around.
    ManagerTicks,
    /// A client does something.
    Client(usize),
    /// Metadata frees something.
    Frees,
    /// It repeats what was not answered.
    FreeAgain(u64),
    /// Something breaks.
    Breaks,
    /// A cut, a burst, a full or slow disk ends.
    Mends(Mend),
}

/// What comes right again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mend {
    /// A link.
    Link(usize, usize),
    /// The network.
    Network,
    /// A disk has room.
    Room(usize),
    /// It is as fast as before.
    Speed(usize),
    /// It reads everything again, and its process is started anew if a write had failed.
    Device(usize),
}

/// An event and when it happens; equal times in the order in which they were planned.
#[derive(Debug)]
pub struct Planned {
    /// In microseconds.
    pub at: u64,
    /// Order of planning.
    pub turn: u64,
    /// What.
    pub event: Event,
}

impl PartialEq for Planned {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.turn) == (other.at, other.turn)
    }
}

impl Eq for Planned {}

impl PartialOrd for Planned {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Planned {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.turn).cmp(&(self.at, self.turn))
    }
}
