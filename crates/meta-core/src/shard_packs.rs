//! Chunks of whole shards that are mostly dead, and whose files are to be put into new ones.
//!
//! A block of a shard stays on all members until nothing names that block of *any* shard ([`crate::Named`]). So what
//! files name tells all: the rows that members hold are those of which somebody names a block, and files should name
//! all of it.
//!
//! Invariant: a chunk is chosen only if at most 70 % of what it takes is named. Whether what is left becomes a chunk of
//! whole shards again, or rows of single files, is for whoever moves it to see: shards may be left unevenly.
//! Names of other partitions are not asked for: a chunk of which they have much may look emptier than it is, and what
//! they have in it is moved when their own leaders find the same. Bounds: [`CHUNKS_MAX`] chunks are counted, at 2 KiB
//! each, from a place on that moves on with each walk; [`CHOSEN_MAX`] chosen, [`FILES_MAX`] files told. Not here: who
//! moves, and when a chunk may still be growing (`meta`).
use crate::compaction::is_mostly_dead;
use crate::named::Named;
use cairn_types::{BLOCK_SIZE, CHUNK_BLOCKS_MAX};
use std::collections::{BTreeMap, BTreeSet};

/// Chunks that are counted in one walk.
const CHUNKS_MAX: usize = 8192;
/// Chunks whose files are moved in one pass.
const CHOSEN_MAX: usize = 64;
/// Files that are moved in one pass.
const FILES_MAX: usize = 64 << 10;
/// A group's chunks are left as they are if fewer bytes of data are dead in them.
const GAIN_MIN: u64 = 1 << 20;
const BLOCK: u64 = BLOCK_SIZE as u64;

/// Placement group and index.
pub type ShardChunk = (u32, u32);
/// The files of each shard.
type Files = BTreeMap<u32, BTreeSet<u64>>;

/// What is named of a chunk.
#[derive(Debug)]
struct Rows {
    /// A bit for each row of which any shard has something.
    held: Box<[u64; CHUNK_BLOCKS_MAX / 64]>,
    /// Blocks that are named, by shard.
    live: Vec<u64>,
}

impl Rows {
    fn new() -> Self {
        Self { held: Box::new([0; CHUNK_BLOCKS_MAX / 64]), live: Vec::new() }
    }

    fn push(&mut self, shard: usize, first: u64, end: u64) {
        for block in first..end.min(CHUNK_BLOCKS_MAX as u64) {
            self.held[block as usize / 64] |= 1 << (block % 64);
        }
        if self.live.len() <= shard {
            self.live.resize(shard + 1, 0);
        }
        self.live[shard] += end - first;
    }

    fn held(&self) -> u64 {
        self.held.iter().map(|word| u64::from(word.count_ones())).sum()
    }
}

/// A group's chunks that are mostly dead, and the files with something in them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlannedShards {
    pub pg: u32,
    pub indices: Vec<u32>,
    /// Of all shards in turn, so that any number of the first ones has about as much of each.
    pub inodes: Vec<u64>,
}

/// Chunks of whole shards of one pass. All names are shown twice: first to [`count`](Self::count), then, of what was
/// [chosen](Self::choose), to [`visit`](Self::visit).
#[derive(Debug, Default)]
pub struct ShardPacks {
    /// Chunks up to this one are not counted.
    after: Option<ShardChunk>,
    counted: BTreeMap<ShardChunk, Rows>,
    /// With the files of each shard.
    chosen: BTreeMap<ShardChunk, Files>,
    files: usize,
}

impl ShardPacks {
    /// Of chunks behind this one.
    pub fn behind(after: Option<ShardChunk>) -> Self {
        Self { after, ..Self::default() }
    }

