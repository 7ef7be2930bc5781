//! Which leaderships move, which do not, and that it ends.
use super::*;
use crate::apply::tests::{empty_cluster, ok, register};
use crate::command::*;
use crate::soft::PartitionLoad;
use cairn_wire::manager::PartitionReport;

/// Meta nodes n16 on, and as many volumes with a partition each, whose members have all begun it.
fn cluster(metas: u32, volumes: u32) -> State {
    let mut state = empty_cluster();
    for number in 0..metas {
        ok(&mut state, Command::Register(register(number, Roles::META, 0)));
    }
    for number in 0..volumes {
        ok(&mut state, Command::CreateVolume(CreateVolume { name: format!("v{number}"), ..CreateVolume::default() }));
    }
    let members = |p: &crate::Partition| -> Vec<PartitionAt> {
        p.members.iter().map(|node| PartitionAt { partition: p.id.get(), node: node.get() }).collect()
    };
    let members: Vec<PartitionAt> = state.partitions().flat_map(members).collect();
    ok(&mut state, Command::PartitionsBegun(PartitionsBegun { members }));
    state
}

fn led(by: &[(u32, u32)]) -> Soft {
    let mut soft = Soft::default();
    for (partition, leader) in by {
        let report = PartitionReport { partition: *partition, leader: true, term: 1, ..PartitionReport::default() };
        soft.partitions.insert(PartitionId(*partition), PartitionLoad { leader: NodeId(*leader), report });
    }
    soft
}

/// After a rolling restart one node would do the work of all for ever; or leaderships would go to and fro.
#[test]
fn leaderships_spread_and_then_stay() {
    let state = cluster(3, 7);
    let mut soft = led(&(1..=7).map(|partition| (partition, 16)).collect::<Vec<_>>());
    let mut moved = 0;
    while let Some(transfer) = next_transfer(&state, &soft) {
        let load = soft.partitions.get_mut(&transfer.partition).expect("a partition that is led");
        assert_eq!(load.leader, transfer.from);
        load.leader = transfer.to;
        moved += 1;
        assert!(moved < 20, "it goes on for ever");
    }
    assert_eq!(leads(&state, &soft).into_values().collect::<Vec<_>>(), [3, 2, 2]);
    assert_eq!(moved, 4, "no more than needed");
}

/// A leadership would go to a node that has no part in the partition, or move for nothing.
#[test]
fn only_members_get_it_and_only_for_two() {
    let state = cluster(5, 2);
    let member = |partition: u32, node: u32| {
        state.partition(PartitionId(partition)).expect("there").members.contains(&NodeId(node))
    };
    let both = (16..21).find(|node| member(1, *node) && member(2, *node)).expect("six places on five nodes");
    let transfer = next_transfer(&state, &led(&[(1, both), (2, both)])).expect("another member leads nothing");
    assert!(transfer.from.get() == both && member(transfer.partition.get(), transfer.to.get()), "{transfer:?}");
    let other = (16..21).find(|node| *node != both && member(2, *node)).expect("three members");
    assert_eq!(next_transfer(&state, &led(&[(1, both), (2, other)])), None, "one each");
    let alone = cluster(3, 1);
    assert_eq!(next_transfer(&alone, &led(&[(1, 16)])), None, "a difference of one would only turn around");
}

/// A cluster in trouble would get elections on top.
#[test]
fn nothing_moves_while_something_is_wrong() {
    let piled = led(&[(1, 16), (2, 16), (3, 16)]);
    let state = cluster(4, 3);
    let p1 = state.partition(PartitionId(1)).expect("there").members.clone();
    let leader = p1[0].get();
    let piled_on = |by: u32| led(&[(1, by), (2, by), (3, by)]);
    assert!(next_transfer(&cluster(3, 3), &piled).is_some(), "what the others differ from");
    assert_eq!(next_transfer(&cluster(3, 3), &led(&[(1, 16), (2, 16)])), None, "one has no leader");
    let mut down = cluster(3, 3);
    let incarnation = down.node(NodeId(18)).expect("there").incarnation.get();
    ok(&mut down, Command::NodesDown(NodesDown { nodes: vec![NodeAt { node: 18, incarnation }] }));
    assert_eq!(next_transfer(&down, &piled), None, "a node is down");
    let mut changing = state.clone();
    let spare = (16..20).find(|node| !p1.contains(&NodeId(*node))).expect("a fourth node");
    let wish = vec![leader, p1[1].get(), spare];
    ok(&mut changing, Command::SetPartitionMembers(SetPartitionMembers { partition: 1, members: wish, renew: 0 }));
    assert_eq!(next_transfer(&changing, &piled_on(leader)), None, "members change");
}

/// Each transfer changes who leads: without a pause the next would follow before anybody had noticed.
#[test]
fn calm_begins_anew_with_every_change() {
    let state = cluster(3, 2);
    let at = |seconds: u64| Time(seconds * 1_000_000_000);
    let mut calm = Calm::default();
    let one = led(&[(1, 16), (2, 16)]);
    assert_eq!(calm.lasts(&state, &one, at(5)), Duration::ZERO);
    assert_eq!(calm.lasts(&state, &one, at(9)), Duration::from_secs(4));
    assert_eq!(calm.lasts(&state, &led(&[(1, 17), (2, 16)]), at(10)), Duration::ZERO);
    calm.lasts(&state, &one, at(11));
    calm.disturb();
    assert_eq!(calm.lasts(&state, &one, at(12)), Duration::ZERO);
}
