//! One manager: registration, volumes, groups, sessions, maps, settings, restart.
use super::cluster::{Managers, PATIENCE, eventually, new_client, wait};
use super::node::{Node, beat, told};
use cairn_rpc::{CallOptions, Identity};
use cairn_types::{ClusterId, Epoch, ErrorCode, NodeId, Scheme};
use cairn_wire::Opcode;
use cairn_wire::common::Empty;
use cairn_wire::hello::PeerKind;
use cairn_wire::manager::*;
use std::collections::BTreeSet;
use std::time::Duration;

const R3: u32 = 3;

fn ensure(managers: &Managers, scheme: u32) -> Result<ClusterMap, cairn_rpc::LeaderError> {
    let request = EnsurePgsRequest { volume: 1, scheme, ..EnsurePgsRequest::default() };
    managers.try_call::<EnsurePgsResponse>(Opcode::EnsurePgs, &request).map(|answer| answer.map.expect("a map"))
}

/// A new cluster would not come to a usable state by itself.
#[test]
fn a_cluster_begins() {
    let managers = Managers::start(1, 1, 3);
    let mut nodes: Vec<Node> = (1..=3).map(|n| Node::start(&managers, n, "data", 1)).collect();
    assert!(managers.map().volumes.is_empty(), "no meta node yet");
    let meta = Node::start(&managers, 4, "meta", 0);
    let map = eventually("the default volume with groups", || {
        let map = managers.map();
        (!map.volumes.is_empty() && !map.pgs.is_empty()).then_some(map)
    });
    assert_eq!(map.cluster, managers.cluster().0.to_vec());
    assert_eq!((map.volumes[0].name.as_str(), map.volumes[0].layout), ("default", 3));
    assert_eq!((map.partitions[0].nodes.as_slice(), map.partitions[0].inode_last), ([meta.id()].as_slice(), u64::MAX));
    assert_eq!(map.pgs.len(), 4, "pgs_per_disk × disks ÷ copies");
    assert!(map.pgs.iter().all(|pg| pg.writable && pg.free_bytes > 0));
    assert_eq!(map.loads.len(), 3);
    for node in &nodes {
        assert_eq!(node.id() & !15, 16, "ids of other nodes begin at 16");
        map.pgs.iter().filter_map(|pg| pg.state.as_ref()).for_each(|pg| drop(told(node, pg.pg, Epoch(1))));
    }
    let incarnations: BTreeSet<u64> = nodes.iter().chain([&meta]).map(|n| n.given.incarnation).collect();
    assert_eq!(incarnations.len(), 4);
    beat(&mut nodes);
    let status = managers.status();
    assert_eq!(status.pgs.as_ref().map(|pgs| (pgs.complete, pgs.degraded)), Some((4, 0)));
    assert_eq!((status.leader_node, status.managers.as_slice()), (1, [1].as_slice()));
    assert!(status.problems.iter().all(|p| p.contains("reports no leader")), "{:?}", status.problems);
}

/// Nodes of another cluster would mix their data into this one.
#[test]
fn foreign_clusters_are_refused() {
    let managers = Managers::start(1, 1, 3);
    managers.cluster();
    let foreign = new_client(Identity::new(ClusterId([9; 16]), PeerKind::Server, NodeId(0)));
    let call = foreign.call(
        &managers.addresses[0],
        Opcode::GetMap.code(),
        &GetMapRequest::default(),
        (),
        CallOptions::new(PATIENCE),
    );
    let error = wait(call).expect_err("another cluster");
    assert!(error.to_string().contains("cluster"), "{error}");
    let mut node = Node::new(&managers, 1, "data", 1);
    node.given.node = 33;
    let error = node.register().expect_err("a label of another cluster");
    assert_eq!(error.code(), Some(ErrorCode::WrongCluster));
    assert!(error.to_string().contains("another cluster"), "{error}");
    assert!(managers.map().nodes.iter().all(|n| n.id < 16), "nothing was entered");
}

