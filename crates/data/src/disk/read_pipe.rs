//! Reads without a copy: references to pages of the page cache go through a pipe into the socket. And what tells the
//! system of reads to come, while the disk has to be waited for.
//!
//! Invariant: only blocks that are not going to change are read this way, and never fewer than asked; everything else
//! is left to the reads that copy.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use cairn_env::PIPE_BYTES;
use cairn_types::BLOCK_SIZE;

use super::chunk::{Chunk, ChunkMem};
use super::read::{BlockData, ReadBlocks};
use super::{DataError, DiskStore};

/// Shorter ranges are copied: cheaper than references to a few pages.
pub(super) const PIPE_BYTES_MIN: usize = 32 << 10;
/// Pipes of one disk. Each holds up to 1 MiB of the page cache and two descriptors.
pub(super) const PIPES_MAX: usize = 16;
/// A read that took longer waited for the device.
const COLD_READ: Duration = Duration::from_micros(700);
/// Blocks of a chunk that was overwritten lately are copied: their pages may change again before they are sent.
const QUIET: Duration = Duration::from_secs(10);
/// Waiting reads of which the system is told while reads wait for the device.
const ANNOUNCED_MAX: usize = 16;

impl DiskStore {
    /// A read as references to pages; `None` where it has to be copied.
    pub(super) fn pipe_now(
        &self,
        chunk: &Arc<Chunk>,
        offset: u64,
        length: u64,
    ) -> Result<Option<ReadBlocks<BlockData>>, DataError> {
        if self.config.direct_reads || length < PIPE_BYTES_MIN as u64 || length > PIPE_BYTES as u64 {
            return Ok(None);
        }
        self.check()?;
        let (blocks, generation, crcs) = {
            let state = self.with_tables(chunk)?;
            let blocks = self.checked_range(chunk, &state, offset, length)?;
            let table = state.table.as_ref();
            let crcs = table.and_then(|table| table.get(blocks.start as usize..blocks.end as usize));
            let overwritten = state.last_overwrite.is_some_and(|at| self.context.clock.now().since(at) < QUIET);
            let crcs = crcs.filter(|_| is_settled(&state, &blocks) && !overwritten).map(<[u32]>::to_vec);
            let Some(crcs) = crcs.zip(state.row_crcs(blocks.clone())) else { return Ok(None) };
            (blocks, state.home_gen, crcs)
        };
        let bytes = blocks.len() * BLOCK_SIZE;
        // Whatever goes wrong from here on, the read that copies finds out and says so.
        let Ok(files) = self.files.get(chunk.id) else { return Ok(None) };
        let Some(mut pipe) = Some(bytes).filter(|bytes| *bytes <= PIPE_BYTES).and_then(|_| self.pipes.take()) else {
            return Ok(None);
        };
        let first_block_offset = u64::from(blocks.start) * BLOCK_SIZE as u64;
        let spliced = files.cached.splice_at(&mut pipe, chunk.place_of(blocks.start), bytes);
        if spliced != Ok(Some(bytes)) {
            return Ok(None);
        }
        let state = chunk.state.lock();
        self.checked_range(chunk, &state, offset, length)?;
        let same = state.home_gen == generation && is_settled(&state, &blocks);
        let (crcs, row_crcs) = crcs;
        let data = BlockData::Pipe(pipe);
        Ok(same.then_some(ReadBlocks { data, crcs, row_crcs, first_block_offset, held: None }))
    }

    /// Tells the system of the reads that wait, so that the device works on several of them at once. Only while reads
    /// wait for the device: on what is in memory it would be wasted.
    pub(super) fn announce_reads(&self) {
        if !self.reads_cold.load(Relaxed) || self.config.direct_reads {
            return;
        }
        let waiting = self.reads.visit(ANNOUNCED_MAX, |job| {
            let new = !std::mem::replace(&mut job.announced, true);
            new.then(|| (job.chunk.id, job.chunk.header.data_offset() + job.offset, job.length))
        });
        for (id, offset, length) in waiting.into_iter().flatten() {
            if let Ok(files) = self.files.get(id) {
                files.cached.will_need(offset, length);
            }
        }
    }

    pub(super) fn note_read_time(&self, took: Duration) {
        let cold = took > COLD_READ;
        if self.reads_cold.load(Relaxed) != cold {
            self.reads_cold.store(cold, Relaxed);
        }
    }
}

/// All of the blocks are at home and only a repair would write them again.
fn is_settled(state: &ChunkMem, blocks: &std::ops::Range<u32>) -> bool {
    let whole = (state.written / BLOCK_SIZE as u64) as u32;
    state.file_made
        && state.home_gen.is_multiple_of(2)
        && (state.seal_journaled || blocks.end <= whole)
        && state.overlay.range(blocks.clone()).next().is_none()
}
