//! The path of an append when nothing fails, and what is refused.

use cairn_rpc::Payload;
use cairn_types::ErrorCode;
use cairn_types::MemberState::{Serving, Syncing};
use cairn_wire::Opcode;
use cairn_wire::common::ChunkRange;
use cairn_wire::data::{AppendRequest, FreeItem, FreeRequest, FreeResponse, ListChunksRequest, ListChunksResponse};
use std::os::unix::fs::MetadataExt;

use super::cluster::{Cluster, SESSION, eventually, pattern};

/// A file's bytes would not be on all members, in order, or readable from any.
#[test]
fn all_members_hold_what_is_appended() {
    let cluster = Cluster::start(3);
    let index = cluster.allocate(0).expect("an index");
    let bulk = pattern(1, 300_000);
    let first = cluster.append(0, &[1, 2], index, 0, &bulk).expect("appended");
    assert_eq!(first.length, 300_000);
    assert_eq!(first.members.iter().map(|stamp| stamp.disk).collect::<Vec<_>>(), [101, 102, 103]);
    assert!(first.members.iter().all(|stamp| stamp.incarnation > 0));
    // The partial tail is replaced, then a small one at the next boundary.
    let tail_at = 300_000 / 4096 * 4096;
    let mut tail = bulk[tail_at..].to_vec();
    tail.extend(pattern(2, 1000));
    assert_eq!(cluster.append(0, &[2, 1], index, tail_at as u64, &tail).expect("appended").length, 301_000);
    let at = 301_000usize.next_multiple_of(4096);
    cluster.append(0, &[1, 2], index, at as u64, &pattern(3, 10)).expect("appended");
    let synced = cluster.sync(0, &[1, 2], index).expect("synced");
    assert_eq!((synced.durable_length, synced.members.len()), (at as u64 + 10, 3));
    // A repeat answers as before.
    assert_eq!(cluster.append(0, &[1, 2], index, 0, &bulk).expect("a repeat").members.len(), 3);
    for i in 0..3 {
        assert_eq!(cluster.read(i, index, 0, 300_000).expect("read").expect("intact"), bulk, "member {i}");
        assert_eq!(cluster.read(i, index, 300_000, 1000).expect("read").expect("intact"), pattern(2, 1000));
        assert_eq!(cluster.read(i, index, at as u64, 10).expect("read").expect("intact"), pattern(3, 10));
        let beyond = cluster.read(i, index, at as u64, 11).expect_err("not there");
        assert_eq!(beyond.code(), Some(ErrorCode::Missing));
    }
    // What belongs to no session would be garbage that nobody may free.
    let mut nobodys = cluster.append_request(0, &[1, 2], cluster.allocate(0).expect("an index"), 0, &bulk);
    nobodys.chunk.iter_mut().for_each(|chunk| chunk.session = 0);
    assert_eq!(cluster.send(0, &nobodys, &bulk).expect_err("refused").code(), Some(ErrorCode::BadRequest));
    assert_eq!(cluster.seal(0, &[1, 2], index).expect("sealed").length, at as u64 + 10);
    let sealed = cluster.append(0, &[1, 2], index, at as u64 + 4096, &[1]).expect_err("sealed");
    assert_eq!(sealed.code(), Some(ErrorCode::ChunkSealed));
}

/// Two chunks under one index would mix files; an index could be given out that a member does not know to be used.
#[test]
fn indices_are_given_once() {
    let mut cluster = Cluster::start(2);
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..20 {
        assert!(seen.insert(cluster.allocate(0).expect("an index")));
    }
    cluster.restart(0);
    cluster.raise(&[Serving, Serving]);
    for _ in 0..20 {
        assert!(seen.insert(cluster.allocate(0).expect("an index")), "given twice after a restart");
    }
    // The other member becomes the primary.
    cluster.raise(&[Syncing, Serving]);
    for _ in 0..20 {
        assert!(seen.insert(cluster.allocate(1).expect("an index")), "given twice by another primary");
    }
}