/// Users would get "no space" without knowing why.
#[test]
fn what_cannot_be_placed_says_why() {
    let managers = Managers::start(1, 1, 1);
    let _data = Node::start(&managers, 1, "data", 2);
    let _meta = Node::start(&managers, 2, "meta", 0);
    eventually("the default volume", || (!managers.map().volumes.is_empty()).then_some(()));
    assert_eq!(managers.map().volumes[0].layout, 1, "as many copies as there are nodes");
    let error = ensure(&managers, R3).expect_err("two disks");
    assert_eq!(error.code(), Some(ErrorCode::NotEnoughDisks));
    assert!(error.to_string().contains("r3 needs 3 disks; this cluster has 2 in service"), "{error}");
    let erasure = Scheme::Erasure { k: 6, m: 3 }.code();
    let error = ensure(&managers, u32::from(erasure)).expect_err("erasure");
    assert!(error.to_string().contains("rs-6-3 needs 9 disks; this cluster has 2 in service"), "{error}");
    let create = |name: &str, layout: u64| {
        let request = CreateVolumeRequest { name: name.into(), layout, ..CreateVolumeRequest::default() };
        managers.try_call::<CreateVolumeResponse>(Opcode::CreateVolume, &request)
    };
    assert_eq!(create("a", 3).expect_err("r3").code(), Some(ErrorCode::NotEnoughDisks));
    assert_eq!(create("default", 1).expect_err("taken").code(), Some(ErrorCode::Exists));
    assert_eq!(create("a/b", 1).expect_err("a slash").code(), Some(ErrorCode::InvalidArgument));
    let made = create("b", 2).expect("two disks do");
    assert!(made.map.expect("a map").pgs.iter().all(|pg| pg.state.as_ref().is_some_and(|pg| pg.members.len() == 2)));
    let several = |partitions: u32| {
        let request = CreateVolumeRequest { name: "c".into(), layout: 1, partitions: Some(partitions) };
        managers.try_call::<CreateVolumeResponse>(Opcode::CreateVolume, &request)
    };
    for (count, why) in [(0, "at least one partition"), (4097, "at most 4096 partitions")] {
        let error = several(count).expect_err("no such number");
        assert!(error.code() == Some(ErrorCode::InvalidArgument) && error.to_string().contains(why), "{error}");
    }
    // The feature level may be a moment away.
    let made = eventually("a volume of three partitions", || several(3).ok());
    let id = made.volume.expect("made").id;
    assert_eq!(made.map.expect("a map").partitions.iter().filter(|p| p.volume == id).count(), 3);
    let delete = DeleteVolumeRequest { name: "c".into(), force: false };
    // Whoever looks for a leader asks again after this answer.
    let client = new_client(Identity::client());
    let options = CallOptions::new(PATIENCE);
    let call = client.call(&managers.addresses[0], Opcode::DeleteVolume.code(), &delete, (), options);
    let error = wait(call).expect_err("nobody leads them");
    assert!(error.to_string().contains("no leader of p3, p4, p5 reports how much it holds"), "{error}");
}

/// A directory of an erasure layout could not keep small files and tails.
#[test]
fn erasure_groups_come_with_those_for_short_files() {
    let managers = Managers::start(1, 1, 1);
    let _data = Node::start(&managers, 1, "data", 5);
    let _meta = Node::start(&managers, 2, "meta", 0);
    eventually("the default volume", || (!managers.map().volumes.is_empty()).then_some(()));
    let scheme = Scheme::Erasure { k: 3, m: 2 };
    let map = ensure(&managers, u32::from(scheme.code())).expect("five disks");
    let of = |scheme: Scheme| {
        let code = u32::from(scheme.code());
        map.pgs.iter().filter(|pg| pg.writable && pg.state.as_ref().is_some_and(|pg| pg.scheme == code)).count()
    };
    assert_eq!((of(scheme), of(Scheme::Replicated(3))), (5, 7));
}

/// Files of staged layouts could not be written where racks allow no stripe groups; or where they do, there would be
/// none.
#[test]
fn copies_that_wait_get_columns_or_else_ordinary_groups() {
    let managers = Managers::start(1, 1, 6);
    let _nodes: Vec<Node> = (1..=6).map(|n| Node::start(&managers, n, "data", 1)).collect();
    let _meta = Node::start(&managers, 7, "meta", 0);
    eventually("the default volume", || (!managers.map().volumes.is_empty()).then_some(()));
    let ask = |k: u8, m: u8| {
        let later = u32::from(Scheme::Erasure { k, m }.code());
        let request = EnsurePgsRequest { volume: 1, scheme: R3, later, ..EnsurePgsRequest::default() };
        managers.call::<EnsurePgsResponse>(Opcode::EnsurePgs, &request).map.expect("a map")
    };
    let columns = |map: &ClusterMap| map.pgs.iter().filter_map(|pg| pg.column.clone()).collect::<Vec<PgColumn>>();
    let ordinary = |map: &ClusterMap| map.pgs.iter().filter(|pg| pg.writable && pg.column.is_none()).count();
    let off = ask(3, 2);
    assert_eq!((columns(&off), ordinary(&off)), (Vec::new(), 8), "nobody switched them on");
    let on = || {
        let item = ConfigItem { key: "stripe_groups".into(), value: "on".into(), ..ConfigItem::default() };
        managers.try_call::<SetConfigResponse>(Opcode::SetConfig, &SetConfigRequest { items: vec![item] })
    };
    eventually("the feature level", || on().ok());
    let made = ask(3, 2);
    let found = columns(&made);
    assert_eq!((found.len(), ordinary(&made)), (9, 8), "a stripe group for each of three racks");
    assert!(found.iter().all(|column| column.writable && column.rack_capacity == 2), "{found:?}");
    assert_eq!(columns(&ask(3, 2)), found, "there are enough");
    let few = ask(10, 4);
    assert_eq!((columns(&few), ordinary(&few)), (found, 8), "14 nodes are needed");
}

