//! Packs that are mostly dead, and what to move out of them: a *pack* is a sealed chunk of a replicated group, in which
//! files lie side by side. What is freed goes by holes; its tables, and what holes cannot give back, stay until nothing
//! of it lives.
//!
//! Invariants: of what a pack takes on the disks of its members at most [`DEAD_PERCENT_MAX`] is dead, unless nothing
//! would be gained by moving the rest, or it cannot be moved whole. Nothing is decided from a list alone: only a
//! version of the namespace taken after it tells what lives, and a pack of which a listed block is neither named nor
//! being freed is left alone, for its writer may yet name it. Bounds: [`PACKS_MAX`] packs, [`PLACES_MAX`] places.
//!
//! Not here: chunks of whole shards (`shard_packs`), the lists, and who moves. A move is a publish of the same bytes on
//! top of the version that was read.
use crate::block_set::BlockSet;
use crate::named::Named;
use cairn_types::{BLOCK_SIZE, CHUNK_SIZE_MAX};
use std::collections::BTreeMap;

/// Of what a pack takes, so much may be dead.
pub const DEAD_PERCENT_MAX: u64 = 30;
/// Packs that are looked at together; more come with the next pass.
const PACKS_MAX: usize = 4096;
/// Extents that are moved in one pass.
const PLACES_MAX: usize = 64 << 10;
/// What a chunk's file takes beside its data: header, bits and table of checksums.
const TABLES: u64 = 69_632;
const BLOCK: u64 = BLOCK_SIZE as u64;

/// Whether more than [`DEAD_PERCENT_MAX`] of `held` bytes is not `live`.
pub fn is_mostly_dead(live: u64, held: u64) -> bool {
    held.saturating_sub(live).saturating_mul(100) > held.saturating_mul(DEAD_PERCENT_MAX)
}

/// What members list of a pack.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PackUse {
    pub pg: u32,
    pub index: u32,
    /// Code of the group's scheme.
    pub scheme: u8,
    /// Members that have a copy.
    pub copies: u64,
    /// What all copies together take of their devices.
    pub held: u64,
    /// Blocks that any copy has and has not freed: first, one past the last.
    pub used: Vec<(u32, u32)>,
}

/// A pack that may be worth moving.
#[derive(Debug)]
struct Pack {
    scheme: u8,
    copies: u64,
    held: u64,
    /// Listed as used, and nothing named it so far.
    unnamed: BlockSet,
    /// Blocks in use; in the end those that would have to be written anew.
    blocks: u64,
    places: Vec<(u64, u64)>,
    /// It cannot be moved whole.
    is_pinned: bool,
}

/// A pack and what has to leave it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlannedPack {
    pub pg: u32,
    pub index: u32,
    /// What is written anew, of one copy.
    pub bytes: u64,
    /// Inode, and where in the file the extent begins.
    pub places: Vec<(u64, u64)>,
}

/// Packs of one pass, by placement group and index.
#[derive(Debug, Default)]
pub struct Packs {
    packs: BTreeMap<(u32, u32), Pack>,
    places: usize,
    /// The walk has begun: `blocks` are those that were named.
    walked: bool,
}

impl Packs {
    /// Takes a pack into account if it is mostly dead and something of it lives. One that is wholly dead goes by
    /// itself.
    pub fn consider(&mut self, pack: &PackUse) {
        let mut unnamed = BlockSet::default();
        pack.used.iter().for_each(|(first, end)| unnamed.insert(u64::from(*first), u64::from(*end)));
        let blocks: u64 = unnamed.runs().iter().map(|(first, end)| u64::from(end - first)).sum();
        let dead = is_mostly_dead(blocks * BLOCK * pack.copies, pack.held);
        if self.packs.len() < PACKS_MAX && blocks > 0 && pack.copies > 0 && dead {
            let (scheme, copies, held) = (pack.scheme, pack.copies, pack.held);
            let pack_ = Pack { scheme, copies, held, unnamed, blocks, places: Vec::new(), is_pinned: false };
            self.packs.insert((pack.pg, pack.index), pack_);
        }
    }

    pub fn len(&self) -> usize {
        self.packs.len()
    }

    /// Placement group and index of each, ascending.
    pub fn chunks(&self) -> impl Iterator<Item = (u32, u32)> {
        self.packs.keys().copied()
    }

    /// It is not known of all that is in it who names it: it stays.
    pub fn leave_out(&mut self, pg: u32, index: u32) {
        if let Some(pack) = self.packs.remove(&(pg, index)) {
            self.places -= pack.places.len();
        }
    }

    pub fn is_empty(&self) -> bool {
        self.packs.is_empty()
    }

