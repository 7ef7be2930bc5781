//! Verification of the first block and the tables of a chunk at rest: what lies on the disk, past the page cache, is
//! held against what is in memory.
//!
//! A running server goes by what it has in memory, so rot of header, state and tables on the disk shows only at the
//! next start, when nothing else is left to tell what is right: the file is set aside, good blocks count as bad. Header
//! and state say by their own sums whether they are whole; which table is right, the blocks tell. Invariants: only of
//! sealed chunks of which nothing is on its way, so that nothing goes home here that is not durable in the journal;
//! what is written home comes from memory, by the next flush; a header or state that is whole is not written again for
//! being another one.

use std::sync::Arc;

use cairn_env::{AlignedBuf, DiskError};
use cairn_format::chunk_header::{ChunkHeader, PUNCHED_OFFSET, STATE_OFFSET};
use cairn_format::chunk_state::{CHUNK_STATE_LEN, ChunkState};
use cairn_format::crc_table::{PUNCHED_LEN, PunchedBits, row_tables_crc, table_crc};
use cairn_types::{BLOCK_SIZE, ChunkId, crc32c};

use super::chunk::{ChunkMem, CrcRun};
use super::files::ChunkFiles;
use super::home::ZEROS_OFFSET;
use super::metrics::add;
use super::tables_at_home::{read_punched, read_rows, read_table};
use super::{Chunk, DataError, DiskStore};

const SECTOR: usize = 512;

/// How the tables of a chunk are at rest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TablesAtRest {
    /// As in memory, or nothing can be said now: something is on its way.
    Good,
    /// So many entries, the marks of freed blocks, or the first sectors, differed: they are written again from memory.
    Mended(u32),
    /// As in memory, but their sum is that of others: whether an entry is wrong the blocks tell.
    SumOff,
}

impl DiskStore {
    /// Holds the first block and the tables at rest against those in memory, and has them written again where they
    /// differ. Reads the device: not on a thread that may not block.
    pub fn verify_tables(&self, chunk: &Arc<Chunk>) -> Result<TablesAtRest, DataError> {
        self.check()?;
        let found = self.load_tables(chunk).and_then(|()| self.look_at_tables(chunk));
        if chunk.is_deleted() { Ok(TablesAtRest::Good) } else { found }
    }

    fn look_at_tables(&self, chunk: &Arc<Chunk>) -> Result<TablesAtRest, DataError> {
        let unreadable = |error: DiskError| DataError::Unreadable { chunk: chunk.id, why: error.to_string() };
        let files = self.files.get(chunk.id).map_err(unreadable)?;
        let (blocks, version) = {
            let state = self.with_tables(chunk)?;
            if !is_quiet(&state) {
                return Ok(TablesAtRest::Good);
            }
            (state.blocks(), state.next_version)
        };
        let direct = files.direct().map_err(unreadable)?;
        let crcs = read_table(direct.as_ref(), 0, blocks).map_err(unreadable)?;
        let rows = read_rows(direct.as_ref(), &chunk.header, blocks).map_err(unreadable)?;
        let bits = read_punched(direct.as_ref()).map_err(unreadable)?;
        let head = HeadAtRest::read(direct.as_ref(), chunk.id).map_err(unreadable)?;
        let mut state = self.with_tables(chunk)?;
        if !is_quiet(&state) || (state.blocks(), state.next_version) != (blocks, version) {
            return Ok(TablesAtRest::Good);
        }
        let memory = state.table.clone().unwrap_or_default();
        let mut differ: Vec<u32> = differing(&memory, &crcs);
        for (ours, theirs) in state.rows.iter().zip(&rows) {
            differ.extend(differing(ours, theirs));
        }
        differ.sort_unstable();
        differ.dedup();
        // Marks that the start has left out as damaged go home with the next that is freed.
        let none = PunchedBits::default();
        let marks = !state.marks_lost && state.punched.as_deref().unwrap_or(&none).bytes() != bits.bytes();
        let state_at_rest = head.state.as_ref().filter(|_| head.is_whole);
        if differ.is_empty() && !marks && state_at_rest.is_some() {
            let sums = (table_crc(&memory), row_tables_crc(state.rows.iter().map(|row| &row[..])));
            let known = state_at_rest.is_some_and(|at_rest| (at_rest.table_crc, at_rest.row_crc) == sums);
            return Ok(if known { TablesAtRest::Good } else { TablesAtRest::SumOff });
        }
        // Whichever of the two a block matches is right; a block that matches neither is bad, and healed as such.
        for block in differ.iter().copied() {
            let (Some(ours), Some(theirs)) = (memory.get(block as usize), crcs.get(block as usize)) else { continue };
            if ours != theirs
                && !state.is_punched(block..block + 1)
                && self.crc_at_rest(chunk, &files, block) == Some(*theirs)
            {
                state.set_crc(block, *theirs);
            }
        }
        let header = state_at_rest.is_none();
        let count = differ.len() as u32 + u32::from(marks) + u32::from(header);
        add(&self.metrics.crc_errors, u64::from(count));
        tracing::warn!(disk = self.name(), chunk = %chunk.id, entries = differ.len(), marks, header, "the header or the tables of a chunk on the disk are not those in memory; they are written again");
        chunk.home.lock().header |= header;
        self.write_tables_again(chunk, &state);
        Ok(TablesAtRest::Mended(count))
    }

