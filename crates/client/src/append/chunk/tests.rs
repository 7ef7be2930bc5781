//! Tests of the bookkeeping of one open chunk.
use super::*;
use crate::append::lane::Made;
use crate::append::retry::Retry;
use crate::error::Result;
use cairn_env::buf::SharedBuf;
use cairn_types::{Epoch, PgId};
use cairn_wire::data::MemberStamp;
use std::sync::Arc;
use tokio::sync::{Semaphore, oneshot};

const NOW: Time = Time(1_000_000_000);

fn made() -> Made {
    Made { chunk: ChunkId { pg: PgId(1), index: 4 }, epoch: Epoch(3), creation_epoch: 1, scheme: 2 }
}
fn plain() -> OpenChunk {
    OpenChunk::new(vec![Lane::new(made(), 0, (10, vec![11], vec![10, 11]))], ExtentKind::Plain, 0)
}

const UNIT: u64 = 4096;

/// rs-3-2 of which member 4 is offline.
fn rows() -> OpenChunk {
    let lanes = (0..4).map(|shard| Lane::new(made(), shard, (10 + shard as u32, vec![], vec![10 + shard as u32])));
    let stripe = Stripe::new(3, UNIT).expect("valid");
    OpenChunk::new(lanes.collect(), ExtentKind::Erasure(stripe), 2)
}
fn group(rows: usize) -> (Part, Vec<Cut>, oneshot::Receiver<Result<Placed>>) {
    let unit = SharedBuf::from_owner(vec![1u8; UNIT as usize]);
    let (part, answer) = part(Bytes::Units(vec![unit.clone(); rows * 3]));
    let cut = || Cut { parts: vec![unit.clone(); rows], crcs: Vec::new(), row_crcs: Vec::new() };
    (part, (0..5).map(|_| cut()).collect(), answer)
}

fn part(bytes: Bytes) -> (Part, oneshot::Receiver<Result<Placed>>) {
    let (done, answer) = oneshot::channel();
    let permit = Arc::new(Semaphore::new(10)).try_acquire_owned().expect("permit");
    (Part { bytes, sync: true, done, show: None, retry: Retry::default(), _permit: permit }, answer)
}
fn segment(bytes: usize, lead: usize) -> (Part, oneshot::Receiver<Result<Placed>>) {
    part(Bytes::Segment { data: SharedBuf::from_owner(vec![1u8; bytes]), lead, crcs: Vec::new() })
}
/// Places it; the offset in each lane that has some of it.
fn send(chunk: &mut OpenChunk, part: Part) -> Vec<(usize, u64)> {
    let cuts = chunk.cut(&part);
    chunk.place(part, cuts).iter().map(|(lane, offset, _)| (*lane, *offset)).collect()
}
/// A lane's answer to an append, or to a sync with how far it is durable.
fn answer(chunk: &mut OpenChunk, lane: usize, append: Option<u64>, durable: Option<u64>) {
    if append.is_some() {
        chunk.lanes[lane].silence.asked(NOW);
    }
    let members = chunk.lanes[lane].members().into_iter().map(|disk| MemberStamp { disk, incarnation: 1 }).collect();
    let answer = Answer { durable: durable.unwrap_or(0), members };
    chunk.answered(lane, (append, durable.is_some()), &answer, NOW).expect("taken");
}

#[test]
fn files_start_on_block_boundaries_and_are_told_when_durable() {
    let mut chunk = plain();
    let (first, mut first_answer) = segment(100, 0);
    let (second, mut second_answer) = segment(5000, 10);
    assert_eq!((send(&mut chunk, first), send(&mut chunk, second)), (vec![(0, 0)], vec![(0, 4096)]));
    assert_eq!(chunk.in_flight(), 2);
    answer(&mut chunk, 0, Some(4096), Some(9096));
    assert!(second_answer.try_recv().is_err(), "in order: the first is not acknowledged yet");
    answer(&mut chunk, 0, Some(0), None);
    let at = |offset| Placed { chunk: made().chunk, offset, kind: ExtentKind::Plain, set: None };
    let placed = first_answer.try_recv().expect("answered").expect("placed");
    assert_eq!(placed, at(0));
    let placed = second_answer.try_recv().expect("answered").expect("placed");
    assert_eq!(placed, at(4106));
    assert!(chunk.is_idle());
}

