//! What is said about a damaged cluster.
use super::*;
use crate::apply::tests::{SECOND, cluster, ok, register};
use crate::command::{Command, CreatePgs, DiskAt, DiskStates, Disks, NodeAt, NodesDown};
use crate::soft::PartitionLoad;
use cairn_types::{NodeId, PartitionId, PgId};

fn healthy() -> (State, Soft) {
    let mut state = cluster(3);
    for disks in [vec![1, 2, 3], vec![1], vec![1, 2]] {
        let scheme = disks.len() as u32;
        ok(
            &mut state,
            Command::CreatePgs(CreatePgs { volume: 1, scheme, groups: vec![Disks { disks, ..Disks::default() }] }),
        );
    }
    let mut soft = Soft::default();
    let load = PartitionLoad { leader: NodeId(19), report: Default::default() };
    soft.partitions.insert(PartitionId(1), load);
    (state, soft)
}

fn down(state: &mut State, nodes: &[u32]) {
    let at = |n: &u32| NodeAt { node: *n, incarnation: state.node(NodeId(*n)).expect("known").incarnation.get() };
    let nodes = nodes.iter().map(at).collect();
    ok(state, Command::NodesDown(NodesDown { nodes }));
}

/// A healthy cluster must be silent, or nobody reads the list.
#[test]
fn healthy_is_silent() {
    let (state, soft) = healthy();
    assert_eq!(problems(&state, &soft, WallTime(0)), Vec::<String>::new());
}

/// The operator has to learn what is lost, what it means and what to do, the worst first.
#[test]
fn a_dead_node_and_what_it_means() {
    let (mut state, soft) = healthy();
    down(&mut state, &[16]);
    let said = problems(&state, &soft, WallTime(26 * SECOND));
    assert_eq!(said.len(), 3, "{said:#?}");
    assert!(said[0].contains("1 placement group (pg2) cannot be read or written"), "{}", said[0]);
    assert!(said[0].contains("d1 (/data0/0 on n16, host host0)"), "{}", said[0]);
    assert!(said[1].contains("n16") && said[1].contains("is down for 25 s: 3 placement groups lack it"), "{}", said[1]);
    assert!(said[2].contains("2 placement groups (pg1, pg3) have fewer copies"), "{}", said[2]);
    down(&mut state, &[17]);
    let said = problems(&state, &soft, WallTime(26 * SECOND));
    assert!(said.iter().any(|p| p.contains("can be read but not written")), "{said:#?}");
    ok(&mut state, Command::Register(register(0, Roles::DATA, 1)));
    let said = problems(&state, &soft, WallTime(26 * SECOND));
    assert!(said.iter().any(|p| p.contains("pg3")), "{said:#?}");
}

/// A cluster with lost blocks would be called healthy, or one whose group is gone damaged for ever.
#[test]
fn blocks_that_cannot_be_healed_are_named() {
    let (state, mut soft) = healthy();
    soft.unhealed.insert((PgId(1), DiskId(2)), (57, false));
    soft.unhealed.insert((PgId(2), DiskId(3)), (5, false));
    let said = problems(&state, &soft, WallTime(0));
    assert_eq!(said.len(), 1, "d3 is no member of pg2: {said:#?}");
    assert!(
        said[0].starts_with("57 blocks are bad and cannot be healed now: 57 of pg1 on d2 (/data1/0 on n17)"),
        "{}",
        said[0]
    );
    soft.unhealed.insert((PgId(3), DiskId(1)), (1, true));
    assert!(problems(&state, &soft, WallTime(0))[0].starts_with("at least 58 blocks are bad"));
}

/// A failed disk, a partition without leader, a mute node must be named.
#[test]
fn disks_partitions_and_mute_nodes() {
    let (mut state, mut soft) = healthy();
    soft.partitions.clear();
    soft.mute.insert(NodeId(17), true);
    let incarnation = state.node(NodeId(18)).expect("known").incarnation.get();
    let failed = DiskAt { disk: 3, incarnation, state: 1, problem: "sync failed: EIO".into() };
    ok(&mut state, Command::DiskStates(DiskStates { disks: vec![failed] }));
    let said = problems(&state, &soft, WallTime(0)).join("\n");
    assert!(said.contains("p1 (volume default) reports no leader"), "{said}");
    assert!(said.contains("d3 (/data2/0 on n18) is failed: sync failed: EIO"), "{said}");
    assert!(said.contains("n17") && said.contains("sends no heartbeats"), "{said}");
}

/// A node that is gone for good and held nothing would keep the cluster from ever being healthy again.
#[test]
fn a_lost_node_that_held_nothing_is_no_problem() {
    let (mut state, soft) = healthy();
    for (number, roles) in [(8, Roles::DATA), (9, Roles::META)] {
        let disks = u32::from(roles == Roles::DATA);
        ok(&mut state, Command::Register(register(number, roles, disks)));
    }
    down(&mut state, &[20, 21]);
    assert_eq!(problems(&state, &soft, WallTime(0)), Vec::<String>::new());
    // The only member of a partition is one.
    down(&mut state, &[19]);
    let said = problems(&state, &soft, WallTime(26 * SECOND));
    assert!(said.len() == 1 && said[0].contains("p1 cannot be used without it"), "{said:#?}");
}

/// Damage that keeps a member from catching up would be in the log of one node only.
#[test]
fn a_member_that_cannot_catch_up_is_named() {
    let (mut state, mut soft) = healthy();
    let at = (PgId(1), DiskId(1));
    soft.pg_waits.insert(at, "pg1/7: no member has block 3".into());
    assert_eq!(problems(&state, &soft, WallTime(0)), Vec::<String>::new(), "it serves");
    down(&mut state, &[16]);
    ok(&mut state, Command::Register(register(0, Roles::DATA, 1)));
    let said = problems(&state, &soft, WallTime(26 * SECOND)).join("\n");
    assert!(said.contains("1 member cannot catch up") && said.contains("d1 in pg1: pg1/7: no member has"), "{said}");
    assert!(said.contains("their members are catching up now: d1 in pg1"), "{said}");
}
