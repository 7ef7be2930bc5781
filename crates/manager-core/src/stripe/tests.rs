//! Stripe groups: made as the racks allow, never weaker in an outage, kept by repair and moves, and never instead of
//! copies.
use super::*;
use crate::apply::tests::{SECOND, cluster, empty_cluster, ok, refused, register};
use crate::apply::{GROUPS_MAX, Outcome};
use crate::command::*;
use crate::items::Roles;
use crate::map::Scope;
use crate::soft::{DiskLoad, Soft};
use crate::{moves, repair};
use cairn_placement::Domains;
use cairn_placement::ear::EarRefusal;
use cairn_placement::{Seat, Vacancy};
use cairn_types::{DiskId, ErrorCode, MemberState, NodeId, Time};
use cairn_wire::manager::ClusterMap;
use std::collections::{BTreeMap, BTreeSet};

const ALL: fn(NodeId) -> bool = |_| true;

fn class(text: &str) -> PgClass {
    text.parse::<cairn_types::Layout>().expect("a layout").pg_class()
}

/// Racks r0, r1 … with so many nodes of one disk each; the first disk of the first rack is disk 1, on node 16. Stripe
/// groups are switched on.
pub(crate) fn racks(counts: &[u32]) -> State {
    let mut state = empty_cluster();
    let mut number = 0;
    for (rack, nodes) in counts.iter().enumerate() {
        for _ in 0..*nodes {
            let node = Register { rack: format!("r{rack}"), ..register(number, Roles::DATA, 1) };
            ok(&mut state, Command::Register(node));
            number += 1;
        }
    }
    ok(&mut state, Command::Register(register(90, Roles::META, 0)));
    ok(&mut state, Command::CreateVolume(CreateVolume { name: "default".into(), ..CreateVolume::default() }));
    ok(&mut state, Command::ActivateLevel(ActivateLevel { level: STRIPE_LEVEL }));
    set(&mut state, "stripe_groups", "on");
    state
}

pub(crate) fn set(state: &mut State, key: &str, value: &str) {
    let item = ConfigValue { key: key.into(), value: value.into() };
    assert_eq!(ok(state, Command::SetConfig(SetConfig { items: vec![item] })), Outcome::Done);
}

fn planned(state: &State, text: &str) -> Result<Vec<StripeGroupOf>, EarRefusal> {
    plan::plan(state, &Soft::default(), VolumeId(1), class(text), 7)
}

fn command_of(text: &str, groups: Vec<StripeGroupOf>) -> Command {
    let PgClass { scheme, later } = class(text);
    let (scheme, later) = (u32::from(scheme.code()), later.map_or(0, |later| u32::from(later.code())));
    Command::CreateStripeGroups(CreateStripeGroups { volume: 1, scheme, later, groups })
}

pub(crate) fn make(state: &mut State, text: &str) -> usize {
    let groups = planned(state, text).expect("a plan");
    let count = groups.len();
    ok(state, command_of(text, groups));
    count
}

pub(crate) fn rack_of(state: &State, disk: DiskId) -> String {
    let node = state.disk(disk).and_then(|disk| state.node(disk.node));
    node.expect("a disk of a node").rack.clone()
}

fn incarnation(state: &State, node: NodeId) -> u64 {
    state.node(node).expect("known").incarnation.get()
}

fn down(state: &mut State, disks: &[DiskId]) {
    let nodes: BTreeSet<NodeId> = disks.iter().map(|disk| state.disk(*disk).expect("known").node).collect();
    let at = |node: NodeId| NodeAt { node: node.get(), incarnation: incarnation(state, node) };
    let command = Command::NodesDown(NodesDown { nodes: nodes.into_iter().map(at).collect() });
    assert!(state.apply(WallTime(SECOND), &command).outcome.is_ok());
    state.check_invariants();
}

fn of_rack(state: &State, rack: &str) -> Vec<DiskId> {
    state.disks().map(|disk| disk.id).filter(|disk| rack_of(state, *disk) == rack).collect()
}

/// Whether it encodes in its core rack, as the members are in the state.
fn encodes_near(state: &State, group: &StripeGroup) -> bool {
    let mut domains = Domains::new();
    let core = domains.rack(&group.core_rack);
    let mut seat = |disk: DiskId| {
        let node = state.disk(disk).and_then(|disk| state.node(disk.node)).expect("a disk of a node");
        let (rack, host) = domains.host(&node.rack, &node.host);
        Seat { node: node.id, rack, host }
    };
    let nodes: Vec<Seat> = seats::able_nodes(state).into_iter().map(&mut seat).collect();
    seats::Seats::new(state, group, (core, &nodes), |pg, at| pg.members[at].disk, seat)
        .is_some_and(|seats| seats.arrange().is_some())
}