    /// Lets go of packs from which nothing is gained: what lives in all of one scheme, written side by side into new
    /// packs, would be mostly dead space again.
    pub fn keep_worthwhile(&mut self) {
        // What is held, what lives in one copy, copies.
        let mut sums: BTreeMap<u8, (u64, u64, u64)> = BTreeMap::new();
        for pack in self.packs.values() {
            let sum = sums.entry(pack.scheme).or_default();
            *sum = (sum.0 + pack.held, sum.1 + pack.blocks * BLOCK, pack.copies.max(sum.2));
        }
        sums.retain(|_, (held, live, copies)| {
            let after = (*live + live.div_ceil(CHUNK_SIZE_MAX) * TABLES) * *copies;
            is_mostly_dead(after, *held)
        });
        self.packs.retain(|_, pack| sums.contains_key(&pack.scheme));
    }

    /// Something names these blocks. All of a version have to be given before [`into_plan`](Self::into_plan).
    pub fn visit(&mut self, named: &Named) {
        if !std::mem::replace(&mut self.walked, true) {
            self.packs.values_mut().for_each(|pack| pack.blocks = 0);
        }
        let Some(pack) = self.packs.get_mut(&(named.pg, named.index)) else { return };
        pack.unnamed.remove(named.first_block, named.end_block);
        if named.inode == 0 {
            // Being freed.
            return;
        }
        if !named.is_plain || self.places == PLACES_MAX {
            self.places -= pack.places.len();
            pack.places = Vec::new();
            pack.is_pinned = true;
        }
        if !pack.is_pinned {
            pack.blocks += named.end_block - named.first_block;
            pack.places.push((named.inode, named.file_offset));
            self.places += 1;
        }
    }

    /// What has to be moved, most is gained from the first. Blocks that several places share would be there once for
    /// each, so a pack of which that makes too much stays as it is.
    pub fn into_plan(mut self) -> Vec<PlannedPack> {
        let walked = self.walked;
        self.packs.retain(|_, pack| {
            let movable = walked && !pack.is_pinned && !pack.places.is_empty() && pack.unnamed.is_empty();
            movable && is_mostly_dead(pack.blocks * BLOCK * pack.copies, pack.held)
        });
        self.keep_worthwhile();
        let gain = |pack: &Pack| pack.held - pack.blocks * BLOCK * pack.copies;
        let mut plan: Vec<(u64, PlannedPack)> = (self.packs.into_iter())
            .map(|((pg, index), pack)| {
                let (gain, bytes) = (gain(&pack), pack.blocks * BLOCK);
                (gain, PlannedPack { pg, index, bytes, places: pack.places })
            })
            .collect();
        plan.sort_by(|a, b| b.0.cmp(&a.0).then((a.1.pg, a.1.index).cmp(&(b.1.pg, b.1.index))));
        plan.into_iter().map(|(_, pack)| pack).collect()
    }
}

/// What one partition names of packs, for another one that collects it of all. Bound: so many places as were asked for;
/// a pack of which there are more is left out whole.
#[derive(Debug)]
pub struct PackNames {
    /// `None`: left out.
    packs: BTreeMap<(u32, u32), Option<Vec<Named>>>,
    places: usize,
    places_max: usize,
}

impl PackNames {
    /// Of these chunks: placement group and index.
    pub fn new(chunks: impl IntoIterator<Item = (u32, u32)>, places_max: usize) -> Self {
        let packs = chunks.into_iter().take(PACKS_MAX).map(|chunk| (chunk, Some(Vec::new()))).collect();
        Self { packs, places: 0, places_max }
    }

    /// Something names these blocks.
    pub fn visit(&mut self, named: &Named) {
        let Some(pack) = self.packs.get_mut(&(named.pg, named.index)) else { return };
        let Some(names) = pack else { return };
        if self.places == self.places_max {
            self.places -= names.len();
            *pack = None;
            return;
        }
        self.places += 1;
        names.push(*named);
    }

