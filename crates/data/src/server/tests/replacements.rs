//! Another disk in the place of a member: filled from nothing, and what becomes of the one that left.

use cairn_types::MemberState::{Offline, Serving, Syncing};
use cairn_wire::manager::HeartbeatRequest;

use cairn_node_agent::Contributor;
use cairn_types::ErrorCode;

use super::super::retired::drop_chunk;
use super::cluster::{Cluster, PG, TestNode, eventually, pattern};
use super::rebuilds::damage;
use super::repairs::{free, id};
use super::shards::{ALL, RS32, UNIT};
use super::sources::{at_rest, sealed, sealed_at_rest};
use super::stripes::{Shards, read_as, read_shard};

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

fn waits_for(cluster: &Cluster, i: usize) -> String {
    cluster.nodes[i].report().map(|report| report.waits_for).unwrap_or_default()
}

/// A block that only a replaced disk still has would be given up, and the disk that has it would be told to delete it.
#[test]
fn nothing_is_given_up_while_a_replaced_disk_may_have_it() {
    let (mut cluster, index, _) =
        sealed_at_rest(|config| config.lose_after = std::time::Duration::from_millis(100), 13, 4 * UNIT);
    cluster.raise(&[Serving, Serving, Serving, Serving, Offline]);
    // With the shard of the replaced disk three of the row would be good.
    [0, 2].iter().for_each(|i| damage(&cluster, *i, index, 21));
    cluster.replace(4);
    cluster.raise(&[Serving, Serving, Serving, Serving, Syncing]);
    eventually("it waits", || waits_for(&cluster, 4).contains("2 of 3 shards"));
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert!(!cluster.nodes[4].report().is_some_and(|report| report.caught_up), "it gave up what the old disk has");
    // Nothing of it is there any more.
    let (old, _) = cluster.formers.remove(0);
    cluster.raise(&[Serving, Serving, Serving, Serving, Syncing]);
    caught_up(&cluster, 4);
    old.data.stop();
}

/// Takes a whole chunk away on one member only: as if it had lost it without noticing.
fn lose(cluster: &Cluster, i: usize, index: u32) {
    cluster.runtime.block_on(drop_chunk(&cluster.nodes[i].store(), id(index))).expect("dropped");
    eventually("the end of the chunk", || cluster.nodes[i].store().info(id(index)).is_none());
}

/// A member would count as complete without a chunk that only its primary has lost, and the replaced disk that has it
/// would be told to delete it.
#[test]
fn what_the_primary_lost_comes_from_the_other_members() {
    let mut cluster = Cluster::start(3);
    let length = 5 * 4096;
    let chunks: Vec<u32> = (0..3)
        .map(|seed| {
            let index = cluster.allocate(0).expect("an index");
            cluster.append(0, &[1, 2], index, 0, &pattern(seed, length)).expect("appended");
            cluster.seal(0, &[1, 2], index).expect("sealed");
            at_rest(&cluster, 1, index);
            index
        })
        .collect();
    cluster.raise(&[Serving, Serving, Offline]);
    lose(&cluster, 0, chunks[0]);
    lose(&cluster, 0, chunks[2]);
    // Of this one the replaced disk has the last good copy.
    damage(&cluster, 1, chunks[2], 3);
    cluster.replace(2);
    cluster.raise(&[Serving, Serving, Syncing]);
    eventually("it waits", || !waits_for(&cluster, 2).is_empty());
    let read = |cluster: &Cluster, seed: u64| {
        cluster.nodes[2]
            .store()
            .info(id(chunks[seed as usize]))
            .is_some_and(|info| info.sealed && info.length == 20_480)
    };
    assert!(read(&cluster, 0) && read(&cluster, 1), "what the others have whole is not here");
    assert!(!cluster.nodes[2].report().is_some_and(|report| report.caught_up), "the last copy would be deleted");
    // It was freed by metadata, not lost.
    assert_eq!(free(&cluster, 1, chunks[2], 0, length as u64), [0]);
    caught_up(&cluster, 2);
    cluster.raise(&[Offline, Offline, Serving]);
    for seed in 0..2 {
        let found = cluster.read(2, chunks[seed as usize], 0, length).expect("read").expect("intact");
        assert!(found == pattern(seed, length));
    }
}

/// A disk that was a member in another place would serve one shard's bytes as another's, under checksums that match; or
/// its group would be without its shard for ever, although enough others are there.
#[test]
fn a_shard_of_another_place_is_not_believed_and_gives_way() {
    let (mut cluster, index, shards) = sealed(|_| {}, 5, 4 * UNIT);
    cluster.nodes.swap(1, 2);
    // Of its own shard two others are left.
    cluster.kill(4);
    cluster.tell(&[Serving, Syncing, Serving, Serving, Serving]);
    eventually("it says so", || waits_for(&cluster, 1).contains("is shard 2, but the disk is member 1"));
    assert!(!cluster.nodes[1].report().is_some_and(|report| report.caught_up));
    let error = read_shard(&cluster, 2, index, 0, 4096).expect_err("another shard");
    assert_eq!(error.code(), Some(ErrorCode::Missing), "{error}");
    assert!(cluster.nodes[1].store().info(id(index)).is_some(), "removed what nobody can make");
    shards.check_all(&cluster, 3, index);
    cluster.restart(4);
    cluster.raise(&[Serving, Syncing, Serving, Serving, Serving]);
    caught_up(&cluster, 1);
    cluster.raise(&[Serving; 5]);
    shards.check_all(&cluster, 1, index);
}

/// A reader that goes by members of before would take one shard's bytes for another's: a disk that left came back in
/// another place.
#[test]
fn a_reader_that_means_another_shard_is_refused() {
    let cluster = Cluster::start_scheme(RS32, |_| {});
    let index = cluster.allocate(0).expect("an index");
    let shards = Shards::new(RS32, 6, 4 * UNIT);
    shards.put(&cluster, &ALL, index);
    for i in ALL {
        for shard in 0..5 {
            let answer = read_as(&cluster, i, shard as u32 + 1, index, 0, 4096);
            match shard == i {
                true => drop(answer.expect("its own shard")),
                false => assert_eq!(answer.expect_err("another's").code(), Some(ErrorCode::NotServing)),
            }
        }
    }
}

/// What came while a member caught up would stay away from it if another epoch begins before it has looked.
#[test]
fn a_member_looks_again_in_later_epochs_too() {
    let mut cluster = Cluster::start_scheme(RS32, |_| {});
    let index = cluster.allocate(0).expect("an index");
    let shards = Shards::new(RS32, 7, 4 * UNIT);
    shards.put(&cluster, &ALL, index);
    cluster.raise(&[Serving, Serving, Serving, Serving, Syncing]);
    caught_up(&cluster, 4);
    // Too few say what they have.
    cluster.kill(2);
    cluster.kill(3);
    cluster.tell(&[Serving; 5]);
    let serves = |cluster: &Cluster| read_shard(cluster, 4, index, 0, 4096).is_ok();
    eventually("it serves", || serves(&cluster));
    lose(&cluster, 4, index);
    cluster.restart(2);
    cluster.restart(3);
    cluster.raise(&[Serving; 5]);
    // Nobody reads, which would bring it back as well.
    let has_all = || cluster.nodes[4].store().info(id(index)).is_some_and(|info| info.sealed);
    eventually("it looks again", has_all);
    shards.check_all(&cluster, 4, index);
}
