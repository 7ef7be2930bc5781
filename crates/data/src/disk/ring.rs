//! [`Ring`]: which blocks of the journal's ring the next batch may take, and how a ring is read after a crash.
//!
//! Invariants: a batch never lies over one that the newest durable batch still needs; sequence numbers rise by one, so
//! a batch of an earlier lap is never taken for a newer one. Pure; the journal does the I/O.

use std::collections::VecDeque;

use cairn_format::journal_batch::{JournalBatch, RING_BLOCK};
use cairn_types::DiskUuid;

/// Blocks that ordinary batches leave free, so that one that only frees space can always be written.
pub(crate) const RING_RESERVE: u32 = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(crate) sequence: u64,
    pub(crate) block: u32,
    pub(crate) blocks: u32,
}

/// Geometry of the ring.
#[derive(Debug)]
pub(crate) struct Ring {
    size: u32,
    head: u32,
    next: u64,
    live: VecDeque<Placed>,
}

impl Ring {
    /// An empty ring.
    pub(crate) fn new(size: u32) -> Self {
        Self { size, head: 0, next: 1, live: VecDeque::new() }
    }

    /// Goes on behind the batches found.
    pub(crate) fn resume(size: u32, live: Vec<Placed>) -> Self {
        let Some(last) = live.last() else { return Self::new(size) };
        let (head, next) = ((last.block + last.blocks) % size, last.sequence + 1);
        Self { size, head, next, live: live.into() }
    }

    pub(crate) fn next_sequence(&self) -> u64 {
        self.next
    }

    /// Blocks between the oldest batch and the head.
    pub(crate) fn used(&self) -> u32 {
        match self.live.front() {
            None => 0,
            Some(front) if self.head > front.block => self.head - front.block,
            Some(front) => self.size - front.block + self.head,
        }
    }

    pub(crate) fn size(&self) -> u32 {
        self.size
    }

    /// Where `blocks` blocks would go with `spare` more behind them.
    fn find(&self, blocks: u32, spare: u32) -> Option<u32> {
        let wanted = blocks.checked_add(spare)?;
        let Some(tail) = self.live.front().map(|front| front.block) else {
            return if self.head + wanted <= self.size { Some(self.head) } else { (wanted <= self.size).then_some(0) };
        };
        // The head never meets the tail: that would look like an empty ring.
        if self.head >= tail {
            let fits = self.head + wanted < self.size || self.head + wanted == self.size && tail > 0;
            return if fits { Some(self.head) } else { (wanted < tail).then_some(0) };
        }
        (self.head + wanted < tail).then_some(self.head)
    }

    /// Places a batch; `None` when space has to be freed first. A batch that only `frees` may use the reserve.
    pub(crate) fn place(&self, blocks: u32, frees: bool) -> Option<Placed> {
        let block = self.find(blocks, if frees { 0 } else { RING_RESERVE })?;
        Some(Placed { sequence: self.next, block, blocks })
    }

    /// Whether the batch can ever be placed.
    pub(crate) fn could_hold(&self, blocks: u32) -> bool {
        blocks + RING_RESERVE < self.size / 2
    }

    /// The oldest batch that is needed if all before `needed` are home, given that `placed` is written next.
    pub(crate) fn tail_for(&self, needed: u64, placed: Placed) -> (u64, u32) {
        let oldest = self.live.iter().find(|batch| batch.sequence >= needed).copied().unwrap_or(placed);
        (oldest.sequence, oldest.block)
    }

    /// The first sequence that is still needed.
    pub(crate) fn tail_sequence(&self) -> u64 {
        self.live.front().map_or(self.next, |front| front.sequence)
    }

    /// The batch is durable, with a tail at `tail`.
    pub(crate) fn commit(&mut self, placed: Placed, tail: u64) {
        assert_eq!(placed.sequence, self.next, "batches are written one after the other");
        self.live.push_back(placed);
        self.next += 1;
        self.head = (placed.block + placed.blocks) % self.size;
        while self.live.front().is_some_and(|front| front.sequence < tail) {
            self.live.pop_front();
        }
    }
}

/// The batches of a ring after a start, oldest first, each with the offset of its bytes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Scan {
    pub(crate) batches: Vec<(Placed, usize)>,
}

/// Reads a ring. The newest whole batch says from where on batches are needed; a hole between is corruption, because
/// only the very last batch written can be torn.
pub(crate) fn scan(ring: &[u8], journal: DiskUuid) -> Result<Scan, String> {
    let mut newest: Option<JournalBatch> = None;
    let mut at = 0;
    while at < ring.len() {
        let found = whole_batch(ring, at, journal);
        at += found.map_or(1, |batch| batch.blocks as usize) * RING_BLOCK;
        if let Some(batch) = found.filter(|batch| newest.is_none_or(|best| batch.sequence > best.sequence)) {
            newest = Some(batch);
        }
    }
    let Some(newest) = newest else { return Ok(Scan::default()) };
    let mut batches = Vec::new();
    let (mut sequence, mut block) = (newest.tail_sequence, newest.tail_block as usize);
    loop {
        let found = [block, 0].into_iter().find_map(|block| {
            whole_batch(ring, block * RING_BLOCK, journal).filter(|batch| batch.sequence == sequence)
        });
        let Some(batch) = found else {
            return Err(format!(
                "batch {sequence} (expected at block {block}) is missing or damaged, but batch {} is there",
                newest.sequence
            ));
        };
        let placed = Placed { sequence, block: batch.block, blocks: batch.blocks };
        batches.push((placed, batch.block as usize * RING_BLOCK));
        if sequence == newest.sequence {
            return Ok(Scan { batches });
        }
        (sequence, block) = (sequence + 1, (batch.block + batch.blocks) as usize);
    }
}

fn whole_batch(ring: &[u8], at: usize, journal: DiskUuid) -> Option<JournalBatch> {
    let bytes = ring.get(at..)?;
    let batch = JournalBatch::decode(bytes)?;
    let here = batch.journal == journal && batch.block as usize * RING_BLOCK == at;
    (here && bytes.len() >= batch.blocks as usize * RING_BLOCK).then_some(())?;
    batch.records(bytes).map(|_| batch)
}

#[cfg(test)]
mod tests;
