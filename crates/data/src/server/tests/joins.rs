//! A disk joins an erasure group in the place of a member that leaves.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use cairn_types::MemberState::Serving;
use cairn_types::{DiskId, PgId};

use super::super::leaver::Way;
use super::super::rebuild::Rebuild;
use super::cluster::{Cluster, PG, TestNode, eventually};
use super::rebuilds::damage;
use super::repairs::id;
use super::shards::{ALL, RS32, UNIT};
use super::sources::{at_rest, put_sealed};
use super::stripes::Shards;

fn caught_up(cluster: &Cluster, i: usize) {
    eventually("catching up", || cluster.nodes[i].report().is_some_and(|report| report.caught_up));
}

/// A sealed chunk on all members, at rest.
fn sealed(cluster: &Cluster, seed: u64, length: usize) -> (u32, Shards) {
    let (index, shards) = put_sealed(cluster, seed, length);
    ALL.iter().for_each(|i| at_rest(cluster, *i, index));
    (index, shards)
}

/// The disk that joined, which is the last node, has the place.
fn promote(cluster: &mut Cluster, position: usize) {
    let joined = cluster.nodes.pop().expect("it joined");
    let left = std::mem::replace(&mut cluster.nodes[position], joined);
    cluster.formers.push((left, false));
    cluster.raise(&[Serving; 5]);
}

/// A disk that works would be emptied by reading k others, or one that is slow, damaged or gone would hold its own
/// drain up.
#[test]
fn who_joins_copies_from_who_leaves_or_makes_it_of_the_others() {
    for position in [1, 4] {
        let mut cluster = Cluster::start_scheme(RS32, |_| {});
        let all: Vec<(u32, Shards)> = (0..6)
            .map(|seed| {
                let index = cluster.allocate(0).expect("an index");
                let shards = Shards::new(RS32, seed, 10 * UNIT);
                shards.put(&cluster, &ALL, index);
                cluster.seal(position, &[], index).expect("sealed");
                (index, shards)
            })
            .collect();
        for (index, _) in &all {
            at_rest(&cluster, position, *index);
        }
        // What is bad there comes from the others.
        damage(&cluster, position, all[5].0, 3);
        cluster.join(position);
        caught_up(&cluster, 5);
        let counts = |node: &TestNode| {
            let store = node.store();
            let metrics = store.metrics();
            (metrics.catch_up_bytes.load(Relaxed), metrics.rebuilt_bytes.load(Relaxed))
        };
        let (brought, made) = counts(&cluster.nodes[5]);
        assert_eq!(brought, 60 * UNIT as u64, "position {position}");
        assert!(made > 0 && made < brought, "position {position}: {made} of {brought} bytes were made anew");
        // It is what it was, also when it is read as the member that it becomes.
        promote(&mut cluster, position);
        for (index, shards) in &all {
            shards.check_all(&cluster, position, *index);
        }
    }
}

/// A member that leaves and is lost on the way would keep its successor waiting.
#[test]
fn who_leaves_may_be_gone() {
    let mut cluster = Cluster::start_scheme(RS32, |_| {});
    let index = cluster.allocate(0).expect("an index");
    let shards = Shards::new(RS32, 1, 20 * UNIT);
    shards.put(&cluster, &ALL, index);
    cluster.kill(2);
    cluster.join(2);
    caught_up(&cluster, 5);
    let made = cluster.nodes[5].store().metrics().rebuilt_bytes.load(Relaxed);
    assert_eq!(made, 20 * UNIT as u64);
}

/// What the others cannot make any more would be called lost, and its files deleted, although the member that leaves
/// has it: because making it was the faster way before, or because another block is bad there.
#[test]
fn what_the_others_lack_comes_from_who_leaves() {
    let mut cluster = Cluster::start_scheme(RS32, |_| {});
    let (index, shards) = sealed(&cluster, 1, 10 * UNIT);
    cluster.join(1);
    caught_up(&cluster, 5);
    for i in [0, 2] {
        damage(&cluster, i, index, 21);
    }
    damage(&cluster, 1, index, 5);
    let (disk, inner) = (cluster.nodes[5].disk, cluster.nodes[5].data.inner.clone());
    for way in [Way::Make, Way::Copy] {
        let member = inner.member(disk, PG, 0).expect("it joins");
        {
            let runtime = inner.runtime(DiskId(disk), PgId(PG));
            let mut state = runtime.state.lock();
            let other = if way == Way::Make { Way::Copy } else { Way::Make };
            (0..64).for_each(|_| state.ways.took(other, Duration::from_secs(9), 1));
            (0..64).for_each(|_| state.ways.took(way, Duration::from_micros(9), 1));
        }
        let made = member.store.chunk(id(index)).expect("here").creation_epoch();
        let job = std::sync::Arc::new(Rebuild::new(&member, id(index), made).expect("a job"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let rebuilt = runtime.block_on(inner.rebuild(&job, 0..40)).unwrap_or_else(|error| panic!("{way:?}: {error}"));
        assert!(rebuilt.data[..] == shards.bytes[1][..40 * 4096] && rebuilt.lost.is_empty(), "{way:?}");
    }
}

/// A parity shard whose checksums of rows have become others on the disk that leaves would be copied with them, under a
/// sum that matches: nobody would find it, and no row be decoded with it any more.
#[test]
fn damaged_checksums_of_rows_are_not_copied() {
    use cairn_format::chunk_header::table_offset;
    use std::os::unix::fs::FileExt;
    let mut cluster = Cluster::start_scheme(RS32, |_| {});
    let (index, shards) = sealed(&cluster, 1, 10 * UNIT);
    let path = cluster.nodes[4].file(index);
    cluster.restart_with(4, |_| {
        let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).expect("a file");
        file.write_all_at(&[0xab; 4], table_offset(2) + 7 * 4).expect("written");
    });
    cluster.raise(&[Serving; 5]);
    cluster.join(4);
    caught_up(&cluster, 5);
    promote(&mut cluster, 4);
    shards.check_all(&cluster, 4, index);
}

/// A disk with a block that is lost for good could never be emptied: nobody has that block, and what leaves has not got
/// it either.
#[test]
fn a_block_that_is_lost_for_good_does_not_hold_a_drain_up() {
    let mut cluster = Cluster::start_scheme(RS32, |config| config.lose_after = Duration::from_millis(300));
    let (index, shards) = sealed(&cluster, 1, 10 * UNIT);
    // The member that leaves still has one of these.
    for i in [0, 2, 3] {
        damage(&cluster, i, index, 30);
    }
    for i in [0, 1, 2] {
        damage(&cluster, i, index, 21);
    }
    cluster.join(1);
    caught_up(&cluster, 5);
    promote(&mut cluster, 1);
    assert_eq!(cluster.nodes[1].store().verify_block(id(index), 21), Ok(false), "it is lost, and never anything else");
    shards.check(&cluster, 1, index, 0, 21 * 4096);
    shards.check(&cluster, 1, index, 22 * 4096, 10 * UNIT);
}
