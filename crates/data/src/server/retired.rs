//! Retired groups: their volume was deleted, so their chunks go, all of them, on every member. To a disk that was a
//! member and without which the group is complete, the group is retired too: it deletes what it has and says so.
//!
//! Invariant: nothing is deleted before the retirement is durable on the disk that holds it. The manager's log decides,
//! and a retirement is never taken back as long as something is left. It can be interrupted anywhere: the next
//! heartbeat goes on.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cairn_types::{CHUNK_SIZE_MAX, ChunkId, PgId};
use cairn_wire::error::WireError;

use super::Inner;
use super::disk_calls::wait;
use super::member::Member;
use crate::disk::DiskStore;

/// Chunks deleted between two looks at whether the server stops.
const CHUNKS_AT_ONCE: usize = 64;

impl Inner {
    /// Begins to delete what retired groups still have here, unless that is under way.
    pub(super) fn drop_retired(self: &Arc<Self>) {
        let stores: Vec<Arc<DiskStore>> = self.by_id.read().values().filter_map(|slot| slot.store()).collect();
        let mut found: Vec<(Arc<DiskStore>, PgId)> = Vec::new();
        for store in stores.into_iter().filter(|store| store.failure().is_none()) {
            let retired = store.pg_files().all().into_iter().filter(|pg| pg.retired).map(|pg| pg.pg);
            let full = retired.filter(|pg| !store.list(*pg, 0, 1).is_empty());
            found.extend(full.map(|pg| (store.clone(), pg)));
        }
        if found.is_empty() || self.dropping.swap(true, Ordering::AcqRel) {
            return;
        }
        let inner = self.clone();
        self.tasks.spawn(async move {
            for (store, pg) in found {
                inner.drop_group(&store, pg).await;
            }
            inner.dropping.store(false, Ordering::Release);
        });
    }

    /// The next heartbeat says that nothing is left.
    fn say_dropped(&self, store: &Arc<DiskStore>, pg: PgId) {
        if let Some(record) = store.pg_files().get(pg) {
            self.runtime(record.disk, pg).state.lock().changed = true;
        }
    }

    async fn drop_group(&self, store: &Arc<DiskStore>, pg: PgId) {
        tracing::info!(disk = store.name(), %pg, "the group's volume was deleted, or others have this disk's place; deleting its chunks");
        let is_retired = || store.pg_files().get(pg).is_some_and(|pg| pg.retired);
        while !self.is_stopping() && is_retired() {
            let chunks = store.list(pg, 0, CHUNKS_AT_ONCE);
            if chunks.is_empty() {
                self.say_dropped(store, pg);
                return;
            }
            for chunk in chunks.into_iter().take_while(|_| is_retired()) {
                let id = chunk.info().id;
                let outcome = drop_chunk(store, id).await;
                if let Err(error) = outcome {
                    // Else its file goes at this moment, or went; the next heartbeat sees whether it did.
                    if !self.is_stopping() && store.info(id).is_some() {
                        tracing::warn!(disk = store.name(), chunk = %id, %error, "a chunk of a deleted volume stays for now");
                    }
                    return;
                }
            }
        }
    }
}

/// Whether a disk that was a member has deleted all that it had of a group.
pub(super) fn has_dropped(member: &Member) -> bool {
    let is_member = member.pg.members.iter().any(|m| m.disk == member.disk);
    member.pg.retired && !is_member && member.store.list(member.pg.pg, 0, 1).is_empty()
}

/// A sealed chunk whose blocks are all free is removed by the store. One that is sealed already may have a table that
/// the device cannot read, and is not sealed again.
pub(super) async fn drop_chunk(store: &Arc<DiskStore>, id: ChunkId) -> Result<(), WireError> {
    if store.info(id).is_none_or(|info| !info.sealed) {
        let _length: u64 = wait(|done| store.seal(id, done)).await?;
    }
    wait(|done| store.punch(id, vec![(0, CHUNK_SIZE_MAX)], done)).await
}
