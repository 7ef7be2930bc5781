//! Overwrites in place: order, repeats, refusals, members that miss some, members that come back.

use std::time::Duration;

use cairn_rpc::CallError;
use cairn_types::MemberState::{Offline, Serving, Syncing};
use cairn_types::{BLOCK_SIZE, ErrorCode, SessionId};
use cairn_wire::Opcode;
use cairn_wire::data::{FreeItem, FreeRequest, FreeResponse, OverwriteNumber, OverwriteRequest};

use super::cluster::{Cluster, PG, eventually, pattern};
use super::rebuilds::{damage, report};
use super::repairs::id;

/// A block of bytes that depend on its seed.
pub(super) fn block(seed: u64) -> Vec<u8> {
    pattern(seed, BLOCK_SIZE)
}

/// Three members that wait for each other as long as a busy machine needs; who is dead is known at once.
pub(super) fn start() -> Cluster {
    Cluster::start_tuned(3, |config| {
        config.hop_deadline = Duration::from_secs(20);
        config.overwrite_deadline = Duration::from_secs(20);
    })
}

/// A chunk of so many bytes, durable on all members, sealed if asked for.
pub(super) fn chunk(cluster: &Cluster, bytes: usize, seal: bool) -> u32 {
    let index = cluster.allocate(0).expect("an index");
    let all = pattern(7, bytes);
    for (i, part) in all.chunks(1 << 20).enumerate() {
        cluster.append(0, &[1, 2], index, (i << 20) as u64, part).expect("appended");
    }
    cluster.sync(0, &[1, 2], index).expect("synced");
    if seal {
        cluster.seal(0, &[1, 2], index).expect("sealed");
    }
    index
}

/// Repeats while the members are being made equal.
pub(super) fn overwrite_soon(
    cluster: &Cluster,
    i: usize,
    chain: &[usize],
    index: u32,
    request: u64,
    seed: u64,
    at: u32,
) {
    eventually("the overwrite", || match cluster.overwrite(i, chain, index, request, &[(at, block(seed))]) {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error.code(), Some(ErrorCode::Overloaded), "{error}");
            false
        }
    });
}

/// All these members have the same table and number, and everything reads back.
pub(super) fn equal(cluster: &Cluster, members: &[usize], index: u32) -> bool {
    let tables = |i: usize| {
        let tables = cluster.nodes[i].store().tables(id(index)).expect("here");
        (tables.crcs, tables.info.overwrite, tables.info.length)
    };
    members.windows(2).all(|pair| tables(pair[0]) == tables(pair[1]))
}

/// Blocks would be lost, torn, or answered before all members have them.
#[test]
fn blocks_are_overwritten_on_all_members() {
    let cluster = start();
    let index = chunk(&cluster, 40 * BLOCK_SIZE + 100, true);
    let blocks = [(3, block(1)), (4, block(2)), (20, block(3))];
    let answer = cluster.overwrite(0, &[1, 2], index, 1, &blocks).expect("overwritten");
    let mut disks: Vec<u32> = answer.members.iter().map(|member| member.disk).collect();
    disks.sort_unstable();
    assert_eq!(disks, [101, 102, 103]);
    // The partial last block of a sealed chunk, whole, and blocks that were overwritten before.
    let tail = [pattern(9, 100), vec![0; BLOCK_SIZE - 100]].concat();
    cluster.overwrite(0, &[1, 2], index, 2, &[(4, block(5)), (40, tail.clone())]).expect("overwritten");
    for i in 0..3 {
        let mut wanted = pattern(7, 40 * BLOCK_SIZE + 100);
        for (at, bytes) in [(3, &block(1)), (4, &block(5)), (20, &block(3)), (40, &pattern(9, 100))] {
            wanted[at * BLOCK_SIZE..at * BLOCK_SIZE + bytes.len()].copy_from_slice(bytes);
        }
        let found = cluster.read(i, index, 0, wanted.len()).expect("read").expect("intact");
        assert!(found == wanted, "member {i}");
    }
    assert!(equal(&cluster, &[0, 1, 2], index));
    assert_eq!(cluster.nodes[2].store().info(id(index)).expect("here").overwrite.count, 2);
}

