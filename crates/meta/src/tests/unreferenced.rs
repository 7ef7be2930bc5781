//! What no file names is counted for whoever asks, by whether its writer may still name it.
use std::time::Duration;

use cairn_wire::Opcode;
use cairn_wire::common::Empty;
use cairn_wire::data::ChunkSummary;
use cairn_wire::meta::{EndSessionRequest, StatfsRequest, StatfsResponse, Unreferenced};

use super::fixture::{Caller, Cluster, DataNode, eventually, quick};
use crate::MetaTimings;

const WRITER: u64 = 9;

fn chunk(index: u32, session: u64, blocks: u64) -> ChunkSummary {
    let length = blocks * 4096;
    ChunkSummary { index, length, durable_length: length, sealed: true, session, idle_ms: 1000, ..Default::default() }
}

fn ask(caller: &mut Caller) -> Unreferenced {
    let request = StatfsRequest { header: Some(caller.read_header()), unreferenced: true };
    let answer: StatfsResponse = caller.call(Opcode::Statfs, &request).expect("counts");
    assert!(answer.inodes > 0, "the counts of before are there, too");
    answer.unreferenced.expect("asked for")
}

/// Space that a dead writer took would be shown as a living one's, or that of files as nobody's; or a time would be
/// told at which nothing is freed.
#[test]
fn space_without_a_name_is_counted_and_nothing_is_freed() {
    let data: Vec<DataNode> = (0..2).map(|_| DataNode::start()).collect();
    let timings = MetaTimings {
        garbage_period: Duration::from_secs(3600),
        garbage_grace: Duration::from_secs(600),
        lease: Duration::from_secs(60),
        ..quick()
    };
    let mut cluster = Cluster::with(1, timings, |config| config);
    cluster.add_pg(&data.iter().collect::<Vec<_>>());
    let (mut writer, mut other) = (cluster.caller(WRITER), cluster.caller(10));
    other.create("of another").expect("created");
    // Names the first block of chunks 0 and 1.
    writer.create_with_chunks("named", 2);
    let long_ago = ChunkSummary { idle_ms: 700_000, ..chunk(3, 10, 7) };
    data.iter().for_each(|node| {
        node.set_chunks(vec![chunk(0, WRITER, 1), chunk(1, WRITER, 4), chunk(2, 10, 2), long_ago.clone()])
    });
    let counts = |found: Unreferenced| (found.known, found.recent_bytes / 4096, found.left_bytes / 4096);
    eventually("a count", || counts(ask(&mut other)) == (true, 2 * (3 + 2), 0));
    let request = EndSessionRequest { header: Some(writer.read_header()) };
    let _: Empty = writer.call(Opcode::EndSession, &request).expect("ended");
    eventually("another count", || counts(ask(&mut other)) == (true, 2 * 2, 2 * 3));
    let found = ask(&mut other);
    assert!(found.left_freed_by_ns > 0 && found.recent_freed_by_ns >= found.left_freed_by_ns, "{found:?}");
    assert!(data.iter().all(|node| node.freed_ranges().is_empty()), "somebody only looked");
    // Nobody asks: nothing is counted.
    let request = StatfsRequest { header: Some(other.read_header()), unreferenced: false };
    let answer: StatfsResponse = other.call(Opcode::Statfs, &request).expect("counts");
    assert_eq!(answer.unreferenced, None);
}
