//! Where blocks lie under each policy, before and after encoding. What EAR does is `cairn-placement`'s.
use crate::setting::{Policy, Setting};
use anyhow::{Result, anyhow};
use cairn_env::rng::Rng;
use cairn_placement::ear::{EarCluster, EarShape, GroupPlan, Slot, StripeBuilder, StripePlan};
use cairn_placement::{Chooser, DiskCandidate};
use cairn_sim::SimRng;
use cairn_types::{DiskId, NodeId};
use std::collections::BTreeMap;

/// What an encoder does for one stripe.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StripeWork {
    /// Copies of each block.
    pub blocks: Vec<Vec<usize>>,
    pub parities: Vec<usize>,
    /// Blocks that have to move afterwards: from, to.
    pub moves: Vec<(usize, usize)>,
}

/// Gives out places for blocks and stripes of one run.
pub struct Layouts<'a> {
    setting: Setting,
    cluster: &'a EarCluster,
    shape: EarShape,
    chance: SimRng,
    /// With EAR: the stripe that each rack's writers fill.
    filling: Vec<Option<StripeBuilder<'a>>>,
    groups: Vec<GroupPlan>,
    /// Stripes that each process has encoded: groups take turns.
    turns: BTreeMap<usize, usize>,
}

/// The nodes of a setting, as the placement sees them.
pub fn cluster(setting: &Setting) -> EarCluster {
    let slot = |node: usize| Slot { node: NodeId(node as u32), rack: setting.rack_of(node) as u32 };
    EarCluster::new((0..setting.nodes()).map(slot))
}

fn disks(setting: &Setting) -> Vec<DiskCandidate> {
    let disk = |node: usize| DiskCandidate {
        disk: DiskId(node as u32),
        node: NodeId(node as u32),
        rack: setting.rack_of(node) as u32,
        host: node as u32,
        free_bytes: 1 << 42,
        open_pgs: 0,
        primaries: 0,
        parities: 0,
        room: u32::MAX,
    };
    (0..setting.nodes()).map(disk).collect()
}

fn node(slot: &Slot) -> usize {
    slot.node.0 as usize
}

impl<'a> Layouts<'a> {
    pub fn new(setting: &Setting, cluster: &'a EarCluster, seed: u64) -> Result<Self> {
        let mut shape = EarShape::new(setting.copies, setting.k, setting.m, setting.rack_capacity)?;
        if let Some(targets) = setting.target_racks {
            shape = shape.within(targets)?;
        }
        let chance = SimRng::derived(seed, "layout");
        let mut groups = Vec::new();
        if let Policy::Groups(count) = setting.policy {
            let mut chooser = Chooser::new(disks(setting), chance.u64());
            for _ in 0..count {
                groups.push(chooser.choose_stripe_group(&shape)?);
            }
        }
        let filling = (0..setting.racks).map(|_| None).collect();
        Ok(Self { setting: setting.clone(), cluster, shape, chance, filling, groups, turns: BTreeMap::new() })
    }

    /// The node where an encoding process runs.
    pub fn encoder(&mut self, process: usize) -> usize {
        let (racks, per_rack) = (self.setting.racks, self.setting.nodes_per_rack);
        match self.setting.policy {
            Policy::Random | Policy::RandomRelocating => self.chance.index(racks * per_rack),
            Policy::Ear | Policy::Groups(_) => process % racks * per_rack + self.chance.index(per_rack),
        }
    }

    /// The copies of a block that is written; the first is at the writer.
    pub fn next_write(&mut self) -> Result<Vec<usize>> {
        match self.setting.policy {
            Policy::Random | Policy::RandomRelocating => Ok(self.random_copies()),
            Policy::Ear => self.next_of_rack(),
            Policy::Groups(_) => {
                let group = self.chance.pick(&self.groups);
                let column = self.chance.pick(&group.columns);
                Ok(column.members.iter().map(|disk| disk.0 as usize).collect())
            }
        }
    }

    fn next_of_rack(&mut self) -> Result<Vec<usize>> {
        let rack = self.chance.index(self.setting.racks);
        let seed = self.chance.u64();
        let builder = match &mut self.filling[rack] {
            Some(builder) => builder,
            empty => empty.insert(StripeBuilder::new(self.cluster, self.shape, rack as u32, seed)?),
        };
        let copies = builder.next_block()?.iter().map(node).collect();
        if builder.blocks() == self.shape.k() {
            self.filling[rack] = None;
        }
        Ok(copies)
    }

