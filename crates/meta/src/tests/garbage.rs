//! Garbage collection: what dead writers left is freed, what a writer may yet publish is not.

use std::sync::atomic::Ordering;
use std::time::Duration;

use cairn_wire::Opcode;
use cairn_wire::common::Empty;
use cairn_wire::data::ChunkSummary;
use cairn_wire::meta::{DiscardRequest, EndSessionRequest};

use super::fixture::{Caller, Cluster, DataNode, eventually, quick};
use crate::MetaTimings;

const WRITER: u64 = 9;

fn timings() -> MetaTimings {
    MetaTimings {
        garbage_period: Duration::from_millis(20),
        garbage_grace: Duration::from_millis(500),
        unknown_grace: Duration::from_millis(900),
        ..quick()
    }
}

/// A sealed chunk of so many blocks that nobody appended to for a second.
fn chunk(index: u32, session: u64, blocks: u64) -> ChunkSummary {
    let length = blocks * 4096;
    ChunkSummary { index, length, durable_length: length, sealed: true, session, idle_ms: 1000, ..Default::default() }
}

fn passes(cluster: &Cluster) -> u64 {
    cluster.meta(0).stats().garbage_passes.load(Ordering::SeqCst)
}

fn two_passes(cluster: &Cluster) {
    let before = passes(cluster);
    eventually("passes", || passes(cluster) >= before + 2);
}

fn end(caller: &mut Caller) {
    let request = EndSessionRequest { header: Some(caller.read_header()) };
    let _: Empty = caller.call(Opcode::EndSession, &request).expect("ended");
}

/// Space of writers that died would be lost for ever; what files name, or a living writer may publish, would be freed.
#[test]
fn what_dead_writers_left_is_freed_on_all_members() {
    let data: Vec<DataNode> = (0..3).map(|_| DataNode::start()).collect();
    let mut cluster = Cluster::with(1, timings(), |config| config);
    cluster.add_pg(&data.iter().collect::<Vec<_>>());
    let mut writer = cluster.caller(WRITER);
    let mut other = cluster.caller(10);
    other.create("of another").expect("created");
    // Names the first block of chunks 0 to 4.
    writer.create_with_chunks("named", 5);
    let partly_freed = ChunkSummary { punched_blocks: 3, used: vec![0, 1, 4, 2], ..chunk(3, WRITER, 6) };
    let unreadable = ChunkSummary { punched_blocks: 3, ..chunk(4, WRITER, 6) };
    let open = ChunkSummary { sealed: false, ..chunk(5, WRITER, 6) };
    let busy = ChunkSummary { idle_ms: 100, ..chunk(6, WRITER, 6) };
    let all = vec![
        chunk(0, WRITER, 1),
        chunk(1, WRITER, 4),
        partly_freed,
        unreadable,
        open,
        busy,
        chunk(7, WRITER, 2),
        chunk(8, 10, 9),
    ];
    // One member lacks some, another has more of one.
    data[0].set_chunks(all.clone());
    data[1].set_chunks(all[..2].to_vec());
    data[2].set_chunks(vec![chunk(1, WRITER, 5), chunk(7, WRITER, 2)]);
    two_passes(&cluster);
    assert_eq!(data[0].freed_ranges(), [], "both writers live");
    end(&mut writer);
    let expected = [(1, 4096, 4 * 4096), (3, 4 * 4096, 2 * 4096), (7, 0, 2 * 4096)];
    for node in &data {
        eventually("what was left", || node.freed_ranges() == expected);
    }
    // What the nodes have freed they list as freed.
    data.iter().for_each(|node| {
        node.set_chunks(vec![
            chunk(0, WRITER, 1),
            ChunkSummary { punched_blocks: 3, used: vec![0, 1], ..chunk(3, WRITER, 4) },
        ])
    });
    two_passes(&cluster);
    let blocks = cluster.meta(0).stats().garbage_blocks.load(Ordering::SeqCst);
    two_passes(&cluster);
    assert_eq!(cluster.meta(0).stats().garbage_blocks.load(Ordering::SeqCst), blocks, "found once");
}

/// A writer that died before it named anything is not known here: its space would be lost for ever. One that has made
/// itself known would be ended in the middle of its work.
#[test]
fn a_writer_that_never_made_itself_known_is_ended() {
    let data = DataNode::start();
    let mut cluster = Cluster::with(1, timings(), |config| config);
    cluster.add_pg(&[&data]);
    let mut known = cluster.caller(8);
    let announcement = DiscardRequest { header: Some(known.header()), written_by: 8, ..Default::default() };
    let _: Empty = known.call(Opcode::Discard, &announcement).expect("announced");
    let fresh = ChunkSummary { idle_ms: 700, ..chunk(3, 7, 2) };
    data.set_chunks(vec![chunk(1, WRITER, 2), chunk(2, 8, 2), fresh]);
    eventually("its space", || data.freed_ranges() == [(1, 0, 2 * 4096)]);
    two_passes(&cluster);
    assert_eq!(data.freed(), [1], "one lives, of the other it is not known yet");
    known.create("by the one that lives").expect("created");
    let mut fresh = cluster.caller(7);
    fresh.create("by the one that is slow").expect("created");
    let mut dead = cluster.caller(WRITER);
    assert!(dead.create("late").is_err(), "what is collected can be named no more");
}

/// A member that does not answer would stop collection everywhere, or its chunks would be judged without being listed.
#[test]
fn a_member_that_is_away_stops_nobody() {
    let data: Vec<DataNode> = (0..2).map(|_| DataNode::start()).collect();
    let mut cluster = Cluster::with(1, timings(), |config| config);
    cluster.add_pg(&data.iter().collect::<Vec<_>>());
    cluster.map.nodes.iter_mut().filter(|node| node.id == 101).for_each(|node| node.up = false);
    cluster.share_map();
    let mut writer = cluster.caller(WRITER);
    writer.create("x").expect("created");
    end(&mut writer);
    data[0].set_chunks((0..10).map(|index| chunk(index, WRITER, 1)).collect());
    eventually("all of the first", || data[0].freed().len() == 10);
    assert_eq!((data[1].lists(), data[1].freed().len()), (0, 0));
    // Records wait for the member that is away, and passes do not add to them.
    two_passes(&cluster);
    let waiting = || {
        cluster.meta(0).partitions().read().values().next().expect("one").state.namespace.read().counters().free_records
    };
    assert_eq!(waiting(), 10);
    cluster.map.nodes.iter_mut().filter(|node| node.id == 101).for_each(|node| node.up = true);
    cluster.share_map();
    eventually("the other", || data[1].freed().len() == 10);
}
