//! Overwrites in place: judged in the caller's thread, journaled with their checksums in the order of their numbers,
//! read through what lies over the file, written home later and merged.
//!
//! Invariants: a block and its checksum are in one journal record, so after a crash a block is the old or the new one;
//! the number of an overwrite is in the record that completes it; an overwrite that was ordered in an epoch that is
//! over changes nothing. Who may overwrite what: [`cairn_chunk_core::overwrite`]. Not here: other members, requests of
//! clients.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use cairn_chunk_core::overwrite::{Follow, OverwriteRefusal, check_blocks, check_order, check_runs};
use cairn_env::SharedBuf;
use cairn_format::journal_overwrite::{OverwriteRecord, OverwriteVector};
use cairn_format::journal_record::JournalRecord;
use cairn_format::overwrite_number::OverwriteNumber;
use cairn_types::{BLOCK_SIZE, ChunkId, Epoch};

use super::chunk::{Chunk, ChunkMem, CrcRun, Done, GoodBlock, Job, OverlayBlock};
use super::journal::{Effect, HomeData, Item};
use super::metrics::add;
use super::{DataError, DiskStore};

/// Part of the journal's ring in use from which on blocks are better written to new space: at half of it the journal
/// begins to be written home.
const SATURATED_ABOVE: f64 = 0.75;

/// Blocks next to each other.
#[derive(Debug, Clone)]
pub struct OverwriteRun {
    /// First block.
    pub block: u32,
    /// Whole blocks.
    pub data: SharedBuf,
    /// A checksum of each, verified by the caller.
    pub crcs: Vec<u32>,
}

/// In which order an overwrite is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OverwriteOrder {
    /// As primary: it gets the next number.
    Next,
    /// As serving member: only right behind the one before it.
    After {
        /// The one before it.
        previous: OverwriteNumber,
        /// Its number.
        number: OverwriteNumber,
    },
    /// As a member that catches up: what is here of its blocks, whatever came before.
    Follow {
        /// The one before it.
        previous: OverwriteNumber,
        /// Its number.
        number: OverwriteNumber,
    },
    /// The primary makes members equal: whatever came before, also without blocks. What catches up has to copy again.
    Settle {
        /// The chunk's number from now on.
        number: OverwriteNumber,
        /// The member serves.
        serving: bool,
    },
}

/// An overwrite as the server hands it in.
#[derive(Debug, Clone)]
pub struct OverwriteOp {
    /// The chunk.
    pub chunk: ChunkId,
    /// The group's epoch.
    pub epoch: Epoch,
    /// Its place among others.
    pub order: OverwriteOrder,
    /// The blocks, ascending.
    pub runs: Vec<OverwriteRun>,
}

/// An overwrite that was accepted.
pub(crate) struct OverwriteJob {
    epoch: Epoch,
    order: OverwriteOrder,
    previous: OverwriteNumber,
    number: OverwriteNumber,
    runs: Vec<OverwriteRun>,
    bytes: usize,
    done: Done<OverwriteNumber>,
}

impl OverwriteJob {
    /// Answers without having done it; how many bytes of the queue it held.
    pub(crate) fn refuse(self, error: &DataError) -> usize {
        (self.done)(Err(error.clone()));
        self.bytes
    }
}

