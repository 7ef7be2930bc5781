//! Compaction: a data node is asked to move what lives in packs that are mostly dead, and nothing else.

use std::sync::atomic::Ordering;
use std::time::Duration;

use cairn_types::Scheme;
use cairn_wire::data::{ChunkSummary, CompactChunk};

use super::fixture::{Cluster, DataNode, PG, eventually, quick};
use crate::MetaTimings;

const WRITER: u64 = 9;
const TABLES: u64 = 69_632;

fn timings() -> MetaTimings {
    MetaTimings { garbage_period: Duration::from_millis(20), garbage_grace: Duration::from_millis(500), ..quick() }
}

/// A sealed pack of four blocks of which the first lives.
fn pack(index: u32) -> ChunkSummary {
    ChunkSummary {
        index,
        length: 4 * 4096,
        durable_length: 4 * 4096,
        sealed: true,
        session: WRITER,
        idle_ms: 1000,
        punched_blocks: 3,
        used: vec![0, 1],
        held_bytes: TABLES + 4096,
        ..Default::default()
    }
}

fn two_passes(cluster: &Cluster) {
    let passes = || cluster.meta(0).stats().garbage_passes.load(Ordering::SeqCst);
    let before = passes();
    eventually("passes", || passes() >= before + 2);
}

/// Space of packs that are mostly dead would never come back; what a writer may yet name, what somebody appends to and
/// what not all members list would be moved for nothing.
#[test]
fn what_lives_in_dead_packs_is_moved() {
    let data: Vec<DataNode> = (0..2).map(|_| DataNode::start()).collect();
    let mut cluster = Cluster::with(1, timings(), |config| config);
    cluster.add_pg(&data.iter().collect::<Vec<_>>());
    cluster.map.pgs[0].state.as_mut().expect("a group").scheme = u32::from(Scheme::Replicated(2).code());
    cluster.share_map();
    let mut writer = cluster.caller(WRITER);
    // Names the first block of chunks 0 to 5.
    let inode = writer.create_with_chunks("named", 6);
    let open = ChunkSummary { sealed: false, ..pack(2) };
    let unnamed = ChunkSummary { used: vec![0, 2], punched_blocks: 2, ..pack(3) };
    let busy = ChunkSummary { idle_ms: 0, ..pack(4) };
    let all = vec![pack(0), pack(1), open, unnamed, busy, pack(5)];
    data[0].set_chunks(all.clone());
    data[1].set_chunks(all[..5].to_vec());
    eventually("a request", || !data[0].take_compacted().is_empty());
    eventually("another", || !data[0].take_compacted().is_empty());
    // The first one refuses.
    data[0].refuse(true);
    let mut asked = Vec::new();
    eventually("a request to the other", || {
        asked = data[1].take_compacted();
        !asked.is_empty()
    });
    let chunks: Vec<_> = [0, 1].map(|index| CompactChunk { pg: PG, index }).into();
    assert_eq!(asked[0].chunks, chunks);
    assert_eq!(asked[0].places, [inode, 0, inode, 4096]);
    assert!(cluster.meta(0).stats().compacted_files.load(Ordering::SeqCst) > 0);
    // One alone would be the same again.
    data.iter().for_each(|node| node.set_chunks(vec![pack(0)]));
    two_passes(&cluster);
    data[1].take_compacted();
    two_passes(&cluster);
    assert_eq!(data[1].take_compacted(), []);
}
