//! How many groups are made, on which disks, and what is said when none can be.
use super::*;
use crate::apply::Outcome;
use crate::apply::tests::{cluster, ok, register};
use crate::command::{Command, ConfigValue, CreatePgs, NodeAt, NodesDown, SetConfig, SetPgsOpen};
use crate::soft::DiskLoad;
use cairn_types::{DiskId, NodeId};

fn scheme(text: &str) -> Scheme {
    text.parse().expect("a scheme")
}

fn make(state: &mut State, soft: &Soft, text: &str) -> usize {
    let groups = plan(state, soft, VolumeId(1), scheme(text), 7).expect("a plan");
    let count = groups.len();
    let scheme = u32::from(scheme(text).code());
    if count > 0 {
        ok(state, Command::CreatePgs(CreatePgs { volume: 1, scheme, groups }));
    }
    count
}

fn set(state: &mut State, key: &str, value: &str) {
    let item = ConfigValue { key: key.into(), value: value.into() };
    assert_eq!(ok(state, Command::SetConfig(SetConfig { items: vec![item] })), Outcome::Done);
}

/// Too few groups would leave disks idle, too many would waste memory on every start.
#[test]
fn as_many_as_configured_and_no_more() {
    let (mut state, soft) = (cluster(9), Soft::default());
    assert_eq!(make(&mut state, &soft, "r3"), 12);
    assert_eq!(make(&mut state, &soft, "r3"), 0);
    assert_eq!(make(&mut state, &soft, "r1"), 36, "another scheme has its own");
    for disk in state.disks() {
        assert_eq!(state.pgs_of(disk.id).count(), 8, "{}", disk.id);
    }
    let closed = state.pgs().filter(|pg| pg.members.len() == 3).take(5).map(|pg| pg.id.get()).collect();
    ok(&mut state, Command::SetPgsOpen(SetPgsOpen { open: Vec::new(), closed }));
    assert_eq!(make(&mut state, &soft, "r3"), 5, "full ones are replaced");
    set(&mut state, "pgs_per_volume_max", "3");
    assert_eq!(plan(&state, &soft, VolumeId(1), scheme("r2"), 7).map(|g| g.len()), Ok(3));
}

/// A short outage would multiply the groups; a long one would leave new files with fewer copies than can be had.
#[test]
fn outages_do_not_multiply_groups() {
    let (mut state, soft) = (cluster(9), Soft::default());
    make(&mut state, &soft, "r3");
    let incarnation = |state: &State, n| state.node(NodeId(n)).expect("known").incarnation.get();
    let mut down = |nodes: &[u32]| {
        let nodes = nodes.iter().map(|n| NodeAt { node: *n, incarnation: incarnation(&state, *n) }).collect();
        ok(&mut state, Command::NodesDown(NodesDown { nodes }));
        make(&mut state, &soft, "r3")
    };
    assert_eq!(down(&[16]), 0, "the rest can still be written");
    let made = down(&[17, 18, 19, 20, 21]);
    assert!(made > 0, "groups below the minimum are replaced");
}

/// "No space" without a reason leaves the operator guessing.
#[test]
fn refusals_say_what_is_missing() {
    let (mut state, mut soft) = (cluster(2), Soft::default());
    let error = plan(&state, &soft, VolumeId(1), scheme("r3"), 7).expect_err("two disks");
    assert_eq!(error.code, ErrorCode::NotEnoughDisks);
    assert!(error.message.starts_with("r3 needs 3 disks; this cluster has 2 in service"), "{error}");
    assert_eq!(plan(&state, &soft, VolumeId(5), scheme("r1"), 7).expect_err("none").code, ErrorCode::UnknownVolume);
    set(&mut state, "disk_reserve", "1g");
    let full = DiskLoad { total_bytes: 1 << 40, free_bytes: 1 << 29, ..DiskLoad::default() };
    soft.disks.insert(DiskId(1), full);
    let error = plan(&state, &soft, VolumeId(1), scheme("r2"), 7).expect_err("full");
    assert_eq!(error.code, ErrorCode::NoSpace);
    assert!(error.message.contains("1 of 2 can take more"), "{error}");
    assert!(
        error.message.contains("disk_reserve keeps 1.0 GiB") && error.message.contains("the disk itself 256.0 MiB"),
        "{error}"
    );
    assert!(plan(&state, &soft, VolumeId(1), scheme("r1"), 7).is_ok_and(|g| !g.is_empty()), "one disk has room");
}

