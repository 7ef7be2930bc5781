//! Tests of the bookkeeping of one striped chunk.
use super::*;
use crate::append::retry::Retry;
use crate::error::Result;
use crate::stripe::waiting::STALL;
use cairn_env::buf::SharedBuf;
use cairn_types::PgId;
use std::sync::Arc;
use tokio::sync::{Semaphore, oneshot};

const UNIT: u64 = 4096;
const NOW: Time = Time(1_000_000_000);

/// rs-3-2 of which member 4 is offline.
fn chunk() -> StripedChunk {
    let id = ChunkId { pg: PgId(1), index: 4 };
    let stripe = Stripe::new(3, UNIT).expect("valid");
    let scheme = Scheme::Erasure { k: 3, m: 2 };
    let receivers = vec![Some(10), Some(11), Some(12), Some(13), None];
    StripedChunk::new(id, (Epoch(3), 3), scheme, stripe, receivers)
}

fn group(rows: usize) -> (RowGroup, oneshot::Receiver<Result<Placed>>) {
    let (done, answer) = oneshot::channel();
    let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().expect("permit");
    let unit = SharedBuf::from_owner(vec![1u8; UNIT as usize]);
    (RowGroup { units: vec![unit; rows * 3], sync: true, done, retry: Retry::default(), _permit: permit }, answer)
}

fn stamp(disk: u32, incarnation: u64) -> Vec<MemberStamp> {
    vec![MemberStamp { disk, incarnation }]
}

/// Rows would be published that some serving member does not have.
#[test]
fn a_group_is_told_only_when_all_members_have_it_durably() {
    let mut chunk = chunk();
    let (first, mut first_answer) = group(2);
    let (second, mut second_answer) = group(1);
    assert_eq!((chunk.place(first), chunk.place(second)), (0, 2 * UNIT));
    assert_eq!((chunk.in_flight(), chunk.unsynced()), (2, 9 * UNIT));
    for shard in 0..4 {
        chunk.acknowledge(shard, 0, NOW);
        chunk.make_durable(shard, 2 * UNIT);
        assert_eq!(first_answer.try_recv().is_ok(), shard == 3, "shard {shard}");
    }
    for shard in 0..3 {
        chunk.acknowledge(shard, 2 * UNIT, NOW);
        chunk.make_durable(shard, 3 * UNIT);
    }
    chunk.make_durable(3, 3 * UNIT);
    assert!(second_answer.try_recv().is_err(), "shard 3 did not acknowledge it");
    assert!(!chunk.begin_sync(), "not everybody has all of it");
    chunk.acknowledge(3, 2 * UNIT, NOW);
    chunk.make_durable(3, 3 * UNIT);
    let placed = second_answer.try_recv().expect("answered").expect("placed");
    assert_eq!(placed, Placed { chunk: chunk.id, offset: 2 * 3 * UNIT });
    assert!(chunk.is_idle());
}

/// A writer would wait for ever for rows that nobody makes durable.
#[test]
fn a_sync_is_begun_when_all_is_there_and_somebody_waits() {
    let mut chunk = chunk();
    let (first, mut answer) = group(1);
    chunk.place(first);
    for shard in 0..4 {
        assert!(!chunk.begin_sync());
        chunk.acknowledge(shard, 0, NOW);
    }
    assert!(chunk.begin_sync() && !chunk.begin_sync());
    for shard in 0..4 {
        chunk.sync_answered(shard, NOW);
        chunk.make_durable(shard, UNIT);
    }
    assert!(answer.try_recv().is_ok() && chunk.is_idle());
}

/// Bytes that a restarted member forgot would count as written.
#[test]
fn a_restarted_or_wrong_member_is_noticed() {
    let mut chunk = chunk();
    assert_eq!(chunk.check_stamp(0, &stamp(10, 1)), Ok(()));
    assert_eq!(chunk.check_stamp(0, &stamp(10, 1)), Ok(()));
    assert!(chunk.check_stamp(0, &stamp(10, 2)).is_err_and(|e| e.contains("d10")));
    assert!(chunk.check_stamp(1, &stamp(12, 1)).is_err_and(|e| e.contains("d11")));
    assert!(chunk.check_stamp(4, &stamp(14, 1)).is_err());
}

/// One stopped member would stop the write.
#[test]
fn who_lags_is_named_and_what_is_not_durable_comes_back_in_order() {
    let mut chunk = chunk();
    let (first, _a) = group(1);
    let (second, _b) = group(2);
    chunk.place(first);
    chunk.place(second);
    for shard in [0, 1, 3] {
        chunk.acknowledge(shard, 0, NOW);
    }
    assert!(chunk.late(NOW, STALL).is_empty());
    assert_eq!(chunk.late(NOW + STALL, STALL), [(2, 12)]);
    let back = chunk.take_unsynced();
    assert_eq!(back.iter().map(|g| g.units.len()).collect::<Vec<_>>(), [3, 6]);
    assert!(!chunk.has_room(UNIT));
}

/// Shards would get longer than their checksum tables.
#[test]
fn a_chunk_takes_no_more_than_its_shards_hold() {
    let mut chunk = chunk();
    assert!(chunk.has_room(CHUNK_SIZE_MAX));
    chunk.place(group(1).0);
    assert!(!chunk.has_room(CHUNK_SIZE_MAX) && chunk.has_room(CHUNK_SIZE_MAX - UNIT));
}
