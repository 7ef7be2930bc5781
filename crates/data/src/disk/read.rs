//! Reads: whole blocks with their CRCs, from the file and from what lies over it. Threads of their own, so that a read
//! never waits behind writes of other chunks.
//!
//! Invariant: what is asked is answered wholly or not at all; never zeros for bytes that are not there, never less.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use cairn_env::buf::SharedBuf;
use cairn_env::{AlignedBuf, BUF_ALIGN, DiskError, Pipe};
use cairn_format::crc_table::blocks_of;
use cairn_format::overwrite_number::OverwriteNumber;
use cairn_types::{BLOCK_SIZE, ChunkId};
use parking_lot::MutexGuard;

use super::chunk::{Chunk, ChunkMem, Done};
use super::metrics::{DiskMetrics, add};
use super::read_shares::{Held, Reader, Shared};
use super::tables_at_home::{Tables, punched};
use super::{DataError, DiskStore};

/// How long a read waits for memory.
const MEMORY_WAIT: Duration = Duration::from_millis(500);
/// How often a read is repeated because its blocks were being written home.
const RETRIES: usize = 16;

/// Checksums of blocks, and of the data blocks of their rows.
type Sums = (Vec<u32>, Vec<u32>);

/// Checksums of blocks and what lies over their file, of one moment.
pub(super) struct Moment {
    over: Vec<(u32, SharedBuf)>,
    pub(super) made: bool,
    pub(super) sums: Sums,
}

impl Moment {
    /// `None`: the tables are not in memory, or not all of the blocks have checksums.
    pub(super) fn of(state: &ChunkMem, blocks: &Range<u32>) -> Option<Moment> {
        let crcs = state.table.as_ref()?.get(blocks.start as usize..blocks.end as usize)?.to_vec();
        let rows = state.row_crcs(blocks.clone())?;
        let over = state.overlay.range(blocks.clone()).map(|(block, over)| (*block, over.data.clone())).collect();
        Some(Moment { over, made: state.file_made, sums: (crcs, rows) })
    }

    pub(super) fn needs_file(&self, blocks: &Range<u32>) -> bool {
        self.over.len() < blocks.len()
    }

    pub(super) fn lay_over(&self, blocks: &Range<u32>, data: &mut [u8]) {
        for (block, over) in &self.over {
            let at = (block - blocks.start) as usize * BLOCK_SIZE;
            data[at..at + BLOCK_SIZE].copy_from_slice(over);
        }
    }

    /// What was read is of this moment: a newer version of a block from the file that was written home meanwhile would
    /// be torn, or not the one of its checksum. What lay over the file then was not read from it.
    pub(super) fn holds(&self, state: &ChunkMem, blocks: &Range<u32>) -> bool {
        // Tables that were dropped meanwhile are those of a chunk to which nothing happened.
        let Some(table) = state.table.as_ref().filter(|_| self.needs_file(blocks)) else { return true };
        let Some(now) = table.get(blocks.start as usize..blocks.end as usize) else { return false };
        now.iter().zip(&self.sums.0).zip(blocks.clone()).all(|((now, then), block)| {
            now == then || self.over.binary_search_by_key(&block, |(block, _)| *block).is_ok()
        })
    }
}

/// What a read found: whole blocks that cover what was asked.
#[derive(Debug)]
pub struct ReadBlocks<D = AlignedBuf> {
    /// The blocks.
    pub data: D,
    /// A checksum of each.
    pub crcs: Vec<u32>,
    /// Of parity shards: of each the checksums of the k data blocks of its row.
    pub row_crcs: Vec<u32>,
    /// Offset of the first block in the chunk.
    pub first_block_offset: u64,
    /// The reader's part of the memory of reads, to be kept as long as the data.
    pub held: Option<Held>,
}

/// Blocks to be sent on.
#[derive(Debug)]
pub enum BlockData {
    /// A copy.
    Memory(AlignedBuf),
    /// Pages of the page cache.
    Pipe(Pipe),
}

pub(super) struct ReadJob {
    pub(super) chunk: Arc<Chunk>,
    pub(super) offset: u64,
    pub(super) length: u64,
    /// The system was told of it.
    pub(super) announced: bool,
    pub(super) purpose: ReadPurpose,
    /// Whose memory it takes; `None`: the server's own.
    reader: Option<Reader>,
    done: Wanted,
}

