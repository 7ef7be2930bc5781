//! Appends: acceptance in the caller's thread, then the work in a thread of the disk.
//!
//! Where bytes go: up to `journal_append_max` through the journal; more than that straight to the file, except a block
//! that replaces a partial tail, which goes through the journal so that no promised byte is ever torn.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use cairn_chunk_core::append::{AppendDecision, AppendRefusal, judge_append};
use cairn_env::{DiskError, SharedBuf};
use cairn_format::chunk_header::{CHUNK_HEADER_LEN, ChunkHeader, row_tables};
use cairn_format::chunk_state::ChunkState;
use cairn_format::crc_table::{CRCS_A_SECTOR, PunchedBits, TABLE_LEN};
use cairn_format::journal_overwrite::OverwriteRecord;
use cairn_format::journal_record::{ExtentRecord, JournalRecord};
use cairn_format::overwrite_number::OverwriteNumber;
use cairn_types::{BLOCK_SIZE, CHUNK_SIZE_MAX, ChunkId};

use super::chunk::{AppendJob, Appended, Chunk, ChunkMem, CrcRun, Done, Job, OverlayBlock};
use super::files::ChunkFiles;
use super::journal::{Effect, HomeData, Item};
use super::{AppendOp, DataError, DiskStore};

impl DiskStore {
    /// The chunk, made in memory when the append may begin it.
    pub(super) fn chunk_for_append(&self, op: &AppendOp) -> Result<Arc<Chunk>, DataError> {
        let id = op.create.chunk;
        if let Some(chunk) = self.chunk(id) {
            return Ok(chunk);
        }
        if !op.may_create || op.offset != 0 {
            return Err(DataError::NoChunk { chunk: id });
        }
        let create = op.create;
        check_rows(row_tables(create.scheme, create.shard), op)
            .and_then(|()| judge_append(0, false, (0, op.follows), op.bytes, op.crcs.len()))
            .map_err(|refusal| DataError::Refused { chunk: id, refusal })?;
        let header = ChunkHeader {
            cluster: self.context.cluster,
            chunk: id,
            scheme: create.scheme,
            shard: create.shard,
            volume: create.volume,
            creation_epoch: create.creation_epoch,
            session: create.session,
        };
        let mut chunks = self.chunks.write();
        Ok(chunks.entry(id).or_insert_with(|| Arc::new(Chunk::new(header))).clone())
    }

    /// Judges an append; `None` when it was answered as a repeat.
    pub(super) fn accept(
        &self,
        chunk: &Arc<Chunk>,
        state: &mut ChunkMem,
        op: AppendOp,
        done: Done<Appended>,
    ) -> Result<Option<Job>, DataError> {
        let id = chunk.id;
        if state.deleted {
            return Err(DataError::Deleted { chunk: id });
        }
        if let Some(broken) = &state.broken {
            return Err(broken.clone());
        }
        let sealed = state.sealed && !op.repair;
        let decision = check_rows(chunk.header.row_tables(), &op)
            .and_then(|()| judge_append(state.accepted, sealed, (op.offset, op.follows), op.bytes, op.crcs.len()))
            .map_err(|refusal| DataError::Refused { chunk: id, refusal })?;
        state.last_append = self.context.clock.now();
        match decision {
            AppendDecision::Repeat => {
                self.check_repeat(id, state, &op)?;
                if op.sync || state.accepted > state.written {
                    // Behind what is still being written; the answer is that of a sync.
                    let (end, sync) = (op.offset + op.bytes as u64, op.sync);
                    let done: Done<u64> =
                        Box::new(move |outcome| done(outcome.map(|durable| Appended { length: end, durable })));
                    tracing::trace!(chunk = %id, sync, "repeated append");
                    return Ok(Some(Job::Sync { done }));
                }
                done(Ok(Appended { length: state.written, durable: state.durable }));
                Ok(None)
            }
            AppendDecision::Take { replaces_tail } => {
                state.accepted = op.offset + op.bytes as u64;
                let AppendOp { offset, bytes, data, crcs, row_crcs, sync, as_of, .. } = op;
                Ok(Some(Job::Append(AppendJob {
                    offset,
                    bytes,
                    data,
                    crcs,
                    row_crcs,
                    replaces_tail,
                    as_of,
                    sync,
                    done,
                })))
            }
        }
    }

