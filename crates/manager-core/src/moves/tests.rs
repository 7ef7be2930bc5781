//! Who leaves when, where to, and what is said when nobody can.
use super::*;
use crate::apply::Outcome;
use crate::apply::tests::{SECOND, cluster, ok, refused, register};
use crate::command::*;
use crate::items::Roles;
use crate::maintenance::Target;
use crate::repair::note_lost;
use cairn_types::{Epoch, WallTime};

const ALL: fn(NodeId) -> bool = |_| true;

fn make_pg(state: &mut State, scheme: &str, disks: &[u32]) -> PgId {
    let scheme: cairn_types::Scheme = scheme.parse().expect("a scheme");
    let groups = vec![Disks { disks: disks.to_vec(), ..Disks::default() }];
    match ok(state, Command::CreatePgs(CreatePgs { volume: 1, scheme: u32::from(scheme.code()), groups })) {
        Outcome::Pgs(pgs) => pgs[0],
        other => panic!("{other:?}"),
    }
}

fn drain(target: &Target, cancel: bool) -> Command {
    Command::SetDrain(SetDrain { target: Some(target.into()), cancel })
}

fn plan_at(state: &State, seconds: u64) -> MovePlan {
    let mut soft = Soft::default();
    note_lost(state, &mut soft, Time(0));
    plan(state, &soft, Time(seconds * SECOND), ALL, 7)
}

fn carry_out(state: &mut State, plan: MovePlan) {
    ok(state, Command::CancelMoves(CancelMoves { members: plan.cancels }));
    ok(state, Command::BeginMoves(ReplaceMembers { groups: plan.groups }));
}

/// All that join say that they have everything; and again where a shard has to be looked at once more.
fn arrive(state: &mut State) {
    let at = |pg: &Pg| {
        let at = |disk: DiskId| MemberAt { pg: pg.id.get(), disk: disk.get(), epoch: pg.epoch.get() };
        pg.filling().map(at).collect::<Vec<_>>()
    };
    for _ in 0..2 {
        let members = state.pgs().flat_map(at).collect();
        ok(state, Command::CaughtUp(CaughtUp { members }));
    }
}

fn disks_of(state: &State, pg: PgId) -> Vec<u32> {
    state.pg(pg).expect("known").members.iter().map(|m| m.disk.get()).collect()
}

/// A disk would never get empty, or its groups would be short meanwhile, or new ones would come to it.
#[test]
fn a_drained_disk_gets_empty_while_it_serves() {
    let mut state = cluster(12);
    // Racks in turn: 1 4 7 10, 2 5 8 11, 3 6 9 12.
    let copies = make_pg(&mut state, "r3", &[1, 2, 3]);
    let shards = make_pg(&mut state, "rs-3-2", &[4, 1, 5, 6, 8]);
    let other = make_pg(&mut state, "r3", &[4, 5, 6]);
    assert_eq!(plan_at(&state, 0), MovePlan::default());
    ok(&mut state, drain(&Target::Disk(DiskId(1)), false));
    assert!(!state.takes_more(DiskId(1)) && state.is_able(DiskId(1)));
    let first = plan_at(&state, 0);
    assert_eq!(
        first.groups.iter().map(|g| (g.pg, g.swaps[0].old)).collect::<Vec<_>>(),
        [(copies.get(), 1), (shards.get(), 1)]
    );
    let new = first.groups[0].swaps[0].new;
    assert!([7, 10].contains(&new), "d{new} is in another rack");
    carry_out(&mut state, first);
    for pg in [copies, shards] {
        let pg = state.pg(pg).expect("known");
        assert!(pg.is_complete() && pg.leaving() == Some(DiskId(1)), "it serves on: {pg:?}");
    }
    assert_eq!(plan_at(&state, 0), MovePlan::default(), "one at a time");
    arrive(&mut state);
    assert_eq!(disks_of(&state, copies), [new, 2, 3]);
    assert_eq!(state.pgs_of(DiskId(1)).count(), 0);
    assert!(state.pgs().all(|pg| pg.is_complete() && pg.formers.iter().all(|f| f.drop)));
    assert_eq!((disks_of(&state, other), plan_at(&state, 0)), (vec![4, 5, 6], MovePlan::default()));
    let soft = Soft::default();
    let made = crate::plan::plan(&state, &soft, cairn_types::VolumeId(1), "r3".parse().expect("a scheme"), 3);
    assert!(made.expect("there is room").iter().all(|g| !g.disks.contains(&1)), "a new group comes to it");
}

