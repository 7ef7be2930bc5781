//! Scenes of the whole state machine, and properties of random sequences of commands.
mod generations;
mod members;
mod more_partitions;
mod partitions;
mod properties;
mod restored;
mod volume_trash;

use super::*;
use crate::command::*;
use crate::items::{DiskState, Roles};
use crate::map::Scope;
use crate::soft::Soft;
use cairn_types::{Epoch, MemberState};

pub(crate) const SECOND: u64 = 1_000_000_000;

pub(crate) fn uuid(kind: u8, number: u32) -> Vec<u8> {
    let mut uuid = vec![kind; 16];
    uuid[..4].copy_from_slice(&number.to_le_bytes());
    uuid
}

/// Registration of the `number`-th node with `disks` disks, as if for the first time.
pub(crate) fn register(number: u32, roles: Roles, disks: u32) -> Register {
    let disk = |i: u32| RegisterDisk {
        uuid: uuid(2, number * 100 + i),
        path: format!("/data{number}/{i}"),
        total_bytes: 1 << 40,
        free_bytes: 1 << 40,
        ..RegisterDisk::default()
    };
    Register {
        uuid: uuid(1, number),
        roles: roles.0,
        address: format!("10.0.0.{number}:7400"),
        rack: format!("rack{}", number % 3),
        host: format!("host{number}"),
        disks: (0..disks).map(disk).collect(),
        ..Register::default()
    }
}

pub(crate) fn ok(state: &mut State, command: Command) -> Outcome {
    let applied = state.apply(WallTime(SECOND), &command);
    state.check_invariants();
    applied.outcome.expect("the command is accepted")
}

pub(crate) fn refused(state: &mut State, command: Command) -> WireError {
    let before = state.clone();
    let error = state.apply(WallTime(SECOND), &command).outcome.expect_err("the command is refused");
    assert!(*state == before, "a refused command changed something");
    error
}

pub(crate) fn empty_cluster() -> State {
    let mut state = State::new();
    ok(&mut state, Command::InitCluster(InitCluster { cluster: vec![9; 16], name: "test".into() }));
    state
}

/// `data` data nodes with one disk, one meta node, one volume.
pub(crate) fn cluster(data: u32) -> State {
    let mut state = empty_cluster();
    for number in 0..data {
        ok(&mut state, Command::Register(register(number, Roles::DATA, 1)));
    }
    ok(&mut state, Command::Register(register(90, Roles::META, 0)));
    ok(&mut state, Command::CreateVolume(CreateVolume { name: "default".into(), ..CreateVolume::default() }));
    state
}

fn make_pg(state: &mut State, disks: &[u32]) -> PgId {
    let groups = vec![Disks { disks: disks.to_vec(), ..Disks::default() }];
    let command = CreatePgs { volume: 1, scheme: disks.len() as u32, groups };
    match ok(state, Command::CreatePgs(command)) {
        Outcome::Pgs(pgs) => pgs[0],
        other => panic!("{other:?}"),
    }
}

fn down(state: &mut State, nodes: &[u32]) -> Applied {
    let at = |n: &u32| NodeAt { node: *n, incarnation: state.node(NodeId(*n)).expect("known").incarnation.get() };
    let nodes = nodes.iter().map(at).collect();
    let applied = state.apply(WallTime(9 * SECOND), &Command::NodesDown(NodesDown { nodes }));
    state.check_invariants();
    applied
}

fn states(state: &State, pg: PgId) -> Vec<MemberState> {
    state.pg(pg).expect("known").members.iter().map(|m| m.state).collect()
}

/// A second cluster id would let nodes of two clusters mix.
#[test]
fn cluster_id_is_written_once() {
    let mut state = State::new();
    let early = state.apply(WallTime(0), &Command::GrantSessions(GrantSessions { count: 1 }));
    assert_eq!(early.outcome.expect_err("not yet").code, ErrorCode::Unavailable);
    let mut init =
        |byte| ok(&mut state, Command::InitCluster(InitCluster { cluster: vec![byte; 16], name: "a".into() }));
    assert_eq!(init(7), Outcome::Cluster(ClusterId([7; 16])));
    assert_eq!(init(8), Outcome::Cluster(ClusterId([7; 16])), "the first one stays");
}

