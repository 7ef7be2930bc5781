//! Strands: the changes of one chunk run one after the other, those of different chunks in parallel.
//!
//! Invariant: a chunk is with at most one thread, and its jobs run in the order in which they were queued.

use std::sync::Arc;
use std::time::Duration;

use cairn_env::DiskError;
use cairn_format::journal_record::{CreateRecord, JournalRecord};
use cairn_format::overwrite_number::OverwriteNumber;
use cairn_types::BLOCK_SIZE;

use super::chunk::{AppendJob, Chunk, Done, GoodBlock, Job};
use super::journal::{Effect, Item};
use super::threads::PanicGuard;
use super::{DataError, DiskStore};

/// Jobs of one chunk that run before other chunks get a turn.
const TURN: usize = 8;
/// How often a thread that waits for the journal to be written home looks whether the disk failed.
const OVERLAY_PAUSE: Duration = Duration::from_millis(20);

impl DiskStore {
    /// Adds a job to the chunk's strand.
    pub(super) fn enqueue(&self, chunk: &Arc<Chunk>, job: Job) {
        let mut strand = chunk.strand.lock();
        strand.jobs.push_back(job);
        let idle = !strand.scheduled && !strand.blocked;
        strand.scheduled |= idle;
        drop(strand);
        if idle {
            self.schedule(chunk.clone());
        }
    }

    /// Carries out an append whose strand the caller [claimed](super::chunk::Strand::claim), on the caller's thread.
    pub(super) fn run_claimed(&self, chunk: &Arc<Chunk>, job: AppendJob) {
        let _guard = PanicGuard(self);
        self.run_append(chunk, job);
        let mut strand = chunk.strand.lock();
        strand.scheduled = !strand.jobs.is_empty();
        let more = strand.scheduled;
        drop(strand);
        if more {
            self.schedule(chunk.clone());
        }
    }

    fn schedule(&self, chunk: Arc<Chunk>) {
        if let Err(chunk) = self.ready.push(chunk) {
            // The store is closing: everything that waits is refused.
            let jobs = std::mem::take(&mut chunk.strand.lock().jobs);
            let error = self.check().err().unwrap_or(DataError::Stopping { disk: self.name().into() });
            for job in jobs {
                self.refuse(job, &error);
            }
        }
    }

    fn refuse(&self, job: Job, error: &DataError) {
        let bytes = match job {
            Job::Append(job) => {
                let bytes = job.bytes;
                (job.done)(Err(error.clone()));
                bytes
            }
            Job::Sync { done } | Job::Seal { done } => {
                done(Err(error.clone()));
                0
            }
            Job::Punch { done, .. } | Job::Heal { done, .. } => {
                done(Err(error.clone()));
                0
            }
            Job::Overwrite(job) => job.refuse(error),
            Job::Copied { done, .. } => {
                done(Err(error.clone()));
                0
            }
        };
        self.release_queue(bytes);
    }

    /// Takes one chunk with work and does a turn of it. `false` when there is none.
    pub(super) fn step_strand(&self) -> bool {
        let Some(chunk) = self.ready.pop() else { return false };
        for _ in 0..TURN {
            let job = {
                let mut strand = chunk.strand.lock();
                match strand.jobs.pop_front() {
                    Some(job) => job,
                    None => {
                        strand.scheduled = false;
                        return true;
                    }
                }
            };
            if self.needs_creation(&chunk) {
                let mut strand = chunk.strand.lock();
                strand.jobs.push_front(job);
                strand.scheduled = false;
                strand.blocked = true;
                drop(strand);
                self.create(&chunk);
                return true;
            }
            self.run(&chunk, job);
        }
        self.schedule(chunk);
        true
    }

    fn run(&self, chunk: &Arc<Chunk>, job: Job) {
        match job {
            Job::Append(job) => self.run_append(chunk, job),
            Job::Sync { done } => {
                self.request_sync(chunk, false, done);
                self.release_queue(0);
            }
            Job::Seal { done } => {
                self.request_sync(chunk, true, done);
                self.release_queue(0);
            }
            Job::Punch { ranges, done } => {
                self.run_punch(chunk, &ranges, done);
                self.release_queue(0);
            }
            Job::Heal { block, good, as_of, done } => {
                self.run_heal(chunk, block, good, as_of, done);
                self.release_queue(0);
            }
            Job::Overwrite(job) => self.run_overwrite(chunk, job),
            Job::Copied { number, epoch, done } => {
                self.run_copied(chunk, number, epoch, done);
                self.release_queue(0);
            }
        }
    }