/// A layout that cannot be stored must be refused with what can be.
#[test]
fn erasure_layouts_say_what_they_need() {
    let state = cluster(5);
    let check = |layout: &str| check_layout(&state, layout.parse().expect("a layout"));
    let error = check("rs-6-3").expect_err("five disks");
    assert_eq!(error.code, ErrorCode::NotEnoughDisks);
    assert!(error.message.starts_with("rs-6-3 needs 9 disks; this cluster has 5 in service"), "{error}");
    assert!(error.message.ends_with("use a layout that fits, such as rs-3-2 (5 disks) or r5 (5 disks)"), "{error}");
    assert_eq!(check("rs-3-2/1m"), Ok(()));
    assert_eq!(check("r2x128/64k"), Ok(()), "columns are chunks of ordinary groups");
    let error = check("r3>rs-3-2").expect_err("staged");
    assert!(error.message.contains("feature level 12") && error.message.contains("or r3 until then"), "{error}");
    let mut state = cluster(5);
    state.level = 12;
    let check = |layout: &str| check_layout(&state, layout.parse().expect("a layout"));
    assert_eq!(check("r3>rs-3-2"), Ok(()));
    let error = check("rs-8-2").expect_err("managers of before");
    assert!(error.message.starts_with("rs-8-2/64k needs feature level 31 of all managers: upgrade"), "{error}");
    assert_eq!(check("r3>rs-6-2").expect_err("the same").code, ErrorCode::BadLayout);
    let error = check("r3>rs-6-3@2h").expect_err("five disks");
    assert!(error.message.starts_with("rs-6-3 needs 9 disks; this cluster has 5 in service"), "{error}");
    let error = plan(&cluster(0), &Soft::default(), VolumeId(1), scheme("r1"), 7).expect_err("no disk");
    assert!(error.message.contains("r1 needs 1 disks; this cluster has 0"), "{error}");
}

/// In a small cluster every disk must have every role in turn, and small files of erasure directories need groups too.
#[test]
fn erasure_groups_of_nine_disks() {
    let (mut state, soft) = (cluster(9), Soft::default());
    let classes = |text: &str| classes_for(scheme(text).into()).collect::<Vec<_>>();
    assert_eq!(classes("rs-6-3"), [scheme("rs-6-3").into(), scheme("r4").into()]);
    assert_eq!(classes("r3"), [scheme("r3").into()]);
    assert_eq!(make(&mut state, &soft, "rs-6-3"), 9);
    assert_eq!(make(&mut state, &soft, "rs-6-3"), 0);
    for disk in state.disks().map(|d| d.id) {
        let parities = state.pgs_of(disk).filter(|pg| pg.keeps_parity(disk)).count();
        let primaries = state.pgs_of(disk).filter(|pg| pg.primary() == Some(disk)).count();
        assert_eq!((state.pgs_of(disk).count(), parities), (9, 3), "{disk}");
        assert!(primaries <= 2, "{disk}: {primaries}");
    }
    for pg in state.pgs() {
        let mut racks: Vec<String> = Vec::new();
        for member in &pg.members {
            let node = state.disk(member.disk).and_then(|d| state.node(d.node)).expect("known");
            racks.push(node.rack.clone());
        }
        racks.sort();
        assert!(racks.chunk_by(|a, b| a == b).all(|rack| rack.len() == 3), "{racks:?}");
    }
}

