//! Syncs: the file of a chunk with bulk bytes, then a journal record with their CRCs and the new promise; for chunks
//! whose bytes all went through the journal only a wait for it. Seals are syncs whose record says sealed.
//!
//! Invariant: the record is submitted only after the file's sync succeeded.

use std::collections::BTreeMap;
use std::sync::Arc;

use cairn_env::DiskError;
use cairn_format::crc_table::blocks_of;
use cairn_types::{BLOCK_SIZE, ChunkId};

use super::chunk::{Chunk, Done};
use super::journal::Item;
use super::metrics::add;
use super::{DataError, DiskStore, paths};

/// Requests that one round of the sync thread takes together.
const ROUND: usize = 256;

pub(super) struct SyncRequest {
    chunk: Arc<Chunk>,
    seal: bool,
    done: Done<u64>,
}

/// Requests for the same chunk.
struct Group {
    chunk: Arc<Chunk>,
    seal: bool,
    waiters: Vec<Done<u64>>,
}

impl DiskStore {
    /// Hands a chunk to the sync thread; everything written so far will be durable when `done` is called.
    pub(super) fn request_sync(&self, chunk: &Arc<Chunk>, seal: bool, done: Done<u64>) {
        let request = SyncRequest { chunk: chunk.clone(), seal, done };
        if let Err(request) = self.syncs.push(request) {
            (request.done)(Err(DataError::Stopping { disk: self.name().into() }));
        }
    }

    /// Carries out all syncs that wait. `false` when there are none.
    pub(super) fn step_sync(&self) -> bool {
        let requests = self.syncs.take(ROUND);
        if requests.is_empty() {
            return false;
        }
        let mut groups: BTreeMap<ChunkId, Group> = BTreeMap::new();
        for request in requests {
            let group = groups.entry(request.chunk.id).or_insert_with(|| Group {
                chunk: request.chunk.clone(),
                seal: false,
                waiters: Vec::new(),
            });
            group.seal |= request.seal;
            group.waiters.push(request.done);
        }
        for group in groups.into_values() {
            self.sync_chunk(group);
        }
        true
    }

    fn sync_chunk(&self, group: Group) {
        let Group { chunk, seal, waiters } = group;
        let outcome = self.check().and_then(|()| self.load_tables(&chunk)).and_then(|()| self.sync_file(&chunk, seal));
        let from = match outcome {
            Ok(from) => from,
            Err(error) => {
                waiters.into_iter().for_each(|done| done(Err(error.clone())));
                return;
            }
        };
        let mut state = chunk.state.lock();
        state.durability.end_sync();
        let newly_sealed = seal && !state.seal_journaled;
        state.seal_journaled |= seal;
        if from.is_none() && !newly_sealed {
            // Everything of it is in the journal's queue already, or durable.
            let durable = state.durability.promise(state.written);
            drop(state);
            let item = Item::barrier(Box::new(move |outcome| {
                waiters.into_iter().for_each(|done| done(outcome.clone().map(|()| durable)));
            }));
            self.reject(self.journal.queue.push(item).err());
            return;
        }
        let promise = state.durability.promise(state.written);
        let first = from.map_or(0, |from| (from / BLOCK_SIZE as u64) as u32).min(blocks_of(promise));
        let blocks = if from.is_some() { first..blocks_of(promise) } else { 0..0 };
        let done: Done<()> = Box::new(move |outcome| {
            waiters.into_iter().for_each(|done| done(outcome.clone().map(|()| promise)));
        });
        let (_, rejected) = self.journal_blocks(&chunk, &mut state, blocks, None, Some(done));
        let dead = newly_sealed && self.delete_if_dead(&chunk, &mut state);
        drop(state);
        self.reject(rejected);
        if dead {
            tracing::debug!(chunk = %chunk.id, "sealed with nothing left in it");
        }
    }

    /// Syncs the chunk's file if bulk bytes wait for it; a seal gives the reserved space behind the end back. Returns
    /// from which byte on the sync covers.
    fn sync_file(&self, chunk: &Arc<Chunk>, seal: bool) -> Result<Option<u64>, DataError> {
        let (from, made) = {
            let mut state = chunk.state.lock();
            (state.durability.begin_sync(), state.file_made)
        };
        if !made || (from.is_none() && !seal) {
            return Ok(from);
        }
        let started = self.context.clock.now();
        let synced = self.try_sync_file(chunk, from.is_some(), seal);
        let took = self.context.clock.now().since(started).as_nanos();
        self.latency(started);
        add(&self.metrics.syncs, 1);
        add(&self.metrics.sync_ns, u64::try_from(took).unwrap_or(u64::MAX));
        // Any failure here is final for the disk: what the device dropped cannot be told.
        synced.map(|()| from).map_err(|error| self.fail(&error))
    }

    fn try_sync_file(&self, chunk: &Arc<Chunk>, dirty: bool, seal: bool) -> Result<(), DiskError> {
        let files = self.files.get(chunk.id)?;
        if seal {
            // A repair appends to sealed chunks: what it writes between the two calls would be cut off.
            let _sizing = chunk.sizing.lock();
            let accepted = chunk.state.lock().accepted;
            // Same size or the size that blocks still on their way will give it: only the reservation behind them goes.
            let size = chunk.place_of(blocks_of(accepted));
            let length = files.cached.len()?;
            if length < size {
                files.cached.set_len(size)?;
            }
            // File systems give back what is reserved behind the end when a file is cut, not when it grows.
            files.cached.set_len(size.max(length))?;
            let mut state = chunk.state.lock();
            state.allocated = state.allocated.min(accepted.next_multiple_of(BLOCK_SIZE as u64));
        }
        if !dirty {
            return Ok(());
        }
        files.direct()?.sync_data()?;
        // Locks are not held over the sync; a second sync of the directory does no harm.
        let named = chunk.state.lock().named;
        if !named {
            self.context.disk.sync_dir(&paths::pg_dir(chunk.id.pg))?;
            chunk.state.lock().named = true;
        }
        Ok(())
    }
}
