//! What is to be laid out, and whether a cluster can hold it: copies, shards, and how many shards a rack may hold.
//!
//! Invariant: a cluster that [`EarShape::check`] accepts has room for every shard of a stripe on a node of its own,
//! with at most c in a rack, and survivors only where copies can lie. So drawing and planning end.
use std::collections::BTreeMap;

/// Copies before, shards after, and the limit of shards a rack.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct EarShape {
    copies: usize,
    k: usize,
    m: usize,
    rack_capacity: usize,
    target_racks: Option<usize>,
}

/// Why a stripe cannot be laid out; says what is missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EarRefusal {
    #[error("{copies} copies cannot be encoded in one rack: one has to be in the core rack and at least one elsewhere")]
    TooFewCopies { copies: usize },
    #[error("a stripe needs at least one data shard and one parity shard, and a rack has to hold at least one of them")]
    EmptyShape,
    #[error("{targets} target racks are too few where one holds at most {capacity} of the shards: {wanted} are needed")]
    TooFewTargets { targets: usize, wanted: usize, capacity: usize },
    #[error(
        "{wanted} racks are needed where one holds at most {capacity} of the shards, {have} can be used; with {fits} to a \
         rack it would fit (rack failures survived: {survives})"
    )]
    TooFewRacks { wanted: usize, have: usize, capacity: usize, fits: usize, survives: usize },
    #[error("rack {rack} has no node that can be used, so it cannot be a core rack")]
    EmptyCoreRack { rack: u32 },
    #[error("no rack besides the core rack has {nodes} nodes for the other copies of a block")]
    NoRemoteRack { nodes: usize },
    #[error("the racks have nodes for {have} of {wanted} shards, with at most {capacity} to a rack and one to a node")]
    TooFewNodes { wanted: usize, have: usize, capacity: usize },
    #[error(
        "the racks that copies can lie in have nodes for {have} of {wanted} survivors, with at most {capacity} to a rack"
    )]
    TooFewSurvivors { wanted: usize, have: usize, capacity: usize },
    #[error("the disks of rack {rack} have no room for as many more groups")]
    NoRoom { rack: u32 },
}

impl EarShape {
    /// `copies` of each of `k` blocks, later `k + m` shards with at most `rack_capacity` (the paper's c) in a rack.
    pub fn new(copies: usize, k: usize, m: usize, rack_capacity: usize) -> Result<Self, EarRefusal> {
        if copies < 2 {
            return Err(EarRefusal::TooFewCopies { copies });
        }
        if k == 0 || m == 0 || rack_capacity == 0 {
            return Err(EarRefusal::EmptyShape);
        }
        Ok(Self { copies, k, m, rack_capacity, target_racks: None })
    }

    /// The shape that survives most racks among those that fit into this many.
    pub fn fitting(copies: usize, k: usize, m: usize, racks: usize) -> Result<Self, EarRefusal> {
        Self::new(copies, k, m, (k + m).div_ceil(racks.max(1)))
    }

    /// The shape that survives most racks among those that racks with so many nodes can hold.
    pub fn safest(copies: usize, k: usize, m: usize, nodes: &BTreeMap<u32, usize>) -> Result<Self, EarRefusal> {
        let mut shape = Self::fitting(copies, k, m, nodes.len())?;
        loop {
            let tried = nodes.keys().map(|core| shape.check(nodes, *core));
            match tried.reduce(|best, next| best.or(next)) {
                Some(Ok(())) => return Ok(shape),
                Some(Err(refusal)) if shape.rack_capacity >= shape.shards() => return Err(refusal),
                None => return shape.check(nodes, 0).map(|()| shape),
                Some(Err(_)) => shape.rack_capacity += 1,
            }
        }
    }

