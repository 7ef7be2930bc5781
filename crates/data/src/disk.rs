//! [`DiskStore`]: the chunks of one disk: chunk files, the journal, states of placement groups.
//!
//! Changes of a chunk are accepted at once (in the caller's order), carried out by the disk's threads one after the
//! other per chunk, and answered through callbacks. Large appends go straight to the chunk file; small ones, replaced
//! tails, healed blocks, checksums, seals and frees go through the journal.
//!
//! Invariants owned here:
//! - what a sync, a seal or a free answered is there after any crash; nothing appears that was not asked for;
//! - a failed sync or write is sticky: the disk answers nothing any more, and is read through at the next start;
//! - no read answers bytes that are not there with zeros.
//!
//! Not here: epochs, sessions, chains and other members ([`crate::server`]).

mod append;
mod bad_blocks_file;
pub mod chunk;
pub mod config;
pub mod error;
mod files;
mod generation_file;
mod holes;
mod home;
mod journal;
pub(crate) mod metrics;
mod open;
mod overwrite;
pub mod paths;
mod pg_files;
mod punch;
mod queue;
mod read;
mod read_memory;
mod read_pipe;
mod read_shares;
mod replay_chunk;
mod ring;
mod scrub_file;
mod strand;
mod sync;
mod tables_at_home;
#[cfg(test)]
mod tests;
mod threads;
mod used;
pub mod verify;
mod verify_tables;
mod watch;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cairn_chunk_core::append::AppendRefusal;
use cairn_env::{BufPool, Clock, Disk, DiskError, SharedBuf, Space};
use cairn_format::crc_table::PunchedBits;
use cairn_format::journal_record::CreateRecord;
use cairn_format::overwrite_number::OverwriteNumber;
use cairn_types::{ChunkId, ClusterId, DiskUuid, ErrorCode, PgId};
use cairn_wire::error::WireError;
use parking_lot::{Mutex, RwLock};

pub use chunk::{Appended, Chunk, ChunkInfo, Done, GoodBlock};
pub use config::DiskConfig;
pub use error::{DataError, OpenError};
pub use generation_file::RISE_PAUSE;
pub use metrics::DiskMetrics;
pub use overwrite::{OverwriteOp, OverwriteOrder, OverwriteRun};
pub use pg_files::{LOST_MARK_SKIP, PgFiles, PgTrouble};
pub use read::{BlockData, ReadBlocks, ReadPurpose};
pub use read_shares::{Held, ReadShares, Reader};
pub use verify_tables::TablesAtRest;

use chunk::{AppendJob, Job};
use files::FileCache;
use journal::Journal;
use metrics::add;
use queue::WorkQueue;

/// Where the disk is, and what it belongs to.
pub struct DiskContext {
    /// The directory tree.
    pub disk: Arc<dyn Disk>,
    /// Identity of the disk (of its label).
    pub uuid: DiskUuid,
    /// The cluster that chunk files name.
    pub cluster: ClusterId,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Randomness, for the journal's id.
    pub rng: Arc<dyn cairn_env::Rng>,
    /// Memory of reads.
    pub pool: BufPool,
    /// How much of it those who ask may hold.
    pub shares: Arc<ReadShares>,
}

/// An append as the server hands it in. `data` has whole blocks (zeros after the last byte), aligned for direct I/O.
pub struct AppendOp {
    /// The chunk, and what it is if it has to be made (offset 0 only).
    pub create: CreateRecord,
    /// Whether it may be made.
    pub may_create: bool,
    /// Where the bytes go.
    pub offset: u64,
    /// Where the append before it ended, if its sender says so.
    pub follows: Option<u64>,
    /// How many.
    pub bytes: usize,
    /// The bytes, filled up to whole blocks.
    pub data: SharedBuf,
    /// A checksum a block, verified by the caller.
    pub crcs: Vec<u32>,
    /// To a parity shard: the checksums of the k data blocks of each block's row, block by block; else none.
    pub row_crcs: Vec<u32>,
    /// Durable before it is answered.
    pub sync: bool,
    /// From the primary: the chunk may be sealed (catch-up, copying up before a seal).
    pub repair: bool,
    /// Of bytes that a member that catches up copies: the overwrite up to which they are. What a later one brought
    /// stays.
    pub as_of: Option<OverwriteNumber>,
}

