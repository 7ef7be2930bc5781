//! Frees: PUNCHED bits go to the journal; when they are durable the hole is punched ([`super::holes`]); a sealed chunk
//! of which nothing is left is deleted.
//!
//! Invariant: no byte goes before the record that frees it is durable.

use std::ops::Range;
use std::sync::Arc;

use cairn_chunk_core::punch::{freed_blocks, is_dead};
use cairn_format::crc_table::{PUNCHED_SECTOR_BLOCKS, blocks_of};
use cairn_format::journal_record::JournalRecord;

use super::chunk::{Chunk, ChunkMem, Done};
use super::journal::{Effect, Item};
use super::metrics::add;
use super::{DataError, DiskStore};

const SECTOR: usize = 512;

impl DiskStore {
    /// Marks the blocks and journals it; reads refuse them from now on.
    pub(super) fn run_punch(&self, chunk: &Arc<Chunk>, ranges: &[(u64, u64)], done: Done<()>) {
        let mut state = match self.check().and_then(|()| self.with_tables(chunk)) {
            Ok(state) => state,
            Err(error) => return self.punch_unread(chunk, ranges, error, done),
        };
        if state.deleted {
            drop(state);
            done(Ok(()));
            return;
        }
        let written = state.written;
        let mut bits = state.punched.clone().unwrap_or_default();
        let mut blocks: Vec<Range<u32>> = ranges.iter().map(|&(at, len)| freed_blocks(written, at, len)).collect();
        blocks.retain(|range| !range.is_empty());
        let new: u32 = blocks.iter().map(|range| bits.set(range.clone())).sum();
        let rejected = if new == 0 {
            // It was done before; answered behind the record that did it.
            self.journal.queue.push(Item::barrier(done)).err().into_iter().collect()
        } else {
            state.punched_blocks += new;
            state.punched = Some(bits);
            add(&self.metrics.punched_blocks, u64::from(new));
            self.journal_punch(chunk, &mut state, blocks, done)
        };
        self.delete_if_dead(chunk, &mut state);
        drop(state);
        rejected.into_iter().for_each(|item| self.reject(Some(item)));
    }

    /// A chunk whose tables cannot be read is deleted if it takes nothing more and all of it is freed at once: that
    /// takes no marks.
    fn punch_unread(&self, chunk: &Arc<Chunk>, ranges: &[(u64, u64)], error: DataError, done: Done<()>) {
        let mut state = chunk.state.lock();
        let all = 0..blocks_of(state.written);
        let whole = ranges.iter().any(|&(at, len)| freed_blocks(state.written, at, len) == all);
        let ends = state.seal_journaled && state.accepted == state.written && !state.deleted;
        if !matches!(error, DataError::Unreadable { .. }) || !whole || !ends {
            drop(state);
            return done(Err(error));
        }
        state.deleted = true;
        self.journal_delete(chunk);
        drop(state);
        // Answered behind the record that deletes it.
        self.reject(self.journal.queue.push(Item::barrier(done)).err());
    }

    fn journal_punch(
        &self,
        chunk: &Arc<Chunk>,
        state: &mut ChunkMem,
        blocks: Vec<Range<u32>>,
        done: Done<()>,
    ) -> Vec<Item> {
        // Length and seal go along: a state sector that tears at home can be written from the journal alone.
        let (_, rejected) = self.journal_blocks(chunk, state, 0..0, None, None);
        let first = blocks.iter().map(|range| range.start).min().unwrap_or(0) / PUNCHED_SECTOR_BLOCKS;
        let last = blocks.iter().map(|range| range.end - 1).max().unwrap_or(0) / PUNCHED_SECTOR_BLOCKS;
        let bits = state.punched.as_ref().expect("set by the caller").bytes();
        let bits = bits[first as usize * SECTOR..(last as usize + 1) * SECTOR].to_vec();
        let record = JournalRecord::Punch { chunk: chunk.id, first_sector: first, bits: &bits };
        let effect = Effect::Punch { chunk: chunk.clone(), blocks, first_sector: first, bits: bits.clone() };
        let item = Item::new(&record, effect, Some(done));
        state.pending += 1;
        rejected.into_iter().chain(self.journal.queue.push(item).err()).collect()
    }

    /// Journals the end of a sealed chunk of which nothing is left. Called with the chunk's lock held.
    pub(super) fn delete_if_dead(&self, chunk: &Arc<Chunk>, state: &mut ChunkMem) -> bool {
        let dead = !state.deleted
            && state.accepted == state.written
            && is_dead(state.seal_journaled, state.written, state.punched_blocks);
        if dead {
            state.deleted = true;
            self.journal_delete(chunk);
        }
        dead
    }

    fn journal_delete(&self, chunk: &Arc<Chunk>) {
        let record = JournalRecord::Delete { chunk: chunk.id };
        let item = Item::new(&record, Effect::Delete(chunk.clone()), None);
        if self.journal.queue.push(item).is_err() {
            tracing::debug!(chunk = %chunk.id, "left to be deleted after the next start");
        }
    }
}