/// A request that arrives twice would be done again, on top of a newer one.
#[test]
fn repeats_are_answered_as_before() {
    let cluster = start();
    let index = chunk(&cluster, 8 * BLOCK_SIZE, true);
    let (first, bytes) = cluster.overwrite_request(0, &[1, 2], index, 5, &[(1, block(1))]);
    let send = |asked: &OverwriteRequest| cluster.overwrite_all(0, vec![(asked.clone(), bytes.clone())]).remove(0);
    let answer = send(&first).expect("done");
    // A newer one, whose session still waits for the first.
    let (mut second, newer) = cluster.overwrite_request(0, &[1, 2], index, 6, &[(1, block(2))]);
    second.floor = 5;
    cluster.overwrite_all(0, vec![(second, newer)]).remove(0).expect("done");
    assert_eq!(send(&first).expect("answered again"), answer);
    assert_eq!(cluster.read(1, index, 4096, 4096).expect("read"), Some(block(2)), "not done again");
    cluster.overwrite(0, &[1, 2], index, 7, &[(2, block(3))]).expect("done");
    assert_eq!(send(&first).expect_err("over").code(), Some(ErrorCode::BadRequest));
    // The same request many times at once is done once.
    let (asked, payload) = cluster.overwrite_request(0, &[1, 2], index, 8, &[(3, block(4))]);
    let answers = cluster.overwrite_all(0, vec![(asked, payload); 6]);
    assert!(answers.iter().all(|answer| answer.is_ok()), "{answers:?}");
    assert_eq!(cluster.nodes[0].store().info(id(index)).expect("here").overwrite.count, 4);
}

/// What belongs to nobody, to a writer, or is not durable could be changed.
#[test]
fn what_cannot_be_overwritten_is_refused() {
    let cluster = start();
    let open = chunk(&cluster, 4 * BLOCK_SIZE + 10, false);
    let refused = |index, at, request| -> Option<ErrorCode> {
        cluster.overwrite(0, &[1, 2], index, request, &[(at, block(1))]).expect_err("refused").code()
    };
    assert_eq!(refused(open, 4, 1), Some(ErrorCode::NotInPlace), "the tail of an open chunk");
    assert_eq!(refused(open, 5, 2), Some(ErrorCode::Missing), "beyond the end");
    assert_eq!(refused(open + 90, 0, 3), Some(ErrorCode::Missing), "no such chunk");
    cluster.overwrite(0, &[1, 2], open, 4, &[(2, block(1))]).expect("an open chunk takes it elsewhere");
    let sealed = chunk(&cluster, 4 * BLOCK_SIZE, true);
    for node in &cluster.nodes {
        let range = cairn_wire::common::ChunkRange { offset: 4096, length: 4096 };
        let item = FreeItem { disk: node.disk, pg: PG, index: sealed, ranges: vec![range] };
        let i = (node.disk - 101) as usize;
        let request = FreeRequest { items: vec![item] };
        let _: (FreeResponse, _) = cluster.call(i, Opcode::Free, &request, cairn_rpc::Payload::None).expect("freed");
    }
    assert_eq!(refused(sealed, 1, 5), Some(ErrorCode::ChunkDeleted), "freed");
    // Damaged on the way, several times the same block, nothing at all, another chain, nobody's session.
    let (good, bytes) = cluster.overwrite_request(0, &[1, 2], sealed, 6, &[(0, block(1)), (2, block(2))]);
    let mut damaged = bytes.clone();
    damaged[77] ^= 1;
    let twice = OverwriteRequest { vectors: vec![good.vectors[1], good.vectors[1]], ..good.clone() };
    let empty = OverwriteRequest { vectors: Vec::new(), crcs: Vec::new(), ..good.clone() };
    let short = OverwriteRequest { chain: vec![102], ..good.clone() };
    let nobody = OverwriteRequest { request: 0, ..good.clone() };
    let settle = OverwriteRequest { settle: true, chain: Vec::new(), ..good.clone() };
    for (asked, bytes, code) in [
        (good.clone(), damaged, ErrorCode::ChecksumMismatch),
        (twice, bytes.clone(), ErrorCode::BadRequest),
        (empty, Vec::new(), ErrorCode::BadRequest),
        (short, bytes.clone(), ErrorCode::NotServing),
        (nobody, bytes.clone(), ErrorCode::BadRequest),
        (settle, bytes.clone(), ErrorCode::BadRequest),
    ] {
        let error = cluster.overwrite_all(0, vec![(asked.clone(), bytes)]).remove(0).expect_err("refused");
        assert_eq!(error.code(), Some(code), "{asked:?}: {error}");
    }
    let (asked, bytes) = cluster.overwrite_request(1, &[2], sealed, 7, &[(0, block(1))]);
    let error = cluster.overwrite_all(1, vec![(asked, bytes)]).remove(0).expect_err("not the primary");
    assert_eq!(error.code(), Some(ErrorCode::NotPrimary), "{error}");
    assert_eq!(cluster.nodes[0].store().info(id(sealed)).expect("here").overwrite.count, 0);
    assert!(equal(&cluster, &[0, 1, 2], open) && equal(&cluster, &[0, 1, 2], sealed));
}

