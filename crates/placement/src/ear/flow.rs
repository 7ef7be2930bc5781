//! The flow that says whether each block can keep one copy: block → node (one block a node) → rack (as many as its
//! capacity) → sink (paper, section III-C). Blocks come one by one and the flow grows by one augmenting path each.
//!
//! Invariants: every block that was taken has a kept copy that is one of its copies; no two are on one node; no rack
//! has more than its capacity. A block that was refused changes nothing.
use cairn_types::NodeId;
use std::collections::{BTreeMap, BTreeSet};

/// A node, and the rack that it is in.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Slot {
    pub node: NodeId,
    pub rack: u32,
}

#[derive(Clone, Debug)]
struct Block {
    copies: Vec<Slot>,
    kept: Slot,
}

/// A maximum flow under construction.
#[derive(Clone, Default, Debug)]
pub struct SurvivorFlow {
    /// What racks may hold. One that is not here does not reach the sink.
    capacity: BTreeMap<u32, usize>,
    used: BTreeMap<u32, usize>,
    blocks: Vec<Block>,
    holder: BTreeMap<NodeId, usize>,
    /// Nodes that keep something else of the stripe.
    barred: BTreeSet<NodeId>,
}

/// What one search has looked at: each node and rack at most once, which bounds it.
#[derive(Default)]
struct Seen {
    nodes: BTreeSet<NodeId>,
    racks: BTreeSet<u32>,
}

impl SurvivorFlow {
    /// Racks, and how many blocks each may keep.
    pub fn new(capacity: impl IntoIterator<Item = (u32, usize)>) -> Self {
        Self { capacity: capacity.into_iter().collect(), ..Self::default() }
    }

    /// Sets what a rack may keep; more than now, or of a rack that keeps nothing.
    pub fn set_capacity(&mut self, rack: u32, capacity: usize) {
        assert!(self.used.get(&rack).is_none_or(|used| *used <= capacity), "rack {rack} keeps more than {capacity}");
        self.capacity.insert(rack, capacity);
    }

    /// A node that keeps no block.
    pub fn bar(&mut self, node: NodeId) {
        assert!(!self.holder.contains_key(&node), "{node} keeps a block");
        self.barred.insert(node);
    }

    /// Takes a block with these copies if all blocks can still keep one each: whether the maximum flow grows by one.
    pub fn try_add(&mut self, copies: &[Slot]) -> bool {
        let Some(first) = copies.first() else { return false };
        self.blocks.push(Block { copies: copies.to_vec(), kept: *first });
        let grown = self.route(self.blocks.len() - 1, &mut Seen::default());
        if !grown {
            self.blocks.pop();
        }
        grown
    }

    /// Takes a block that keeps this copy if nothing is in its way; otherwise any, as [`try_add`](Self::try_add).
    pub fn try_keep(&mut self, copies: &[Slot], kept: Slot) -> bool {
        if !copies.contains(&kept) || !self.is_free(kept.node) || !self.has_room(kept.rack) {
            return self.try_add(copies);
        }
        self.blocks.push(Block { copies: copies.to_vec(), kept });
        self.settle(self.blocks.len() - 1, kept);
        true
    }

    /// Blocks taken.
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// The copy that this block keeps, by the order in which blocks were taken.
    pub fn kept(&self, block: usize) -> Slot {
        self.blocks[block].kept
    }

    /// How many blocks this rack keeps.
    pub fn used(&self, rack: u32) -> usize {
        self.used.get(&rack).copied().unwrap_or(0)
    }

    /// # Panics
    /// When an invariant of the flow is broken.
    pub fn check_invariants(&self) {
        let mut used = BTreeMap::new();
        let mut nodes = BTreeSet::new();
        for block in &self.blocks {
            assert!(block.copies.contains(&block.kept), "{:?} is not a copy", block.kept);
            assert!(nodes.insert(block.kept.node), "two blocks on {}", block.kept.node);
            assert!(!self.barred.contains(&block.kept.node), "{} is barred", block.kept.node);
            *used.entry(block.kept.rack).or_insert(0) += 1;
        }
        for (rack, used) in used {
            assert_eq!(self.used(rack), used, "rack {rack}");
            assert!(used <= self.capacity.get(&rack).copied().unwrap_or(0), "rack {rack} keeps {used}");
        }
    }

    fn is_free(&self, node: NodeId) -> bool {
        !self.holder.contains_key(&node) && !self.barred.contains(&node)
    }

    fn has_room(&self, rack: u32) -> bool {
        self.used(rack) < self.capacity.get(&rack).copied().unwrap_or(0)
    }

    fn settle(&mut self, block: usize, at: Slot) {
        *self.used.entry(at.rack).or_insert(0) += 1;
        self.keep(block, at);
    }

