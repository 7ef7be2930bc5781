//! Properties of the choice of members: use decides, peers are few, domains are distinct.
use super::*;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

fn node(number: u32, rack: u32) -> MetaCandidate {
    let (used, max) = (0, 64 << 30);
    MetaCandidate { node: NodeId(number), rack, host: number, used, max, firsts: 0, closed: false }
}

/// Nodes by turns in racks, and the partitions that were made on them.
struct World {
    nodes: Vec<MetaCandidate>,
    made: Vec<Vec<NodeId>>,
}

impl World {
    fn new(nodes: u32, racks: u32) -> Self {
        Self { nodes: (0..nodes).map(|number| node(number, number % racks)).collect(), made: Vec::new() }
    }

    /// Makes so many partitions, at most `at_once` by one chooser, as a manager's leader does.
    fn make(&mut self, count: usize, members: usize, at_once: usize) {
        let mut left = count;
        while left > 0 {
            let mut chooser = self.chooser();
            for _ in 0..left.min(at_once) {
                self.made.push(chooser.choose(members).expect("there are nodes"));
            }
            left -= left.min(at_once);
        }
    }

    fn chooser(&self) -> MemberChooser {
        let of = |node: NodeId| self.count(node) as u64 * MIB;
        let firsts = |node: NodeId| self.made.iter().filter(|members| members[0] == node).count() as u32;
        let nodes = self.nodes.iter().map(|n| MetaCandidate { used: of(n.node), firsts: firsts(n.node), ..*n });
        MemberChooser::new(nodes, self.made.iter().map(Vec::as_slice), MIB, self.made.len() as u64)
    }

    fn count(&self, node: NodeId) -> usize {
        self.made.iter().filter(|members| members.contains(&node)).count()
    }

    fn peers(&self, node: NodeId) -> usize {
        let mine = self.made.iter().filter(|members| members.contains(&node));
        mine.flatten().filter(|other| **other != node).collect::<BTreeSet<_>>().len()
    }

    /// Least and most of something over nodes.
    fn range(&self, of: impl Fn(NodeId) -> usize) -> (usize, usize) {
        let all: Vec<usize> = self.nodes.iter().map(|n| of(n.node)).collect();
        (all.iter().copied().min().unwrap_or(0), all.iter().copied().max().unwrap_or(0))
    }

    fn racks(&self, members: &[NodeId]) -> usize {
        let rack = |node: &NodeId| self.nodes.iter().find(|n| n.node == *node).map(|n| n.rack);
        members.iter().filter_map(rack).collect::<BTreeSet<_>>().len()
    }

    fn firsts(&self, node: NodeId) -> usize {
        self.made.iter().filter(|members| members[0] == node).count()
    }
}

/// A node would exchange heartbeats with all others, or lead and carry what others could; or a rack take a partition
/// with it.
#[test]
fn sixty_nodes_with_three_thousand_partitions_have_few_peers() {
    let mut world = World::new(60, 6);
    world.make(3000, 3, 64);
    assert!(world.made.iter().all(|members| world.racks(members) == 3), "each in three racks");
    let peers = world.range(|node| world.peers(node));
    assert!(peers.0 >= 4 && peers.1 <= usual_peers(3), "peers of a node: {peers:?}");
    let counts = world.range(|node| world.count(node));
    assert!(counts.0 >= 145 && counts.1 <= 160, "150 of each on average: {counts:?}");
    let firsts = world.range(|node| world.firsts(node));
    assert!(firsts.0 >= 48 && firsts.1 <= 52, "50 on average: {firsts:?}");
}

/// Nodes that are added would stay empty, or be filled by few others that then carry more than all.
#[test]
fn nodes_that_are_added_later_get_their_part() {
    let mut world = World::new(60, 6);
    world.make(3000, 3, 64);
    // One alone, in a rack that there is.
    world.nodes.push(node(60, 0));
    world.make(200, 3, 1);
    let new = NodeId(60);
    assert!(world.count(new) >= 40, "ten would be its part of these: {}", world.count(new));
    // A rack of its own.
    world.nodes.extend((61..67).map(|number| node(number, 6)));
    world.make(2000, 3, 12);
    let late: Vec<usize> = (60..67).map(|number| world.count(NodeId(number))).collect();
    assert!(late.iter().all(|count| *count >= 170), "{late:?}");
    let peers = world.range(|node| world.peers(node));
    eprintln!("L {late:?} {peers:?} {:?}", world.range(|node| world.count(node)));
    assert!(peers.1 <= most_peers(3), "{peers:?}");
    let counts = world.range(|node| world.count(node));
    assert!(counts.1 <= 256, "233 on average: {counts:?}");
    assert!(world.made.iter().all(|members| world.racks(members) == 3));
}

/// Many nodes that come one by one would all be peers of the first.
#[test]
fn a_cluster_that_grows_node_by_node_has_few_peers() {
    let mut world = World::new(3, 3);
    for number in 3..60 {
        world.nodes.push(node(number, number % 3));
        world.make(20, 3, 20);
    }
    let peers = world.range(|node| world.peers(node));
    assert!(peers.0 >= 2 && peers.1 <= most_peers(3) + 2, "{peers:?}");
}

