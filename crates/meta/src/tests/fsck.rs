//! The check of a volume: what members lack is told by path, a whole volume has no findings.

use std::sync::atomic::Ordering;
use std::time::Duration;

use cairn_types::{ErrorCode, Scheme};
use cairn_wire::Opcode;
use cairn_wire::common::{Credentials, Empty};
use cairn_wire::data::{BadBlocks, ChunkSummary};
use cairn_wire::meta::{FsckRequest, FsckResponse, MetaHeader, UnlinkRequest};

use super::fixture::{Caller, Cluster, DataNode, eventually, quick};
use crate::MetaTimings;

fn chunk(index: u32) -> ChunkSummary {
    ChunkSummary { index, length: 4096, durable_length: 4096, sealed: true, session: 9, ..Default::default() }
}

/// Three members that serve.
fn cluster(data: &[DataNode]) -> Cluster {
    cluster_with(data, quick())
}

fn cluster_with(data: &[DataNode], timings: MetaTimings) -> Cluster {
    let mut cluster = Cluster::with(1, timings, |config| config);
    cluster.add_pg(&data.iter().collect::<Vec<_>>());
    let state = cluster.map.pgs[0].state.as_mut().expect("a state");
    state.scheme = u32::from("r3".parse::<Scheme>().expect("a scheme").code());
    state.members.iter_mut().for_each(|member| member.state = 1);
    state.epoch += 1;
    cluster.share_map();
    cluster
}

fn check(caller: &Caller) -> FsckResponse {
    let header = Some(caller.read_header());
    let begun: FsckResponse = caller
        .call(Opcode::Fsck, &FsckRequest { header: header.clone(), start: true, ..Default::default() })
        .expect("begun");
    let mut last = FsckResponse::default();
    eventually("the end of the check", || {
        let request = FsckRequest { header: header.clone(), run: begun.run, ..Default::default() };
        last = caller.call(Opcode::Fsck, &request).expect("known");
        last.state != 1
    });
    assert_eq!(last.state, 2, "{}", last.message);
    last
}

fn told(answer: &FsckResponse) -> Vec<(String, u32, &str)> {
    let path = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    answer.findings.iter().map(|finding| (path(&finding.path), finding.severity, finding.text.as_str())).collect()
}

/// A file that lost its bytes, or most of its copies, would be found out when somebody needs it.
#[test]
fn what_members_lack_is_told_by_path() {
    let data: Vec<DataNode> = (0..3).map(|_| DataNode::start()).collect();
    let cluster = cluster(&data);
    let mut caller = cluster.caller(9);
    caller.create_with_chunks("five", 5);
    let all = |without: &[u32]| (0..5).filter(|index| !without.contains(index)).map(chunk).collect::<Vec<_>>();
    data.iter().for_each(|node| node.set_chunks(all(&[])));
    let whole = check(&caller);
    assert_eq!((whole.found, told(&whole)), (0, Vec::new()));
    assert_eq!((whole.inodes, whole.directories, whole.chunks), (2, 1, 5));

    data[0].set_chunks(all(&[2]));
    let short = check(&caller);
    assert_eq!(told(&short), [("/five".to_owned(), 2, "an extent with 2 of 3 copies or shards (chunk 2 of pg3)")]);

    // Copies with a block that cannot be healed are as good as missing.
    let bad = |disk: u32| vec![BadBlocks { disk, pg: 3, index: 1, blocks: vec![0] }];
    data[0].set_chunks(all(&[]));
    data[0].set_bad(bad(200));
    let healing = "; a block is bad on 1 members and could not be healed so far";
    let text = format!("an extent with 2 of 3 copies or shards (chunk 1 of pg3){healing}");
    assert_eq!(told(&check(&caller)), [("/five".to_owned(), 2, text.as_str())]);
    (1..3).for_each(|node| data[node as usize].set_bad(bad(200 + node)));
    let rotten = check(&caller);
    let text = "an extent cannot be read: 0 of 3 members have chunk 1 of pg3 intact, 1 are needed; a block is bad on 3 \
                members and could not be healed so far";
    assert_eq!(told(&rotten), [("/five".to_owned(), 3, text)]);
    data.iter().for_each(|node| node.set_bad(Vec::new()));

    data[0].set_chunks(all(&[2]));
    data[1].set_chunks(all(&[2]));
    data[2].set_chunks(all(&[2, 4]));
    let lost = check(&caller);
    let text = "2 extents cannot be read: 0 of 3 members have chunk 2 of pg3, 1 are needed";
    assert_eq!(told(&lost), [("/five".to_owned(), 3, text)]);

    // Data nodes hear what is lost, and nothing else.
    let named: Vec<_> = data.iter().map(DataNode::take_named).collect();
    assert!(named.iter().all(|named| named.contains(&(2, 0)) && !named.contains(&(0, 0))), "{named:?}");

    let freed = ChunkSummary { punched_blocks: 1, ..chunk(1) };
    data.iter().for_each(|node| {
        let mut chunks = all(&[]);
        chunks[1] = freed.clone();
        node.set_chunks(chunks);
    });
    assert_eq!(told(&check(&caller))[0].1, 3, "freed blocks are lost blocks");

    // What was removed meanwhile is no damage.
    let request = UnlinkRequest { header: Some(caller.header()), parent: 1, name: b"five".to_vec() };
    let _: Empty = caller.call(Opcode::Unlink, &request).expect("unlinked");
    assert_eq!(check(&caller).found, 0);
}