    /// The next stripe of an encoding process that runs at this node, and the node that encodes it.
    pub fn next_stripe(&mut self, process: usize, encoder: usize) -> Result<(usize, StripeWork)> {
        let rack = self.setting.rack_of(encoder);
        match self.setting.policy {
            Policy::Random | Policy::RandomRelocating => Ok((encoder, self.random_stripe(rack))),
            Policy::Ear => {
                let builder = StripeBuilder::new(self.cluster, self.shape, rack as u32, self.chance.u64())?;
                let plan = builder.finish()?;
                plan.check_invariants(&self.shape);
                Ok((encoder, work_of(&plan)))
            }
            Policy::Groups(_) => self.group_stripe(process, rack, encoder),
        }
    }

    /// The groups of a core rack take turns; a node of the core rack with a parity encodes, if there is one.
    fn group_stripe(&mut self, process: usize, rack: usize, encoder: usize) -> Result<(usize, StripeWork)> {
        let groups: Vec<&GroupPlan> = self.groups.iter().filter(|group| group.core_rack as usize == rack).collect();
        let turn = self.turns.entry(process).or_default();
        let group = groups.get(*turn % groups.len().max(1)).ok_or_else(|| anyhow!("no group has core rack {rack}"))?;
        *turn += 1;
        let nodes = |disks: &[DiskId]| disks.iter().map(|disk| disk.0 as usize).collect::<Vec<usize>>();
        let parities = nodes(&group.parities);
        let encoder = parities.iter().copied().find(|node| self.setting.rack_of(*node) == rack).unwrap_or(encoder);
        let blocks = group.columns.iter().map(|column| nodes(&column.members)).collect();
        Ok((encoder, StripeWork { blocks, parities, moves: Vec::new() }))
    }

    fn random_copies(&mut self) -> Vec<usize> {
        let (racks, per_rack) = (self.setting.racks, self.setting.nodes_per_rack);
        let first = self.chance.index(racks);
        let other = (first + 1 + self.chance.index(racks - 1)) % racks;
        let mut copies = vec![first * per_rack + self.chance.index(per_rack)];
        while copies.len() < self.setting.copies {
            let next = other * per_rack + self.chance.index(per_rack);
            if !copies.contains(&next) {
                copies.push(next);
            }
        }
        copies
    }

    /// Random copies, of which random ones stay; parities in the encoder's rack while it has fewer than c shards, then
    /// in random racks with fewer. Survivors that are too many in their racks move.
    fn random_stripe(&mut self, rack: usize) -> StripeWork {
        let setting = self.setting.clone();
        let blocks: Vec<Vec<usize>> = (0..setting.k).map(|_| self.random_copies()).collect();
        let (mut shards, mut homeless): (Vec<usize>, Vec<usize>) = (Vec::new(), Vec::new());
        for copies in &blocks {
            let stays = *self.chance.pick(copies);
            let beside = shards.iter().filter(|node| setting.rack_of(**node) == setting.rack_of(stays)).count();
            let fits = beside < setting.rack_capacity && !shards.contains(&stays);
            if fits { shards.push(stays) } else { homeless.push(stays) }
        }
        let parities: Vec<usize> = (0..setting.m).map(|_| self.place(Some(rack), &mut shards)).collect();
        let charged = setting.policy == Policy::RandomRelocating;
        let homeless = if charged { homeless } else { Vec::new() };
        let moves = homeless.into_iter().map(|from| (from, self.place(None, &mut shards))).collect();
        StripeWork { blocks, parities, moves }
    }

    /// A random node for a shard: in `first` if that rack has room, otherwise in a random one that has.
    fn place(&mut self, first: Option<usize>, shards: &mut Vec<usize>) -> usize {
        let (racks, per_rack) = (self.setting.racks, self.setting.nodes_per_rack);
        let held = |rack: usize| shards.iter().filter(|node| **node / per_rack == rack).count();
        let open: Vec<usize> =
            (0..racks).filter(|rack| held(*rack) < self.setting.rack_capacity.min(per_rack)).collect();
        let rack = first.filter(|rack| open.contains(rack)).unwrap_or_else(|| *self.chance.pick(&open));
        loop {
            let node = rack * per_rack + self.chance.index(per_rack);
            if !shards.contains(&node) {
                shards.push(node);
                return node;
            }
        }
    }
}

fn work_of(plan: &StripePlan) -> StripeWork {
    let blocks = plan.blocks.iter().map(|copies| copies.iter().map(node).collect()).collect();
    StripeWork { blocks, parities: plan.parities.iter().map(node).collect(), moves: Vec::new() }
}