/// A node that comes back must keep its ids and get a new incarnation; a foreign one must stay out.
#[test]
fn registration_and_foreign_nodes() {
    let mut state = empty_cluster();
    let Outcome::Registered(first) = ok(&mut state, Command::Register(register(1, Roles::DATA, 2))) else { panic!() };
    assert_eq!((first.node, first.disks.len()), (NodeId(16), 2));
    let mut again = register(1, Roles::DATA, 2);
    again.node = 16;
    again.disks[0].disk = first.disks[0].get();
    let Outcome::Registered(second) = ok(&mut state, Command::Register(again)) else { panic!() };
    assert_eq!((second.node, &second.disks), (first.node, &first.disks));
    assert!(second.incarnation > first.incarnation);

    let foreign = Register { node: 17, ..register(5, Roles::DATA, 0) };
    assert_eq!(refused(&mut state, Command::Register(foreign)).code, ErrorCode::WrongCluster);
    let wrong_label = Register { node: 17, ..register(1, Roles::DATA, 0) };
    assert_eq!(refused(&mut state, Command::Register(wrong_label)).code, ErrorCode::WrongCluster);
    let mut foreign_disk = register(5, Roles::DATA, 1);
    foreign_disk.disks[0].disk = 3;
    let error = refused(&mut state, Command::Register(foreign_disk));
    assert_eq!(error.code, ErrorCode::WrongCluster);
    assert!(error.message.contains("/data5/0") && error.message.contains("another cluster"), "{error}");
    let mut twice = register(5, Roles::DATA, 2);
    twice.disks[1].uuid = twice.disks[0].uuid.clone();
    assert_eq!(refused(&mut state, Command::Register(twice)).code, ErrorCode::BadRequest);
}

/// A member of the manager's group has its number from the configuration; nobody else may take it.
#[test]
fn managers_register_under_their_number() {
    let mut state = empty_cluster();
    let claim = |uuid_of| Register { node: 2, ..register(uuid_of, Roles(Roles::DATA.0 | Roles::MANAGER.0), 1) };
    // It waits to be added, and would be taken for one of another cluster.
    let text = refused(&mut state, Command::Register(claim(1))).message;
    assert!(text.contains("manager add 2@HOST:PORT") && !text.contains("another cluster"), "{text}");
    let put = PutManager { node: 2, address: "m2:7400".into(), ..PutManager::default() };
    ok(&mut state, Command::PutManager(put.clone()));
    let Outcome::Registered(given) = ok(&mut state, Command::Register(claim(1))) else { panic!() };
    assert_eq!(given.node, NodeId(2));
    assert_eq!(refused(&mut state, Command::Register(claim(3))).code, ErrorCode::WrongCluster);
    ok(&mut state, Command::PutManager(put));
    let node = state.node(NodeId(2)).expect("known");
    assert!(node.roles.has(Roles::MANAGER) && node.roles.has(Roles::DATA));
    assert_eq!(node.address, "10.0.0.1:7400", "what it told itself stays");
    // A number that was taken out for good would wait for its vote for ever.
    assert_eq!(state.manager_flaw(NodeId(2)), None);
    assert!(state.manager_flaw(NodeId(16)).is_some_and(|flaw| flaw.contains("1 to 15")));
    let mut without = state.clone();
    ok(&mut without, Command::PutManager(PutManager { node: 2, removed: true, ..PutManager::default() }));
    let incarnation = without.node(NodeId(2)).expect("known").incarnation.get();
    ok(&mut without, Command::NodesDown(NodesDown { nodes: vec![NodeAt { node: 2, incarnation }] }));
    ok(&mut without, Command::Remove(Remove { target: Some((&crate::maintenance::Target::Node(NodeId(2))).into()) }));
    assert!(without.manager_flaw(NodeId(2)).is_some_and(|flaw| flaw.contains("another number")));
    let outside = Command::PutManager(PutManager { node: 16, ..PutManager::default() });
    assert_eq!(refused(&mut state, outside).code, ErrorCode::BadRequest);
    let Outcome::Registered(plain) = ok(&mut state, Command::Register(register(4, Roles(7), 0))) else { panic!() };
    assert!(!state.node(plain.node).expect("known").roles.has(Roles::MANAGER), "nobody makes itself a manager");
}

