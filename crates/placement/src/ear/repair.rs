//! Repair of a stripe group that is filling: who may take the place of a member so that encoding still downloads
//! nothing across racks and moves nothing afterwards.
//!
//! Invariant: a successor is found exactly if a usable disk keeps the property: the primary's in the core rack, another
//! copy's outside of it, and all columns together with survivors on distinct nodes, at most c shards to a rack.
//!
//! Not here: an encoded group, whose shards are repaired as those of any erasure group, and what to do where nobody
//! keeps the property: the caller then repairs as usual and says that the group encodes across racks.
use super::flow::{Slot, SurvivorFlow};
use super::shape::EarShape;
use crate::choose::{Chooser, DiskCandidate, Seat, mix};
use cairn_types::{DiskId, NodeId};
use std::collections::{BTreeMap, BTreeSet};

/// Where the members of a column are, the primary first, and which of them keeps the shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ColumnSeats {
    pub members: Vec<Seat>,
    pub survivor: usize,
}

/// Where the members of a stripe group are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StripeSeats {
    pub shape: EarShape,
    pub core_rack: u32,
    pub columns: Vec<ColumnSeats>,
    pub parities: Vec<Seat>,
    /// Nodes that parities could go to instead; none: they are made, and stay.
    pub nodes: Vec<Seat>,
}

/// A member of a stripe group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EarMember {
    /// A member of a column; number 0 is in the core rack.
    Copy {
        column: usize,
        member: usize,
    },
    Parity(usize),
}

/// The disk that takes a member's place, and which member of each column keeps the shard from then on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EarSuccessor {
    pub disk: DiskId,
    pub survivors: Vec<usize>,
}

/// Why nobody can take a member's place and keep the property.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoEarSuccessor {
    #[error("no other disk is in service")]
    NoDisk,
    #[error("no other node of the core rack, number {rack}, can be used")]
    CoreRack { rack: u32 },
    #[error("with any other disk the shards could not lie on distinct nodes with at most {capacity} to a rack")]
    NoMatching { capacity: usize },
    #[error("no disk that keeps the shards apart has room for it")]
    NoSpace,
}

impl StripeSeats {
    /// Which member of each column keeps the shard if `member` moves to `seat`; `None` if the property is lost. Others
    /// than today only where today's cannot stay.
    pub fn with(&self, member: EarMember, seat: Seat) -> Option<Vec<usize>> {
        let racks = self.shard_racks(seat.rack);
        if let EarMember::Copy { column, member } = member {
            if !self.near_enough(column, member, seat) {
                return None;
            }
            // Who keeps no shard may be on any node: all others stay as they are.
            if member != self.columns[column].survivor && racks.is_none() {
                return Some(self.columns.iter().map(|column| column.survivor).collect());
            }
        }
        let mut moved = self.clone();
        match member {
            EarMember::Copy { column, member } => {
                moved.columns[column].members[member] = seat;
                moved.survivors(racks.as_ref(), Some(column)).or_else(|| moved.arranged_anew())
            }
            EarMember::Parity(parity) => {
                moved.parities[parity] = seat;
                moved.survivors(racks.as_ref(), None)
            }
        }
    }

    /// Survivors if the parities, which nobody has made yet, go elsewhere.
    fn arranged_anew(&self) -> Option<Vec<usize>> {
        let members: Vec<Vec<Seat>> = self.columns.iter().map(|column| column.members.clone()).collect();
        let anew = StripeSeats::arrange(self.shape, self.core_rack, &members, &self.nodes)?;
        Some(anew.columns.iter().map(|column| column.survivor).collect())
    }

    /// The primary in the core rack, the others outside, and no two on one node.
    fn near_enough(&self, column: usize, member: usize, seat: Seat) -> bool {
        let mut others = self.columns[column].members.iter().enumerate().filter(|(i, _)| *i != member);
        (seat.rack == self.core_rack) == (member == 0) && others.all(|(_, other)| other.node != seat.node)
    }

    /// Racks that may hold shards: all, or with target racks those that do, and one more while there are fewer.
    fn shard_racks(&self, new: u32) -> Option<BTreeSet<u32>> {
        let targets = self.shape.target_racks()?;
        let survivors = self.columns.iter().map(|column| column.members[column.survivor].rack);
        let mut racks: BTreeSet<u32> = survivors.chain(self.parities.iter().map(|seat| seat.rack)).collect();
        for rack in [self.core_rack, new] {
            if racks.len() < targets {
                racks.insert(rack);
            }
        }
        Some(racks)
    }

