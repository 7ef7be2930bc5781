//! Memory that outlives this process, with what delegations have acknowledged and not stored: [`QueueMemory`]. Whoever
//! runs clients that are replaced when they die has it; what is in it the next one stores ([`super::dead`]).
use cairn_wire::meta::BatchItem;
use prost::Message as _;
use std::io;
use std::ops::RangeInclusive;

/// Whose queue it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueName {
    pub session: u64,
    pub partition: u32,
    /// Of the delegation.
    pub number: u64,
}

/// See the module.
pub trait QueueMemory: Send + Sync {
    /// A place for the queue of a delegation that begins. `None`: there is none, and it is given back.
    fn begin(&self, of: QueueName) -> Option<Box<dyn QueueLog>>;
}

/// The queue of one delegation.
pub trait QueueLog: Send + Sync {
    /// The delegation covers these inodes, too: to be said before items that make any. An error: there is no place.
    fn covers(&mut self, inodes: RangeInclusive<u64>) -> io::Result<()>;
    /// The next item. When this returns it is there for a successor; one that is written in part is not.
    fn push(&mut self, number: u64, item: &[u8]) -> io::Result<()>;
    /// Items below are stored.
    fn stored(&mut self, next: u64);
    /// Nothing waits any more, and the place is free.
    fn end(&mut self);
}

/// What a process left that is dead.
pub struct LeftQueue {
    pub of: QueueName,
    /// What the delegation covered, as far as that is known.
    pub covered: Vec<RangeInclusive<u64>>,
    /// Number of the first item.
    pub first: u64,
    pub items: Vec<Vec<u8>>,
    /// So many have tried to store it that it is lost: there are no slots of its session for another one.
    pub is_given_up: bool,
    pub log: Box<dyn QueueLog>,
}

/// What is written of a delegation, and how far.
pub(super) struct Noting {
    log: Box<dyn QueueLog>,
    /// What is below it is written.
    next: u64,
    stored: u64,
}

impl Noting {
    pub(super) fn new(log: Box<dyn QueueLog>) -> Self {
        Self { log, next: 0, stored: 0 }
    }

    /// Of a queue that is there already, with items up to `next`.
    pub(super) fn of_left(log: Box<dyn QueueLog>, stored: u64, next: u64) -> Self {
        Self { log, next, stored }
    }

    pub(super) fn covers(&mut self, inodes: RangeInclusive<u64>) -> io::Result<()> {
        self.log.covers(inodes)
    }

    /// Writes what waits and is not written, and forgets what is stored.
    pub(super) fn note<'a>(
        &mut self,
        stored: u64,
        waiting: impl Iterator<Item = (u64, &'a BatchItem)>,
    ) -> io::Result<()> {
        if stored > self.stored {
            self.stored = stored;
            self.log.stored(stored);
        }
        for (number, item) in waiting {
            self.log.push(number, &item.encode_to_vec())?;
            self.next = number + 1;
        }
        Ok(())
    }

    pub(super) const fn next(&self) -> u64 {
        self.next
    }

    pub(super) fn end(mut self) {
        self.log.end();
    }
}
