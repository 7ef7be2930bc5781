//! Which blocks of a chunk hold bytes: what was written and not freed, and what its file takes. For lists from which
//! metadata finds out what no file names, and which chunks are mostly dead space; nothing is decided here.

use std::sync::Arc;

use cairn_format::crc_table::PunchedBits;

use super::chunk::Chunk;
use super::metrics::add;
use super::tables_at_home::punched;
use super::{DataError, DiskStore};

impl DiskStore {
    /// Runs of blocks that were written and not freed, as first block and number. Reads the chunk's PUNCHED bits if
    /// they are only at home, so it is for the control thread.
    pub fn used_blocks(&self, chunk: &Arc<Chunk>) -> Result<Vec<(u32, u32)>, DataError> {
        let state = chunk.state.lock();
        let blocks = state.blocks();
        if state.punched_blocks == 0 {
            return Ok(if blocks == 0 { Vec::new() } else { vec![(0, blocks)] });
        }
        if let Some(bits) = &state.punched {
            return Ok(runs(bits, blocks));
        }
        let read = self.files.get(chunk.id).and_then(|files| punched(&files, state.sums()));
        match read {
            Ok(bits) => Ok(runs(&bits, blocks)),
            Err(error) => {
                add(&self.metrics.io_errors, 1);
                Err(DataError::Unreadable { chunk: chunk.id, why: error.to_string() })
            }
        }
    }

    /// What the chunk's file takes of the device, tables and what holes did not give back included. `None`: it cannot
    /// be told at this moment.
    pub fn held_bytes(&self, chunk: &Arc<Chunk>) -> Option<u64> {
        self.files.get(chunk.id).and_then(|files| files.cached.allocated_bytes()).ok()
    }
}

/// Runs of blocks below `blocks` whose bits are not set.
fn runs(punched: &PunchedBits, blocks: u32) -> Vec<(u32, u32)> {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for block in (0..blocks).filter(|block| !punched.get(*block)) {
        match runs.last_mut() {
            Some((first, count)) if *first + *count == block => *count += 1,
            _ => runs.push((block, 1)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks in use would be listed as freed, or the other way round, and metadata would free them again for ever.
    #[test]
    fn runs_are_what_is_written_and_not_freed() {
        let mut bits = PunchedBits::default();
        assert_eq!(runs(&bits, 0), []);
        assert_eq!(runs(&bits, 5), [(0, 5)]);
        bits.set(0..2);
        bits.set(7..8);
        bits.set(9..20);
        assert_eq!(runs(&bits, 12), [(2, 5), (8, 1)]);
        assert_eq!(runs(&bits, 7), [(2, 5)]);
        assert_eq!(runs(&bits, 2), []);
    }
}