/// Somebody would take a member that is away for lost data, or lost data for a member that is away.
#[test]
fn members_that_are_away_are_told_apart() {
    let data: Vec<DataNode> = (0..3).map(|_| DataNode::start()).collect();
    let mut cluster = cluster(&data);
    cluster.map.nodes.iter_mut().filter(|node| node.id == 102).for_each(|node| node.up = false);
    cluster.share_map();
    let mut caller = cluster.caller(9);
    caller.create_with_chunks("one", 1);
    let answer = check(&caller);
    let text = "an extent cannot be read now: 0 of 3 members have chunk 0 of pg3 and answer, 1 are needed; d202 on n102 may have it \
                and are away or catch up";
    assert_eq!(told(&answer), [("/one".to_owned(), 4, text)]);
    assert!(data[0].take_named().is_empty(), "that is no loss");
    // The copies of the others are damaged.
    (0..2).for_each(|node| {
        data[node].set_chunks(vec![chunk(0)]);
        data[node].set_bad(vec![BadBlocks { disk: 200 + node as u32, pg: 3, index: 0, blocks: vec![0] }]);
    });
    let answer = check(&caller);
    let text = "an extent cannot be read now: 0 of 3 members have chunk 0 of pg3 intact and answer, 1 are needed; d202 on n102 may \
                have it and are away or catch up; a block is bad on 2 members and could not be healed so far";
    assert_eq!(told(&answer), [("/one".to_owned(), 4, text)]);
    // One whole copy is enough.
    data[0].set_bad(Vec::new());
    let text = "an extent with 1 of 3 copies or shards (chunk 0 of pg3); 1 members are away or catch up; a block is bad on 1 members \
                and could not be healed so far";
    assert_eq!(told(&check(&caller)), [("/one".to_owned(), 2, text)]);
}

/// Everybody could read all names of a volume, or start work without end.
#[test]
fn only_root_may_ask() {
    let data: Vec<DataNode> = vec![DataNode::start()];
    let cluster = cluster(&data);
    let caller = cluster.caller(9);
    let who = Some(Credentials { uid: 1000, gid: 1000, groups: Vec::new() });
    let header = Some(MetaHeader { who, ..caller.read_header() });
    let asked = FsckRequest { header, start: true, ..Default::default() };
    assert_eq!(caller.call::<FsckResponse>(Opcode::Fsck, &asked), Err(ErrorCode::NotPermitted));
    let unknown = FsckRequest { header: Some(caller.read_header()), run: 7, ..Default::default() };
    assert_eq!(caller.call::<FsckResponse>(Opcode::Fsck, &unknown), Err(ErrorCode::NotFound));
}

/// Files that lost bytes would be found out only when somebody asks.
#[test]
fn the_leader_checks_by_itself() {
    let data: Vec<DataNode> = (0..3).map(|_| DataNode::start()).collect();
    let timings = MetaTimings { check_period: Duration::from_millis(50), ..quick() };
    let cluster = cluster_with(&data, timings);
    let lost = || cluster.meta(0).stats().lost_files.load(Ordering::SeqCst);
    let mut caller = cluster.caller(9);
    caller.create_with_chunks("one", 1);
    eventually("the loss", || lost() == 1);
    data.iter().for_each(|node| node.set_chunks(vec![chunk(0)]));
    eventually("the bytes", || lost() == 0);
}
