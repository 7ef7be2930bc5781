//! A client session: numbered slots for each partition, each with one outstanding sequence number.
//!
//! Invariant: a sequence number names one request for ever. A slot whose request has no known outcome is never used
//! again, so a late execution of it cannot be mistaken for a later request.
use super::holds::HoldCounts;
use super::lease::Leases;
use super::soft::SoftOpens;
use cairn_types::SessionId;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Mutations in flight of one session at one partition.
pub(crate) const SLOTS_IN_USE_MAX: usize = 64;
/// Further ones for what the session itself has to say, for which others may wait while theirs are all in use.
const OWN_SLOTS_MAX: usize = 8;
/// Processes that may go on one after the other with what the session of a dead one has queued.
pub const SUCCESSORS_MAX: u64 = 8;
/// Slot numbers of a session at one partition; when so many have no known outcome, a new session is needed.
const SLOT_NUMBERS_MAX: u32 = 256;

/// One session at the cluster.
pub(crate) struct Session {
    pub(crate) id: SessionId,
    ended: AtomicBool,
    /// Chunks are made under it.
    writes: AtomicBool,
    /// A partition was told of it because it writes.
    announced: AtomicBool,
    partitions: Mutex<BTreeMap<u32, Arc<SlotTable>>>,
    /// Numbers of slots that are used here.
    numbers: Range<u32>,
    /// Handles that hold inodes in the log.
    pub(crate) holds: HoldCounts,
    /// Files open without a log entry.
    pub(crate) soft: SoftOpens,
    /// For overwriting in place.
    pub(crate) leases: Leases,
}

struct SlotTable {
    in_use: Arc<Semaphore>,
    own_in_use: Arc<Semaphore>,
    free: Mutex<Free>,
}

struct Free {
    /// (slot, last sequence used)
    slots: Vec<(u32, u64)>,
    unused: Range<u32>,
}

/// A slot that is being used for one request. Dropped before [`SlotLease::finish`], its slot is given up.
pub(crate) struct SlotLease {
    table: Arc<SlotTable>,
    pub(crate) slot: u32,
    pub(crate) sequence: u64,
    _permit: OwnedSemaphorePermit,
}

/// A slot that one sender keeps for requests that follow each other. One whose last request has no known outcome is
/// given up with it.
pub(crate) struct KeptSlot {
    table: Arc<SlotTable>,
    pub(crate) slot: u32,
    last: u64,
    answered: u64,
}

impl Session {
    pub(crate) fn new(id: SessionId) -> Self {
        Self {
            id,
            ended: AtomicBool::new(false),
            writes: AtomicBool::new(false),
            announced: AtomicBool::new(false),
            partitions: Mutex::default(),
            numbers: 0..SLOT_NUMBERS_MAX,
            holds: HoldCounts::default(),
            soft: SoftOpens::default(),
            leases: Leases::default(),
        }
    }
    /// One of a process that is dead, of which nobody knows which slots it used: it takes new ones one after the other,
    /// and gets to the last ones when it has used all others. Of those each successor has some for itself: it does not
    /// know how far the one before it came.
    pub(crate) fn of_the_dead(id: SessionId, successor: u64) -> Self {
        let own = OWN_SLOTS_MAX as u32;
        let from = SLOT_NUMBERS_MAX - own * (successor % SUCCESSORS_MAX) as u32 - own;
        Self { numbers: from..from + own, ..Self::new(id) }
    }
    /// The servers ended it, or its slots are used up: the next call opens another.
    pub(crate) fn mark_ended(&self) {
        self.ended.store(true, Ordering::Release);
    }
    pub(crate) fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }
    /// Chunks are made under it from now on: the partition has to know it, so that it is not taken for a dead writer.
    pub(crate) fn note_writer(&self) {
        self.writes.store(true, Ordering::Relaxed);
    }
    pub(crate) fn is_writer(&self) -> bool {
        self.writes.load(Ordering::Relaxed)
    }
    /// Whether the partition has yet to be told that this session writes.
    pub(crate) fn is_unannounced(&self) -> bool {
        self.is_writer() && !self.announced.load(Ordering::Relaxed)
    }
    pub(crate) fn note_announced(&self) {
        self.announced.store(true, Ordering::Relaxed);
    }
    /// Partitions that know this session.
    pub(crate) fn partitions(&self) -> Vec<u32> {
        let mut all: Vec<u32> = self.partitions.lock().keys().copied().collect();
        all.extend(self.soft.partitions());
        all.sort_unstable();
        all.dedup();
        all
    }
    /// Takes a slot; waits while all are in use. `None` when the session has to be replaced.
    pub(crate) async fn slot(&self, partition: u32) -> Option<SlotLease> {
        let table = self.slots_of(partition);
        let permit = table.in_use.clone().acquire_owned().await.ok()?;
        table.take(permit)
    }
    /// The same for a request that never waits for other sessions: giving back what they wait for, holding files. It
    /// does not stand behind requests that do.
    pub(crate) async fn own_slot(&self, partition: u32) -> Option<SlotLease> {
        let table = self.slots_of(partition);
        let permit = table.own_in_use.clone().acquire_owned().await.ok()?;
        table.take(permit)
    }
    /// A slot for one sender, beside those that requests share. `None` when all numbers are used up.
    pub(crate) fn kept_slot(&self, partition: u32) -> Option<KeptSlot> {
        let table = self.slots_of(partition);
        let (slot, last) = table.number()?;
        Some(KeptSlot { table, slot, last, answered: last })
    }
    fn slots_of(&self, partition: u32) -> Arc<SlotTable> {
        self.partitions.lock().entry(partition).or_insert_with(|| Arc::new(SlotTable::new(&self.numbers))).clone()
    }
}

