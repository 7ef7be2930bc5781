//! Frees: blocks that no extent names any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cairn_chunk_core::fence;
use cairn_rpc::{Reply, Request};
use cairn_types::{CHUNK_SIZE_MAX, ChunkId, DiskId, ErrorCode, MemberState, PgId};
use cairn_wire::data::{FreeItem, FreeRequest, FreeResponse};
use parking_lot::Mutex;

use super::member::bad_request;
use super::{Inner, Refused};
use crate::disk::{DataError, DiskStore};

/// Items of one request.
const ITEMS_MAX: usize = 4096;

/// Answers a request when its last item is done.
struct FreeJoin {
    codes: Mutex<Vec<u32>>,
    left: AtomicUsize,
    reply: Mutex<Option<Reply>>,
}

impl FreeJoin {
    fn done(&self, item: usize, code: u32) {
        self.codes.lock()[item] = code;
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1
            && let Some(reply) = self.reply.lock().take()
        {
            let codes = std::mem::take(&mut *self.codes.lock());
            reply.ok(&FreeResponse { codes }, ());
        }
    }
}

impl Inner {
    pub(super) fn free(self: &Arc<Self>, request: &Request<'_>, reply: Reply) -> Result<(), Refused> {
        let asked: FreeRequest = match request.decode() {
            Ok(asked) => asked,
            Err(error) => return Err((reply, error)),
        };
        if asked.items.len() > ITEMS_MAX {
            return Err((reply, bad_request(format!("a request frees at most {ITEMS_MAX} items"))));
        }
        // One more than the items, so that nothing is answered before all are begun.
        let join = Arc::new(FreeJoin {
            codes: Mutex::new(vec![0; asked.items.len()]),
            left: AtomicUsize::new(asked.items.len() + 1),
            reply: Mutex::new(Some(reply)),
        });
        for (number, item) in asked.items.into_iter().enumerate() {
            self.free_item(number, item, &join);
        }
        if join.left.fetch_sub(1, Ordering::AcqRel) == 1
            && let Some(reply) = join.reply.lock().take()
        {
            let codes = std::mem::take(&mut *join.codes.lock());
            reply.ok(&FreeResponse { codes }, ());
        }
        Ok(())
    }

    /// Whether a chunk that is not here is nowhere to come from: this member serves, or is none any more.
    fn knows_all(&self, disk: DiskId, store: &DiskStore, pg: PgId) -> bool {
        let Some(record) = store.pg_files().get(pg) else { return false };
        match fence::state_of(&record, disk) {
            Ok(state) => state == MemberState::Serving,
            Err(_) => true,
        }
    }

    /// Whether a part of the ranges is yet to be rebuilt here: a shard of a member that catches up.
    fn will_grow(&self, disk: DiskId, store: &DiskStore, id: ChunkId, ranges: &[(u64, u64)]) -> bool {
        let Some(record) = store.pg_files().get(id.pg).filter(|record| !record.scheme.is_replicated()) else {
            return false;
        };
        let length = store.info(id).map_or(0, |info| info.length);
        let beyond = ranges.iter().any(|(offset, bytes)| offset.saturating_add(*bytes) > length);
        beyond && fence::state_of(&record, disk).is_ok_and(|state| state != MemberState::Serving)
    }

    fn free_item(self: &Arc<Self>, number: usize, item: FreeItem, join: &Arc<FreeJoin>) {
        let (disk, pg) = (DiskId(item.disk), PgId(item.pg));
        let store = match self.disk_store(disk) {
            Ok(store) => store,
            Err(error) => return join.done(number, u32::from(error.code.code())),
        };
        let id = ChunkId { pg, index: item.index };
        // What is copied or rebuilt at this moment may not be here whole, so the free has to come again.
        if self.is_being_brought(disk, id) || store.info(id).is_none() && !self.knows_all(disk, &store, pg) {
            // Or it may yet be copied here from a primary that has not freed it.
            return join.done(number, u32::from(ErrorCode::Unavailable.code()));
        }
        let ranges: Vec<(u64, u64)> = item.ranges.iter().map(|range| (range.offset, range.length)).collect();
        let short = self.will_grow(disk, &store, id, &ranges);
        let (join_done, inner, kept) = (join.clone(), self.clone(), store.clone());
        // One that was lost here, and of which others keep a part, was not deleted.
        let whole = ranges.iter().any(|(offset, bytes)| *offset == 0 && *bytes >= CHUNK_SIZE_MAX);
        let ends_here = whole || store.info(id).is_some();
        let done: crate::disk::Done<()> = Box::new(move |outcome| {
            let done = if short { u32::from(ErrorCode::Unavailable.code()) } else { 0 };
            let code = outcome.map_or_else(|error| refusal(&error), |()| done);
            if ends_here && kept.info(id).is_none() {
                inner.runtime(disk, pg).state.lock().note_deleted(id.index);
            }
            join_done.done(number, code);
        });
        if self.missing.lock().freed((disk, id)) {
            let lost = id;
            // Nobody has it, and a file that named it is gone: whatever else named it is for the check of the volume to
            // say.
            if let Err(error) = store.control(move |store| store.forget_lost(lost)) {
                tracing::debug!(%disk, chunk = %id, %error, "the next start looks for the chunk once more");
            }
        }
        if let Err(error) = store.punch(id, ranges, done) {
            // Deleted meanwhile: there is nothing left to free.
            let code = match error.code() {
                ErrorCode::ChunkDeleted => 0,
                _ => refusal(&error),
            };
            join.done(number, code);
        }
    }
}

/// What is answered to a free that failed. To readers, what the device cannot read is missing, and that would say that
/// nothing is left to free.
fn refusal(error: &DataError) -> u32 {
    let code = match error {
        DataError::Unreadable { .. } => ErrorCode::Unavailable,
        error => error.code(),
    };
    u32::from(code.code())
}
