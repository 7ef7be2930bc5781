//! [`Kind`]: which faults there are.

use std::time::Duration;

use cairn_env::disk::DiskOp;

use crate::links::{self, Effect};

/// What can happen to a place.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// Power goes now.
    Power,
    /// Power goes during the n-th change of the disk from now.
    PowerAt(u64),
    /// The process ends, the machine lives.
    Kill,
    /// Nothing reaches the place, and no answer comes from it.
    Stall,
    /// The same, and what it asks others is not heard either.
    Isolate,
    /// All of its threads stand still; time goes on.
    Pause,
    /// One end cannot reach it, one way or both.
    Cut(links::End, Effect),
    /// Connections to it are slow, break, or change bits.
    Net(Effect),
    /// Bits of chunks flip at rest.
    Rot,
    /// Power goes, and bits flip anywhere in chunk files while it is off.
    PowerAndRot,
    /// The n-th write or sync fails.
    DiskFails(DiskOp, u64),
    /// Reads of chunk files fail now and then.
    ReadsFail,
    /// The disk is full.
    Full,
    /// Reads of chunk files come back with flipped bits now and then.
    Corrupts,
    /// Syncs are forgotten now and then; at the end power goes.
    Forgets,
    /// The disk is lost with all that it had; an empty one comes in its place.
    DiskLost,
    /// The machine is lost; a new one comes in its place.
    NodeLost,
    /// Power goes, and what the place had at an earlier moment is there when it starts.
    GoesBack,
    /// Power goes everywhere, in the middle of what is under way.
    Blackout,
    /// It is taken down for a time of which the manager knows.
    Hibernates(Duration),
}

impl Kind {
    /// For people.
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Power => "power",
            Kind::PowerAt(_) => "power-mid-write",
            Kind::Kill => "kill",
            Kind::Stall => "stall",
            Kind::Isolate => "isolate",
            Kind::Pause => "pause",
            Kind::Cut(..) => "cut",
            Kind::Net(_) => "net",
            Kind::Rot => "rot",
            Kind::PowerAndRot => "power+rot",
            Kind::DiskFails(..) => "disk-fails",
            Kind::ReadsFail => "reads-fail",
            Kind::Full => "full",
            Kind::Corrupts => "corrupts",
            Kind::Forgets => "forgets-syncs",
            Kind::DiskLost => "disk-lost",
            Kind::NodeLost => "node-lost",
            Kind::GoesBack => "goes-back",
            Kind::Blackout => "blackout-beside",
            Kind::Hibernates(_) => "hibernates",
        }
    }

    /// Whether a disk says something that is not so: what it has is in doubt until it was looked at.
    pub(super) fn lies(self) -> bool {
        matches!(self, Kind::Corrupts | Kind::Forgets)
    }
}
