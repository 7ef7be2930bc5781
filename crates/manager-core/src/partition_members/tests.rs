//! Who gets new partitions, from what nodes and partitions report.
use super::*;
use crate::apply::tests::{empty_cluster, ok, refused, register};
use crate::command::{ActivateLevel, Command, CreateVolume, NodeAt, NodesDown, Register, SetPartitionMembers};
use crate::more_partitions::{AddPartitions, RangeEnded};
use crate::soft::PartitionLoad;
use cairn_types::PartitionId;
use cairn_wire::manager::PartitionReport;
use std::collections::BTreeSet;

const GIB: u64 = 1 << 30;

/// Meta nodes in racks by turns; the number of the first is 16.
fn cluster(nodes: u32, racks: u32) -> State {
    let mut state = empty_cluster();
    add(&mut state, 0..nodes, racks);
    ok(&mut state, Command::ActivateLevel(ActivateLevel { level: PLACED_LEVEL }));
    state
}

fn add(state: &mut State, numbers: std::ops::Range<u32>, racks: u32) {
    for number in numbers {
        let rack = format!("r{}", number % racks);
        ok(state, Command::Register(Register { rack, ..register(number, Roles::META, 0) }));
    }
}

fn all(state: &State) -> Vec<NodeId> {
    state.nodes().filter(|node| node.roles.has(Roles::META)).map(|node| node.id).collect()
}

/// As a leader that knows this makes a volume.
fn volume(state: &mut State, soft: &Soft, name: &str, partitions: u32) {
    let members = plan(state, soft, &all(state), partitions).expect("there are nodes");
    assert_eq!(members.len(), partitions as usize);
    let name = name.into();
    ok(state, Command::CreateVolume(CreateVolume { name, layout: 0, partitions, members }));
}

/// Each partition takes so much, each node has so much for all.
fn soft(state: &State, bytes: u64, max: u64) -> Soft {
    let mut soft = Soft::default();
    for partition in state.partitions() {
        let report = PartitionReport { partition: partition.id.get(), memory_bytes: bytes, ..Default::default() };
        soft.partitions.insert(partition.id, PartitionLoad { leader: partition.members[0], report });
    }
    for node in all(state) {
        let used = count(state, node) as u64 * bytes;
        soft.meta_memory.insert(node, MetaMemory { used, max });
    }
    soft
}

fn count(state: &State, node: NodeId) -> usize {
    state.partitions().filter(|partition| partition.members.contains(&node)).count()
}

fn counts(state: &State) -> Vec<usize> {
    all(state).into_iter().map(|node| count(state, node)).collect()
}

/// Memory of new nodes would lie idle while old ones fill, for what exists is not moved by itself.
#[test]
fn nodes_that_are_new_get_partitions_first() {
    let mut state = cluster(3, 3);
    volume(&mut state, &Soft::default(), "a", 12);
    assert_eq!(counts(&state), [12, 12, 12]);
    let leads = |state: &State, node: u32| state.partitions().filter(|p| p.members[0] == NodeId(node)).count();
    assert_eq!([16, 17, 18].map(|node| leads(&state, node)), [4, 4, 4]);
    add(&mut state, 3..6, 3);
    let told = soft(&state, GIB, 64 * GIB);
    volume(&mut state, &told, "b", 12);
    assert_eq!(counts(&state), [12; 6], "all of it where nothing was");
    assert_eq!([19, 20, 21].map(|node| leads(&state, node)), [4, 4, 4]);
    let told = soft(&state, GIB, 64 * GIB);
    volume(&mut state, &told, "c", 12);
    assert_eq!(counts(&state), [18; 6]);
}

