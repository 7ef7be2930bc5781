//! Who is replaced when, by whom, in which order, and what is said when nobody can.
use super::*;
use crate::apply::Outcome;
use crate::apply::tests::{SECOND, cluster, ok, register};
use crate::command::*;
use crate::items::Roles;
use crate::soft::DiskLoad;
use crate::stripe::tests::racks;
use cairn_types::Epoch;

const ALL: fn(NodeId) -> bool = |_| true;

fn make_pg(state: &mut State, scheme: &str, disks: &[u32]) -> PgId {
    let scheme: cairn_types::Scheme = scheme.parse().expect("a scheme");
    let groups = vec![Disks { disks: disks.to_vec(), ..Disks::default() }];
    match ok(state, Command::CreatePgs(CreatePgs { volume: 1, scheme: u32::from(scheme.code()), groups })) {
        Outcome::Pgs(pgs) => pgs[0],
        other => panic!("{other:?}"),
    }
}

/// Node of disk n is n + 15.
fn down(state: &mut State, disks: &[u32], at: u64) {
    let node = |disk: &u32| {
        let node = state.disk(DiskId(*disk)).expect("known").node;
        NodeAt { node: node.get(), incarnation: state.node(node).expect("known").incarnation.get() }
    };
    let command = Command::NodesDown(NodesDown { nodes: disks.iter().map(node).collect() });
    assert!(state.apply(WallTime(at * SECOND), &command).outcome.is_ok());
    state.check_invariants();
}

fn set(state: &mut State, key: &str, value: &str) {
    let item = ConfigValue { key: key.into(), value: value.into() };
    assert_eq!(ok(state, Command::SetConfig(SetConfig { items: vec![item] })), Outcome::Done);
}

/// What a leader that saw each disk go away has noted.
fn seen(state: &State, mut soft: Soft) -> Soft {
    note_lost(state, &mut soft, Time(0));
    soft.lost.values_mut().for_each(|(since, first)| *first = Time(since.0));
    soft
}

fn plan_at(state: &State, seconds: u64) -> RepairPlan {
    plan(state, &seen(state, Soft::default()), Time(seconds * SECOND), ALL, 7)
}

fn carry_out(state: &mut State, plan: RepairPlan) {
    ok(state, Command::ReplaceMembers(ReplaceMembers { groups: plan.groups }));
}

fn caught_up(state: &mut State, pg: PgId, disk: u32) {
    let epoch = state.pg(pg).expect("known").epoch.get();
    ok(state, Command::CaughtUp(CaughtUp { members: vec![MemberAt { pg: pg.get(), disk, epoch }] }));
}

