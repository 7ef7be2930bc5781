//! Members that lack what others list: they look for it until it is there, and say so meanwhile.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use cairn_node_agent::Contributor;
use cairn_rpc::Payload;
use cairn_types::MemberState::{Offline, Serving};
use cairn_types::Scheme;
use cairn_wire::Opcode;
use cairn_wire::data::{ListDigestsRequest, ListDigestsResponse};
use cairn_wire::manager::{HeartbeatRequest, MissingChunks};

use super::cluster::{Cluster, PG, eventually, pattern};
use super::repairs::{free, id};
use super::restores::remove;
use super::shards::UNIT;
use super::sources::sealed;

const BYTES: usize = 300_000;

/// Nothing but what the start found is looked for.
fn by_itself(config: &mut crate::DataConfig) {
    config.restore_delay = Duration::from_millis(50);
    config.restore_again = Duration::from_millis(200);
    config.compare_every = Duration::from_secs(3600);
}

/// Lists are compared all the time.
fn compared(config: &mut crate::DataConfig) {
    by_itself(config);
    config.look_after = Duration::from_millis(100);
    config.compare_every = Duration::from_millis(100);
}

fn damage_header(dir: &Path, index: u32) {
    let path = dir.join(format!("pg/{PG}/{index:010}.chunk"));
    let file = std::fs::OpenOptions::new().write(true).open(path).expect("there");
    file.write_all_at(&[0x5a; 64], 0).expect("written");
}

fn one_chunk(count: usize, tune: super::cluster::Tune) -> (Cluster, u32, Vec<u8>) {
    let cluster = Cluster::start_tuned(count, tune);
    let index = cluster.allocate(0).expect("an index");
    let bytes = pattern(1, BYTES);
    let chain: Vec<usize> = (1..count).collect();
    cluster.append(0, &chain, index, 0, &bytes).expect("appended");
    cluster.seal(0, &chain, index).expect("sealed");
    (0..count).for_each(|i| cluster.nodes[i].store().checkpoint());
    (cluster, index, bytes)
}

fn told(cluster: &Cluster, i: usize) -> Vec<MissingChunks> {
    let mut heartbeat = HeartbeatRequest::default();
    cluster.nodes[i].data.heartbeat(&mut heartbeat);
    heartbeat.missing
}

fn is_back(cluster: &Cluster, i: usize, index: u32, bytes: &[u8]) {
    eventually("the chunk is back", || cluster.nodes[i].store().info(id(index)).is_some_and(|info| info.sealed));
    assert!(cluster.read(i, index, 0, BYTES).expect("read").expect("intact") == bytes, "of node {i}");
    eventually("nothing is told any more", || told(cluster, i).is_empty());
}

fn mark(cluster: &Cluster, i: usize, index: u32) -> std::path::PathBuf {
    cluster.nodes[i].file(index).with_extension("lost")
}

/// The same chunk is damaged on two of three members, and the third is not there yet when they look for it: they would
/// never look again, and one more loss would be the last.
#[test]
fn what_two_of_three_lost_is_looked_for_until_the_third_is_there() {
    let (mut cluster, index, bytes) = one_chunk(3, by_itself);
    for i in [0, 1] {
        cluster.restart_with(i, |dir| damage_header(dir, index));
    }
    cluster.raise(&[Serving, Serving, Offline]);
    for i in [0, 1] {
        eventually("two attempts in vain", || {
            let disk = cairn_types::DiskId(cluster.nodes[i].disk);
            cluster.nodes[i].data.inner.missing.lock().tries(disk, id(index)) >= 2
        });
        let said = told(&cluster, i);
        assert_eq!((said.len(), said[0].chunks, said[0].lost), (1, 1, 0), "the third one may have it");
        assert!(mark(&cluster, i, index).exists(), "the next start would know nothing of it");
    }
    // A restart in between forgets nothing.
    cluster.restart(1);
    cluster.raise(&[Serving, Serving, Offline]);
    assert_eq!(told(&cluster, 1)[0].chunks, 1);
    cluster.raise(&[Serving; 3]);
    for i in 0..3 {
        is_back(&cluster, i, index, &bytes);
        eventually("the mark is gone", || !mark(&cluster, i, index).exists());
    }
}

/// A file vanished without a trace while its node was down, and nobody reads it: only a check of the volume would know.
#[test]
fn what_nobody_reads_is_missed_all_the_same() {
    let (mut cluster, index, bytes) = one_chunk(3, compared);
    cluster.restart_with(1, |dir| remove(dir, index));
    cluster.raise(&[Serving; 3]);
    is_back(&cluster, 1, index, &bytes);
    // Long after the start as well: a member looks again and again.
    cluster.restart_with(2, |dir| remove(dir, index));
    cluster.raise(&[Serving, Serving, Offline]);
    std::thread::sleep(Duration::from_millis(300));
    cluster.raise(&[Serving; 3]);
    is_back(&cluster, 2, index, &bytes);
}

/// One of two copies ended at less than was acknowledged, because its disk had forgotten a sync. The rest would be on
/// the other one alone, and be lost with it (seed 803575).
#[test]
fn a_sealed_copy_that_is_shorter_than_another_one_is_made_longer() {
    const SHORT: usize = 49 * 4096;
    let mut cluster = Cluster::start_tuned(2, compared);
    let index = cluster.allocate(0).expect("an index");
    let bytes = pattern(1, BYTES);
    cluster.append(0, &[1], index, 0, &bytes[..SHORT]).expect("appended");
    cluster.append(1, &[], index, SHORT as u64, &bytes[SHORT..]).expect("as from the primary");
    for i in [0, 1] {
        cluster.seal(i, &[], index).expect("sealed");
        cluster.nodes[i].store().checkpoint();
    }
    assert_eq!(cluster.nodes[0].store().info(id(index)).map(|info| info.length), Some(SHORT as u64));
    cluster.raise(&[Serving; 2]);
    let length = || cluster.nodes[0].store().info(id(index)).map(|info| info.length);
    eventually("the rest", || length() == Some(BYTES as u64));
    is_back(&cluster, 0, index, &bytes);
}