/// Work for the control thread.
pub(crate) type ControlJob = Box<dyn FnOnce(&DiskStore) + Send>;
/// Jobs that wait for the control thread; further ones are refused as overload.
const CONTROL_MAX: usize = 4096;

/// A chunk with its tables.
#[derive(Debug, Clone)]
pub struct ChunkTables {
    /// What is known of it.
    pub info: ChunkInfo,
    /// A checksum a block.
    pub crcs: Vec<u32>,
    /// Of parity shards: the same of the blocks of each data shard.
    pub rows: Vec<Vec<u32>>,
    /// Freed blocks.
    pub punched: PunchedBits,
}

/// The chunks of a disk.
pub struct DiskStore {
    pub(crate) context: DiskContext,
    pub(crate) config: DiskConfig,
    watch: Arc<watch::IoWatch>,
    generation: generation_file::GenerationFile,
    pub(crate) chunks: RwLock<BTreeMap<ChunkId, Arc<Chunk>>>,
    pub(crate) files: FileCache,
    pub(crate) pg_files: PgFiles,
    journal: Journal,
    /// Chunks with work.
    ready: WorkQueue<Arc<Chunk>>,
    syncs: WorkQueue<sync::SyncRequest>,
    reads: Arc<WorkQueue<read::ReadJob>>,
    /// The last read waited for the device.
    reads_cold: AtomicBool,
    pipes: cairn_env::PipePool,
    homeward: WorkQueue<journal::Committed>,
    holes: holes::Holes,
    /// Work that may block for long and is nobody's order: states of groups, verification, tables.
    control: WorkQueue<ControlJob>,
    home: Mutex<home::HomeState>,
    failed: OnceLock<String>,
    metrics: DiskMetrics,
    queued_ops: AtomicUsize,
    queued_bytes: AtomicUsize,
    overlay_bytes: AtomicUsize,
    space: Mutex<Space>,
    /// Chunks whose tables could be dropped, oldest first.
    idle_tables: Mutex<std::collections::VecDeque<ChunkId>>,
    /// Blocks found bad by the re-read after a failed sync.
    bad_blocks: Mutex<Vec<(ChunkId, u32)>>,
    /// Chunks whose files the start found gone or set aside.
    lost: Mutex<Vec<ChunkId>>,
    /// Parity shards whose row CRCs were read and did not match their sum.
    bad_rows: Mutex<std::collections::BTreeSet<ChunkId>>,
    write_ns: AtomicU64,
    writes: AtomicU64,
    stopping: AtomicBool,
    threads: Mutex<Vec<std::thread::JoinHandle<()>>>,
}

impl DiskStore {
    /// The directory, for messages.
    pub fn name(&self) -> &str {
        self.context.disk.name()
    }

    /// Its counters.
    pub fn metrics(&self) -> &DiskMetrics {
        let m = &self.metrics;
        m.queued_ops.store(self.queued_ops.load(Ordering::Relaxed) as u64, Ordering::Relaxed);
        m.queued_bytes.store(self.queued_bytes.load(Ordering::Relaxed) as u64, Ordering::Relaxed);
        m.overlay_bytes.store(self.overlay_bytes.load(Ordering::Relaxed) as u64, Ordering::Relaxed);
        m.holes_pending.store(self.holes.bytes(), Ordering::Relaxed);
        m
    }

    /// States of placement groups.
    pub fn pg_files(&self) -> &PgFiles {
        &self.pg_files
    }

    /// Why the disk left service, if it did.
    pub fn failure(&self) -> Option<&str> {
        self.failed.get().map(String::as_str)
    }

    /// For how long operations are under way and the device has completed none. It is not to blame while they wait for
    /// descriptors or memory.
    pub fn still_for(&self) -> Duration {
        if self.context.disk.is_waiting() { Duration::ZERO } else { self.watch.still_for() }
    }

    /// Refuses while the disk stands still: whoever asks goes to another member, instead of waiting here.
    pub(crate) fn check_moving(&self) -> Result<(), DataError> {
        let still = self.still_for();
        if still < self.config.stall_after {
            return Ok(());
        }
        let ms = u64::try_from(still.as_millis()).unwrap_or(u64::MAX);
        Err(DataError::Stalled { disk: self.name().into(), ms })
    }

    /// Work that waits.
    pub fn queue_depth(&self) -> usize {
        self.queued_ops.load(Ordering::Relaxed) + self.reads.len()
    }