/// Partitions of which a few are large would be spread by their number, and one node be full beside others.
#[test]
fn what_partitions_take_counts_and_not_their_number() {
    let mut state = cluster(6, 3);
    volume(&mut state, &Soft::default(), "a", 2);
    let mut told = soft(&state, GIB, 64 * GIB);
    // The first one is large, and where it is others have half of what they had.
    let large = state.partition(PartitionId(1)).expect("made").members.clone();
    told.partitions.get_mut(&PartitionId(1)).expect("told").report.memory_bytes = 20 * GIB;
    large.iter().for_each(|node| told.meta_memory.get_mut(node).expect("told").used = 20 * GIB);
    volume(&mut state, &told, "b", 1);
    let members = &state.partition(PartitionId(3)).expect("made").members;
    assert!(members.iter().all(|node| !large.contains(node)), "{members:?} beside {large:?}");
}

/// A node would be filled until its partitions take no more files, with others beside it that are empty; or whoever
/// asks would not know what to do.
#[test]
fn who_is_near_the_bound_gets_none_and_is_named() {
    let mut state = cluster(4, 2);
    volume(&mut state, &Soft::default(), "a", 4);
    let mut told = soft(&state, 0, 8 * GIB);
    let full = |told: &mut Soft, node: u32, used| told.meta_memory.get_mut(&NodeId(node)).expect("told").used = used;
    full(&mut told, 17, 7 * GIB);
    let planned = plan(&state, &told, &all(&state), 20).expect("three are left");
    assert!(planned.iter().all(|members| members.nodes.len() == 3 && !members.nodes.contains(&17)), "{planned:?}");
    let three = [16, 17, 18].map(NodeId);
    assert_eq!(plan(&state, &told, &three, 1).expect_err("two are left").code, ErrorCode::NoSpace);
    full(&mut told, 17, 7 * GIB - 1);
    let planned = plan(&state, &told, &three, 1).expect("it has a little more than an eighth");
    assert!(planned[0].nodes.contains(&17), "rather there than with fewer members: {planned:?}");
    full(&mut told, 17, 7 * GIB);
    full(&mut told, 18, 9 * GIB);
    let error = plan(&state, &told, &all(&state), 1).expect_err("two are left");
    assert_eq!(error.code, ErrorCode::NoSpace);
    assert!(
        error.message.contains("3 meta nodes are needed with memory for another partition, and there are 2"),
        "{error}"
    );
    assert!(error.message.contains("n17 uses 7168 of 8192 MiB, n18 uses 9216 of 8192 MiB"), "{error}");
    assert!(error.message.contains("memory_max_mib"), "{error}");
    assert_eq!(plan(&state, &told, &[], 1).expect_err("nobody").code, ErrorCode::NotEnoughDisks);
}

/// A partition that is made while machines restart would have its names on one machine for ever.
#[test]
fn no_partition_is_made_with_fewer_members_because_some_are_away() {
    let mut state = cluster(3, 3);
    let two = [16, 17].map(NodeId);
    let error = plan(&state, &Soft::default(), &two, 1).expect_err("the third one has not said what it understands");
    assert_eq!(error.code, ErrorCode::Unavailable);
    assert!(error.message.contains("2 of 3 meta nodes can have new partitions now"), "{error}");
    let incarnation = state.node(NodeId(18)).expect("known").incarnation.get();
    ok(&mut state, Command::NodesDown(NodesDown { nodes: vec![NodeAt { node: 18, incarnation }] }));
    let error = plan(&state, &Soft::default(), &all(&state), 1).expect_err("it does not run");
    assert!(error.message.contains("only 2 of 3 meta nodes run") && error.message.contains("start n18"), "{error}");
    let planned = plan(&cluster(2, 2), &Soft::default(), &two, 1).expect("there are no more");
    assert_eq!(planned[0].nodes.len(), 1, "two would not outlive a loss either");
}

/// Nodes of builds that tell nothing, or that this leader has not heard, would get everything or nothing.
#[test]
fn what_is_not_told_does_not_decide() {
    let mut state = cluster(6, 3);
    volume(&mut state, &Soft::default(), "a", 40);
    assert_eq!(counts(&state), [20; 6]);
    let mut told = soft(&state, GIB, 64 * GIB);
    told.meta_memory.remove(&NodeId(16));
    told.meta_memory.insert(NodeId(17), MetaMemory { used: 20 * GIB, max: u64::MAX });
    volume(&mut state, &told, "b", 20);
    assert_eq!(counts(&state), [30; 6]);
}

