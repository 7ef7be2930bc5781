//! Retired groups: their volume was deleted, so their chunks go, all of them, on every member.
//!
//! Invariant: nothing is deleted before the retirement is durable on the disk that holds it. The manager's log decides, and
//! a retirement is never taken back. It can be interrupted anywhere: the next heartbeat goes on.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cairn_types::{CHUNK_SIZE_MAX, ChunkId, PgId};
use cairn_wire::error::WireError;

use super::Inner;
use super::seal_old::wait;
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

    async fn drop_group(&self, store: &Arc<DiskStore>, pg: PgId) {
        tracing::info!(disk = store.name(), %pg, "the group's volume was deleted; deleting its chunks");
        while !self.is_stopping() {
            let chunks = store.list(pg, 0, CHUNKS_AT_ONCE);
            if chunks.is_empty() {
                return;
            }
            for chunk in chunks {
                let id = chunk.info().id;
                if let Err(error) = drop_chunk(store, id).await {
                    tracing::warn!(disk = store.name(), chunk = %id, %error, "a chunk of a deleted volume stays for now");
                    return;
                }
            }
        }
    }
}

/// A sealed chunk whose blocks are all free is removed by the store.
async fn drop_chunk(store: &Arc<DiskStore>, id: ChunkId) -> Result<(), WireError> {
    let _length: u64 = wait(|done| store.seal(id, done)).await?;
    wait(|done| store.punch(id, vec![(0, CHUNK_SIZE_MAX)], done)).await
}