    fn needs_creation(&self, chunk: &Arc<Chunk>) -> bool {
        let state = chunk.state.lock();
        !state.created && !state.deleted && state.broken.is_none() && self.failure().is_none()
    }

    /// Journals the creation; the strand goes on when that is durable. So a file without a readable header and without
    /// a record of its creation is damage, never a creation that a crash interrupted.
    fn create(&self, chunk: &Arc<Chunk>) {
        let header = &chunk.header;
        let record = JournalRecord::Create(CreateRecord {
            chunk: chunk.id,
            scheme: header.scheme,
            shard: header.shard,
            volume: header.volume,
            creation_epoch: header.creation_epoch,
            session: header.session,
        });
        chunk.state.lock().pending += 1;
        let item = Item::new(&record, Effect::Create(chunk.clone()), None);
        let rejected = self.journal.queue.push(item).err();
        if rejected.is_some() {
            self.unblock(chunk, Err(DataError::Stopping { disk: self.name().into() }));
        }
    }

    /// The creation is durable, or failed.
    pub(super) fn unblock(&self, chunk: &Arc<Chunk>, outcome: Result<(), DataError>) {
        {
            let mut state = chunk.state.lock();
            match outcome {
                Ok(()) => state.created = true,
                Err(error) => state.broken = Some(error),
            }
        }
        let mut strand = chunk.strand.lock();
        strand.blocked = false;
        let idle = !strand.scheduled && !strand.jobs.is_empty();
        strand.scheduled |= idle;
        drop(strand);
        if idle {
            self.schedule(chunk.clone());
        }
    }

    /// Replaces a block through the journal. A block that was freed needs no healing, and one that was overwritten
    /// since it was found bad is not the one that was to be healed.
    fn run_heal(
        &self,
        chunk: &Arc<Chunk>,
        block: u32,
        good: GoodBlock,
        as_of: Option<OverwriteNumber>,
        done: Done<()>,
    ) {
        let ready = self.check().and_then(|()| self.reserve_block(chunk, block)).and_then(|()| self.with_tables(chunk));
        let mut state = match ready {
            Ok(state) => state,
            Err(error) => return done(Err(error)),
        };
        let overtaken = match as_of {
            Some(as_of) => state.touched.get(&block).is_some_and(|last| *last > as_of),
            None if state.follow.last.is_some() => {
                let known = state.table.as_ref().and_then(|table| table.get(block as usize));
                known.is_some_and(|known| *known != good.crc)
            }
            None => false,
        };
        if state.deleted || state.is_punched(block..block + 1) || block >= state.blocks() || overtaken {
            drop(state);
            done(Ok(()));
            return;
        }
        let GoodBlock { data, crc, row_crcs } = good;
        state.set_crcs(block, &[crc], &row_crcs);
        let rejected = self.journal_extent(chunk, &mut state, block, Some(data), Some(done)).1;
        drop(state);
        self.reject(rejected);
    }

    /// What stands for a bad block may be no more than a hole, or behind the end of its file: without room for it at
    /// home it is not taken.
    fn reserve_block(&self, chunk: &Arc<Chunk>, block: u32) -> Result<(), DataError> {
        let files = self.files.get(chunk.id);
        match files.and_then(|files| files.cached.allocate(chunk.place_of(block), BLOCK_SIZE as u64)) {
            Err(error @ DiskError::NoSpace { .. }) => Err(self.write_failed(chunk.id, &error)),
            // Its file is not made yet, or gone; whatever else is wrong shows when it is written.
            _ => Ok(()),
        }
    }

    /// Waits while too much is on its way home. Only with threads; a store that is driven by hand does not wait.
    pub(super) fn wait_for_overlay(&self) {
        let over = || self.overlay_bytes.load(std::sync::atomic::Ordering::Relaxed) > self.config.overlay_bytes_max;
        while self.config.write_threads > 0 && over() && self.check().is_ok() {
            std::thread::sleep(OVERLAY_PAUSE.min(Duration::from_millis(1)));
        }
    }
}