/// Long after everything that is away went away.
fn repairs(state: &State) -> repair::RepairPlan {
    let mut soft = Soft::default();
    repair::note_lost(state, &mut soft, Time(0));
    repair::plan(state, &soft, Time(100_000 * SECOND), ALL, 7)
}

fn arrive(state: &mut State) {
    let at = |pg: &Pg| {
        let at = |disk: DiskId| MemberAt { pg: pg.id.get(), disk: disk.get(), epoch: pg.epoch.get() };
        pg.disks().filter(|disk| pg.state_of(*disk) != Some(MemberState::Serving)).map(at).collect::<Vec<_>>()
    };
    let members = state.pgs().flat_map(at).collect();
    ok(state, Command::CaughtUp(CaughtUp { members }));
}

/// Encoding would read across racks, a writer find no group of its rack, or plain files lie in columns.
#[test]
fn groups_are_made_for_every_rack_and_beside_others() {
    let mut state = racks(&[2; 9]);
    assert_eq!(make(&mut state, "r3>rs-6-3"), 9, "one for each rack, which is more than the share of the disks");
    assert_eq!(make(&mut state, "r3>rs-6-3"), 0, "there are enough");
    let cores: BTreeSet<String> = state.stripe_groups().map(|group| group.core_rack.clone()).collect();
    assert_eq!(cores.len(), 9);
    for group in state.stripe_groups() {
        assert_eq!((group.columns.len(), group.rack_capacity), (6, 1));
        assert!(encodes_near(&state, group), "{}", group.id);
        for pg in group.columns.iter().map(|pg| state.pg(*pg).expect("made")) {
            let racks: Vec<String> = pg.members.iter().map(|member| rack_of(&state, member.disk)).collect();
            assert!(racks[0] == group.core_rack && racks[1] == racks[2] && racks[0] != racks[1], "{racks:?}");
        }
    }
    let plain = crate::plan::plan(&state, &Soft::default(), VolumeId(1), class("r3").scheme, 7).expect("disks");
    assert_eq!(plain.len(), 24, "columns are no groups of r3");
    assert_eq!(make(&mut state, "r3>rs-3-2"), 9, "nor columns of another scheme");
    let loads: Vec<usize> = state.disks().map(|disk| state.pgs_of(disk.id).count()).collect();
    assert!(loads.iter().all(|load| (9..=18).contains(load)), "disks get about as many: {loads:?}");
}

/// Files would survive fewer racks for ever because one was down when their groups were made; or columns be made where
/// nobody asked for them, which cost a rack of tolerance.
#[test]
fn an_outage_makes_no_weaker_groups() {
    let mut state = racks(&[2; 9]);
    let third = of_rack(&state, "r3");
    down(&mut state, &third);
    let refusal = planned(&state, "r3>rs-6-3").expect_err("nine racks are needed");
    assert!(matches!(refusal, EarRefusal::TooFewRacks { wanted: 9, have: 8, capacity: 1, .. }), "{refusal}");
    let mut eight = racks(&[2; 8]);
    assert!(make(&mut eight, "r3>rs-6-3") > 0);
    assert!(eight.stripe_groups().all(|group| group.rack_capacity == 2));
    assert!(plan::is_wanted(&eight, class("r3>rs-6-3")) && !plan::is_wanted(&eight, class("r3")));
    set(&mut eight, "stripe_groups", "off");
    assert!(!plan::is_wanted(&eight, class("r3>rs-6-3")));
    assert!(!plan::is_wanted(&cluster(9), class("r3>rs-6-3")), "members of before do not know them");
    let one = planned(&racks(&[9]), "r3>rs-6-3").expect_err("one rack");
    assert!(matches!(one, EarRefusal::NoRemoteRack { .. }), "{one}");
    assert_eq!(planned(&racks(&[2; 9]), "r3"), Ok(Vec::new()), "nothing is encoded later");
}