/// Members would apply overwrites that are under way together in different orders.
#[test]
fn many_at_once_have_one_order() {
    let cluster = start();
    let index = chunk(&cluster, 64 * BLOCK_SIZE, true);
    let mut request = 0;
    for round in 0..8 {
        let requests = (0..16).map(|i| {
            request += 1;
            // Of several sessions, on the same few blocks.
            let (mut asked, bytes) = cluster.overwrite_request(
                0,
                &[1, 2],
                index,
                request,
                &[(i % 3, block(request)), (9 + i % 2, block(i.into()))],
            );
            asked.chunk.as_mut().expect("named").session = SessionId(50 + u64::from(i)).get();
            (asked, bytes)
        });
        let answers = cluster.overwrite_all(0, requests.collect());
        assert!(answers.iter().all(Result::is_ok), "round {round}: {answers:?}");
        assert!(equal(&cluster, &[0, 1, 2], index), "round {round}");
    }
    assert_eq!(cluster.nodes[1].store().info(id(index)).expect("here").overwrite.count, 128);
}

/// A member that missed an overwrite would serve the old block for ever, or all writing would end with it.
#[test]
fn a_member_that_missed_one_is_made_equal_within_the_epoch() {
    let cluster = start();
    let index = chunk(&cluster, 600 * BLOCK_SIZE, true);
    cluster.overwrite(0, &[1, 2], index, 1, &[(1, block(1))]).expect("done");
    // The last member is told of another number, as if it had missed something, and has other blocks.
    let (mut asked, bytes) = cluster.overwrite_request(2, &[], index, 0, &[(5, block(99)), (7, block(98))]);
    let epoch = cluster.epoch;
    asked.settle = true;
    asked.number = Some(OverwriteNumber { epoch, count: 77 });
    let payload = cairn_rpc::Payload::One(bytes.into());
    let _: (cairn_wire::data::OverwriteResponse, _) =
        cluster.call_as_server(2, Opcode::Overwrite, &asked, payload).expect("taken");
    let error = cluster.overwrite(0, &[1, 2], index, 2, &[(2, block(2))]).expect_err("out of order");
    assert_eq!(error.code(), Some(ErrorCode::Overloaded), "{error}");
    overwrite_soon(&cluster, 0, &[1, 2], index, 2, 2, 2);
    assert!(equal(&cluster, &[0, 1, 2], index));
    assert_eq!(
        cluster.read(2, index, 5 * 4096, 4096).expect("read"),
        Some(pattern(7, 600 * 4096)[5 * 4096..6 * 4096].to_vec())
    );
    assert_eq!(cluster.read(2, index, 4096, 8192).expect("read"), Some([block(1), block(2)].concat()));
    assert!(cluster.nodes[2].store().info(id(index)).expect("here").overwrite.count > 77, "above all that are known");
}