    /// Mean time of a write or sync since the last call, in microseconds.
    pub fn take_latency_us(&self) -> u32 {
        let (ns, count) = (self.write_ns.swap(0, Ordering::Relaxed), self.writes.swap(0, Ordering::Relaxed));
        u32::try_from(ns.checked_div(count).unwrap_or(0) / 1000).unwrap_or(u32::MAX)
    }

    /// Total and usable free bytes as last seen.
    pub fn space(&self) -> Space {
        if let Ok(space) = self.context.disk.space() {
            *self.space.lock() = space;
        }
        let space = *self.space.lock();
        Space { free: space.free.saturating_sub(self.config.reserve_bytes), ..space }
    }

    /// Number of chunks.
    pub fn chunk_count(&self) -> usize {
        self.chunks.read().len()
    }

    /// A chunk.
    pub fn chunk(&self, id: ChunkId) -> Option<Arc<Chunk>> {
        self.chunks.read().get(&id).cloned()
    }

    /// Up to `max` chunks of a group from an index on.
    pub fn list(&self, pg: PgId, from: u32, max: usize) -> Vec<Arc<Chunk>> {
        let range = ChunkId { pg, index: from }..=ChunkId { pg, index: u32::MAX };
        self.chunks.read().range(range).take(max).map(|(_, chunk)| chunk.clone()).collect()
    }

    /// The first chunk from an id on, of whatever group.
    pub fn next_chunk(&self, from: ChunkId) -> Option<Arc<Chunk>> {
        self.chunks.read().range(from..).next().map(|(_, chunk)| chunk.clone())
    }

    /// Bytes that all chunks occupy, without what was freed.
    pub fn used_bytes(&self) -> u64 {
        self.chunks.read().values().map(|chunk| chunk.used_bytes()).sum()
    }

    /// One more than the highest index of a group's chunks.
    pub fn index_end(&self, pg: PgId) -> u32 {
        let range = ChunkId { pg, index: 0 }..=ChunkId { pg, index: u32::MAX };
        self.chunks.read().range(range).next_back().map_or(0, |(id, _)| id.index.saturating_add(1))
    }

    /// Chunks that still take appends.
    pub fn open_chunks(&self) -> Vec<Arc<Chunk>> {
        self.chunks.read().values().filter(|chunk| !chunk.is_sealed()).cloned().collect()
    }

    /// Blocks found bad when everything was read after a failed sync; the caller heals them.
    pub fn take_bad_blocks(&self) -> Vec<(ChunkId, u32)> {
        std::mem::take(&mut self.bad_blocks.lock())
    }

    /// Chunks of a group whose files the start found gone or set aside; the caller has them brought back.
    pub fn take_lost(&self, pg: PgId) -> Vec<ChunkId> {
        self.lost.lock().extract_if(.., |id| id.pg == pg).collect()
    }

    /// How many of each group nobody has taken yet.
    pub fn lost(&self) -> std::collections::BTreeMap<PgId, u64> {
        let mut counts = std::collections::BTreeMap::new();
        self.lost.lock().iter().for_each(|id| *counts.entry(id.pg).or_insert(0) += 1);
        counts
    }

    /// The caller has no room for it now.
    pub fn put_back_lost(&self, id: ChunkId) {
        self.lost.lock().push(id);
    }

    /// A chunk that the start found gone or damaged is back, or nobody needs it any more: the next start does not look
    /// for it. Blocks.
    pub fn forget_lost(&self, id: ChunkId) {
        let (disk, path) = (&self.context.disk, paths::lost_chunk(id));
        let removed = match disk.exists(&path) {
            Ok(true) => disk.remove(&path).and_then(|()| disk.sync_dir(&paths::pg_dir(id.pg))),
            other => other.map(drop),
        };
        if let Err(error) = removed {
            // Then it is looked for once more.
            tracing::debug!(disk = self.name(), chunk = %id, %error, "the mark of a lost chunk stays");
        }
    }

    /// Parity shards whose row CRCs were found damaged; the caller mends them.
    pub fn take_bad_rows(&self) -> std::collections::BTreeSet<ChunkId> {
        std::mem::take(&mut self.bad_rows.lock())
    }

