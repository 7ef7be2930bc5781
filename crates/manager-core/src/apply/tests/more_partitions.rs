//! Volumes that get more partitions later.
use super::*;
use crate::more_partitions::{AddPartitions, LATE_LEVEL, RangeEnded, grow};
use crate::soft::PartitionLoad;
use cairn_types::PartitionId;
use cairn_wire::manager::PartitionReport;

const GIB: u64 = 1 << 30;

fn with_volume(partitions: u32) -> (State, Vec<u32>) {
    let mut state = empty_cluster();
    let nodes = (0..4).map(|number| {
        let Outcome::Registered(registered) = ok(&mut state, Command::Register(register(number, Roles::META, 0)))
        else {
            panic!("a registration");
        };
        registered.node.get()
    });
    let nodes = nodes.collect();
    ok(
        &mut state,
        Command::CreateVolume(CreateVolume { name: "v".into(), layout: 0, partitions, members: Vec::new() }),
    );
    (state, nodes)
}

fn add(count: u32, nodes: &[u32]) -> Command {
    Command::AddPartitions(AddPartitions {
        volume: 1,
        add: count,
        nodes: nodes.to_vec(),
        having: 0,
        members: Vec::new(),
    })
}

fn ended(inode_last: u64, nodes: &[u32]) -> Command {
    Command::RangeEnded(RangeEnded { partition: 1, inode_last, nodes: nodes.to_vec(), members: Vec::new() })
}

fn ranges(state: &State) -> Vec<(u64, u64)> {
    state.partitions().map(|p| (p.inode_first, p.inode_last)).collect()
}

/// Two partitions would give the same inode: others must not begin before the first one's log has its end.
#[test]
fn others_are_made_when_the_open_range_has_ended() {
    let (mut state, nodes) = with_volume(1);
    assert_eq!(ok(&mut state, add(2, &nodes[1..])), Outcome::Partitions(Vec::new()));
    assert_eq!(ranges(&state), [(1, u64::MAX)], "its end is not known yet");
    let map = state.map(0, Scope::Volume(VolumeId(1)), &Soft::default());
    assert_eq!(map.partitions[0].add, 2, "its leader is told to end it");
    assert!(refused(&mut state, add(1, &nodes)).message.contains("about to end its range"));
    assert_eq!(refused(&mut state, ended((1 << 40) + 7, &nodes)).code, ErrorCode::BadRequest);
    assert_eq!(refused(&mut state, ended(u64::MAX, &nodes)).code, ErrorCode::BadRequest);
    let made = ok(&mut state, ended((3 << 40) - 1, &nodes[1..]));
    assert_eq!(made, Outcome::Partitions(vec![PartitionId(2), PartitionId(3)]));
    let end = |at: u64| (at << 40) - 1;
    assert_eq!(ranges(&state), [(1, end(3)), (3 << 40, end(4)), (4 << 40, end(5))]);
    assert_eq!(ok(&mut state, ended((9 << 40) - 1, &nodes)), Outcome::Partitions(Vec::new()), "said again");
    for partition in state.partitions().filter(|partition| partition.id != PartitionId(1)) {
        assert_eq!((partition.level, partition.members.len()), (LATE_LEVEL, 3));
        assert!(
            !partition.members.contains(&NodeId(nodes[0])),
            "it does not understand partitions that are made later"
        );
    }
    state.find_flaw().expect("ranges do not meet");
}

/// A volume of several could not grow, or would get a range again that a partition has.
#[test]
fn a_volume_of_several_gets_more_behind_its_last_range() {
    let (mut state, nodes) = with_volume(3);
    assert_eq!(ok(&mut state, add(1, &nodes)), Outcome::Partitions(vec![PartitionId(4)]));
    assert_eq!(ranges(&state)[3], (3 << 40, (4 << 40) - 1));
    let late = AddPartitions { volume: 1, add: 3, nodes: nodes.clone(), having: 3, members: Vec::new() };
    assert_eq!(ok(&mut state, Command::AddPartitions(late)), Outcome::Partitions(Vec::new()), "it has four by now");
    for (count, code) in [(0, ErrorCode::InvalidArgument), (4093, ErrorCode::InvalidArgument)] {
        assert_eq!(refused(&mut state, add(count, &nodes)).code, code);
    }
    assert_eq!(refused(&mut state, add(1, &[])).code, ErrorCode::NotEnoughDisks);
    ok(&mut state, Command::DeleteVolume(DeleteVolume { name: "v".into(), trashed_ns: 0 }));
    assert_eq!(refused(&mut state, add(1, &nodes)).code, ErrorCode::UnknownVolume);
    assert!(state.find_flaw().is_ok());
}

fn reported(state: &State, memory: &[u64], busy: u32) -> Soft {
    let mut soft = Soft::default();
    for (partition, memory) in state.partitions().zip(memory) {
        let report = PartitionReport {
            partition: partition.id.get(),
            memory_bytes: *memory,
            busy_permille: busy,
            feature_level: LATE_LEVEL,
            ..PartitionReport::default()
        };
        soft.partitions.insert(partition.id, PartitionLoad { leader: NodeId(16), report });
    }
    soft
}

/// A machine would run out of memory beside empty ones; or a volume get partitions without end.
#[test]
fn full_or_busy_volumes_grow_until_there_is_room() {
    let (state, nodes) = with_volume(1);
    let nodes: Vec<NodeId> = nodes.into_iter().map(NodeId).collect();
    let wanted =
        |state: &State, memory: &[u64], busy| grow(state, &reported(state, memory, busy), &nodes).map(|g| g.add);
    assert_eq!(wanted(&state, &[GIB], 0), None);
    assert_eq!(wanted(&state, &[3 * GIB], 0), Some(1));
    assert_eq!(wanted(&state, &[GIB], 650), None);
    assert_eq!(wanted(&state, &[GIB], 750), Some(1));
    assert_eq!(wanted(&state, &[], 999), None, "nothing was reported yet");
    let (state, _) = with_volume(3);
    assert_eq!(wanted(&state, &[3 * GIB, 0, 0], 0), None, "there is room in others");
    assert_eq!(wanted(&state, &[3 * GIB, GIB, GIB], 0), Some(3));
    let (state, _) = with_volume(16);
    assert_eq!(wanted(&state, &[0; 16], 999), None, "more would not be led by more nodes");
    let (mut state, _) = with_volume(1);
    let all: Vec<u32> = nodes.iter().map(|node| node.get()).collect();
    ok(&mut state, add(1, &all));
    assert_eq!(wanted(&state, &[9 * GIB], 999), None, "it is about to get some");
    let key = |name: &str| ConfigValue { key: name.into(), value: "0".into() };
    ok(&mut state, ended((1 << 40) - 1, &all));
    ok(&mut state, Command::SetConfig(SetConfig { items: vec![key("partition_memory"), key("partition_load")] }));
    assert_eq!(wanted(&state, &[9 * GIB, 9 * GIB], 999), None, "it is switched off");
}