/// A short outage would copy everything anew, or a long one leave the data one loss from its end.
#[test]
fn due_after_the_delay_and_sooner_at_the_minimum() {
    let mut state = cluster(12);
    // Racks in turn; disks 10 to 12 are spare.
    let shards = make_pg(&mut state, "rs-6-3", &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
    down(&mut state, &[1], 100);
    assert_eq!(plan_at(&state, 100 + 899), RepairPlan::default());
    let due = plan_at(&state, 100 + 900);
    assert_eq!(due.groups.len(), 1);
    assert_eq!((due.groups[0].pg, due.groups[0].swaps[0].old), (shards.get(), 1));
    let copies = make_pg(&mut state, "r3", &[2, 3, 10]);
    down(&mut state, &[10], 200);
    assert_eq!(plan_at(&state, 229), RepairPlan::default());
    let outlook = |pg: PgId, at: usize, seconds: u64| {
        outlook(&state, &seen(&state, Soft::default()), state.pg(pg).expect("made"), at, Time(seconds * SECOND))
    };
    let said = outlook(copies, 2, 220).expect("it is away");
    assert_eq!(said, "another disk takes its place in 10 s (repair_delay_urgent)");
    assert!(outlook(shards, 0, 300).expect("away").ends_with("in 700 s (repair_delay)"));
    assert!(outlook(copies, 2, 230).expect("due").contains("when fewer members are being filled"));
    assert_eq!(outlook(copies, 0, 230), None, "it serves");
    let urgent = plan_at(&state, 230);
    assert_eq!(urgent.groups.iter().map(|g| g.pg).collect::<Vec<_>>(), [copies.get()], "two of three serve");
    set(&mut state, "repair_in_flight", "0");
    assert_eq!(plan_at(&state, 230).groups.len(), 0);
    assert_eq!(plan_at(&state, 230).queued, 1, "it is switched off, and waits");
}

/// The group that the next loss ends would wait behind others.
#[test]
fn the_most_endangered_first_and_no_more_than_may_be_in_flight() {
    let mut state = cluster(30);
    set(&mut state, "repair_in_flight_per_disk", "1");
    let one = make_pg(&mut state, "rs-6-3", &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
    let two = make_pg(&mut state, "rs-6-3", &[1, 2, 10, 11, 12, 13, 14, 15, 18]);
    let pair = make_pg(&mut state, "r2", &[20, 1]);
    down(&mut state, &[1, 2], 0);
    let all = plan_at(&state, 1000);
    let order: Vec<u32> = all.groups.iter().map(|g| g.pg).collect();
    assert_eq!(order, [pair.get(), one.get(), two.get()], "the last copy, then shards that can lose one more");
    let mut chosen: Vec<u32> = all.groups.iter().flat_map(|g| &g.swaps).map(|s| s.new).collect();
    assert_eq!(chosen.len(), 5);
    chosen.sort_unstable();
    chosen.dedup();
    assert_eq!(chosen.len(), 5, "one on each disk");
    set(&mut state, "repair_in_flight", "3");
    let some = plan_at(&state, 1000);
    assert_eq!((some.groups.iter().map(|g| g.swaps.len()).sum::<usize>(), some.queued), (3, 2));
    carry_out(&mut state, some);
    assert_eq!(plan_at(&state, 1000).groups.len(), 0, "three are in flight");
    for pg in [pair, one] {
        for disk in state.pg(pg).expect("known").filling().collect::<Vec<_>>() {
            caught_up(&mut state, pg, disk.get());
        }
    }
    assert!(!plan_at(&state, 1000).groups.is_empty());
}

/// Two members in one rack would be lost together; or nobody would know why a group stays short.
#[test]
fn domains_are_kept_and_reasons_told() {
    let mut state = cluster(4);
    let pg = make_pg(&mut state, "r3", &[1, 2, 3]);
    down(&mut state, &[2], 0);
    // Disk 4 is in the rack of disk 1.
    let none = plan_at(&state, 60);
    let why = &none.blocked[&(pg, DiskId(2))];
    assert!(none.groups.is_empty() && why.contains("in a rack or on a host with other members of pg1"), "{why}");
    assert!(why.contains("rack \"rack1\""), "{why}");
    ok(&mut state, Command::Register(register(7, Roles::DATA, 1)));
    let new = state.disks().last().expect("added").id;
    let mut soft = Soft::default();
    let full = DiskLoad { total_bytes: 1 << 40, free_bytes: 1 << 20, ..DiskLoad::default() };
    soft.disks.insert(new, full);
    let full = plan(&state, &seen(&state, soft), Time(60 * SECOND), ALL, 7);
    assert!(full.blocked[&(pg, DiskId(2))].contains("free above disk_reserve"), "{:?}", full.blocked);
    let fits = plan_at(&state, 60);
    assert_eq!(fits.groups[0].swaps, [Swap { old: 2, new: new.get() }]);
    assert!(fits.blocked.is_empty());
    let soft = seen(&state, Soft::default());
    let unheard = plan(&state, &soft, Time(60 * SECOND), |node| node != NodeId(21), 7);
    assert!(unheard.groups.is_empty(), "nobody is chosen who is not known to live");
}

/// What the old disk still has would be copied for nothing, or deleted while it is needed; or never deleted.
#[test]
fn a_replaced_disk_comes_back_or_goes() {
    let mut state = cluster(9);
    let pg = make_pg(&mut state, "r3", &[1, 2, 3]);
    down(&mut state, &[1], 0);
    let first = plan_at(&state, 60);
    let new = first.groups[0].swaps[0].new;
    carry_out(&mut state, first);
    let now = |state: &State| state.pg(pg).expect("known").clone();
    assert_eq!(
        now(&state).members[0],
        Member { disk: DiskId(new), state: MemberState::Syncing, filling: true, older: false }
    );
    assert!(returns(&state, &now(&state)).is_empty(), "it is still away");
    let scope = crate::map::Scope::Node(state.disk(DiskId(1)).expect("known").node);
    ok(&mut state, Command::Register(register(0, Roles::DATA, 1)));
    let told = state.map(0, scope, &Soft::default());
    let told = told.pgs.iter().filter_map(|pg| pg.state.as_ref()).find(|s| s.pg == pg.get()).expect("told to its node");
    assert_eq!((told.formers[0].disk, told.formers[0].drop, told.filling.clone()), (1, false, vec![new]));
    assert_eq!(returns(&state, &now(&state)), [DiskId(1)]);
    let back = MemberAt { pg: pg.get(), disk: 1, epoch: now(&state).epoch.get() };
    ok(&mut state, Command::TakeBack(MemberAt { epoch: 1, ..back.clone() }));
    assert_eq!(now(&state).members[0].disk, DiskId(new), "decided under another epoch");
    ok(&mut state, Command::TakeBack(back));
    assert_eq!(
        now(&state).members[0],
        Member { disk: DiskId(1), state: MemberState::Syncing, filling: false, older: false }
    );
    assert!(returns(&state, &now(&state)).is_empty(), "the one that was being filled does not push it out again");
    let gone =
        |disk: u32| Command::FormersGone(FormersGone { members: vec![MemberAt { pg: pg.get(), disk, epoch: 9 }] });
    ok(&mut state, gone(new));
    assert_eq!(now(&state).formers.len(), 1, "it was not told to go");
    caught_up(&mut state, pg, 1);
    assert!(now(&state).is_complete() && now(&state).formers[0].drop);
    ok(&mut state, gone(new));
    assert!(now(&state).formers.is_empty() && state.former_pgs_of(DiskId(new)).next().is_none());
}

/// A member that had no room from the beginning would never come, or be put on a disk that is full again.
#[test]
fn members_without_room_wait_for_it_or_are_replaced() {
    let mut state = cluster(9);
    let scheme = u32::from("rs-6-3".parse::<cairn_types::Scheme>().expect("a scheme").code());
    let groups = vec![Disks { disks: (1..=9).collect(), full: vec![9] }];
    let Outcome::Pgs(made) = ok(&mut state, Command::CreatePgs(CreatePgs { volume: 1, scheme, groups })) else {
        panic!()
    };
    let pg = made[0];
    let mut soft = Soft::default();
    let mut free = |state: &State, disk: u32, bytes: u64| {
        soft.disks.insert(DiskId(disk), DiskLoad { total_bytes: 1 << 40, free_bytes: bytes, ..DiskLoad::default() });
        soft.pg_used.insert(pg, 5 << 30);
        (soft.clone(), has_room(state, &soft, state.pg(pg).expect("known"), DiskId(disk)))
    };
    let (full, room) = free(&state, 9, 1 << 20);
    assert!(!room);
    let none = plan(&state, &full, Time(0), ALL, 7);
    assert_eq!(none, RepairPlan::default(), "there is no other disk, and that this one is full is told already");
    assert!(!free(&state, 9, 5 << 30).1 && free(&state, 9, 8 << 30).1, "room for all of it");
    let (full, _) = free(&state, 9, 1 << 20);
    ok(&mut state, Command::Register(register(11, Roles::DATA, 1)));
    let new = state.disks().last().expect("added").id;
    let due = plan(&state, &full, Time(0), ALL, 7);
    assert_eq!(due.groups[0].swaps, [Swap { old: 9, new: new.get() }], "at once");
    carry_out(&mut state, due);
    let (full, _) = free(&state, new.get(), 1 << 20);
    assert_eq!(stuck(&state, &full).map(|(_, disk)| disk).collect::<Vec<_>>(), [new]);
}

/// As many shards as the code bears, lost at once, would never be made anew: nothing can be written, so they are waited
/// for.
#[test]
fn all_that_the_code_bears_at_once() {
    let mut state = cluster(10);
    let pg = make_pg(&mut state, "rs-3-2", &[1, 2, 3, 4, 5]);
    down(&mut state, &[1, 2], 0);
    let waits = state.pg(pg).expect("known").count(MemberState::Waiting);
    assert_eq!(waits, 2);
    let first = plan_at(&state, 30);
    let new: Vec<u32> = first.groups[0].swaps.iter().map(|s| s.new).collect();
    assert_eq!(new.len(), 2);
    carry_out(&mut state, first);
    // Another one goes: now nothing can be read, but the two that were replaced have everything.
    down(&mut state, &[3], 40);
    assert!(!state.pg(pg).expect("known").is_readable());
    ok(&mut state, Command::Register(register(0, Roles::DATA, 1)));
    let now = state.pg(pg).expect("known");
    assert_eq!(returns(&state, now), [DiskId(1)]);
    let back = MemberAt { pg: pg.get(), disk: 1, epoch: now.epoch.get() };
    ok(&mut state, Command::TakeBack(back));
    let now = state.pg(pg).expect("known");
    assert!(
        now.is_readable()
            && now.members[0] == Member { disk: DiskId(1), state: MemberState::Serving, filling: false, older: false }
    );
    caught_up(&mut state, pg, new[1]);
    let now = state.pg(pg).expect("known");
    assert!(
        now.has_write_minimum() && now.formers.iter().all(|f| !f.complete),
        "from now on they miss something: {now:?}"
    );
}

/// A replacement that dies too would hold its place for ever, or what has most of the data would not be found.
#[test]
fn the_replacement_dies_as_well() {
    let mut state = cluster(15);
    let pg = make_pg(&mut state, "rs-6-3", &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
    down(&mut state, &[1, 2], 0);
    let first = plan_at(&state, 1000);
    let new: Vec<u32> = first.groups[0].swaps.iter().map(|s| s.new).collect();
    assert_eq!(new.len(), 2, "both at once");
    carry_out(&mut state, first);
    down(&mut state, &new[..1], 1000);
    assert_eq!(plan_at(&state, 1029).groups.len(), 0);
    let second = plan_at(&state, 1030);
    assert_eq!(second.groups[0].swaps.iter().map(|s| s.old).collect::<Vec<_>>(), new[..1]);
    let third = second.groups[0].swaps[0].new;
    assert!(![1, 2].contains(&third) && !new.contains(&third), "neither a member nor one that was");
    carry_out(&mut state, second);
    for disk in [third, new[1]] {
        caught_up(&mut state, pg, disk);
    }
    let now = state.pg(pg).expect("known");
    assert!(now.is_complete() && now.epoch > Epoch(5));
    assert_eq!(now.formers.iter().filter(|f| f.drop).count(), 3);
}

/// A new leader whose clock is ahead would replace at once what is down for a second.
#[test]
fn the_delay_is_what_this_leader_saw() {
    let mut state = cluster(9);
    let pg = make_pg(&mut state, "r3", &[1, 2, 3]);
    // Logged by one whose clock is an hour behind.
    down(&mut state, &[1], 0);
    let (mut soft, start) = (Soft::default(), 3600 * SECOND);
    let at = |state: &State, soft: &Soft, seconds: u64| plan(state, soft, Time(start + seconds * SECOND), ALL, 7);
    assert!(at(&state, &soft, 0).groups.is_empty(), "nothing is known yet");
    note_lost(&state, &mut soft, Time(start));
    note_lost(&state, &mut soft, Time(start + 29 * SECOND));
    assert!(at(&state, &soft, 29).groups.is_empty());
    assert_eq!(at(&state, &soft, 30).groups.len(), 1);
    // It was there in between.
    ok(&mut state, Command::Register(register(0, Roles::DATA, 1)));
    note_lost(&state, &mut soft, Time(start + 30 * SECOND));
    assert!(soft.lost.is_empty());
    down(&mut state, &[1], 50);
    note_lost(&state, &mut soft, Time(start + 31 * SECOND));
    assert!(at(&state, &soft, 60).groups.is_empty(), "{:?}", state.pg(pg));
    assert_eq!(at(&state, &soft, 61).groups.len(), 1);
}

/// A disk that was forgotten would not learn that it is no member any more, and might come back in another place.
#[test]
fn no_former_member_is_forgotten_that_may_have_something() {
    let mut state = cluster(60);
    let pg = make_pg(&mut state, "r3", &[1, 2, 3]);
    let mut lost = 1;
    for round in 0..crate::pg::FORMERS_MAX as u64 {
        down(&mut state, &[lost], round * 100);
        let due = plan_at(&state, round * 100 + 60);
        lost = due.groups[0].swaps[0].new;
        carry_out(&mut state, due);
        caught_up(&mut state, pg, lost);
    }
    down(&mut state, &[lost], 5000);
    let refused = plan_at(&state, 6000);
    assert!(refused.groups.is_empty());
    let why = &refused.blocked[&(pg, DiskId(lost))];
    assert!(why.contains("16 disks were replaced in pg1") && why.contains("bring one of them back"), "{why}");
    let now = state.pg(pg).expect("known").clone();
    assert_eq!(now.formers.len(), crate::pg::FORMERS_MAX);
    let new = state.disks().map(|disk| disk.id).find(|disk| !now.knows(*disk) && state.is_able(*disk)).expect("one");
    assert!(!now.clone().replace(&[(DiskId(lost), new)], |disk| state.is_able(disk)), "whoever asks for it");
    // One of them says that it has nothing left.
    ok(&mut state, Command::FormersGone(FormersGone { members: vec![MemberAt { pg: pg.get(), disk: 1, epoch: 9 }] }));
    assert_eq!(plan_at(&state, 6000).groups.len(), 1);
}

/// A lost rack would be repaired by nobody where every other rack has members already, and the second one that is lost
/// take the data; or copies be put where one rack takes all of them.
#[test]
fn a_lost_rack_is_made_anew_where_there_is_none_apart() {
    let mut state = racks(&[2, 2, 2, 2, 2, 2]);
    let rack_of = |state: &State, disk: u32| {
        let node = state.disk(DiskId(disk)).expect("known").node;
        state.node(node).expect("known").rack.clone()
    };
    let mut of: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    (1..=12).for_each(|disk| of.entry(rack_of(&state, disk)).or_default().push(disk));
    let of: Vec<Vec<u32>> = of.into_values().collect();
    // Two in each of three racks, and one in each of the others.
    let members: Vec<u32> =
        of.iter().zip([2, 2, 2, 1, 1, 1]).flat_map(|(rack, count)| rack[..count].to_vec()).collect();
    let shards = make_pg(&mut state, "rs-6-3", &members);
    let copies = make_pg(&mut state, "r3", &[of[0][0], of[1][0], of[2][0]]);
    down(&mut state, &of[0], 0);
    let plan = plan_at(&state, 1000);
    let swaps = |pg: PgId| plan.groups.iter().find(|group| group.pg == pg.get()).expect("planned").swaps.clone();
    let new: Vec<u32> = swaps(shards).iter().map(|swap| swap.new).collect();
    let free: Vec<u32> = of[3..].iter().map(|rack| rack[1]).collect();
    assert!(new.len() == 2 && new.iter().all(|disk| free.contains(disk)), "{new:?} of {free:?}");
    assert!(of[3..].concat().contains(&swaps(copies)[0].new), "copies have a rack of their own each");
    assert!(plan.blocked.is_empty(), "{:?}", plan.blocked);
}
