//! Compaction of whole shards: what lives in chunks that are mostly dead becomes a new, dense one on the same disks.
//!
//! Behind each pass of garbage collection every leader counts what its files name of such chunks, and tells a data node
//! which of them have something in those that are mostly dead (`Compact` with `whole_shards`). The data node makes a
//! chunk of the same group of them, as when copies are encoded together: each disk appends what it has itself.
//!
//! Invariant: a chunk is chosen when it was mostly dead in the pass before, too: while one is made, its files come to
//! name it one by one. Bounds: those of [`ShardPacks`]; [`FILES`] files a request, [`CHUNKS_MAX`] chunks for them, one
//! request at a time. Not here: which chunks (meta-core), and how they are made (`jobs` and the client library).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cairn_meta_core::{PlannedPack, PlannedShards, ShardPacks};
use cairn_types::{PgId, Scheme};
use cairn_wire::Opcode;
use cairn_wire::data::{CompactChunk, CompactRequest, CompactResponse};
use cairn_wire::error::WireError;

use crate::compact::Tried;
use crate::garbage::Collector;
use crate::movers::Movers;
use crate::stats::add;

/// Files of one request.
const FILES: usize = 1024;
/// Chunks that are made of the files of one request.
const CHUNKS_MAX: usize = 16;
/// A chunk is read, written, made durable, read back and published.
const DEADLINE: Duration = Duration::from_secs(300);

/// What passes found.
#[derive(Debug, Default)]
pub(crate) struct ShardsSeen {
    /// Mostly dead in the last one.
    last: BTreeSet<(u32, u32)>,
    tried: Tried,
}

impl Collector {
    /// Makes new chunks of what lives in those that are mostly dead.
    pub(crate) async fn compact_shards(&self, term: u64) -> Result<(), WireError> {
        let state = &self.partition.state;
        let groups = self.groups_of_shards();
        // What is moved would be there twice as long as a snapshot has it where it was.
        if groups.is_empty() || state.namespace.read().has_snapshots() {
            return Ok(());
        }
        let mut packs = ShardPacks::default();
        self.walk(|packs: &mut ShardPacks, named| packs.count(named), &mut packs, |_| {}).await?;
        let resting = self.shards.lock().tried.resting();
        packs.choose(|pg| groups.get(&pg).copied(), |chunk| resting.contains(&chunk));
        let before = std::mem::replace(&mut self.shards.lock().last, packs.chosen().collect());
        packs.retain(|chunk| before.contains(&chunk));
        if packs.chosen().next().is_none() {
            return Ok(());
        }
        self.walk(|packs: &mut ShardPacks, named| packs.visit(named), &mut packs, |_| {}).await?;
        let plan = packs.into_plan();
        let chunks = plan.iter().flat_map(|group| group.indices.iter().map(|index| (group.pg, *index)));
        let asked = chunks.map(|(pg, index)| PlannedPack { pg, index, bytes: 0, places: Vec::new() });
        self.shards.lock().tried.asked(&asked.collect::<Vec<_>>());
        for group in plan {
            let bytes = self.make_dense(&group, term).await?;
            let chunks = group.indices.len();
            tracing::info!(partition = %state.id, pg = group.pg, chunks, bytes, "shards that were mostly dead were compacted");
        }
        Ok(())
    }

    /// Groups in which there may be chunks of whole shards, and how many data shards these have; none where the volume
    /// has no stripe groups.
    fn groups_of_shards(&self) -> BTreeMap<u32, u64> {
        let map = self.partition.state.common.map.read();
        let own = || map.pgs().filter(|pg| pg.volume == self.partition.state.volume.get() && !pg.retired);
        if own().all(|pg| map.column(PgId(pg.pg)).is_none()) {
            return BTreeMap::new();
        }
        let scheme = |code: u32| u8::try_from(code).ok().and_then(Scheme::from_code);
        own()
            .filter_map(|pg| match scheme(pg.scheme)? {
                Scheme::Erasure { k, .. } => Some((pg.pg, u64::from(k))),
                Scheme::Replicated(_) => None,
            })
            .collect()
    }

    async fn make_dense(&self, group: &PlannedShards, term: u64) -> Result<u64, WireError> {
        let state = &self.partition.state;
        let mut movers = Movers::near(self.partition.clone(), self.client.clone(), group.pg);
        let mut bytes = 0;
        for inodes in group.inodes.chunks(FILES) {
            let request = CompactRequest {
                volume: state.volume.get(),
                chunks: group.indices.iter().map(|index| CompactChunk { pg: group.pg, index: *index }).collect(),
                places: inodes.iter().flat_map(|inode| [*inode, 0]).collect(),
                whole_shards: true,
            };
            for _ in 0..CHUNKS_MAX {
                let done: CompactResponse = movers.ask(Opcode::Compact, &request, DEADLINE, term).await?;
                bytes += done.moved_bytes;
                add(&state.common.stats.compacted_files, u64::from(done.moved));
                add(&state.common.stats.compacted_bytes, done.moved_bytes);
                if done.moved_bytes == 0 {
                    break;
                }
            }
        }
        Ok(bytes)
    }
}