/// A cluster that gets full would make hundreds of groups before it hears from its disks that they are full.
#[test]
fn what_is_found_full_is_not_replaced_without_end() {
    const ROUNDS: usize = 40;
    let managers = Managers::start(1, 1, 3);
    let mut nodes: Vec<Node> = (1..=3).map(|n| Node::start(&managers, n, "data", 1)).collect();
    let _meta = Node::start(&managers, 4, "meta", 0);
    eventually("groups", || (!managers.map().pgs.is_empty()).then_some(()));
    nodes.iter_mut().for_each(|node| node.disks[0].free_bytes = LITTLE);
    beat(&mut nodes);
    let (started, before) = (std::time::Instant::now(), managers.map().pgs.len());
    // A writer names all that it found full within the last seconds.
    let mut full: BTreeSet<u32> = BTreeSet::new();
    for _ in 0..ROUNDS {
        let map = managers.map();
        let writable = map.pgs.iter().filter(|pg| pg.writable);
        full.extend(writable.filter_map(|pg| pg.state.as_ref()).map(|pg| pg.pg));
        let request =
            EnsurePgsRequest { volume: 1, scheme: R3, full: full.iter().copied().collect(), later: 0, stripe_group: 0 };
        managers.call::<EnsurePgsResponse>(Opcode::EnsurePgs, &request);
    }
    // Those in the place of the first ones at once, then as often as heartbeats come.
    let most = before * (3 + started.elapsed().as_secs() as usize);
    let made = managers.map().pgs.len();
    assert!(made > before && made <= most, "{made} groups, {before} before");
}

/// Free bytes of a disk that can be full before its next heartbeat.
const LITTLE: u64 = 5 << 30;

/// One tenant would have all room for groups used up.
#[test]
fn what_is_not_full_is_not_replaced() {
    let managers = Managers::start(1, 1, 3);
    let _nodes: Vec<Node> = (1..=3).map(|n| Node::start(&managers, n, "data", 1)).collect();
    let _meta = Node::start(&managers, 4, "meta", 0);
    eventually("groups", || (!managers.map().pgs.is_empty()).then_some(()));
    let full: Vec<u32> = managers.map().pgs.iter().filter_map(|pg| pg.state.as_ref()).map(|pg| pg.pg).collect();
    let request = EnsurePgsRequest { volume: 1, scheme: R3, full: full.clone(), later: 0, stripe_group: 0 };
    let map = managers.call::<EnsurePgsResponse>(Opcode::EnsurePgs, &request).map.expect("a map");
    assert_eq!(map.pgs.iter().filter(|pg| pg.writable).count(), full.len());
    assert_eq!(map.pgs.len(), full.len());
}

