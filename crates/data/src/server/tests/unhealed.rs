//! Blocks that nobody has intact: they are known and told until they are gone, over a restart as well.

use cairn_node_agent::Contributor;
use cairn_rpc::Payload;
use cairn_wire::Opcode;
use cairn_wire::data::{BadBlocksRequest, BadBlocksResponse};
use cairn_wire::manager::{HeartbeatRequest, UnhealedBlocks};

use super::cluster::{Cluster, PG, eventually, pattern};
use super::rebuilds::{damage, free_all, report};
use super::repairs::id;
use super::sources::at_rest;

/// Index and blocks of each chunk that a member names.
fn listed(cluster: &Cluster, i: usize) -> Vec<(u32, Vec<u32>)> {
    let answer: BadBlocksResponse =
        cluster.call(i, Opcode::BadBlocks, &BadBlocksRequest {}, Payload::None).expect("answered").0;
    assert!(!answer.more);
    answer.chunks.into_iter().map(|chunk| (chunk.index, chunk.blocks)).collect()
}

fn told(cluster: &Cluster, i: usize) -> Vec<UnhealedBlocks> {
    let mut heartbeat = HeartbeatRequest::default();
    cluster.nodes[i].data.heartbeat(&mut heartbeat);
    heartbeat.unhealed
}

/// A block that is lost would look as if it were there until somebody reads it, or for ever as if it were lost.
#[test]
fn what_cannot_be_healed_is_known_until_it_is_gone() {
    let mut cluster = Cluster::start(3);
    let index = cluster.allocate(0).expect("an index");
    cluster.append(0, &[1, 2], index, 0, &pattern(7, 300_000)).expect("appended");
    cluster.sync(0, &[1, 2], index).expect("synced");
    cluster.seal(0, &[1, 2], index).expect("sealed");
    for i in 0..3 {
        at_rest(&cluster, i, index);
        damage(&cluster, i, index, 9);
    }
    damage(&cluster, 1, index, 30);
    report(&cluster, 1, index, 30).expect("healed");
    assert!(report(&cluster, 1, index, 9).is_err(), "nobody has it");
    // The others are told when their blocks turn out to be bad as well.
    for i in 0..3 {
        eventually("the block to be listed", || listed(&cluster, i) == [(index, vec![9])]);
        let disk = cluster.nodes[i].disk;
        assert_eq!(told(&cluster, i), [UnhealedBlocks { disk, pg: PG, blocks: 1, more: false }]);
    }
    let kept = |cluster: &Cluster, i: usize| cluster.nodes[i].store().read_bad_blocks();
    eventually("the list to be kept", || kept(&cluster, 1) == [(id(index), 9)]);
    // One that is tried again and again is no sign of a device that loses more and more.
    (0..3).for_each(|_| assert!(report(&cluster, 1, index, 9).is_err()));
    let store = cluster.nodes[1].store();
    let count = |counter: &std::sync::atomic::AtomicU64| counter.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(count(&store.metrics().bad_blocks), 2, "{} reads", count(&store.metrics().crc_errors));
    drop(store);
    cluster.kill(1);
    cluster.restart(1);
    assert_eq!(listed(&cluster, 1), [(index, vec![9])], "known again after the restart");
    for i in 0..3 {
        free_all(&cluster, i, index, 8 * 4096, 4 * 4096);
    }
    for i in 0..3 {
        eventually("the block to be forgotten", || listed(&cluster, i).is_empty() && told(&cluster, i).is_empty());
        eventually("the list to be kept", || kept(&cluster, i).is_empty());
    }
}
