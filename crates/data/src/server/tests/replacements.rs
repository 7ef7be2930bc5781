//! Another disk in the place of a member: filled from nothing, and what becomes of the one that left.

use cairn_types::MemberState::{Offline, Serving, Syncing};
use cairn_wire::manager::HeartbeatRequest;

use cairn_node_agent::Contributor;

use super::cluster::{Cluster, PG, TestNode, eventually, pattern};
use super::repairs::id;
use super::shards::RS32;
use super::stripes::Shards;

fn caught_up(cluster: &Cluster, i: usize) {
    eventually("catching up", || cluster.nodes[i].report().is_some_and(|report| report.caught_up));
}

fn count(node: &TestNode) -> usize {
    node.store().list(cairn_types::PgId(PG), 0, 100).len()
}

/// Whether the node says that nothing is left of what it had.
fn says_dropped(node: &TestNode) -> bool {
    let mut heartbeat = HeartbeatRequest::default();
    node.data.heartbeat(&mut heartbeat);
    heartbeat.pgs.iter().any(|report| report.pg == PG && report.dropped)
}

/// A copy that was made anew would lack something, the old disk would go on serving, or delete what is still needed, or
/// never delete it.
#[test]
fn a_fresh_disk_is_filled_and_the_old_one_goes() {
    let mut cluster = Cluster::start(3);
    let write = |cluster: &Cluster, chain: &[usize], seed: u64| {
        let index = cluster.allocate(0).expect("an index");
        cluster.append(0, chain, index, 0, &pattern(seed, 500_000)).expect("appended");
        cluster.sync(0, chain, index).expect("synced");
        index
    };
    let early: Vec<u32> = (0..5).map(|seed| write(&cluster, &[1, 2], seed)).collect();
    cluster.raise(&[Serving, Serving, Offline]);
    let missed = write(&cluster, &[1], 5);
    cluster.replace(2);
    cluster.raise(&[Serving, Serving, Syncing]);
    // Written while it is being filled.
    let during = write(&cluster, &[1, 2], 6);
    caught_up(&cluster, 2);
    let old = &cluster.formers[0].0;
    let kept = count(old);
    assert!(kept >= early.len(), "it keeps what it has until the others are complete");
    assert!(!says_dropped(old));
    let mark = cluster.nodes[0].store().pg_files().get(cairn_types::PgId(PG)).expect("known").high_water;
    let here = cluster.nodes[2].store().pg_files().get(cairn_types::PgId(PG)).expect("known").high_water;
    assert!(here >= mark, "an index could be given twice: {here} < {mark}");
    cluster.formers[0].1 = true;
    cluster.raise(&[Serving, Serving, Serving]);
    eventually("the old disk to delete what it had", || says_dropped(&cluster.formers[0].0));
    assert_eq!(count(&cluster.formers[0].0), 0);
    // The fresh one alone has everything.
    cluster.raise(&[Offline, Offline, Serving]);
    for (seed, index) in early.into_iter().chain([missed, during]).enumerate() {
        eventually("the seal", || cluster.nodes[2].store().info(id(index)).is_some_and(|info| info.sealed));
        let read = cluster.read(2, index, 0, 500_000).expect("read").expect("intact");
        assert!(read == pattern(seed as u64, 500_000), "chunk {index} differs");
    }
}

/// Two shards that were lost together would not both be made anew, or the wrong ones would be.
#[test]
fn two_shards_are_rebuilt_on_fresh_disks() {
    let mut cluster = Cluster::start_scheme(RS32, |_| {});
    let mut chunks = Vec::new();
    for seed in 0..3 {
        let shards = Shards::new(RS32, seed, 256 << 10);
        let index = cluster.allocate(0).expect("an index");
        shards.put(&cluster, &[0, 1, 2, 3, 4], index);
        chunks.push((index, shards));
    }
    cluster.kill(1);
    cluster.kill(4);
    cluster.raise(&[Serving, Offline, Serving, Serving, Offline]);
    cluster.replace(1);
    cluster.replace(4);
    cluster.raise(&[Serving, Syncing, Serving, Serving, Syncing]);
    caught_up(&cluster, 1);
    caught_up(&cluster, 4);
    cluster.raise(&[Serving; 5]);
    for (index, shards) in &chunks {
        for i in [1, 4] {
            shards.check_all(&cluster, i, *index);
        }
    }
}
