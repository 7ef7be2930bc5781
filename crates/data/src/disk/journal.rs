//! [`Journal`]: the disk's one journal: takes records from all threads, makes them durable in groups, hands them on to
//! be written home.
//!
//! Invariants: records are durable in the order in which they were submitted; a batch is written after the one before
//! was synced; after a failure nothing is taken any more. Not here: writing home ([`super::home`]), replay.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use cairn_env::{AlignedBuf, Clock, DiskError, File, SharedBuf};
use cairn_format::journal_batch::{JOURNAL_BATCH_LEN, JournalBatch, RING_BLOCK};
use cairn_format::journal_header::RING_OFFSET;
use cairn_format::journal_record::JournalRecord;
use cairn_format::overwrite_number::OverwriteNumber;
use cairn_types::DiskUuid;
use parking_lot::Mutex;

use super::chunk::{Chunk, CrcRun, Done};
use super::queue::WorkQueue;
use super::ring::Ring;

/// What a durable record means for home.
pub(crate) enum Effect {
    /// Nothing: it only waits for those before it.
    Barrier,
    /// The chunk's file name has to be made durable.
    Create(Arc<Chunk>),
    /// Bytes, CRCs, length, seal, and the number of the last overwrite if that is new.
    Extent {
        chunk: Arc<Chunk>,
        durable: u64,
        sealed: bool,
        runs: Vec<CrcRun>,
        data: Vec<HomeData>,
        number: Option<OverwriteNumber>,
    },
    /// Freed blocks, with the sectors of bits that they are in.
    Punch { chunk: Arc<Chunk>, blocks: Vec<std::ops::Range<u32>>, first_sector: u32, bits: Vec<u8> },
    /// The file goes.
    Delete(Arc<Chunk>),
}

/// Blocks to be written home.
pub(crate) struct HomeData {
    pub(crate) first_block: u32,
    pub(crate) data: SharedBuf,
    pub(crate) version: u64,
}

/// One record with what follows from it.
pub(crate) struct Item {
    record: Vec<u8>,
    effect: Effect,
    done: Option<Done<()>>,
}

impl Item {
    pub(crate) fn new(record: &JournalRecord<'_>, effect: Effect, done: Option<Done<()>>) -> Self {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        Self::encoded(bytes, effect, done)
    }

    /// The same with the bytes of the record.
    pub(crate) fn encoded(record: Vec<u8>, effect: Effect, done: Option<Done<()>>) -> Self {
        Self { record, effect, done }
    }

    pub(crate) fn barrier(done: Done<()>) -> Self {
        Self { record: Vec::new(), effect: Effect::Barrier, done: Some(done) }
    }

    /// The chunk whose creation this is.
    pub(crate) fn created(&self) -> Option<Arc<Chunk>> {
        match &self.effect {
            Effect::Create(chunk) => Some(chunk.clone()),
            _ => None,
        }
    }

    /// Whether somebody waits until it is durable.
    fn is_awaited(&self) -> bool {
        self.done.is_some() || !matches!(self.effect, Effect::Extent { .. })
    }

    /// Answers with a failure.
    pub(crate) fn fail(self, error: &super::DataError) {
        if let Some(done) = self.done {
            done(Err(error.clone()));
        }
    }
}

/// A durable batch on its way home.
pub(crate) struct Committed {
    pub(crate) sequence: u64,
    /// Bytes of its records.
    pub(crate) bytes: u64,
    pub(crate) effects: Vec<Effect>,
}

impl Committed {
    /// The chunks that exist from now on.
    pub(crate) fn created(&self) -> Vec<Arc<Chunk>> {
        let chunk = |effect: &Effect| match effect {
            Effect::Create(chunk) => Some(chunk.clone()),
            _ => None,
        };
        self.effects.iter().filter_map(chunk).collect()
    }
}

/// The journal of a disk.
pub(crate) struct Journal {
    pub(crate) queue: WorkQueue<Item>,
    file: Arc<dyn File>,
    id: DiskUuid,
    batch_max: usize,
    /// Blocks of the ring in use, and all of them.
    used: AtomicU32,
    size: u32,
    state: Mutex<State>,
}

struct State {
    ring: Ring,
    /// All batches before this are home and flushed.
    home: u64,
    buffer: AlignedBuf,
}

/// What a step of the journal came to.
pub(crate) enum Step {
    /// Nothing to do.
    Idle,
    /// Space has to be freed before it can go on.
    Full,
    /// Something was written, or barriers were answered.
    Done(Option<Committed>),
    /// The device failed; these are to be answered with it.
    Failed(DiskError, Vec<Item>),
}

impl Journal {
    pub(crate) fn new(file: Arc<dyn File>, id: DiskUuid, ring: Ring, batch_max: usize) -> Self {
        // A record has at most 64 KiB of CRCs, 1 MiB of data and its head; it is added while the batch is below its
        // limit.
        let buffer = AlignedBuf::unpooled(batch_max + (2 << 20));
        let home = ring.tail_sequence();
        let (used, size) = (AtomicU32::new(ring.used()), ring.size());
        let state = Mutex::new(State { ring, home, buffer });
        Self { queue: WorkQueue::default(), file, id, batch_max, used, size, state }
    }

