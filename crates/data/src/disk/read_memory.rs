//! Short reads of what is in memory already, on the thread that asks: a hop to a thread of the disk and back costs
//! several times what the read itself does.
//!
//! Invariant: nothing here waits, not for a lock, not for memory, not for the device; whatever is not at hand is left
//! to the threads of the disk, and so is everything that is wrong.

use std::sync::Arc;

use cairn_types::BLOCK_SIZE;

use super::DiskStore;
use super::chunk::Chunk;
use super::read::{Moment, ReadBlocks};
use super::read_pipe::PIPE_BYTES_MIN;
use super::read_shares::Reader;

impl DiskStore {
    /// Blocks that cover the range, if all of them are in memory.
    pub(super) fn read_in_memory(
        &self,
        chunk: &Arc<Chunk>,
        (offset, length): (u64, u64),
        reader: Option<Reader>,
    ) -> Option<ReadBlocks> {
        if self.config.direct_reads || length >= PIPE_BYTES_MIN as u64 {
            return None;
        }
        let (blocks, moment) = {
            let state = chunk.state.try_lock()?;
            let blocks = self.checked_range(chunk, &state, offset, length).ok()?;
            let moment = Moment::of(&state, &blocks)?;
            (blocks, moment)
        };
        let bytes = blocks.len() * BLOCK_SIZE;
        let held = match reader {
            Some(reader) => Some(self.context.shares.try_take(reader, bytes)?),
            None => None,
        };
        let mut data = self.context.pool.try_take(bytes).ok()?;
        if !moment.needs_file(&blocks) {
            data.resize(bytes);
        } else if moment.made {
            let files = self.files.peek(chunk.id)?;
            files.cached.read_in_memory(&mut data.spare_mut()[..bytes], chunk.place_of(blocks.start))?;
            data.advance(bytes);
        } else {
            return None;
        }
        moment.lay_over(&blocks, &mut data);
        let state = chunk.state.try_lock()?;
        self.checked_range(chunk, &state, offset, length).ok()?;
        let first_block_offset = u64::from(blocks.start) * BLOCK_SIZE as u64;
        let (crcs, row_crcs) = moment.holds(&state, &blocks).then_some(moment.sums)?;
        Some(ReadBlocks { data, crcs, row_crcs, first_block_offset, held })
    }
}