/// Two clients with one session would take each other's answers.
#[test]
fn sessions_and_maps_for_clients() {
    let managers = Managers::start(1, 1, 3);
    let mut nodes: Vec<Node> = (1..=3).map(|n| Node::start(&managers, n, "data", 1)).collect();
    let _meta = Node::start(&managers, 4, "meta", 0);
    eventually("groups", || (!managers.map().pgs.is_empty()).then_some(()));
    let open = || -> OpenSessionResponse {
        managers.call(Opcode::OpenSession, &OpenSessionRequest { client: "test".into(), volume: 1 })
    };
    let sessions: BTreeSet<u64> = (0..50).map(|_| open().session).collect();
    assert_eq!(sessions.len(), 50);
    // Partitions are told, and refuse what nobody was given.
    let told = nodes[0].heartbeat().settings.into_iter().find(|item| item.key == "sessions_below").expect("told");
    let below: u64 = told.value.parse().expect("a number");
    let largest = *sessions.last().expect("some");
    assert!((largest + 1..largest + 2 * 4096).contains(&below), "{largest} was given, {below} told");
    nodes[0].disks[0].free_bytes = LITTLE;
    beat(&mut nodes);
    let version = open().map.expect("a map").version;
    let full: Vec<u32> = managers.map().pgs.iter().filter_map(|pg| pg.state.as_ref()).map(|pg| pg.pg).take(1).collect();
    let request = EnsurePgsRequest { volume: 1, scheme: R3, full: full.clone(), later: 0, stripe_group: 0 };
    let map = managers.call::<EnsurePgsResponse>(Opcode::EnsurePgs, &request).map.expect("a map");
    let of =
        |map: &ClusterMap, id: u32| map.pgs.iter().find(|pg| pg.state.as_ref().is_some_and(|pg| pg.pg == id)).cloned();
    assert_eq!(of(&map, full[0]).map(|pg| pg.writable), Some(false), "a full one takes no new chunks");
    assert_eq!(map.pgs.iter().filter(|pg| pg.writable).count(), 4, "and is replaced");
    let delta: ClusterMap =
        managers.call(Opcode::GetMap, &GetMapRequest { since_version: version, volume: 1, ..GetMapRequest::default() });
    assert_eq!((delta.base_version, delta.pgs.len(), delta.volumes.len()), (version, 2, 0));
    nodes[0].disks[0].free_bytes = 5 << 30;
    beat(&mut nodes);
    let loads = managers.map().loads;
    assert_eq!(loads.iter().find(|l| l.disk == nodes[0].disk()).map(|l| l.free_bytes), Some(5 << 30));
    eventually("the full group to open again: its disks have room", || {
        of(&managers.map(), full[0]).filter(|pg| pg.writable)
    });
    nodes[0].disks[0].free_bytes = 1 << 20;
    eventually("groups of a full disk to close", || {
        beat(&mut nodes);
        managers.map().pgs.iter().all(|pg| !pg.writable).then_some(())
    });
    assert!(managers.status().problems.iter().any(|p| p.contains("full up to the reserve")));
}

/// A mistyped setting would be taken, or mistakes be told one by one.
#[test]
fn settings() {
    let managers = Managers::start(1, 1, 1);
    managers.cluster();
    let item = |key: &str, value: &str| ConfigItem { key: key.into(), value: value.into(), ..ConfigItem::default() };
    let items = vec![item("node_timeout", "5s"), item("node_timout", "5s"), item("slow_reports", "none")];
    let answer: SetConfigResponse = managers.call(Opcode::SetConfig, &SetConfigRequest { items });
    assert_eq!(answer.mistakes.len(), 2, "{:?}", answer.mistakes);
    let value = |key: &str| {
        let all: GetConfigResponse = managers.call(Opcode::GetConfig, &GetConfigRequest {});
        all.items.into_iter().find(|i| i.key == key).expect("a setting").value
    };
    assert_eq!(value("node_timeout"), "10s", "nothing is set if anything is wrong");
    managers.set(&[("node_timeout", "5s")]);
    assert_eq!(value("node_timeout"), "5s");
}

/// A volume would get what another one was to have, or what it cannot have; or nobody see what it has.
#[test]
fn settings_of_a_volume() {
    let managers = Managers::start(1, 1, 1);
    let _nodes = [Node::start(&managers, 1, "data", 1), Node::start(&managers, 2, "meta", 0)];
    eventually("the volume", || (!managers.map().volumes.is_empty()).then_some(()));
    let set = |name: &str, key: &str, value: &str| {
        let items = vec![ConfigItem { key: key.into(), value: value.into(), ..ConfigItem::default() }];
        managers.try_call::<SetConfigResponse>(Opcode::SetVolume, &SetVolumeRequest { name: name.into(), items })
    };
    eventually("the level that it needs", || set("default", "rebalance_above", "80").ok());
    let before = managers.map();
    let settings =
        |map: &ClusterMap| map.volumes[0].settings.iter().map(|i| (i.key.clone(), i.value.clone())).collect();
    let settings: Vec<(String, String)> = settings(&before);
    assert_eq!(settings, [("rebalance_above".to_owned(), "80".to_owned())]);
    for (key, value) in [("rebalance_above", "200"), ("node_timeout", "5s"), ("rebalance_below", "81")] {
        assert_eq!(set("default", key, value).expect("an answer").mistakes.len(), 1, "{key}");
    }
    assert_eq!(managers.map().volumes, before.volumes);
    assert_eq!(set("other", "rebalance_above", "1").expect_err("none").code(), Some(ErrorCode::UnknownVolume));
    set("default", "rebalance_above", "").expect("as the cluster has it");
    assert!(managers.map().volumes[0].settings.is_empty());
}

