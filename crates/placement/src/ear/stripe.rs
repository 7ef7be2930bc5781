//! Placement of one stripe, block by block (paper, section III-D): one copy on a random node of the core rack, the
//! others on distinct random nodes of one other random rack; a block whose copies leave no survivors is drawn again.
//!
//! Invariants: of each block the first copy is in the core rack, the others are on distinct nodes of one other rack;
//! survivors and parities are on distinct nodes, at most c in a rack; whoever encodes in the core rack finds every
//! block there.
use super::flow::{Slot, SurvivorFlow};
use super::shape::{EarRefusal, EarShape};
use crate::choose::mix;
use cairn_types::NodeId;
use std::collections::{BTreeMap, BTreeSet};

/// Draws of a block before its copies are looked for one by one, which finds what there is. The paper expects less than
/// two.
pub const DRAWS_MAX: u32 = 1_000;

/// Nodes that can be used, by the number of their rack.
#[derive(Clone, Default, Debug)]
pub struct EarCluster {
    racks: BTreeMap<u32, Vec<NodeId>>,
}

impl EarCluster {
    /// Racks in any order; a node counts once.
    pub fn new(nodes: impl IntoIterator<Item = Slot>) -> Self {
        let mut racks: BTreeMap<u32, Vec<NodeId>> = BTreeMap::new();
        let nodes: BTreeMap<NodeId, u32> = nodes.into_iter().map(|slot| (slot.node, slot.rack)).collect();
        for (node, rack) in nodes {
            racks.entry(rack).or_default().push(node);
        }
        Self { racks }
    }

    /// The numbers of its racks.
    pub fn racks(&self) -> impl Iterator<Item = u32> + '_ {
        self.racks.keys().copied()
    }

    fn counts(&self) -> BTreeMap<u32, usize> {
        self.racks.iter().map(|(rack, nodes)| (*rack, nodes.len())).collect()
    }
}

/// Where everything of a stripe is, before and after encoding.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StripePlan {
    pub core_rack: u32,
    /// The copies of each block, that in the core rack first.
    pub blocks: Vec<Vec<Slot>>,
    /// Which copy of each block stays, as shard i.
    pub survivors: Vec<usize>,
    pub parities: Vec<Slot>,
    /// How often each block was drawn.
    pub draws: Vec<u32>,
    /// Racks that may fail after encoding.
    pub rack_failures: usize,
}

impl StripePlan {
    /// Survivors, then parities.
    pub fn shards(&self) -> impl Iterator<Item = Slot> + '_ {
        let survivors = self.blocks.iter().zip(&self.survivors).map(|(copies, stays)| copies[*stays]);
        survivors.chain(self.parities.iter().copied())
    }

    /// # Panics
    /// When encoding would download across racks, or move something afterwards.
    pub fn check_invariants(&self, shape: &EarShape) {
        assert_eq!((self.blocks.len(), self.survivors.len()), (shape.k(), shape.k()));
        assert_eq!((self.parities.len(), self.rack_failures), (shape.m(), shape.m() / shape.rack_capacity()));
        for copies in &self.blocks {
            assert_eq!(copies.len(), shape.copies());
            assert_eq!(copies[0].rack, self.core_rack, "a download across racks");
            assert!(copies[1..].iter().all(|copy| copy.rack == copies[1].rack && copy.rack != self.core_rack));
            let nodes: BTreeSet<NodeId> = copies.iter().map(|copy| copy.node).collect();
            assert_eq!(nodes.len(), copies.len(), "two copies on one node");
        }
        check_shards(&self.shards().collect::<Vec<_>>(), shape);
    }
}

/// # Panics
/// When two shards are on one node, a rack has more than its capacity, or there are shards in more racks than the
/// targets.
pub(crate) fn check_shards(shards: &[Slot], shape: &EarShape) {
    let mut nodes = BTreeSet::new();
    let mut racks: BTreeMap<u32, usize> = BTreeMap::new();
    for shard in shards {
        assert!(nodes.insert(shard.node), "two shards on {}", shard.node);
        *racks.entry(shard.rack).or_default() += 1;
    }
    assert!(racks.values().all(|held| *held <= shape.rack_capacity()), "too many shards in a rack: {racks:?}");
    assert!(shape.target_racks().is_none_or(|targets| racks.len() <= targets), "too many racks: {racks:?}");
}

