//! Files open by Open alone: they outlive their last name as long as their readers do, on any leader, and no longer.

use std::time::{Duration, Instant};

use cairn_types::ErrorCode;
use cairn_wire::Opcode;
use cairn_wire::common::Empty;
use cairn_wire::meta::*;

use super::fixture::{Caller, Cluster, DataNode, eventually, quick};
use crate::MetaTimings;

/// A lease that no pause of a busy machine outlasts.
const LONG_LEASE_MS: u64 = 8000;

fn open(caller: &Caller, inode: u64, acknowledged: u64) -> OpenResponse {
    let header = Some(caller.read_header());
    let request = OpenRequest { header, inode, access: 4, extents_max: 10, acknowledged, ..Default::default() };
    let mut answer = None;
    eventually("an answered Open", || {
        match caller.call::<OpenResponse>(Opcode::Open, &request) {
            Ok(opened) => answer = Some(opened),
            Err(ErrorCode::Overloaded | ErrorCode::NotLeader | ErrorCode::Unavailable) => {}
            Err(error) => panic!("{error}"),
        }
        answer.is_some()
    });
    answer.expect("it came about")
}

fn keep_alive(caller: &Caller, acknowledged: u64) -> KeepAliveResponse {
    let header = Some(caller.read_header());
    let request = KeepAliveRequest { header, soft_holds: true, acknowledged, ..KeepAliveRequest::default() };
    caller.call(Opcode::KeepAlive, &request).expect("renewed")
}

fn unlink(caller: &mut Caller, name: &str) {
    let request = UnlinkRequest { header: Some(caller.header()), parent: 1, name: name.as_bytes().to_vec() };
    let _: Empty = caller.call(Opcode::Unlink, &request).expect("unlinked");
}

fn extents(caller: &Caller, inode: u64) -> Result<usize, ErrorCode> {
    let request = GetExtentsRequest { header: Some(caller.read_header()), inode, ..Default::default() };
    caller.call::<GetExtentsResponse>(Opcode::GetExtents, &request).map(|answer| answer.extents.len())
}

/// A cluster whose data node takes frees, and whose leases are short.
fn cluster(count: usize, lease_ms: u64) -> (Cluster, DataNode) {
    let timings = MetaTimings { lease: Duration::from_millis(lease_ms), ..quick() };
    let mut cluster = Cluster::with(count, timings, |config| config);
    let data = DataNode::start();
    cluster.add_pg(&[&data]);
    (cluster, data)
}