/// A volume with files would be deleted by a slip.
#[test]
fn volumes_are_deleted_only_when_empty_or_by_force() {
    let managers = Managers::start(1, 1, 1);
    let mut data = Node::start(&managers, 1, "data", 1);
    let mut meta = Node::start(&managers, 2, "meta", 0);
    eventually("groups", || (!managers.map().pgs.is_empty()).then_some(()));
    let delete = |force: bool| {
        managers.try_call::<Empty>(Opcode::DeleteVolume, &DeleteVolumeRequest { name: "default".into(), force })
    };
    let with_heartbeats = |meta: &mut Node, force: bool| {
        std::thread::scope(|scope| {
            let deletion = scope.spawn(|| delete(force));
            while !deletion.is_finished() {
                meta.heartbeat();
                std::thread::sleep(Duration::from_millis(20));
            }
            deletion.join().expect("no panic")
        })
    };
    meta.inodes = 12;
    let error = with_heartbeats(&mut meta, false).expect_err("it holds files");
    assert_eq!(error.code(), Some(ErrorCode::VolumeNotEmpty));
    assert!(error.to_string().contains("holds 11 files and directories"), "{error}");
    meta.inodes = 1;
    with_heartbeats(&mut meta, false).expect("empty");
    let retired =
        eventually("the retirement to be told", || data.desk.lock().pgs.values().find(|pg| pg.retired).cloned());
    assert_eq!(retired.epoch, 2);
    assert!(managers.map().volumes.is_empty() && managers.map().pgs.is_empty());
    assert_eq!(delete(true).expect_err("gone").code(), Some(ErrorCode::UnknownVolume));
    std::thread::sleep(Duration::from_millis(300));
    data.heartbeat();
    assert!(managers.map().volumes.is_empty(), "the default volume is made once");
}

/// A restart would forget who belongs to the cluster, or begin a second one.
#[test]
fn a_restart_keeps_everything() {
    let mut managers = Managers::start(1, 1, 3);
    let mut nodes: Vec<Node> = (1..=3).map(|n| Node::start(&managers, n, "data", 1)).collect();
    let _meta = Node::start(&managers, 4, "meta", 0);
    eventually("groups", || (!managers.map().pgs.is_empty()).then_some(()));
    eventually("the feature level", || (managers.status().feature_level >= 5).then_some(()));
    managers.set(&[("node_timeout", "7m")]);
    let first: OpenSessionResponse = managers.call(Opcode::OpenSession, &OpenSessionRequest::default());
    let (cluster, before) = (managers.cluster(), managers.map());
    managers.kill(0);
    managers.restart(0, cluster);
    assert_eq!(managers.cluster(), cluster);
    let after = managers.map();
    assert_eq!(
        (after.version, &after.volumes, &after.partitions),
        (before.version, &before.volumes, &before.partitions)
    );
    let states = |map: &ClusterMap| map.pgs.iter().map(|pg| pg.state.clone()).collect::<Vec<_>>();
    assert_eq!(states(&after), states(&before));
    let second: OpenSessionResponse = managers.call(Opcode::OpenSession, &OpenSessionRequest::default());
    assert!(second.session > first.session);
    beat(&mut nodes);
    assert_eq!(managers.map().version, before.version, "nobody had to register again");
}