/// A tenant would take all room for groups: his are made as often as he asks, and others get none.
#[test]
fn a_volume_takes_a_part_of_the_room_for_groups() {
    let (mut state, soft) = (cluster(3), Soft::default());
    set(&mut state, "pgs_per_disk", "1");
    set(&mut state, "pgs_per_disk_max", "20");
    let close_all = |state: &mut State| {
        let closed = state.pgs().filter(|pg| pg.open).map(|pg| pg.id.get()).collect();
        ok(state, Command::SetPgsOpen(SetPgsOpen { open: Vec::new(), closed }));
    };
    for _ in 0..5 {
        assert_eq!(make(&mut state, &soft, "r3"), 1);
        close_all(&mut state);
    }
    assert!(plan(&state, &soft, VolumeId(1), scheme("r3"), 7).is_ok(), "there is no other volume");
    let other = crate::command::CreateVolume { name: "other".into(), layout: 1, ..Default::default() };
    let Outcome::Volume(other) = ok(&mut state, Command::CreateVolume(other)) else { panic!("a volume") };
    let error = plan(&state, &soft, VolumeId(1), scheme("r3"), 7).expect_err("a quarter of 20");
    assert_eq!(error.code, ErrorCode::NoSpace);
    assert!(error.message.contains("a quarter of that of one volume"), "{error}");
    assert!(plan(&state, &soft, VolumeId(1), scheme("r2"), 7).is_err(), "nor of another scheme");
    assert_eq!(plan(&state, &soft, other, scheme("r3"), 7).map(|groups| groups.len()), Ok(1), "others have theirs");
}

/// A tenant would have his groups closed and replaced as often as he says that they are full; or a writer go on asking
/// a group that is.
#[test]
fn only_what_can_be_full_is() {
    let (mut state, mut soft) = (cluster(3), Soft::default());
    make(&mut state, &soft, "r3");
    let pg = state.pgs().next().expect("one").clone();
    assert!(may_be_full(&state, &soft, &pg), "nothing is known of its disks");
    let load = |free_bytes: u64| DiskLoad { total_bytes: 1 << 40, free_bytes, ..DiskLoad::default() };
    for disk in pg.disks() {
        soft.disks.insert(disk, load(1 << 39));
    }
    assert!(!may_be_full(&state, &soft, &pg));
    soft.disks.insert(pg.members[1].disk, load(2 << 30));
    assert!(may_be_full(&state, &soft, &pg));
}

/// A group whose indices are used up would be asked for chunks for ever, and opened again whenever its disks have room.
#[test]
fn a_group_without_indices_is_full_for_good() {
    let (mut state, mut soft) = (cluster(3), Soft::default());
    make(&mut state, &soft, "r3");
    let pg = state.pgs().next().expect("one").clone();
    let load = || DiskLoad { total_bytes: 1 << 40, free_bytes: 1 << 39, ..DiskLoad::default() };
    soft.disks.extend(pg.disks().map(|disk| (disk, load())));
    let closed: Vec<u32> = state.pgs().map(|pg| pg.id.get()).collect();
    ok(&mut state, Command::SetPgsOpen(SetPgsOpen { open: Vec::new(), closed }));
    let opens = |soft: &Soft| reopen(&state, soft, VolumeId(1), scheme("r3"), &[]).contains(&pg.id.get());
    assert!(!may_be_full(&state, &soft, &pg) && opens(&soft));
    soft.used_up.insert((pg.id, DiskId(77)));
    assert!(!may_be_full(&state, &soft, &pg), "said by who is no member");
    soft.used_up.insert((pg.id, pg.members[2].disk));
    assert!(may_be_full(&state, &soft, &pg) && !opens(&soft));
}

/// A disk that is filled with groups would get more of them for ever.
#[test]
fn a_disk_carries_a_bounded_number() {
    let (mut state, soft) = (cluster(3), Soft::default());
    set(&mut state, "pgs_per_disk_max", "2");
    assert_eq!(make(&mut state, &soft, "r3"), 2);
    assert_eq!(make(&mut state, &soft, "r3"), 0);
}

