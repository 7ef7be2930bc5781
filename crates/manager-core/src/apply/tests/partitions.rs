//! Volumes of several partitions: their inodes, their members, what is told of them.
use super::*;
use crate::soft::PartitionLoad;
use cairn_types::PartitionId;
use cairn_wire::frame::MESSAGE_MAX;
use cairn_wire::manager::{
    Partition as Told, PartitionMembers, PartitionReport, SeenGroup, SeenThings, StatusResponse,
};
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

fn volume_of(name: &str, partitions: u32) -> Command {
    Command::CreateVolume(CreateVolume { name: name.into(), layout: 0, partitions, members: Vec::new() })
}

/// Meta nodes in as many racks; the number of the first is 16.
fn metas(count: u32, racks: u32) -> State {
    let mut state = empty_cluster();
    for number in 0..count {
        let rack = format!("r{}", number % racks);
        ok(&mut state, Command::Register(Register { rack, ..register(number, Roles::META, 0) }));
    }
    state
}

fn ranges(state: &State, volume: u32) -> Vec<(u64, u64)> {
    let of_it = state.partitions().filter(|p| p.volume == VolumeId(volume));
    of_it.map(|p| (p.inode_first, p.inode_last)).collect()
}

/// How often each node is in a list.
fn counts(nodes: impl Iterator<Item = NodeId>) -> BTreeMap<NodeId, u32> {
    let mut counts = BTreeMap::new();
    nodes.for_each(|node| *counts.entry(node).or_default() += 1);
    counts
}

fn is_even(counts: &BTreeMap<NodeId, u32>, nodes: usize) -> bool {
    let (most, least) = (counts.values().max().unwrap_or(&0), counts.values().min().unwrap_or(&0));
    counts.len() == nodes && most - least <= 1
}

/// An inode would belong to two partitions or to none; or a volume have no root.
#[test]
fn each_inode_belongs_to_one_partition() {
    let mut state = metas(3, 1);
    ok(&mut state, volume_of("one", 1));
    assert_eq!(ranges(&state, 1), [(1, u64::MAX)]);
    ok(&mut state, volume_of("two", 2));
    assert_eq!(ranges(&state, 2), [(1, (1 << 40) - 1), (1 << 40, (2 << 40) - 1)]);
    ok(&mut state, volume_of("most", VOLUME_PARTITIONS_MAX));
    let most = ranges(&state, 3);
    assert_eq!((most.len(), most[0].0), (4096, 1), "the first one has the root");
    assert!(most.windows(2).all(|pair| pair[0].1 + 1 == pair[1].0 && pair[0].0 < pair[0].1));
    assert!(most[4095].1 < 1 << 56, "the top byte is free");
    // What gives two partitions the same inodes is found.
    let last = state.partitions.values_mut().next_back().expect("made");
    Arc::make_mut(last).inode_first -= 1;
    assert!(state.find_flaw().expect_err("two own one").contains("the same inodes"));
}

/// A cluster would read its own log differently after an upgrade.
#[test]
fn an_entry_of_before_makes_one_partition() {
    let bytes = [0x08, 0x01, 0x62, 0x05, 0x0a, 0x01, b'v', 0x10, 0x03];
    let command = Command::from_bytes(&bytes).expect("an entry of before");
    assert_eq!((command.level(), command.clone().to_bytes()), (0, bytes.to_vec()));
    let mut state = metas(4, 1);
    ok(&mut state, command);
    assert_eq!(ranges(&state, 1), [(1, u64::MAX)]);
}

/// One machine would carry what others could, and lead it all after each start.
#[test]
fn partitions_of_a_volume_are_on_all_nodes_alike() {
    for (nodes, racks, partitions) in [(3, 1, 3), (5, 1, 100), (6, 3, 64), (9, 3, 4096), (2, 1, 7)] {
        let mut state = metas(nodes, racks);
        // What is there counts, too.
        ok(&mut state, volume_of("a", 1));
        ok(&mut state, volume_of("b", partitions));
        let of_b = || state.partitions().filter(|p| p.volume == VolumeId(2));
        let wanted = if nodes >= 3 { 3 } else { 1 };
        for partition in of_b() {
            let racks_of = counts(partition.members.iter().copied()).len();
            assert_eq!((partition.members.len(), racks_of), (wanted, wanted));
            let rack = |node: &NodeId| state.node(*node).expect("known").rack.clone();
            let distinct: BTreeSet<_> = partition.members.iter().map(rack).collect();
            assert_eq!(distinct.len(), wanted.min(racks as usize), "{partition:?}");
        }
        let all = counts(state.partitions().flat_map(|p| p.members.iter().copied()));
        assert!(is_even(&all, nodes as usize), "{nodes} nodes: {all:?}");
        let first = counts(state.partitions().map(|p| p.members[0]));
        assert!(is_even(&first, nodes as usize), "{nodes} nodes lead {first:?}");
    }
}

/// Somebody would get something else than was asked for, or a cluster whose map cannot be sent.
#[test]
fn what_cannot_be_made_is_refused_in_words() {
    let mut state = metas(3, 1);
    let error = refused(&mut state, volume_of("v", 4097));
    assert_eq!(error.code, ErrorCode::InvalidArgument);
    assert!(error.message.contains("at most 4096 partitions, not with 4097"), "{error}");
    assert!(partitions_flaw(0).expect("none").contains("at least one partition"));
    ok(&mut state, volume_of("a", 4096));
    let error = refused(&mut state, volume_of("b", 1025));
    assert_eq!(error.code, ErrorCode::Conflict);
    assert!(error.message.contains("has 4096 meta partitions") && error.message.contains("more than 5120"), "{error}");
    ok(&mut state, volume_of("b", 1024));
    ok(&mut state, volume_of("c", 1));
    ok(&mut state, Command::DeleteVolume(DeleteVolume { name: "a".into(), trashed_ns: 0 }));
    ok(&mut state, volume_of("d", 4000));
    let error = refused(&mut empty_cluster(), volume_of("v", 3));
    assert_eq!(error.code, ErrorCode::NotEnoughDisks);
    assert!(error.message.contains("needs a meta node"), "{error}");
}