/// A member whose log was lost would begin a second cluster under the old label.
#[test]
fn a_label_without_its_log_does_not_begin_a_cluster() {
    use crate::{ManagerConfig, ManagerError, ManagerParts, ManagerServer};
    use cairn_env::{FastRng, RealClock, RealDisk};
    use std::sync::Arc;
    struct Nowhere;
    impl cairn_raft_host::RaftTransport for Nowhere {
        fn send(&self, _: NodeId, _: cairn_wire::raft::RaftBatch) {}
        fn fetch(
            &self,
            from: NodeId,
            _: cairn_wire::raft::FetchCheckpointRequest,
        ) -> Result<(cairn_wire::raft::FetchCheckpointResponse, bytes::Bytes), cairn_raft_host::FetchError> {
            Err(cairn_raft_host::FetchError::Gone { from })
        }
    }
    let dir = tempfile::TempDir::new().expect("a directory");
    let disk = Arc::new(RealDisk::open(dir.path()).expect("a disk"));
    let (clock, rng) = (Arc::new(RealClock), Arc::new(FastRng::from_os()));
    let host = cairn_raft_host::HostConfig::new(NodeId(1), cairn_types::DiskUuid([1; 16]));
    let raft =
        cairn_raft_host::RaftHost::start(host, clock.clone(), rng.clone(), disk, Arc::new(Nowhere)).expect("a log");
    let identity = Identity::new(ClusterId([5; 16]), PeerKind::Server, NodeId(1));
    let client = new_client(identity.clone());
    let parts = ManagerParts { raft: Arc::new(raft), client, identity, clock, rng };
    let error = ManagerServer::start(ManagerConfig::single("127.0.0.1:1"), parts).err().expect("refused");
    assert!(matches!(error, ManagerError::Log(cairn_raft_host::HostError::Missing { .. })), "{error}");
}

/// A wish that cannot come true would leave a partition half-changed for ever, or without a majority.
#[test]
fn impossible_members_of_a_partition_are_refused() {
    let managers = Managers::start(1, 3, 1);
    managers.set(&[("meta_members", "3")]);
    let _data = Node::start(&managers, 1, "data", 1);
    let mut metas: Vec<Node> = (2..=4).map(|n| Node::start(&managers, n, "meta", 0)).collect();
    eventually("the default volume", || (!managers.map().partitions.is_empty()).then_some(()));
    let members = managers.map().partitions[0].nodes.clone();
    let mut spare = Node::start(&managers, 5, "meta", 0);
    let data = managers.map().nodes.iter().find(|n| n.roles == ["data"]).expect("there").id;
    let refused = |group: u32, add: &[u32], remove: &[u32]| {
        let (add, remove) = (add.to_vec(), remove.to_vec());
        let request = ChangeMembersRequest { group, add, remove, ..ChangeMembersRequest::default() };
        managers.try_call::<Empty>(Opcode::ChangeMembers, &request).expect_err("refused").to_string()
    };
    let first = members[0];
    for (group, add, remove, wanted) in [
        (9, &[spare.id()][..], &[first][..], "there is no p9".to_owned()),
        (1, &[data], &[first], format!("n{data} is no meta node of this cluster; choose one of n{}", spare.id())),
        (1, &[members[1]], &[first], format!("n{} is a member of p1 already", members[1])),
        (1, &[spare.id()], &[spare.id()], format!("n{} is no member of p1", spare.id())),
        (1, &[spare.id()], &[], "p1 would have 4 members; it needs 1, 3 or 5".to_owned()),
        (1, &[], &members, "p1 would have 0 members".to_owned()),
        // These nodes serve no partition: nobody says that he leads.
        (1, &[spare.id()], &[first], "has no leader now".to_owned()),
    ] {
        let error = refused(group, add, remove);
        assert!(error.contains(&wanted), "{wanted}: {error}");
    }
    managers.set(&[("node_timeout", "1s")]);
    let spare_id = spare.id();
    spare.kill();
    eventually("the spare one to be marked down", || {
        beat(&mut metas);
        managers.map().nodes.iter().any(|n| n.id == spare_id && !n.up).then_some(())
    });
    let error = refused(1, &[spare_id], &[first]);
    assert!(error.contains("is down; a new member has to run"), "{error}");
    assert_eq!(managers.map().partitions[0].nodes, members);
    assert!(managers.map().partitions[0].target.is_empty());
}

/// The manager would not know which members must have a log.
#[test]
fn members_that_report_a_partition_are_remembered() {
    let managers = Managers::start(1, 1, 1);
    let _data = Node::start(&managers, 1, "data", 1);
    let meta = Node::start(&managers, 2, "meta", 0);
    eventually("the default volume", || (!managers.map().partitions.is_empty()).then_some(()));
    assert!(managers.map().partitions[0].begun.is_empty());
    let report = PartitionReport { partition: 1, ..PartitionReport::default() };
    let request = HeartbeatRequest {
        node: meta.id(),
        incarnation: meta.given.incarnation,
        partitions: vec![report],
        ..HeartbeatRequest::default()
    };
    managers.call::<HeartbeatResponse>(Opcode::Heartbeat, &request);
    eventually("it to be logged", || (managers.map().partitions[0].begun == [meta.id()]).then_some(()));
}
