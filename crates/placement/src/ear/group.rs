//! A stripe group, planned as a whole: k column groups of copies and the erasure group that they become. Shard i is the
//! survivor of column i, then come the parities.
//!
//! Layouts of groups are few and serve many stripes, so remote racks are *chosen* and not drawn: survivors lie outside
//! of the core rack as far as there is room, spread over racks as evenly as possible, and parities keep the core rack's
//! places. What leaves it is m - c parities, or none.
//!
//! Invariants: those of a stripe ([`StripePlan`](super::StripePlan)); the members of a column are on distinct nodes,
//! and on distinct hosts where the rack has them; shards are on distinct nodes, and on distinct hosts likewise. Of
//! racks and disks the least used for their free space are taken, as by [`Chooser::choose`].
use super::flow::Slot;
use super::shape::{EarRefusal, EarShape};
use crate::choose::{Chooser, DiskCandidate, compare_ratio, mix};
use cairn_types::{DiskId, NodeId};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

/// One placement group of copies; becomes one data shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Column {
    /// The primary is first, in the core rack: writers of that rack are near it.
    pub members: Vec<DiskId>,
    /// Which member's copy stays.
    pub survivor: usize,
}

/// The members of a stripe group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupPlan {
    pub core_rack: u32,
    pub columns: Vec<Column>,
    pub parities: Vec<DiskId>,
    /// Racks that may fail after encoding.
    pub rack_failures: usize,
}

impl GroupPlan {
    /// The members of the erasure group: survivor i is shard i, then the parities.
    pub fn shards(&self) -> Vec<DiskId> {
        let survivors = self.columns.iter().map(|column| column.members[column.survivor]);
        survivors.chain(self.parities.iter().copied()).collect()
    }
}

impl Chooser {
    /// Plans the next stripe group. A disk carries a group more for each column and parity that it gets; a survivor's
    /// column becomes its shard and counts once.
    pub fn choose_stripe_group(&mut self, shape: &EarShape) -> Result<GroupPlan, EarRefusal> {
        self.seed = mix(self.seed);
        let mut nodes: BTreeMap<u32, BTreeSet<NodeId>> = BTreeMap::new();
        for disk in self.disks.iter().filter(|disk| disk.room > 0) {
            nodes.entry(disk.rack).or_default().insert(disk.node);
        }
        let nodes: BTreeMap<u32, usize> = nodes.into_iter().map(|(rack, nodes)| (rack, nodes.len())).collect();
        let load = RackLoad::of(self, |disk| disk.open_pgs);
        let mut racks: Vec<u32> = nodes.keys().copied().collect();
        racks.sort_by(|a, b| load.compare(*a, *b));
        // The core rack has all primaries: writers near each rack find as many groups.
        let primaries = RackLoad::of(self, |disk| disk.primaries);
        let mut cores = racks.clone();
        cores.sort_by(|a, b| primaries.compare(*a, *b));
        let mut refusal = EarRefusal::TooFewRacks {
            wanted: shape.racks_wanted(),
            have: 0,
            capacity: shape.rack_capacity(),
            fits: shape.shards(),
            survives: 0,
        };
        for core in &cores {
            let targets = shape.targets(&nodes, *core, &racks);
            let planned = shape.check(&nodes, *core).and_then(|()| shape.check(&targets, *core)).and_then(|()| {
                let mut draft = Draft::new(self.clone(), *shape, *core, nodes.clone(), targets);
                Ok((draft.plan()?, draft.chooser))
            });
            match planned {
                Ok((plan, chooser)) => {
                    *self = chooser;
                    return Ok(plan);
                }
                Err(error) => refusal = error,
            }
        }
        Err(refusal)
    }
}

/// How full racks are: groups on their disks, or primaries, for the free bytes of these.
struct RackLoad {
    racks: BTreeMap<u32, (u32, u64)>,
    seed: u64,
}

impl RackLoad {
    fn of(chooser: &Chooser, count: impl Fn(&DiskCandidate) -> u32) -> Self {
        let mut racks: BTreeMap<u32, (u32, u64)> = BTreeMap::new();
        for disk in &chooser.disks {
            let (groups, free) = racks.entry(disk.rack).or_default();
            *groups = groups.saturating_add(count(disk));
            *free = free.saturating_add(disk.free_bytes);
        }
        Self { racks, seed: chooser.seed }
    }

    fn compare(&self, a: u32, b: u32) -> Ordering {
        let tie = |rack: u32| mix(self.seed ^ u64::from(rack).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let ((groups_a, free_a), (groups_b, free_b)) = (self.racks[&a], self.racks[&b]);
        compare_ratio(groups_a, free_a, groups_b, free_b).then_with(|| (tie(a), a).cmp(&(tie(b), b)))
    }
}

/// A plan in the making.
struct Draft {
    chooser: Chooser,
    shape: EarShape,
    core: u32,
    /// Usable nodes of each rack.
    nodes: BTreeMap<u32, usize>,
    /// The same of racks that shards may lie in.
    targets: BTreeMap<u32, usize>,
    load: RackLoad,
    parity_load: RackLoad,
    /// Where shards are so far, with their hosts.
    shards: Vec<(Slot, u32)>,
    /// Columns with copies in a rack.
    columns: BTreeMap<u32, u32>,
}

impl Draft {
    fn new(
        chooser: Chooser,
        shape: EarShape,
        core: u32,
        nodes: BTreeMap<u32, usize>,
        targets: BTreeMap<u32, usize>,
    ) -> Self {
        let load = RackLoad::of(&chooser, |disk| disk.open_pgs);
        let parity_load = RackLoad::of(&chooser, |disk| disk.parities);
        Self { chooser, shape, core, nodes, targets, load, parity_load, shards: Vec::new(), columns: BTreeMap::new() }
    }