/// The same in an erasure group.
#[test]
fn shards_that_nobody_reads_are_missed_all_the_same() {
    let (mut cluster, index, shards) = sealed(compared, 1, 6 * UNIT);
    for i in [1, 4] {
        cluster.restart_with(i, |dir| remove(dir, index));
    }
    cluster.raise(&[Serving; 5]);
    for i in [1, 4] {
        eventually("the shard is back", || {
            cluster.nodes[i].store().info(id(index)).is_some_and(|info| info.sealed && info.length == 6 * UNIT as u64)
        });
        shards.check_all(&cluster, i, index);
    }
}

/// What nobody has would be called missing as if it came back; or lost for ever, when nobody needs it any more.
#[test]
fn what_nobody_has_is_lost_until_it_is_freed() {
    for count in [1, 2] {
        let (mut cluster, index, _) = one_chunk(count, by_itself);
        (0..count).for_each(|i| cluster.restart_with(i, |dir| damage_header(dir, index)));
        cluster.raise(&vec![Serving; count]);
        for i in 0..count {
            eventually("it is lost", || told(&cluster, i).first().is_some_and(|said| said.lost == 1));
        }
        (0..count).for_each(|i| cluster.restart(i));
        cluster.raise(&vec![Serving; count]);
        for i in 0..count {
            eventually("it is lost", || told(&cluster, i).first().is_some_and(|said| said.lost == 1));
            eventually("the free", || free(&cluster, i, index, 0, BYTES as u64) == [0]);
            assert!(told(&cluster, i).is_empty());
            eventually("the mark is gone", || !mark(&cluster, i, index).exists());
        }
    }
}

/// The files of a chunk vanished from all members at once: the status would be healthy although everybody was told that
/// the bytes are gone.
#[test]
fn what_vanished_everywhere_is_lost_when_somebody_names_it() {
    let (mut cluster, index, _) = one_chunk(3, by_itself);
    (0..3).for_each(|i| cluster.restart_with(i, |dir| remove(dir, index)));
    cluster.raise(&[Serving; 3]);
    for i in 0..3 {
        assert!(told(&cluster, i).is_empty(), "nobody knows of it");
        cluster.read(i, index, 0, 100).expect_err("it is not there");
    }
    for i in 0..3 {
        eventually("it is lost", || told(&cluster, i).first().is_some_and(|said| (said.chunks, said.lost) == (1, 1)));
    }
    std::thread::sleep(Duration::from_millis(500));
    for i in 0..3 {
        assert_eq!(told(&cluster, i).first().map(|said| said.lost), Some(1), "further looks change nothing");
        eventually("the free", || free(&cluster, i, index, 0, BYTES as u64) == [0]);
        assert!(told(&cluster, i).is_empty());
    }
}

/// A client would be refused for minutes while nobody else hears of it.
#[test]
fn what_clients_are_refused_for_is_told_with_heartbeats() {
    let mut cluster = Cluster::start_tuned(3, by_itself);
    let refused = |cluster: &Cluster| {
        let mut heartbeat = HeartbeatRequest::default();
        cluster.nodes[0].data.heartbeat(&mut heartbeat);
        heartbeat.refused
    };
    let epoch = cluster.epoch;
    // The client goes by an epoch of which the members know nothing.
    cluster.epoch += 5;
    eventually("it is told", || {
        cluster.allocate(0).expect_err("nobody is in that epoch");
        !refused(&cluster).is_empty()
    });
    let told = refused(&cluster);
    assert_eq!((told.len(), told[0].pg, told[0].disk), (1, PG, cluster.nodes[0].disk));
    assert!(told[0].writes && told[0].epoch == epoch && told[0].text.contains("e6"), "{told:?}");
    cluster.epoch = epoch;
    cluster.allocate(0).expect("served");
    assert!(refused(&cluster).is_empty());
}

/// Members would compare something else than what they have.
#[test]
fn digests_are_equal_where_lists_are() {
    let (mut cluster, index, _) = one_chunk(3, by_itself);
    let digests = |cluster: &Cluster, i: usize, from_index: u32| {
        let request = ListDigestsRequest { disk: cluster.nodes[i].disk, pg: PG, from_index };
        cluster.call::<ListDigestsResponse>(i, Opcode::ListDigests, &request, Payload::None).map(|answer| answer.0)
    };
    let first = digests(&cluster, 0, 0).expect("told");
    assert_eq!((first.ranges.len(), first.next_index, first.ranges[0].chunks), (1, 0, 1));
    assert!([1, 2].iter().all(|i| digests(&cluster, *i, 0).expect("told") == first));
    assert!(digests(&cluster, 0, 1024).expect("told").ranges.is_empty());
    assert!(digests(&cluster, 0, 5).is_err());
    cluster.restart_with(1, |dir| remove(dir, index));
    cluster.raise(&[Serving; 3]);
    assert!(digests(&cluster, 1, 0).expect("told").ranges.is_empty());
    assert_eq!(cluster.scheme, Scheme::Replicated(3));
}
