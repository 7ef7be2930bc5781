//! Who keeps what of a stripe group as its members are now: survivors, and nodes for the parities.
//!
//! Nothing of it is stored while a group fills: copies move with repair, and parities go where there is room when they
//! are made. Invariants: an arrangement is found exactly if one exists: primaries in the core rack, other copies
//! outside of it, all shards on distinct nodes, at most c of them in a rack. Of all arrangements it is one with as few
//! survivors in the core rack as possible, whose places are then for parities.
use super::flow::{Slot, SurvivorFlow};
use super::repair::{ColumnSeats, StripeSeats};
use super::shape::EarShape;
use crate::choose::Seat;
use cairn_types::NodeId;
use std::collections::{BTreeMap, BTreeSet};

impl StripeSeats {
    /// Arranges a group whose columns have these members, the primary first. `nodes` can keep parities, those that are
    /// to be taken first in front. `None`: it cannot be encoded in its core rack without moving anything afterwards.
    pub fn arrange(shape: EarShape, core_rack: u32, columns: &[Vec<Seat>], nodes: &[Seat]) -> Option<StripeSeats> {
        if columns.len() != shape.k() || !columns.iter().all(|members| is_near(core_rack, members)) {
            return None;
        }
        let seats = || columns.iter().flatten().chain(nodes);
        let capacity: BTreeMap<u32, usize> = seats().map(|seat| (seat.rack, shape.rack_capacity())).collect();
        let blocks: Vec<Vec<Slot>> = columns.iter().map(|members| members.iter().map(Seat::slot).collect()).collect();
        let least = |in_core: usize| {
            let mut flow = SurvivorFlow::new(capacity.clone());
            flow.set_capacity(core_rack, in_core);
            // The other copies first: who is free at once is taken.
            let kept = blocks.iter().all(|copies| flow.try_add(&copies.iter().rev().copied().collect::<Vec<_>>()));
            kept.then_some(flow)
        };
        let mut flow = (0..=shape.rack_capacity()).find_map(least)?;
        flow.set_capacity(core_rack, shape.rack_capacity());
        for _ in 0..shape.m() {
            let mut open: Vec<Slot> = nodes.iter().map(Seat::slot).collect();
            open.sort_by_key(|slot| (slot.rack != core_rack, flow.used(slot.rack)));
            if !flow.try_add(&open) {
                return None;
            }
        }
        let column = |(at, members): (usize, &Vec<Seat>)| {
            let kept = flow.kept(at);
            let survivor = members.iter().position(|seat| seat.slot() == kept);
            ColumnSeats { members: members.clone(), survivor: survivor.expect("what is kept is a copy") }
        };
        let parity = |at: usize| {
            let kept = flow.kept(columns.len() + at);
            *nodes.iter().find(|seat| seat.slot() == kept).expect("what is kept was offered")
        };
        Some(StripeSeats {
            shape,
            core_rack,
            columns: columns.iter().enumerate().map(column).collect(),
            parities: (0..shape.m()).map(parity).collect(),
            nodes: nodes.to_vec(),
        })
    }
}

/// The primary in the core rack, the others outside, on nodes of their own.
fn is_near(core_rack: u32, members: &[Seat]) -> bool {
    let nodes: BTreeSet<NodeId> = members.iter().map(|seat| seat.node).collect();
    let placed = |(at, seat): (usize, &Seat)| (seat.rack == core_rack) == (at == 0);
    nodes.len() == members.len() && members.iter().enumerate().all(placed)
}

impl Seat {
    pub(crate) fn slot(&self) -> Slot {
        Slot { node: self.node, rack: self.rack }
    }
}

#[cfg(test)]
mod tests {
    use super::super::stripe::check_shards;
    use super::*;
    use proptest::prelude::*;

    fn seat(node: u32, rack: u32) -> Seat {
        Seat { node: NodeId(node), rack, host: node }
    }

    /// Nodes of racks, rack by rack.
    fn nodes(counts: &[usize]) -> Vec<Seat> {
        let of_rack = |(rack, count): (usize, &usize)| vec![rack as u32; *count];
        let racks: Vec<u32> = counts.iter().enumerate().flat_map(of_rack).collect();
        (0..).zip(racks).map(|(node, rack)| seat(node, rack)).collect()
    }

