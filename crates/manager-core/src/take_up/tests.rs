//! A state of before takes up what nodes know.
use super::*;
use crate::Outcome;
use crate::apply::tests::{SECOND, cluster, ok, refused, register, uuid};
use crate::command::*;
use crate::items::DiskState;
use cairn_types::{Epoch, ErrorCode, PartitionId, VolumeId, WallTime};

fn five(mut state: State) -> State {
    ok(&mut state, Command::ActivateLevel(ActivateLevel { level: 5 }));
    state
}

fn make_pg(state: &mut State, volume: u32, disks: &[u32]) -> PgId {
    let groups = vec![Disks { disks: disks.to_vec(), ..Disks::default() }];
    match ok(state, Command::CreatePgs(CreatePgs { volume, scheme: disks.len() as u32, groups })) {
        Outcome::Pgs(pgs) => pgs[0],
        other => panic!("{other:?}"),
    }
}

fn down(state: &mut State, node: u32) {
    let incarnation = state.node(NodeId(node)).expect("known").incarnation.get();
    ok(state, Command::NodesDown(NodesDown { nodes: vec![NodeAt { node, incarnation }] }));
}

fn make_volume(state: &mut State, name: &str) -> VolumeId {
    match ok(state, Command::CreateVolume(CreateVolume { name: name.into(), ..CreateVolume::default() })) {
        Outcome::Volume(id) => id,
        other => panic!("{other:?}"),
    }
}

/// What all nodes of a cluster say that have heard of everything, but those in `without`.
fn told(of: &State, without: &[u32]) -> AllTold {
    let soft = crate::Soft::default();
    let next = &of.next;
    let seen = SeenNumbers {
        term: 3,
        map_version: of.version(),
        incarnation: next.incarnation - 1,
        session: next.session - 1,
        node: next.node - 1,
        disk: next.disk - 1,
        volume: next.volume - 1,
        partition: next.partition - 1,
        pg: next.pg - 1,
    };
    // Deleted volumes are in the map that a node was told by and by.
    let whole = of.map(0, crate::Scope::All, &soft);
    let deltas = of.map(of.delta_floor.max(1), crate::Scope::All, &soft);
    let mut all = AllTold::new();
    for node in of.servers().filter(|node| !without.contains(&node.id.get())) {
        let mut groups = Vec::new();
        for disk in of.disks_of(node.id) {
            let mine = of.pgs_of(disk.id).chain(of.former_pgs_of(disk.id));
            groups.extend(mine.map(|pg| SeenGroup { disk: disk.id.get(), state: Some(of.pg_state(pg)) }));
        }
        let meta = node.roles.has(Roles::META);
        let mut volumes = if meta { whole.volumes.clone() } else { Vec::new() };
        volumes.extend(deltas.volumes.iter().filter(|volume| meta && volume.deleted).cloned());
        let partitions = if meta { whole.partitions.clone() } else { Vec::new() };
        let disks = of.disks_of(node.id).map(|disk| disk.id.get()).collect();
        let things = SeenThings { pages: 1, groups, volumes, partitions, disks, ..SeenThings::default() };
        all.entry(node.id).or_default().take(Some(&seen), Some(&things));
    }
    all
}

fn take_up(state: &mut State, told: &AllTold) {
    for command in commands(state, told) {
        ok(state, Command::TakeUp(command));
    }
    let last = last(state, told);
    ok(state, Command::TakeUp(last));
}

fn nodes(awaited: &Awaited) -> Vec<NodeId> {
    awaited.nodes.iter().copied().collect()
}

fn wait(state: &mut State) {
    ok(state, Command::TakeUp(TakeUp { begin: true, ..TakeUp::default() }));
}