/// Rows of ten columns for thousands of disks would be one entry that is too large.
#[test]
fn a_command_has_a_bound() {
    let mut state = racks(&[12; 14]);
    set(&mut state, "pgs_per_disk", "20");
    let groups = planned(&state, "r3>rs-10-4").expect("a plan");
    assert_eq!(groups.len(), GROUPS_MAX / 10);
    ok(&mut state, command_of("r3>rs-10-4", groups));
    assert!(state.stripe_groups().all(|group| encodes_near(&state, group)));
}

/// A group would begin with a member that is away, or whose rack is another one than was planned.
#[test]
fn a_plan_is_void_when_the_cluster_changed() {
    let mut state = racks(&[2, 2, 2]);
    let groups = planned(&state, "r3>rs-3-2").expect("a plan");
    let refuses = |state: &mut State, groups: &[StripeGroupOf], code: ErrorCode| {
        assert_eq!(refused(state, command_of("r3>rs-3-2", groups.to_vec())).code, code);
    };
    let changed = |change: &dyn Fn(&mut StripeGroupOf)| {
        let mut groups = groups.clone();
        change(&mut groups[0]);
        groups
    };
    refuses(&mut state, &changed(&|group| group.core_rack = "r9".into()), ErrorCode::Conflict);
    refuses(&mut state, &changed(&|group| group.rack_capacity = 0), ErrorCode::Conflict);
    refuses(&mut state, &changed(&|group| drop(group.columns.pop())), ErrorCode::Conflict);
    refuses(&mut state, &changed(&|group| group.columns[0].disks.swap(0, 1)), ErrorCode::Conflict);
    refuses(&mut state, &changed(&|group| group.columns[0].disks[2] = group.columns[0].disks[1]), ErrorCode::Conflict);
    let many = vec![groups[0].clone(); GROUPS_MAX / 3 + 1];
    refuses(&mut state, &many, ErrorCode::BadRequest);
    let plain = CreateStripeGroups { volume: 1, scheme: 3, later: 3, groups: groups.clone() };
    assert_eq!(refused(&mut state, Command::CreateStripeGroups(plain)).code, ErrorCode::BadLayout);
    let first = DiskId(groups[0].columns[0].disks[0]);
    down(&mut state, &[first]);
    refuses(&mut state, &groups, ErrorCode::Conflict);
}

/// A repaired group would encode across racks although a disk of the right rack is there; or stay one loss from its
/// end because none is.
#[test]
fn repair_keeps_what_was_planned_and_copies_come_first() {
    let mut state = racks(&[3; 5]);
    make(&mut state, "r3>rs-3-2");
    let core = state.stripe_groups().next().expect("made").clone();
    let primary = state.pg(core.columns[0]).expect("made").members[0].disk;
    down(&mut state, &[primary]);
    let due = repairs(&state);
    assert!(!due.groups.is_empty() && due.blocked.is_empty(), "{due:?}");
    ok(&mut state, Command::ReplaceMembers(ReplaceMembers { groups: due.groups }));
    arrive(&mut state);
    assert!(
        state.stripe_groups().all(|group| encodes_near(&state, group)),
        "of a group with several columns on it, too"
    );
    let pg = state.pg(core.columns[0]).expect("made");
    assert_eq!(rack_of(&state, pg.members[0].disk), core.core_rack);
    assert!(pg.members[0].disk != primary && pg.is_complete());
    // The whole core rack: nobody can keep it, and copies are made all the same.
    let rack = of_rack(&state, &core.core_rack);
    down(&mut state, &rack);
    for _ in 0..20 {
        let due = repairs(&state);
        ok(&mut state, Command::ReplaceMembers(ReplaceMembers { groups: due.groups }));
        arrive(&mut state);
    }
    let columns: Vec<&Pg> = core.columns.iter().map(|pg| state.pg(*pg).expect("made")).collect();
    assert!(columns.iter().all(|pg| pg.is_complete()), "{:?}", repairs(&state));
    assert!(!encodes_near(&state, &core), "its primaries are elsewhere");
}