/// An acknowledged overwrite would be lost with the member that was asked for it, or an old block come back with a
/// member that was away.
#[test]
fn members_die_and_come_back() {
    let mut cluster = start();
    let index = chunk(&cluster, 300 * BLOCK_SIZE, true);
    cluster.overwrite(0, &[1, 2], index, 1, &[(1, block(1)), (2, block(1))]).expect("done");
    // Only the primary and the second have this one: nobody is told that it was done.
    cluster.kill(2);
    let error = cluster.overwrite(0, &[1, 2], index, 2, &[(2, block(2))]).expect_err("the last one is dead");
    let disk = |error: &CallError| if let CallError::Remote(e) = error { e.failed_disk } else { None };
    assert_eq!((error.code(), disk(&error)), (Some(ErrorCode::ChainFailed), Some(103)), "{error}");
    cluster.raise(&[Serving, Serving, Offline]);
    overwrite_soon(&cluster, 0, &[1], index, 3, 3, 3);
    // The primary is lost with one that only it has.
    cluster.kill(1);
    let error = cluster.overwrite(0, &[1], index, 4, &[(4, block(4))]).expect_err("the second one is dead");
    assert_eq!(error.code(), Some(ErrorCode::ChainFailed), "{error}");
    cluster.kill(0);
    cluster.restart(1);
    cluster.restart(2);
    // It was the only one to serve, with the primary; the last one catches up from it.
    cluster.raise(&[Offline, Serving, Syncing]);
    eventually("caught up", || cluster.nodes[2].report().is_some_and(|report| report.caught_up));
    cluster.raise(&[Offline, Serving, Serving]);
    overwrite_soon(&cluster, 1, &[2], index, 5, 5, 5);
    cluster.restart(0);
    cluster.raise(&[Syncing, Serving, Serving]);
    // While it catches up, blocks go on being overwritten, also those that it has alone.
    overwrite_soon(&cluster, 1, &[2, 0], index, 6, 6, 6);
    eventually("caught up", || cluster.nodes[0].report().is_some_and(|report| report.caught_up));
    overwrite_soon(&cluster, 1, &[0, 2], index, 7, 7, 7);
    cluster.raise(&[Serving, Serving, Serving]);
    overwrite_soon(&cluster, 0, &[1, 2], index, 8, 8, 8);
    assert!(equal(&cluster, &[0, 1, 2], index));
    let old = pattern(7, 300 * BLOCK_SIZE);
    for i in 0..3 {
        for seed in [1, 3, 5, 6, 7, 8u64] {
            let found = cluster.read(i, index, seed * 4096, 4096).expect("read").expect("intact");
            assert!(found == block(seed), "member {i}, block {seed}");
        }
        let second = cluster.read(i, index, 2 * 4096, 4096).expect("read").expect("intact");
        assert!(second == block(1) || second == block(2), "the old one or the new one");
        let fourth = cluster.read(i, index, 4 * 4096, 4096).expect("read").expect("intact");
        assert_eq!(fourth, old[4 * 4096..5 * 4096], "nobody else had it");
    }
}

/// A member that was away would come back with an old end of a chunk, and give it to all others as soon as it leads:
/// the last block is seldom whole.
#[test]
fn a_partial_last_block_is_caught_up_as_well() {
    let mut cluster = start();
    let index = chunk(&cluster, 3 * BLOCK_SIZE + 100, true);
    cluster.kill(2);
    cluster.raise(&[Serving, Serving, Offline]);
    let mut last = block(9);
    last[100..].fill(0);
    eventually("the overwrite", || cluster.overwrite(0, &[1], index, 1, &[(3, last.clone())]).is_ok());
    cluster.restart(2);
    cluster.raise(&[Serving, Serving, Syncing]);
    eventually("caught up", || cluster.nodes[2].report().is_some_and(|report| report.caught_up));
    assert!(equal(&cluster, &[0, 1, 2], index), "the last block is an old one");
}

