//! Opening a disk: the journal is made or read, what it holds is brought home, chunks and groups are listed.
//!
//! Invariant: opening can be interrupted anywhere and begun anew with the same outcome; the journal's records are let
//! go only after everything that came of them was synced.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

use cairn_env::{AlignedBuf, Disk, File, OpenOptions};
use cairn_format::journal_batch::{JournalBatch, RING_BLOCK};
use cairn_format::journal_header::{JOURNAL_HEADER_LEN, JournalHeader, RING_OFFSET};
use cairn_format::journal_record::{JournalRecord, decode_record};
use cairn_types::{ChunkId, DiskUuid, PgId};
use parking_lot::{Mutex, RwLock};

use super::chunk::Chunk;
use super::config::{JOURNAL_BYTES_MAX, JOURNAL_BYTES_MIN};
use super::files::FileCache;
use super::generation_file::GenerationFile;
use super::journal::Journal;
use super::pg_files::list_or_none;
use super::queue::WorkQueue;
use super::replay_chunk::{Outcome, replay_chunk};
use super::ring::{Placed, Ring, scan};
use super::watch::{IoWatch, WatchedDisk};
use super::{DiskConfig, DiskContext, DiskMetrics, DiskStore, OpenError, PgFiles, paths};

/// Bytes read or written at a time.
const PIECE: usize = 1 << 20;

/// The journal as found.
struct Found {
    file: Arc<dyn File>,
    id: DiskUuid,
    ring_blocks: u32,
    /// Its ring, and the batches that are still needed.
    bytes: Vec<u8>,
    batches: Vec<(Placed, usize)>,
}

impl DiskStore {
    /// Opens the store in a directory whose label and lock the caller has.
    pub fn open(context: DiskContext, config: DiskConfig) -> Result<Arc<Self>, OpenError> {
        check_config(&context, &config)?;
        // Past the watch: a rise is no write that the next one is for.
        let generation = GenerationFile::start(&context)?;
        let watch = IoWatch::new(context.clock.clone());
        let watched = WatchedDisk { disk: context.disk, watch: watch.clone() };
        let context = DiskContext { disk: Arc::new(watched), ..context };
        let disk = context.disk.clone();
        disk.create_dir_all(paths::PGS)?;
        let found = open_journal(&context, &config)?;
        let mut records = collect_records(&context, &found)?;
        let pg_files = PgFiles::load(disk.clone())?;
        for trouble in pg_files.troubles() {
            tracing::error!(pg = %trouble.pg, what = trouble.what, "the state of a placement group cannot be read; it stays out of service until the manager tells it anew");
        }
        let (mut chunks, mut lost, mut bad) = (BTreeMap::new(), Vec::new(), Vec::new());
        let mut dirs = BTreeSet::new();
        let now = context.clock.now();
        for id in all_chunks(disk.as_ref(), records.keys().copied())? {
            let mut keep = |outcome| match outcome {
                Outcome::Keep(chunk, bad_here) => {
                    chunk.state.lock().last_append = now;
                    bad.extend(bad_here.into_iter().map(|block| (id, block)));
                    chunks.insert(id, Arc::new(*chunk));
                }
                Outcome::Gone => {}
                Outcome::Lost => lost.push(id),
            };
            let records = records.remove(&id).unwrap_or_default();
            keep(replay_chunk(disk.as_ref(), context.cluster, id, &records, &mut dirs)?);
        }
        still_lost(disk.as_ref(), &chunks, &mut lost, &mut dirs)?;
        for dir in dirs {
            disk.sync_dir(&dir)?;
        }
        let store = Arc::new(Self::assemble((context, watch, generation), config, found, chunks, pg_files));
        (*store.lost.lock(), *store.bad_blocks.lock()) = (lost, bad);
        store.journal.write_tail()?;
        store.re_read_if_suspect()?;
        store.chunks.read().values().for_each(|chunk| store.note_holes_of(chunk));
        store.start_threads()?;
        Ok(store)
    }

    fn assemble(
        (context, watch, generation): (DiskContext, Arc<IoWatch>, GenerationFile),
        config: DiskConfig,
        found: Found,
        chunks: BTreeMap<ChunkId, Arc<Chunk>>,
        pg_files: PgFiles,
    ) -> Self {
        let live = found.batches.iter().map(|(placed, _)| *placed).collect();
        let ring = Ring::resume(found.ring_blocks, live);
        let next = ring.next_sequence();
        let journal = Journal::new(found.file, found.id, ring, config.batch_bytes_max);
        journal.set_home(next);
        let files = FileCache::new(context.disk.clone(), config.open_files_max);
        Self {
            context,
            config,
            watch,
            generation,
            chunks: RwLock::new(chunks),
            files,
            pg_files,
            journal,
            ready: WorkQueue::default(),
            syncs: WorkQueue::default(),
            reads: Arc::default(),
            reads_cold: AtomicBool::new(false),
            pipes: cairn_env::PipePool::new(super::read_pipe::PIPES_MAX),
            homeward: WorkQueue::default(),
            holes: super::holes::Holes::default(),
            control: WorkQueue::default(),
            home: Mutex::default(),
            failed: OnceLock::new(),
            metrics: DiskMetrics::default(),
            queued_ops: AtomicUsize::new(0),
            queued_bytes: AtomicUsize::new(0),
            overlay_bytes: AtomicUsize::new(0),
            space: Mutex::default(),
            idle_tables: Mutex::new(VecDeque::new()),
            bad_blocks: Mutex::default(),
            lost: Mutex::default(),
            bad_rows: Mutex::default(),
            write_ns: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            threads: Mutex::default(),
        }
    }