/// A whole rack would be emptied into itself, or two members of a group leave at once.
#[test]
fn a_rack_is_emptied_one_member_of_a_group_at_a_time() {
    let mut state = cluster(9);
    ok(
        &mut state,
        Command::SetConfig(SetConfig {
            items: vec![ConfigValue { key: "repair_in_flight_per_disk".into(), value: "1".into() }],
        }),
    );
    let shards = make_pg(&mut state, "rs-4-2", &[1, 2, 3, 4, 5, 6]);
    ok(&mut state, drain(&Target::Rack("rack0".into()), false));
    for round in 0..2 {
        let plan = plan_at(&state, 0);
        let why = plan.blocked.values().next();
        assert!(plan.groups.len() <= 1 && (plan.groups.len() == 1 || why.is_some()), "round {round}: {plan:?}");
        if plan.groups.is_empty() {
            assert!(why.expect("a reason").contains("add a disk in a new rack"), "{why:?}");
        }
        carry_out(&mut state, plan);
        arrive(&mut state);
    }
    // A rack of their own for them.
    for number in 20..23 {
        ok(&mut state, Command::Register(Register { rack: "new".into(), ..register(number, Roles::DATA, 1) }));
    }
    for _ in 0..3 {
        let plan = plan_at(&state, 0);
        carry_out(&mut state, plan);
        arrive(&mut state);
    }
    assert!(disks_of(&state, shards).iter().all(|disk| !state.is_drained(DiskId(*disk))), "{:?}", state.pg(shards));
}

/// Operators would be told to add disks although better places are just being filled, and a disk that takes nothing be
/// counted busy.
#[test]
fn better_places_that_are_busy_are_waited_for() {
    let mut state = cluster(9);
    let item = ConfigValue { key: "repair_in_flight_per_disk".into(), value: "1".into() };
    ok(&mut state, Command::SetConfig(SetConfig { items: vec![item] }));
    // Two copies in the first rack each, none in the third one, which has d3, d6 and d9.
    for disks in [[1, 4, 2], [1, 7, 2], [4, 7, 5], [1, 4, 8]] {
        make_pg(&mut state, "r3", &disks);
    }
    let first = plan_at(&state, 0);
    let new: std::collections::BTreeSet<u32> = first.groups.iter().map(|group| group.swaps[0].new).collect();
    assert_eq!(new, [3, 6, 9].into());
    assert_eq!((first.queued, first.blocked.len()), (1, 0), "{:?}", first.blocked);
    carry_out(&mut state, first);
    assert_eq!(plan_at(&state, 0).queued, 1, "they are being filled");
    arrive(&mut state);
    assert_eq!(plan_at(&state, 0).groups.len(), 1);
}

/// A drain taken back would go on; one that nobody asked for would seem to exist; or a disk that never comes hold up
/// the rest.
#[test]
fn cancelled_and_stuck_moves_give_up() {
    let mut state = cluster(9);
    let pg = make_pg(&mut state, "r3", &[1, 2, 3]);
    let node = Target::Node(NodeId(16));
    assert!(refused(&mut state, drain(&node, true)).message.contains("is not being drained"));
    assert!(
        refused(&mut state, drain(&Target::Disk(DiskId(99)), false)).message.contains("there is no disk in disk d99")
    );
    ok(&mut state, drain(&node, false));
    let plan = plan_at(&state, 0);
    let new = plan.groups[0].swaps[0].new;
    carry_out(&mut state, plan);
    ok(&mut state, drain(&node, true));
    let now = state.pg(pg).expect("known").clone();
    assert!(now.joining.is_none() && now.is_complete() && now.formers[0].disk == DiskId(new) && now.formers[0].drop);
    assert_eq!(plan_at(&state, 0), MovePlan::default());
    // The disk that joins dies.
    ok(&mut state, drain(&node, false));
    let plan = plan_at(&state, 0);
    let new = plan.groups[0].swaps[0].new;
    carry_out(&mut state, plan);
    let home = state.disk(DiskId(new)).expect("known").node;
    let incarnation = state.node(home).expect("known").incarnation.get();
    let down = NodesDown { nodes: vec![NodeAt { node: home.get(), incarnation }] };
    assert!(state.apply(WallTime(SECOND), &Command::NodesDown(down)).outcome.is_ok());
    assert!(state.pg(pg).expect("known").is_complete(), "the members are as they were");
    assert!(plan_at(&state, 29).cancels.is_empty());
    let late = plan_at(&state, 30);
    assert_eq!(late.cancels.iter().map(|at| at.disk).collect::<Vec<_>>(), [new]);
    carry_out(&mut state, late);
    assert!(plan_at(&state, 30).groups.iter().all(|g| g.swaps[0].new != new), "another one");
}

