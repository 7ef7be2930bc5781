//! Compaction of whole shards: what lives in chunks that are mostly dead becomes a new, dense one on the same disks.
//!
//! Behind each pass of garbage collection every leader counts what its files name of such chunks, and tells a data node
//! which of them have something in those that are mostly dead (`Compact` with `whole_shards`). The data node makes a
//! chunk of the same group of them, as when copies are encoded together: each disk appends what it has itself.
//!
//! Invariants: a chunk is chosen when it was mostly dead in the walk before, too: while one is made, its files come to
//! name it one by one. A group of which nothing could be moved rests for twice as many passes each time. Bounds: those
//! of [`ShardPacks`]; [`FILES`] files a request, [`CHUNKS_MAX`] chunks for them, one request at a time. Not here: which
//! chunks (meta-core), and how they are made (`jobs` and the client library).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cairn_meta_core::{PlannedShards, ShardChunk, ShardPacks};
use cairn_types::{PgId, Scheme};
use cairn_wire::Opcode;
use cairn_wire::data::{CompactChunk, CompactRequest, CompactResponse};
use cairn_wire::error::WireError;

use crate::garbage::Collector;
use crate::movers::Movers;
use crate::stats::add;

/// Files of one request.
const FILES: usize = 8192;
/// Chunks that are made of the files of one request.
const CHUNKS_MAX: usize = 16;
/// A chunk is read, written, made durable, read back and published.
const DEADLINE: Duration = Duration::from_secs(300);

/// Most passes that leave a group out.
const RESTS_MAX: u32 = 63;

/// A group of which nothing could be moved: how often, and passes that leave it out still.
#[derive(Debug, Default)]
struct Rest {
    times: u32,
    passes: u32,
}

/// What passes found.
#[derive(Debug, Default)]
pub(crate) struct ShardsSeen {
    /// Mostly dead when they were counted last.
    dead: BTreeSet<ShardChunk>,
    /// Where the next walk goes on.
    after: Option<ShardChunk>,
    rests: BTreeMap<u32, Rest>,
}

impl ShardsSeen {
    /// Chunks that were counted, from `after` up to `to`, and those of them that are mostly dead. Keeps what was so
    /// before as well.
    fn note(
        &mut self,
        after: Option<ShardChunk>,
        to: Option<ShardChunk>,
        dead: BTreeSet<ShardChunk>,
    ) -> BTreeSet<ShardChunk> {
        let both = dead.intersection(&self.dead).copied().collect();
        let counted = |chunk: &ShardChunk| after.is_none_or(|after| *chunk > after) && to.is_none_or(|to| *chunk <= to);
        self.dead.retain(|chunk| !counted(chunk));
        self.dead.extend(dead);
        self.after = to;
        both
    }

    /// Groups that a pass that begins leaves out.
    fn resting(&mut self) -> BTreeSet<u32> {
        let rests = |(pg, rest): (&u32, &mut Rest)| {
            rest.passes = rest.passes.checked_sub(1)?;
            Some(*pg)
        };
        self.rests.iter_mut().filter_map(rests).collect()
    }

    /// So many bytes of a group's chunks were moved.
    fn moved(&mut self, pg: u32, bytes: u64) {
        if bytes > 0 {
            self.rests.remove(&pg);
            return;
        }
        let rest = self.rests.entry(pg).or_default();
        rest.passes = ((2 << rest.times) - 1).min(RESTS_MAX);
        rest.times = (rest.times + 1).min(RESTS_MAX.ilog2());
    }
}