    fn keep(&mut self, block: usize, at: Slot) {
        self.blocks[block].kept = at;
        self.holder.insert(at.node, block);
    }

    /// Finds a place for a block, moving others on if need be; nothing has changed if there is none.
    fn route(&mut self, block: usize, seen: &mut Seen) -> bool {
        let copies = self.blocks[block].copies.clone();
        // What is free at once first: fewer blocks move.
        for at in &copies {
            if self.is_free(at.node) && self.has_room(at.rack) {
                self.settle(block, *at);
                return true;
            }
        }
        for at in &copies {
            if self.barred.contains(&at.node) || !self.capacity.contains_key(&at.rack) || !seen.nodes.insert(at.node) {
                continue;
            }
            // Its node keeps another block: that one goes elsewhere, and the rack holds as many as before.
            let moved = match self.holder.get(&at.node).copied() {
                Some(other) => self.route(other, seen),
                None => self.make_room(at.rack, seen),
            };
            if moved {
                self.keep(block, *at);
                return true;
            }
        }
        false
    }

    /// Moves one block out of a full rack.
    fn make_room(&mut self, rack: u32, seen: &mut Seen) -> bool {
        if !seen.racks.insert(rack) {
            return false;
        }
        for other in 0..self.blocks.len() {
            let kept = self.blocks[other].kept;
            let here = kept.rack == rack && self.holder.get(&kept.node) == Some(&other);
            if here && seen.nodes.insert(kept.node) && self.route(other, seen) {
                self.holder.remove(&kept.node);
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn slot(rack: u32, node: u32) -> Slot {
        Slot { node: NodeId(rack * 16 + node), rack }
    }

    /// Tries every choice of one copy a block.
    fn brute(capacity: &BTreeMap<u32, usize>, blocks: &[Vec<Slot>], kept: &mut Vec<Slot>) -> bool {
        let Some(copies) = blocks.get(kept.len()) else { return true };
        for at in copies {
            let beside = kept.iter().filter(|other| other.rack == at.rack).count();
            let room = capacity.get(&at.rack).copied().unwrap_or(0);
            if beside >= room || kept.iter().any(|other| other.node == at.node) {
                continue;
            }
            kept.push(*at);
            if brute(capacity, blocks, kept) {
                return true;
            }
            kept.pop();
        }
        false
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// A layout would be refused although it survives, or taken although a rack's failure loses it.
        #[test]
        fn the_flow_says_what_trying_everything_says(
            capacity in prop::collection::btree_map(0u32..4, 0usize..4, 1..5),
            blocks in prop::collection::vec(prop::collection::btree_set((0u32..4, 0u32..3), 1..4), 1..9),
        ) {
            let mut flow = SurvivorFlow::new(capacity.clone());
            let mut taken: Vec<Vec<Slot>> = Vec::new();
            for block in &blocks {
                let copies: Vec<Slot> = block.iter().map(|(rack, node)| slot(*rack, *node)).collect();
                taken.push(copies.clone());
                let possible = brute(&capacity, &taken, &mut Vec::new());
                let before: Vec<Slot> = (0..flow.blocks()).map(|block| flow.kept(block)).collect();
                prop_assert_eq!(flow.try_add(&copies), possible, "{:?}", taken);
                flow.check_invariants();
                if !possible {
                    taken.pop();
                    let after: Vec<Slot> = (0..flow.blocks()).map(|block| flow.kept(block)).collect();
                    prop_assert_eq!(before, after, "a refused block changed something");
                }
                prop_assert_eq!(flow.blocks(), taken.len());
            }
        }
    }

    /// The whole stripe would be drawn anew where moving one survivor is enough.
    #[test]
    fn others_move_on() {
        let mut flow = SurvivorFlow::new([(0, 1), (1, 1), (2, 1)]);
        assert!(flow.try_add(&[slot(0, 0), slot(1, 0)]));
        assert!(flow.try_add(&[slot(0, 1), slot(2, 0)]));
        assert!(flow.try_add(&[slot(0, 2)]), "the first block can stay in rack 1");
        assert_eq!([flow.kept(0), flow.kept(1), flow.kept(2)], [slot(1, 0), slot(2, 0), slot(0, 2)]);
        assert!(!flow.try_add(&[slot(0, 3), slot(1, 3), slot(2, 3)]), "three racks keep one each");
        assert!(!flow.try_add(&[]));
        flow.set_capacity(3, 1);
        flow.bar(slot(3, 0).node);
        assert!(!flow.try_add(&[slot(3, 0)]));
        assert!(flow.try_keep(&[slot(0, 4), slot(3, 1)], slot(3, 1)));
        flow.check_invariants();
    }
}
