//! Frees: blocks that no extent names any more, as metadata servers say that have a partition of the volume.
//!
//! Data servers free only what they level: a part of a chunk that was made in an earlier epoch, as the primary of its
//! group. So a key without the role meta erases no volume, and one with it none of others. Without keys nobody knows
//! who asks.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cairn_chunk_core::fence;
use cairn_format::crc_table::blocks_of;
use cairn_format::pg_state::PgStateRecord;
use cairn_replica_core::role::{Right, Role};
use cairn_rpc::{PeerInfo, Reply, Request};
use cairn_types::{BLOCK_SIZE, CHUNK_SIZE_MAX, ChunkId, DiskId, Epoch, ErrorCode, NodeId, PgId};
use cairn_wire::audience::Roles;
use cairn_wire::common::ChunkRange;
use cairn_wire::data::{FreeItem, FreeRequest, FreeResponse};
use parking_lot::Mutex;

use super::member::{PgRuntime, bad_request};
use super::{Inner, Refused};
use crate::disk::{ChunkInfo, DataError};

/// Items of one request.
const ITEMS_MAX: usize = 4096;

/// Answers a request when its last item is done.
struct FreeJoin {
    codes: Mutex<Vec<u32>>,
    left: AtomicUsize,
    reply: Mutex<Option<Reply>>,
}

/// Keeps a chunk that is freed from being brought at the same moment, as long as it lives.
struct Freeing {
    runtime: Arc<PgRuntime>,
    index: u32,
}

impl Freeing {
    fn begin(runtime: Arc<PgRuntime>, index: u32) -> Self {
        runtime.state.lock().begin_free(index);
        Self { runtime, index }
    }

    /// It is gone, and all of it was freed up to `length`.
    fn note_deleted(&self, length: u64) {
        self.runtime.state.lock().note_deleted(self.index, length);
    }
}

impl Drop for Freeing {
    fn drop(&mut self) {
        self.runtime.state.lock().end_free(self.index);
    }
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

    fn free_item(self: &Arc<Self>, number: usize, item: FreeItem, join: &Arc<FreeJoin>) {
        let (disk, pg) = (DiskId(item.disk), PgId(item.pg));
        let store = match self.disk_store(disk) {
            Ok(store) => store,
            Err(error) => return join.done(number, u32::from(error.code.code())),
        };
        let id = ChunkId { pg, index: item.index };
        let record = store.pg_files().get(pg);
        if record.is_none() && store.info(id).is_none() {
            return join.done(number, u32::from(ErrorCode::Unavailable.code()));
        }
        // From here on nobody begins to bring it.
        let freeing = Freeing::begin(self.runtime(disk, pg), id.index);
        let here = store.info(id);
        let knows_all =
            record.as_ref().is_some_and(|pg| Role::of(pg, disk, false).rights().contains(&Right::FreeAbsent));
        // What is copied or rebuilt at this moment may not be here whole, so the free has to come again.
        if self.is_being_brought(disk, id) || here.is_none() && !knows_all {
            // Or it may yet be copied here from a primary that has not freed it.
            return join.done(number, u32::from(ErrorCode::Unavailable.code()));
        }
        let ranges: Vec<(u64, u64)> = item.ranges.iter().map(|range| (range.offset, range.length)).collect();
        let length = here.as_ref().map_or(0, |here| here.length);
        // To one that catches up, or to a chunk of an earlier epoch that is to be closed, the rest may yet come from
        // somebody who has not freed it.
        let is_old = |here: &ChunkInfo| record.as_ref().is_some_and(|pg| here.creation_epoch < pg.epoch);
        let is_part = here.as_ref().is_some_and(|here| !here.sealed && is_old(here));
        let end = u64::from(blocks_of(length)) * BLOCK_SIZE as u64;
        let beyond = ranges.iter().any(|(offset, bytes)| offset.saturating_add(*bytes) > end);
        let short = beyond && (is_part || !knows_all);
        // One that was lost here, and of which others keep a part, was not deleted.
        let whole = ranges.iter().any(|(offset, bytes)| *offset == 0 && *bytes >= CHUNK_SIZE_MAX);
        let ends_here = whole || here.is_some();
        let freed = if whole { CHUNK_SIZE_MAX } else { length };
        let (join_done, kept) = (join.clone(), store.clone());
        let done: crate::disk::Done<()> = Box::new(move |outcome| {
            let gone = ends_here && kept.info(id).is_none();
            if gone {
                freeing.note_deleted(freed);
            }
            drop(freeing);
            // All of it, here and wherever it may come from: that is remembered.
            let done = if short && !(whole && gone) { u32::from(ErrorCode::Unavailable.code()) } else { 0 };
            join_done.done(number, outcome.map_or_else(|error| refusal(&error), |()| done));
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
            let code = match error.code() {
                // Deleted meanwhile: there is nothing left to free.
                ErrorCode::ChunkDeleted => {
                    Freeing::begin(self.runtime(disk, pg), id.index).note_deleted(freed);
                    0
                }
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
