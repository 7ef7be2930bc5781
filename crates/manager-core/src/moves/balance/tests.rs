//! Which disks give, which get, and that it ends.
use super::*;
use crate::apply::Outcome;
use crate::apply::tests::{cluster, ok};
use crate::command::*;
use crate::moves::plan;
use crate::soft::DiskLoad;
use cairn_types::{PgId, Time};

const GIB: u64 = 1 << 30;

fn make_pg(state: &mut State, disks: &[u32]) -> PgId {
    let groups = vec![Disks { disks: disks.to_vec(), ..Disks::default() }];
    match ok(state, Command::CreatePgs(CreatePgs { volume: 1, scheme: disks.len() as u32, groups })) {
        Outcome::Pgs(pgs) => pgs[0],
        other => panic!("{other:?}"),
    }
}

/// Of 1000 GiB each; who is not named has half of it.
fn loads(state: &State, full: &[(u32, u64)]) -> Soft {
    let mut soft = Soft::default();
    for disk in state.disks() {
        let used = full.iter().find(|(id, _)| *id == disk.id.get()).map_or(500, |(_, used)| *used);
        let load = DiskLoad { total_bytes: 1000 * GIB, free_bytes: (1000 - used) * GIB, ..DiskLoad::default() };
        soft.disks.insert(disk.id, load);
    }
    soft
}

fn moves(state: &State, soft: &Soft) -> Vec<(u32, u32, u32)> {
    let plan = plan(state, soft, Time(0), |_| true, 7);
    assert!(plan.blocked.is_empty(), "what cannot be balanced is no problem: {:?}", plan.blocked);
    plan.groups.iter().map(|g| (g.pg, g.swaps[0].old, g.swaps[0].new)).collect()
}

/// A full disk would refuse writes while others are empty; or an empty one get everything at once.
#[test]
fn a_full_disk_gives_its_largest_group_that_fits() {
    let mut state = cluster(9);
    // Racks: 1 4 7, 2 5 8, 3 6 9.
    let pgs = [make_pg(&mut state, &[1, 2, 3]), make_pg(&mut state, &[1, 2, 6]), make_pg(&mut state, &[1, 5, 3])];
    let mut soft = loads(&state, &[(1, 950), (4, 690), (7, 100)]);
    for (pg, gib) in pgs.iter().zip([30, 700, 20]) {
        soft.pg_used.insert(*pg, gib * GIB);
    }
    // The largest would make disk 7 too full; disk 4 would be above the floor with any but the least.
    assert_eq!(moves(&state, &soft), [(1, 1, 7)]);
    ok(
        &mut state,
        Command::BeginMoves(ReplaceMembers {
            groups: vec![ReplaceIn { pg: 1, epoch: 1, swaps: vec![Swap { old: 1, new: 7 }] }],
        }),
    );
    assert_eq!(moves(&state, &soft), [], "one at a time");
    let at = MemberAt { pg: 1, disk: 7, epoch: 2 };
    ok(&mut state, Command::CaughtUp(CaughtUp { members: vec![at] }));
    assert_eq!(moves(&state, &soft), [], "its space is not free yet");
    ok(&mut state, Command::FormersGone(FormersGone { members: vec![MemberAt { pg: 1, disk: 1, epoch: 3 }] }));
    assert_eq!(moves(&state, &soft), [(3, 1, 7)]);
    soft.disks.insert(DiskId(1), DiskLoad { total_bytes: 1000 * GIB, free_bytes: 100 * GIB, ..DiskLoad::default() });
    assert_eq!(moves(&state, &soft), [], "it is at the ceiling");
}

/// Two copies would end up in one rack, groups go back and forth, or a cluster that is full everywhere never rest.
#[test]
fn domains_stay_and_nothing_moves_in_between() {
    let mut state = cluster(6);
    let pg = make_pg(&mut state, &[1, 2, 3]);
    let with = |state: &State, full: &[(u32, u64)]| {
        let mut soft = loads(state, full);
        soft.pg_used.insert(pg, 10 * GIB);
        soft
    };
    // Only disk 4 is in the rack of disk 1.
    assert_eq!(moves(&state, &with(&state, &[(1, 950), (4, 100)])), [(1, 1, 4)]);
    assert_eq!(moves(&state, &with(&state, &[(1, 950), (4, 695), (5, 0), (6, 0)])), []);
    assert_eq!(moves(&state, &with(&state, &[(1, 950), (2, 950), (3, 950), (4, 950), (5, 950), (6, 950)])), []);
    assert_eq!(moves(&state, &with(&state, &[(1, 890), (4, 0)])), []);
    let off = ConfigValue { key: "rebalance_above".into(), value: "0".into() };
    ok(&mut state, Command::SetConfig(SetConfig { items: vec![off] }));
    assert_eq!(moves(&state, &with(&state, &[(1, 950), (4, 100)])), []);
}