    /// A repeat has to be one: whole blocks that are written must have the same checksums.
    fn check_repeat(&self, id: ChunkId, state: &ChunkMem, op: &AppendOp) -> Result<(), DataError> {
        let Some(table) = &state.table else { return Ok(()) };
        let first = (op.offset / BLOCK_SIZE as u64) as usize;
        let whole = op.bytes / BLOCK_SIZE;
        let k = state.rows.len();
        for (i, crc) in op.crcs.iter().enumerate().take(whole) {
            let mut rows = state.rows.iter().zip(&op.row_crcs[i * k..(i + 1) * k]);
            let other_row = rows.any(|(row, crc)| row.get(first + i).is_some_and(|known| known != crc));
            if other_row || table.get(first + i).is_some_and(|known| known != crc) {
                let refusal = AppendRefusal::NotAtEnd { offset: op.offset, length: state.accepted };
                return Err(DataError::Refused { chunk: id, refusal });
            }
        }
        Ok(())
    }

    /// Whether an append touches nothing but memory: it goes through the journal, its chunk is there with its tables,
    /// its space is reserved, and nobody would have to wait. Such a one needs no thread of the disk.
    pub(super) fn runs_at_once(&self, state: &ChunkMem, job: &AppendJob) -> bool {
        let reserved = job.end().next_multiple_of(BLOCK_SIZE as u64) <= state.allocated;
        let in_memory = state.created && state.file_made && state.table.is_some() && state.broken.is_none();
        let room = self.overlay_bytes.load(Relaxed) <= self.config.overlay_bytes_max;
        job.bytes <= self.config.journal_append_max && reserved && in_memory && room
    }

    /// Carries an append out. On an error the chunk takes no more.
    pub(super) fn run_append(&self, chunk: &Arc<Chunk>, job: AppendJob) {
        let bytes = job.bytes;
        let job = without_older_tail(chunk, job);
        match self.write_bulk(chunk, &job) {
            Ok(journaled) => self.finish_append(chunk, job, journaled),
            Err(error) => {
                let mut state = chunk.state.lock();
                state.accepted = state.written;
                state.broken = Some(error.clone());
                drop(state);
                (job.done)(Err(error));
            }
        }
        self.release_queue(bytes);
    }

    /// Writes what goes past the journal; returns how many leading blocks go through it.
    fn write_bulk(&self, chunk: &Arc<Chunk>, job: &AppendJob) -> Result<usize, DataError> {
        self.check()?;
        let broken = chunk.state.lock().broken.clone();
        if let Some(broken) = broken {
            return Err(broken);
        }
        let files = self.ready_file(chunk)?;
        // A sealed chunk that is brought up to others may have its table only at home. It stays from here on, for what
        // is accepted is not written yet.
        self.load_tables(chunk)?;
        self.ensure_space(chunk, &files, job.end())?;
        let blocks = job.data.len() / BLOCK_SIZE;
        let journaled = match job.bytes {
            bytes if bytes <= self.config.journal_append_max => blocks,
            _ => usize::from(job.replaces_tail),
        };
        if journaled < blocks {
            let started = self.context.clock.now();
            let at = chunk.header.data_offset() + job.offset + (journaled * BLOCK_SIZE) as u64;
            let bulk = &job.data[journaled * BLOCK_SIZE..];
            let sizing = chunk.sizing.lock();
            let written = files.direct().and_then(|file| file.write_at(bulk, at));
            drop(sizing);
            written.map_err(|error| self.write_failed(chunk.id, &error))?;
            self.latency(started);
        } else {
            self.wait_for_overlay();
        }
        Ok(journaled)
    }

