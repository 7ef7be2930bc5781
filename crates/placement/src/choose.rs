//! Choice of the disks of a new placement group: least used first (as ChubaoFS §2.3.1 places partitions), in
//! distinct failure domains.
//!
//! Invariants: never two members on one disk. For copies ([`Chooser::choose`]): as many distinct hosts as there are (up
//! to the members wanted), and members spread over hosts as evenly as possible; within that, over racks as evenly as
//! possible, so members are in distinct racks whenever there are enough. For shards ([`Chooser::choose_shards`]), of
//! which several are in one domain where domains are few: over racks as evenly as possible, so that none has more than
//! ⌈(k + m) ÷ racks⌉ if its disks allow; within a rack over hosts as evenly as possible; and no host has more than m as
//! long as others have room, so that losing one loses nothing.
//!
//! Where domains leave a choice, the disk with the smallest (open groups + 1) / free bytes is taken: open groups fill
//! at the same pace, so a disk with half the space gets half the groups, and a group just made counts at once. The
//! primary is the member with the smallest (primaries + 1) / free bytes, and parity goes to those with the smallest
//! (parities + 1) / free bytes: reads do not touch it, so data and work spread over all disks.
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
    /// Of these, how many keep parity on it.
    pub parities: u32,
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

/// Where a member of a group is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seat {
    pub node: NodeId,
    pub rack: u32,
    pub host: u32,
}

/// What a disk has to be to take the place of another one in a group.
#[derive(Clone, Copy, Debug)]
pub struct Vacancy<'a> {
    /// Where the disk is (or was) that leaves.
    pub lost: Seat,
    /// Where the other members are.
    pub others: &'a [Seat],
    /// Disks that cannot be taken: those of the group.
    pub taken: &'a [DiskId],
    /// Bytes that it gets.
    pub bytes: u64,
    /// Other members that may be beside it on its host, and in its rack, even if the one that leaves had fewer.
    pub beside: [usize; 2],
}

/// Why no disk can take the place of another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoSuccessor {
    #[error("no other disk is in service")]
    NoDisk,
    #[error("every other disk is in a rack or on a host that has other members of the group")]
    Domain,
    #[error("no other disk outside the racks and hosts of the other members has room for it")]
    NoSpace,
}

/// Chooses disks for any number of groups; each choice counts in the next.
#[derive(Clone, Debug)]
pub struct Chooser {
    pub(crate) disks: Vec<DiskCandidate>,
    pub(crate) seed: u64,
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

    /// How many disks can be used.
    pub fn disks(&self) -> usize {
        self.disks.iter().filter(|d| d.room > 0).count()
    }

    /// The members of the next group of copies, the primary first.
    pub fn choose(&mut self, members: usize) -> Result<Vec<DiskId>, TooFewDisks> {
        let mut chosen = self.pick(members, |spread, d| [spread.host(d), spread.rack(d), spread.node(d), 0])?;
        self.primary_first(&mut chosen);
        Ok(self.take(&chosen))
    }

    /// The members of the next erasure group: `k` for data, the primary first, then `m` for parity.
    pub fn choose_shards(&mut self, k: usize, m: usize) -> Result<Vec<DiskId>, TooFewDisks> {
        let mut chosen = self.pick(k + m, |spread, d| {
            let beyond = u32::from(spread.host(d) >= m as u32);
            [beyond, spread.rack(d), spread.host(d), spread.node(d)]
        })?;
        // Any order of the data: the one in which they were taken goes rack by rack.
        chosen.sort_by_key(|i| self.tie(&self.disks[*i]));
        chosen.sort_by(|a, b| {
            let (x, y) = (&self.disks[*a], &self.disks[*b]);
            compare_ratio(y.parities, y.free_bytes, x.parities, x.free_bytes)
                .then_with(|| compare_ratio(x.primaries, x.free_bytes, y.primaries, y.free_bytes))
        });
        self.primary_first(&mut chosen[..k]);
        chosen[k..].iter().for_each(|i| self.disks[*i].parities += 1);
        Ok(self.take(&chosen))
    }

    /// As [`choose_shards`](Self::choose_shards), where too few disks have room: up to m - 1 of `full`, which have
    /// none, make up the number. They keep the last parity shards, which reads need last.
    pub fn choose_shards_with(
        &mut self,
        k: usize,
        m: usize,
        full: &[DiskCandidate],
    ) -> Result<Vec<DiskId>, TooFewDisks> {
        let have = self.disks();
        let lacks = (k + m).saturating_sub(have);
        let usable = |disk: &DiskId| self.disks.iter().any(|d| d.disk == *disk && d.room > 0);
        let mut spare: Vec<DiskCandidate> = full.iter().copied().filter(|d| !usable(&d.disk)).collect();
        if lacks >= m || spare.len() < lacks {
            return Err(TooFewDisks { wanted: k + m, have });
        }
        let mut chosen = self.choose_shards(k, m - lacks)?;
        spare.sort_by_key(|d| (d.open_pgs, self.tie(d)));
        chosen.extend(spare.iter().take(lacks).map(|d| d.disk));
        Ok(chosen)
    }

