//! Choice of the members of a meta partition: least used nodes first (as ChubaoFS §2.3.1 places partitions), in
//! distinct failure domains, and with few different peers a node (its Raft sets, §2.5.1).
//!
//! Nodes that share a partition are *peers*: they exchange heartbeats whatever the number of partitions is. So a node
//! gets peers by sets of members that are new only until it has some; then its partitions go to sets that exist.
//!
//! | the least used node | gets |
//! |---|---|
//! | it and others that are about as used as all are have fewer than the usual number of peers | a new set with these |
//! | else, there is a set with it whose members are about as used as all are | that one, of several the least used |
//! | else, it has fewer than the usual number itself | a set with others that have a few more than usual |
//! | else, it has no set at all | one with those that have the fewest peers |
//! | else | nothing now: the next node is looked at |
//!
//! Invariants: never two members on one node; a set is never worse spread over hosts and racks than the least used
//! nodes alone would be; a node that is closed gets nothing, though its peers count. Where all nodes together are no
//! more than the usual peers, use alone decides.
//!
//! Not here: what use is and which nodes are closed (manager-core).
use crate::choose::mix;
use cairn_types::NodeId;
use std::collections::{BTreeMap, BTreeSet};

/// Bits behind the point of a node's fill: its use as a part of its bound.
const FILL_BITS: u32 = 32;
/// A set is about as used as all nodes are if no member is beyond what half of them have by more than this part of it,
/// and one partition.
const ABOUT: u64 = 16;
/// Least used nodes that are looked at before any set is good enough.
const STARTS: usize = 16;

/// A meta node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MetaCandidate {
    pub node: NodeId,
    /// Number of the rack, from [`Domains`](crate::Domains).
    pub rack: u32,
    /// Number of the host.
    pub host: u32,
    /// Bytes that its partitions take, or are expected to.
    pub used: u64,
    /// Bytes that they may take.
    pub max: u64,
    /// Partitions of which it is the first member, which leads in the beginning.
    pub firsts: u32,
    /// It gets no more partitions.
    pub closed: bool,
}

/// There are fewer nodes than members.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{wanted} meta nodes are needed, {have} can be used")]
pub struct TooFewNodes {
    pub wanted: usize,
    pub have: usize,
}

/// Most peers a node gets by new sets while there is another way: as many as of two sets of five, three of three.
pub const fn usual_peers(members: usize) -> usize {
    if members > 3 { 2 * (members - 1) } else { 6 }
}

/// Most peers a node gets as long as another one has any set at all.
pub const fn most_peers(members: usize) -> usize {
    usual_peers(members) + members.saturating_sub(1)
}

/// Members of any number of partitions; each choice counts in the next.
#[derive(Clone, Debug)]
pub struct MemberChooser {
    nodes: Vec<MetaCandidate>,
    /// Of each node, by its place in `nodes`.
    peers: Vec<BTreeSet<NodeId>>,
    /// Sets of members that there are, by places in `nodes`, in order.
    sets: BTreeSet<Vec<usize>>,
    /// Of each node, those that it is in.
    sets_of: Vec<Vec<Vec<usize>>>,
    /// What a partition is expected to take.
    bytes: u64,
    seed: u64,
}