    /// Makes the bytes readable, journals what goes there, answers.
    fn finish_append(&self, chunk: &Arc<Chunk>, job: AppendJob, journaled: usize) {
        let (length, sync) = (job.end(), job.sync);
        let first = (job.offset / BLOCK_SIZE as u64) as u32;
        let mut done = Some(job.done);
        let (dirty, durable, rejected) = {
            let mut state = chunk.state.lock();
            state.set_crcs(first, &job.crcs, &job.row_crcs);
            state.written = state.written.max(length);
            if journaled * BLOCK_SIZE < job.data.len() {
                state.durability.wrote_bulk(job.offset + (journaled * BLOCK_SIZE) as u64);
            }
            let (dirty, durable) = (state.durability.is_dirty(), state.durability.promise(length));
            let mut rejected = None;
            if journaled > 0 || job.data.is_empty() {
                let waits = if sync && !dirty { done.take() } else { None };
                let then = waits.map(|done| -> Done<()> {
                    Box::new(move |outcome| done(outcome.map(|()| Appended { length, durable })))
                });
                let data = (journaled > 0).then(|| job.data.slice(..journaled * BLOCK_SIZE));
                rejected = self.journal_extent(chunk, &mut state, first, data, then).1;
            }
            (dirty, durable, rejected)
        };
        self.reject(rejected);
        let Some(done) = done else { return };
        if sync && dirty {
            let then: Done<u64> = Box::new(move |outcome| done(outcome.map(|durable| Appended { length, durable })));
            self.request_sync(chunk, false, then);
        } else {
            let durable = if sync { durable } else { chunk.state.lock().durable };
            done(Ok(Appended { length, durable }));
        }
    }

    /// Journals blocks of a chunk (or only its CRCs, length and seal) and puts the blocks over what is at home. Called
    /// with the chunk's lock held, so that records stand in the order of the changes. Returns what the record promises,
    /// and the item if the journal takes no more (to be answered without the lock).
    pub(super) fn journal_extent(
        &self,
        chunk: &Arc<Chunk>,
        state: &mut ChunkMem,
        first: u32,
        data: Option<SharedBuf>,
        done: Option<Done<()>>,
    ) -> (u64, Option<Item>) {
        let count = data.as_ref().map_or(0, |data| data.len() / BLOCK_SIZE) as u32;
        self.journal_blocks(chunk, state, first..first + count, data, done)
    }

    /// The same with the blocks whose CRCs go along.
    pub(super) fn journal_blocks(
        &self,
        chunk: &Arc<Chunk>,
        state: &mut ChunkMem,
        blocks: Range<u32>,
        data: Option<SharedBuf>,
        done: Option<Done<()>>,
    ) -> (u64, Option<Item>) {
        state.next_version += 1;
        let version = state.next_version;
        if let Some(data) = &data {
            for (i, block) in blocks.clone().enumerate() {
                let bytes = data.slice(i * BLOCK_SIZE..(i + 1) * BLOCK_SIZE);
                state.overlay.insert(block, OverlayBlock { data: bytes, version });
            }
            self.overlay_bytes.fetch_add(data.len(), Relaxed);
        }
        let durable = state.durability.promise(state.written);
        let data = data.map(|data| HomeData { first_block: blocks.start, data, version });
        let mut first = blocks.start;
        let most = crcs_a_record(state.rows.len());
        while data.is_none() && blocks.end - first > most {
            // A record of bounded size; what it carries is promised by the last one.
            let end = (first + most) / CRCS_A_SECTOR * CRCS_A_SECTOR;
            let promised = (state.durable, false);
            // A journal that takes no more does not take the last one either, which has somebody to be told.
            let _closed = self.journal_record(chunk, state, first..end, promised, None, None);
            first = end;
        }
        let sealed = state.seal_journaled;
        (durable, self.journal_record(chunk, state, first..blocks.end, (durable, sealed), data, done))
    }