impl SlotTable {
    fn new(numbers: &Range<u32>) -> Self {
        let free = Free { slots: Vec::new(), unused: numbers.clone() };
        let semaphore = |permits| Arc::new(Semaphore::new(permits));
        let (in_use, own_in_use) = (semaphore(SLOTS_IN_USE_MAX), semaphore(OWN_SLOTS_MAX));
        Self { in_use, own_in_use, free: Mutex::new(free) }
    }
    fn take(self: Arc<Self>, permit: OwnedSemaphorePermit) -> Option<SlotLease> {
        let table = self;
        let (slot, last) = table.number()?;
        Some(SlotLease { table, slot, sequence: last + 1, _permit: permit })
    }
    /// A number that nobody uses, with the last sequence number under it.
    fn number(&self) -> Option<(u32, u64)> {
        let mut free = self.free.lock();
        free.slots.pop().or_else(|| Some((free.unused.next()?, 0)))
    }
}

impl KeptSlot {
    /// The sequence number of the next request. The one before has an answer, or is never sent again.
    pub(crate) fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }
    /// The server keeps the last request's outcome under its number.
    pub(crate) fn answered(&mut self) {
        self.answered = self.last;
    }
    /// Nothing more comes.
    pub(crate) fn give_back(self) {
        if self.answered == self.last {
            self.table.free.lock().slots.push((self.slot, self.last));
        }
    }
}

impl SlotLease {
    /// The request's outcome is known and the server keeps it under this sequence number.
    pub(crate) fn finish(self) {
        self.table.free.lock().slots.push((self.slot, self.sequence));
    }
    /// The request was certainly never executed under this number: it is free for another request.
    pub(crate) fn unused(self) {
        self.table.free.lock().slots.push((self.slot, self.sequence - 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_slot_without_known_outcome_is_never_used_again() {
        let session = Session::new(SessionId(1));
        let first = session.slot(1).await.expect("slot");
        assert_eq!((first.slot, first.sequence), (0, 1));
        first.finish();
        let second = session.slot(1).await.expect("slot");
        assert_eq!((second.slot, second.sequence), (0, 2));
        drop(second);
        let third = session.slot(1).await.expect("slot");
        assert_eq!((third.slot, third.sequence), (1, 1));
        third.unused();
        let again = session.slot(1).await.expect("slot");
        assert_eq!((again.slot, again.sequence), (1, 1));
        let other = session.slot(2).await.expect("slot");
        assert_eq!((other.slot, other.sequence), (0, 1), "partitions have slots of their own");
    }

    #[tokio::test]
    async fn a_session_whose_slots_are_used_up_says_so() {
        let session = Session::new(SessionId(1));
        for _ in 0..SLOT_NUMBERS_MAX {
            drop(session.slot(1).await.expect("slot"));
        }
        assert!(session.slot(1).await.is_none());
    }

    /// What one successor of a dead process asked would be taken for what another one did.
    #[tokio::test]
    async fn successors_of_a_dead_process_share_no_slots() {
        let mut used = std::collections::BTreeSet::new();
        for successor in 0..SUCCESSORS_MAX {
            let session = Session::of_the_dead(SessionId(1), successor);
            while let Some(slot) = session.kept_slot(1) {
                assert!(slot.slot < SLOT_NUMBERS_MAX && used.insert(slot.slot), "{successor}: {}", slot.slot);
            }
        }
        assert_eq!(used.len() as u64, SUCCESSORS_MAX * OWN_SLOTS_MAX as u64);
    }

    /// Two mounts whose requests all wait for files of the other one could not give them to each other.
    #[tokio::test]
    async fn what_others_wait_for_has_slots_of_its_own() {
        let session = Session::new(SessionId(1));
        let mut waiting = Vec::new();
        for _ in 0..SLOTS_IN_USE_MAX {
            waiting.push(session.slot(1).await.expect("slot"));
        }
        let own = session.own_slot(1).await.expect("slot");
        assert!(waiting.iter().all(|other| other.slot != own.slot));
        own.finish();
    }
}