/// Whether somebody may soon want the same blocks again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadPurpose {
    /// They stay in the page cache.
    Again,
    /// Read once for another member that fills, heals or decodes: what is in memory comes from there, the rest comes
    /// past the page cache, so that what readers use stays in it.
    Once,
    /// Past the page cache: whether the disk has it.
    AtRest,
}

/// Who gets the blocks, and in what form.
enum Wanted {
    Memory(Done<ReadBlocks>),
    Any(Done<ReadBlocks<BlockData>>),
}

impl Wanted {
    fn give(self, blocks: ReadBlocks, metrics: &DiskMetrics) {
        add(&metrics.reads, 1);
        add(&metrics.reads_in_memory, 1);
        add(&metrics.read_bytes, blocks.data.len() as u64);
        match self {
            Self::Memory(done) => done(Ok(blocks)),
            Self::Any(done) => done(Ok(blocks.into_sendable())),
        }
    }

    /// Returns to how many blocks it came.
    fn end(self, outcome: Result<ReadBlocks, DataError>) -> usize {
        match self {
            Self::Memory(done) => {
                let blocks = outcome.as_ref().map_or(0, |blocks| blocks.crcs.len());
                done(outcome);
                blocks
            }
            any @ Self::Any(_) => any.end_any(outcome.map(ReadBlocks::into_sendable)),
        }
    }

    fn end_any(self, outcome: Result<ReadBlocks<BlockData>, DataError>) -> usize {
        let Self::Any(done) = self else { unreachable!("only what is to be sent is not copied") };
        let blocks = outcome.as_ref().map_or(0, |blocks| blocks.crcs.len());
        done(outcome);
        blocks
    }
}

impl ReadBlocks {
    fn into_sendable(self) -> ReadBlocks<BlockData> {
        let ReadBlocks { data, crcs, row_crcs, first_block_offset, held } = self;
        ReadBlocks { data: BlockData::Memory(data), crcs, row_crcs, first_block_offset, held }
    }
}

impl DiskStore {
    /// Reads `length` bytes at `offset`. `done` is called from a thread of the disk.
    pub fn read(&self, id: ChunkId, offset: u64, length: u64, done: Done<ReadBlocks>) -> Result<(), DataError> {
        self.queue_read(id, (offset, length), ReadPurpose::Again, None, Wanted::Memory(done))
    }

    /// Reads blocks to be sent on to a reader, which need not be copied for that.
    pub fn read_to_send(
        &self,
        id: ChunkId,
        (offset, length): (u64, u64),
        purpose: ReadPurpose,
        reader: Option<Reader>,
        done: Done<ReadBlocks<BlockData>>,
    ) -> Result<(), DataError> {
        self.queue_read(id, (offset, length), purpose, reader, Wanted::Any(done))
    }

    fn queue_read(
        &self,
        id: ChunkId,
        (offset, length): (u64, u64),
        purpose: ReadPurpose,
        reader: Option<Reader>,
        done: Wanted,
    ) -> Result<(), DataError> {
        self.check()?;
        let chunk = self.chunk(id).ok_or(DataError::NoChunk { chunk: id })?;
        // To ask whether something is in memory makes the system bring it there.
        let at_hand = match purpose {
            ReadPurpose::Again => self.read_in_memory(&chunk, (offset, length), reader),
            ReadPurpose::Once | ReadPurpose::AtRest => None,
        };
        let done = match at_hand {
            Some(blocks) => {
                done.give(blocks, &self.metrics);
                return Ok(());
            }
            None => done,
        };
        if self.reads.len() >= self.config.reads_max {
            add(&self.metrics.overloads, 1);
            return Err(DataError::Busy { disk: self.name().into() });
        }
        // What comes past the page cache need not be announced.
        let announced = purpose != ReadPurpose::Again;
        let job = ReadJob { chunk, offset, length, announced, purpose, reader, done };
        self.reads.push(job).map_err(|_| DataError::Stopping { disk: self.name().into() })
    }