/// The manager of a copy would give epochs, ids and versions again, let members serve that were away meanwhile, and
/// forget whole volumes.
#[test]
fn a_copy_takes_up_what_nodes_know_and_gives_no_number_again() {
    let mut state = five(cluster(4));
    let (first, second) = (make_pg(&mut state, 1, &[1, 2, 3]), make_pg(&mut state, 1, &[2, 3, 4]));
    let gone = make_volume(&mut state, "gone");
    let thrown = make_volume(&mut state, "thrown");
    let mut copy = state.clone();
    // What the copy does not know: a disk is away, a volume is deleted and two are made, of which one goes; a node
    // comes.
    down(&mut state, 16);
    ok(&mut state, Command::DeleteVolume(DeleteVolume { name: "gone".into(), trashed_ns: 0 }));
    ok(&mut state, Command::TrashVolume(TrashVolume { name: "thrown".into() }));
    let made = make_volume(&mut state, "made");
    let third = make_pg(&mut state, made.get(), &[2, 3, 4]);
    let short = make_volume(&mut state, "short");
    ok(&mut state, Command::DeleteVolume(DeleteVolume { name: "short".into(), trashed_ns: 0 }));
    let mut late = register(5, Roles::DATA, 1);
    let Outcome::Registered(joined) = ok(&mut state, Command::Register(late.clone())) else { panic!() };
    let fourth = make_pg(&mut state, 1, &[3, 4, joined.disks[0].get()]);
    let all = told(&state, &[]);
    assert!(all.values().all(|told| copy.is_behind(&told.seen)) && !state.is_behind(&all[&NodeId(16)].seen));

    wait(&mut copy);
    let unavailable =
        refused(&mut copy, Command::CreateVolume(CreateVolume { name: "new".into(), ..CreateVolume::default() }));
    assert_eq!(unavailable.code, ErrorCode::Unavailable);
    refused(&mut copy, Command::Register(Register { node: 16, ..register(0, Roles::DATA, 1) }));
    refused(&mut copy, Command::GrantSessions(GrantSessions { count: 1 }));
    let lacks = told(&state, &[18, joined.node.get()]);
    assert_eq!(nodes(&awaited(&copy, &lacks)), [NodeId(18), joined.node], "named by others too");
    assert!(awaited(&copy, &all).is_empty());
    take_up(&mut copy, &all);
    assert!(!copy.waits());

    for pg in [first, second, third, fourth] {
        let (now, then) = (copy.pg(pg).expect("known"), state.pg(pg).expect("known"));
        assert!(now.epoch > Epoch(then.epoch.get() + 1000), "{pg}: {} {}", now.epoch, then.epoch);
        let members = |pg: &crate::Pg| pg.members.iter().map(|m| (m.disk, m.state)).collect::<Vec<_>>();
        assert_eq!((members(now), now.volume, now.retired), (members(then), then.volume, false));
    }
    assert_eq!(
        copy.pg(first).expect("known").state_of(DiskId(1)),
        Some(MemberState::Offline),
        "it misses what was written"
    );
    let names =
        |state: &State| state.volumes().filter(|v| !v.deleted).map(|v| (v.id, v.name.clone())).collect::<Vec<_>>();
    assert_eq!(names(&copy), names(&state));
    assert!(copy.volume(gone).is_some_and(|volume| volume.deleted));
    assert!(copy.volume(thrown).is_some_and(|volume| volume.trashed.is_some()), "it would be in use again");
    let partitions =
        |state: &State| state.partitions().filter(|p| !p.removed).map(|p| (p.id, p.volume)).collect::<Vec<_>>();
    assert_eq!(partitions(&copy), partitions(&state));
    assert!(copy.delta_floor > state.version(), "whoever has a map of before gets a whole one");

    // The node that came meanwhile keeps its number, and what is new gets numbers of its own.
    late.node = joined.node.get();
    late.disks[0].disk = joined.disks[0].get();
    let Outcome::Registered(again) = ok(&mut copy, Command::Register(late)) else { panic!() };
    assert_eq!((again.node, again.disks, again.incarnation > joined.incarnation), (joined.node, joined.disks, true));
    assert!(make_volume(&mut copy, "new") > short);
    assert!(make_pg(&mut copy, 1, &[2, 3, 4]) > fourth);
    let newest = copy.partitions().map(|p| p.id).max().expect("some");
    assert!(newest > state.partitions().map(|p| p.id).max().unwrap_or(PartitionId(0)));
    let Outcome::Registered(new) = ok(&mut copy, Command::Register(register(7, Roles::DATA, 1))) else { panic!() };
    assert!(new.node > joined.node && new.disks[0].get() >= state.next.disk);
    // A second time nothing changes, as after a leader that ended half-way.
    let before = copy.clone();
    ok(&mut copy, Command::TakeUp(TakeUp { done: true, ..TakeUp::default() }));
    assert_eq!(copy, before);
}