/// A copied disk in two machines would serve two diverging copies as one.
#[test]
fn a_disk_in_service_elsewhere_is_refused_a_moved_one_is_not() {
    let mut state = cluster(3);
    let pg = make_pg(&mut state, &[1, 2, 3]);
    let mut mover = register(7, Roles::DATA, 1);
    mover.disks[0].uuid = uuid(2, 0);
    mover.disks[0].disk = 1;
    let Outcome::Registered(copy) = ok(&mut state, Command::Register(mover.clone())) else { panic!() };
    assert_eq!(copy.disks, [DiskId(0)]);
    assert!(copy.problems[0].contains("stop that node"), "{:?}", copy.problems);
    assert_eq!(state.disk(DiskId(1)).map(|d| d.node), Some(NodeId(16)));

    down(&mut state, &[16]);
    let Outcome::Registered(moved) = ok(&mut state, Command::Register(mover)) else { panic!() };
    assert_eq!(moved.disks, [DiskId(1)]);
    assert_eq!(states(&state, pg)[0], MemberState::Syncing);
    let message = state.pg_state(state.pg(pg).expect("known"));
    assert_eq!(message.members[0].node, moved.node.get(), "members are told where it is now");
}

/// A late verdict about an older start would take a fresh node down.
#[test]
fn verdicts_about_an_older_start_are_void() {
    let mut state = cluster(3);
    let pg = make_pg(&mut state, &[1, 2, 3]);
    let old = state.node(NodeId(16)).expect("known").incarnation.get();
    ok(&mut state, Command::Register(register(0, Roles::DATA, 1)));
    let late = NodesDown { nodes: vec![NodeAt { node: 16, incarnation: old }] };
    ok(&mut state, Command::NodesDown(late));
    assert!(state.node(NodeId(16)).is_some_and(|n| n.up));
    let bad = DiskAt { disk: 1, incarnation: old, state: 1, problem: "EIO".into() };
    ok(&mut state, Command::DiskStates(DiskStates { disks: vec![bad] }));
    assert!(state.is_able(DiskId(1)));
    assert_eq!(states(&state, pg), [MemberState::Syncing, MemberState::Serving, MemberState::Serving]);
}

/// A rack that loses power takes several members at once: each group must fall in one step.
#[test]
fn nodes_that_fall_together() {
    let mut state = cluster(4);
    let pg = make_pg(&mut state, &[1, 2]);
    let other = make_pg(&mut state, &[2, 3, 4]);
    let applied = down(&mut state, &[16, 17]);
    assert_eq!(applied.raised, [pg, other]);
    assert_eq!(states(&state, pg), [MemberState::Waiting, MemberState::Waiting]);
    assert_eq!(states(&state, other), [MemberState::Offline, MemberState::Serving, MemberState::Serving]);
    assert_eq!(state.pg(pg).map(|pg| pg.epoch), Some(Epoch(2)));
}

/// A disk whose sync failed must leave service although its node lives, and come back by registration only.
#[test]
fn failed_disks_leave_and_return_by_registration() {
    let mut state = cluster(3);
    let pg = make_pg(&mut state, &[1, 2, 3]);
    let incarnation = state.node(NodeId(17)).expect("known").incarnation.get();
    let at =
        |code| DiskStates { disks: vec![DiskAt { disk: 2, incarnation, state: code, problem: "sync: EIO".into() }] };
    ok(&mut state, Command::DiskStates(at(1)));
    assert_eq!(states(&state, pg)[1], MemberState::Offline);
    ok(&mut state, Command::DiskStates(at(0)));
    assert_eq!(state.disk(DiskId(2)).map(|d| d.state), Some(DiskState::Failed));
    let rejoin = MemberAt { pg: pg.get(), disk: 2, epoch: 2 };
    ok(&mut state, Command::Rejoin(rejoin));
    assert_eq!(states(&state, pg)[1], MemberState::Offline, "a failed disk does not rejoin");
    let absent = Register { disks: Vec::new(), ..register(2, Roles::DATA, 0) };
    ok(&mut state, Command::Register(absent));
    assert_eq!(states(&state, pg), [MemberState::Serving, MemberState::Offline, MemberState::Waiting]);
    ok(&mut state, Command::Register(register(1, Roles::DATA, 1)));
    assert_eq!(states(&state, pg)[1], MemberState::Syncing);
}

