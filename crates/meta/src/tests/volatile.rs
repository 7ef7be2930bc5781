//! Files closed before they were durable whose writer died: what members have stays, the rest is cut off, and nothing
//! is said of damage meanwhile.

use std::sync::atomic::Ordering;
use std::time::Duration;

use cairn_types::MemberState;
use cairn_wire::Opcode;
use cairn_wire::common::{Empty, Extent};
use cairn_wire::data::ChunkSummary;
use cairn_wire::meta::{
    Attributes, AttributesResponse, EndSessionRequest, FsckRequest, FsckResponse, GetattrRequest, PublishRequest,
};

use super::fixture::{Caller, Cluster, DataNode, PG, eventually, quick};
use crate::MetaTimings;

const WRITER: u64 = 9;
const BLOCK: u64 = 4096;

fn start(members: usize) -> (Vec<DataNode>, Cluster) {
    let timings = MetaTimings { volatile_tick: Duration::from_millis(10), ..quick() };
    let data: Vec<DataNode> = (0..members).map(|_| DataNode::start()).collect();
    let mut cluster = Cluster::with(1, timings, |config| config);
    cluster.add_pg(&data.iter().collect::<Vec<_>>());
    let group = cluster.map.pgs[0].state.as_mut().expect("a state");
    group.members.iter_mut().for_each(|member| member.state = MemberState::Serving as u32);
    group.epoch += 1;
    cluster.share_map();
    let level = || cluster.meta(0).partition_reports().iter().map(|report| report.feature_level).max();
    eventually("the feature level of this", || level() >= Some(Opcode::PublishVolatile.feature_level()));
    (data, cluster)
}

/// An open chunk of so many blocks, of which one is durable.
fn chunk(index: u32, blocks: u64) -> ChunkSummary {
    ChunkSummary {
        index,
        length: blocks * BLOCK,
        durable_length: blocks * BLOCK,
        session: WRITER,
        ..Default::default()
    }
}

/// One that takes no more. (The first member of these tests passes no seal on.)
fn sealed(index: u32, blocks: u64) -> ChunkSummary {
    ChunkSummary { sealed: true, ..chunk(index, blocks) }
}

/// A file of so many blocks of a chunk, closed and not durable.
fn close(writer: &mut Caller, name: &str, index: u32, blocks: u64) -> u64 {
    let inode = writer.create(name).expect("created");
    let extent = Extent { file_offset: 0, length: blocks * BLOCK, pg: PG, index, chunk_offset: 0, flags: 0 };
    let request = PublishRequest {
        header: Some(writer.header()),
        inode,
        extents: vec![extent],
        written_by: WRITER,
        durability: 1,
        ..Default::default()
    };
    let _: AttributesResponse = writer.call(Opcode::PublishVolatile, &request).expect("published");
    inode
}

fn end(caller: &Caller) {
    let request = EndSessionRequest { header: Some(caller.read_header()) };
    let _: Empty = caller.call(Opcode::EndSession, &request).expect("ended");
}

fn attributes(caller: &Caller, inode: u64) -> Attributes {
    let request = GetattrRequest { header: Some(caller.read_header()), inode };
    caller.call::<AttributesResponse>(Opcode::Getattr, &request).expect("there").attributes.expect("some")
}

fn found_by_check(caller: &Caller) -> u64 {
    let started: FsckResponse = caller
        .call(Opcode::Fsck, &FsckRequest { header: Some(caller.read_header()), start: true, ..Default::default() })
        .expect("begun");
    let mut found = 0;
    eventually("the check", || {
        let request = FsckRequest { header: Some(caller.read_header()), run: started.run, ..Default::default() };
        let now: FsckResponse = caller.call(Opcode::Fsck, &request).expect("known");
        found = now.found;
        now.state == 2
    });
    found
}

/// A file would name bytes that nobody has for ever, or lose what a member still has; a check would raise the alarm
/// about what nobody promised.
#[test]
fn what_nobody_has_is_cut_off() {
    let (data, cluster) = start(2);
    let mut writer = cluster.caller(WRITER);
    let reader = cluster.caller(10);
    let (whole, half, none) =
        (close(&mut writer, "whole", 1, 2), close(&mut writer, "half", 2, 3), close(&mut writer, "none", 3, 2));
    data[0].set_chunks(vec![chunk(1, 2), chunk(2, 1)]);
    data[1].set_chunks(vec![sealed(1, 2), sealed(2, 1)]);
    assert_eq!(found_by_check(&reader), 0, "nobody promised it yet");
    assert_eq!(attributes(&reader, half).volatile_of, WRITER);
    end(&writer);
    for (inode, size) in [(whole, 2 * BLOCK), (half, BLOCK), (none, 0)] {
        eventually("the end of the range", || attributes(&reader, inode).volatile_of == 0);
        assert_eq!(attributes(&reader, inode).size, size);
    }
    // They are counted behind the entries that end the ranges.
    eventually("the count", || cluster.meta(0).stats().volatile_cut.load(Ordering::SeqCst) == 2);
    assert_eq!(found_by_check(&reader), 0, "settled");
}

/// Bytes that a member has would be cut off because it is away for a moment, or has not sealed yet.
#[test]
fn nothing_is_cut_off_before_all_have_answered() {
    let (data, mut cluster) = start(2);
    let mut writer = cluster.caller(WRITER);
    let reader = cluster.caller(10);
    let inode = close(&mut writer, "f", 1, 3);
    data[0].set_chunks(vec![chunk(1, 1)]);
    data[1].set_chunks(vec![chunk(1, 3)]);
    let mut up = |up: bool| {
        cluster.map.nodes.iter_mut().filter(|node| node.id == 101).for_each(|node| node.up = up);
        cluster.share_map();
    };
    up(false);
    end(&writer);
    let asked = data[0].lists();
    eventually("questions", || data[0].lists() > asked + 3);
    assert_eq!(attributes(&reader, inode).size, 3 * BLOCK, "one is away");
    up(true);
    let asked = data[1].lists();
    eventually("questions", || data[1].lists() > asked + 3);
    assert_eq!(attributes(&reader, inode).size, 3 * BLOCK, "one may get more");
    data[1].set_chunks(vec![sealed(1, 3)]);
    eventually("the end of the range", || attributes(&reader, inode).volatile_of == 0);
    assert_eq!(attributes(&reader, inode).size, 3 * BLOCK);
}