    /// Survivors beside the parities where they are; the column `last` gives way to the others.
    fn survivors(&self, racks: Option<&BTreeSet<u32>>, last: Option<usize>) -> Option<Vec<usize>> {
        let may_hold = |rack: u32| racks.is_none_or(|racks| racks.contains(&rack));
        let mut capacity: BTreeMap<u32, usize> = BTreeMap::new();
        for seat in self.columns.iter().flat_map(|column| &column.members).filter(|seat| may_hold(seat.rack)) {
            capacity.insert(seat.rack, self.shape.rack_capacity());
        }
        let mut barred = BTreeSet::new();
        for seat in &self.parities {
            let left = capacity.entry(seat.rack).or_insert(self.shape.rack_capacity());
            if !may_hold(seat.rack) || *left == 0 || !barred.insert(seat.node) {
                return None;
            }
            *left -= 1;
        }
        let mut flow = SurvivorFlow::new(capacity);
        barred.into_iter().for_each(|node| flow.bar(node));
        let mut order: Vec<usize> = (0..self.columns.len()).collect();
        order.sort_by_key(|column| Some(*column) == last);
        for column in &order {
            let ColumnSeats { members, survivor } = &self.columns[*column];
            let copies: Vec<Slot> = members.iter().map(Seat::slot).collect();
            if !flow.try_keep(&copies, copies[*survivor]) {
                return None;
            }
        }
        let mut survivors = vec![0; order.len()];
        for (at, column) in order.into_iter().enumerate() {
            let kept = self.columns[column].members.iter().position(|seat| seat.slot() == flow.kept(at));
            survivors[column] = kept.expect("what is kept is a copy");
        }
        Some(survivors)
    }

    fn seat(&self, member: EarMember) -> Seat {
        match member {
            EarMember::Copy { column, member } => self.columns[column].members[member],
            EarMember::Parity(parity) => self.parities[parity],
        }
    }
}

impl Chooser {
    /// The disk that takes a member's place: one that keeps the property; of these one on a host without others of the
    /// column, then in the rack of the member that leaves, then with fewest survivors that change, then the least used.
    /// `taken` are disks that cannot be taken, `bytes` what it gets.
    pub fn ear_successor(
        &mut self,
        seats: &StripeSeats,
        member: EarMember,
        taken: &[DiskId],
        bytes: u64,
    ) -> Result<EarSuccessor, NoEarSuccessor> {
        self.seed = mix(self.seed);
        let free: Vec<usize> = (0..self.disks.len()).filter(|i| !taken.contains(&self.disks[*i].disk)).collect();
        if free.is_empty() {
            return Err(NoEarSuccessor::NoDisk);
        }
        let seat = |disk: &DiskCandidate| Seat { node: disk.node, rack: disk.rack, host: disk.host };
        // What disks of one node come to is the same.
        let mut known: BTreeMap<NodeId, Option<Vec<usize>>> = BTreeMap::new();
        let mut keep: Vec<(usize, Vec<usize>)> = Vec::new();
        for i in free {
            let at = seat(&self.disks[i]);
            let survivors = known.entry(at.node).or_insert_with(|| seats.with(member, at));
            keep.extend(survivors.clone().map(|survivors| (i, survivors)));
        }
        if keep.is_empty() {
            let near = |disk: &DiskCandidate| match member {
                EarMember::Copy { column, member: 0 } => seats.near_enough(column, 0, seat(disk)),
                _ => true,
            };
            let any = self.disks.iter().any(|disk| !taken.contains(&disk.disk) && near(disk));
            let capacity = seats.shape.rack_capacity();
            let no_node = NoEarSuccessor::CoreRack { rack: seats.core_rack };
            return Err(if any { NoEarSuccessor::NoMatching { capacity } } else { no_node });
        }
        let lost = seats.seat(member);
        let rank = |i: usize, survivors: &[usize]| {
            let disk = &self.disks[i];
            let changed = seats.columns.iter().zip(survivors).filter(|(column, new)| column.survivor != **new).count();
            let beside = match member {
                EarMember::Copy { column, .. } => {
                    seats.columns[column].members.iter().filter(|seat| **seat != lost && seat.host == disk.host).count()
                }
                EarMember::Parity(_) => seats.parities.iter().filter(|seat| seat.host == disk.host).count(),
            };
            (beside, disk.rack != lost.rack, changed)
        };
        let fits = |i: usize| self.disks[i].room > 0 && self.disks[i].free_bytes > bytes;
        let best = keep.into_iter().filter(|(i, _)| fits(*i)).min_by(|(a, x), (b, y)| {
            rank(*a, x).cmp(&rank(*b, y)).then_with(|| self.compare(&self.disks[*a], &self.disks[*b]))
        });
        let (best, survivors) = best.ok_or(NoEarSuccessor::NoSpace)?;
        self.disks[best].free_bytes -= bytes;
        self.take(&[best]);
        Ok(EarSuccessor { disk: self.disks[best].disk, survivors })
    }
}

#[cfg(test)]
mod tests;