/// Groups that only a disk knows which came late would be lost; or a stranger be let in under any number.
#[test]
fn who_comes_late_is_let_in_under_its_number() {
    let mut state = five(cluster(3));
    make_pg(&mut state, 1, &[1, 2, 3]);
    let mut copy = state.clone();
    let Outcome::Registered(joined) = ok(&mut state, Command::Register(register(5, Roles::DATA, 1))) else { panic!() };
    let disk = joined.disks[0];
    let alone = make_pg(&mut state, 1, &[disk.get()]);
    let mut all = told(&state, &[]);
    let things = SeenThings { groups: all[&joined.node].groups[&0].clone(), pages: 1, ..SeenThings::default() };
    all.remove(&joined.node);
    wait(&mut copy);
    take_up(&mut copy, &all);
    assert!(copy.pg(alone).is_none() && copy.forgot_pg(alone));
    let command = late(&copy, Some(&things)).expect("news");
    ok(&mut copy, Command::TakeUp(command));
    let pg = copy.pg(alone).expect("known");
    assert!(pg.members[0].disk == disk && pg.epoch > Epoch(1000) && pg.older.unconfirmed, "others may know more of it");
    assert!(late(&copy, Some(&things)).is_none());
    let mut known = register(5, Roles::DATA, 1);
    (known.node, known.disks[0].disk) = (joined.node.get(), disk.get());
    ok(&mut copy, Command::Register(known));
    assert_eq!(copy.disk(disk).map(|disk| disk.state), Some(DiskState::InService));
    let stranger = Register { uuid: uuid(1, 99), node: joined.node.get(), ..register(9, Roles::DATA, 0) };
    assert_eq!(refused(&mut copy, Command::Register(stranger)).code, ErrorCode::WrongCluster);
    let future = Register { node: copy.next.node, ..register(9, Roles::DATA, 0) };
    assert_eq!(refused(&mut copy, Command::Register(future)).code, ErrorCode::WrongCluster);
}

/// A member that misses what was acknowledged would serve because a disk that has it did not open, or is of a node that
/// says nothing.
#[test]
fn disks_that_hold_everything_are_waited_for() {
    let mut state = five(cluster(4));
    let pg = make_pg(&mut state, 1, &[1, 2, 3]);
    let copy = {
        let mut copy = state.clone();
        wait(&mut copy);
        copy
    };
    down(&mut state, 16);
    let all = told(&state, &[]);
    let holders: Vec<DiskId> = state.pg(pg).expect("known").holders().collect();
    assert_eq!(holders, [DiskId(2), DiskId(3)], "the first one misses what is written from now on");
    let mut lacks = all.clone();
    let third = lacks.get_mut(&NodeId(18)).expect("told");
    third.things.disks.clear();
    third.groups.clear();
    third.pages = 0;
    // The others have not heard of it.
    for node in [16, 17] {
        let told = lacks.get_mut(&NodeId(node)).expect("told");
        for group in told.groups.values_mut().flatten() {
            group.state = Some(copy.pg_state(copy.pg(pg).expect("known")));
        }
    }
    let waits_for = awaited(&copy, &lacks);
    assert_eq!((nodes(&waits_for), waits_for.disks.iter().copied().collect::<Vec<_>>()), (vec![], vec![DiskId(3)]));
    let named = waits_for.message();
    assert!(waits_for.is_within(&named) && !waits_for.is_within(&Awaited::default().message()));
    let mut silent = all.clone();
    silent.insert(NodeId(18), Told::default());
    silent.get_mut(&NodeId(18)).expect("there").take(None, None);
    assert_eq!(nodes(&awaited(&copy, &silent)), [NodeId(18)], "it is of an earlier build");

    let mut whole = copy.clone();
    assert!(awaited(&whole, &all).is_empty());
    take_up(&mut whole, &all);
    let found = whole.pg(pg).expect("known");
    assert!(!found.older.comparing && found.holders().eq([DiskId(2), DiskId(3)]), "{found:?}");
    let mut given_up = copy;
    take_up(&mut given_up, &lacks);
    let found = given_up.pg(pg).expect("known");
    assert!(found.older.comparing && found.older.unconfirmed && found.older.epoch == found.epoch, "{found:?}");
}

/// Disks that left a group have nothing of it: a copy of when they served would have them serve it, empty.
#[test]
fn a_group_of_which_nobody_tells_is_waited_for() {
    let mut copy = five(cluster(3));
    let (pg, other) = (make_pg(&mut copy, 1, &[1, 2, 3]), make_pg(&mut copy, 1, &[1, 2]));
    let deleted = make_volume(&mut copy, "deleted");
    let gone = make_pg(&mut copy, deleted.get(), &[1, 3]);
    wait(&mut copy);
    let mut all = told(&copy, &[]);
    let of = |group: &SeenGroup| group.state.as_ref().map(|state| PgId(state.pg));
    for told in all.values_mut() {
        told.groups.values_mut().for_each(|groups| groups.retain(|group| of(group) == Some(other)));
        told.things
            .volumes
            .iter_mut()
            .filter(|volume| volume.id == deleted.get())
            .for_each(|volume| volume.deleted = true);
    }
    let waits_for = awaited(&copy, &all);
    assert!(waits_for.nodes.is_empty() && waits_for.disks.is_empty(), "{waits_for:?}");
    assert_eq!(waits_for.groups.iter().copied().collect::<Vec<_>>(), [pg], "{gone} is of a deleted volume");
    take_up(&mut copy, &all);
    let doubts = |id: PgId| copy.pg(id).expect("known").older.comparing;
    assert!(doubts(pg) && !doubts(other));
}