    /// After a failed sync or write everything is read before the disk serves; bad blocks are kept for healing.
    fn re_read_if_suspect(self: &Arc<Self>) -> Result<(), OpenError> {
        if !self.context.disk.exists(paths::SUSPECT)? {
            return Ok(());
        }
        tracing::warn!(disk = self.name(), "a sync or write failed here before: reading everything");
        let chunks: Vec<Arc<Chunk>> = self.chunks.read().values().cloned().collect();
        let mut bad = Vec::new();
        for chunk in chunks {
            let blocks = self.verify_chunk(&chunk).map_err(|error| OpenError::Corrupt {
                file: format!("{}/{}", self.name(), paths::chunk(chunk.id)),
                what: error.to_string(),
            })?;
            bad.extend(blocks.into_iter().map(|block| (chunk.id, block)));
        }
        if !bad.is_empty() {
            tracing::error!(
                disk = self.name(),
                blocks = bad.len(),
                "bad blocks were found; they are healed from other members"
            );
        }
        // With those of files that were gone.
        *self.bad_blocks.lock() = bad;
        self.context.disk.remove(paths::SUSPECT)?;
        self.context.disk.sync_dir("")?;
        Ok(())
    }
}

/// What an earlier start found gone or damaged, and is not back.
fn still_lost(
    disk: &dyn Disk,
    chunks: &BTreeMap<ChunkId, Arc<Chunk>>,
    lost: &mut Vec<ChunkId>,
    dirs: &mut BTreeSet<String>,
) -> Result<(), OpenError> {
    for dir in list_or_none(disk, paths::PGS)? {
        let Some(pg) = dir.name.parse().ok().map(PgId).filter(|_| dir.is_dir) else { continue };
        for entry in disk.list(&paths::pg_dir(pg))? {
            let Some(id) = paths::lost_index(&entry.name).map(|index| ChunkId { pg, index }) else { continue };
            if chunks.get(&id).is_some_and(|chunk| chunk.is_sealed()) {
                disk.remove(&paths::lost_chunk(id))?;
                dirs.insert(paths::pg_dir(pg));
            } else if !lost.contains(&id) {
                lost.push(id);
            }
        }
    }
    Ok(())
}

fn check_config(context: &DiskContext, config: &DiskConfig) -> Result<(), OpenError> {
    let bad = |what: String| OpenError::Config { dir: context.disk.name().into(), what };
    if !(JOURNAL_BYTES_MIN..=JOURNAL_BYTES_MAX).contains(&config.journal_bytes) {
        let what =
            format!("a journal has {JOURNAL_BYTES_MIN} to {JOURNAL_BYTES_MAX} bytes, not {}", config.journal_bytes);
        return Err(bad(what));
    }
    // A batch, with the record that overran it and that one's checksums, has to fit half of the ring.
    let largest = config.batch_bytes_max + config.journal_append_max + (192 << 10);
    if largest as u64 > config.journal_bytes / 2 || config.journal_append_max > PIECE {
        let what = format!(
            "batches and appends through the journal are too large for a journal of {} bytes",
            config.journal_bytes
        );
        return Err(bad(what));
    }
    Ok(())
}

/// Opens the journal, or makes it on a disk without chunks.
fn open_journal(context: &DiskContext, config: &DiskConfig) -> Result<Found, OpenError> {
    let disk = &context.disk;
    if disk.exists(paths::JOURNAL)? {
        return read_journal(context);
    }
    if !all_chunks(disk.as_ref(), [].into_iter())?.is_empty() {
        return Err(OpenError::Corrupt {
            file: format!("{}/{}", disk.name(), paths::JOURNAL),
            what: "it is missing, but there are chunks; restore it, or empty the directory".into(),
        });
    }
    let mut id = [0; 16];
    context.rng.fill(&mut id);
    let ring_blocks = u32::try_from(config.journal_bytes / RING_BLOCK as u64).expect("checked against the limit");
    let header = JournalHeader { disk: context.uuid, journal: DiskUuid(id), ring_blocks };
    make_journal(disk.as_ref(), &header)?;
    let file = disk.open(paths::JOURNAL, OpenOptions::READ_WRITE.direct())?;
    Ok(Found { file, id: header.journal, ring_blocks, bytes: Vec::new(), batches: Vec::new() })
}

