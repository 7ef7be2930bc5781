//! What breaks on a disk: power, memory of what it had synced, bits, single reads and writes.

use std::collections::BTreeMap;

use cairn_chunk_core::overwrite::Follow;
use cairn_format::crc_table::blocks_of;
use cairn_format::overwrite_number::OverwriteNumber;
use cairn_replica_core::disk::DiskOp;
use cairn_replica_core::message::Refused;
use cairn_types::{BLOCK_SIZE, Epoch, ErrorCode};

use super::{Commit, SimChunk, SimDisk, apply, no, touched_by};
use crate::chance::Chance;
use crate::words::{Bytes, crc, cut};

/// The number of a chunk of which it is not certain that all overwrites are there: lower than any.
pub const DOUBTED: OverwriteNumber = OverwriteNumber { epoch: Epoch(0), count: 1 };

impl SimDisk {
    /// Whether the device does an operation. What it cannot read is missing to who asks for it; a write that fails is
    /// the last one.
    pub(super) fn fails(&mut self, op: &DiskOp<Bytes>) -> Result<(), Refused> {
        let writes = touched_by(op).is_some() || matches!(op, DiskOp::Save(_));
        if writes && let Some(left) = self.write_fails_in.as_mut() {
            self.failed |= *left == 0;
            *left = left.saturating_sub(1);
        }
        if self.failed {
            return no(ErrorCode::DiskFailed);
        }
        if self.read_failures > 0 && matches!(op, DiskOp::Read { .. }) {
            self.reads += 1;
            let number = self.reads.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
            if number % 1000 < self.read_failures {
                return no(ErrorCode::Missing);
            }
        }
        Ok(())
    }

    /// Reads or writes fail, or are about to.
    pub fn breaks(&self) -> bool {
        self.failed || self.write_fails_in.is_some() || self.read_failures > 0
    }

    /// Power is lost: what was not durable is there or not.
    pub fn crash(&mut self, chance: &mut Chance) {
        let pending = std::mem::take(&mut self.pending);
        let mut kept: BTreeMap<Option<u32>, bool> = BTreeMap::new();
        for (_, commit) in pending {
            let of = if let Commit::Chunk(index, _) = &commit { Some(*index) } else { None };
            // Of what was accepted for a chunk a beginning.
            let still = kept.entry(of).or_insert(true);
            *still &= chance.per_mille(600);
            if *still {
                apply(&mut self.durable, commit);
            }
        }
        self.durable.chunks.retain(|_, chunk| {
            if chunk.durable < chunk.length {
                let end = chance.one(&chunk.ends()).unwrap_or(chunk.durable);
                end_at(chunk, end);
            }
            // Tables that were half written home look as if overwrites had been forgotten.
            if chunk.follow.last.is_some() && chance.per_mille(30) {
                chunk.follow.last = DOUBTED;
            }
            chunk.length > 0 || chance.per_mille(500)
        });
        self.restart();
    }

    /// Power is lost when all that was accepted is done. `end`: where a chunk ends after that, one of
    /// [`SimChunk::ends`]; `None`: nothing is left of it.
    pub fn crash_at(&mut self, mut end: impl FnMut(u32, &SimChunk) -> Option<u64>) {
        assert!(self.pending.is_empty(), "something was not done");
        self.durable.chunks.retain(|index, chunk| match end(*index, chunk) {
            Some(end) => {
                end_at(chunk, end);
                true
            }
            None => false,
        });
        self.restart();
    }

    fn restart(&mut self) {
        (self.failed, self.write_fails_in) = (false, None);
        for chunk in self.durable.chunks.values_mut() {
            chunk.follow = Follow { last: chunk.follow.last, ..Follow::default() };
            chunk.touched.clear();
        }
        self.now = self.durable.clone();
    }

    /// What is durable at this moment is what it may go back to.
    pub fn remember(&mut self) {
        self.older = Some(self.durable.clone());
    }

    /// Chunks come back as they were some time ago, each by itself; whether any did.
    pub fn forget(&mut self, chance: &mut Chance) -> bool {
        let Some(older) = self.older.take() else { return false };
        let mut forgot = false;
        let all: Vec<u32> = self.durable.chunks.keys().chain(older.chunks.keys()).copied().collect();
        for index in all {
            if chance.per_mille(500) && self.durable.chunks.get(&index) != older.chunks.get(&index) {
                self.durable.chunks.remove(&index);
                apply(&mut self.durable, Commit::Chunk(index, older.chunks.get(&index).cloned().map(Box::new)));
                forgot = true;
            }
        }
        self.restart();
        forgot
    }

    /// Whether a block does not match its checksum.
    pub fn has_bad_block(&self) -> bool {
        self.now.chunks.values().any(|chunk| {
            let bad = |at: usize| !chunk.is_freed(at as u32) && crc(&chunk.blocks[at]) != chunk.crcs[at];
            (0..chunk.blocks.len()).any(bad)
        })
    }

    /// A bit of a block flips.
    pub fn flip(&mut self, index: u32, block: u32) -> bool {
        let mut flipped = false;
        for image in [&mut self.now, &mut self.durable] {
            let Some(chunk) = image.chunks.get_mut(&index) else { continue };
            let Some(bytes) = chunk.blocks.get_mut(block as usize) else { continue };
            bytes[1] ^= 1 << (block % 31);
            flipped = true;
        }
        flipped
    }
}

/// Cuts bytes that no sync covers.
fn end_at(chunk: &mut SimChunk, end: u64) {
    chunk.length = end;
    let blocks = blocks_of(end) as usize;
    chunk.blocks.truncate(blocks);
    chunk.crcs.truncate(blocks);
    chunk.freed &= (1u64 << blocks) - 1;
    let tail = end % BLOCK_SIZE as u64;
    if let (Some(last), Some(sum)) = (chunk.blocks.last_mut(), chunk.crcs.last_mut())
        && tail > 0
        && crc(last) == *sum
    {
        *last = cut(last, tail);
        *sum = crc(last);
    }
    // What is found is made durable.
    chunk.durable = end;
}