/// Draws a stripe block by block, so that blocks can be written as they come.
#[derive(Clone, Debug)]
pub struct StripeBuilder<'a> {
    cluster: &'a EarCluster,
    shape: EarShape,
    core: u32,
    /// Racks that copies outside of the core rack can lie in.
    remotes: Vec<u32>,
    /// Racks that shards may lie in, and how many.
    targets: BTreeMap<u32, usize>,
    flow: SurvivorFlow,
    blocks: Vec<Vec<Slot>>,
    draws: Vec<u32>,
    chance: Chance,
}

impl<'a> StripeBuilder<'a> {
    /// Starts a stripe with this core rack; equal seeds give equal stripes.
    pub fn new(cluster: &'a EarCluster, shape: EarShape, core: u32, seed: u64) -> Result<Self, EarRefusal> {
        let counts = cluster.counts();
        let mut chance = Chance(seed);
        let mut others: Vec<u32> = counts.keys().copied().filter(|rack| *rack != core).collect();
        chance.shuffle(&mut others);
        shape.check(&counts, core)?;
        let targets = shape.targets(&counts, core, &others);
        shape.check(&targets, core)?;
        let targets: BTreeMap<u32, usize> = targets.into_keys().map(|rack| (rack, shape.rack_capacity())).collect();
        others.sort_unstable();
        others.retain(|rack| shape.takes_copies(core, *rack, counts[rack]));
        let flow = SurvivorFlow::new(targets.clone());
        Ok(Self { cluster, shape, core, remotes: others, targets, flow, blocks: Vec::new(), draws: Vec::new(), chance })
    }

    /// The copies of the next block, that in the core rack first.
    ///
    /// # Panics
    /// When the stripe has all its blocks.
    pub fn next_block(&mut self) -> Result<&[Slot], EarRefusal> {
        assert!(self.blocks.len() < self.shape.k(), "a stripe has {} blocks", self.shape.k());
        let mut draws = 0;
        while draws < DRAWS_MAX {
            draws += 1;
            let remote = self.remotes[self.chance.below(self.remotes.len())];
            let copies = self.draw(remote, None);
            if self.flow.try_add(&copies) {
                return Ok(self.push(copies, draws));
            }
        }
        // Clusters with hardly any choice: of what can survive, anything.
        let mut candidates: Vec<Slot> =
            self.remotes.iter().chain([&self.core]).flat_map(|rack| self.nodes(*rack)).collect();
        self.chance.shuffle(&mut candidates);
        for stays in candidates {
            if self.flow.clone().try_add(&[stays]) {
                let remote = if stays.rack == self.core { self.remotes[0] } else { stays.rack };
                let copies = self.draw(remote, Some(stays));
                assert!(self.flow.try_add(&copies), "one of the copies can survive");
                return Ok(self.push(copies, draws));
            }
        }
        let (wanted, have) = (self.shape.k(), self.flow.blocks());
        Err(EarRefusal::TooFewSurvivors { wanted, have, capacity: self.shape.rack_capacity() })
    }

    fn push(&mut self, copies: Vec<Slot>, draws: u32) -> &[Slot] {
        self.blocks.push(copies);
        self.draws.push(draws);
        self.blocks.last().expect("just pushed")
    }

    /// Blocks drawn so far.
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Draws the blocks that are missing, decides which copies stay, and places the parities.
    pub fn finish(mut self) -> Result<StripePlan, EarRefusal> {
        while self.blocks.len() < self.shape.k() {
            self.next_block()?;
        }
        let kept = self.survivors();
        let survivors = self.blocks.iter().zip(&kept);
        let survivors = survivors.map(|(copies, kept)| copies.iter().position(|copy| copy == kept));
        let survivors = survivors.map(|stays| stays.expect("what is kept is a copy")).collect();
        let parities = self.parities(&kept);
        let rack_failures = self.shape.rack_failures();
        let Self { core, blocks, draws, .. } = self;
        Ok(StripePlan { core_rack: core, blocks, survivors, parities, draws, rack_failures })
    }

