//! Frees: blocks that no extent names any more, as metadata servers say that have a partition of the volume.
//!
//! Data servers free only what they level: a part of a chunk that was made in an earlier epoch, as the primary of its
//! group. So a key without the role meta erases no volume, and one with it none of others. Without keys nobody knows
//! who asks.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cairn_chunk_core::fence;
use cairn_format::pg_state::PgStateRecord;
use cairn_rpc::{PeerInfo, Reply, Request};
use cairn_types::{CHUNK_SIZE_MAX, ChunkId, DiskId, Epoch, ErrorCode, MemberState, NodeId, PgId};
use cairn_wire::audience::Roles;
use cairn_wire::common::ChunkRange;
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
        let has_meta = request.peer.must_have(Roles::META, "a free").is_ok();
        // One more than the items, so that nothing is answered before all are begun.
        let join = Arc::new(FreeJoin {
            codes: Mutex::new(vec![0; asked.items.len()]),
            left: AtomicUsize::new(asked.items.len() + 1),
            reply: Mutex::new(Some(reply)),
        });
        for (number, item) in asked.items.into_iter().enumerate() {
            match self.is_of_volume(request.peer, &item) || self.may_level(request.peer, &item) {
                true => self.free_item(number, item, &join),
                // It may have a partition since a moment ago.
                false if has_meta => join.done(number, u32::from(ErrorCode::Unavailable.code())),
                false => join.done(number, u32::from(ErrorCode::NotPermitted.code())),
            }
        }
        if join.left.fetch_sub(1, Ordering::AcqRel) == 1
            && let Some(reply) = join.reply.lock().take()
        {
            let codes = std::mem::take(&mut *join.codes.lock());
            reply.ok(&FreeResponse { codes }, ());
        }
        Ok(())
    }

    /// Whether a metadata server frees what is of a volume of which it has a partition, or what is not here anyway.
    fn is_of_volume(&self, peer: &PeerInfo, item: &FreeItem) -> bool {
        let record = self.disk_store(DiskId(item.disk)).ok().and_then(|store| store.pg_files().get(PgId(item.pg)));
        let judged = match record {
            Some(record) => peer.must_serve(record.volume),
            None => peer.must_have(Roles::META, "a free"),
        };
        judged.is_ok()
    }

    fn may_level(&self, peer: &PeerInfo, item: &FreeItem) -> bool {
        let id = ChunkId { pg: PgId(item.pg), index: item.index };
        let Ok(store) = self.disk_store(DiskId(item.disk)) else { return false };
        let (Some(record), Some(chunk)) = (store.pg_files().get(id.pg), store.info(id)) else { return false };
        // A member is levelled before it seals.
        !chunk.sealed && levels(&record, chunk.creation_epoch, &item.ranges, |node| peer.may_speak_for(node).is_ok())
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

/// Whether a free can be one of the primary that ends a chunk of an earlier epoch alike on all members.
fn levels(record: &PgStateRecord, made: Epoch, ranges: &[ChunkRange], speaks_for: impl FnOnce(NodeId) -> bool) -> bool {
    let primary = fence::primary(record);
    let node = record.members.iter().find(|member| Some(member.disk) == primary).map(|member| member.node);
    let parts = ranges.iter().all(|range| range.offset != 0 || range.length < CHUNK_SIZE_MAX);
    made < record.epoch && parts && node.is_some_and(speaks_for)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::senders::tests::record;
    use cairn_types::MemberState::Serving;

    /// A data server's key would erase all copies of any file; or a chunk of an earlier epoch stay unequal for ever.
    #[test]
    fn a_data_server_frees_what_it_levels_and_nothing_else() {
        let record = record(&[Serving; 3]);
        let range = |offset, length| [ChunkRange { offset, length }];
        let judge = |made, ranges: &[ChunkRange], node| levels(&record, Epoch(made), ranges, |of| of == NodeId(node));
        assert!(judge(4, &range(4096, 8192), 21), "the primary's");
        assert!(!judge(4, &range(4096, 8192), 22), "another member's");
        assert!(!judge(5, &range(4096, 8192), 21), "of the present epoch");
        assert!(!judge(4, &range(0, CHUNK_SIZE_MAX), 21), "all of it");
    }
}