/// One full disk of nine would end all new writing of rs-6-3, although shards enough have room; or groups would be made
/// without end; or with fewer shards than writes need.
#[test]
fn full_disks_are_left_out_of_new_groups() {
    let (mut state, mut soft) = (cluster(9), Soft::default());
    make(&mut state, &soft, "rs-6-3");
    let mut fill = |disk: u32| {
        soft.disks.insert(DiskId(disk), DiskLoad { total_bytes: 1 << 40, free_bytes: 1 << 20, ..DiskLoad::default() });
        soft.clone()
    };
    let soft = fill(4);
    assert_eq!(make(&mut state, &soft, "rs-6-3"), 0, "those that there are are not full yet");
    let closed = state.pgs().map(|pg| pg.id.get()).collect();
    ok(&mut state, Command::SetPgsOpen(SetPgsOpen { open: Vec::new(), closed }));
    assert_eq!(make(&mut state, &soft, "rs-6-3"), 9);
    for pg in state.pgs().filter(|pg| pg.open) {
        let last = pg.members[8];
        assert_eq!((last.disk, last.state, last.filling), (DiskId(4), cairn_types::MemberState::Offline, true));
        assert!(pg.is_writable() && pg.count(cairn_types::MemberState::Serving) == 8);
    }
    assert_eq!(make(&mut state, &soft, "rs-6-3"), 0, "no more than are missing");
    let closed = state.pgs().map(|pg| pg.id.get()).collect();
    ok(&mut state, Command::SetPgsOpen(SetPgsOpen { open: Vec::new(), closed }));
    let soft = fill(5);
    assert_eq!(make(&mut state, &soft, "rs-6-3"), 9, "seven shards are k + 1");
    let closed = state.pgs().map(|pg| pg.id.get()).collect();
    ok(&mut state, Command::SetPgsOpen(SetPgsOpen { open: Vec::new(), closed }));
    let soft = fill(6);
    assert_eq!(plan(&state, &soft, VolumeId(1), scheme("rs-6-3"), 7).expect_err("six").code, ErrorCode::NoSpace);
    let group = Disks { disks: (1..=9).collect(), full: vec![1, 2, 3] };
    let six = CreatePgs { volume: 1, scheme: u32::from(scheme("rs-6-3").code()), groups: vec![group] };
    assert_eq!(crate::apply::tests::refused(&mut state, Command::CreatePgs(six)).code, ErrorCode::Conflict);
}

/// A disk whose free space goes up and down around the reserve would get new groups each time, without end.
#[test]
fn groups_with_a_little_room_are_opened_before_new_ones_are_made() {
    let (mut state, mut soft) = (cluster(5), Soft::default());
    set(&mut state, "disk_reserve", "1g");
    let mut free = |disk: u32, free_bytes: u64| {
        soft.disks.insert(DiskId(disk), DiskLoad { total_bytes: 1 << 40, free_bytes, ..DiskLoad::default() });
        soft.clone()
    };
    (1..=4).for_each(|disk| drop(free(disk, 1 << 39)));
    let soft = free(5, 1 << 39);
    let wanted = make(&mut state, &soft, "rs-3-2");
    let all: Vec<u32> = state.pgs().map(|pg| pg.id.get()).collect();
    let again =
        |state: &State, soft: &Soft, but_for: &[u32]| reopen(state, soft, VolumeId(1), scheme("rs-3-2"), but_for);
    assert!(wanted > 0 && again(&state, &soft, &[]).is_empty(), "all are open");
    ok(&mut state, Command::SetPgsOpen(SetPgsOpen { open: Vec::new(), closed: all.clone() }));
    assert_eq!(again(&state, &free(5, 1 << 30), &[]), [], "they are full");
    let soft = free(5, (1 << 30) + 1);
    assert_eq!(again(&state, &soft, &all[..2]), all[2..], "but for those that somebody just found full");
    let open = again(&state, &soft, &[]);
    assert_eq!(open, all);
    ok(&mut state, Command::SetPgsOpen(SetPgsOpen { open, closed: Vec::new() }));
    assert_eq!(make(&mut state, &soft, "rs-3-2"), 0, "nothing is missing any more");
}

