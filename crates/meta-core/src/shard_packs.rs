//! Chunks of whole shards that are mostly dead, and whose files are to be put into new ones.
//!
//! A block of a shard stays on all members until nothing names that block of *any* shard ([`crate::Named`]). So what
//! files name tells all: the blocks that members hold are those that somebody names, and of these each shard should
//! have all.
//!
//! Invariants: nothing is chosen of which something else than a file has part (a snapshot). Names of other partitions
//! are not asked for: a chunk of which they have much may look emptier than it is, and what they have in it is moved
//! when their own leaders find the same. Bounds: [`CHUNKS_MAX`] chunks are counted, at 2 KiB each, [`CHOSEN_MAX`] chosen, [`FILES_MAX`] files
//! told. Not here: who moves, and when a chunk may still be growing (`meta`).
use crate::compaction::is_mostly_dead;
use crate::named::Named;
use cairn_types::{BLOCK_SIZE, CHUNK_BLOCKS_MAX};
use std::collections::{BTreeMap, BTreeSet};

/// Chunks that are looked at together; of more the first by number are.
const CHUNKS_MAX: usize = 8192;
/// Chunks whose files are moved in one pass.
const CHOSEN_MAX: usize = 64;
/// Files that are moved in one pass.
const FILES_MAX: usize = 16 << 10;
/// A group's chunks are left as they are if less than so many bytes of data would be gained.
const GAIN_MIN: u64 = 1 << 20;
const BLOCK: u64 = BLOCK_SIZE as u64;

/// Placement group and index.
type Chunk = (u32, u32);

/// What is named of a chunk.
#[derive(Debug)]
struct Rows {
    /// A bit for each block in the members' files that any shard has.
    held: Box<[u64; CHUNK_BLOCKS_MAX / 64]>,
    /// Blocks that are named, of all shards.
    live: u64,
    is_pinned: bool,
}

impl Rows {
    fn new() -> Self {
        Self { held: Box::new([0; CHUNK_BLOCKS_MAX / 64]), live: 0, is_pinned: false }
    }

    fn push(&mut self, first: u64, end: u64) {
        for block in first..end.min(CHUNK_BLOCKS_MAX as u64) {
            self.held[block as usize / 64] |= 1 << (block % 64);
        }
        self.live += end - first;
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
    /// Ascending.
    pub inodes: Vec<u64>,
}

/// Chunks of whole shards of one pass. All names are shown twice: first to [`count`](Self::count), then, of what was
/// [chosen](Self::choose), to [`visit`](Self::visit).
#[derive(Debug, Default)]
pub struct ShardPacks {
    counted: BTreeMap<Chunk, Rows>,
    chosen: BTreeMap<Chunk, BTreeSet<u64>>,
    files: usize,
}

impl ShardPacks {
    /// Something names these blocks.
    pub fn count(&mut self, named: &Named) {
        let chunk = (named.pg, named.index);
        if !named.in_whole_shard {
            // What a snapshot keeps, or is being freed, of whatever.
            if let Some(rows) = self.counted.get_mut(&chunk) {
                rows.is_pinned = true;
            }
            return;
        }
        if self.counted.len() == CHUNKS_MAX && !self.counted.contains_key(&chunk) {
            let last = self.counted.last_key_value().map(|(last, _)| *last);
            if last.is_some_and(|last| last < chunk) {
                return;
            }
            self.counted.pop_last();
        }
        self.counted.entry(chunk).or_insert_with(Rows::new).push(named.first_block, named.end_block);
    }

    /// Keeps those of which enough is dead, most is gained from the first; `shards`: how many data shards a group's
    /// chunks have, if it is to be considered. True if there are any.
    pub fn choose(&mut self, shards: impl Fn(u32) -> Option<u64>, left_out: impl Fn(Chunk) -> bool) -> bool {
        let mut dead: Vec<(u64, Chunk)> = Vec::new();
        let mut gains: BTreeMap<u32, u64> = BTreeMap::new();
        for (chunk, rows) in std::mem::take(&mut self.counted) {
            let Some(k) = shards(chunk.0).filter(|_| !rows.is_pinned && !left_out(chunk)) else { continue };
            let held = rows.held() * k;
            if is_mostly_dead(rows.live, held) {
                dead.push((held.saturating_sub(rows.live), chunk));
                *gains.entry(chunk.0).or_default() += held.saturating_sub(rows.live) * BLOCK;
            }
        }
        dead.retain(|(_, chunk)| gains.get(&chunk.0).is_some_and(|gain| *gain >= GAIN_MIN));
        dead.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        self.chosen = dead.into_iter().take(CHOSEN_MAX).map(|(_, chunk)| (chunk, BTreeSet::new())).collect();
        !self.chosen.is_empty()
    }

