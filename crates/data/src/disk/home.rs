//! Writing home: what the journal made durable goes to the chunk files, merged; then the journal's space is freed.
//!
//! Invariants: nothing is written home before it is durable in the journal; tables and states are written only in a
//! flush and only with what the journal still holds; the journal's tail moves only after a flush whose syncs all
//! succeeded. A flush that lacks room leaves the rest to the next one, and the journal keeps everything until then. One
//! thread at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use cairn_env::{DiskError, SharedBuf};
use cairn_format::chunk_header::{PUNCHED_OFFSET, STATE_OFFSET, table_offset};
use cairn_format::chunk_state::{CHUNK_STATE_LEN, ChunkState};
use cairn_format::crc_table::{CRCS_A_SECTOR, PunchedBits, blocks_of, encode_crcs, row_tables_crc, table_crc};
use cairn_types::{BLOCK_SIZE, ChunkId, Time};

use super::chunk::{Chunk, CrcRun, HomeView};
use super::journal::{Committed, Effect, HomeData};
use super::metrics::add;
use super::{DiskStore, paths};

/// Part of the ring in use from which on it is flushed.
const FLUSH_ABOVE: f64 = 0.5;
const SECTOR: usize = 512;
/// What lies between the state and the PUNCHED bits.
pub(super) const ZEROS_OFFSET: u64 = STATE_OFFSET + CHUNK_STATE_LEN as u64;
const ZEROS: [u8; (PUNCHED_OFFSET - ZEROS_OFFSET) as usize] = [0; (PUNCHED_OFFSET - ZEROS_OFFSET) as usize];

/// What the next flush has to do.
#[derive(Default)]
pub(crate) struct HomeState {
    dirty: BTreeMap<ChunkId, Arc<Chunk>>,
    /// Directories whose names are not durable yet.
    dirs: BTreeSet<String>,
    /// Last batch whose effects were applied.
    applied: u64,
    last_flush: Time,
    /// The last flush lacked room.
    short: bool,
}

/// Blocks of one chunk to be written, the newest version of each.
type Blocks = BTreeMap<u32, (SharedBuf, u64)>;

impl DiskStore {
    /// Takes what is durable home, and flushes when it is time. `false` when there was nothing to do.
    pub(super) fn step_home(&self, force: bool) -> bool {
        let batches = self.homeward.take(usize::MAX);
        let mut worked = !batches.is_empty();
        if worked && let Err(error) = self.apply(batches) {
            self.fail(&error);
        }
        if self.failure().is_none() && self.wants_flush(force) {
            match self.flush() {
                Ok(()) => worked |= !self.home.lock().short,
                Err(error) => {
                    self.fail(&error);
                    worked = true;
                }
            }
            // The journal may wait for room.
            self.journal.queue.poke();
        }
        worked
    }

    fn wants_flush(&self, force: bool) -> bool {
        let home = self.home.lock();
        let pending = !home.dirty.is_empty() || !home.dirs.is_empty();
        let old = self.context.clock.now().since(home.last_flush) >= self.config.flush_age;
        let full =
            self.journal.fullness() > FLUSH_ABOVE && home.applied + 1 > self.journal.home_sequence() && !home.short;
        (pending && (force || old)) || full
    }

    fn apply(&self, batches: Vec<Committed>) -> Result<(), DiskError> {
        let mut blocks: BTreeMap<ChunkId, (Arc<Chunk>, Blocks)> = BTreeMap::new();
        let mut last = 0;
        let mut after = Vec::new();
        for batch in batches {
            last = batch.sequence;
            for effect in batch.effects {
                self.note(effect, &mut blocks, &mut after);
            }
        }
        for (chunk, blocks) in blocks.into_values() {
            self.write_blocks(&chunk, blocks)?;
        }
        for effect in after {
            match effect {
                Effect::Punch { chunk, blocks, .. } => self.note_free(&chunk, blocks),
                Effect::Delete(chunk) => self.remove_file(&chunk)?,
                _ => {}
            }
        }
        self.home.lock().applied = last;
        Ok(())
    }

    /// Takes an effect into the views of its chunk; what has to follow the data goes to `after`.
    fn note(&self, effect: Effect, blocks: &mut BTreeMap<ChunkId, (Arc<Chunk>, Blocks)>, after: &mut Vec<Effect>) {
        match effect {
            Effect::Barrier => {}
            Effect::Create(chunk) => {
                let mut home = self.home.lock();
                home.dirs.insert(paths::pg_dir(chunk.id.pg));
                home.dirty.insert(chunk.id, chunk.clone());
                chunk.home.lock().records += 1;
            }
            Effect::Extent { chunk, durable, sealed, runs, data, number } => {
                {
                    let mut view = chunk.home.lock();
                    view.length = view.length.max(durable);
                    view.sealed |= sealed;
                    view.records += 1;
                    view.overwrite = number.unwrap_or(view.overwrite);
                    view.runs.extend(runs);
                }
                self.home.lock().dirty.insert(chunk.id, chunk.clone());
                for HomeData { first_block, data, version } in data {
                    let (_, blocks) = blocks.entry(chunk.id).or_insert_with(|| (chunk.clone(), Blocks::new()));
                    for i in 0..data.len() / BLOCK_SIZE {
                        let piece = data.slice(i * BLOCK_SIZE..(i + 1) * BLOCK_SIZE);
                        if blocks.insert(first_block + i as u32, (piece, version)).is_some() {
                            // Merged: the older version is never written.
                            self.overlay_bytes.fetch_sub(BLOCK_SIZE, Relaxed);
                        }
                    }
                }
            }
            Effect::Punch { ref chunk, first_sector, ref bits, .. } => {
                note_punch(chunk, first_sector, bits);
                self.home.lock().dirty.insert(chunk.id, chunk.clone());
                after.push(effect);
            }
            Effect::Delete(chunk) => after.push(Effect::Delete(chunk)),
        }
    }