/// A node that was away while a volume was deleted would keep its names, and its chunks, for ever.
#[test]
fn a_node_that_was_away_is_told_what_is_gone() {
    let mut state = metas(2, 1);
    for number in 2..4 {
        ok(&mut state, Command::Register(register(number, Roles(Roles::META.0 | Roles::DATA.0), 1)));
    }
    ok(&mut state, volume_of("v", 4));
    let pg = make_pg(&mut state, &[1, 2]);
    let members = state.partition(PartitionId(1)).expect("made").members.clone();
    ok(&mut state, Command::DeleteVolume(DeleteVolume { name: "v".into(), trashed_ns: 0 }));
    assert!(state.partitions().filter(|p| p.volume == VolumeId(1)).all(|p| p.removed));
    for node in state.servers() {
        let map = state.map(0, Scope::Node(node.id), &Soft::default());
        let told: Vec<u32> = map.partitions.iter().filter(|p| p.removed).map(|p| p.id).collect();
        let had = state.partitions().filter(|p| p.members.contains(&node.id)).map(|p| p.id.get());
        assert_eq!(told.iter().copied().collect::<BTreeSet<_>>(), had.collect(), "{}", node.id);
        let retired = map.pgs.iter().filter_map(|pg| pg.state.as_ref()).any(|told| told.pg == pg.get() && told.retired);
        assert_eq!(retired, node.roles.has(Roles::DATA), "{}", node.id);
    }
    assert!(!members.is_empty() && state.map(0, Scope::All, &Soft::default()).partitions.is_empty());
    // Rather the whole than a delta of all that ever was.
    let before = state.version();
    for number in 0..3 {
        ok(&mut state, volume_of(&format!("x{number}"), 4000));
        ok(&mut state, Command::DeleteVolume(DeleteVolume { name: format!("x{number}"), trashed_ns: 0 }));
    }
    let map = state.map(before, Scope::Node(members[0]), &Soft::default());
    assert_eq!((map.base_version, map.partitions.len()), (0, 4096));
}

/// With so many partitions nobody could get the map, ask for the status, or register: each goes into one message.
#[test]
fn the_most_partitions_fit_into_messages() {
    let mut state = metas(200, 3);
    for number in 200..203 {
        ok(&mut state, Command::Register(register(number, Roles::DATA, 1)));
    }
    for number in 0..5 {
        ok(&mut state, volume_of(&format!("v{number}"), 1024));
    }
    let groups = vec![Disks { disks: vec![1, 2, 3], ..Disks::default() }; 256];
    for _ in 0..4 {
        ok(&mut state, Command::CreatePgs(CreatePgs { volume: 1, scheme: 3, groups: groups.clone() }));
    }
    let all: Vec<(u32, Vec<NodeId>)> = state.partitions().map(|p| (p.id.get(), p.members.clone())).collect();
    assert_eq!(all.len(), PARTITIONS_MAX);
    let members =
        all.iter().flat_map(|(id, nodes)| nodes.iter().map(|n| PartitionAt { partition: *id, node: n.get() }));
    ok(&mut state, Command::PartitionsBegun(PartitionsBegun { members: members.collect() }));
    let mut soft = Soft::default();
    for (id, nodes) in &all {
        let (term, applied) = (1 << 20, 1 << 40);
        let (file_bytes, memory_bytes, inodes) = (1 << 50, 1 << 34, 1 << 30);
        let report = PartitionReport {
            partition: *id,
            leader: true,
            term,
            applied,
            inodes,
            file_bytes,
            memory_bytes,
            ..Default::default()
        };
        let report = PartitionReport { feature_level: 6, mark_term: term, mark_index: applied, ..report };
        let report =
            PartitionReport { inode_last: 1 << 55, busy_permille: 1000, changes_per_second: 1 << 18, ..report };
        soft.partitions.insert(PartitionId(*id), PartitionLoad { leader: nodes[0], report });
    }
    let map = state.map(0, Scope::All, &soft);
    let reports: Vec<PartitionReport> = soft.partitions.values().map(|load| load.report).collect();
    let status = StatusResponse { map: Some(map.clone()), partitions: reports, ..StatusResponse::default() };
    // What else is in the answer, and changes of members.
    let room = 256 << 10;
    assert!(status.encoded_len() < MESSAGE_MAX - room, "the status has {} bytes", status.encoded_len());

    // A node that is a member of all, and has disks with many groups.
    let one = |p: &Told| Told { nodes: vec![1000], begun: vec![1000], changed: true, leader: 0, ..p.clone() };
    let members = |(id, nodes): &(u32, Vec<NodeId>)| PartitionMembers {
        partition: *id,
        nodes: nodes.iter().map(|node| node.get()).collect(),
        applied: 1 << 40,
    };
    let groups = state.pgs().map(|pg| SeenGroup { disk: 1000, state: Some(state.pg_state(pg)) });
    let groups: Vec<SeenGroup> = groups.collect();
    let things = SeenThings {
        groups: [groups.clone(), groups].concat(),
        listed: map.partitions.iter().map(one).collect(),
        members: all.iter().map(members).collect(),
        partitions: map.partitions,
        ..SeenThings::default()
    };
    let room = 64 << 10;
    assert!(things.encoded_len() < MESSAGE_MAX - room, "a registration has {} bytes", things.encoded_len());
}
