//! Directories get shards: when somebody asks for it, and by themselves when they are huge.
//!
//! A directory is huge with [`MetaTimings::shard_entries`] entries, and with far fewer when the partition has used up
//! its memory, as files follow their directories and nothing else would relieve it. It gets a shard in each of the
//! other partitions, up to 15, one after the other. Repeated it goes on where it was left, whoever leads.
//!
//! A directory keeps the number of its shards. So by themselves directories wait until the volume, which grows with
//! what they have, has some partitions, as long as there is memory.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use cairn_rpc::Reply;
use cairn_types::shard::SHARDS_MAX;
use cairn_types::{ErrorCode, PartitionId};
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use cairn_wire::meta::{AddShard, ShardDirectoryRequest, ShardDirectoryResponse};

use super::Peers;
use super::drive::Driver;
use crate::config::MetaTimings;
use crate::partition::{Partition, item};

/// Between two looks at what has grown.
const TICK: Duration = Duration::from_secs(1);
/// Entries from which on directories get shards in a partition that has used up its memory.
const ENTRIES_OF_FULL: u64 = 16_384;

/// Answers a client that wants a directory to have shards.
pub(crate) async fn answer(partition: Arc<Partition>, peers: Arc<Peers>, request: ShardDirectoryRequest, reply: Reply) {
    let who = request.header.as_ref().and_then(|header| header.who.as_ref());
    if who.is_none_or(|who| who.uid != 0) {
        let text = "how a directory is stored is for administrators: only root may spread its names over shards";
        return reply.err(WireError::new(ErrorCode::NotPermitted, text));
    }
    match shard(&partition, &peers, request.inode).await {
        Ok(shards) => reply.ok(&ShardDirectoryResponse { shards: shards.into() }, ()),
        Err(error) => reply.err(error),
    }
}

/// Gives a directory all its shards.
async fn shard(partition: &Arc<Partition>, peers: &Arc<Peers>, directory: u64) -> Result<u8, WireError> {
    let state = &partition.state;
    if let Some(error) = partition.not_understood(Opcode::AddShard) {
        return Err(error);
    }
    let mut others = peers.partitions(state.volume);
    others.retain(|other| *other != state.id);
    // Small directories of one partition would else have theirs in the same few.
    let first = directory as usize % others.len().max(1);
    others.rotate_left(first);
    others.truncate(SHARDS_MAX.into());
    loop {
        let (index, all) = state.namespace.read().shards_of(directory)?;
        if all {
            return Ok(index);
        }
        // Partitions are made, and never go: those that the shards of before are in are among them.
        let Some(to) = others.get(usize::from(index)).or(others.last()) else {
            let text = format!("{} knows of no other partition of {} yet; repeat in a moment", state.id, state.volume);
            return Err(WireError::new(ErrorCode::Unavailable, text));
        };
        let count = (others.len() as u32).max(u32::from(index) + 1);
        add(partition, peers, AddShard { directory, index: index.into(), count, partition: to.get() }).await?;
    }
}

async fn add(partition: &Arc<Partition>, peers: &Arc<Peers>, shard: AddShard) -> Result<(), WireError> {
    let driver = Driver { partition, peers, received: Instant::now() };
    driver.run(item(Opcode::AddShard, &shard)).await.map(|_| ())
}

/// Gives shards to what has become huge, until the task is ended.
pub(super) async fn run(partition: &Arc<Partition>, peers: &Arc<Peers>, timings: &MetaTimings) {
    let state = &partition.state;
    loop {
        state.pause(TICK).await;
        let memory = state.namespace.read().memory_bytes();
        let is_full = memory >= timings.shard_memory;
        let limit = if is_full { timings.shard_entries.min(ENTRIES_OF_FULL) } else { timings.shard_entries };
        state.across.huge_limit.store(limit, Relaxed);
        let huge: BTreeSet<u64> = std::mem::take(&mut *state.across.huge.lock());
        if state.leading_term().is_none() {
            continue;
        }
        let others = peers.partitions(state.volume).len().saturating_sub(1);
        for directory in huge {
            let (begun, _) = state.namespace.read().shards_of(directory).unwrap_or_default();
            if begun == 0 && waits(others, memory, timings) {
                let text = "a huge directory waits for more partitions of its volume before it gets shards in them";
                tracing::debug!(partition = %state.id, directory, others, text);
                continue;
            }
            match shard(partition, peers, directory).await {
                Ok(shards) => {
                    tracing::info!(partition = %state.id, directory, shards, "a huge directory has its names in shards from now on");
                }
                // It is noted again with its next change.
                Err(error) => {
                    tracing::debug!(partition = %state.id, directory, %error, "a huge directory gets no shards")
                }
            }
        }
    }
}

/// Whether directories wait for more partitions before they get shards by themselves. With twice the memory with which
/// a partition is full they take what there is.
fn waits(others: usize, memory: u64, timings: &MetaTimings) -> bool {
    others < timings.shard_others && memory < timings.shard_memory.saturating_mul(2)
}

/// The partition that is to have the shard of an item of the log.
pub(super) fn target(message: &[u8]) -> Option<PartitionId> {
    let shard: AddShard = prost::Message::decode(message).ok()?;
    Some(PartitionId(shard.partition)).filter(|target| target.get() != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory of a young volume would have its names in one more partition for ever, however many there are later;
    /// or wait for others until there is no memory left.
    #[test]
    fn directories_wait_for_partitions_while_there_is_memory() {
        let timings = MetaTimings::default();
        let full = timings.shard_memory;
        assert!(waits(1, 0, &timings) && waits(2, full, &timings) && waits(1, 2 * full - 1, &timings));
        assert!(!waits(3, 0, &timings) && !waits(15, full, &timings), "there are some");
        assert!(!waits(1, 2 * full, &timings), "there is no more memory");
    }
}