    /// Appends. Accepted (in the order of the calls) or refused at once; `done` comes when it is written (`sync`: and
    /// durable). With a refusal `done` is not called.
    pub fn append(&self, op: AppendOp, done: Done<Appended>) -> Result<(), DataError> {
        self.check()?;
        let chunk = self.chunk_for_append(&op)?;
        let (offset, bytes, sync) = (op.offset, op.bytes, op.sync);
        self.reserve_queue(bytes)?;
        let accepted = {
            let mut state = chunk.state.lock();
            self.accept(&chunk, &mut state, op, done).map(|job| match job {
                None => {
                    self.release_queue(bytes);
                    None
                }
                Some(Job::Append(job)) if self.runs_at_once(&state, &job) && chunk.strand.lock().claim() => Some(job),
                // Queued under the same lock, so that the order of acceptance is the order of work.
                Some(job) => {
                    self.enqueue(&chunk, job);
                    None
                }
            })
        };
        tracing::trace!(chunk = %chunk.id, offset, bytes, sync, ok = accepted.is_ok(), "append");
        match accepted {
            Err(error) => {
                self.release_queue(bytes);
                return Err(error);
            }
            Ok(None) => {}
            Ok(Some(job)) => self.run_claimed(&chunk, job),
        }
        add(&self.metrics.appends, 1);
        add(&self.metrics.append_bytes, bytes as u64);
        Ok(())
    }

    /// Makes everything accepted so far durable; `done` gets the durable length.
    pub fn sync(&self, id: ChunkId, done: Done<u64>) -> Result<(), DataError> {
        self.submit(id, |_| Ok(Job::Sync { done }))
    }

    /// Forbids further appends and makes everything durable; `done` gets the length. A repeat answers again.
    pub fn seal(&self, id: ChunkId, done: Done<u64>) -> Result<(), DataError> {
        self.submit(id, |state| {
            state.sealed = true;
            Ok(Job::Seal { done })
        })
    }

    /// Frees the whole blocks of byte ranges; `done` when that is durable. A chunk that is not here needs no freeing.
    pub fn punch(&self, id: ChunkId, ranges: Vec<(u64, u64)>, done: Done<()>) -> Result<(), DataError> {
        self.check()?;
        if self.chunk(id).is_none() {
            done(Ok(()));
            return Ok(());
        }
        self.submit(id, |_| Ok(Job::Punch { ranges, done }))
    }

    /// Replaces a block by good bytes, through the journal. Of a chunk that was overwritten only by those that its
    /// checksum says: others were true before the block was overwritten.
    pub fn heal(&self, id: ChunkId, block: u32, good: GoodBlock, done: Done<()>) -> Result<(), DataError> {
        self.submit_heal(id, block, good, None, done)
    }

    fn submit_heal(
        &self,
        id: ChunkId,
        block: u32,
        good: GoodBlock,
        as_of: Option<OverwriteNumber>,
        done: Done<()>,
    ) -> Result<(), DataError> {
        let rows = self.chunk(id).map_or(0, |chunk| chunk.header.row_tables());
        if good.row_crcs.len() != rows {
            return Err(DataError::Refused { chunk: id, refusal: AppendRefusal::Malformed });
        }
        self.submit(id, |state| {
            if block >= cairn_format::crc_table::blocks_of(state.accepted) {
                let length = state.accepted;
                let from = u64::from(block) * 4096;
                return Err(DataError::Missing { chunk: id, from, to: from + 4096, length });
            }
            Ok(Job::Heal { block, good, as_of, done })
        })
    }

    fn submit(
        &self,
        id: ChunkId,
        job: impl FnOnce(&mut chunk::ChunkMem) -> Result<Job, DataError>,
    ) -> Result<(), DataError> {
        self.check()?;
        let chunk = self.chunk(id).ok_or(DataError::NoChunk { chunk: id })?;
        self.reserve_queue(0)?;
        let mut state = chunk.state.lock();
        if state.deleted {
            self.release_queue(0);
            return Err(DataError::Deleted { chunk: id });
        }
        match job(&mut state) {
            Ok(job) => {
                self.enqueue(&chunk, job);
                Ok(())
            }
            Err(error) => {
                self.release_queue(0);
                Err(error)
            }
        }
    }

    /// Runs `job` on the disk's control thread.
    pub fn control(&self, job: impl FnOnce(&DiskStore) + Send + 'static) -> Result<(), DataError> {
        let busy = || DataError::Busy { disk: self.name().into() };
        if self.control.len() >= CONTROL_MAX {
            add(&self.metrics.overloads, 1);
            return Err(busy());
        }
        self.control.push(Box::new(job)).map_err(|_| DataError::Stopping { disk: self.name().into() })
    }