impl MemberChooser {
    /// `partitions` are the members of those that there are, `bytes` is what a new one is expected to take, `seed`
    /// decides between equals. Of a node offered twice the first counts.
    pub fn new<'a>(
        nodes: impl IntoIterator<Item = MetaCandidate>,
        partitions: impl IntoIterator<Item = &'a [NodeId]>,
        bytes: u64,
        seed: u64,
    ) -> Self {
        let mut nodes: Vec<_> = nodes.into_iter().collect();
        nodes.sort_by_key(|node| node.node);
        nodes.dedup_by_key(|node| node.node);
        let (peers, sets_of) = (vec![BTreeSet::new(); nodes.len()], vec![Vec::new(); nodes.len()]);
        let mut chooser = Self { nodes, peers, sets: BTreeSet::new(), sets_of, bytes: bytes.max(1), seed };
        let mut seen: BTreeSet<Vec<NodeId>> = BTreeSet::new();
        for members in partitions {
            let mut members = members.to_vec();
            members.sort_unstable();
            if seen.insert(members.clone()) {
                chooser.note(&members);
            }
        }
        chooser
    }

    /// How many nodes can be used.
    pub fn open(&self) -> usize {
        self.nodes.iter().filter(|node| !node.closed).count()
    }

    /// The nodes that a node exchanges heartbeats with.
    pub fn peers(&self, node: NodeId) -> usize {
        self.place(node).map_or(0, |at| self.peers[at].len())
    }

    /// The members of the next partition, the one that leads first in front.
    pub fn choose(&mut self, members: usize) -> Result<Vec<NodeId>, TooFewNodes> {
        let have = self.open();
        if members == 0 || have < members {
            return Err(TooFewNodes { wanted: members, have });
        }
        self.seed = mix(self.seed);
        let mut chosen = self.best_set(members);
        let first = (0..chosen.len()).min_by_key(|i| (self.nodes[chosen[*i]].firsts, self.tie(chosen[*i])));
        chosen.swap(0, first.expect("there are members"));
        self.nodes[chosen[0]].firsts += 1;
        Ok(self.take(&chosen, self.bytes))
    }

    /// The node that becomes a member beside `others`, which stay; `bytes` is what the partition takes. Nobody of
    /// `not` is taken.
    pub fn beside(&mut self, others: &[NodeId], not: &[NodeId], bytes: u64) -> Option<NodeId> {
        self.seed = mix(self.seed);
        let usual = usual_peers(others.len() + 1);
        let stay: Vec<usize> = others.iter().filter_map(|node| self.place(*node)).collect();
        let limit = self.limit(&self.by_use());
        let free = (0..self.nodes.len()).filter(|i| {
            let node = &self.nodes[*i];
            !node.closed && !others.contains(&node.node) && !not.contains(&node.node)
        });
        let best = free.min_by_key(|i| {
            let all: Vec<usize> = stay.iter().copied().chain([*i]).collect();
            let new = self.new_peers(&stay, *i);
            let exceeds = !self.fits(&stay, *i, usual);
            (self.crowding(&all), exceeds, self.is_beyond(*i, limit), new, self.fill(*i), self.tie(*i))
        })?;
        let chosen: Vec<usize> = stay.into_iter().chain([best]).collect();
        self.nodes[best].used = self.nodes[best].used.saturating_add(bytes.max(self.bytes));
        self.remember(&chosen);
        Some(self.nodes[best].node)
    }

    fn best_set(&self, members: usize) -> Vec<usize> {
        let open = self.by_use();
        let (usual, most) = (usual_peers(members), most_peers(members));
        let limit = self.limit(&open);
        for start in open.iter().copied().take(STARTS) {
            let possible = self.possible(start, members);
            let good =
                |set: &Vec<usize>| self.crowding(set) <= possible && !set.iter().any(|i| self.is_beyond(*i, limit));
            let fresh = |peers_max, few| self.fresh(start, members, peers_max, few).filter(good);
            let found = fresh(usual, false)
                .or_else(|| self.known(start, members, possible, limit))
                .or_else(|| fresh(most, false).filter(|_| self.peers[start].len() < usual))
                .or_else(|| fresh(usize::MAX, true).filter(|_| !self.has_set(start, members)));
            if let Some(set) = found {
                return set;
            }
        }
        // Those that are little used have sets with much used ones only.
        let possible: Vec<(usize, u64)> = open.iter().map(|start| (*start, self.possible(*start, members))).collect();
        let known =
            |limit| possible.iter().filter_map(move |(start, possible)| self.known(*start, members, *possible, limit));
        let most = |set: &Vec<usize>| set.iter().map(|i| self.fill(*i)).max();
        let known = known(limit).next().or_else(|| known(u64::MAX).min_by_key(most));
        known.or_else(|| self.fresh(open[0], members, usize::MAX, true)).expect("there are enough nodes")
    }

    /// Open nodes, the least used first.
    fn by_use(&self) -> Vec<usize> {
        let mut open: Vec<usize> = (0..self.nodes.len()).filter(|i| !self.nodes[*i].closed).collect();
        open.sort_by_key(|i| (self.fill(*i), self.tie(*i)));
        open
    }

    /// How little crowded a set with a node can be, if peers did not count.
    fn possible(&self, start: usize, members: usize) -> u64 {
        self.fresh(start, members, usize::MAX, false).map_or(u64::MAX, |set| self.crowding(&set))
    }

    /// Whether a node is in a set of open ones.
    fn has_set(&self, at: usize, members: usize) -> bool {
        self.sets_of[at].iter().any(|set| set.len() == members && set.iter().all(|i| !self.nodes[*i].closed))
    }

    /// A set of the start and others by domains, then use. Nobody gets more than so many peers; `few`: those with the
    /// fewest first.
    fn fresh(&self, start: usize, members: usize, peers_max: usize, few: bool) -> Option<Vec<usize>> {
        let mut chosen = vec![start];
        while chosen.len() < members {
            let free = (0..self.nodes.len())
                .filter(|i| !self.nodes[*i].closed && !chosen.contains(i) && self.fits(&chosen, *i, peers_max));
            let next = free.min_by_key(|i| {
                let node = &self.nodes[*i];
                let count =
                    |same: &dyn Fn(&MetaCandidate) -> bool| chosen.iter().filter(|c| same(&self.nodes[**c])).count();
                let domains = (count(&|other| other.host == node.host), count(&|other| other.rack == node.rack));
                (domains, if few { self.peers[*i].len() } else { 0 }, self.fill(*i), self.tie(*i))
            })?;
            chosen.push(next);
        }
        Some(chosen)
    }

    /// The least used set that there is with a node, nobody of it beyond a limit.
    fn known(&self, start: usize, members: usize, crowding: u64, limit: u64) -> Option<Vec<usize>> {
        let fits = |set: &&Vec<usize>| {
            set.len() == members
                && set.iter().all(|i| !self.nodes[*i].closed && !self.is_beyond(*i, limit))
                && self.crowding(set) <= crowding
        };
        let use_of = |set: &Vec<usize>| set.iter().map(|i| u128::from(self.fill(*i))).sum::<u128>();
        let tie = |set: &Vec<usize>| set.iter().fold(self.seed, |hash, i| mix(hash ^ *i as u64));
        self.sets_of[start].iter().filter(fits).min_by_key(|set| (use_of(set), tie(set))).cloned()
    }

    /// Whether nobody has more peers than so many with this node in the set.
    fn fits(&self, chosen: &[usize], new: usize, peers_max: usize) -> bool {
        if self.peers[new].len() + self.new_peers(chosen, new) > peers_max {
            return false;
        }
        // Those chosen become peers of each other, too.
        chosen.iter().all(|one| {
            let among = chosen.iter().chain([&new]).filter(|other| **other != *one);
            let gets = among.filter(|other| !self.peers[*one].contains(&self.nodes[**other].node)).count();
            self.peers[*one].len() + gets <= peers_max
        })
    }

    fn new_peers(&self, chosen: &[usize], new: usize) -> usize {
        chosen.iter().filter(|one| !self.peers[new].contains(&self.nodes[**one].node)).count()
    }

    /// How many members are together on hosts, then in racks: the sums of the squares, least when they are spread.
    fn crowding(&self, set: &[usize]) -> u64 {
        let squares = |domain: fn(&MetaCandidate) -> u32| {
            let mut counts: BTreeMap<u32, u64> = BTreeMap::new();
            set.iter().for_each(|i| *counts.entry(domain(&self.nodes[*i])).or_default() += 1);
            counts.values().map(|count| count * count).sum::<u64>()
        };
        squares(|node| node.host) << 16 | squares(|node| node.rack)
    }

    /// A node's use, as a part of its bound.
    fn fill(&self, at: usize) -> u64 {
        self.part(at, self.nodes[at].used)
    }

    fn part(&self, at: usize, bytes: u64) -> u64 {
        let fill = (u128::from(bytes) << FILL_BITS) / u128::from(self.nodes[at].max.max(1));
        u64::try_from(fill).unwrap_or(u64::MAX)
    }

    /// What a node's use may be if it is about that of most: nodes that came a moment ago are not most.
    fn limit(&self, by_use: &[usize]) -> u64 {
        let middle = by_use.get(by_use.len() / 2).map_or(0, |i| self.fill(*i));
        middle.saturating_add(middle / ABOUT)
    }

    fn is_beyond(&self, at: usize, limit: u64) -> bool {
        self.fill(at) > limit.saturating_add(self.part(at, self.bytes))
    }

    /// Order among equals: differs from partition to partition.
    fn tie(&self, at: usize) -> (u64, usize) {
        let node = u64::from(self.nodes[at].node.get());
        (mix(self.seed ^ node.wrapping_mul(0x9e37_79b9_7f4a_7c15)), at)
    }

    fn take(&mut self, chosen: &[usize], bytes: u64) -> Vec<NodeId> {
        for i in chosen {
            self.nodes[*i].used = self.nodes[*i].used.saturating_add(bytes);
        }
        self.remember(chosen);
        chosen.iter().map(|i| self.nodes[*i].node).collect()
    }

    fn remember(&mut self, chosen: &[usize]) {
        let members: Vec<NodeId> = chosen.iter().map(|i| self.nodes[*i].node).collect();
        self.note(&members);
    }

    /// These nodes are members of a partition.
    fn note(&mut self, members: &[NodeId]) {
        let places: Vec<Option<usize>> = members.iter().map(|node| self.place(*node)).collect();
        for at in places.iter().flatten() {
            let own = self.nodes[*at].node;
            self.peers[*at].extend(members.iter().filter(|node| **node != own));
        }
        // A set with a node that is not offered is none to choose.
        let Some(mut set) = places.into_iter().collect::<Option<Vec<usize>>>() else { return };
        set.sort_unstable();
        if self.sets.insert(set.clone()) {
            set.iter().for_each(|at| self.sets_of[*at].push(set.clone()));
        }
    }

    fn place(&self, node: NodeId) -> Option<usize> {
        self.nodes.binary_search_by_key(&node, |known| known.node).ok()
    }
}

#[cfg(test)]
mod tests;