    /// Carries out one read. `false` when there is none.
    pub(super) fn step_read(&self) -> bool {
        let Some(job) = self.reads.pop() else { return false };
        self.announce_reads();
        let started = self.context.clock.now();
        let Some(blocks) = self.carry_out(job) else { return true };
        if blocks > 0 {
            add(&self.metrics.reads, 1);
            add(&self.metrics.read_bytes, (blocks * BLOCK_SIZE) as u64);
        }
        self.note_read_time(self.context.clock.now().since(started));
        true
    }

    /// References to pages where that is possible, else a copy. How many blocks there were; `None`: it was not read
    /// now.
    fn carry_out(&self, job: ReadJob) -> Option<usize> {
        let (offset, length, purpose) = (job.offset, job.length, job.purpose);
        if purpose == ReadPurpose::Again
            && let Wanted::Any(_) = job.done
            && let Some(piped) = self.pipe_now(&job.chunk, offset, length).transpose()
        {
            return Some(job.done.end_any(piped));
        }
        let (held, job) = self.with_share(job)?;
        let outcome = self.read_for(&job.chunk, offset, length, purpose);
        Some(job.done.end(outcome.map(|blocks| ReadBlocks { held, ..blocks })))
    }

    /// The part of the memory of reads that its reader may take for it; `None`: it comes again when there is some, or
    /// was refused.
    fn with_share(&self, job: ReadJob) -> Option<(Option<Held>, ReadJob)> {
        let Some(reader) = job.reader else { return Some((None, job)) };
        let block = BLOCK_SIZE as u64;
        let bytes = (job.offset % block).saturating_add(job.length).div_ceil(block).saturating_mul(block);
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        match self.context.shares.take((reader, bytes), job, &self.reads) {
            Shared::Granted(held, job) => Some((Some(held), job)),
            Shared::Parked => {
                add(&self.metrics.reads_parked, 1);
                None
            }
            Shared::Full(job) => {
                add(&self.metrics.overloads, 1);
                job.done.end(Err(DataError::Busy { disk: self.name().into() }));
                None
            }
        }
    }

    /// Reads in the caller's thread.
    #[cfg(test)]
    pub(crate) fn read_now(&self, chunk: &Arc<Chunk>, offset: u64, length: u64) -> Result<ReadBlocks, DataError> {
        self.read_for(chunk, offset, length, ReadPurpose::Again)
    }

    fn read_for(
        &self,
        chunk: &Arc<Chunk>,
        offset: u64,
        length: u64,
        purpose: ReadPurpose,
    ) -> Result<ReadBlocks, DataError> {
        self.check()?;
        // Its file goes at any moment once it is deleted: then that is why it cannot be read.
        self.read_present(chunk, (offset, length), purpose).map_err(|error| match &error {
            DataError::Unreadable { chunk: id, .. } if chunk.is_deleted() => DataError::Deleted { chunk: *id },
            _ => error,
        })
    }

    fn read_present(
        &self,
        chunk: &Arc<Chunk>,
        (offset, length): (u64, u64),
        purpose: ReadPurpose,
    ) -> Result<ReadBlocks, DataError> {
        let blocks = self.checked_range(chunk, &*self.with_tables(chunk)?, offset, length)?;
        let bytes = (blocks.end - blocks.start) as usize * BLOCK_SIZE;
        let mut data = self.context.pool.take_blocking(bytes, MEMORY_WAIT).map_err(|error| {
            tracing::debug!(%error, "no memory for a read");
            DataError::Busy { disk: self.name().into() }
        })?;
        for _ in 0..RETRIES {
            data.clear();
            if let Some((crcs, row_crcs)) = self.try_read(chunk, (offset, length), &blocks, purpose, &mut data)? {
                let first_block_offset = u64::from(blocks.start) * BLOCK_SIZE as u64;
                return Ok(ReadBlocks { data, crcs, row_crcs, first_block_offset, held: None });
            }
            std::thread::yield_now();
        }
        Err(DataError::Busy { disk: self.name().into() })
    }