/// What is wrong would be taken, or what is right be refused.
#[test]
fn fences() {
    let mut cluster = Cluster::start(3);
    let index = cluster.allocate(0).expect("an index");
    let bytes = pattern(1, 5000);
    let refused = |cluster: &Cluster, i: usize, request: &AppendRequest, code: ErrorCode| {
        let error = cluster.send(i, request, &bytes).expect_err("refused");
        assert_eq!(error.code(), Some(code), "{error}");
    };
    let good = cluster.append_request(0, &[1, 2], index, 0, &bytes);
    cluster.send(0, &good, &bytes).expect("appended");
    let next = cluster.append_request(0, &[1, 2], index, 8192, &bytes);
    let with = |change: &dyn Fn(&mut AppendRequest)| {
        let mut request = next.clone();
        change(&mut request);
        request
    };
    refused(&cluster, 0, &with(&|r| r.chain = vec![102]), ErrorCode::NotServing);
    refused(&cluster, 0, &with(&|r| r.chain = vec![102, 102]), ErrorCode::NotServing);
    refused(&cluster, 0, &with(&|r| r.crcs[0] ^= 1), ErrorCode::ChecksumMismatch);
    refused(&cluster, 0, &with(&|r| r.crcs.truncate(4)), ErrorCode::BadRequest);
    refused(&cluster, 0, &with(&|r| r.offset = 4096 * 5), ErrorCode::OffsetMismatch);
    refused(&cluster, 0, &with(&|r| r.offset = 8193), ErrorCode::BadRequest);
    refused(&cluster, 0, &with(&|r| r.repair = true), ErrorCode::BadRequest);
    let other_session = with(&|r| r.chunk.as_mut().expect("set").session = SESSION + 1);
    refused(&cluster, 0, &other_session, ErrorCode::BadRequest);
    let not_given = with(&|r| {
        r.chunk.as_mut().expect("set").index = 1_000_000;
        r.offset = 0;
    });
    refused(&cluster, 0, &not_given, ErrorCode::OffsetMismatch);
    let mut follower = cluster.append_request(1, &[0, 2], index, 8192, &bytes);
    refused(&cluster, 1, &follower, ErrorCode::NotPrimary);
    follower.chunk.as_mut().expect("set").disk = 101;
    refused(&cluster, 1, &follower, ErrorCode::NotServing);
    // The good one was harmed by none of them.
    cluster.send(0, &next, &bytes).expect("appended");

    let old = cluster.append_request(0, &[1, 2], index, 16_384, &bytes);
    cluster.raise(&[Serving, Serving, Serving]);
    let stale = cluster.send(0, &old, &bytes).expect_err("refused");
    assert_eq!(stale.code(), Some(ErrorCode::StaleEpoch));
    let newer = with(&|r| r.chunk.as_mut().expect("set").epoch = 99);
    refused(&cluster, 0, &newer, ErrorCode::NotServing);
    let earlier = with(&|r| {
        r.chunk.as_mut().expect("set").epoch = 2;
        r.offset = 16_384;
    });
    refused(&cluster, 0, &earlier, ErrorCode::ChunkSealed);
    // What was open is sealed everywhere, and stays readable.
    for i in 0..3 {
        eventually("the seal", || cluster.nodes[i].store().info(super::repairs::id(index)).is_some_and(|c| c.sealed));
        assert_eq!(cluster.read(i, index, 0, 5000).expect("read").expect("intact"), bytes);
    }
}

/// An open chunk that nobody uses would hold its reserved space for ever.
#[test]
fn idle_chunks_are_sealed_and_trimmed() {
    let cluster = Cluster::start_tuned(2, |config| config.idle_seal = std::time::Duration::from_millis(200));
    let index = cluster.allocate(0).expect("an index");
    cluster.append(0, &[1], index, 0, &pattern(1, 200_000)).expect("appended");
    cluster.sync(0, &[1], index).expect("synced");
    for i in 0..2 {
        eventually("the seal", || cluster.nodes[i].store().info(super::repairs::id(index)).is_some_and(|c| c.sealed));
        eventually("the trimmed tail", || {
            use std::os::unix::fs::MetadataExt;
            std::fs::metadata(cluster.nodes[i].file(index)).expect("a file").blocks() * 512 < 500_000
        });
    }
}

/// The reserved space of a member that a writer's seal did not reach in time would stay reserved until the next epoch;
/// and of a chunk without any block left the file.
#[test]
fn a_seal_that_a_member_did_not_answer_comes_again() {
    // Not before the member is away.
    let mut cluster = Cluster::start_tuned(3, |config| config.idle_seal = std::time::Duration::from_secs(5));
    let index = cluster.allocate(0).expect("an index");
    cluster.append(0, &[1, 2], index, 0, &pattern(1, 200_000)).expect("appended");
    cluster.kill(1);
    cluster.seal(0, &[1, 2], index).expect_err("the second member does not answer");
    assert!(cluster.nodes[0].store().info(super::repairs::id(index)).is_some_and(|chunk| chunk.sealed));
    cluster.answer_again(1);
    for i in 0..3 {
        eventually("the seal", || cluster.nodes[i].store().info(super::repairs::id(index)).is_some_and(|c| c.sealed));
    }
}

/// What a chunk takes on the disk, from which compaction tells what is dead, would be another number than the file's.
#[test]
fn lists_tell_what_chunks_take() {
    let cluster = Cluster::start(1);
    let index = cluster.allocate(0).expect("an index");
    cluster.append(0, &[], index, 0, &pattern(1, 1 << 20)).expect("appended");
    cluster.seal(0, &[], index).expect("sealed");
    let listed = |used: bool| {
        let (disk, pg) = (cluster.nodes[0].disk, cluster.header(0, index).pg);
        let request = ListChunksRequest { disk, pg, from_start: true, count_max: 10, used, ..Default::default() };
        let answer: (ListChunksResponse, _) =
            cluster.call(0, Opcode::ListChunks, &request, Payload::None).expect("a list");
        answer.0.chunks[0].clone()
    };
    let on_disk = || std::fs::metadata(cluster.nodes[0].file(index)).expect("the file").blocks() * 512;
    let before = listed(true);
    assert!(before.held_bytes > 1 << 20, "{before:?}");
    assert_eq!(listed(false).held_bytes, 0, "only if it is asked for");
    let ranges = vec![ChunkRange { offset: 0, length: 900_000 / 4096 * 4096 }];
    let item = FreeItem { disk: cluster.nodes[0].disk, pg: cluster.header(0, index).pg, index, ranges };
    let request = FreeRequest { items: vec![item] };
    let freed: (FreeResponse, _) = cluster.call(0, Opcode::Free, &request, Payload::None).expect("freed");
    assert_eq!(freed.0.codes, [0]);
    eventually("a hole", || listed(true).held_bytes <= before.held_bytes - 800_000);
    eventually("the same as the file", || listed(true).held_bytes == on_disk());
    assert_eq!(listed(true).used.len(), 2);
}