/// Most of a volume would be out of reach, its root perhaps; or ids of partitions that nobody saw be given again.
#[test]
fn a_volume_of_many_partitions_is_taken_up_whole() {
    let mut state = five(cluster(4));
    let mut copy = state.clone();
    ok(
        &mut state,
        Command::CreateVolume(CreateVolume { name: "many".into(), layout: 0, partitions: 2500, members: Vec::new() }),
    );
    let all = told(&state, &[]);
    wait(&mut copy);
    take_up(&mut copy, &all);
    let volume = copy.volume_by_name("many").expect("taken up").id;
    let of_it = |state: &State| {
        let own = state.partitions().filter(|p| p.volume == volume && !p.removed);
        own.map(|p| (p.id, p.inode_first, p.inode_last)).collect::<Vec<_>>()
    };
    assert_eq!((of_it(&copy), of_it(&copy).len()), (of_it(&state), 2500));
    // A second one that no node heard of: its partitions may be on their way.
    ok(
        &mut state,
        Command::CreateVolume(CreateVolume { name: "unseen".into(), layout: 0, partitions: 2500, members: Vec::new() }),
    );
    assert!(copy.next.partition > state.next.partition + PARTITIONS_GAP - 2500, "{:?}", copy.next);
    // One that claims what another has is not taken.
    let mut twice = copy.map(0, crate::Scope::All, &crate::Soft::default()).partitions.pop().expect("one");
    wait(&mut copy);
    twice.id = copy.next.partition + 1;
    let numbers = Some(SeenNumbers { partition: twice.id, ..SeenNumbers::default() });
    ok(&mut copy, Command::TakeUp(TakeUp { numbers, partitions: vec![twice], ..TakeUp::default() }));
    assert_eq!(of_it(&copy).len(), 2500);
}

/// A copy of before a split would refuse the partitions that were made behind the range that it takes to have no end.
#[test]
fn a_range_that_has_ended_since_gets_its_end() {
    let mut copy = five(cluster(4));
    let first = copy.map(0, crate::Scope::All, &crate::Soft::default()).partitions.remove(0);
    assert_eq!((first.inode_first, first.inode_last), (1, u64::MAX));
    let late = |at: u64| Partition {
        id: copy.next.partition + at as u32,
        inode_first: at << 40,
        inode_last: ((at + 1) << 40) - 1,
        level: 6,
        ..first.clone()
    };
    let numbers = Some(SeenNumbers { partition: first.id + 4, ..SeenNumbers::default() });
    // The node's list may be of before the end, too.
    let unsound = Partition { inode_first: (1 << 40) + 5, ..late(1) };
    let partitions = vec![unsound, late(2), first.clone(), late(3)];
    wait(&mut copy);
    ok(&mut copy, Command::TakeUp(TakeUp { numbers, partitions, ..TakeUp::default() }));
    let ranges: Vec<(u64, u64)> = copy.partitions().map(|p| (p.inode_first, p.inode_last)).collect();
    assert_eq!(ranges, [(1, (2 << 40) - 1), (2 << 40, (3 << 40) - 1), (3 << 40, (4 << 40) - 1)]);
    copy.find_flaw().expect("ranges do not meet");
}

/// The members that a map of before names may have left since: their copies would lead, and the others be told to go.
#[test]
fn members_of_a_partition_are_those_of_the_furthest_log() {
    let state = five(cluster(4));
    let of = |nodes: &[u32], applied| PartitionMembers { partition: 7, nodes: nodes.to_vec(), applied };
    let map = Partition { id: 7, volume: 1, nodes: vec![1, 2, 3], target: vec![1, 2, 4], ..Partition::default() };
    let mut all = AllTold::new();
    for (node, members) in [(1, of(&[1, 2, 3], 40)), (2, of(&[1, 2, 4], 90)), (3, of(&[1, 3], 50))] {
        let volumes = vec![Volume { id: 1, ..Volume::default() }];
        let things =
            SeenThings { volumes, partitions: vec![map.clone()], members: vec![members], ..SeenThings::default() };
        all.entry(NodeId(node)).or_default().take(None, Some(&things));
    }
    let command = commands(&state, &all).remove(1);
    let found = &command.partitions[0];
    assert_eq!((&found.nodes[..], &found.left[..], &found.target[..]), (&[1, 2, 4][..], &[3][..], &[][..]));
    assert!(found.changed);
}