/// The disk of a failed repair would count twice: two copies of a stripe planned onto one node in one round.
#[test]
fn what_is_planned_in_one_round_fits_together() {
    for seed in 0..20 {
        let mut state = racks(&[3; 6]);
        let groups = plan::plan(&state, &Soft::default(), VolumeId(1), class("r3>rs-3-2"), seed).expect("a plan");
        ok(&mut state, command_of("r3>rs-3-2", groups));
        set(&mut state, "repair_in_flight_per_disk", "100");
        // One node of each of two racks: of both kinds of places.
        let (first, second) = (of_rack(&state, "r1"), of_rack(&state, "r4"));
        down(&mut state, &[first[0], second[0]]);
        let due = repairs(&state);
        assert!(due.queued == 0 && due.blocked.is_empty(), "{due:?}");
        ok(&mut state, Command::ReplaceMembers(ReplaceMembers { groups: due.groups }));
        arrive(&mut state);
        for group in state.stripe_groups() {
            assert!(encodes_near(&state, group), "seed {seed}: {}", group.id);
        }
    }
}

/// A column that lost its primary, so that both its copies are in one rack, would wait until the one disk of the core
/// rack has filled others. Who leaves while it serves may wait: nothing is missing.
#[test]
fn only_members_that_serve_wait_for_the_right_rack() {
    let mut state = racks(&[2, 4, 4, 4, 4]);
    set(&mut state, "pgs_per_disk", "12");
    make(&mut state, "r3>rs-3-2");
    set(&mut state, "repair_in_flight_per_disk", "1");
    let primary = DiskId(1);
    let led: Vec<Pg> = state.pgs().filter(|pg| pg.members[0].disk == primary).cloned().collect();
    let found = |state: &State| {
        let soft = Soft::default();
        let mut planner = repair::Planner::new(state, &soft, ALL, 7);
        let mut places = led[..2].iter().map(|pg| {
            let pg = state.pg(pg.id).expect("made");
            let seats: Vec<Seat> = pg.disks().map(|disk| planner.seat(disk)).collect();
            let taken: Vec<DiskId> = pg.disks().collect();
            let vacancy = Vacancy { lost: seats[0], others: &seats[1..], taken: &taken, bytes: 0, beside: [0, 0] };
            match planner.find_for((pg, 0), &vacancy, |_| true) {
                repair::Found::Disk(disk) => Some(rack_of(state, disk)),
                repair::Found::Later | repair::Found::None(_) => None,
            }
        });
        [places.next().flatten(), places.next().flatten()]
    };
    assert_eq!(found(&state), [Some("r0".into()), None], "one that serves waits for the disk");
    down(&mut state, &[primary]);
    let [first, second] = found(&state);
    assert_eq!(first.as_deref(), Some("r0"));
    assert!(second.as_ref().is_some_and(|rack| rack != "r0"), "one that is lost does not: {second:?}");
}

/// A column that does not lie as planned, and is no better than any group, would never be spread or balanced.
#[test]
fn columns_that_lie_otherwise_are_like_other_groups() {
    let mut state = racks(&[3; 5]);
    make(&mut state, "r3>rs-3-2");
    let pg = state.pgs().next().expect("made").clone();
    let core = rack_of(&state, pg.members[0].disk);
    let mut moved = pg.clone();
    let near = of_rack(&state, &core).into_iter().find(|disk| *disk != pg.members[0].disk).expect("three nodes");
    moved.members[1].disk = near;
    state.put_pg(moved);
    assert_eq!(
        moves::misplaced(&state).iter().map(|(pg, _)| pg.id).collect::<Vec<_>>(),
        [pg.id],
        "two in its core rack"
    );
    let soft = Soft::default();
    let mut planner = repair::Planner::new(&state, &soft, ALL, 7);
    let pg = state.pg(pg.id).expect("made");
    let seats: Vec<Seat> = pg.disks().map(|disk| planner.seat(disk)).collect();
    let taken: Vec<DiskId> = pg.disks().collect();
    let vacancy = Vacancy { lost: seats[1], others: &[seats[0], seats[2]], taken: &taken, bytes: 0, beside: [0, 0] };
    assert!(planner.choose_for((pg, 1), &vacancy).is_some(), "balance would leave it on a full disk for ever");
}

fn move_plan(state: &State, soft: &Soft) -> moves::MovePlan {
    moves::plan(state, soft, Time(0), ALL, 7)
}