#[test]
fn what_is_not_durable_comes_back_in_order() {
    let mut chunk = plain();
    let (first, _a) = segment(4096, 0);
    let (second, _b) = segment(10, 0);
    send(&mut chunk, first);
    send(&mut chunk, second);
    answer(&mut chunk, 0, Some(0), None);
    let places: Vec<_> = chunk.unsynced_places().iter().map(|place| (place.2, place.3)).collect();
    assert_eq!(places, [(0, 4096), (4096, 10)]);
    let back = chunk.take_unsynced();
    assert_eq!(back.iter().map(|part| part.bytes.len()).collect::<Vec<_>>(), [4096, 10]);
    assert!(!chunk.has_room(1));
}

/// A writer would wait for ever for what nobody makes durable, or each of many small files cost a sync.
#[test]
fn those_who_wait_share_the_next_sync() {
    let (mut chunk, every) = (plain(), 1 << 20);
    assert!(!chunk.wants_sync(every, true));
    let (first, mut first_answer) = segment(10, 0);
    let (second, mut second_answer) = segment(10, 0);
    send(&mut chunk, first);
    assert!(chunk.wants_sync(every, true) && !chunk.wants_sync(every, false), "more follows");
    assert_eq!(chunk.ask_sync(), [0]);
    send(&mut chunk, second);
    answer(&mut chunk, 0, Some(4096), None);
    assert!(!chunk.wants_sync(every, true), "one is under way");
    answer(&mut chunk, 0, Some(0), Some(10));
    assert!(first_answer.try_recv().is_ok() && second_answer.try_recv().is_err());
    assert!(chunk.wants_sync(every, false) && chunk.wants_sync(every, true));
    assert_eq!(chunk.ask_sync(), [0]);
    answer(&mut chunk, 0, None, Some(4106));
    assert!(second_answer.try_recv().is_ok() && chunk.is_idle() && !chunk.wants_sync(every, true));
    let (third, _answer) =
        part(Bytes::Segment { data: SharedBuf::from_owner(vec![1u8; 1 << 20]), lead: 0, crcs: Vec::new() });
    send(&mut chunk, Part { sync: false, ..third });
    assert!(chunk.wants_sync(every, false), "so many bytes");
    assert_eq!(chunk.ask_sync(), [0]);
    let (fourth, _answer) =
        part(Bytes::Segment { data: SharedBuf::from_owner(vec![1u8; 1 << 20]), lead: 0, crcs: Vec::new() });
    send(&mut chunk, Part { sync: false, ..fourth });
    assert!(!chunk.wants_sync(every, false), "a slow disk has enough to do with one");
    answer(&mut chunk, 0, None, Some(8192 + (1 << 20)));
    assert!(chunk.wants_sync(every, false));
}

/// The end of a striped file would wait for two syncs of all members, one behind the other.
#[test]
fn syncs_of_rows_do_not_wait_for_each_other() {
    let mut chunk = rows();
    let (first, first_cuts, _a) = group(2);
    let (second, second_cuts, _b) = group(2);
    chunk.place(Part { sync: false, ..first }, first_cuts);
    assert!(chunk.wants_sync(6 * UNIT, false));
    assert_eq!(chunk.ask_sync(), [0, 1, 2, 3]);
    chunk.place(second, second_cuts);
    assert!(chunk.wants_sync(6 * UNIT, false), "so many bytes");
    assert!(chunk.wants_sync(99 * UNIT, true) && !chunk.wants_sync(99 * UNIT, false), "the end, and no end");
}