/// A liar would use up all numbers; and honest nodes be refused because of what it made of the state.
#[test]
fn absurd_numbers_are_refused() {
    use crate::restored::nonsense;
    let mut state = five(cluster(1));
    let seen = |change: fn(&mut SeenNumbers)| {
        let mut seen = SeenNumbers::default();
        change(&mut seen);
        seen
    };
    assert_eq!(nonsense(&state, 3, &seen(|seen| (seen.volume, seen.term) = (100_000, 2000))), None);
    let lies = [
        seen(|seen| seen.pg = 1 << 30),
        seen(|seen| seen.map_version = 1 << 60),
        seen(|seen| seen.term = 1 << 29),
        seen(|seen| seen.session = u64::MAX),
    ];
    assert!(lies.iter().all(|seen| nonsense(&state, 3, seen).is_some()));
    let later = nonsense(&state, 3, &seen(|seen| seen.term = 9 << 30)).expect("refused");
    assert!(later.contains("takes no part"), "{later}");
    state.version = 1 << 60;
    state.next.pg = u32::MAX;
    let known = seen(|seen| (seen.map_version, seen.pg, seen.term) = (1 << 60, u32::MAX - 1, 1 << 29));
    assert_eq!(nonsense(&state, 1 << 29, &known), None);
}

/// A member of the managers' group would stop at what a node made up, and every other one after it.
#[test]
fn nonsense_is_left_out() {
    let mut copy = five(cluster(3));
    let pg = make_pg(&mut copy, 1, &[1, 2, 3]);
    wait(&mut copy);
    let good = copy.pg_state(copy.pg(pg).expect("known"));
    let later = PgState { epoch: 9, ..good.clone() };
    let member = |disk, state| cairn_wire::data::PgMember { disk, node: 16, state };
    let offline = u32::from(MemberState::Offline.code());
    let states = [
        PgState { scheme: 250, ..later.clone() },
        PgState { members: vec![member(1, 0)], ..later.clone() },
        PgState { members: vec![member(1, 0); 3], ..later.clone() },
        PgState { members: (1..=3).map(|disk| member(disk, offline)).collect(), ..later.clone() },
        PgState { members: (7000..7003).map(|disk| member(disk, 0)).collect(), ..later.clone() },
        PgState { members: (1..=3).map(|disk| member(disk, 77)).collect(), ..later.clone() },
        PgState { creation_epoch: 10, ..later.clone() },
        PgState { volume: 4000, ..later.clone() },
        PgState { pg: 4000, ..later },
    ];
    let before = copy.clone();
    for state in states {
        let groups = vec![TakeUpGroup { state: Some(state), keepers: Vec::new() }, TakeUpGroup::default()];
        ok(&mut copy, Command::TakeUp(TakeUp { groups, ..TakeUp::default() }));
        assert_eq!(copy, before);
    }
    let partition =
        Partition { id: 1, volume: 1, inode_first: 2, inode_last: 1, nodes: vec![16], ..Partition::default() };
    let stranger =
        Partition { id: 1, volume: 1, inode_first: 1, inode_last: 9, nodes: vec![5000], ..Partition::default() };
    let partitions = vec![partition, stranger, Partition::default()];
    ok(&mut copy, Command::TakeUp(TakeUp { partitions, ..TakeUp::default() }));
    assert_eq!(copy, before);
    // Nobody waits: nothing is taken up.
    let mut whole = five(cluster(1));
    let same = whole.clone();
    let numbers = Some(SeenNumbers { volume: 4000, ..SeenNumbers::default() });
    ok(&mut whole, Command::TakeUp(TakeUp { numbers, done: true, ..TakeUp::default() }));
    assert_eq!(whole, same);
}

/// A leader that comes while its state waits, or a member that starts then, would go on as if nothing was.
#[test]
fn that_it_waits_survives_a_checkpoint() {
    let mut state = five(cluster(1));
    state.begin_waiting(WallTime(7 * SECOND));
    let mut bytes = Vec::new();
    let written: Result<(), ()> = crate::checkpoint::write(&state, |piece| {
        bytes.extend_from_slice(piece);
        Ok(())
    });
    written.expect("written");
    let mut reader = crate::checkpoint::Reader::new();
    reader.feed(&bytes).expect("read");
    assert_eq!(reader.finish().expect("a state"), state);
}