    /// Something names these blocks.
    pub fn count(&mut self, named: &Named) {
        let chunk = (named.pg, named.index);
        let Some(shard) = named.whole_shard.filter(|_| self.after.is_none_or(|after| chunk > after)) else { return };
        if self.counted.len() == CHUNKS_MAX && !self.counted.contains_key(&chunk) {
            let last = self.counted.last_key_value().map(|(last, _)| *last);
            if last.is_some_and(|last| last < chunk) {
                return;
            }
            self.counted.pop_last();
        }
        let rows = self.counted.entry(chunk).or_insert_with(Rows::new);
        rows.push(shard as usize, named.first_block, named.end_block);
    }

    /// The last chunk that was counted, if there may be others behind it.
    pub fn counted_to(&self) -> Option<ShardChunk> {
        let last = self.counted.last_key_value().filter(|_| self.counted.len() == CHUNKS_MAX);
        last.map(|(chunk, _)| *chunk)
    }

    /// Keeps chunks of which enough is dead, of groups that gain something by it; `shards`: how many data shards a
    /// group's chunks have, if it is to be considered.
    pub fn choose(&mut self, shards: impl Fn(u32) -> Option<u64>) {
        let mut groups: BTreeMap<u32, (u64, Vec<ShardChunk>)> = BTreeMap::new();
        for (chunk, rows) in std::mem::take(&mut self.counted) {
            let Some(k) = shards(chunk.0) else { continue };
            let (held, live) = (rows.held() * k, rows.live.iter().sum());
            if is_mostly_dead(live, held) {
                let group = groups.entry(chunk.0).or_default();
                group.0 += held - live;
                group.1.push(chunk);
            }
        }
        let mut gains: Vec<(u64, Vec<ShardChunk>)> = groups.into_values().collect();
        gains.retain(|(gain, _)| gain * BLOCK >= GAIN_MIN);
        gains.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        let chunks = gains.into_iter().flat_map(|(_, chunks)| chunks).take(CHOSEN_MAX);
        self.chosen = chunks.map(|chunk| (chunk, BTreeMap::new())).collect();
    }

    /// What was chosen.
    pub fn chosen(&self) -> impl Iterator<Item = ShardChunk> {
        self.chosen.keys().copied()
    }

    /// Keeps these alone.
    pub fn retain(&mut self, keep: impl Fn(ShardChunk) -> bool) {
        self.chosen.retain(|chunk, _| keep(*chunk));
    }

    /// Something names these blocks.
    pub fn visit(&mut self, named: &Named) {
        let Some(shard) = named.whole_shard.filter(|_| self.files < FILES_MAX) else { return };
        if let Some(files) = self.chosen.get_mut(&(named.pg, named.index)) {
            self.files += usize::from(files.entry(shard).or_default().insert(named.inode));
        }
    }

    /// By group.
    pub fn into_plan(self) -> Vec<PlannedShards> {
        let mut plan: BTreeMap<u32, (Vec<u32>, Files)> = BTreeMap::new();
        for ((pg, index), shards) in self.chosen.into_iter().filter(|(_, shards)| !shards.is_empty()) {
            let group = plan.entry(pg).or_default();
            group.0.push(index);
            for (shard, files) in shards {
                group.1.entry(shard).or_default().extend(files);
            }
        }
        let planned = |(pg, (indices, shards)): (u32, (Vec<u32>, Files))| PlannedShards {
            pg,
            indices,
            inodes: in_turn(shards.into_values().map(|files| files.into_iter().collect()).collect()),
        };
        plan.into_iter().map(planned).collect()
    }
}