impl DiskStore {
    /// Overwrites whole blocks in place. Accepted in the order of the calls, or refused at once; then `done` is not
    /// called. Returns the number before it and its own. `done` comes when it is durable.
    pub fn overwrite(
        &self,
        op: OverwriteOp,
        done: Done<OverwriteNumber>,
    ) -> Result<(OverwriteNumber, OverwriteNumber), DataError> {
        self.check()?;
        let id = op.chunk;
        let refused = |refusal| DataError::NotOverwritten { chunk: id, refusal };
        let settles = matches!(op.order, OverwriteOrder::Settle { .. });
        let blocks = check_op(&op, settles).map_err(refused)?;
        if matches!(op.order, OverwriteOrder::Next | OverwriteOrder::After { .. }) && self.is_saturated() {
            add(&self.metrics.overwrites_refused, 1);
            return Err(DataError::Saturated { disk: self.name().into() });
        }
        let chunk = self.chunk(id).ok_or(DataError::NoChunk { chunk: id })?;
        if chunk.is_parity() {
            return Err(refused(OverwriteRefusal::Malformed));
        }
        let unknown = {
            let state = chunk.state.lock();
            state.punched_blocks > 0 && state.punched.is_none()
        };
        if unknown {
            self.load_tables(&chunk)?;
        }
        let bytes = blocks as usize * BLOCK_SIZE;
        self.reserve_queue(bytes)?;
        let mut state = chunk.state.lock();
        let accepted = self.accept_overwrite(id, &mut state, &op);
        let (previous, number) = match accepted {
            Ok(numbers) => numbers,
            Err(error) => {
                drop(state);
                self.release_queue(bytes);
                return Err(error);
            }
        };
        state.overwrites_queued += 1;
        state.overwrite_accepted = number;
        let OverwriteOp { epoch, order, runs, .. } = op;
        // Queued under the same lock, so that the order of the numbers is the order of work.
        self.enqueue(&chunk, Job::Overwrite(OverwriteJob { epoch, order, previous, number, runs, bytes, done }));
        drop(state);
        add(&self.metrics.overwrites, 1);
        add(&self.metrics.overwritten_blocks, u64::from(blocks));
        Ok((previous, number))
    }

    /// So much waits to be written home that new space is the better place.
    pub fn is_saturated(&self) -> bool {
        let overlay = self.overlay_bytes.load(Relaxed);
        self.journal.fullness() > SATURATED_ABOVE || overlay > self.config.overlay_bytes_max
    }

    fn accept_overwrite(
        &self,
        id: ChunkId,
        state: &mut ChunkMem,
        op: &OverwriteOp,
    ) -> Result<(OverwriteNumber, OverwriteNumber), DataError> {
        if state.deleted {
            return Err(DataError::Deleted { chunk: id });
        }
        if state.overwrites_queued == 0 {
            state.overwrite_accepted = state.follow.last;
        }
        let refused = |refusal| DataError::NotOverwritten { chunk: id, refusal };
        let here = state.overwrite_accepted;
        let numbers = match op.order {
            OverwriteOrder::Next => (here, here.next(op.epoch)),
            OverwriteOrder::After { previous, number } => {
                check_order(here, previous, number).map_err(refused)?;
                (previous, number)
            }
            OverwriteOrder::Follow { previous, number } => (previous, number),
            OverwriteOrder::Settle { number, .. } => (here, number),
        };
        if matches!(op.order, OverwriteOrder::Next | OverwriteOrder::After { .. }) {
            let runs: Vec<_> = op.runs.iter().map(blocks_of_run).collect();
            let durable = state.durability.promise(state.written);
            check_blocks(&runs, durable, state.sealed, state.punched.as_deref()).map_err(refused)?;
        }
        Ok(numbers)
    }

    /// Carries an overwrite out.
    pub(super) fn run_overwrite(&self, chunk: &Arc<Chunk>, job: OverwriteJob) {
        let bytes = job.bytes;
        self.wait_for_overlay();
        let outcome = self.check().and_then(|()| self.with_tables(chunk));
        let rejected = match outcome {
            Ok(mut state) => {
                state.overwrites_queued -= 1;
                match self.check_again(chunk.id, &state, &job) {
                    Ok(()) => self.apply_overwrite(chunk, &mut state, job),
                    Err(error) => {
                        drop(state);
                        (job.done)(Err(error));
                        None
                    }
                }
            }
            Err(error) => {
                chunk.state.lock().overwrites_queued -= 1;
                (job.done)(Err(error));
                None
            }
        };
        self.reject(rejected);
        self.release_queue(bytes);
    }

    /// What may have changed since it was accepted: called with the chunk locked, so that a list that is made after the
    /// member entered an epoch has all that it took before.
    fn check_again(&self, id: ChunkId, state: &ChunkMem, job: &OverwriteJob) -> Result<(), DataError> {
        if state.deleted {
            return Err(DataError::Deleted { chunk: id });
        }
        let refused = |refusal| Err(DataError::NotOverwritten { chunk: id, refusal });
        if let Some(pg) = self.pg_files.get(id.pg).filter(|pg| pg.epoch != job.epoch) {
            return refused(OverwriteRefusal::OldEpoch { asked: job.epoch, current: pg.epoch });
        }
        let ordered = matches!(job.order, OverwriteOrder::Next | OverwriteOrder::After { .. });
        if ordered && (job.previous != state.follow.last || state.doubtful) {
            // The one before it failed, or what is here is to be compared first.
            let (number, previous, here) = (job.number, job.previous, state.follow.last);
            return refused(OverwriteRefusal::OutOfOrder { number, previous, here });
        }
        Ok(())
    }