/// A reader would lose the bytes of the file that it reads, or they would stay for ever.
#[test]
fn an_unlinked_file_lives_until_its_readers_acknowledge() {
    let (cluster, data) = cluster(1, LONG_LEASE_MS);
    let (mut writer, mut reader, other) = (cluster.caller(1), cluster.caller(2), cluster.caller(3));
    let inode = writer.create_with_chunks("f", 2);
    let opened = open(&reader, inode, 0);
    assert_eq!((opened.extents.len(), opened.end), (2, true));
    let idle = open(&other, inode, 0).index;
    unlink(&mut writer, "f");
    assert_eq!(extents(&reader, inode), Ok(2), "unlinked, and readable");
    // Past the lease that a new leader waits, with both sessions alive.
    let unlinked = Instant::now();
    while unlinked.elapsed() < Duration::from_millis(LONG_LEASE_MS + LONG_LEASE_MS / 10) {
        keep_alive(&other, idle);
        assert_eq!(keep_alive(&reader, opened.index).unlinked, [inode], "told until it is acknowledged");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(extents(&reader, inode), Ok(2));
    let request = HoldRequest { header: Some(reader.header()), inode, write: false };
    let _: AttributesResponse = reader.call(Opcode::Hold, &request).expect("held");
    let told = keep_alive(&reader, opened.index);
    let other_told = keep_alive(&other, idle);
    assert_eq!(other_told.unlinked, [inode]);
    assert!(keep_alive(&reader, told.index).unlinked.is_empty());
    assert!(keep_alive(&other, other_told.index).unlinked.is_empty());
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(extents(&reader, inode), Ok(2), "held in the log by now");
    let request = ReleaseRequest { header: Some(reader.header()), inode, also: Vec::new() };
    let _: Empty = reader.call(Opcode::Release, &request).expect("released");
    let (told, other_told) = (keep_alive(&reader, told.index), keep_alive(&other, other_told.index));
    assert_eq!((told.unlinked.len(), other_told.unlinked.len()), (1, 1), "its death is another one");
    let _ = (keep_alive(&reader, told.index), keep_alive(&other, other_told.index));
    eventually("the space's return", || data.freed() == [0, 1]);
    assert_eq!(extents(&reader, inode), Err(ErrorCode::Stale));
}

/// A reader that died would keep every file that is unlinked, or sessions without Open would be waited for.
#[test]
fn silent_readers_and_sessions_without_open_are_not_waited_for() {
    let (cluster, data) = cluster(1, LONG_LEASE_MS);
    let (mut writer, reader) = (cluster.caller(1), cluster.caller(2));
    let first = writer.create_with_chunks("f", 1);
    open(&reader, first, 0);
    unlink(&mut writer, "f");
    assert_eq!(extents(&reader, first), Ok(1));
    eventually("the space's return", || data.freed() == [0]);
    assert_eq!(extents(&reader, first), Err(ErrorCode::Stale), "the reader was silent for a lease");
    eventually("the end of deferring", || {
        let partitions = cluster.meta(0).partitions().read();
        !partitions.values().next().expect("open").state.namespace.read().is_deferring()
    });
    let mut writer = cluster.caller(3);
    let again = writer.create_with_chunks("g", 3);
    unlink(&mut writer, "g");
    assert_eq!(extents(&writer, again), Err(ErrorCode::Stale), "nobody reads: taken apart at once");
}

/// A new leader, who knows no reader, would reclaim what readers have open.
#[test]
fn a_new_leader_waits_for_readers_to_say_what_they_acknowledged() {
    let (mut cluster, data) = cluster(3, LONG_LEASE_MS);
    let (mut writer, reader) = (cluster.caller(1), cluster.caller(2));
    let inode = writer.create_with_chunks("f", 1);
    let opened = open(&reader, inode, 0);
    unlink(&mut writer, "f");
    let leader = cluster.leader();
    cluster.kill(leader);
    cluster.leader();
    let started = std::time::Instant::now();
    assert_eq!(keep_alive(&reader, opened.index).unlinked, [inode], "the new leader knows what died");
    while started.elapsed() < Duration::from_millis(LONG_LEASE_MS + LONG_LEASE_MS / 10) {
        keep_alive(&reader, opened.index);
        assert_eq!(extents(&reader, inode), Ok(1));
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(data.freed().is_empty());
    let told = keep_alive(&reader, opened.index);
    keep_alive(&reader, told.index);
    eventually("the space's return", || data.freed() == [0]);
}

/// Whoever may not read a file could open it, or open what has no name any more.
#[test]
fn open_checks_permission_and_names() {
    let (cluster, _data) = cluster(1, 60_000);
    let (mut writer, reader) = (cluster.caller(1), cluster.caller(2));
    let inode = writer.create_with_chunks("f", 1);
    open(&reader, inode, 0);
    let mut header = reader.read_header();
    let by_name = OpenRequest { header: Some(header.clone()), parent: 1, name: b"f".to_vec(), ..Default::default() };
    let answer: OpenResponse = reader.call(Opcode::Open, &by_name).expect("opened");
    assert_eq!(answer.attributes.expect("some").inode, inode);
    header.who = Some(cairn_wire::common::Credentials { uid: 5, gid: 5, groups: vec![] });
    let request = OpenRequest { header: Some(header.clone()), inode, access: 2, ..Default::default() };
    assert_eq!(reader.call::<OpenResponse>(Opcode::Open, &request), Err(ErrorCode::PermissionDenied));
    let request = OpenRequest { header: Some(MetaHeader { session: 0, ..header }), inode, ..Default::default() };
    assert_eq!(reader.call::<OpenResponse>(Opcode::Open, &request), Err(ErrorCode::BadRequest));
    unlink(&mut writer, "f");
    let request = OpenRequest { header: Some(reader.read_header()), inode, ..Default::default() };
    assert_eq!(reader.call::<OpenResponse>(Opcode::Open, &request), Err(ErrorCode::Stale));
}