/// Nearly every new chunk would go to a disk that was just added, and all writers wait for it.
#[test]
fn a_new_empty_disk_is_not_swamped() {
    const GIB: u64 = 1 << 30;
    const CHUNKS: u64 = 20_000;
    for text in ["r1", "r2", "r3", "rs-3-2"] {
        let (mut state, mut soft) = (cluster(9), Soft::default());
        let load = |free: u64| DiskLoad { total_bytes: 1000 * GIB, free_bytes: free * GIB, ..DiskLoad::default() };
        soft.disks.extend((1..=9).map(|disk| (DiskId(disk), load(100))));
        assert!(make(&mut state, &soft, text) > 0);
        ok(&mut state, Command::Register(register(10, crate::items::Roles::DATA, 1)));
        soft.disks.insert(DiskId(10), load(1000));
        make(&mut state, &soft, text);
        let candidate = |pg: &crate::pg::Pg| cairn_placement::PgCandidate {
            pg: pg.id,
            complete: true,
            free_bytes: state.pg_message(pg, &soft).free_bytes,
            queue_depth: 0,
            nearness: cairn_placement::Nearness::Other,
        };
        let candidates: Vec<_> = state.pgs().map(candidate).collect();
        let mut random = 7u64;
        let mut next = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            random ^ (random >> 29)
        };
        let chunk_goes_there = |random: u64| {
            let picked = &candidates[cairn_placement::pick(&candidates, random).expect("groups")];
            state.pg(picked.pg).is_some_and(|pg| pg.disks().any(|disk| disk == DiskId(10)))
        };
        let there = (0..CHUNKS).filter(|_| chunk_goes_there(next())).count() as u64;
        // Of ten disks with as much to do each, so many chunks had a part on each.
        let fair = CHUNKS * scheme(text).members() as u64 / 10;
        assert!(there <= fair * 9 / 4, "{text}: {there} of {CHUNKS}, {fair} would be its share");
        assert!(there > 0, "{text}: it gets nothing");
    }
}

/// A disk that came in the place of another one, or back after others had replaced it, would be empty until those are
/// full.
#[test]
fn disks_without_groups_get_their_share() {
    const ROOM: u64 = 1 << 39;
    const HARDLY_ANY: u64 = 3 << 30;
    for (text, free) in [("r2", ROOM), ("r3", ROOM), ("rs-3-2", ROOM), ("r3", HARDLY_ANY)] {
        let (mut state, mut soft) = (cluster(9), Soft::default());
        let load = |free: u64| DiskLoad { total_bytes: 1 << 40, free_bytes: free, ..DiskLoad::default() };
        soft.disks.extend((1..=9).map(|disk| (DiskId(disk), load(ROOM))));
        make(&mut state, &soft, text);
        // One goes, and another one comes: as many groups are wanted as there are.
        let nodes = vec![NodeAt { node: 16, incarnation: state.node(NodeId(16)).expect("known").incarnation.get() }];
        ok(&mut state, Command::NodesDown(NodesDown { nodes }));
        make(&mut state, &soft, text);
        ok(&mut state, Command::Register(register(10, crate::items::Roles::DATA, 1)));
        assert_eq!(make(&mut state, &soft, text), 0, "{text}: what it has free is not known yet");
        soft.disks.insert(DiskId(10), load(free));
        let made = make(&mut state, &soft, text);
        let there = state.pgs_of(DiskId(10)).count();
        assert_eq!((made > 0, there), (free == ROOM, made), "{text}: others would get them");
        assert!(made <= 4, "{text}: more than another one has");
        assert_eq!(make(&mut state, &soft, text), 0, "{text}: it has its share");
    }
}