    fn apply_overwrite(&self, chunk: &Arc<Chunk>, state: &mut ChunkMem, job: OverwriteJob) -> Option<Item> {
        let OverwriteJob { order, previous, number, runs, done, .. } = job;
        let before = state.follow.last;
        let skip = matches!(order, OverwriteOrder::Follow { .. }) && self.is_saturated();
        let (parts, whole) = if skip { (Vec::new(), false) } else { parts_here(state, runs) };
        match order {
            OverwriteOrder::Next | OverwriteOrder::After { .. } => state.follow.last = number,
            OverwriteOrder::Follow { .. } => {
                state.follow.came(previous, number, whole);
                for run in &parts {
                    state.touched.extend(blocks_of_run(run).map(|block| (block, number)));
                }
            }
            OverwriteOrder::Settle { serving, .. } => {
                let need = if serving { OverwriteNumber::NONE } else { number };
                state.follow = Follow { last: number, need, in_step: Epoch(0) };
                // Blocks that come before it is compared have no number yet.
                state.doubtful &= !number.is_some();
            }
        }
        state.last_overwrite = Some(self.context.clock.now());
        // Whole or in parts that fit the journal; the last one says that all of it is here.
        let mut groups = self.group(parts).into_iter().peekable();
        let done: Done<()> = Box::new(move |outcome| done(outcome.map(|()| number)));
        while let Some(group) = groups.next() {
            if groups.peek().is_none() {
                return self.journal_overwrite(chunk, state, group, number, Some(done));
            }
            // A journal that takes no more does not take the last one either, which has somebody to be told.
            let _closed = self.journal_overwrite(chunk, state, group, before, None);
        }
        self.journal_overwrite(chunk, state, Vec::new(), number, Some(done))
    }

    /// Runs that go into one record each.
    fn group(&self, runs: Vec<OverwriteRun>) -> Vec<Vec<OverwriteRun>> {
        let most = (self.config.journal_append_max / BLOCK_SIZE).max(1);
        let mut groups: Vec<Vec<OverwriteRun>> = Vec::new();
        let mut left = 0;
        for run in runs {
            let mut at = 0;
            while at < run.crcs.len() {
                if left == 0 {
                    groups.push(Vec::new());
                    left = most;
                }
                let count = left.min(run.crcs.len() - at);
                let piece = OverwriteRun {
                    block: run.block + at as u32,
                    data: run.data.slice(at * BLOCK_SIZE..(at + count) * BLOCK_SIZE),
                    crcs: run.crcs[at..at + count].to_vec(),
                };
                groups.last_mut().expect("pushed above").push(piece);
                (at, left) = (at + count, left - count);
            }
        }
        groups
    }

    /// Puts blocks over what is at home and journals them. Called with the chunk's lock held, so that records stand in
    /// the order of the changes. Gives the item back if the journal takes no more.
    fn journal_overwrite(
        &self,
        chunk: &Arc<Chunk>,
        state: &mut ChunkMem,
        runs: Vec<OverwriteRun>,
        number: OverwriteNumber,
        done: Option<Done<()>>,
    ) -> Option<Item> {
        state.next_version += 1;
        let version = state.next_version;
        for run in &runs {
            state.set_crcs(run.block, &run.crcs, &[]);
            for (i, block) in blocks_of_run(run).enumerate() {
                let data = run.data.slice(i * BLOCK_SIZE..(i + 1) * BLOCK_SIZE);
                state.overlay.insert(block, OverlayBlock { data, version });
            }
            self.overlay_bytes.fetch_add(run.data.len(), Relaxed);
        }
        let durable = state.durability.promise(state.written);
        let tables: Vec<_> = runs.iter().map(|run| state.crc_run(blocks_of_run(run))).collect();
        let vectors = runs.iter().zip(&tables).map(|(run, (first, crcs, _))| OverwriteVector {
            block: run.block,
            crcs_first: *first,
            crcs: crcs.clone(),
            data: &run.data,
        });
        let record = JournalRecord::Overwrite(OverwriteRecord {
            chunk: chunk.id,
            number,
            length: state.written,
            durable,
            sealed: state.seal_journaled,
            vectors: vectors.collect(),
        });
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        let crc_runs =
            tables.into_iter().map(|(first, crcs, _)| CrcRun { table: 0, first, crcs: crcs.into() }).collect();
        let data = runs.into_iter().map(|run| HomeData { first_block: run.block, data: run.data, version }).collect();
        let effect = Effect::Extent {
            chunk: chunk.clone(),
            durable,
            sealed: state.seal_journaled,
            runs: crc_runs,
            data,
            number: Some(number),
        };
        state.pending += 1;
        self.journal.queue.push(Item::encoded(bytes, effect, done)).err()
    }

