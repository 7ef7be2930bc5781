//! Members that die, stall, or should never have been started.

use std::time::{Duration, Instant};

use cairn_node_agent::Contributor;
use cairn_types::ErrorCode;
use cairn_types::MemberState::{Offline, Serving};
use cairn_types::{ClusterId, NodeId};
use cairn_wire::manager::{ClusterMap, HeartbeatRequest, Node};

use super::cluster::{CLUSTER, Cluster, PATIENCE, config, env, eventually, pattern};
use super::repairs::id;
use crate::DataServer;

fn failed_disk(error: &cairn_rpc::CallError) -> Option<u32> {
    match error {
        cairn_rpc::CallError::Remote(error) => error.failed_disk,
        _ => None,
    }
}

/// A dead member would stop writing for good, or acknowledged bytes would be lost with it.
#[test]
fn writing_goes_on_past_a_dead_member() {
    let mut cluster = Cluster::start(3);
    let index = cluster.allocate(0).expect("an index");
    let acknowledged = pattern(1, 500_000);
    cluster.append(0, &[1, 2], index, 0, &acknowledged).expect("appended");
    cluster.sync(0, &[1, 2], index).expect("synced");
    cluster.kill(2);
    let at = 500_000usize.next_multiple_of(4096) as u64;
    let error = cluster.append(0, &[1, 2], index, at, &pattern(2, 100_000)).expect_err("the last member is dead");
    assert_eq!((error.code(), failed_disk(&error)), (Some(ErrorCode::ChainFailed), Some(103)), "{error}");
    // The member before it tells the manager.
    let mut heartbeat = HeartbeatRequest::default();
    cluster.nodes[1].data.heartbeat(&mut heartbeat);
    assert!(heartbeat.suspects.iter().any(|suspect| suspect.disk == 103), "{:?}", heartbeat.suspects);
    cluster.raise(&[Serving, Serving, Offline]);
    let second = cluster.allocate(0).expect("an index");
    cluster.append(0, &[1], second, 0, &pattern(3, 70_000)).expect("two members do");
    cluster.sync(0, &[1], second).expect("synced");
    for i in 0..2 {
        eventually("the seal", || cluster.nodes[i].store().info(id(index)).is_some_and(|chunk| chunk.sealed));
        assert_eq!(cluster.read(i, index, 0, 500_000).expect("read").expect("intact"), acknowledged);
        assert_eq!(cluster.read(i, second, 0, 70_000).expect("read").expect("intact"), pattern(3, 70_000));
    }
    let below = {
        cluster.kill(1);
        cluster.tell(&[Serving, Offline, Offline]);
        let entered = || cluster.allocate(0).expect_err("one of three is too few");
        eventually("the epoch", || entered().code() != Some(ErrorCode::StaleEpoch));
        entered()
    };
    assert!(matches!(below.code(), Some(ErrorCode::BelowMinimum | ErrorCode::NotServing)), "{below}");
}

/// A member that stalls would hold its writers for as long as it likes.
#[test]
fn a_stalled_member_is_named_within_the_deadline() {
    let cluster = Cluster::start_tuned(3, |config| config.hop_deadline = Duration::from_millis(600));
    let index = cluster.allocate(0).expect("an index");
    // A busy machine may need longer once.
    eventually("an append", || cluster.append(0, &[1, 2], index, 0, &pattern(1, 5000)).is_ok());
    // The address of the last member now leads to somebody who accepts and never says a word.
    let hole = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = hole.local_addr().expect("an address").to_string();
    let map = ClusterMap { nodes: vec![Node { id: 18, address, ..Node::default() }], ..ClusterMap::default() };
    cluster.nodes.iter().for_each(|node| node.data.map_changed(&map, 1));
    let started = Instant::now();
    let error = cluster.append(0, &[1, 2], index, 8192, &pattern(2, 5000)).expect_err("stalled");
    assert_eq!((error.code(), failed_disk(&error)), (Some(ErrorCode::ChainFailed), Some(103)), "{error}");
    assert!(started.elapsed() < PATIENCE / 2, "{:?}", started.elapsed());
}

/// A disk of another cluster, one that somebody works in, or one that is damaged would be written to, or would keep the
/// node's good disks from serving.
#[test]
fn bad_disks_are_quarantined_by_name() {
    let dirs: Vec<_> = (0..4).map(|_| tempfile::tempdir().expect("a directory")).collect();
    let start = |which: &[usize], cluster| {
        let paths: Vec<_> = which.iter().map(|i| dirs[*i].path()).collect();
        DataServer::start(config(&paths), env(cluster).0)
    };
    // The first belongs to another cluster, the second to a process that runs, the third has no label but a file.
    start(&[0], ClusterId([9; 16])).expect("its own cluster").stop();
    let holder = start(&[1], CLUSTER).expect("alone on it");
    std::fs::write(dirs[2].path().join("photo.jpg"), b"x").expect("written");
    let server = start(&[0, 1, 2, 3], CLUSTER).expect("the good one is enough");
    let health = server.health().expect_err("three problems");
    for (i, word) in [(0, "belongs to cluster"), (1, "in use"), (2, "photo.jpg")] {
        assert!(health.contains(word) && health.contains(dirs[i].path().to_str().expect("text")), "{health}");
    }
    // The manager does not know them, and would call the cluster healthy.
    let mut heartbeat = HeartbeatRequest { problem: "another".into(), ..HeartbeatRequest::default() };
    server.heartbeat(&mut heartbeat);
    let told = ["another; it goes on without", "belongs to cluster", "in use", "photo.jpg"];
    assert!(told.iter().all(|word| heartbeat.problem.contains(word)), "{}", heartbeat.problem);
    assert!(!health.contains(dirs[3].path().to_str().expect("text")), "{health}");
    let good: Vec<_> =
        server.disks().into_iter().filter(|report| report.health == 0).map(|report| report.path).collect();
    assert_eq!(good, [dirs[3].path().to_str().expect("text")]);
    drop(holder);
    server.stop();
}

/// Disks of two nodes in one configuration would answer for one another.
#[test]
fn disks_of_two_nodes_are_refused() {
    let dirs: Vec<_> = (0..2).map(|_| tempfile::tempdir().expect("a directory")).collect();
    for (i, dir) in dirs.iter().enumerate() {
        let server = DataServer::start(config(&[dir.path()]), env(CLUSTER).0).expect("a server");
        let uuid = server.inner.slots[0].uuid();
        let registration = cairn_node_agent::Registration {
            node: NodeId(20 + i as u32),
            cluster: CLUSTER,
            incarnation: cairn_types::Incarnation(1),
            term: 1,
            disks: vec![(uuid, cairn_types::DiskId(200 + i as u32))],
            problems: Vec::new(),
        };
        server.registered(&registration).expect("registered");
        server.stop();
    }
    let both = DataServer::start(config(&[dirs[0].path(), dirs[1].path()]), env(CLUSTER).0);
    let error = both.err().expect("refused").to_string();
    assert!(error.contains("n20") && error.contains("n21"), "{error}");
}