    /// One attempt; `None` when blocks were written home meanwhile and could be torn.
    fn try_read(
        &self,
        chunk: &Arc<Chunk>,
        (offset, length): (u64, u64),
        blocks: &Range<u32>,
        purpose: ReadPurpose,
        data: &mut AlignedBuf,
    ) -> Result<Option<Sums>, DataError> {
        let bytes = (blocks.end - blocks.start) as usize * BLOCK_SIZE;
        let moment = Moment::of(&*self.with_tables(chunk)?, blocks);
        let Some(moment) = moment else {
            // Not all of them have checksums of their rows: nothing is said about them.
            return Ok(None);
        };
        if !moment.needs_file(blocks) {
            data.resize(bytes);
        } else if moment.made {
            let last_over = moment.over.iter().map(|(block, _)| *block).max();
            self.read_file(chunk, blocks, purpose, last_over, data)?;
        } else {
            return Err(self.missing(chunk.id, offset, length, 0));
        }
        moment.lay_over(blocks, data);
        let state = chunk.state.lock();
        self.checked_range(chunk, &state, offset, length)?;
        Ok(moment.holds(&state, blocks).then_some(moment.sums))
    }

    fn read_file(
        &self,
        chunk: &Arc<Chunk>,
        blocks: &Range<u32>,
        purpose: ReadPurpose,
        last_over: Option<u32>,
        data: &mut AlignedBuf,
    ) -> Result<(), DataError> {
        let unreadable = |error: DiskError| {
            if !chunk.is_deleted() {
                add(&self.metrics.io_errors, 1);
                tracing::warn!(chunk = %chunk.id, %error, "a chunk cannot be read here; others have it");
            }
            DataError::Unreadable { chunk: chunk.id, why: error.to_string() }
        };
        let files = self.files.get(chunk.id).map_err(unreadable)?;
        let file = if self.config.direct_reads { files.direct().map_err(unreadable)? } else { &files.cached };
        let bytes = blocks.len() * BLOCK_SIZE;
        debug_assert!(bytes.is_multiple_of(BUF_ALIGN));
        let at = chunk.place_of(blocks.start);
        let into = &mut data.spare_mut()[..bytes];
        let got = match purpose {
            ReadPurpose::Again => file.read_at(into, at),
            ReadPurpose::AtRest => files.direct().and_then(|file| file.read_at(into, at)),
            ReadPurpose::Once => match file.read_once_at(into, at) {
                Ok(None) => files.direct().and_then(|file| file.read_at(into, at)),
                outcome => outcome.map(Option::unwrap_or_default),
            },
        };
        let got = got.map_err(unreadable)?;
        if got < bytes {
            // Blocks at the end may not be home yet; what lies over the file has them, and nothing less will do.
            let have = blocks.start + (got / BLOCK_SIZE) as u32;
            let covered = {
                let state = chunk.state.lock();
                (have..blocks.end).all(|block| state.overlay.contains_key(&block)) && last_over.is_some()
            };
            if !covered {
                return Err(unreadable(DiskError::UnexpectedEnd {
                    path: file.path().into(),
                    offset: at,
                    wanted: bytes,
                    got,
                }));
            }
            data.spare_mut()[got..bytes].fill(0);
        }
        data.advance(bytes);
        Ok(())
    }

    fn missing(&self, chunk: ChunkId, offset: u64, bytes: u64, length: u64) -> DataError {
        DataError::Missing { chunk, from: offset, to: offset.saturating_add(bytes), length }
    }

    /// The blocks of a range if all of it is there.
    pub(super) fn checked_range(
        &self,
        chunk: &Chunk,
        state: &ChunkMem,
        offset: u64,
        length: u64,
    ) -> Result<Range<u32>, DataError> {
        if state.deleted {
            return Err(DataError::Deleted { chunk: chunk.id });
        }
        let end = offset.checked_add(length).filter(|end| *end <= state.written && length > 0);
        let Some(end) = end else {
            return Err(self.missing(chunk.id, offset, length, state.written));
        };
        let blocks = (offset / BLOCK_SIZE as u64) as u32..blocks_of(end);
        if state.is_punched(blocks.clone()) {
            return Err(DataError::Deleted { chunk: chunk.id });
        }
        Ok(blocks)
    }