    /// Part of the ring that is in use. Never waits for a batch that is being written.
    pub(crate) fn fullness(&self) -> f64 {
        f64::from(self.used.load(Relaxed)) / f64::from(self.size)
    }

    /// All batches before this are home and flushed.
    pub(crate) fn home_sequence(&self) -> u64 {
        self.state.lock().home
    }

    /// All batches before `sequence` are home and flushed: their space is free once a batch that says so is durable.
    pub(crate) fn set_home(&self, sequence: u64) {
        let mut state = self.state.lock();
        state.home = state.home.max(sequence);
    }

    /// Writes one batch that says what is home, if that frees anything. For the end, and when the ring is full. Returns
    /// whether it did.
    pub(crate) fn write_tail(&self) -> Result<bool, DiskError> {
        let mut state = self.state.lock();
        let frees = state.home > state.ring.tail_sequence();
        if frees {
            self.write(&mut state, &[], true)?;
        }
        Ok(frees)
    }

    /// Waits, so long at most, until somebody waits for a record or a batch is full: the others lose nothing by being
    /// later, and each commit costs a flush of the device. `false`: there is nothing to be committed.
    pub(crate) fn linger(&self, clock: &dyn Clock, longest: Duration) -> bool {
        let begun = clock.now();
        let (mut seen, mut bytes) = (0, 0);
        loop {
            let mut awaited = false;
            seen += self.queue.visit_from(seen, |item| {
                awaited |= item.is_awaited();
                bytes += item.record.len();
            });
            let left = longest.saturating_sub(clock.now().since(begun));
            if seen == 0 {
                return false;
            }
            if awaited || bytes >= self.batch_max || left.is_zero() || !self.queue.wait_for_more(seen, left) {
                return true;
            }
        }
    }

    /// Makes what waits durable, as much as fits a batch. Called by one thread at a time.
    pub(crate) fn step(&self) -> Step {
        let mut items = VecDeque::from(self.queue.take(usize::MAX));
        if items.is_empty() {
            return Step::Idle;
        }
        let mut bytes = 0;
        let count = items.iter().take_while(|item| {
            let take = bytes < self.batch_max;
            bytes += item.record.len();
            take
        });
        let count = count.count();
        self.queue.put_back(items.split_off(count).into());
        let items: Vec<Item> = items.into();
        if items.iter().all(|item| item.record.is_empty()) {
            complete(items);
            return Step::Done(None);
        }
        let mut state = self.state.lock();
        match self.write(&mut state, &items, false) {
            Ok(Some(sequence)) => {
                drop(state);
                let bytes = items.iter().map(|item| item.record.len() as u64).sum();
                let effects = complete(items);
                Step::Done(Some(Committed { sequence, bytes, effects }))
            }
            Ok(None) => {
                drop(state);
                self.queue.put_back(items);
                Step::Full
            }
            Err(error) => Step::Failed(error, items),
        }
    }

    /// Writes and syncs one batch; `None` when there is no room.
    fn write(&self, state: &mut State, items: &[Item], frees: bool) -> Result<Option<u64>, DiskError> {
        let used: usize = items.iter().map(|item| item.record.len()).sum();
        let blocks = JournalBatch::blocks_for(used);
        assert!(state.ring.could_hold(blocks as u32), "a batch of {blocks} blocks does not fit the journal");
        let Some(placed) = state.ring.place(blocks as u32, frees) else { return Ok(None) };
        let (tail_sequence, tail_block) = state.ring.tail_for(state.home, placed);
        let buffer = &mut state.buffer;
        buffer.clear();
        buffer.resize(JOURNAL_BATCH_LEN);
        items.iter().for_each(|item| buffer.extend_from_slice(&item.record));
        buffer.resize(blocks * RING_BLOCK);
        let header = JournalBatch {
            journal: self.id,
            sequence: placed.sequence,
            block: placed.block,
            blocks: placed.blocks,
            used: used as u32,
            tail_block,
            tail_sequence,
        };
        header.seal(buffer);
        self.file.write_at(buffer, RING_OFFSET + u64::from(placed.block) * RING_BLOCK as u64)?;
        self.file.sync_data()?;
        state.ring.commit(placed, tail_sequence);
        self.used.store(state.ring.used(), Relaxed);
        Ok(Some(placed.sequence))
    }
}

/// Answers those who wait; what remains is to be written home. Whoever is answered finds the chunks' durable lengths as
/// promised: they do not wait for home.
fn complete(items: Vec<Item>) -> Vec<Effect> {
    for item in &items {
        if let Effect::Extent { chunk, durable, .. } = &item.effect {
            let mut state = chunk.state.lock();
            state.durable = state.durable.max(*durable);
        }
    }
    let mut effects = Vec::with_capacity(items.len());
    for item in items {
        if let Some(done) = item.done {
            done(Ok(()));
        }
        if !matches!(item.effect, Effect::Barrier) {
            effects.push(item.effect);
        }
    }
    effects
}