/// A member that catches up would never be done while others are written to all the time, or be done too early.
#[test]
fn catching_up_ends_while_blocks_are_overwritten() {
    let mut cluster = start();
    let index = chunk(&cluster, 1200 * BLOCK_SIZE, true);
    let second = chunk(&cluster, 500 * BLOCK_SIZE, true);
    cluster.kill(2);
    cluster.raise(&[Serving, Serving, Offline]);
    let third = cluster.allocate(0).expect("an index");
    cluster.append(0, &[1], third, 0, &pattern(7, 200 * BLOCK_SIZE)).expect("appended");
    cluster.sync(0, &[1], third).expect("synced");
    cluster.seal(0, &[1], third).expect("sealed");
    let chunks = [(index, 1200u32), (second, 500), (third, 200)];
    let mut request = 10;
    let mut newest = std::collections::BTreeMap::new();
    let mut burst = |cluster: &Cluster, chain: &[usize]| {
        let mut wanted = Vec::new();
        let mut requests = Vec::new();
        for i in 0..12u32 {
            request += 1;
            let (index, blocks) = chunks[(i % 3) as usize];
            let at = (request as u32).wrapping_mul(2_654_435_761) % blocks;
            if wanted.iter().any(|(known, _)| *known == (index, at)) {
                continue;
            }
            wanted.push(((index, at), request));
            let (mut asked, bytes) = cluster.overwrite_request(0, chain, index, request, &[(at, block(request))]);
            asked.floor = request - 30.min(request);
            requests.push((asked, bytes));
        }
        for ((key, seed), answer) in wanted.into_iter().zip(cluster.overwrite_all(0, requests)) {
            match answer {
                Ok(_) => drop(newest.insert(key, seed)),
                Err(error) => panic!("{error}"),
            }
        }
    };
    overwrite_soon(&cluster, 0, &[1], index, 1, 1, 0);
    (0..20).for_each(|_| burst(&cluster, &[1]));
    cluster.restart(2);
    cluster.raise(&[Serving, Serving, Syncing]);
    let mut bursts = 0;
    eventually("open", || cluster.overwrite(0, &[1, 2], index, 2, &[(0, block(1))]).is_ok());
    while !cluster.nodes[2].report().is_some_and(|report| report.caught_up) {
        burst(&cluster, &[1, 2]);
        bursts += 1;
        assert!(bursts < 3000, "it does not come to an end");
    }
    (0..5).for_each(|_| burst(&cluster, &[1, 2]));
    println!("{bursts} bursts while it caught up");
    for (index, _) in chunks {
        assert!(equal(&cluster, &[0, 1, 2], index), "before it serves");
    }
    for ((index, at), seed) in newest {
        let at = u64::from(at) * 4096;
        let found = cluster.nodes[2].store();
        let chunk = found.chunk(id(index)).expect("here");
        let read = found.read_now(&chunk, at, 4096).expect("read");
        let first = u64::from(at == 0 && index == chunks[0].0) == 1;
        assert!(first || read.data[..] == block(seed)[..], "block {at} of {index}");
    }
}