/// What was placed on purpose would be moved apart; or a drained core member go to another rack while its own has room.
#[test]
fn moves_leave_columns_as_they_were_planned() {
    let mut state = racks(&[3; 5]);
    make(&mut state, "r3>rs-3-2");
    assert_eq!(moves::misplaced(&state), [], "two copies in a rack are right");
    assert_eq!(move_plan(&state, &Soft::default()), moves::MovePlan::default());
    let core = state.stripe_groups().next().expect("made").clone();
    let leaving = state.pg(core.columns[1]).expect("made").members[0].disk;
    let target = TargetOf { kind: Some(TargetKind::Disk(leaving.get())) };
    ok(&mut state, Command::SetDrain(SetDrain { target: Some(target), cancel: false }));
    for _ in 0..20 {
        let due = move_plan(&state, &Soft::default());
        assert!(due.blocked.is_empty(), "{due:?}");
        ok(&mut state, Command::BeginMoves(ReplaceMembers { groups: due.groups }));
        arrive(&mut state);
    }
    assert_eq!(state.pgs_of(leaving).count(), 0, "it is empty");
    assert!(state.stripe_groups().all(|group| encodes_near(&state, group)));
    assert!(state.stripe_groups().all(|group| group.columns.iter().all(|pg| {
        let pg = state.pg(*pg).expect("made");
        rack_of(&state, pg.members[0].disk) == group.core_rack
    })));
}

/// A rack could take all copies of a column with it, and nobody would do anything about it.
#[test]
fn a_column_that_lies_in_one_rack_is_misplaced() {
    let mut state = racks(&[4; 3]);
    make(&mut state, "r3>rs-3-2");
    let column = state.pgs().find(|pg| pg.column.is_some()).expect("made").clone();
    let home = rack_of(&state, column.members[0].disk);
    for disk in [column.members[1].disk, column.members[2].disk] {
        let number = disk.get() - 1;
        let moved = Register { rack: home.clone(), node: number + 16, ..register(number, Roles::DATA, 1) };
        let disks = moved.disks.iter().map(|d| RegisterDisk { disk: disk.get(), ..d.clone() }).collect();
        ok(&mut state, Command::Register(Register { disks, ..moved }));
    }
    arrive(&mut state);
    let found: Vec<PgId> = moves::misplaced(&state).into_iter().map(|(pg, _)| pg.id).collect();
    assert!(found.contains(&column.id), "{found:?}");
}

/// A disk that is too full would give a column to a rack in which it cannot be encoded.
#[test]
fn balance_moves_columns_only_where_they_fit() {
    let mut state = racks(&[3; 5]);
    make(&mut state, "r3>rs-3-2");
    let full = state.stripe_groups().next().expect("made").columns[0];
    let full = state.pg(full).expect("made").members[0].disk;
    let mut soft = Soft::default();
    for disk in state.disks().map(|disk| disk.id) {
        let free_bytes = if disk == full { 4 << 30 } else { 90 << 30 };
        soft.disks.insert(disk, DiskLoad { total_bytes: 100 << 30, free_bytes, ..DiskLoad::default() });
    }
    soft.pg_used = state.pgs().map(|pg| (pg.id, 1 << 30)).collect();
    let due = move_plan(&state, &soft);
    assert_eq!(due.groups.len(), 1, "{due:?}");
    ok(&mut state, Command::BeginMoves(ReplaceMembers { groups: due.groups }));
    arrive(&mut state);
    assert!(state.stripe_groups().all(|group| encodes_near(&state, group)));
    // Its rack has nobody else: it stays.
    let mut alone = racks(&[1, 3, 3]);
    set(&mut alone, "pgs_per_disk", "1");
    make(&mut alone, "r3>rs-3-2");
    let mut soft = Soft::default();
    let group = alone.stripe_groups().find(|group| group.core_rack == "r0").expect("one for each rack").clone();
    let full = DiskId(1);
    for disk in alone.disks().map(|disk| disk.id) {
        let free_bytes = if disk == full { 4 << 30 } else { 90 << 30 };
        soft.disks.insert(disk, DiskLoad { total_bytes: 100 << 30, free_bytes, ..DiskLoad::default() });
    }
    soft.pg_used = group.columns.iter().map(|pg| (*pg, 1 << 30)).collect();
    assert_eq!(move_plan(&alone, &soft).groups, []);
}

