//! Writing shards: what members of an erasure group take, and what a new epoch does to them.

use cairn_types::MemberState::{Offline, Serving, Syncing};
use cairn_types::{ErrorCode, Scheme};
use cairn_wire::data::AppendRequest;

use super::cluster::{Cluster, SESSION, eventually};
use super::repairs::id;
use super::stripes::{Shards, read_shard};

pub(super) const RS32: Scheme = Scheme::Erasure { k: 3, m: 2 };
pub(super) const ALL: [usize; 5] = [0, 1, 2, 3, 4];
pub(super) const UNIT: usize = 64 << 10;

/// Rows would not be on all members, or parity without what decoded bytes are checked against.
#[test]
fn each_member_holds_its_shard() {
    let cluster = Cluster::start_scheme(RS32, |_| {});
    let index = cluster.allocate(0).expect("an index");
    let shards = Shards::new(RS32, 1, 4 * UNIT);
    shards.put(&cluster, &ALL, index);
    for i in ALL {
        shards.check_all(&cluster, i, index);
        // A repeat is answered as before, with this member's stamp alone.
        let again = shards.write(&cluster, i, index, 0, 4 * UNIT).expect("a repeat").expect("an answer");
        let stamps: Vec<u32> = again.members.iter().map(|stamp| stamp.disk).collect();
        assert_eq!((stamps, again.durable_length), (vec![cluster.nodes[i].disk], 4 * UNIT as u64));
        let header = cluster.nodes[i].store().chunk(id(index)).expect("there").header;
        assert_eq!((header.shard, header.scheme), (i as u8, RS32));
        assert_eq!(cluster.seal(i, &[], index).expect("sealed").length, 4 * UNIT as u64);
        let more = cluster.append_request(i, &[], index, 4 * UNIT as u64, &[0; 4096]);
        let rows = if i < 3 { Vec::new() } else { vec![0; 12] };
        let sealed = cluster.send(i, &AppendRequest { row_crcs: rows, ..more }, &[0; 4096]).expect_err("sealed");
        assert_eq!(sealed.code(), Some(ErrorCode::ChunkSealed));
    }
    let beyond = read_shard(&cluster, 1, index, 4 * UNIT, 4096).expect_err("nothing is there");
    assert_eq!(beyond.code(), Some(ErrorCode::Missing));
}

