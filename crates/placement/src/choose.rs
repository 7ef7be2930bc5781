//! Choice of the disks of a new placement group: least used first (as ChubaoFS §2.3.1 places partitions), in
//! distinct failure domains.
//!
//! Invariants: never two members on one disk. As many distinct hosts as there are (up to the members wanted), and
//! members spread over hosts as evenly as possible; within that, over racks as evenly as possible, so members are
//! in distinct racks whenever there are enough. Where domains leave a choice, the disk with the smallest
//! (open groups + 1) / free bytes is taken: open groups fill at the same pace, so a disk with half the space gets
//! half the groups, and a group just made counts at once. The primary is the member with the smallest
//! (primaries + 1) / free bytes.
//!
//! Not here: whether a disk is in service, and its reserve: the caller offers only disks that may be used.
use cairn_types::{DiskId, NodeId};
use std::cmp::Ordering;

/// A disk that may carry new placement groups.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskCandidate {
    pub disk: DiskId,
    pub node: NodeId,
    /// Number of the rack, from [`Domains`](crate::Domains).
    pub rack: u32,
    /// Number of the host.
    pub host: u32,
    /// Bytes that placement groups may still fill.
    pub free_bytes: u64,
    /// Groups on this disk that take new chunks.
    pub open_pgs: u32,
    /// Of these, how many have it as their primary.
    pub primaries: u32,
    /// Groups that it may still get.
    pub room: u32,
}

/// There are fewer disks than members.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{wanted} disks are needed, {have} can be used")]
pub struct TooFewDisks {
    pub wanted: usize,
    pub have: usize,
}

/// Chooses disks for any number of groups; each choice counts in the next.
#[derive(Clone, Debug)]
pub struct Chooser {
    disks: Vec<DiskCandidate>,
    seed: u64,
    racks: usize,
    hosts: usize,
}

impl Chooser {
    /// `seed` decides between equals. Disks without free bytes are left out; of a disk offered twice the first counts.
    pub fn new(disks: impl IntoIterator<Item = DiskCandidate>, seed: u64) -> Self {
        let mut disks: Vec<_> = disks.into_iter().filter(|d| d.free_bytes > 0).collect();
        disks.sort_by_key(|d| d.disk);
        disks.dedup_by_key(|d| d.disk);
        let count = |domain: fn(&DiskCandidate) -> u32| disks.iter().map(domain).max().map_or(0, |m| m as usize + 1);
        let (racks, hosts) = (count(|d| d.rack), count(|d| d.host));
        Self { disks, seed, racks, hosts }
    }

    /// Disks that can be used.
    pub fn disks(&self) -> usize {
        self.disks.iter().filter(|d| d.room > 0).count()
    }

    /// The members of the next group, the primary first.
    pub fn choose(&mut self, members: usize) -> Result<Vec<DiskId>, TooFewDisks> {
        let have = self.disks();
        if have < members {
            return Err(TooFewDisks { wanted: members, have });
        }
        self.seed = mix(self.seed);
        let mut spread = Spread::new(self.racks, self.hosts);
        let mut chosen: Vec<usize> = Vec::with_capacity(members);
        for _ in 0..members {
            let free = (0..self.disks.len()).filter(|i| self.disks[*i].room > 0 && !chosen.contains(i));
            let best = free.min_by(|a, b| self.compare(&spread, *a, *b)).expect("there are more disks than members");
            spread.add(&self.disks[best]);
            chosen.push(best);
        }
        let primary = (0..members).min_by(|a, b| self.compare_primaries(chosen[*a], chosen[*b]));
        if let Some(primary) = primary {
            chosen.swap(0, primary);
            self.disks[chosen[0]].primaries += 1;
        }
        for i in &chosen {
            self.disks[*i].open_pgs += 1;
            self.disks[*i].room -= 1;
        }
        Ok(chosen.into_iter().map(|i| self.disks[i].disk).collect())
    }

    fn compare(&self, spread: &Spread, a: usize, b: usize) -> Ordering {
        let (x, y) = (&self.disks[a], &self.disks[b]);
        let domains =
            |d: &DiskCandidate| (spread.hosts[d.host as usize], spread.racks[d.rack as usize], spread.node(d));
        domains(x)
            .cmp(&domains(y))
            .then_with(|| compare_ratio(x.open_pgs, x.free_bytes, y.open_pgs, y.free_bytes))
            .then_with(|| self.tie(x).cmp(&self.tie(y)))
    }

    fn compare_primaries(&self, a: usize, b: usize) -> Ordering {
        let (x, y) = (&self.disks[a], &self.disks[b]);
        compare_ratio(x.primaries, x.free_bytes, y.primaries, y.free_bytes).then_with(|| self.tie(x).cmp(&self.tie(y)))
    }

    /// Order among equals: differs from group to group, so that not always the same disks meet.
    fn tie(&self, disk: &DiskCandidate) -> (u64, DiskId) {
        (mix(self.seed ^ u64::from(disk.disk.get()).wrapping_mul(0x9e37_79b9_7f4a_7c15)), disk.disk)
    }
}

/// Compares (count + 1) / free without division.
fn compare_ratio(count_a: u32, free_a: u64, count_b: u32, free_b: u64) -> Ordering {
    let a = (u128::from(count_a) + 1) * u128::from(free_b);
    let b = (u128::from(count_b) + 1) * u128::from(free_a);
    a.cmp(&b)
}

/// How many members of the group each domain has so far.
struct Spread {
    racks: Vec<u32>,
    hosts: Vec<u32>,
    nodes: Vec<NodeId>,
}

impl Spread {
    fn new(racks: usize, hosts: usize) -> Self {
        Self { racks: vec![0; racks], hosts: vec![0; hosts], nodes: Vec::new() }
    }
    fn add(&mut self, disk: &DiskCandidate) {
        self.racks[disk.rack as usize] += 1;
        self.hosts[disk.host as usize] += 1;
        self.nodes.push(disk.node);
    }
    fn node(&self, disk: &DiskCandidate) -> usize {
        self.nodes.iter().filter(|n| **n == disk.node).count()
    }
}

/// A bijective scramble of 64 bits (the finalizer of SplitMix64).
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests;