/// Rows would be published that some serving member does not have.
#[test]
fn rows_are_told_only_when_all_members_have_them_durably() {
    let mut chunk = rows();
    let (first, first_cuts, mut first_answer) = group(2);
    let (second, second_cuts, mut second_answer) = group(1);
    assert_eq!(
        chunk.place(first, first_cuts).iter().map(|p| (p.0, p.1)).collect::<Vec<_>>(),
        [0, 1, 2, 3].map(|l| (l, 0))
    );
    let offsets: Vec<u64> = chunk.place(second, second_cuts).iter().map(|placed| placed.1).collect();
    assert_eq!((offsets, chunk.in_flight()), (vec![2 * UNIT; 4], 2));
    for lane in 0..4 {
        answer(&mut chunk, lane, Some(0), Some(2 * UNIT));
        assert_eq!(first_answer.try_recv().is_ok(), lane == 3, "lane {lane}");
    }
    for lane in 0..3 {
        answer(&mut chunk, lane, Some(2 * UNIT), Some(3 * UNIT));
    }
    answer(&mut chunk, 3, None, Some(3 * UNIT));
    assert!(second_answer.try_recv().is_err(), "shard 3 did not acknowledge it");
    answer(&mut chunk, 3, Some(2 * UNIT), None);
    let placed = second_answer.try_recv().expect("answered").expect("placed");
    assert_eq!((placed.chunk, placed.offset), (chunk.id(), 2 * 3 * UNIT));
    assert!(chunk.is_idle());
}

/// A slow member would hold up a write for the deadline of its calls, or a busy machine get healthy members reported.
#[test]
fn only_who_lags_behind_its_peers_is_slow() {
    let mut chunk = rows();
    let (first, cuts, _a) = group(1);
    let (second, more_cuts, _b) = group(2);
    chunk.place(first, cuts);
    chunk.place(second, more_cuts);
    answer(&mut chunk, 0, Some(0), None);
    assert!(chunk.lagging(NOW).is_empty() && chunk.lagging(NOW + SLOW * 9).is_empty(), "nobody is compared");
    answer(&mut chunk, 1, Some(0), None);
    let since = NOW + SLOW * 10;
    assert!(chunk.lagging(since).is_empty() && chunk.lagging(since + SLOW / 2).is_empty());
    assert_eq!(chunk.lagging(since + SLOW), [2, 3]);
    answer(&mut chunk, 2, Some(0), None);
    assert_eq!(chunk.lagging(since + SLOW), [3]);
    let places: Vec<_> = chunk.unsynced_places().iter().map(|place| (place.2, place.3)).collect();
    assert_eq!(places, [(0, 3 * UNIT), (3 * UNIT, 6 * UNIT)], "in the space of the chunk");
    assert_eq!(chunk.take_unsynced().iter().map(|part| part.bytes.len()).collect::<Vec<_>>(), [3 * UNIT, 6 * UNIT]);
    assert!(!chunk.has_room(UNIT));
}

/// Each sync that is asked for meanwhile would give a member that is too slow its time anew; or one that lacks the sync
/// alone be blamed for the time that another one took to take the bytes.
#[test]
fn bytes_and_their_sync_are_compared_apart() {
    let mut chunk = rows();
    let (first, cuts, _a) = group(1);
    chunk.place(first, cuts);
    (0..3).for_each(|lane| answer(&mut chunk, lane, Some(0), None));
    assert!(chunk.lagging(NOW).is_empty());
    chunk.ask_sync();
    assert!(chunk.lagging(NOW + SLOW / 2).is_empty());
    assert_eq!(chunk.lagging(NOW + SLOW), [3]);
    answer(&mut chunk, 3, Some(0), None);
    (1..4).for_each(|lane| answer(&mut chunk, lane, None, Some(UNIT)));
    assert!(chunk.lagging(NOW + SLOW * 2).is_empty(), "lane 0 lacks the sync since now");
    assert_eq!(chunk.lagging(NOW + SLOW * 3), [0]);
}