/// Two disks would fill a third one beyond the ceiling, and get their groups back from it.
#[test]
fn what_is_on_its_way_counts_and_nobody_gives_back() {
    let mut state = cluster(9);
    // Racks: 1 4 7, 2 5 8, 3 6 9.
    for disks in [[1, 2, 3], [4, 5, 6], [1, 5, 3], [4, 2, 6]] {
        make_pg(&mut state, &disks);
    }
    let set = |state: &mut State, key: &str, value: &str| {
        let item = ConfigValue { key: key.into(), value: value.into() };
        ok(state, Command::SetConfig(SetConfig { items: vec![item] }));
    };
    set(&mut state, "repair_in_flight_per_disk", "10");
    let mut soft = loads(&state, &[(1, 950), (4, 940), (7, 500)]);
    for pg in 1..=4 {
        soft.pg_used.insert(PgId(pg), 150 * GIB);
    }
    assert_eq!(moves(&state, &soft), [(1, 1, 7)], "with both, disk 7 would be above the floor");
    let groups = vec![ReplaceIn { pg: 1, epoch: 1, swaps: vec![Swap { old: 1, new: 7 }] }];
    ok(&mut state, Command::BeginMoves(ReplaceMembers { groups }));
    assert_eq!(moves(&state, &soft), [], "what comes is not there yet, and counts");
    // A floor above the ceiling: who gets something would have to give it.
    set(&mut state, "rebalance_below", "99");
    assert_eq!(moves(&state, &soft), [(2, 4, 7)]);
    soft.disks.insert(DiskId(7), DiskLoad { total_bytes: 1000 * GIB, free_bytes: 300 * GIB, ..DiskLoad::default() });
    assert_eq!(moves(&state, &soft), []);
}

/// Members would be copied to make room while others are lost; or a lost one wait for a copy that nobody needs.
#[test]
fn repair_has_the_first_word() {
    let mut state = cluster(6);
    let (pg, other) = (make_pg(&mut state, &[1, 2, 3]), make_pg(&mut state, &[4, 5, 6]));
    let mut soft = loads(&state, &[(1, 950), (4, 100)]);
    soft.pg_used.insert(pg, 10 * GIB);
    let damaged = {
        let mut state = state.clone();
        ok(&mut state, Command::MemberFailed(MemberAt { pg: other.get(), disk: 5, epoch: 1 }));
        state
    };
    assert_eq!(moves(&damaged, &soft), []);
    let waiting = Soft { repairs_queued: 1, ..soft.clone() };
    assert_eq!(moves(&state, &waiting), []);
    assert_eq!(moves(&state, &soft), [(1, 1, 4)]);
    let groups = vec![ReplaceIn { pg: 1, epoch: 1, swaps: vec![Swap { old: 1, new: 4 }] }];
    ok(&mut state, Command::BeginMoves(ReplaceMembers { groups }));
    let cancels = |state: &State, soft: &Soft| plan(state, soft, Time(0), |_| true, 7).cancels;
    assert_eq!(cancels(&state, &soft), []);
    assert_eq!(cancels(&state, &waiting), [MemberAt { pg: 1, disk: 4, epoch: 2 }]);
    // Of what is drained somebody wants it.
    let target = Some((&crate::maintenance::Target::Disk(DiskId(1))).into());
    ok(&mut state, Command::SetDrain(SetDrain { target, cancel: false }));
    assert_eq!(cancels(&state, &waiting), []);
    // The disk that gets it is itself to be emptied.
    let target = Some((&crate::maintenance::Target::Disk(DiskId(4))).into());
    ok(&mut state, Command::SetDrain(SetDrain { target, cancel: false }));
    assert_eq!(cancels(&state, &soft), [MemberAt { pg: 1, disk: 4, epoch: 2 }]);
}

/// A volume whose disks are to be kept emptier, or that is to stay where it is, would go by the limits of all others.
#[test]
fn each_volume_has_its_own_limits() {
    let mut state = cluster(9);
    ok(&mut state, Command::CreateVolume(CreateVolume { name: "own".into(), ..CreateVolume::default() }));
    // Racks: 1 4 7, 2 5 8, 3 6 9.
    let of_default = make_pg(&mut state, &[1, 2, 3]);
    let groups = vec![Disks { disks: vec![1, 2, 3], ..Disks::default() }];
    ok(&mut state, Command::CreatePgs(CreatePgs { volume: 2, scheme: 3, groups }));
    let with = |state: &State, full: &[(u32, u64)]| {
        let mut soft = loads(state, full);
        soft.pg_used.extend([(of_default, 20 * GIB), (PgId(2), 10 * GIB)]);
        soft
    };
    let set = |state: &mut State, above: &str, below: &str| {
        let items = [("rebalance_above", above), ("rebalance_below", below)]
            .map(|(key, value)| ConfigValue { key: key.into(), value: value.into() });
        ok(state, Command::SetVolume(SetVolume { name: "own".into(), items: items.to_vec() }));
    };
    let soft = with(&state, &[(1, 850), (4, 600), (7, 550)]);
    assert_eq!(moves(&state, &soft), [], "nothing is above the ceiling of all");
    set(&mut state, "80", "60");
    assert_eq!(moves(&state, &soft), [(2, 1, 7)], "disk 4 would be above the volume's floor");
    let all_full = with(&state, &[(1, 850), (4, 610), (7, 610)]);
    assert_eq!(moves(&state, &all_full), [], "the cluster's floor is not that of the volume");
    assert_eq!(moves(&state, &with(&state, &[(1, 800), (7, 100)])), [], "it is at its ceiling");
    // The other volume goes by the cluster's limits, also where only this one has a place.
    let fuller = with(&state, &[(1, 950), (4, 650), (7, 900)]);
    assert_eq!(moves(&state, &fuller), [(1, 1, 4)]);
    set(&mut state, "0", "");
    assert_eq!(moves(&state, &soft), [], "it stays where it is");
    assert_eq!(
        moves(&state, &with(&state, &[(1, 950), (4, 685), (7, 900)])),
        [],
        "also where only it would have a place"
    );
    set(&mut state, "", "");
    assert_eq!(moves(&state, &soft), [], "as the cluster has it");
    assert_eq!(moves(&state, &with(&state, &[(1, 950), (4, 685), (7, 900)])), [(2, 1, 4)]);
}