/// The first of each list, the second of each, …; each once.
fn in_turn(lists: Vec<Vec<u64>>) -> Vec<u64> {
    let longest = lists.iter().map(Vec::len).max().unwrap_or(0);
    let mut seen = BTreeSet::new();
    let turns = (0..longest).flat_map(|at| lists.iter().filter_map(move |list| list.get(at).copied()));
    turns.filter(|inode| seen.insert(*inode)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: u64 = 4;

    fn named(inode: u64, index: u32, shard: u32, first_block: u64, end_block: u64) -> Named {
        let (held_end, whole_shard) = (end_block, Some(shard));
        Named { inode, file_offset: 0, pg: 1, index, first_block, end_block, held_end, is_plain: false, whole_shard }
    }

    fn chosen(names: &[Named]) -> Vec<u32> {
        let mut packs = ShardPacks::default();
        names.iter().for_each(|named| packs.count(named));
        packs.choose(|pg| (pg == 1).then_some(K));
        packs.chosen().map(|(_, index)| index).collect()
    }

    /// Space of files that are gone would never come back while their neighbours in other shards stay; or what is dense
    /// be written anew for ever.
    #[test]
    fn chunks_are_chosen_by_what_would_be_gained() {
        // Four shards of 1000 blocks, of which so many are left, each shard's own.
        let left = |index: u32, blocks: [u64; 4]| {
            let file = |(shard, blocks): (u32, u64)| {
                let first = u64::from(shard) * 250;
                named(u64::from(index * 10 + shard + 1), index, shard, first, first + blocks)
            };
            (0..).zip(blocks).filter(|(_, blocks)| *blocks > 0).map(file).collect::<Vec<_>>()
        };
        let dense: Vec<Named> = (0..4).map(|shard| named(u64::from(shard) + 1, 0, shard, 0, 1000)).collect();
        assert_eq!(chosen(&dense), []);
        assert_eq!(chosen(&dense[..3]), [], "a quarter is dead");
        assert_eq!(chosen(&dense[..2]), [0], "half is dead, though no row is");
        assert_eq!(chosen(&left(0, [250; 4])), [0], "1000 rows would be 250");
        assert_eq!(chosen(&left(0, [250, 0, 0, 0])), [0], "in one shard alone");
        assert_eq!(chosen(&left(0, [20; 4])), [], "too little would be gained");
        let two = [left(3, [250, 250, 0, 0]), left(4, [0, 0, 250, 250])].concat();
        assert_eq!(chosen(&two), [3, 4], "together: 1000 rows would be 250");
        assert_eq!(chosen(&[Named { pg: 2, ..dense[0] }, Named { whole_shard: None, ..dense[1] }]), []);
    }

    /// Requests would have files of one shard alone, and the new chunk be mostly zeros; files be left in what is to be
    /// emptied, or others be moved.
    #[test]
    fn the_plan_has_the_files_of_what_was_chosen_shard_by_shard() {
        let file = |inode: u64, index: u32, shard: u32| named(inode, index, shard, inode * 200, inode * 200 + 190);
        let names = [file(5, 3, 0), file(7, 3, 0), file(9, 3, 1), file(6, 4, 1), file(9, 4, 2), file(8, 3, 3)];
        let mut packs = ShardPacks::default();
        names.iter().for_each(|named| packs.count(named));
        packs.choose(|_| Some(K));
        assert_eq!(packs.chosen().collect::<Vec<_>>(), [(1, 3), (1, 4)]);
        packs.retain(|(_, index)| index == 3);
        names.iter().for_each(|named| packs.visit(named));
        assert_eq!(packs.into_plan(), [PlannedShards { pg: 1, indices: vec![3], inodes: vec![5, 9, 8, 7] }]);
    }

    /// A namespace of any size would take memory by its chunks; or what is behind the bound never be looked at.
    #[test]
    fn chunks_are_counted_up_to_a_bound_and_then_the_others() {
        let all = 2 * CHUNKS_MAX as u32;
        let walk = |after| {
            let mut packs = ShardPacks::behind(after);
            (0..all).rev().for_each(|index| packs.count(&named(1, index, 0, 0, 9)));
            assert_eq!(packs.counted.len(), CHUNKS_MAX.min(packs.counted.len()));
            packs.counted_to()
        };
        assert_eq!(walk(None), Some((1, CHUNKS_MAX as u32 - 1)));
        assert_eq!(walk(walk(None)), Some((1, all - 1)));
        assert_eq!(walk(Some((1, CHUNKS_MAX as u32))), None, "then from the beginning");
    }
}