impl Collector {
    /// Makes new chunks of what lives in those that are mostly dead.
    pub(crate) async fn compact_shards(&self, term: u64) -> Result<(), WireError> {
        let state = &self.partition.state;
        let mut groups = self.groups_of_shards();
        // What is moved would be there twice as long as a snapshot has it where it was.
        if groups.is_empty() || state.namespace.read().has_snapshots() {
            return Ok(());
        }
        let resting = {
            let mut seen = self.shards.lock();
            seen.rests.retain(|pg, _| groups.contains_key(pg));
            seen.resting()
        };
        groups.retain(|pg, _| !resting.contains(pg));
        let after = self.shards.lock().after;
        let mut packs = ShardPacks::behind(after);
        self.walk(|packs: &mut ShardPacks, named| packs.count(named), &mut packs, |_| {}).await?;
        let to = packs.counted_to();
        packs.choose(|pg| groups.get(&pg).copied());
        let both = self.shards.lock().note(after, to, packs.chosen().collect());
        packs.retain(|chunk| both.contains(&chunk));
        if packs.chosen().next().is_none() {
            return Ok(());
        }
        self.walk(|packs: &mut ShardPacks, named| packs.visit(named), &mut packs, |_| {}).await?;
        for group in packs.into_plan() {
            let mut bytes = 0;
            let outcome = self.make_dense(&group, term, &mut bytes).await;
            self.shards.lock().moved(group.pg, bytes);
            outcome?;
            let chunks = group.indices.len();
            if bytes == 0 {
                tracing::debug!(partition = %state.id, pg = group.pg, chunks, "what is left in shards is too uneven to be compacted");
                continue;
            }
            tracing::info!(partition = %state.id, pg = group.pg, chunks, bytes, "shards that were mostly dead were compacted");
        }
        Ok(())
    }

    /// Groups in which there may be chunks of whole shards, and how many data shards these have; none where there are
    /// no such chunks, and nobody makes some. Columns alone do not tell: they may be gone, and what was encoded in them
    /// stays.
    fn groups_of_shards(&self) -> BTreeMap<u32, u64> {
        let map = self.partition.state.common.map.read();
        let own = || map.pgs().filter(|pg| pg.volume == self.partition.state.volume.get() && !pg.retired);
        let names_none = *self.partition.state.names_whole_shards.lock() == Some(false);
        if names_none && own().all(|pg| map.column(PgId(pg.pg)).is_none()) {
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

    async fn make_dense(&self, group: &PlannedShards, term: u64, bytes: &mut u64) -> Result<(), WireError> {
        let state = &self.partition.state;
        let mut movers = Movers::near(self.partition.clone(), self.client.clone(), group.pg);
        for inodes in group.inodes.chunks(FILES) {
            let request = CompactRequest {
                volume: state.volume.get(),
                chunks: group.indices.iter().map(|index| CompactChunk { pg: group.pg, index: *index }).collect(),
                places: inodes.iter().flat_map(|inode| [*inode, 0]).collect(),
                whole_shards: true,
            };
            for _ in 0..CHUNKS_MAX {
                let done: CompactResponse = movers.ask(Opcode::Compact, &request, DEADLINE, term).await?;
                *bytes += done.moved_bytes;
                add(&state.common.stats.compacted_files, u64::from(done.moved));
                add(&state.common.stats.compacted_bytes, done.moved_bytes);
                if done.moved_bytes == 0 {
                    break;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is being made would be taken for mostly dead; or what lies behind the bound of a walk never count as such.
    #[test]
    fn a_chunk_counts_when_it_was_dead_in_the_walk_before() {
        let mut seen = ShardsSeen::default();
        let chunks = |indices: &[u32]| indices.iter().map(|index| (1, *index)).collect::<BTreeSet<_>>();
        assert_eq!(seen.note(None, Some((1, 5)), chunks(&[2, 3])), chunks(&[]));
        assert_eq!((seen.note(Some((1, 5)), None, chunks(&[7])), seen.after), (chunks(&[]), None));
        assert_eq!(seen.note(None, Some((1, 5)), chunks(&[3, 4])), chunks(&[3]));
        assert_eq!(seen.note(Some((1, 5)), None, chunks(&[7])), chunks(&[7]));
        assert_eq!(seen.note(None, Some((1, 5)), chunks(&[2, 4])), chunks(&[4]), "2 was not in between");
    }

    /// What cannot be moved would be read and written with each pass.
    #[test]
    fn groups_of_which_nothing_moves_rest_longer_and_longer() {
        let mut seen = ShardsSeen::default();
        let mut asked = Vec::new();
        for pass in 0..200 {
            if !seen.resting().contains(&7) {
                asked.push(pass);
                seen.moved(7, 0);
            }
        }
        assert_eq!(asked, [0, 2, 6, 14, 30, 62, 126, 190]);
        seen.moved(7, 5);
        assert!(seen.resting().is_empty() && seen.rests.is_empty());
    }
}