/// A node would have all others as its peers, and each of them send it a heartbeat for the partitions that they share;
/// or nodes that are added would stay without.
#[test]
fn sixty_nodes_and_three_thousand_partitions() {
    let mut state = cluster(60, 6);
    let peers = |state: &State, node: NodeId| {
        let mine = state.partitions().filter(|partition| partition.members.contains(&node));
        mine.flat_map(|partition| &partition.members).filter(|other| **other != node).collect::<BTreeSet<_>>().len()
    };
    let rack = |state: &State, node: &NodeId| state.node(*node).expect("known").rack.clone();
    for number in 0..30 {
        let told = soft(&state, 64 << 20, 64 * GIB);
        volume(&mut state, &told, &format!("v{number}"), 100);
    }
    let counts = counts(&state);
    assert!(counts.iter().all(|count| (141..=160).contains(count)), "150 on average: {counts:?}");
    let all_peers: Vec<usize> = all(&state).into_iter().map(|node| peers(&state, node)).collect();
    assert!(all_peers.iter().all(|count| (4..=8).contains(count)), "{all_peers:?}");
    add(&mut state, 60..66, 6);
    let told = soft(&state, 64 << 20, 64 * GIB);
    volume(&mut state, &told, "late", 100);
    for node in 76..82 {
        let node = NodeId(node);
        assert!(count(&state, node) >= 45 && peers(&state, node) <= 8, "{node}: {}", count(&state, node));
    }
    for partition in state.partitions() {
        let racks: BTreeSet<String> = partition.members.iter().map(|node| rack(&state, node)).collect();
        assert_eq!(racks.len(), 3, "{partition:?}");
    }
}

/// A command would make members differ, or a partition that nobody serves, when a node falls while it is under way.
#[test]
fn what_was_planned_is_held_against_the_state() {
    let mut state = cluster(4, 2);
    let told = Soft::default();
    let of = |nodes: &[u32]| MembersOf { nodes: nodes.to_vec() };
    let create = |members: Vec<MembersOf>| {
        Command::CreateVolume(CreateVolume { name: "v".into(), layout: 0, partitions: 2, members })
    };
    for (members, why) in [
        (vec![of(&[16, 17, 18])], "one list for two partitions"),
        (vec![of(&[16, 17, 18]), of(&[16, 16, 18])], "one node twice"),
        (vec![of(&[16, 17, 18]), of(&[16, 17])], "two members"),
        (vec![of(&[16, 17, 18]), of(&[16, 17, 99])], "no such node"),
    ] {
        assert_eq!(refused(&mut state, create(members)).code, ErrorCode::Conflict, "{why}");
    }
    assert_eq!((state.volumes().count(), state.partitions().count()), (0, 0));
    let planned = create(plan(&state, &told, &all(&state), 2).expect("four nodes"));
    assert_eq!(planned.level(), PLACED_LEVEL);
    let gone = match &planned {
        Command::CreateVolume(command) => command.members[1].nodes[2],
        _ => 0,
    };
    let mut other = state.clone();
    let incarnation = state.node(NodeId(gone)).expect("a member").incarnation.get();
    ok(&mut other, Command::NodesDown(NodesDown { nodes: vec![NodeAt { node: gone, incarnation }] }));
    let error = refused(&mut other, planned.clone());
    assert!(error.code == ErrorCode::Conflict && error.message.contains("repeat"), "{error}");
    ok(&mut state, planned);
    assert_eq!(state.partitions().count(), 2);

    // Those that are made later, at once or when a range has ended.
    let members = plan(&state, &told, &all(&state), 1).expect("four nodes");
    let nodes: Vec<u32> = all(&state).into_iter().map(NodeId::get).collect();
    let more = |members| AddPartitions { volume: 1, add: 1, nodes: nodes.clone(), having: 2, members };
    assert_eq!(refused(&mut state, Command::AddPartitions(more(vec![of(&[16]), of(&[17])]))).code, ErrorCode::Conflict);
    ok(&mut state, Command::AddPartitions(more(members.clone())));
    let made = &state.partition(PartitionId(3)).expect("made").members;
    assert_eq!(made.iter().map(|node| node.get()).collect::<Vec<_>>(), members[0].nodes);
    volume(&mut state, &told, "w", 1);
    ok(&mut state, Command::AddPartitions(AddPartitions { volume: 2, having: 1, ..more(Vec::new()) }));
    let ended = |members| RangeEnded { partition: 4, inode_last: (1 << 40) - 1, nodes: nodes.clone(), members };
    assert_eq!(refused(&mut state, Command::RangeEnded(ended(vec![of(&[99])]))).code, ErrorCode::Conflict);
    assert_eq!(state.partition(PartitionId(4)).map(|p| p.inode_last), Some(u64::MAX), "it is asked again");
    ok(&mut state, Command::RangeEnded(ended(vec![of(&[18, 16, 17])])));
    assert_eq!(state.partition(PartitionId(5)).expect("made").members, [18, 16, 17].map(NodeId));
}