    /// Brings the chunk's CRC table and PUNCHED bits into memory.
    pub(crate) fn load_tables(&self, chunk: &Arc<Chunk>) -> Result<(), DataError> {
        self.with_tables(chunk).map(drop)
    }

    /// Before others are told what a chunk holds that was overwritten: holds its table at home against its sum, once
    /// after a start.
    pub(crate) fn know_table(&self, chunk: &Arc<Chunk>) -> Result<(), DataError> {
        if self.is_table_known(chunk) { Ok(()) } else { self.load_tables(chunk) }
    }

    /// Whether that was done, or is not needed.
    pub(crate) fn is_table_known(&self, chunk: &Chunk) -> bool {
        let mut state = chunk.state.lock();
        state.table_known |= state.table.is_some();
        state.table_known || !state.follow.last.is_some()
    }

    /// The chunk with its CRC table and PUNCHED bits in memory, where they stay as long as it is locked.
    pub(crate) fn with_tables<'a>(&self, chunk: &'a Arc<Chunk>) -> Result<MutexGuard<'a, ChunkMem>, DataError> {
        let state = chunk.state.lock();
        if state.table.is_some() {
            return Ok(state);
        }
        // Others make room first: their locks are not waited for with this one held.
        drop(state);
        self.note_idle(chunk);
        let mut state = chunk.state.lock();
        if state.table.is_some() {
            return Ok(state);
        }
        let failed = |error: DiskError| {
            add(&self.metrics.io_errors, 1);
            DataError::Unreadable { chunk: chunk.id, why: error.to_string() }
        };
        let files = self.files.get(chunk.id).map_err(failed)?;
        let sums = state.sums();
        let Tables { crcs, rows, crcs_match, rows_match } =
            Tables::read(&files, &chunk.header, sums).map_err(failed)?;
        if state.punched_blocks > 0 && state.punched.is_none() {
            state.punched = Some(Box::new(punched(&files, sums).map_err(failed)?));
        }
        if !crcs_match {
            // Every block is still judged by itself; only the sum of the table is off. But where blocks were
            // overwritten, a disk that forgot what it had synced may have some of before, under checksums of before:
            // then others know better.
            tracing::warn!(chunk = %chunk.id, "the checksum table is not the one that was written; bad entries are healed as bad blocks");
            add(&self.metrics.crc_errors, 1);
            state.doubtful |= state.follow.last.is_some();
            state.follow.last = OverwriteNumber::NONE;
            chunk.home.lock().overwrite = OverwriteNumber::NONE;
        }
        if !rows_match {
            // What is decoded by them is not taken then; other parity shards have them too.
            tracing::warn!(chunk = %chunk.id, "the checksums of the rows of a parity shard are not those that were written; they are held against those of the data shards");
            add(&self.metrics.crc_errors, 1);
            self.bad_rows.lock().insert(chunk.id);
        }
        (state.table, state.rows, state.table_known) = (Some(crcs), rows, true);
        Ok(state)
    }

    /// The chunk's tables were used now. Those that were used longest ago are dropped beyond the bound, unless
    /// something of their chunk is pending; never this chunk's, whatever their size.
    pub(super) fn note_idle(&self, chunk: &Chunk) {
        let over: Vec<ChunkId> = {
            let mut idle = self.idle_tables.lock();
            idle.retain(|other| *other != chunk.id);
            let mut over = Vec::new();
            // Once for each table, so that the bound counts tables.
            let tables = 1 + chunk.header.row_tables();
            while idle.len() + tables > self.config.tables_max
                && let Some(oldest) = idle.front().copied()
            {
                idle.retain(|other| *other != oldest);
                over.push(oldest);
            }
            idle.extend(std::iter::repeat_n(chunk.id, tables));
            over
        };
        for id in over {
            let Some(chunk) = self.chunk(id) else { continue };
            let Some(mut state) = chunk.state.try_lock() else { continue };
            let quiet = state.seal_journaled
                && state.pending == 0
                && state.overlay.is_empty()
                && !state.durability.is_dirty()
                && state.accepted == state.written;
            if quiet && state.table.is_some() {
                (state.stored_table_crc, state.stored_row_crc) = (state.table_crc(), state.row_crc());
                state.table = None;
                state.rows = Vec::new();
            }
        }
    }
}
