//! Row CRCs of a parity shard that do not match their sum any more: held against the tables of the data shards, and
//! where they differ the block is made anew, with the CRCs that its row has.
//!
//! Invariant: a CRC of a row is replaced only together with a parity block that was proven with it. Columns whose data
//! shard does not serve now are left as they are; what is decoded with a wrong one is not taken by anybody. What failed
//! is tried again with growing pauses.

use std::collections::BTreeSet;
use std::sync::Arc;

use cairn_chunk_core::fence;
use cairn_format::pg_state::PgStateRecord;
use cairn_types::{ChunkId, DiskId, Epoch, ErrorCode};
use cairn_wire::error::WireError;

use super::Inner;
use super::disk_calls::on_control;
use super::member::Member;

/// Chunks that are tried again at a time.
const AGAIN_AT_ONCE: usize = 64;

impl Inner {
    /// Looks after the chunks whose row CRCs were found damaged when they were read.
    pub(super) async fn mend_rows_found(self: &Arc<Self>) {
        let due = self.unmended.lock().take_due(self.clock.now(), AGAIN_AT_ONCE);
        let stores: Vec<_> = self.by_id.read().iter().filter_map(|(id, slot)| Some((*id, slot.store()?))).collect();
        for (disk, store) in stores {
            let mut found = store.take_bad_rows();
            found.extend(due.iter().filter(|(of, _)| *of == disk).map(|(_, id)| *id));
            for id in found {
                match self.mend_rows(disk, id).await {
                    Ok(blocks) => {
                        self.unmended.lock().done((disk, id));
                        tracing::info!(%disk, chunk = %id, blocks, "row checksums of a parity shard were mended");
                    }
                    Err(_) if store.info(id).is_none() => self.unmended.lock().done((disk, id)),
                    Err(error) if !self.unmended.lock().failed((disk, id), self.clock.now()) => {
                        tracing::debug!(%disk, chunk = %id, %error, "row checksums are still not mended");
                    }
                    Err(error) => {
                        tracing::warn!(%disk, chunk = %id, %error, "row checksums of a parity shard are not mended now; tried again later");
                    }
                }
            }
        }
    }

    /// Returns how many blocks had wrong ones.
    async fn mend_rows(self: &Arc<Self>, disk: DiskId, id: ChunkId) -> Result<usize, WireError> {
        let member = self.member(disk.get(), id.pg.get(), 0)?;
        let store = member.store.clone();
        let ours = on_control(&member.store, move |_| store.tables(id)).await?;
        let any_epoch = Arc::new(PgStateRecord { epoch: Epoch(0), ..(*member.pg).clone() });
        let asker = Member { pg: any_epoch, ..member.clone() };
        let mut wrong = BTreeSet::new();
        let mut failure = None;
        for (row, of) in ours.rows.iter().zip(&member.pg.members) {
            if !fence::serving(&member.pg).any(|serving| serving == of.disk) {
                let text = format!("{} does not serve {} now", of.disk, id.pg);
                failure = Some(WireError::new(ErrorCode::NotServing, text));
                continue;
            }
            let theirs = match self.table_of(&asker.pg, of.disk, id).await {
                Ok(theirs) => theirs,
                Err(error) => {
                    failure = Some(error);
                    continue;
                }
            };
            let differ = row.iter().zip(&theirs.crcs).enumerate().filter(|(_, (a, b))| a != b);
            let blocks = differ.map(|(block, _)| block as u32);
            wrong.extend(blocks.filter(|block| !ours.punched.get(*block) && !theirs.punched.get(*block)));
        }
        for block in &wrong {
            // One row that cannot be made now keeps no other waiting.
            if let Err(error) = self.heal_block(disk, &member.pg, &member.store, id, *block).await {
                failure = Some(error);
            }
        }
        // What the others say was mended; the rest when the last one answers.
        failure.map_or(Ok(wrong.len()), Err)
    }
}