/// A member that caught up under an older epoch may lack what came after.
#[test]
fn catch_up_counts_under_the_present_epoch_only() {
    let mut state = cluster(3);
    let pg = make_pg(&mut state, &[1, 2, 3]);
    down(&mut state, &[16]);
    ok(&mut state, Command::Register(register(0, Roles::DATA, 1)));
    let report = |epoch| Command::CaughtUp(CaughtUp { members: vec![MemberAt { pg: pg.get(), disk: 1, epoch }] });
    ok(&mut state, report(2));
    assert_eq!(states(&state, pg)[0], MemberState::Syncing);
    ok(&mut state, report(3));
    assert_eq!(states(&state, pg)[0], MemberState::Serving);
}

/// A plan made before a disk failed would put data on it.
#[test]
fn plans_are_checked_when_applied() {
    let mut state = cluster(3);
    down(&mut state, &[18]);
    let create = |volume, scheme, disks: &[u32]| {
        Command::CreatePgs(CreatePgs {
            volume,
            scheme,
            groups: vec![Disks { disks: disks.to_vec(), ..Disks::default() }],
        })
    };
    assert_eq!(refused(&mut state, create(1, 3, &[1, 2, 3])).code, ErrorCode::Conflict);
    assert_eq!(refused(&mut state, create(1, 2, &[1, 1])).code, ErrorCode::Conflict);
    assert_eq!(refused(&mut state, create(1, 3, &[1, 2])).code, ErrorCode::Conflict);
    assert_eq!(refused(&mut state, create(9, 2, &[1, 2])).code, ErrorCode::UnknownVolume);
    assert_eq!(refused(&mut state, create(1, 99, &[1, 2])).code, ErrorCode::BadLayout);
    ok(&mut state, create(1, 2, &[1, 2]));
}

/// Volumes: names, duplicates, layouts that cannot be written, too few meta nodes, deletion.
#[test]
fn volumes_are_made_and_deleted() {
    let mut state = cluster(3);
    let make = |name: &str, layout: &str| {
        let layout = layout.parse::<cairn_types::Layout>().expect("a layout").to_bits();
        Command::CreateVolume(CreateVolume { name: name.into(), layout, partitions: 0, members: Vec::new() })
    };
    assert_eq!(refused(&mut state, make("a/b", "r3")).code, ErrorCode::InvalidArgument);
    assert_eq!(refused(&mut state, make("default", "r3")).code, ErrorCode::Exists);
    let error = refused(&mut state, make("a", "r3>rs-6-3"));
    assert_eq!(error.code, ErrorCode::BadLayout);
    assert!(error.message.contains("r3>rs-6-3 is encoded later, which needs feature level 12"), "{error}");
    ok(&mut state, make("a", "r2"));
    let pg = match ok(
        &mut state,
        Command::CreatePgs(CreatePgs {
            volume: 2,
            scheme: 2,
            groups: vec![Disks { disks: vec![1, 2], ..Disks::default() }],
        }),
    ) {
        Outcome::Pgs(pgs) => pgs[0],
        other => panic!("{other:?}"),
    };
    let delete = |name: &str| Command::DeleteVolume(DeleteVolume { name: name.into(), trashed_ns: 0 });
    ok(&mut state, delete("a"));
    let retired = state.pg(pg).expect("kept as a tombstone");
    assert!(retired.retired && !retired.is_writable() && retired.epoch == Epoch(2));
    assert!(state.partitions().any(|p| p.volume == VolumeId(2) && p.removed));
    assert_eq!(refused(&mut state, delete("a")).code, ErrorCode::UnknownVolume);
    ok(&mut state, make("a", "r1"));
    assert_eq!(state.volume_by_name("a").map(|v| v.id), Some(VolumeId(3)), "ids are not reused");
    let mut bare = empty_cluster();
    assert_eq!(refused(&mut bare, make("a", "r3")).code, ErrorCode::NotEnoughDisks);
}