    /// All places, and the chunks that were left out.
    pub fn into_parts(self) -> (Vec<Named>, Vec<(u32, u32)>) {
        let left_out = self.packs.iter().filter(|(_, names)| names.is_none()).map(|(chunk, _)| *chunk).collect();
        (self.packs.into_values().flatten().flatten().collect(), left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pack(index: u32, used: &[(u32, u32)], held_of_one: u64) -> PackUse {
        PackUse { pg: 1, index, scheme: 3, copies: 3, held: 3 * held_of_one, used: used.to_vec() }
    }

    fn named(inode: u64, index: u32, first_block: u64, end_block: u64) -> Named {
        let (held_end, whole_shard) = (end_block, None);
        Named { inode, file_offset: 0, pg: 1, index, first_block, end_block, held_end, is_plain: true, whole_shard }
    }

    fn plan(packs: &[PackUse], names: &[Named]) -> Vec<u32> {
        let mut all = Packs::default();
        packs.iter().for_each(|pack| all.consider(pack));
        all.keep_worthwhile();
        names.iter().for_each(|named| all.visit(named));
        all.into_plan().into_iter().map(|pack| pack.index).collect()
    }

    const LITTLE: u64 = TABLES + 4 * BLOCK;

    /// Packs would be moved for ever though nothing is gained, or never.
    #[test]
    fn only_what_gains_is_moved() {
        let little = |index| pack(index, &[(0, 4)], LITTLE);
        let all = |count: u32| (0..count).map(|i| named(9, i, 0, 4)).collect::<Vec<_>>();
        assert_eq!(plan(&[little(0)], &all(1)), [], "it would be the same again");
        assert_eq!(plan(&[little(0), little(1)], &all(2)), [0, 1]);
        let other = PackUse { scheme: 2, copies: 2, held: 2 * LITTLE, ..little(1) };
        assert_eq!(plan(&[little(0), other], &all(2)), [], "packs of two schemes cannot become one");
        // Holes that the device does not give back.
        assert_eq!(plan(&[pack(0, &[(0, 100), (200, 1000)], 64 << 20)], &[named(9, 0, 0, 1000)]), [0]);
        let whole = pack(0, &[(0, 16_384)], CHUNK_SIZE_MAX + TABLES);
        assert_eq!(plan(&[whole, pack(1, &[(0, 60)], TABLES + 60 * BLOCK)], &all(2)), []);
    }

    /// Bytes that a living writer is about to name, or that are not where a move finds them, would keep a pack half
    /// dead for ever, and be moved out of it again and again.
    #[test]
    fn packs_that_cannot_be_moved_whole_stay() {
        let packs: Vec<PackUse> = (0..6).map(|index| pack(index, &[(0, 4)], LITTLE)).collect();
        let names = [
            named(9, 0, 0, 4),
            named(9, 1, 0, 3),
            named(9, 2, 0, 3),
            Named { inode: 0, ..named(0, 2, 3, 4) },
            Named { is_plain: false, ..named(9, 3, 0, 4) },
            named(9, 3, 0, 4),
            // Shared by many.
            named(9, 4, 0, 4),
            named(10, 4, 0, 4),
            named(11, 4, 0, 4),
            named(12, 4, 0, 4),
            named(13, 4, 0, 4),
        ];
        assert_eq!(plan(&packs, &names), [2, 0], "1 has unnamed bytes, 3 a column, 4 is shared, 5 is named by nobody");
        assert_eq!(plan(&packs, &[]), []);
    }

    /// A pack would be moved of which another partition names what nobody has heard of; or an answer become too long to
    /// be sent.
    #[test]
    fn what_others_name_counts_and_is_bounded() {
        let named = |inode, index, block| named(inode, index, block, block + 1);
        let mut others = PackNames::new([(1, 0), (1, 1), (1, 2)], 3);
        // The second of chunk 1 is one too many; that makes room for chunk 2.
        for name in [named(9, 0, 0), named(9, 1, 0), named(9, 0, 1), named(10, 1, 1), named(9, 2, 0), named(9, 7, 0)] {
            others.visit(&name);
        }
        let (places, left_out) = others.into_parts();
        assert_eq!(places, [named(9, 0, 0), named(9, 0, 1), named(9, 2, 0)]);
        assert_eq!(left_out, [(1, 1)]);
        let mut all = Packs::default();
        (0..4).for_each(|index| all.consider(&pack(index, &[(0, 2)], LITTLE)));
        for name in [named(3, 1, 0), named(3, 1, 1), named(3, 2, 1), named(3, 3, 0)].iter().chain(&places) {
            all.visit(name);
        }
        left_out.iter().for_each(|(pg, index)| all.leave_out(*pg, *index));
        let planned: Vec<_> = all.into_plan().into_iter().map(|pack| (pack.index, pack.places.len())).collect();
        assert_eq!(planned, [(0, 2), (2, 2)], "1 was left out, a block of 3 is nobody's so far");
    }

    /// Memory would grow with the volume.
    #[test]
    fn places_are_bounded() {
        let mut all = Packs::default();
        let many: Vec<(u32, u32)> = vec![(0, 8000)];
        for index in 0..10 {
            all.consider(&pack(index, &many, 64 << 20));
        }
        for index in 0..10 {
            (0..8000).for_each(|block| all.visit(&named(9 + block, index, block, block + 1)));
        }
        let plan = all.into_plan();
        assert_eq!(plan.len(), 8);
        assert!(plan.iter().map(|pack| pack.places.len()).sum::<usize>() <= PLACES_MAX);
    }
}
