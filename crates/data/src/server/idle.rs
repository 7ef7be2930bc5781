//! Idle chunks: a primary seals what got no append for a while, so that the space reserved for it comes back; of shards
//! each member seals its own. The same for seals that a writer asked for and another member did not answer: a chunk
//! that is sealed here is idle no more, and there it would keep its space, and be there without any block, until the
//! next epoch.
//!
//! Invariant: a part of a copy that is being brought back is not closed as it is.

use std::sync::Arc;
use std::time::Duration;

use cairn_chunk_core::fence;
use cairn_types::{ChunkId, DiskId};

use super::Inner;
use super::allocate::others;
use super::disk_calls::wait;
use super::missing::Found;
use super::restore::is_part;
use crate::disk::Chunk;

/// Chunks whose sealing on other members failed and is repeated; a new epoch seals all others as well.
const UNSEALED_MAX: usize = 10_000;

impl Inner {
    pub(super) fn start_idle_seals(self: &Arc<Self>) {
        let inner = Arc::downgrade(self);
        let pause = (self.config.idle_seal / 4).max(Duration::from_millis(10));
        self.tasks.spawn(async move {
            loop {
                tokio::time::sleep(pause).await;
                let Some(inner) = inner.upgrade().filter(|inner| !inner.is_stopping()) else { return };
                inner.seal_idle().await;
            }
        });
    }

    async fn seal_idle(self: &Arc<Self>) {
        let slots: Vec<_> = self.by_id.read().iter().map(|(id, slot)| (*id, slot.clone())).collect();
        let mut due: Vec<(DiskId, ChunkId)> = std::mem::take(&mut *self.unsealed.lock());
        for (disk, slot) in slots {
            let Some(store) = slot.store().filter(|store| store.failure().is_none()) else { continue };
            let now = self.clock.now();
            let idle = |chunk: &Arc<Chunk>| now.since(chunk.last_append()) >= self.config.idle_seal;
            due.extend(store.open_chunks().into_iter().filter(idle).map(|chunk| (disk, chunk.info().id)));
        }
        for (disk, id) in due {
            if let Err(error) = self.seal_everywhere(disk, id).await {
                tracing::debug!(chunk = %id, %error, "an idle chunk is sealed later");
                self.seal_later(disk, id);
            }
        }
    }

    /// Some member may not have been told that a chunk is sealed.
    pub(super) fn seal_later(&self, disk: DiskId, id: ChunkId) {
        let mut unsealed = self.unsealed.lock();
        if unsealed.len() < UNSEALED_MAX {
            unsealed.push((disk, id));
        }
    }

    /// As primary, seals a chunk on all receiving members.
    async fn seal_everywhere(self: &Arc<Self>, disk: DiskId, id: ChunkId) -> Result<(), cairn_wire::error::WireError> {
        let member = self.member(disk.get(), id.pg.get(), 0)?;
        if member.is_striped() {
            // Each member its own shard; the writer, if there still is one, goes on in a new chunk.
            let _length: u64 = wait(|done| member.store.seal(id, done)).await?;
            return Ok(());
        }
        if fence::primary(&member.pg) != Some(disk) || member.check_entered().is_err() {
            return Ok(());
        }
        if is_part(&member, id) && self.is_longer_elsewhere(&member, id).await? {
            self.restore_later(&member, id, Found::Reader, Duration::ZERO);
            return Ok(());
        }
        // Here first: nothing is appended any more, so the others get no more either. It may have been dead, and be
        // gone.
        if member.store.info(id).is_some() {
            self.seal_member(&member, disk, id).await?;
        }
        for other in others(&member.pg, disk) {
            self.seal_member(&member, other, id).await?;
        }
        Ok(())
    }
}