    /// Replaces a block by the one of a table as of `as_of`, unless a newer overwrite has come for it. For catching up.
    pub fn replace_as_of(
        &self,
        id: ChunkId,
        block: u32,
        good: GoodBlock,
        as_of: OverwriteNumber,
        done: Done<()>,
    ) -> Result<(), DataError> {
        self.submit_heal(id, block, good, Some(as_of), done)
    }

    /// The chunk was made equal to a table of the primary as of `number`. `done` gets whether it is in step from now
    /// on.
    pub fn settle_copy(
        &self,
        id: ChunkId,
        number: OverwriteNumber,
        epoch: Epoch,
        done: Done<bool>,
    ) -> Result<(), DataError> {
        self.submit(id, |_| Ok(Job::Copied { number, epoch, done }))
    }

    pub(super) fn run_copied(&self, chunk: &Arc<Chunk>, number: OverwriteNumber, epoch: Epoch, done: Done<bool>) {
        let mut state = match self.check().and_then(|()| self.with_tables(chunk)) {
            Ok(state) => state,
            Err(error) => return done(Err(error)),
        };
        let before = state.follow.last;
        let in_step = state.follow.copied(number, epoch);
        if in_step {
            state.touched.clear();
            state.doubtful = false;
        }
        if state.follow.last == before {
            drop(state);
            return done(Ok(in_step));
        }
        let last = state.follow.last;
        let done: Done<()> = Box::new(move |outcome| done(outcome.map(|()| in_step)));
        let rejected = self.journal_overwrite(chunk, &mut state, Vec::new(), last, Some(done));
        drop(state);
        self.reject(rejected);
    }
}

fn blocks_of_run(run: &OverwriteRun) -> std::ops::Range<u32> {
    run.block..run.block + run.crcs.len() as u32
}

/// Blocks of an overwrite whose parts fit each other.
fn check_op(op: &OverwriteOp, may_be_empty: bool) -> Result<u32, OverwriteRefusal> {
    if op.runs.is_empty() && may_be_empty {
        return Ok(0);
    }
    if op.runs.iter().any(|run| run.data.len() != run.crcs.len() * BLOCK_SIZE) {
        return Err(OverwriteRefusal::Malformed);
    }
    let runs: Vec<_> = op.runs.iter().map(|run| run.block..run.block.saturating_add(run.crcs.len() as u32)).collect();
    check_runs(&runs)
}

/// What is here of an overwrite and not freed, and whether that is all but what was freed.
fn parts_here(state: &ChunkMem, runs: Vec<OverwriteRun>) -> (Vec<OverwriteRun>, bool) {
    let (end, mut whole) = (state.blocks(), true);
    let mut parts = Vec::new();
    for run in runs {
        let mut part: Option<std::ops::Range<u32>> = None;
        let mut take = |part: &mut Option<std::ops::Range<u32>>| {
            let Some(part) = part.take() else { return };
            let (from, to) = ((part.start - run.block) as usize, (part.end - run.block) as usize);
            let data = run.data.slice(from * BLOCK_SIZE..to * BLOCK_SIZE);
            parts.push(OverwriteRun { block: part.start, data, crcs: run.crcs[from..to].to_vec() });
        };
        for block in blocks_of_run(&run) {
            whole &= block < end;
            if block >= end || state.is_punched(block..block + 1) {
                take(&mut part);
            } else {
                part = Some(part.map_or(block, |part| part.start)..block + 1);
            }
        }
        take(&mut part);
    }
    (parts, whole)
}