    /// Hands one record to the journal; gives the item back if it takes no more.
    fn journal_record(
        &self,
        chunk: &Arc<Chunk>,
        state: &mut ChunkMem,
        blocks: Range<u32>,
        (durable, sealed): (u64, bool),
        data: Option<HomeData>,
        done: Option<Done<()>>,
    ) -> Option<Item> {
        let (crcs_first, crcs, row_tables) = match blocks.is_empty() {
            true => (0, Vec::new(), vec![Vec::new(); state.rows.len()]),
            false => state.crc_run(blocks.clone()),
        };
        let bytes = data.as_ref().map(|data| data.data.clone());
        let record = JournalRecord::Extent(ExtentRecord {
            chunk: chunk.id,
            length: state.written,
            durable,
            sealed,
            crcs_first,
            crcs: crcs.clone(),
            row_tables: row_tables.clone(),
            data_offset: u64::from(blocks.start) * BLOCK_SIZE as u64,
            data: bytes.as_deref().unwrap_or(&[]),
        });
        let tables = std::iter::once(crcs).chain(row_tables).enumerate().filter(|(_, crcs)| !crcs.is_empty());
        let run = |(table, crcs): (usize, Vec<u32>)| CrcRun { table, first: crcs_first, crcs: crcs.into() };
        let runs = tables.map(run).collect();
        let data = data.into_iter().collect();
        let effect = Effect::Extent { chunk: chunk.clone(), durable, sealed, runs, data, number: None };
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        if state.follow.last.is_some() {
            // The state at home is written with it again: its number has to be in the journal as well, in the same
            // batch.
            let (length, number) = (state.written, state.follow.last);
            let vectors = Vec::new();
            let numbered = OverwriteRecord { chunk: chunk.id, number, length, durable, sealed, vectors };
            JournalRecord::Overwrite(numbered).encode(&mut bytes);
        }
        state.pending += 1;
        self.journal.queue.push(Item::encoded(bytes, effect, done)).err()
    }

    /// Answers an item that the journal did not take.
    pub(super) fn reject(&self, item: Option<Item>) {
        if let Some(item) = item {
            let error = self.check().err().unwrap_or(DataError::Stopping { disk: self.name().into() });
            item.fail(&error);
        }
    }

    /// The chunk's file, made when it is not there. Its creation is durable in the journal by then (see `strand`).
    fn ready_file(&self, chunk: &Arc<Chunk>) -> Result<Arc<ChunkFiles>, DataError> {
        if chunk.state.lock().file_made {
            return self.files.get(chunk.id).map_err(|error| self.write_failed(chunk.id, &error));
        }
        let made = self.make_file(chunk).map_err(|error| self.write_failed(chunk.id, &error))?;
        chunk.state.lock().file_made = true;
        Ok(made)
    }

    pub(super) fn make_file(&self, chunk: &Arc<Chunk>) -> Result<Arc<ChunkFiles>, DiskError> {
        let files = match self.files.create(chunk.id) {
            Err(DiskError::NotFound { .. }) => {
                self.context.disk.create_dir_all(&super::paths::pg_dir(chunk.id.pg))?;
                self.files.create(chunk.id)?
            }
            other => other?,
        };
        files.cached.write_at(&first_sectors(&chunk.header), 0)?;
        Ok(files)
    }