    fn plan(&mut self) -> Result<GroupPlan, EarRefusal> {
        let mut columns = Vec::new();
        for _ in 0..self.shape.k() {
            columns.push(self.column()?);
        }
        let mut parities = Vec::new();
        for _ in 0..self.shape.m() {
            parities.push(self.parity()?);
        }
        let rack_failures = self.shape.rack_failures();
        Ok(GroupPlan { core_rack: self.core, columns, parities, rack_failures })
    }

    fn held(&self, rack: u32) -> usize {
        self.shards.iter().filter(|(slot, _)| slot.rack == rack).count()
    }

    /// Whether a rack has a place for one more shard.
    fn open(&self, rack: u32) -> bool {
        self.targets.get(&rack).is_some_and(|nodes| self.held(rack) < self.shape.rack_capacity().min(*nodes))
    }

    /// The rack with fewest shards and columns of this group, then the least used.
    fn emptiest(&self, racks: impl Iterator<Item = u32>, load: &RackLoad) -> Option<u32> {
        let columns = |rack: &u32| (self.held(*rack), self.columns.get(rack).copied().unwrap_or(0));
        racks.min_by(|a, b| columns(a).cmp(&columns(b)).then_with(|| load.compare(*a, *b)))
    }

    fn column(&mut self) -> Result<Column, EarRefusal> {
        let remotes = self.nodes.iter().filter(|(rack, nodes)| self.shape.takes_copies(self.core, **rack, **nodes));
        let remotes: Vec<u32> = remotes.map(|(rack, _)| *rack).collect();
        let remote = self.emptiest(remotes.iter().copied().filter(|rack| self.open(*rack)), &self.load);
        // Where no other rack has a place for a survivor, it is the copy in the core rack.
        let survivor = usize::from(remote.is_some());
        let Some(remote) = remote.or_else(|| self.emptiest(remotes.iter().copied(), &self.load)) else {
            return Err(EarRefusal::NoRemoteRack { nodes: self.shape.copies() - 1 });
        };
        *self.columns.entry(remote).or_default() += 1;
        let mut members = vec![self.member(self.core, &[], survivor == 0)?];
        for copy in 1..self.shape.copies() {
            members.push(self.member(remote, &members, survivor == copy)?);
        }
        self.chooser.disks[members[0]].primaries += 1;
        Ok(Column { members: members.iter().map(|member| self.chooser.disks[*member].disk).collect(), survivor })
    }

    /// In the core rack while it has a place, then in the rack with fewest shards.
    fn parity(&mut self) -> Result<DiskId, EarRefusal> {
        let core = Some(self.core).filter(|core| self.open(*core));
        let open = self.targets.keys().copied().filter(|rack| self.open(*rack));
        let rack = core.or_else(|| self.emptiest(open, &self.parity_load));
        let rack = rack.expect("the shape was checked: there is a place for every shard");
        let member = self.member(rack, &[], true)?;
        self.chooser.disks[member].parities += 1;
        Ok(self.chooser.disks[member].disk)
    }

    /// Takes a disk of a rack, on no node of `beside`; one that keeps a shard is on no node with another one.
    fn member(&mut self, rack: u32, beside: &[usize], shard: bool) -> Result<usize, EarRefusal> {
        let disks = &self.chooser.disks;
        let fits = |i: &usize| {
            let disk = &disks[*i];
            let apart = beside.iter().all(|other| disks[*other].node != disk.node);
            let alone = !shard || self.shards.iter().all(|(slot, _)| slot.node != disk.node);
            disk.rack == rack && disk.room > 0 && apart && alone
        };
        let crowd = |disk: &DiskCandidate| {
            let copies = beside.iter().filter(|other| disks[**other].host == disk.host).count();
            let shards = self.shards.iter().filter(|(_, host)| shard && *host == disk.host).count();
            [copies, shards]
        };
        let best = (0..disks.len()).filter(fits).min_by(|a, b| {
            let (x, y) = (&disks[*a], &disks[*b]);
            crowd(x).cmp(&crowd(y)).then_with(|| self.chooser.compare(x, y))
        });
        let best = best.ok_or(EarRefusal::NoRoom { rack })?;
        let DiskCandidate { node, host, .. } = disks[best];
        if shard {
            self.shards.push((Slot { node, rack }, host));
        }
        self.chooser.take(&[best]);
        Ok(best)
    }
}

#[cfg(test)]
pub(crate) mod tests;