    /// Shards lie in this many racks only (the paper's R′), the core rack among them.
    pub fn within(self, target_racks: usize) -> Result<Self, EarRefusal> {
        let wanted = self.racks_wanted();
        if target_racks < wanted {
            return Err(EarRefusal::TooFewTargets { targets: target_racks, wanted, capacity: self.rack_capacity });
        }
        Ok(Self { target_racks: Some(target_racks), ..self })
    }

    /// Copies of a block before encoding.
    pub fn copies(&self) -> usize {
        self.copies
    }
    /// Data shards: blocks of a stripe.
    pub fn k(&self) -> usize {
        self.k
    }
    /// Parity shards.
    pub fn m(&self) -> usize {
        self.m
    }
    /// All shards.
    pub fn shards(&self) -> usize {
        self.k + self.m
    }
    /// Most shards of a stripe in a rack (c).
    pub fn rack_capacity(&self) -> usize {
        self.rack_capacity
    }
    /// Racks that shards may lie in (R′), if fewer than all.
    pub fn target_racks(&self) -> Option<usize> {
        self.target_racks
    }
    /// Racks below which a stripe does not fit: ⌈(k + m) ÷ c⌉.
    pub fn racks_wanted(&self) -> usize {
        self.shards().div_ceil(self.rack_capacity)
    }
    /// How many racks may fail after encoding: ⌊m ÷ c⌋. Before it, one: copies lie in two racks.
    pub fn rack_failures(&self) -> usize {
        self.m / self.rack_capacity
    }

    /// Whether racks with this many usable nodes can hold a stripe with this core rack.
    pub fn check(&self, nodes: &BTreeMap<u32, usize>, core: u32) -> Result<(), EarRefusal> {
        let capacity = self.rack_capacity;
        let have = nodes.values().filter(|nodes| **nodes > 0).count();
        let wanted = self.racks_wanted();
        if have < wanted {
            let fits = self.shards().div_ceil(have.max(1));
            return Err(EarRefusal::TooFewRacks { wanted, have, capacity, fits, survives: self.m / fits });
        }
        if nodes.get(&core).is_none_or(|nodes| *nodes == 0) {
            return Err(EarRefusal::EmptyCoreRack { rack: core });
        }
        if !nodes.iter().any(|(rack, nodes)| self.takes_copies(core, *rack, *nodes)) {
            return Err(EarRefusal::NoRemoteRack { nodes: self.copies - 1 });
        }
        let slots = |racks: &mut dyn Iterator<Item = usize>| racks.map(|nodes| nodes.min(capacity)).sum::<usize>();
        let have = slots(&mut nodes.values().copied());
        if have < self.shards() {
            return Err(EarRefusal::TooFewNodes { wanted: self.shards(), have, capacity });
        }
        let near = |(rack, nodes): &(&u32, &usize)| **rack == core || self.takes_copies(core, **rack, **nodes);
        let have = slots(&mut nodes.iter().filter(near).map(|(_, nodes)| *nodes));
        if have < self.k {
            return Err(EarRefusal::TooFewSurvivors { wanted: self.k, have, capacity });
        }
        Ok(())
    }

    /// Whether the copies outside of the core rack can lie in this rack.
    pub(crate) fn takes_copies(&self, core: u32, rack: u32, nodes: usize) -> bool {
        rack != core && nodes >= self.copies - 1
    }