    /// Has tables whose blocks are all good written again, with their sum.
    pub fn mend_sum(&self, chunk: &Arc<Chunk>) -> Result<(), DataError> {
        let state = self.with_tables(chunk)?;
        if is_quiet(&state) {
            tracing::warn!(disk = self.name(), chunk = %chunk.id, "the sum of a chunk's tables on the disk was that of others, and all its blocks are good; it is written again");
            self.write_tables_again(chunk, &state);
        }
        Ok(())
    }

    /// By the next flush. Nothing is on its way: what is in memory is durable.
    fn write_tables_again(&self, chunk: &Arc<Chunk>, state: &ChunkMem) {
        {
            let mut view = chunk.home.lock();
            let tables = state.table.iter().chain(&state.rows).enumerate();
            let run = |(table, crcs): (usize, &Vec<u32>)| CrcRun { table, first: 0, crcs: crcs.clone().into() };
            view.runs.extend(tables.map(run));
            if view.punched.is_some() || state.punched.is_none() {
                view.punched_sectors = (0..(PUNCHED_LEN / SECTOR) as u32).collect();
            }
        }
        self.note_dirty(chunk);
    }

    fn crc_at_rest(&self, chunk: &Chunk, files: &ChunkFiles, block: u32) -> Option<u32> {
        let mut data = AlignedBuf::unpooled(BLOCK_SIZE);
        let read =
            files.direct().and_then(|file| file.read_at(&mut data.spare_mut()[..BLOCK_SIZE], chunk.place_of(block)));
        data.advance(read.ok().filter(|got| *got == BLOCK_SIZE)?);
        Some(crc32c(&data))
    }
}

/// Sealed, and nothing of it on its way anywhere.
fn is_quiet(state: &ChunkMem) -> bool {
    state.seal_journaled
        && !state.deleted
        && state.pending == 0
        && state.overlay.is_empty()
        && !state.durability.is_dirty()
        && state.accepted == state.written
        && state.overwrites_queued == 0
        && state.table.as_ref().is_some_and(|table| table.len() as u32 == state.blocks())
}

fn differing(ours: &[u32], theirs: &[u32]) -> Vec<u32> {
    let pairs = ours.iter().zip(theirs).enumerate();
    pairs.filter(|(_, (ours, theirs))| ours != theirs).map(|(block, _)| block as u32).collect()
}

/// The first block of a chunk's file.
struct HeadAtRest {
    /// Header and state are what was written of this chunk, and the zeros are zeros.
    is_whole: bool,
    state: Option<ChunkState>,
}

impl HeadAtRest {
    /// What lies behind the end of the file is not there.
    fn read(file: &dyn cairn_env::File, id: ChunkId) -> Result<Self, DiskError> {
        let mut block = AlignedBuf::unpooled(BLOCK_SIZE);
        let got = file.read_at(&mut block.spare_mut()[..BLOCK_SIZE], 0)?;
        block.advance(got);
        let header = block.first_chunk().and_then(|sector| ChunkHeader::decode(sector).ok());
        let at = STATE_OFFSET as usize;
        let sector = block.get(at..at + CHUNK_STATE_LEN).and_then(|sector| sector.first_chunk());
        let state = sector.and_then(|sector| ChunkState::decode(sector).ok()).filter(|state| state.chunk == id);
        let zeros = block.get(ZEROS_OFFSET as usize..PUNCHED_OFFSET as usize);
        let is_whole = header.is_some_and(|header| header.chunk == id)
            && state.is_some()
            && zeros.is_some_and(|zeros| zeros.iter().all(|byte| *byte == 0));
        Ok(Self { is_whole, state })
    }
}
