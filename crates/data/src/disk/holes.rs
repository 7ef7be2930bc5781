//! [`Holes`]: space that goes back to the file system, by a thread that nothing else waits for.
//!
//! Punching a hole can take long: a file system that discards at once waits for the device, milliseconds for each hole,
//! thousands of them after many small files were removed. So the thread that writes home, and makes room in the
//! journal, only notes what is free; holes that touch are punched as one.
//!
//! Invariants: a hole is punched only after the bits that free it are durable, and never in the file of a later chunk
//! of the same name. What is noted here is not durable: a start compares what a file takes with what it holds, and
//! notes the holes again ([`DiskStore::note_holes_of`]).

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use cairn_env::DiskError;
use cairn_format::crc_table::{PunchedBits, blocks_of};
use cairn_types::{BLOCK_SIZE, CHUNK_BLOCKS_MAX, ChunkId};
use parking_lot::Mutex;

use super::DiskStore;
use super::chunk::Chunk;
use super::files::ChunkFiles;
use super::queue::WorkQueue;

/// Longest hole punched at once, in blocks: writes to the same file wait for it.
const PIECE_BLOCKS: u32 = 4096;
/// Removed files that wait for their space to be given back; more are given back by whoever removes them.
const REMOVED_MAX: usize = 64;
/// What a file may take beyond its header, tables and blocks before its holes are punched again at a start.
const SLACK_BYTES: u64 = 64 << 10;

/// What waits to be given back.
#[derive(Default)]
pub(crate) struct Holes {
    state: Mutex<State>,
    /// Wakes the thread.
    pub(super) bell: WorkQueue<()>,
    /// Bytes of holes that wait.
    bytes: AtomicU64,
}

#[derive(Default)]
struct State {
    /// At most one set of bits a chunk, so the memory is bounded by the number of chunks.
    chunks: BTreeMap<ChunkId, (Arc<Chunk>, PunchedBits)>,
    /// Files without a name: their space goes back when the last handle is closed.
    removed: VecDeque<Arc<ChunkFiles>>,
    /// The chunk that was served last, so that each gets its turn.
    last: Option<ChunkId>,
}

enum Work {
    Close(Arc<ChunkFiles>),
    Punch(Arc<Chunk>, PunchedBits),
}

impl Holes {
    /// Notes holes of a chunk.
    pub(super) fn note(&self, chunk: &Arc<Chunk>, blocks: impl IntoIterator<Item = Range<u32>>) {
        let mut state = self.state.lock();
        let (_, bits) = state.chunks.entry(chunk.id).or_insert_with(|| (chunk.clone(), PunchedBits::default()));
        let new: u32 = blocks.into_iter().map(|range| bits.set(range)).sum();
        drop(state);
        self.bytes.fetch_add(bytes_of(new), Relaxed);
        self.bell.poke();
    }

    /// Forgets the holes of a chunk whose file is being removed.
    pub(super) fn forget(&self, id: ChunkId) {
        if let Some((_, bits)) = self.state.lock().chunks.remove(&id) {
            self.bytes.fetch_sub(bytes_of(bits.count()), Relaxed);
        }
    }

    /// Takes over the last handles of a file that has no name any more.
    pub(super) fn close_later(&self, files: Arc<ChunkFiles>) {
        let mut state = self.state.lock();
        if state.removed.len() < REMOVED_MAX {
            state.removed.push_back(files);
            drop(state);
            self.bell.poke();
        }
    }

    /// Bytes of holes that wait.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// All that waits, as a thread that was stopped in the middle of its work would have it.
    #[cfg(test)]
    pub(super) fn take_all(&self) -> Vec<(Arc<Chunk>, PunchedBits)> {
        std::mem::take(&mut self.state.lock().chunks).into_values().collect()
    }

    #[cfg(test)]
    pub(super) fn put_back(&self, all: Vec<(Arc<Chunk>, PunchedBits)>) {
        self.state.lock().chunks.extend(all.into_iter().map(|(chunk, bits)| (chunk.id, (chunk, bits))));
    }