    /// What was chosen.
    pub fn chosen(&self) -> impl Iterator<Item = Chunk> {
        self.chosen.keys().copied()
    }

    /// Keeps these alone.
    pub fn retain(&mut self, keep: impl Fn(Chunk) -> bool) {
        self.chosen.retain(|chunk, _| keep(*chunk));
    }

    /// Something names these blocks.
    pub fn visit(&mut self, named: &Named) {
        if self.files == FILES_MAX {
            return;
        }
        if let Some(files) = self.chosen.get_mut(&(named.pg, named.index)) {
            self.files += usize::from(files.insert(named.inode));
        }
    }

    /// By group.
    pub fn into_plan(self) -> Vec<PlannedShards> {
        let mut plan: BTreeMap<u32, (Vec<u32>, BTreeSet<u64>)> = BTreeMap::new();
        for ((pg, index), files) in self.chosen.into_iter().filter(|(_, files)| !files.is_empty()) {
            let group = plan.entry(pg).or_default();
            group.0.push(index);
            group.1.extend(files);
        }
        let planned = |(pg, (indices, inodes)): (u32, (Vec<u32>, BTreeSet<u64>))| PlannedShards {
            pg,
            indices,
            inodes: inodes.into_iter().collect(),
        };
        plan.into_iter().map(planned).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: u64 = 4;

    fn named(inode: u64, index: u32, first_block: u64, end_block: u64) -> Named {
        let (held_end, in_whole_shard) = (end_block, true);
        Named { inode, file_offset: 0, pg: 1, index, first_block, end_block, held_end, is_plain: false, in_whole_shard }
    }

    fn chosen(names: &[Named]) -> Vec<u32> {
        let mut packs = ShardPacks::default();
        names.iter().for_each(|named| packs.count(named));
        packs.choose(|pg| (pg == 1).then_some(K), |_| false);
        packs.chosen().map(|(_, index)| index).collect()
    }

    /// Space of files that are gone would never come back while their neighbours in other shards stay; or what is
    /// dense would be written anew for ever.
    #[test]
    fn a_chunk_is_chosen_by_what_its_rows_hold_and_files_name() {
        // All four shards of 1000 blocks.
        let dense: Vec<Named> = (0..K).map(|inode| named(inode + 1, 0, 0, 1000)).collect();
        assert_eq!(chosen(&dense), []);
        assert_eq!(chosen(&dense[..3]), [], "a quarter is dead");
        assert_eq!(chosen(&dense[..2]), [0], "half is dead");
        // What nobody has of any shard is freed, and counts for nothing.
        assert_eq!(chosen(&(0..K).map(|inode| named(inode + 1, 0, 900, 1000)).collect::<Vec<_>>()), []);
        assert_eq!(chosen(&[named(1, 0, 0, 20), named(2, 0, 20, 40)]), [], "too little would be gained");
        let little: Vec<Named> = (0..8).map(|index| named(9, index, 0, 100)).collect();
        assert_eq!(chosen(&little), [0, 1, 2, 3, 4, 5, 6, 7], "of a group together it is enough");
        let kept = Named { inode: 0, in_whole_shard: false, ..named(0, 0, 0, 1) };
        assert_eq!(chosen(&[dense[0], kept]), [], "a snapshot has part of it");
        assert_eq!(chosen(&[Named { pg: 2, ..dense[0] }]), [], "a group of which nothing is known");
        assert_eq!(chosen(&[kept]), [], "no chunk of whole shards");
    }

    /// Files would be left in what is to be emptied, or others be moved.
    #[test]
    fn the_plan_has_the_files_of_what_was_chosen() {
        let names = [named(7, 3, 0, 1000), named(5, 4, 0, 900), named(5, 3, 1000, 2000), named(8, 9, 0, 1000)];
        let mut packs = ShardPacks::default();
        names.iter().for_each(|named| packs.count(named));
        assert!(packs.choose(|_| Some(K), |(_, index)| index == 9));
        assert_eq!(packs.chosen().collect::<Vec<_>>(), [(1, 3), (1, 4)]);
        names.iter().for_each(|named| packs.visit(named));
        assert_eq!(packs.into_plan(), [PlannedShards { pg: 1, indices: vec![3, 4], inodes: vec![5, 7] }]);
    }

    /// A namespace of any size would take memory by its chunks.
    #[test]
    fn chunks_are_counted_up_to_a_bound() {
        let mut packs = ShardPacks::default();
        (0..2 * CHUNKS_MAX as u32).rev().for_each(|index| packs.count(&named(1, index, 0, 9)));
        assert_eq!(packs.counted.len(), CHUNKS_MAX);
        assert_eq!(packs.counted.last_key_value().map(|(chunk, _)| chunk.1), Some(CHUNKS_MAX as u32 - 1));
    }
}