/// One bad block of the primary, in a chunk whose members have to be made equal, would keep its whole group from being
/// overwritten, and its open chunks from being sealed, until a scrub comes by.
#[test]
fn a_bad_block_does_not_keep_a_group_from_beginning_an_epoch() {
    for lost in [false, true] {
        let mut cluster = start();
        let index = chunk(&cluster, 40 * BLOCK_SIZE, true);
        let other = chunk(&cluster, 40 * BLOCK_SIZE, true);
        let open = chunk(&cluster, 40 * BLOCK_SIZE, false);
        cluster.overwrite(0, &[1, 2], other, 1, &[(1, block(1))]).expect("done");
        // The primary alone has this one, and then it is bad.
        let (mut asked, bytes) = cluster.overwrite_request(0, &[], index, 0, &[(5, block(99))]);
        asked.settle = true;
        asked.number = Some(OverwriteNumber { epoch: cluster.epoch, count: 7 });
        let payload = cairn_rpc::Payload::One(bytes.into());
        let _: (cairn_wire::data::OverwriteResponse, _) =
            cluster.call_as_server(0, Opcode::Overwrite, &asked, payload).expect("taken");
        (0..3).for_each(|i| cluster.nodes[i].store().checkpoint());
        let bad = if lost { 0..3 } else { 0..1 };
        bad.for_each(|i| damage(&cluster, i, index, 5));
        // Nobody has what the checksum here says, and so it is not called healed.
        let error = report(&cluster, 0, index, 5).expect_err("not healed");
        assert_eq!(error.code(), Some(ErrorCode::ChecksumMismatch), "{error}");
        assert_eq!(cluster.nodes[0].store().verify_block(id(index), 5), Ok(false));
        cluster.raise(&[Serving; 3]);
        overwrite_soon(&cluster, 0, &[1, 2], other, 2, 2, 2);
        eventually("the seal", || cluster.nodes[0].store().info(id(open)).is_some_and(|info| info.sealed));
        if lost {
            let error = cluster.overwrite(0, &[1, 2], index, 3, &[(2, block(2))]).expect_err("it waits");
            assert_eq!(error.code(), Some(ErrorCode::Overloaded), "{error}");
            continue;
        }
        overwrite_soon(&cluster, 0, &[1, 2], index, 3, 2, 2);
        assert!(equal(&cluster, &[0, 1, 2], index));
        let wanted = pattern(7, 40 * BLOCK_SIZE)[5 * BLOCK_SIZE..6 * BLOCK_SIZE].to_vec();
        assert_eq!(cluster.read(0, index, 5 * 4096, 4096).expect("read"), Some(wanted), "as the others have it");
    }
}

/// A member that took more of a chunk than the others were closed at would keep the block in which they end as it was
/// before others overwrote it: as long as it is longer there its checksum cannot be theirs.
#[test]
fn a_partial_block_that_is_whole_here_is_compared_too() {
    const END: usize = 5 * BLOCK_SIZE + 1000;
    let bytes = pattern(4, 7 * BLOCK_SIZE);
    let mut cluster = start();
    let index = cluster.allocate(0).expect("an index");
    cluster.append(0, &[1, 2], index, 0, &bytes[..END]).expect("appended");
    cluster.append(2, &[], index, 5 * 4096, &bytes[5 * 4096..]).expect("as from the member before");
    cluster.raise(&[Serving, Serving, Offline]);
    let sealed = |i: usize| cluster.nodes[i].store().info(id(index)).is_some_and(|info| info.sealed);
    eventually("the seal", || sealed(0) && sealed(1));
    let tail = [pattern(9, 1000), vec![0; BLOCK_SIZE - 1000]].concat();
    cluster.overwrite(0, &[1], index, 1, &[(5, tail.clone())]).expect("done");
    cluster.raise(&[Serving, Serving, Syncing]);
    eventually("catching up", || cluster.nodes[2].report().is_some_and(|report| report.caught_up));
    let length = |i: usize| cluster.nodes[i].store().info(id(index)).map(|info| info.length);
    assert_eq!([length(0), length(2)], [Some(END as u64), Some(7 * 4096)], "nothing is cut off");
    cluster.raise(&[Serving; 3]);
    let found = cluster.read(2, index, 5 * 4096, 1000).expect("read").expect("intact");
    assert!(found == pattern(9, 1000), "as it was before");
    let behind = cluster.read(2, index, END as u64, bytes.len() - END).expect("read").expect("intact");
    assert!(behind == bytes[END..], "nobody else has it");
}