    fn next(&self) -> Option<Work> {
        let mut state = self.state.lock();
        if let Some(files) = state.removed.pop_front() {
            return Some(Work::Close(files));
        }
        let after = state.last.and_then(|last| state.chunks.range(last..).map(|(id, _)| *id).find(|id| *id > last));
        let id = after.or_else(|| state.chunks.keys().next().copied())?;
        state.last = Some(id);
        let (chunk, bits) = state.chunks.remove(&id)?;
        Some(Work::Punch(chunk, bits))
    }
}

impl DiskStore {
    /// Gives the space of one removed file, or the holes of one chunk, back. `false` when nothing waits.
    pub(super) fn step_free(&self) -> bool {
        if self.failure().is_some() {
            return false;
        }
        match self.holes.next() {
            None => false,
            Some(Work::Close(files)) => {
                drop(files);
                true
            }
            Some(Work::Punch(chunk, bits)) => {
                if let Err(error) = self.punch_holes(&chunk, &bits) {
                    self.fail(&error);
                }
                self.holes.bytes.fetch_sub(bytes_of(bits.count()), Relaxed);
                true
            }
        }
    }

    fn punch_holes(&self, chunk: &Arc<Chunk>, bits: &PunchedBits) -> Result<(), DiskError> {
        let files = match self.files.get(chunk.id) {
            Ok(files) => files,
            Err(DiskError::NotFound { .. }) => return Ok(()),
            Err(error) => return Err(error),
        };
        // The handles first: if they are those of a later chunk of this name, that one is in the list by now.
        if !self.chunks.read().get(&chunk.id).is_some_and(|now| Arc::ptr_eq(now, chunk)) {
            return Ok(());
        }
        for run in runs_of(bits) {
            let (from, to) = (chunk.place_of(run.start), chunk.place_of(run.end));
            files.cached.punch_hole(from, to - from)?;
            if self.stopping.load(Relaxed) {
                break;
            }
        }
        Ok(())
    }

    /// After a start: notes the holes of chunks whose files take more than what they hold.
    pub(super) fn note_holes_of(&self, chunk: &Arc<Chunk>) {
        let state = chunk.state.lock();
        let Some(bits) = state.punched.as_deref().filter(|_| state.file_made) else { return };
        let blocks = blocks_of(state.written);
        let live = blocks.saturating_sub(state.punched_blocks);
        let expected = chunk.place_of(0) + bytes_of(live) + SLACK_BYTES;
        let held = self.files.get(chunk.id).and_then(|files| files.cached.allocated_bytes());
        // What cannot be asked now is compared at the next start.
        if held.is_ok_and(|held| held > expected) {
            self.holes.note(chunk, runs_of(bits).filter(|run| run.start < blocks));
        }
    }
}

/// Runs of set bits in pieces that are punched at once.
fn runs_of(bits: &PunchedBits) -> impl Iterator<Item = Range<u32>> + '_ {
    let mut at = 0;
    std::iter::from_fn(move || {
        let first = (at..CHUNK_BLOCKS_MAX as u32).find(|block| bits.get(*block))?;
        let end = CHUNK_BLOCKS_MAX as u32;
        let last = end.min(first + PIECE_BLOCKS);
        at = (first..last).find(|block| !bits.get(*block)).unwrap_or(last);
        Some(first..at)
    })
}

fn bytes_of(blocks: u32) -> u64 {
    u64::from(blocks) * BLOCK_SIZE as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks beside a hole would be lost, or space would never go back.
    #[test]
    fn runs_are_the_set_bits_in_pieces() {
        let mut bits = PunchedBits::default();
        assert_eq!(runs_of(&bits).next(), None);
        bits.set(0..2);
        bits.set(5..5 + PIECE_BLOCKS + 1);
        bits.set(CHUNK_BLOCKS_MAX as u32 - 1..CHUNK_BLOCKS_MAX as u32);
        let expected = [
            0..2,
            5..5 + PIECE_BLOCKS,
            5 + PIECE_BLOCKS..6 + PIECE_BLOCKS,
            CHUNK_BLOCKS_MAX as u32 - 1..CHUNK_BLOCKS_MAX as u32,
        ];
        assert_eq!(runs_of(&bits).collect::<Vec<_>>(), expected);
    }
}