    /// What is known of a chunk.
    pub fn info(&self, id: ChunkId) -> Option<ChunkInfo> {
        self.chunk(id).filter(|chunk| !chunk.state.lock().deleted).map(|chunk| chunk.info())
    }

    /// A chunk with its tables; reads them if they are not in memory.
    pub fn tables(&self, id: ChunkId) -> Result<ChunkTables, DataError> {
        self.check()?;
        let chunk = self.chunk(id).ok_or(DataError::NoChunk { chunk: id })?;
        self.load_tables(&chunk)?;
        let info = chunk.info();
        let state = self.with_tables(&chunk)?;
        let crcs = state.table.clone().unwrap_or_default();
        let blocks = (state.blocks() as usize).min(crcs.len());
        let punched = state.punched.as_deref().cloned().unwrap_or_default();
        let rows = state.rows.iter().map(|row| row[..blocks.min(row.len())].to_vec()).collect();
        Ok(ChunkTables { info, crcs: crcs[..blocks].to_vec(), rows, punched })
    }

    /// Refuses once the disk has failed or the store is closing.
    pub(crate) fn check(&self) -> Result<(), DataError> {
        if let Some(why) = self.failure() {
            return Err(DataError::Failed { disk: self.name().into(), why: why.into() });
        }
        if self.stopping.load(Ordering::Relaxed) {
            return Err(DataError::Stopping { disk: self.name().into() });
        }
        Ok(())
    }

    fn reserve_queue(&self, bytes: usize) -> Result<(), DataError> {
        let ops = self.queued_ops.fetch_add(1, Ordering::Relaxed);
        let held = self.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
        if ops >= self.config.queue_ops_max || held + bytes > self.config.queue_bytes_max {
            self.release_queue(bytes);
            add(&self.metrics.overloads, 1);
            return Err(DataError::Busy { disk: self.name().into() });
        }
        Ok(())
    }

    fn release_queue(&self, bytes: usize) {
        self.queued_ops.fetch_sub(1, Ordering::Relaxed);
        self.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// The disk leaves service, for good until a start has read everything.
    pub(crate) fn fail(&self, error: &DiskError) -> DataError {
        add(&self.metrics.io_errors, 1);
        if self.failed.set(error.to_string()).is_ok() {
            tracing::error!(disk = self.name(), %error, "the disk leaves service; replace it, or restart to have it verified");
            self.mark_suspect();
        }
        let why = self.failure().unwrap_or_default().to_owned();
        DataError::Failed { disk: self.name().into(), why }
    }

    /// The state of a group was not made durable. A full disk keeps what it has and is told again; any other one leaves
    /// service.
    pub(crate) fn state_not_saved(&self, error: &DiskError) -> WireError {
        match error {
            DiskError::NoSpace { .. } => WireError::new(ErrorCode::NoSpace, format!("{}: {error}", self.name())),
            _ => self.fail(error).to_wire(),
        }
    }

    /// A thread of the disk panicked: what waits for it would wait for ever, so the disk leaves service.
    pub(crate) fn fail_by_panic(&self) {
        if self.failed.set("a thread of the disk panicked; look at the log and restart the node".into()).is_ok() {
            tracing::error!(disk = self.name(), "the disk leaves service because one of its threads panicked");
            self.mark_suspect();
        }
    }

    /// Best effort: the disk may be past writing. Without the mark nothing acknowledged is at stake either, for the
    /// journal keeps what a failed sync may have dropped.
    fn mark_suspect(&self) {
        let disk = &self.context.disk;
        let marked = disk
            .open(paths::SUSPECT, cairn_env::OpenOptions::CREATE)
            .and_then(|file| file.sync_all())
            .and_then(|()| disk.sync_dir(""));
        if let Err(error) = marked {
            tracing::warn!(disk = self.name(), %error, "the failure could not be noted on the disk itself");
        }
    }

    pub(crate) fn latency(&self, since: cairn_types::Time) {
        let ns = self.context.clock.now().since(since).as_nanos();
        self.write_ns.fetch_add(u64::try_from(ns).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.writes.fetch_add(1, Ordering::Relaxed);
    }
}

impl std::fmt::Debug for DiskStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DiskStore").field("disk", &self.name()).field("failed", &self.failed.get()).finish()
    }
}

impl AppendJob {
    pub(crate) fn end(&self) -> u64 {
        self.offset + self.bytes as u64
    }
}
