//! A chunk that is another shard than the member's place says: the disk had another place in the group, left it, and
//! was then put back from a copy of that time. Its checksums match, although its bytes are another shard's.
//!
//! Invariants: it is never read nor told as the member's own; only a member that catches up, and counts for nothing
//! yet, removes it; and only after the whole shard of its own place was made of the other members' shards and proven.

use std::sync::Arc;

use cairn_chunk_core::fence;
use cairn_format::crc_table::blocks_of;
use cairn_replica_core::reconcile::{Plan, Step, Verdict};
use cairn_types::ChunkId;
use cairn_wire::error::WireError;

use super::Inner;
use super::member::Member;
use super::rebuild::{REBUILD_BLOCKS, Rebuild};
use super::retired::drop_chunk;

impl Inner {
    /// Makes room for the member's own shard, of which nothing is here by `verdict`; `refused` says what is in its
    /// place. The next pass rebuilds.
    pub(super) async fn drop_other_shard(
        self: &Arc<Self>,
        member: &Member,
        id: ChunkId,
        verdict: Verdict,
        refused: WireError,
    ) -> Result<(), WireError> {
        let Verdict::Act(plan) = verdict else { return Err(refused) };
        let same =
            member.store.info(id).is_none_or(|here| (here.creation_epoch, here.session) == (plan.made, plan.session));
        let catches_up = fence::syncing(&member.pg).any(|disk| disk == member.disk);
        if !same || !catches_up || !self.can_be_made(member, id, &plan).await? {
            return Err(refused);
        }
        tracing::warn!(disk = %member.disk, chunk = %id, "{refused}; it is removed, for the others have all of which this member's own is made");
        drop_chunk(&member.store, id).await
    }

    /// Whether the others have all that the member's own shard is made of, in the epoch of `member`.
    async fn can_be_made(self: &Arc<Self>, member: &Member, id: ChunkId, plan: &Plan) -> Result<bool, WireError> {
        let Some(Step::Rebuild { range, freed_at, .. }) = plan.steps.last() else { return Ok(false) };
        let _permit = self.copies.acquire().await.map_err(|_| super::catch_up_shards::stopping())?;
        let punched = self.punched_of(member, id, freed_at).await?;
        let job = Arc::new(Rebuild::new(member, id, plan.made)?);
        let end = blocks_of(range.end);
        for from in (0..end).step_by(REBUILD_BLOCKS as usize) {
            let piece = from..(from + REBUILD_BLOCKS).min(end);
            if let Err(problem) = self.make_piece(&job, member, &punched, piece).await {
                tracing::debug!(chunk = %id, ?problem, "the member's own shard cannot be made yet");
                return Ok(false);
            }
        }
        Ok(self.is_current(member))
    }
}