/// A node that is empty would get no more than one that is nearly full; a small one as much as a large one.
#[test]
fn use_decides_as_a_part_of_the_bound() {
    let mut world = World::new(6, 3);
    // Half of the bound, where the others have nothing.
    let half = |n: &MetaCandidate| MetaCandidate { used: if n.node.get() < 3 { n.max / 2 } else { 0 }, ..*n };
    let mut chooser = MemberChooser::new(world.nodes.iter().map(half), [], MIB, 1);
    for _ in 0..50 {
        let members = chooser.choose(3).expect("six nodes");
        assert!(members.iter().all(|node| node.get() >= 3), "{members:?}");
    }
    world.nodes.iter_mut().filter(|n| n.node.get() >= 3).for_each(|n| n.max *= 3);
    world.make(100, 3, 100);
    for number in 0..3 {
        let (small, large) = (world.count(NodeId(number)), world.count(NodeId(number + 3)));
        assert!((24..=26).contains(&small) && (74..=76).contains(&large), "{small} and {large}");
    }
}

/// What is near its bound would get more all the same, or a partition fewer members than it is to have.
#[test]
fn closed_nodes_get_nothing() {
    let mut world = World::new(60, 6);
    world.make(1000, 3, 1000);
    world.nodes.iter_mut().filter(|n| n.node.get() % 4 == 0).for_each(|n| n.closed = true);
    let before: Vec<usize> = world.nodes.iter().map(|n| world.count(n.node)).collect();
    world.make(500, 3, 50);
    for (n, before) in world.nodes.iter().zip(before) {
        assert_eq!(n.closed, world.count(n.node) == before, "{n:?}");
    }
    world.nodes.iter_mut().filter(|n| n.node.get() > 1).for_each(|n| n.closed = true);
    assert_eq!(world.chooser().choose(3), Err(TooFewNodes { wanted: 3, have: 1 }));
    assert_eq!(world.chooser().choose(1), Ok(vec![NodeId(1)]));
}

/// The successor of a lost member would be a new peer of two nodes, or stand beside another member.
#[test]
fn a_successor_is_a_peer_already_if_one_is_as_little_used() {
    let mut world = World::new(60, 6);
    world.make(3000, 3, 64);
    let lost = NodeId(7);
    world.nodes.iter_mut().filter(|n| n.node == lost).for_each(|n| n.closed = true);
    let (mut chooser, had) = (world.chooser(), world.count(lost));
    let mut gets: BTreeMap<NodeId, usize> = BTreeMap::new();
    for members in world.made.iter_mut().filter(|members| members.contains(&lost)) {
        let others: Vec<NodeId> = members.iter().copied().filter(|node| *node != lost).collect();
        let new = chooser.beside(&others, &[lost], MIB).expect("there are others");
        assert!(new != lost && !others.contains(&new));
        *gets.entry(new).or_default() += 1;
        members.iter_mut().filter(|node| **node == lost).for_each(|node| *node = new);
    }
    assert!(had > 140 && gets.values().sum::<usize>() == had, "{had}: {gets:?}");
    assert!(gets.values().all(|count| *count <= 30), "{gets:?}");
    assert!(world.made.iter().all(|members| world.racks(members) == 3));
    let peers = world.range(|node| world.peers(node));
    assert!(peers.1 <= most_peers(3), "{peers:?}");
}

proptest! {
    /// A partition would have two members where one failure takes both, although there are other places.
    #[test]
    fn members_are_as_far_apart_as_can_be(
        racks in prop::collection::vec(prop::collection::vec(1u32..4, 1..5), 1..6),
        members in prop::sample::select(vec![1usize, 3, 5]),
        count in 1usize..60,
    ) {
        let (mut nodes, mut host) = (Vec::new(), 0);
        for (rack, hosts) in racks.iter().enumerate() {
            for on_host in hosts {
                for _ in 0..*on_host {
                    nodes.push(MetaCandidate { host, ..node(nodes.len() as u32, rack as u32) });
                }
                host += 1;
            }
        }
        let have = nodes.len();
        let mut chooser = MemberChooser::new(nodes.iter().copied(), [], MIB, 7);
        for _ in 0..count {
            let chosen = match chooser.choose(members) {
                Ok(chosen) => chosen,
                Err(few) => {
                    prop_assert_eq!((few.have, have < members), (have, true));
                    return Ok(());
                }
            };
            let of = |domain: fn(&MetaCandidate) -> u32| {
                let all = chosen.iter().filter_map(|id| nodes.iter().find(|n| n.node == *id)).map(domain);
                all.collect::<BTreeSet<_>>().len()
            };
            prop_assert_eq!(of(|n| n.node.get()), members);
            prop_assert_eq!(of(|n| n.host), members.min(host as usize));
            prop_assert_eq!(of(|n| n.rack), members.min(racks.len()));
        }
    }
}
