//! Verification: blocks read at rest, past the page cache, against their checksums.
//!
//! Invariant: nothing is told of a chunk that was deleted meanwhile: its file goes at any moment, and nobody misses it.

use std::sync::Arc;
use std::time::Duration;

use cairn_env::AlignedBuf;
use cairn_types::{BLOCK_SIZE, ChunkId, crc32c};

use super::metrics::add;
use super::{Chunk, DataError, DiskStore};

/// Bytes read at a time.
const PIECE: usize = 1 << 20;
const MEMORY_WAIT: Duration = Duration::from_secs(5);

impl DiskStore {
    /// Whether a block at rest matches its checksum. Blocks that are in the journal only count as good; freed ones too.
    pub fn verify_block(&self, id: ChunkId, block: u32) -> Result<bool, DataError> {
        self.check()?;
        let chunk = self.chunk(id).ok_or(DataError::NoChunk { chunk: id })?;
        Ok(self.verify_blocks(&chunk, block..block.saturating_add(1))?.is_empty())
    }

    /// The blocks of a chunk that do not match their checksums.
    pub fn verify_chunk(&self, chunk: &Arc<Chunk>) -> Result<Vec<u32>, DataError> {
        let blocks = chunk.state.lock().blocks();
        let mut bad = Vec::new();
        let step = (PIECE / BLOCK_SIZE) as u32;
        let mut at = 0;
        while at < blocks {
            bad.extend(self.verify_blocks(chunk, at..(at + step).min(blocks))?);
            at += step;
        }
        Ok(bad)
    }

    /// Those of some blocks of a chunk.
    pub fn verify_blocks(&self, chunk: &Arc<Chunk>, blocks: std::ops::Range<u32>) -> Result<Vec<u32>, DataError> {
        self.check()?;
        let found = self.load_tables(chunk).and_then(|()| self.bad_blocks_in(chunk, blocks));
        if chunk.is_deleted() { Ok(Vec::new()) } else { found }
    }

    fn bad_blocks_in(&self, chunk: &Arc<Chunk>, blocks: std::ops::Range<u32>) -> Result<Vec<u32>, DataError> {
        let files = self.files.get(chunk.id);
        let unreadable = |why: String| DataError::Unreadable { chunk: chunk.id, why };
        let files = files.map_err(|error| unreadable(error.to_string()))?;
        let bytes = blocks.len() * BLOCK_SIZE;
        let mut data = self
            .context
            .pool
            .take_blocking(bytes.max(BLOCK_SIZE), MEMORY_WAIT)
            .unwrap_or_else(|_| AlignedBuf::unpooled(bytes));
        // What is overwritten or written home while it is read is judged at the next look.
        let before: Vec<Option<u32>> = {
            let state = self.with_tables(chunk)?;
            let crc = |block: u32| state.table.as_ref().and_then(|table| table.get(block as usize).copied());
            blocks.clone().map(|block| crc(block).filter(|_| !state.overlay.contains_key(&block))).collect()
        };
        let at = chunk.place_of(blocks.start);
        let read = files.direct().and_then(|file| file.read_at(&mut data.spare_mut()[..bytes], at));
        // Where the device cannot read, every block counts as bad.
        let got = read.unwrap_or_else(|error| {
            if !chunk.is_deleted() {
                tracing::warn!(chunk = %chunk.id, %error, "blocks cannot be read at rest");
                add(&self.metrics.io_errors, 1);
            }
            0
        });
        data.advance(got);
        let state = self.with_tables(chunk)?;
        if state.deleted {
            return Ok(Vec::new());
        }
        let Some(table) = &state.table else { return Ok(Vec::new()) };
        let mut bad = Vec::new();
        for (i, block) in blocks.enumerate() {
            let skip = block >= state.blocks()
                || state.overlay.contains_key(&block)
                || state.is_punched(block..block + 1)
                || before[i] != table.get(block as usize).copied();
            let good = || {
                let bytes = data.get(i * BLOCK_SIZE..(i + 1) * BLOCK_SIZE);
                bytes.is_some_and(|bytes| table.get(block as usize) == Some(&crc32c(bytes)))
            };
            if !skip && !good() {
                bad.push(block);
            }
        }
        add(&self.metrics.crc_errors, bad.len() as u64);
        Ok(bad)
    }
}