    /// The racks that shards may lie in: `core` and, of the others in the order given, those with most room.
    pub(crate) fn targets(&self, nodes: &BTreeMap<u32, usize>, core: u32, others: &[u32]) -> BTreeMap<u32, usize> {
        let mut others: Vec<u32> = others.iter().copied().filter(|rack| *rack != core).collect();
        others.sort_by_key(|rack| {
            let nodes = nodes[rack];
            std::cmp::Reverse((self.takes_copies(core, *rack, nodes), nodes.min(self.rack_capacity)))
        });
        let others = others.into_iter().take(self.target_racks.unwrap_or(usize::MAX) - 1);
        std::iter::once(core).chain(others).filter_map(|rack| Some((rack, *nodes.get(&rack)?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn racks(counts: &[usize]) -> BTreeMap<u32, usize> {
        counts.iter().enumerate().map(|(rack, nodes)| (rack as u32, *nodes)).collect()
    }

    /// Somebody would be told too late, or nothing, about what a cluster lacks.
    #[test]
    fn a_refusal_says_what_is_missing() {
        let shape = EarShape::new(3, 10, 4, 1).expect("a shape");
        assert_eq!(shape.check(&racks(&[2; 14]), 0), Ok(()));
        let refused = |shape: EarShape, counts: &[usize]| shape.check(&racks(counts), 0).unwrap_err();
        let few = refused(shape, &[5, 5, 5]);
        assert_eq!(few, EarRefusal::TooFewRacks { wanted: 14, have: 3, capacity: 1, fits: 5, survives: 0 });
        assert_eq!(
            few.to_string(),
            "14 racks are needed where one holds at most 1 of the shards, 3 can be used; with 5 to a rack it would fit \
             (rack failures survived: 0)"
        );
        assert_eq!(refused(shape, &[1; 14]), EarRefusal::NoRemoteRack { nodes: 2 });
        assert_eq!(refused(shape, &[&[0], [2; 14].as_slice()].concat()), EarRefusal::EmptyCoreRack { rack: 0 });
        let five = EarShape::fitting(3, 10, 4, 3).expect("a shape");
        assert_eq!((five.rack_capacity(), five.rack_failures()), (5, 0));
        assert_eq!(refused(five, &[4, 4, 4]), EarRefusal::TooFewNodes { wanted: 14, have: 12, capacity: 5 });
        let lean = EarShape::new(3, 6, 3, 3).expect("a shape");
        assert_eq!(
            refused(lean, &[2, 2, 1, 1, 1, 1, 1]),
            EarRefusal::TooFewSurvivors { wanted: 6, have: 4, capacity: 3 }
        );
        assert_eq!(EarShape::new(1, 10, 4, 1), Err(EarRefusal::TooFewCopies { copies: 1 }));
        assert_eq!(EarShape::new(3, 10, 4, 0), Err(EarRefusal::EmptyShape));
        assert_eq!(shape.within(13), Err(EarRefusal::TooFewTargets { targets: 13, wanted: 14, capacity: 1 }));
        assert_eq!(shape.within(14).expect("enough").target_racks(), Some(14));
    }

    /// Groups would survive fewer racks than they could, or none be made although some can.
    #[test]
    fn the_safest_shape_is_the_one_with_fewest_shards_in_a_rack() {
        let safest = |k, m, counts: &[usize]| EarShape::safest(3, k, m, &racks(counts));
        let capacity = |k, m, counts: &[usize]| safest(k, m, counts).expect("it fits").rack_capacity();
        assert_eq!(capacity(6, 3, &[2; 9]), 1);
        assert_eq!(capacity(6, 3, &[2; 8]), 2);
        assert_eq!(capacity(6, 3, &[3; 3]), 3);
        assert_eq!(capacity(3, 2, &[4, 4]), 3);
        assert_eq!(capacity(3, 2, &[4, 2, 1]), 2, "racks of different sizes");
        assert_eq!(capacity(3, 2, &[5, 2, 0]), 3, "two racks count, and one of them has few nodes");
        assert_eq!(safest(3, 2, &[9]), Err(EarRefusal::NoRemoteRack { nodes: 2 }));
        assert!(matches!(safest(6, 3, &[2, 2, 2]), Err(EarRefusal::TooFewNodes { wanted: 9, have: 6, .. })));
        assert!(safest(6, 3, &[]).is_err());
    }

    /// Users would be promised more racks than the layout survives.
    #[test]
    fn survived_racks_are_those_of_the_paper() {
        let survives = |c| EarShape::new(3, 10, 4, c).expect("a shape").rack_failures();
        assert_eq!([1, 2, 3, 4, 5].map(survives), [4, 2, 1, 1, 0]);
    }
}