    /// Writes blocks to the chunk file and takes them off what lies over it.
    fn write_blocks(&self, chunk: &Arc<Chunk>, blocks: Blocks) -> Result<(), DiskError> {
        let bytes = blocks.len() * BLOCK_SIZE;
        let outcome = self.try_write_blocks(chunk, &blocks);
        self.overlay_bytes.fetch_sub(bytes, Relaxed);
        add(&self.metrics.home_blocks, blocks.len() as u64);
        outcome
    }

    fn try_write_blocks(&self, chunk: &Arc<Chunk>, blocks: &Blocks) -> Result<(), DiskError> {
        let files = self.files.get(chunk.id)?;
        chunk.state.lock().home_gen += 1;
        let mut run: Vec<IoSlice<'_>> = Vec::new();
        let mut first = 0;
        let write = |first: u32, run: &mut Vec<IoSlice<'_>>| -> Result<(), DiskError> {
            if !run.is_empty() {
                let _sizing = chunk.sizing.lock();
                files.cached.write_vectored_at(run, chunk.place_of(first))?;
                run.clear();
            }
            Ok(())
        };
        for (&block, (data, _)) in blocks {
            if first + run.len() as u32 != block {
                write(first, &mut run)?;
                first = block;
            }
            run.push(IoSlice::new(data));
        }
        write(first, &mut run)?;
        let mut state = chunk.state.lock();
        state.home_gen += 1;
        for (block, (_, version)) in blocks {
            if state.overlay.get(block).is_some_and(|over| over.version == *version) {
                state.overlay.remove(block);
            }
        }
        Ok(())
    }

    /// Their bytes are nobody's any more; the hole is punched by the thread for that.
    fn note_free(&self, chunk: &Arc<Chunk>, blocks: Vec<std::ops::Range<u32>>) {
        {
            let mut state = chunk.state.lock();
            if !state.file_made {
                return;
            }
            for range in &blocks {
                state.overlay.retain(|block, _| !range.contains(block));
            }
        }
        self.holes.note(chunk, blocks);
    }

    fn remove_file(&self, chunk: &Arc<Chunk>) -> Result<(), DiskError> {
        let made = chunk.state.lock().file_made;
        self.holes.forget(chunk.id);
        if made {
            // The last handle is closed by the thread for that: it is then that the space goes back.
            let files = self.files.get(chunk.id);
            let removed = self.context.disk.remove(&paths::chunk(chunk.id));
            self.files.forget(chunk.id);
            match removed {
                Ok(()) | Err(DiskError::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
            files.into_iter().for_each(|files| self.holes.close_later(files));
        }
        self.chunks.write().remove(&chunk.id);
        let mut home = self.home.lock();
        home.dirty.remove(&chunk.id);
        home.dirs.insert(paths::pg_dir(chunk.id.pg));
        add(&self.metrics.deleted_chunks, 1);
        Ok(())
    }

    /// Brings tables and states home, syncs everything concerned, and lets the journal go on over it.
    pub(super) fn flush(&self) -> Result<(), DiskError> {
        let (dirty, dirs, applied) = {
            let mut home = self.home.lock();
            home.last_flush = self.context.clock.now();
            (std::mem::take(&mut home.dirty), std::mem::take(&mut home.dirs), home.applied)
        };
        let mut short = None;
        let mut flushed = Vec::with_capacity(dirty.len());
        for chunk in dirty.into_values() {
            match self.flush_chunk(&chunk) {
                Ok(()) => flushed.push(chunk),
                Err(error @ DiskError::NoSpace { .. }) => {
                    short = Some(error);
                    let mut home = self.home.lock();
                    home.dirs.insert(paths::pg_dir(chunk.id.pg));
                    home.dirty.insert(chunk.id, chunk);
                }
                Err(error) => return Err(error),
            }
        }
        for dir in &dirs {
            match self.context.disk.sync_dir(dir) {
                Ok(()) | Err(DiskError::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        for chunk in &flushed {
            chunk.state.lock().named = true;
        }
        match &short {
            None => self.journal.set_home(applied + 1),
            Some(error) if !self.home.lock().short => {
                tracing::warn!(disk = self.name(), %error, "the disk has no room for what its journal keeps; it stays there, and is tried again");
            }
            Some(_) => {}
        }
        self.home.lock().short = short.is_some();
        add(&self.metrics.flushes, 1);
        for chunk in &flushed {
            self.note_idle(chunk);
        }
        Ok(())
    }

    /// The next flush brings home what the chunk has in memory.
    pub(super) fn note_dirty(&self, chunk: &Arc<Chunk>) {
        self.home.lock().dirty.insert(chunk.id, chunk.clone());
    }

    /// Brings home what the chunk has in memory; for want of room it stays there.
    fn flush_chunk(&self, chunk: &Arc<Chunk>) -> Result<(), DiskError> {
        let (mut view, punched) = {
            let mut view = chunk.home.lock();
            let HomeView { length, sealed, overwrite, .. } = *view;
            let records = std::mem::take(&mut view.records);
            let (runs, punched_sectors) = (std::mem::take(&mut view.runs), std::mem::take(&mut view.punched_sectors));
            let header = std::mem::take(&mut view.header);
            let taken = HomeView { length, sealed, overwrite, runs, punched_sectors, header, records, punched: None };
            (taken, view.punched.clone().unwrap_or_default())
        };
        let outcome = self.write_view(chunk, &view, &punched);
        if let Err(DiskError::NoSpace { .. }) = outcome {
            let mut now = chunk.home.lock();
            view.runs.append(&mut now.runs);
            now.runs = std::mem::take(&mut view.runs);
            now.punched_sectors.append(&mut view.punched_sectors);
            now.header |= view.header;
            now.records += view.records;
        }
        outcome
    }

    fn write_view(&self, chunk: &Arc<Chunk>, view: &HomeView, bits: &PunchedBits) -> Result<(), DiskError> {
        let HomeView { length, sealed, overwrite, records, .. } = *view;
        let (made, overwritten, table_crc, row_crc) = {
            let state = chunk.state.lock();
            let blocks = blocks_of(length) as usize;
            let table = state.table.as_ref().map(|table| table_crc(&table[..table.len().min(blocks)]));
            let rows = table.map(|_| row_tables_crc(state.rows.iter().map(|row| &row[..row.len().min(blocks)])));
            let overwritten = state.follow.last.is_some();
            (
                state.file_made,
                overwritten,
                table.unwrap_or(state.stored_table_crc),
                rows.unwrap_or(state.stored_row_crc),
            )
        };
        // A creation without any byte yet: its file may not be there; it has to be before the journal forgets it.
        let files = if made {
            self.files.get(chunk.id)?
        } else {
            let files = self.make_file(chunk)?;
            chunk.state.lock().file_made = true;
            files
        };
        if view.header {
            files.cached.write_at(&chunk.header.encode(), 0)?;
            files.cached.write_at(&ZEROS, ZEROS_OFFSET)?;
        }
        for CrcRun { table, first, crcs } in &view.runs {
            files.cached.write_at(&run_bytes(crcs), table_offset(*table) + u64::from(*first) * 4)?;
        }
        // Overwrites that are not durable yet are in the table in memory: the sum is that of what is at home.
        let table_crc = match overwritten {
            true => super::tables_at_home::sum_at_home(files.cached.as_ref(), blocks_of(length))?,
            false => table_crc,
        };
        for sector in &view.punched_sectors {
            let at = *sector as usize * SECTOR;
            files.cached.write_at(&bits.bytes()[at..at + SECTOR], PUNCHED_OFFSET + at as u64)?;
        }
        let punched_blocks = bits.count().min(blocks_of(length));
        let (id, punched_crc) = (chunk.id, bits.crc());
        let state =
            ChunkState { chunk: id, length, sealed, punched_blocks, punched_crc, table_crc, row_crc, overwrite };
        files.cached.write_at(&state.encode(), STATE_OFFSET)?;
        files.cached.sync_data()?;
        let mut state = chunk.state.lock();
        state.pending -= records.min(state.pending);
        if sealed {
            state.stored_table_crc = table_crc;
            state.stored_row_crc = row_crc;
        }
        Ok(())
    }
}

fn note_punch(chunk: &Arc<Chunk>, first_sector: u32, bits: &[u8]) {
    let mut view = chunk.home.lock();
    let mut all = view.punched.as_ref().map_or([0; cairn_format::crc_table::PUNCHED_LEN], |bits| *bits.bytes());
    let at = first_sector as usize * SECTOR;
    all[at..at + bits.len()].copy_from_slice(bits);
    view.punched = PunchedBits::from_bytes(&all).map(Box::new);
    let sectors = first_sector..first_sector + (bits.len() / SECTOR) as u32;
    view.punched_sectors.extend(sectors);
    view.records += 1;
}

/// CRCs as whole sectors; what lies beyond the last one means nothing and is zero.
fn run_bytes(crcs: &[u32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_crcs(crcs, &mut bytes);
    bytes.resize(crcs.len().next_multiple_of(CRCS_A_SECTOR as usize) * 4, 0);
    bytes
}