    /// What stays of each block. As few as possible stay in the core rack: its places are for parities, which then need
    /// not leave it.
    fn survivors(&self) -> Vec<Slot> {
        let mut flow = SurvivorFlow::new(self.targets.clone().into_iter().filter(|(rack, _)| *rack != self.core));
        let (mut order, mut near) = (Vec::new(), Vec::new());
        for (block, copies) in self.blocks.iter().enumerate() {
            if flow.try_add(copies) { order.push(block) } else { near.push(block) }
        }
        flow.set_capacity(self.core, self.targets[&self.core]);
        for block in near {
            assert!(flow.try_add(&self.blocks[block]), "all blocks have survivors: the flow was tested for each");
            order.push(block);
        }
        let mut kept: Vec<(usize, Slot)> =
            order.iter().enumerate().map(|(at, block)| (*block, flow.kept(at))).collect();
        kept.sort_unstable_by_key(|(block, _)| *block);
        kept.into_iter().map(|(_, slot)| slot).collect()
    }

    /// In the core rack while it holds fewer than c shards, then in random racks that hold fewer.
    fn parities(&mut self, survivors: &[Slot]) -> Vec<Slot> {
        let mut shards = survivors.to_vec();
        for _ in 0..self.shape.m() {
            let free = |rack: u32, shards: &[Slot]| -> Vec<Slot> {
                let full = shards.iter().filter(|shard| shard.rack == rack).count() >= self.shape.rack_capacity();
                self.nodes(rack).filter(|slot| !full && !shards.contains(slot)).collect()
            };
            let mut nodes = free(self.core, &shards);
            if nodes.is_empty() {
                let mut open: Vec<Vec<Slot>> = self.targets.keys().map(|rack| free(*rack, &shards)).collect();
                open.retain(|nodes| !nodes.is_empty());
                assert!(!open.is_empty(), "the shape was checked: there is a place for every shard");
                nodes = open.swap_remove(self.chance.below(open.len()));
            }
            shards.push(nodes[self.chance.below(nodes.len())]);
        }
        shards.split_off(survivors.len())
    }

    fn nodes(&self, rack: u32) -> impl Iterator<Item = Slot> + use<'a> {
        self.cluster.racks[&rack].iter().map(move |node| Slot { node: *node, rack })
    }

    /// Random copies: one in the core rack, the others in `remote`, with `fixed` among them.
    fn draw(&mut self, remote: u32, fixed: Option<Slot>) -> Vec<Slot> {
        let core = &self.cluster.racks[&self.core];
        let first = Slot { node: core[self.chance.below(core.len())], rack: self.core };
        let mut copies = vec![fixed.filter(|fixed| fixed.rack == self.core).unwrap_or(first)];
        copies.extend(fixed.filter(|fixed| fixed.rack != self.core));
        let nodes = &self.cluster.racks[&remote];
        while copies.len() < self.shape.copies() {
            let next = Slot { node: nodes[self.chance.below(nodes.len())], rack: remote };
            if !copies.contains(&next) {
                copies.push(next);
            }
        }
        copies
    }
}

/// Places a whole stripe with a random core rack, of those that can be one.
pub fn place_stripe(cluster: &EarCluster, shape: EarShape, seed: u64) -> Result<StripePlan, EarRefusal> {
    let mut chance = Chance(mix(seed));
    let mut cores: Vec<u32> = cluster.racks().collect();
    chance.shuffle(&mut cores);
    let mut refusal = EarRefusal::TooFewRacks {
        wanted: shape.racks_wanted(),
        have: 0,
        capacity: shape.rack_capacity(),
        fits: shape.shards(),
        survives: 0,
    };
    for core in cores {
        match StripeBuilder::new(cluster, shape, core, seed) {
            Ok(builder) => return builder.finish(),
            Err(error) => refusal = error,
        }
    }
    Err(refusal)
}

/// Draws from a seed (SplitMix64).
#[derive(Clone, Debug)]
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        let drawn = mix(self.0);
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        ((u128::from(drawn) * bound as u128) >> 64) as usize
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            let other = self.below(at + 1);
            items.swap(at, other);
        }
    }
}

#[cfg(test)]
mod tests;