/// A client that knows no columns would write anything to them; one that does, nothing, or go on after they were
/// switched off.
#[test]
fn maps_tell_columns_to_those_who_know_them() {
    let mut state = racks(&[2; 3]);
    make(&mut state, "r3>rs-3-2");
    let map = |state: &State, since: u64| state.map(since, Scope::All, &Soft::default());
    let told = |map: &ClusterMap| -> BTreeMap<u32, (bool, bool)> {
        let column = |pg: &cairn_wire::manager::Pg| {
            let column = pg.column.as_ref().expect("a column");
            assert!(column.group > 0 && column.rack_capacity == 2 && column.core_rack.starts_with('r'));
            (pg.state.as_ref().expect("told").pg, (pg.writable, column.writable))
        };
        map.pgs.iter().map(column).collect()
    };
    let before = told(&map(&state, 0));
    assert!(before.len() == 9 && before.values().all(|writable| *writable == (false, true)), "{before:?}");
    let version = state.version();
    set(&mut state, "stripe_groups", "off");
    let after = told(&map(&state, version));
    assert!(after.len() == 9 && after.values().all(|writable| *writable == (false, false)), "{after:?}");
    let version = state.version();
    set(&mut state, "node_timeout", "20s");
    assert!(map(&state, version).pgs.is_empty(), "nothing else touches them");
}

/// A member that starts from a checkpoint would know other groups than those that applied the log.
#[test]
fn checkpoints_keep_stripe_groups_as_long_as_they_are_there() {
    let mut state = racks(&[2; 3]);
    make(&mut state, "r3>rs-3-2");
    let written = |state: &State| {
        let mut bytes = Vec::new();
        let all = crate::checkpoint::write(state, |part| {
            bytes.extend_from_slice(part);
            Ok::<(), ()>(())
        });
        all.expect("a vector takes everything");
        bytes
    };
    let read = |bytes: &[u8]| {
        let mut reader = crate::checkpoint::Reader::new();
        reader.feed(bytes).and_then(|()| reader.finish())
    };
    assert_eq!(read(&written(&state)), Ok(state.clone()));
    let mut broken = state.clone();
    broken.stripe_groups.clear();
    let error = read(&written(&broken)).expect_err("columns of nothing");
    assert!(error.to_string().contains("is a column of nothing"), "{error}");
    ok(&mut state, Command::DeleteVolume(DeleteVolume { name: "default".into(), trashed_ns: 0 }));
    let columns: Vec<Column> = state.pgs().filter_map(|pg| pg.column).collect();
    state.pgs.clear();
    columns.into_iter().for_each(|column| state.forget_column(column));
    assert!(state.stripe_groups().next().is_none(), "nothing is left of what nobody knows any more");
}

/// Records of this version would be read differently by the next.
#[test]
fn golden_records() {
    let later = Scheme::Erasure { k: 3, m: 2 };
    let column = Column { group: StripeGroupId(5), position: 2, later };
    let record = ColumnRecord::from(column);
    let hex = |bytes: Vec<u8>| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    assert_eq!(hex(record.encode_to_vec()), "080510021810");
    assert_eq!(Column::try_from(record), Ok(column));
    let group = StripeGroup {
        id: StripeGroupId(5),
        volume: VolumeId(1),
        later,
        core_rack: "r7".into(),
        rack_capacity: 2,
        columns: vec![PgId(4), PgId(300), PgId(6)],
        created: WallTime(9),
    };
    let record = StripeGroupRecord::from(&group);
    assert_eq!(hex(record.encode_to_vec()), "080510011810220272372802320404ac02063809");
    assert_eq!(StripeGroup::try_from(record.clone()), Ok(group));
    assert!(StripeGroup::try_from(StripeGroupRecord { later: 200, ..record.clone() }).is_err());
    assert!(StripeGroup::try_from(StripeGroupRecord { rack_capacity: 256, ..record }).is_err());
    assert!(Column::try_from(ColumnRecord { position: 256, ..ColumnRecord::from(column) }).is_err());
}

/// An operator would look for what keeps a volume from being written that is only not asked for; or columns of a volume
/// whose disks are all away be taken for groups that take something.
#[test]
fn columns_that_are_switched_off_are_no_outage() {
    let mut state = racks(&[2, 2, 2]);
    make(&mut state, "r3>rs-3-2");
    let told = |state: &State| {
        let texts = crate::problems::problems(state, &Soft::default(), WallTime(SECOND)).texts();
        texts.into_iter().filter(|text| text.contains("no placement group that can be written")).count()
    };
    assert_eq!(told(&state), 0);
    let all = ["r0", "r1", "r2"].iter().flat_map(|rack| of_rack(&state, rack)).collect::<Vec<DiskId>>();
    down(&mut state, &all);
    assert_eq!(told(&state), 1, "all racks are away");
    set(&mut state, "stripe_groups", "off");
    assert_eq!(told(&state), 0, "others are made when somebody writes");
}