    /// The disk that takes the place of another one. Domains are kept: it has no more other members beside it in its
    /// rack, and on its host, than the one that leaves had. Of several the one with the fewest, then the least used.
    pub fn successor(&mut self, vacancy: &Vacancy<'_>) -> Result<DiskId, NoSuccessor> {
        self.seed = mix(self.seed);
        let beside = |seat: Seat| {
            let count = |same: &dyn Fn(&Seat) -> bool| vacancy.others.iter().filter(|other| same(other)).count();
            let host = count(&|other| other.host == seat.host);
            [host, count(&|other| other.rack == seat.rack), count(&|other| other.node == seat.node)]
        };
        let seat = |disk: &DiskCandidate| Seat { node: disk.node, rack: disk.rack, host: disk.host };
        let [host, rack, _] = beside(vacancy.lost);
        let most = [host.max(vacancy.beside[0]), rack.max(vacancy.beside[1])];
        let free: Vec<usize> =
            (0..self.disks.len()).filter(|i| !vacancy.taken.contains(&self.disks[*i].disk)).collect();
        if free.is_empty() {
            return Err(NoSuccessor::NoDisk);
        }
        let apart = |i: &usize| beside(seat(&self.disks[*i])).iter().zip(most).all(|(has, most)| *has <= most);
        let apart: Vec<usize> = free.into_iter().filter(apart).collect();
        if apart.is_empty() {
            return Err(NoSuccessor::Domain);
        }
        let fits = |i: &usize| self.disks[*i].room > 0 && self.disks[*i].free_bytes > vacancy.bytes;
        let best = apart.into_iter().filter(fits).min_by(|a, b| {
            let (x, y) = (&self.disks[*a], &self.disks[*b]);
            beside(seat(x)).cmp(&beside(seat(y))).then_with(|| self.compare(x, y))
        });
        let best = best.ok_or(NoSuccessor::NoSpace)?;
        self.disks[best].free_bytes -= vacancy.bytes;
        self.take(&[best]);
        Ok(self.disks[best].disk)
    }

    /// Disks that can be used.
    pub fn open(&self) -> impl Iterator<Item = DiskId> + '_ {
        self.disks.iter().filter(|d| d.room > 0).map(|d| d.disk)
    }

    /// A disk gets no more groups.
    pub fn close(&mut self, disk: DiskId) {
        self.disks.iter_mut().filter(|d| d.disk == disk).for_each(|d| d.room = 0);
    }

    /// Takes the best disk by `domains`, then by use, again and again.
    fn pick(
        &mut self,
        members: usize,
        domains: impl Fn(&Spread, &DiskCandidate) -> [u32; 4],
    ) -> Result<Vec<usize>, TooFewDisks> {
        let have = self.disks();
        if have < members {
            return Err(TooFewDisks { wanted: members, have });
        }
        self.seed = mix(self.seed);
        let mut spread = Spread::new(self.racks, self.hosts);
        let mut chosen: Vec<usize> = Vec::with_capacity(members);
        for _ in 0..members {
            let free = (0..self.disks.len()).filter(|i| self.disks[*i].room > 0 && !chosen.contains(i));
            let best = free.min_by(|a, b| {
                let (x, y) = (&self.disks[*a], &self.disks[*b]);
                domains(&spread, x).cmp(&domains(&spread, y)).then_with(|| self.compare(x, y))
            });
            let best = best.expect("there are more disks than members");
            spread.add(&self.disks[best]);
            chosen.push(best);
        }
        Ok(chosen)
    }

    /// Moves the one that is the primary of fewest groups to the front.
    fn primary_first(&mut self, chosen: &mut [usize]) {
        let primary = (0..chosen.len()).min_by(|a, b| self.compare_primaries(chosen[*a], chosen[*b]));
        if let Some(primary) = primary {
            chosen.swap(0, primary);
            self.disks[chosen[0]].primaries += 1;
        }
    }

    pub(crate) fn take(&mut self, chosen: &[usize]) -> Vec<DiskId> {
        for i in chosen {
            self.disks[*i].open_pgs += 1;
            self.disks[*i].room -= 1;
        }
        chosen.iter().map(|i| self.disks[*i].disk).collect()
    }

    pub(crate) fn compare(&self, x: &DiskCandidate, y: &DiskCandidate) -> Ordering {
        compare_ratio(x.open_pgs, x.free_bytes, y.open_pgs, y.free_bytes).then_with(|| self.tie(x).cmp(&self.tie(y)))
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
pub(crate) fn compare_ratio(count_a: u32, free_a: u64, count_b: u32, free_b: u64) -> Ordering {
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
    fn rack(&self, disk: &DiskCandidate) -> u32 {
        self.racks[disk.rack as usize]
    }
    fn host(&self, disk: &DiskCandidate) -> u32 {
        self.hosts[disk.host as usize]
    }
    fn node(&self, disk: &DiskCandidate) -> u32 {
        self.nodes.iter().filter(|n| **n == disk.node).count() as u32
    }
}

/// A bijective scramble of 64 bits (the finalizer of SplitMix64).
pub(crate) fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests;