/// Writes all of it, so that later syncs of it change no metadata of the file system.
fn make_journal(disk: &dyn Disk, header: &JournalHeader) -> Result<(), OpenError> {
    let file = disk.open(paths::JOURNAL_TEMP, OpenOptions::CREATE.direct())?;
    file.set_len(0)?;
    let mut piece = AlignedBuf::unpooled(PIECE);
    piece.resize(PIECE);
    let end = RING_OFFSET + u64::from(header.ring_blocks) * RING_BLOCK as u64;
    let mut at = 0;
    while at < end {
        let bytes = usize::try_from((end - at).min(PIECE as u64)).expect("at most a piece");
        file.write_at(&piece[..bytes], at)?;
        at += bytes as u64;
    }
    piece[..JOURNAL_HEADER_LEN].copy_from_slice(&header.encode());
    file.write_at(&piece[..RING_BLOCK], 0)?;
    file.sync_all()?;
    disk.rename(paths::JOURNAL_TEMP, paths::JOURNAL)?;
    disk.sync_dir("")?;
    Ok(())
}

fn read_journal(context: &DiskContext) -> Result<Found, OpenError> {
    let disk = &context.disk;
    let corrupt = |what: String| OpenError::Corrupt { file: format!("{}/{}", disk.name(), paths::JOURNAL), what };
    let file = disk.open(paths::JOURNAL, OpenOptions::READ_WRITE.direct())?;
    let mut buffer = AlignedBuf::unpooled(PIECE);
    let got = file.read_at(&mut buffer.spare_mut()[..RING_BLOCK], 0)?;
    buffer.advance(got);
    let head = buffer.first_chunk::<JOURNAL_HEADER_LEN>().ok_or_else(|| corrupt("it has no header".into()))?;
    let header = JournalHeader::decode(head).map_err(|error| corrupt(error.to_string()))?;
    if header.disk != context.uuid {
        return Err(corrupt(format!("it belongs to disk {}, the label says {}", header.disk, context.uuid)));
    }
    let ring_bytes = u64::from(header.ring_blocks) * RING_BLOCK as u64;
    if ring_bytes > JOURNAL_BYTES_MAX || file.len()? < RING_OFFSET + ring_bytes {
        return Err(corrupt(format!("it has {} bytes, its header says {ring_bytes} and more", file.len()?)));
    }
    let ring_bytes = usize::try_from(ring_bytes).expect("at most 1 GiB");
    let mut bytes = Vec::with_capacity(ring_bytes);
    while bytes.len() < ring_bytes {
        let wanted = PIECE.min(ring_bytes - bytes.len());
        buffer.clear();
        file.read_exact_at(&mut buffer.spare_mut()[..wanted], RING_OFFSET + bytes.len() as u64)?;
        buffer.advance(wanted);
        bytes.extend_from_slice(&buffer);
    }
    let batches = scan(&bytes, header.journal).map_err(corrupt)?.batches;
    Ok(Found { file, id: header.journal, ring_blocks: header.ring_blocks, bytes, batches })
}

/// All records by chunk, oldest first.
fn collect_records<'a>(
    context: &DiskContext,
    found: &'a Found,
) -> Result<BTreeMap<ChunkId, Vec<JournalRecord<'a>>>, OpenError> {
    let mut all: BTreeMap<ChunkId, Vec<JournalRecord<'a>>> = BTreeMap::new();
    for (placed, at) in &found.batches {
        let bytes = &found.bytes[*at..];
        let records = JournalBatch::decode(bytes).and_then(|batch| batch.records(bytes));
        let mut records = records.expect("scanned as whole");
        while !records.is_empty() {
            let record = decode_record(&mut records).map_err(|error| OpenError::Corrupt {
                file: format!("{}/{}", context.disk.name(), paths::JOURNAL),
                what: format!("batch {}: {error}", placed.sequence),
            })?;
            all.entry(record.chunk()).or_default().push(record);
        }
    }
    Ok(all)
}

/// Every chunk that has a file or is in the journal.
fn all_chunks(disk: &dyn Disk, journaled: impl Iterator<Item = ChunkId>) -> Result<BTreeSet<ChunkId>, OpenError> {
    let mut all: BTreeSet<ChunkId> = journaled.collect();
    for dir in list_or_none(disk, paths::PGS)? {
        let Some(pg) = dir.name.parse().ok().map(PgId).filter(|_| dir.is_dir) else { continue };
        for entry in disk.list(&paths::pg_dir(pg))? {
            all.extend(paths::chunk_index(&entry.name).map(|index| ChunkId { pg, index }));
        }
    }
    Ok(all)
}