/// Partitions of new volumes must spread over meta nodes and racks.
#[test]
fn partitions_spread_over_meta_nodes() {
    let mut state = empty_cluster();
    for number in 0..6 {
        ok(&mut state, Command::Register(register(number, Roles::META, 0)));
    }
    for name in ["a", "b", "c", "d"] {
        ok(&mut state, Command::CreateVolume(CreateVolume { name: name.into(), ..CreateVolume::default() }));
    }
    let mut load = std::collections::BTreeMap::<NodeId, u32>::new();
    for partition in state.partitions() {
        let racks: std::collections::BTreeSet<_> =
            partition.members.iter().map(|n| state.node(*n).expect("known").rack.clone()).collect();
        assert_eq!((partition.members.len(), racks.len()), (3, 3));
        assert_eq!((partition.inode_first, partition.inode_last), (1, u64::MAX));
        partition.members.iter().for_each(|n| *load.entry(*n).or_default() += 1);
    }
    assert!(load.values().all(|count| *count == 2), "{load:?}");
}

/// A member that lost its log would not know that it had one, and begin its partition anew, empty.
#[test]
fn members_that_opened_a_partition_are_remembered() {
    let mut state = cluster(1);
    let partition = state.partitions().next().expect("the volume's").clone();
    let member = partition.members[0];
    let begun = |node: NodeId| {
        let at = PartitionAt { partition: partition.id.get(), node: node.get() };
        Command::PartitionsBegun(PartitionsBegun { members: vec![at] })
    };
    ok(&mut state, begun(NodeId(99)));
    assert!(state.partition(partition.id).expect("kept").begun.is_empty(), "it is no member");
    let version = state.version();
    ok(&mut state, begun(member));
    assert_eq!(state.partition(partition.id).expect("kept").begun, [member]);
    let map = state.map(version, Scope::All, &Soft::default());
    assert_eq!(map.partitions.iter().map(|p| p.begun.clone()).collect::<Vec<_>>(), [[member.get()]]);
    let version = state.version();
    ok(&mut state, begun(member));
    assert_eq!(state.version(), version, "nothing new");
}

/// Two leaders that hand out the same session would break exactly-once.
#[test]
fn session_blocks_never_overlap() {
    let mut state = empty_cluster();
    let mut next = 1;
    for count in [1, 1024, 0, u32::MAX, 5] {
        let Outcome::Sessions(first, given) = ok(&mut state, Command::GrantSessions(GrantSessions { count })) else {
            panic!()
        };
        assert_eq!(first.get(), next);
        assert!((1..=SESSION_BLOCK_MAX).contains(&given));
        next += u64::from(given);
    }
}

/// A client or node would work with a map that never was.
#[test]
fn maps_are_filtered_and_deltas_tell_deletions() {
    let mut state = cluster(4);
    let soft = Soft::default();
    let pg = make_pg(&mut state, &[1, 2]);
    let before = state.version();
    let ids = |map: &cairn_wire::manager::ClusterMap| {
        map.pgs.iter().filter_map(|pg| pg.state.as_ref()).map(|pg| pg.pg).collect::<Vec<_>>()
    };
    assert_eq!(ids(&state.map(0, Scope::All, &soft)), [pg.get()]);
    assert_eq!(ids(&state.map(0, Scope::Volume(VolumeId(7)), &soft)), [0u32; 0]);
    assert_eq!(ids(&state.map(0, Scope::Node(NodeId(16)), &soft)), [pg.get()]);
    assert_eq!(ids(&state.map(0, Scope::Node(NodeId(19)), &soft)), [0u32; 0], "none of its disks is a member");
    assert_eq!(state.map(before, Scope::All, &soft).base_version, before);
    assert_eq!(state.map(before + 5, Scope::All, &soft).base_version, 0, "a version of another life");
    ok(&mut state, Command::DeleteVolume(DeleteVolume { name: "default".into(), trashed_ns: 0 }));
    let delta = state.map(before, Scope::All, &soft);
    assert!(delta.volumes[0].deleted && delta.partitions[0].removed);
    assert!(delta.pgs[0].state.as_ref().is_some_and(|pg| pg.retired));
    let full = state.map(0, Scope::All, &soft);
    assert!(full.volumes.is_empty() && full.partitions.is_empty() && full.pgs.is_empty());
    assert_eq!(ids(&state.map(0, Scope::Node(NodeId(16)), &soft)), [pg.get()], "it has to learn that it may drop it");
}

