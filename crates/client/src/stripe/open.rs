//! Opening a striped chunk: the group and index as for any chunk, then a shard for every member that takes writes.
use super::chunk::StripedChunk;
use crate::append::open::{Avoided, open_index};
use crate::append::target::Target;
use crate::cluster::Cluster;
use crate::error::Result;
use cairn_types::{ChunkId, Stripe};
use std::sync::Arc;

/// Opens a chunk; tries until the cluster's patience ends. Complete groups go first, then any with k + 1 serving.
pub(crate) async fn open_striped(
    cluster: Arc<Cluster>,
    target: Target,
    stripe: Stripe,
    avoided: Arc<Avoided>,
) -> Result<StripedChunk> {
    let opened = open_index(&cluster, target, &avoided).await?;
    let id = ChunkId { pg: opened.pg.id, index: opened.index };
    // A member's position is the number of its shard for ever.
    let receivers = opened.pg.members.iter().map(|(disk, state)| state.receives_writes().then_some(*disk)).collect();
    Ok(StripedChunk::new(id, (opened.pg.epoch, opened.creation_epoch), target.class.scheme, stripe, receivers))
}