/// What is wrong would be taken, or what is right be refused.
#[test]
fn fences_of_shards() {
    let mut cluster = Cluster::start_scheme(RS32, |_| {});
    let index = cluster.allocate(0).expect("an index");
    let shards = Shards::new(RS32, 2, 4 * UNIT);
    for i in ALL {
        shards.write(&cluster, i, index, 0, UNIT).expect("appended");
    }
    let refused = |cluster: &Cluster, i: usize, code: ErrorCode, change: &dyn Fn(&mut AppendRequest)| {
        let mut request = shards.request(cluster, i, index, UNIT, 2 * UNIT);
        change(&mut request);
        let error = cluster.send(i, &request, &shards.bytes[i][UNIT..2 * UNIT]).expect_err("refused");
        assert_eq!(error.code(), Some(code), "{error}");
    };
    refused(&cluster, 0, ErrorCode::BadRequest, &|r| r.chain = vec![102]);
    refused(&cluster, 0, ErrorCode::BadRequest, &|r| r.repair = true);
    refused(&cluster, 0, ErrorCode::BadRequest, &|r| r.row_crcs = vec![0; 4 * 3 * UNIT / 4096]);
    refused(&cluster, 3, ErrorCode::BadRequest, &|r| r.row_crcs.clear());
    refused(&cluster, 3, ErrorCode::BadRequest, &|r| r.row_crcs.truncate(3 * 4));
    refused(&cluster, 3, ErrorCode::BadRequest, &|r| r.row_crcs.truncate(3));
    refused(&cluster, 4, ErrorCode::ChecksumMismatch, &|r| r.crcs[0] ^= 1);
    refused(&cluster, 1, ErrorCode::OffsetMismatch, &|r| r.offset = 2 * UNIT as u64);
    refused(&cluster, 1, ErrorCode::BadRequest, &|r| r.scheme = 17);
    refused(&cluster, 2, ErrorCode::BadRequest, &|r| r.chunk.as_mut().expect("set").session = SESSION + 1);
    refused(&cluster, 2, ErrorCode::NotServing, &|r| r.chunk.as_mut().expect("set").disk = 101);
    refused(&cluster, 2, ErrorCode::OffsetMismatch, &|r| {
        r.chunk.as_mut().expect("set").index = 1_000_000;
        r.offset = 0;
    });
    let part = cluster.append_request(0, &[], index, UNIT as u64, &[7; 100]);
    assert_eq!(cluster.send(0, &part, &[7; 100]).expect_err("refused").code(), Some(ErrorCode::BadRequest));
    // None of them harmed the good ones.
    for i in ALL {
        shards.write(&cluster, i, index, UNIT, 2 * UNIT).expect("appended");
    }
    // A new epoch ends the chunk on every member by itself, whatever the others do.
    let before: Vec<_> = ALL.map(|i| shards.request(&cluster, i, index, 2 * UNIT, 3 * UNIT)).into();
    cluster.kill(4);
    cluster.raise(&[Serving, Syncing, Serving, Serving, Offline]);
    for (i, before) in before.iter().enumerate().take(4) {
        let error = cluster.send(i, before, &shards.bytes[i][2 * UNIT..3 * UNIT]).expect_err("refused");
        assert_eq!(error.code(), Some(ErrorCode::StaleEpoch), "{error}");
        let mut next = shards.request(&cluster, i, index, 2 * UNIT, 3 * UNIT);
        next.creation_epoch = 1;
        let error = cluster.send(i, &next, &shards.bytes[i][2 * UNIT..3 * UNIT]).expect_err("refused");
        assert!(matches!(error.code(), Some(ErrorCode::ChunkSealed | ErrorCode::BelowMinimum)), "{error}");
        eventually("the seal", || cluster.nodes[i].store().info(id(index)).is_some_and(|info| info.sealed));
        let sync = cluster.sync(i, &[], index).expect_err("made in another epoch");
        assert_eq!(sync.code(), Some(ErrorCode::ChunkSealed), "{sync}");
    }
    // Below k + 1 serving nothing new is written.
    let below = cluster.allocate(0).expect_err("three serve, four are needed");
    assert_eq!(below.code(), Some(ErrorCode::BelowMinimum));
    for i in [0, 2, 3] {
        shards.check(&cluster, i, index, 0, 2 * UNIT);
    }
    assert_eq!(read_shard(&cluster, 1, index, 0, UNIT).expect_err("it catches up").code(), Some(ErrorCode::NotServing));
}

/// A member that does not know the epoch yet would take bytes that the others of its epoch know nothing of.
#[test]
fn writes_go_on_with_one_member_gone_and_one_catching_up() {
    let mut cluster = Cluster::start_scheme(RS32, |_| {});
    cluster.kill(0);
    cluster.raise(&[Offline, Serving, Serving, Serving, Serving]);
    let index = cluster.allocate(1).expect("the first serving member is the primary");
    let shards = Shards::new(RS32, 3, UNIT);
    let mut early = shards.request(&cluster, 2, index, 0, UNIT);
    early.chunk.as_mut().expect("set").epoch += 1;
    let error = cluster.send(2, &early, &shards.bytes[2]).expect_err("unknown to it");
    assert_eq!(error.code(), Some(ErrorCode::NotServing), "{error}");
    shards.put(&cluster, &[1, 2, 3, 4], index);
    for i in 1..5 {
        shards.check_all(&cluster, i, index);
    }
    // One that catches up is written to like the others.
    cluster.restart(0);
    cluster.raise(&[Syncing, Serving, Serving, Serving, Serving]);
    let index = cluster.allocate(1).expect("an index");
    let shards = Shards::new(RS32, 4, 2 * UNIT);
    shards.put(&cluster, &ALL, index);
    assert_eq!(cluster.nodes[0].store().info(id(index)).map(|info| info.durable), Some(2 * UNIT as u64));
}

/// A shard that nobody uses would hold its reserved space for ever.
#[test]
fn idle_shards_are_sealed() {
    let cluster = Cluster::start_scheme(RS32, |config| config.idle_seal = std::time::Duration::from_millis(200));
    let index = cluster.allocate(0).expect("an index");
    Shards::new(RS32, 5, UNIT).put(&cluster, &[1, 4], index);
    for i in [1, 4] {
        eventually("the seal", || cluster.nodes[i].store().info(id(index)).is_some_and(|info| info.sealed));
    }
}