/// Redundancy would fall below what it was; or nobody would know why a drain does not go on.
#[test]
fn what_is_not_whole_waits_for_repair() {
    let mut state = cluster(9);
    let pg = make_pg(&mut state, "rs-3-2", &[1, 2, 3, 4, 5]);
    let at = MemberAt { pg: pg.get(), disk: 2, epoch: 1 };
    ok(&mut state, Command::MemberFailed(at));
    ok(&mut state, drain(&Target::Disk(DiskId(1)), false));
    let plan = plan_at(&state, 0);
    assert!(plan.groups.is_empty());
    assert!(plan.blocked[&(pg, DiskId(1))].contains("other members of pg1 do not serve"), "{:?}", plan.blocked);
    assert_eq!(state.pg(pg).expect("known").epoch, Epoch(2));
}

/// Racks that were three become two, or one: a node comes back with another name of its rack.
fn move_to_rack(state: &mut State, number: u32, rack: &str) {
    ok(state, Command::Register(Register { rack: rack.into(), ..register(number, Roles::DATA, 1) }));
    let mut syncing = Vec::new();
    for pg in state.pgs() {
        let late = pg.members.iter().filter(|m| m.state == MemberState::Syncing);
        syncing.extend(late.map(|m| MemberAt { pg: pg.id.get(), disk: m.disk.get(), epoch: pg.epoch.get() }));
    }
    ok(state, Command::CaughtUp(CaughtUp { members: syncing }));
}

/// Two copies would stay in one rack and be lost with it; or nobody would know of it.
#[test]
fn a_node_in_another_rack_is_audited() {
    let mut state = cluster(6);
    // Racks: 1 4, 2 5, 3 6.
    let copies = make_pg(&mut state, "r3", &[1, 2, 3]);
    let shards = make_pg(&mut state, "rs-3-2", &[1, 2, 3, 4, 5]);
    assert!(misplaced(&state).is_empty(), "two of five in a rack are no more than may be lost");
    assert_eq!(plan_at(&state, 0), MovePlan::default());
    move_to_rack(&mut state, 1, "rack0");
    let found: Vec<(PgId, usize)> = misplaced(&state).into_iter().map(|(pg, at)| (pg.id, at)).collect();
    assert_eq!(found.iter().map(|(pg, _)| *pg).collect::<Vec<_>>(), [copies, shards], "{found:?}");
    let text = crate::problems::problems(&state, &Soft::default(), WallTime(SECOND)).texts().join("\n");
    assert!(text.contains("2 placement groups (pg1, pg2) have more members in one rack or on one host"), "{text}");
    for _ in 0..4 {
        let plan = plan_at(&state, 0);
        carry_out(&mut state, plan);
        arrive(&mut state);
    }
    assert!(misplaced(&state).is_empty(), "{:?}", state.pgs().collect::<Vec<_>>());
    let rack = |disk: &u32| state.disk(DiskId(*disk)).and_then(|d| state.node(d.node)).map(|n| n.rack.clone());
    let racks: std::collections::BTreeSet<_> = disks_of(&state, copies).iter().map(rack).collect();
    assert_eq!(racks.len(), 3, "each copy in a rack of its own");
    assert_eq!(plan_at(&state, 0), MovePlan::default());
}

/// Growth would move what is safe where it is; or what cannot be better would be moved again and again.
#[test]
fn only_what_can_be_safer_moves() {
    let mut state = cluster(9);
    make_pg(&mut state, "rs-6-3", &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
    make_pg(&mut state, "r3", &[1, 2, 3]);
    for number in 20..23 {
        ok(&mut state, Command::Register(Register { rack: "fourth".into(), ..register(number, Roles::DATA, 1) }));
    }
    assert!(misplaced(&state).is_empty());
    // One rack, then two: copies cannot be in three.
    let mut state = cluster(6);
    make_pg(&mut state, "r3", &[1, 4, 2]);
    for number in [2, 5] {
        move_to_rack(&mut state, number, "rack1");
    }
    assert!(misplaced(&state).is_empty(), "two racks for three copies");
    assert_eq!(plan_at(&state, 0), MovePlan::default());
}