/// As long as one manager does not know of it, members would differ.
#[test]
fn below_its_level_commands_say_nothing() {
    let mut state = empty_cluster();
    add(&mut state, 0..4, 2);
    assert_eq!(plan(&state, &Soft::default(), &all(&state), 3), Ok(Vec::new()));
    assert_eq!(Command::CreateVolume(CreateVolume { partitions: 3, ..CreateVolume::default() }).level(), 5);
}

/// A lost member's place would go to a node beside another member, to one that is nearly full, or to one that is no
/// peer although a peer has room.
#[test]
fn successors_keep_domains_and_peers_and_go_by_use() {
    let mut state = cluster(9, 3);
    volume(&mut state, &Soft::default(), "a", 30);
    let mut told = soft(&state, GIB, 64 * GIB);
    let partition = state.partition(PartitionId(1)).expect("made").clone();
    let (lost, stay) = (partition.members[0], &partition.members[1..]);
    // Nodes with the same number modulo three are in one rack.
    let same: Vec<NodeId> = all(&state).into_iter().filter(|n| n.get() % 3 == lost.get() % 3 && *n != lost).collect();
    let chosen =
        |told: &Soft, state: &State| successors(state, told, &partition, stay, &[lost], 1).expect("others run");
    assert!(same.contains(&chosen(&told, &state)[0]));
    // A member that is down for a while is in its rack all the same.
    let mut down = state.clone();
    let (node, incarnation) = (stay[0].get(), state.node(stay[0]).expect("a member").incarnation.get());
    ok(&mut down, Command::NodesDown(NodesDown { nodes: vec![NodeAt { node, incarnation }] }));
    let mut uneven = told.clone();
    same.iter().for_each(|node| uneven.meta_memory.get_mut(node).expect("told").used = 40 * GIB);
    assert!(same.contains(&chosen(&uneven, &down)[0]));
    told.meta_memory.insert(same[0], MetaMemory { used: 60 * GIB, max: 64 * GIB });
    assert_eq!(chosen(&told, &state), [same[1]]);
    told.meta_memory.insert(same[1], MetaMemory { used: 60 * GIB, max: 64 * GIB });
    assert!(!same.contains(&chosen(&told, &state)[0]), "rather in another member's rack than not at all");
    told.meta_memory.values_mut().for_each(|memory| memory.used = 60 * GIB);
    let error = successors(&state, &told, &partition, stay, &[lost], 1).expect_err("all are full");
    assert!(error.message.contains("memory_max_mib") && error.code == ErrorCode::NoSpace, "{error}");
    let told = soft(&state, GIB, 64 * GIB);
    let members: Vec<u32> = stay.iter().map(|node| node.get()).chain([chosen(&told, &state)[0].get()]).collect();
    ok(&mut state, Command::SetPartitionMembers(SetPartitionMembers { partition: 1, members, renew: 0 }));
}
