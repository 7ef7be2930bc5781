//! Defragmentation: a data node is asked to write fragmented files anew, and nothing else.

use std::sync::atomic::Ordering;
use std::time::Duration;

use cairn_wire::data::DefragmentRequest;

use super::fixture::{Cluster, DataNode, VOLUME, eventually, quick};
use crate::MetaTimings;

const WRITER: u64 = 9;
/// Of files without holes, a block an extent: more than they may have, and fewer.
const MANY: u32 = 100;
const FEW: u32 = 60;

fn timings() -> MetaTimings {
    MetaTimings {
        defragment_tick: Duration::from_millis(10),
        defragment_first_walk: Duration::from_secs(3600),
        defragment_retry: Duration::from_millis(10),
        ..quick()
    }
}

fn asked_for(inode: u64, from: u64) -> DefragmentRequest {
    DefragmentRequest { volume: VOLUME, inode, from, extent_bytes: 64 << 10 }
}

/// What it was asked when it was asked something.
fn requests(data: &DataNode, count: usize) -> Vec<DefragmentRequest> {
    let mut all = Vec::new();
    eventually("requests", || {
        all.extend(data.take_defragmented());
        all.len() >= count
    });
    all
}

/// Fragmented files would stay so, or others be looked at; a node that refuses would keep a file from being written
/// anew.
#[test]
fn files_beyond_their_bound_are_written_anew_from_front_to_back() {
    let data: Vec<DataNode> = (0..2).map(|_| DataNode::start()).collect();
    let mut cluster = Cluster::with(1, timings(), |config| config);
    cluster.add_pg(&data.iter().collect::<Vec<_>>());
    let mut writer = cluster.caller(WRITER);
    writer.create_with_chunks("few", FEW);
    let many = writer.create_with_chunks("many", MANY);
    assert_eq!(requests(&data[0], 2), [asked_for(many, 0), asked_for(many, 512 << 10)]);
    let files = || cluster.meta(0).stats().defragmented_files.load(Ordering::SeqCst);
    eventually("the end", || files() == 1);
    // Nothing came of it: it is not tried for ever.
    let other = writer.create_with_chunks("other", MANY);
    data[0].refuse(true);
    assert_eq!(requests(&data[1], 2), [asked_for(other, 0), asked_for(other, 512 << 10)]);
    eventually("the end of the other", || files() == 2);
    assert_eq!(data[0].take_defragmented(), []);
    // Nobody takes it; then somebody does.
    data[1].refuse(true);
    let third = writer.create_with_chunks("third", MANY);
    let waiting = || {
        let partitions = cluster.meta(0).partitions();
        let partitions = partitions.read();
        partitions.values().map(|partition| partition.state.fragmented.load(Ordering::SeqCst)).sum::<u64>()
    };
    eventually("a file that waits", || waiting() == 1);
    data[1].refuse(false);
    assert_eq!(requests(&data[1], 2), [asked_for(third, 0), asked_for(third, 512 << 10)]);
    eventually("none", || waiting() == 0);
    // Switched off.
    cluster.meta(0).common().extent_bytes.store(0, Ordering::SeqCst);
    writer.create_with_chunks("fourth", MANY);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!((data[1].take_defragmented(), waiting()), (vec![], 0));
}

/// A file that nobody noted when it grew, because the leader was started again or the setting was another one, would
/// never be found.
#[test]
fn a_walk_finds_files_that_nobody_noted() {
    let data = DataNode::start();
    let timings =
        MetaTimings { defragment_first_walk: Duration::ZERO, defragment_walk: Duration::from_millis(50), ..timings() };
    let mut cluster = Cluster::with(1, timings, |config| config);
    cluster.add_pg(&[&data]);
    cluster.meta(0).common().extent_bytes.store(4096, Ordering::SeqCst);
    let mut writer = cluster.caller(WRITER);
    writer.create_with_chunks("few", FEW);
    let many = writer.create_with_chunks("many", MANY);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(data.take_defragmented(), []);
    cluster.meta(0).common().extent_bytes.store(64 << 10, Ordering::SeqCst);
    let asked = requests(&data, 2);
    assert!(asked.iter().all(|asked| asked.inode == many), "{asked:?}");
}