    /// Whether shards fit in any way: tries everything. Survivors in the core rack, of the way with fewest.
    fn least_in_core(shape: EarShape, core: u32, columns: &[Vec<Seat>], all: &[Seat]) -> Option<usize> {
        fn fits(shape: EarShape, shards: &[Seat]) -> bool {
            let beside = |same: &dyn Fn(&Seat) -> bool| shards.iter().filter(|other| same(other)).count();
            let apart = |at: &Seat| {
                beside(&|o| o.node == at.node) == 1 && beside(&|o| o.rack == at.rack) <= shape.rack_capacity()
            };
            shards.iter().all(apart)
        }
        fn parities(shape: EarShape, shards: &mut Vec<Seat>, all: &[Seat], left: usize) -> bool {
            fits(shape, shards)
                && (left == 0
                    || all.iter().enumerate().any(|(at, seat)| {
                        shards.push(*seat);
                        let found = parities(shape, shards, &all[at + 1..], left - 1);
                        shards.pop();
                        found
                    }))
        }
        fn survivors(
            shape: EarShape,
            shards: &mut Vec<Seat>,
            columns: &[Vec<Seat>],
            all: &[Seat],
            core: u32,
        ) -> Vec<usize> {
            if !fits(shape, shards) {
                return Vec::new();
            }
            let Some((first, rest)) = columns.split_first() else {
                let in_core = shards.iter().filter(|seat| seat.rack == core).count();
                return parities(shape, shards, all, shape.m()).then_some(in_core).into_iter().collect();
            };
            let mut found = Vec::new();
            for seat in first {
                shards.push(*seat);
                found.extend(survivors(shape, shards, rest, all, core));
                shards.pop();
            }
            found
        }
        survivors(shape, &mut Vec::new(), columns, all, core).into_iter().min()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        /// A group would be said to encode across racks although it need not, or the other way round; or parities would
        /// leave the core rack for nothing.
        #[test]
        fn an_arrangement_is_found_exactly_if_there_is_one(
            counts in prop::collection::vec(1usize..4, 2..5), copies in 2usize..4, k in 1usize..4, m in 1usize..3,
            c in 1usize..4, picks in prop::collection::vec(any::<usize>(), 12),
        ) {
            let shape = EarShape::new(copies, k, m, c).expect("a shape");
            let all = nodes(&counts);
            let (inside, outside): (Vec<Seat>, Vec<Seat>) = all.iter().partition(|seat| seat.rack == 0);
            prop_assume!(outside.len() >= copies - 1);
            let mut picks = picks.into_iter();
            let mut columns = Vec::new();
            for _ in 0..k {
                let mut members = vec![inside[picks.next().unwrap_or(0) % inside.len()]];
                let from = picks.next().unwrap_or(0);
                members.extend((0..copies - 1).map(|i| outside[(from + i) % outside.len()]));
                columns.push(members);
            }
            let found = StripeSeats::arrange(shape, 0, &columns, &all);
            let wanted = least_in_core(shape, 0, &columns, &all);
            prop_assert_eq!(found.is_some(), wanted.is_some());
            if let Some(seats) = found {
                let shards: Vec<Slot> = seats.columns.iter().map(|column| column.members[column.survivor].slot())
                    .chain(seats.parities.iter().map(Seat::slot)).collect();
                check_shards(&shards, &shape);
                prop_assert_eq!((seats.columns.len(), seats.parities.len()), (k, m));
                let in_core = seats.columns.iter().filter(|column| column.survivor == 0).count();
                prop_assert_eq!(Some(in_core), wanted);
            }
        }
    }

    /// Encoding would read across racks, or a copy be a parity's neighbour on one node.
    #[test]
    fn what_lies_otherwise_is_not_arranged() {
        let shape = EarShape::new(2, 1, 1, 1).expect("a shape");
        let all = nodes(&[2, 2, 1]);
        let arrange = |members: &[usize]| {
            let members = members.iter().map(|at| all[*at]).collect();
            StripeSeats::arrange(shape, 0, &[members], &all)
        };
        let good = arrange(&[0, 2]).expect("as planned");
        assert_eq!((good.columns[0].survivor, good.parities[0].rack), (1, 0), "the core rack's place is for parity");
        assert_eq!(arrange(&[2, 0]), None, "the primary is elsewhere");
        assert_eq!(arrange(&[0, 1]), None, "both are in the core rack");
        assert_eq!(StripeSeats::arrange(shape, 0, &[], &all), None, "columns are missing");
    }
}