/// Members would be reported, all of them, because this machine stood still for a moment.
#[test]
fn more_silent_lanes_than_may_be_slow_get_longer() {
    let mut chunk = rows();
    let ask = |chunk: &mut OpenChunk, lanes: std::ops::Range<usize>| {
        chunk.lanes[lanes].iter_mut().for_each(|lane| lane.silence.asked(NOW));
    };
    ask(&mut chunk, 0..2);
    assert!(chunk.silent(NOW, 9).is_empty());
    assert_eq!(chunk.silent(NOW + ALL_SILENT / 2, 1), [0], "no more than may be looked at");
    assert_eq!(chunk.silent(NOW + ALL_SILENT / 2, 9), [1]);
    let mut chunk = rows();
    ask(&mut chunk, 0..3);
    assert!(chunk.silent(NOW + ALL_SILENT / 2, 9).is_empty());
    assert_eq!(chunk.silent(NOW + ALL_SILENT, 9), [0, 1, 2]);
    let mut single = plain();
    single.lanes[0].silence.asked(NOW);
    assert_eq!(single.silent(NOW + ALL_SILENT / 2, 9), [0], "nobody is compared with it");
}

/// Shards would get longer than their checksum tables.
#[test]
fn a_chunk_takes_no_more_than_its_lanes_hold() {
    let mut chunk = rows();
    assert!(chunk.has_room(3 * CHUNK_SIZE_MAX));
    let (part, cuts, _answer) = group(1);
    chunk.place(part, cuts);
    assert!(!chunk.has_room(3 * CHUNK_SIZE_MAX) && chunk.has_room(3 * (CHUNK_SIZE_MAX - UNIT)));
}

/// Units would lie on other columns than readers look at, or a set be given back as what it is not.
#[test]
fn units_go_to_the_columns_of_a_set_in_turn() {
    let stripe = Stripe::new(3, 2 * UNIT).expect("valid");
    let chunk_of = |column: usize| ChunkId { pg: PgId(column as u32), index: 7 };
    let lane = |column| Lane::new(Made { chunk: chunk_of(column), ..made() }, column, (10, vec![11], vec![10, 11]));
    let mut chunk = OpenChunk::new((0..3).map(lane).collect(), ExtentKind::Set(stripe), 0);
    let units = |count: usize, last: u64| {
        let unit = |n| SharedBuf::from_owner(vec![n as u8; if n + 1 == count { last } else { 2 * UNIT } as usize]);
        part(Bytes::Units((0..count).map(unit).collect()))
    };
    let (first, mut first_answer) = units(4, 2 * UNIT);
    let (second, mut second_answer) = units(3, 100);
    assert_eq!(send(&mut chunk, first), [(0, 0), (1, 0), (2, 0)]);
    assert_eq!(chunk.cut(&second).iter().map(Cut::len).collect::<Vec<_>>(), [100, 2 * UNIT, 2 * UNIT]);
    assert_eq!(send(&mut chunk, second), [(0, 4 * UNIT), (1, 2 * UNIT), (2, 2 * UNIT)]);
    assert!(!chunk.has_room(2 * UNIT), "nothing follows a short unit");
    for (lane, durable) in [4 * UNIT, 2 * UNIT, 2 * UNIT].into_iter().enumerate() {
        assert!(first_answer.try_recv().is_err());
        answer(&mut chunk, lane, Some(0), Some(durable));
    }
    let placed = first_answer.try_recv().expect("answered").expect("placed");
    assert_eq!((placed.chunk, placed.offset, placed.kind), (chunk_of(0), 0, ExtentKind::Set(stripe)));
    assert_eq!(placed.set.expect("a set").column_pgs, [0, 1, 2]);
    assert!(second_answer.try_recv().is_err());
    let back: Vec<_> = chunk.unsynced_places();
    let plain = |column, offset, bytes| (chunk_of(column), ExtentKind::Plain, offset, bytes);
    assert_eq!(back, [plain(0, 4 * UNIT, 100), plain(1, 2 * UNIT, 2 * UNIT), plain(2, 2 * UNIT, 2 * UNIT)]);
}