/// A node would take another one's key, or forget its own with a restart, a checkpoint or a change of address.
#[test]
fn a_node_is_bound_to_a_key_and_stays_so() {
    let mut state = cluster(1);
    let bind = |state: &mut State, node, holder: &str, former: &str| {
        let (holder, former) = (holder.to_owned(), former.to_owned());
        ok(state, Command::BindNode(BindNode { node, holder, former }));
        state.node(NodeId(node)).map(|node| node.holder.clone())
    };
    let of = |text: &str| Some(text.to_owned());
    let before = state.version();
    assert_eq!(bind(&mut state, 16, "n1", ""), of("n1"));
    let told = state.map(before, Scope::All, &Soft::default());
    assert_eq!(told.nodes.iter().map(|node| node.holder.as_str()).collect::<Vec<_>>(), ["n1"], "all are told");
    assert_eq!(bind(&mut state, 16, "n2", ""), of("n1"), "another one was faster");
    assert_eq!(bind(&mut state, 16, "", "n1"), of("n1"));
    ok(&mut state, Command::Register(register(0, Roles::DATA, 1)));
    assert_eq!(state.node(NodeId(16)).map(|node| node.holder.clone()), of("n1"));
    let mut bytes = Vec::new();
    crate::checkpoint::write(&state, |part| {
        bytes.extend_from_slice(part);
        Ok::<(), ()>(())
    })
    .expect("a vector takes everything");
    let mut reader = crate::checkpoint::Reader::new();
    reader.feed(&bytes).expect("read");
    let mut state = reader.finish().expect("a state");
    assert_eq!(bind(&mut state, 16, "n2", "n1"), of("n2"));
    // Managers have theirs in the key, and of nobody nothing is kept.
    ok(&mut state, Command::PutManager(PutManager { node: 1, address: "h:1".into(), ..PutManager::default() }));
    assert_eq!(bind(&mut state, 1, "n2", ""), of(""));
    assert_eq!(bind(&mut state, 99, "n2", ""), None);
}

/// Tombstones would grow for ever, or a delta from before they were forgotten would miss a deletion.
#[test]
fn old_tombstones_are_forgotten_and_then_maps_are_full() {
    let mut state = cluster(3);
    let soft = Soft::default();
    let start = state.version();
    let count = crate::state::TOMBSTONES_MAX / 256 + 2;
    for _ in 0..count {
        let make =
            Command::CreateVolume(CreateVolume { name: "x".into(), layout: 1, partitions: 0, members: Vec::new() });
        let Outcome::Volume(volume) = state.apply(WallTime(0), &make).outcome.expect("made") else { panic!() };
        let groups = vec![Disks { disks: vec![1], ..Disks::default() }; 256];
        let create = Command::CreatePgs(CreatePgs { volume: volume.get(), scheme: 1, groups });
        assert!(state.apply(WallTime(0), &create).outcome.is_ok());
        let delete = Command::DeleteVolume(DeleteVolume { name: "x".into(), trashed_ns: 0 });
        assert!(state.apply(WallTime(0), &delete).outcome.is_ok());
    }
    state.check_invariants();
    assert!(state.tombstones.len() <= crate::state::TOMBSTONES_MAX);
    assert!(state.pgs().count() <= crate::state::TOMBSTONES_MAX);
    assert_eq!(state.map(start, Scope::All, &soft).base_version, 0);
    let recent = state.version() - 1;
    assert_eq!(state.map(recent, Scope::All, &soft).base_version, recent);
}