    /// Reserves space ahead of the end, so that nothing is half written for want of it.
    fn ensure_space(&self, chunk: &Arc<Chunk>, files: &ChunkFiles, end: u64) -> Result<(), DataError> {
        let _sizing = chunk.sizing.lock();
        let end = end.next_multiple_of(BLOCK_SIZE as u64);
        let (allocated, sealed) = {
            let state = chunk.state.lock();
            (state.allocated, state.sealed)
        };
        if end <= allocated {
            return Ok(());
        }
        // What is reserved beyond the end of a sealed chunk is given back by nobody.
        let step = if sealed { BLOCK_SIZE as u64 } else { self.config.allocate_step.max(BLOCK_SIZE as u64) };
        let target = end.next_multiple_of(step).min(CHUNK_SIZE_MAX);
        let wanted = target - allocated;
        let space = self.context.disk.space().map_err(|error| self.write_failed(chunk.id, &error))?;
        let no_space = |free| DataError::NoSpace { disk: self.name().into(), chunk: chunk.id, free };
        if space.free < wanted + self.config.reserve_bytes {
            return Err(no_space(space.free));
        }
        match files.cached.allocate(chunk.header.data_offset() + allocated, wanted) {
            Ok(_) => {}
            Err(DiskError::NoSpace { .. }) => return Err(no_space(space.free)),
            Err(error) => return Err(self.write_failed(chunk.id, &error)),
        }
        chunk.state.lock().allocated = target;
        Ok(())
    }

    /// What a failed change of a file means: no space is an answer, everything else takes the disk out of service.
    pub(super) fn write_failed(&self, chunk: ChunkId, error: &DiskError) -> DataError {
        match error {
            DiskError::NoSpace { .. } => {
                let free = self.context.disk.space().map_or(0, |space| space.free);
                DataError::NoSpace { disk: self.name().into(), chunk, free }
            }
            error => self.fail(error),
        }
    }
}

/// What a member that catches up brings begins with its last block, if that is not full. If the block was overwritten
/// behind the table that is copied, it stays: what is brought may have been read before. Jobs of a chunk are carried
/// out in their order, so whatever came before this one is here.
fn without_older_tail(chunk: &Chunk, mut job: AppendJob) -> AppendJob {
    let tail = (job.offset / BLOCK_SIZE as u64) as u32;
    let Some(as_of) = job.as_of.filter(|_| job.replaces_tail) else { return job };
    if chunk.state.lock().touched.get(&tail).is_none_or(|last| *last <= as_of) {
        return job;
    }
    let (skipped, row_tables) = (job.bytes.min(BLOCK_SIZE), job.row_crcs.len() / job.crcs.len());
    job.data = job.data.slice(BLOCK_SIZE..job.data.len());
    job.crcs.remove(0);
    job.row_crcs.drain(..row_tables);
    job.offset += skipped as u64;
    job.bytes -= skipped;
    job.replaces_tail = false;
    job
}

/// Checksums of rows come with every block of a parity shard, and with no other.
fn check_rows(row_tables: usize, op: &AppendOp) -> Result<(), AppendRefusal> {
    let whole = op.row_crcs.len() == row_tables * op.crcs.len();
    if whole { Ok(()) } else { Err(AppendRefusal::Malformed) }
}

/// Blocks whose CRCs one record carries at most without data: 64 KiB of CRCs, whatever the tables.
fn crcs_a_record(row_tables: usize) -> u32 {
    let blocks = (TABLE_LEN / 4 / (1 + row_tables)) as u32;
    (blocks / CRCS_A_SECTOR - 1) * CRCS_A_SECTOR
}

/// Header and state of a chunk without bytes.
pub(super) fn first_sectors(header: &ChunkHeader) -> Vec<u8> {
    let state = ChunkState {
        chunk: header.chunk,
        length: 0,
        sealed: false,
        punched_blocks: 0,
        punched_crc: PunchedBits::default().crc(),
        table_crc: cairn_format::crc_table::table_crc(&[]),
        row_crc: 0,
        overwrite: OverwriteNumber::NONE,
    };
    let mut out = Vec::with_capacity(2 * CHUNK_HEADER_LEN);
    out.extend_from_slice(&header.encode());
    out.extend_from_slice(&state.encode());
    out
}
