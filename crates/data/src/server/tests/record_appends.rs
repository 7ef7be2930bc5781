//! Records at the primary of an open append's chunk: whole, on all members, and refused when it is not known what is
//! there.

use std::time::Duration;

use cairn_format::record_frame::{Found, RecordFrame, record_at};
use cairn_rpc::{CallError, CallOptions, Payload};
use cairn_types::MemberState::Serving;
use cairn_types::{BLOCK_SIZE, ErrorCode, InodeId, SessionId};
use cairn_wire::Opcode;
use cairn_wire::data::{
    AppendRequest, ChunkHeader, RecordAppendRequest, RecordAppendResponse, RecordPart, RecordsNext, RecordsTold,
    SealRequest, SealResponse,
};

use super::cluster::{Cluster, PATIENCE, pattern};

type Answer = Result<RecordAppendResponse, CallError>;
type Pending = tokio::task::JoinHandle<Answer>;

const MEMORY: u32 = 0;
const DURABLE: u32 = 1;
const VISIBLE: u32 = 2;

fn framed(writer: u64, sequence: u64, record: &[u8]) -> Vec<u8> {
    [&RecordFrame::of(writer, sequence, record).encode()[..], record].concat()
}

impl Cluster {
    fn record_header(&self, i: usize, index: u32) -> ChunkHeader {
        ChunkHeader { session: SessionId::of_append(InodeId(9)).0, ..self.header(i, index) }
    }

    fn record_request(&self, index: u32, level: u32) -> RecordAppendRequest {
        let (chunk, creation_epoch) = (Some(self.record_header(0, index)), self.epoch);
        RecordAppendRequest { chunk, creation_epoch, level, knows_next: true, ..Default::default() }
    }

    /// Sent, and answered some time.
    fn begin_records(&self, request: RecordAppendRequest, frames: &[u8]) -> Pending {
        let (client, address) = (self.client.clone(), self.nodes[0].address.clone());
        let payload = if frames.is_empty() { Payload::None } else { Payload::One(frames.to_vec().into()) };
        // One stream: they come in this order.
        let options = CallOptions::new(PATIENCE).bulk().stream(1);
        let call = client.call(&address, Opcode::RecordAppend.code(), &request, payload, options);
        self.runtime.spawn(async move { call.await?.decode() })
    }

    fn ended(&self, pending: Pending) -> Answer {
        self.runtime.block_on(pending).expect("no panic")
    }

    fn records(&self, index: u32, level: u32, frames: &[u8]) -> Answer {
        self.ended(self.begin_records(self.record_request(index, level), frames))
    }

    fn records_of(&self, request: RecordAppendRequest, frames: &[u8]) -> Answer {
        self.ended(self.begin_records(request, frames))
    }

    fn tell_records(&self, index: u32, told: RecordsTold) {
        let request = RecordAppendRequest { told: Some(told), ..self.record_request(index, MEMORY) };
        self.ended(self.begin_records(request, &[])).expect("heard");
    }

    fn seal_records(&self, i: usize, index: u32) -> u64 {
        let request = SealRequest { chunk: Some(self.record_header(i, index)), chain: Vec::new() };
        self.call::<SealResponse>(i, Opcode::Seal, &request, Payload::None).expect("sealed").0.length
    }

    fn read_up_to(&self, i: usize, index: u32, end: u64) -> Vec<u8> {
        let (mut bytes, end) = (Vec::new(), end as usize);
        while bytes.len() < end {
            let length = (end - bytes.len()).min(1 << 20);
            bytes.extend(self.read(i, index, bytes.len() as u64, length).expect("read").expect("intact"));
        }
        bytes
    }

    fn is_waiting(&self, pending: &Pending) -> bool {
        self.runtime.block_on(async { tokio::time::sleep(Duration::from_millis(100)).await });
        !pending.is_finished()
    }
}

/// Writer and sequence of all records, and their bytes.
fn read(bytes: &[u8]) -> Vec<(u64, u64, Vec<u8>)> {
    let (mut at, mut found) = (0, Vec::new());
    while at < bytes.len() {
        match record_at(&bytes[at..]) {
            Found::Record(frame, record) => {
                found.push((frame.writer, frame.sequence, record.to_vec()));
                at += frame.framed_len();
            }
            Found::Skip { bytes, damaged: false } => at += bytes,
            other => panic!("no record at {at}: {other:?}"),
        }
    }
    found
}

/// Records of many would be torn, mixed, lost on a member, or be in another order than their writer gave them in.
#[test]
fn records_of_many_are_whole_on_all_members() {
    let cluster = Cluster::start(3);
    let index = cluster.allocate(0).expect("an index");
    let (mut wanted, mut pending) = (Vec::new(), Vec::new());
    for sequence in 0..60u64 {
        let (writer, level) = (sequence % 5, (sequence % 2) as u32);
        let record = pattern(sequence, (sequence as usize * 977) % 20_000);
        let two = [framed(writer, sequence, &record), framed(writer, sequence + 1000, b"")].concat();
        pending.push(cluster.begin_records(cluster.record_request(index, level), &two));
        wanted.extend([(writer, sequence, record), (writer, sequence + 1000, Vec::new())]);
    }
    let answers: Vec<_> = pending.into_iter().map(|one| cluster.ended(one).expect("appended")).collect();
    let end = answers.iter().map(|answer| answer.end).max().expect("some");
    assert!(answers.iter().all(|answer| answer.durable <= end));
    let durable = cluster.records(index, DURABLE, &framed(7, 1, b"last")).expect("appended");
    assert_eq!((durable.end, durable.durable), (end + 36, end + 36));
    wanted.push((7, 1, b"last".to_vec()));
    for i in 0..3 {
        let bytes = cluster.read(i, index, 0, durable.end as usize).expect("read").expect("intact");
        assert!(read(&bytes) == wanted, "member {i}");
    }
}

/// A record would be acknowledged that is on the primary alone, and be lost with it.
#[test]
fn a_record_that_one_member_does_not_have_is_not_acknowledged() {
    let mut cluster = Cluster::start(3);
    let index = cluster.allocate(0).expect("an index");
    cluster.records(index, MEMORY, &framed(1, 1, b"on all")).expect("appended");
    cluster.kill(2);
    for level in [MEMORY, DURABLE] {
        let error = cluster.records(index, level, &framed(1, 2, b"not on all")).expect_err("a member is away");
        assert!(matches!(error.code(), Some(ErrorCode::ChainFailed | ErrorCode::ChunkSealed)), "{error}");
    }
}

/// Members would end at the same byte and have others in the middle: one that lacks an append which replaced the last
/// block took the next.
#[test]
fn a_member_that_lacks_an_append_takes_no_more_of_them() {
    let cluster = Cluster::start(3);
    let index = cluster.allocate(0).expect("an index");
    cluster.records(index, MEMORY, &framed(1, 1, b"first")).expect("appended");
    let end = framed(1, 1, b"first").len();
    let header = |i: usize| Some(cluster.record_header(i, index));
    // What the others never heard of.
    let tail = cluster.read(1, index, 0, end).expect("read").expect("intact");
    let more = [&tail[..], &[7; 50]].concat();
    let one = AppendRequest { chunk: header(1), ..cluster.append_request(1, &[2], index, 0, &more) };
    cluster.send(1, &one, &more).expect("taken: it does not say what it follows");
    let refused = |follows, at, bytes: &[u8]| {
        let request = cluster.append_request(1, &[2], index, at, bytes);
        let request = AppendRequest { chunk: header(1), follows: Some(follows), ..request };
        let error = cluster.send(1, &request, bytes).expect_err("it lacks something");
        assert_eq!(error.code(), Some(ErrorCode::OffsetMismatch), "{error}");
    };
    refused(4096, 4096, &[1; 10]);
    refused(end as u64, 0, &[1; 4096]);
    // The primary says it of what it hands on.
    let error = cluster.records(index, VISIBLE, &framed(1, 2, b"second")).expect_err("the others have more");
    assert_eq!(error.code(), Some(ErrorCode::ChainFailed), "{error}");
}

/// A record would be acknowledged behind the end that a seal found, or stand where a primary that knows no more put it.
#[test]
fn nothing_is_acknowledged_after_a_seal_or_by_who_does_not_know_the_end() {
    let mut cluster = Cluster::start(2);
    let refused = |cluster: &Cluster, index| {
        let request = RecordAppendRequest { knows_next: false, ..cluster.record_request(index, MEMORY) };
        let error = cluster.ended(cluster.begin_records(request, &framed(1, 2, b"two"))).expect_err("refused");
        assert_eq!(error.code(), Some(ErrorCode::ChunkSealed), "{error}");
    };
    let sealed = cluster.allocate(0).expect("an index");
    let end = cluster.records(sealed, MEMORY, &framed(1, 1, b"one")).expect("appended").end;
    assert_eq!(cluster.seal_records(0, sealed), end);
    refused(&cluster, sealed);
    assert_eq!(cluster.seal_records(1, sealed), end);
    // Sealed before its first byte.
    let empty = cluster.allocate(0).expect("an index");
    assert_eq!(cluster.seal_records(0, empty), 0);
    refused(&cluster, empty);
    // Of an epoch before, and of a process before.
    let index = cluster.allocate(0).expect("an index");
    cluster.records(index, DURABLE, &framed(1, 1, b"one")).expect("appended");
    let before = cluster.epoch;
    cluster.restart(0);
    cluster.raise(&[Serving, Serving]);
    let request = RecordAppendRequest { creation_epoch: before, ..cluster.record_request(index, MEMORY) };
    let error = cluster.ended(cluster.begin_records(request, &framed(1, 2, b"two"))).expect_err("another epoch");
    assert_eq!(error.code(), Some(ErrorCode::ChunkSealed));
    refused(&cluster, index);
}

/// Writers who wait for the same would publish once each, or one who waits would never be answered when the one whose
/// turn it was is gone.
#[test]
fn one_publishes_for_all_who_wait() {
    let cluster = Cluster::start(2);
    let index = cluster.allocate(0).expect("an index");
    let first = cluster.records(index, VISIBLE, &framed(1, 1, b"one")).expect("its turn");
    assert_eq!((first.end, first.durable, first.published), (4096, 4096, 0), "up to the end of a block");
    let waiting: Vec<_> = (2..6)
        .map(|writer| cluster.begin_records(cluster.record_request(index, VISIBLE), &framed(writer, 1, b"two")))
        .collect();
    assert!(waiting.iter().all(|one| cluster.is_waiting(one)), "somebody publishes already");
    cluster.tell_records(index, RecordsTold { published: first.end, ..Default::default() });
    // One of them is next, and does not come back: another one follows.
    let answers: Vec<_> = waiting.into_iter().map(|one| cluster.ended(one).expect("its turn, or done")).collect();
    assert!(answers.iter().all(|answer| answer.published == first.end && answer.end > first.end), "{answers:?}");
    let last = answers.iter().map(|answer| answer.end).max().expect("four");
    let one = cluster.begin_records(cluster.record_request(index, VISIBLE), &framed(9, 1, b"three"));
    cluster.tell_records(index, RecordsTold { published: last + 4096, ..Default::default() });
    assert_eq!(cluster.ended(one).expect("done").published, last + 4096);
    // Who only wants it to be in the file need not publish what is.
    let nothing = cluster.records(index, VISIBLE, &[]).expect("done");
    assert_eq!((nothing.end, nothing.published), (last + 4096, last + 4096));
}

/// Each writer would open the next chunk, or one would be told that something was taken that was not.
#[test]
fn one_opens_the_next_chunk_and_the_others_hear_of_it() {
    let cluster = Cluster::start(2);
    let index = cluster.allocate(0).expect("an index");
    let most = (1 << 20) - BLOCK_SIZE - 32;
    let frames: Vec<Vec<u8>> = (0..70).map(|i| framed(i, 1, &pattern(i, most))).collect();
    let pending: Vec<_> =
        frames.iter().map(|frames| cluster.begin_records(cluster.record_request(index, MEMORY), frames)).collect();
    // Some were too many at a time for it; none of those was taken.
    let (mut taken, mut rolls, mut held) = (0, 0, Vec::new());
    let old = RecordAppendRequest { knows_next: false, ..cluster.record_request(index, MEMORY) };
    for one in pending {
        // The first one that waits for the next chunk is the one to open it.
        if rolls == 0 || one.is_finished() {
            match cluster.ended(one) {
                Ok(answer) if answer.roll => rolls += 1,
                Ok(answer) => {
                    assert!(answer.end > 0);
                    taken += 1;
                }
                Err(error) => assert_eq!(error.code(), Some(ErrorCode::Overloaded), "{error}"),
            }
        } else {
            held.push(one);
        }
    }
    while rolls == 0 {
        let answer = cluster.records(index, MEMORY, &frames[0]).expect("taken, or its turn");
        rolls += u32::from(answer.roll);
        taken += u32::from(!answer.roll);
    }
    assert!((60..=64).contains(&taken) && rolls == 1, "{taken} {rolls}");
    // One that knows nothing of next chunks is refused as ever.
    let error = cluster.ended(cluster.begin_records(old, &frames[0])).expect_err("full");
    assert_eq!(error.code(), Some(ErrorCode::ChunkSealed));
    let waits = cluster.begin_records(cluster.record_request(index, DURABLE), &framed(99, 1, b"late"));
    assert!(cluster.is_waiting(&waits));
    let end = (0..2).map(|i| cluster.seal_records(i, index)).min().expect("two");
    let next = RecordsNext { number: 2, pg: 5, index: index + 1, creation_epoch: 1 };
    cluster.tell_records(index, RecordsTold { published: end, next: Some(next), closed: false });
    let moved = RecordAppendResponse { published: end, next: Some(next), ..Default::default() };
    assert_eq!(cluster.ended(waits).expect("told"), moved);
    assert_eq!(cluster.records(index, DURABLE, &framed(99, 1, b"later")).expect("told"), moved);
    let bytes = cluster.read_up_to(1, index, end);
    assert_eq!(read(&bytes).len() as u32, taken, "what was not taken is not there");
}

/// Who is to open the next chunk waits for the answers to all that it sent before it leaves this one: it would wait for
/// itself, some seconds at each chunk, and all others with it.
#[test]
fn who_opens_the_next_chunk_has_nothing_that_waits() {
    let cluster = Cluster::start(2);
    let index = cluster.allocate(0).expect("an index");
    let most = framed(1, 1, &pattern(1, (1 << 20) - BLOCK_SIZE - 32));
    let of = |writer| RecordAppendRequest { writer, ..cluster.record_request(index, MEMORY) };
    let mut window: Vec<Pending> = Vec::new();
    loop {
        window.push(cluster.begin_records(of(7), &most));
        if window.len() < 4 {
            continue;
        }
        if cluster.ended(window.remove(0)).expect("taken, or its turn").roll {
            break;
        }
    }
    let other = cluster.begin_records(of(8), &framed(8, 1, b"another's"));
    for own in window {
        assert!(cluster.ended(own).expect("let go of").roll);
    }
    assert!(cluster.records_of(of(7), &framed(7, 9, b"late")).expect("let go of").roll);
    assert!(cluster.is_waiting(&other), "it hears of the next one");
    let end = (0..2).map(|i| cluster.seal_records(i, index)).min().expect("two");
    let next = RecordsNext { number: 2, pg: 5, index: index + 1, creation_epoch: 1 };
    cluster.tell_records(index, RecordsTold { published: end, next: Some(next), closed: false });
    assert_eq!(cluster.ended(other).expect("told").next, Some(next));
}

/// Who comes after an append was closed for want of writers would wait for somebody to tell where the file goes on.
#[test]
fn who_finds_an_append_closed_for_nobody_is_told_at_once() {
    let cluster = Cluster::start(2);
    let index = cluster.allocate(0).expect("an index");
    cluster.records(index, DURABLE, &framed(1, 1, b"first")).expect("appended");
    let end = (0..2).map(|i| cluster.seal_records(i, index)).min().expect("two");
    let waits = cluster.begin_records(cluster.record_request(index, DURABLE), &framed(1, 2, b"waits"));
    assert!(cluster.is_waiting(&waits), "whoever sealed it may open the next one");
    cluster.tell_records(index, RecordsTold { published: end, next: None, closed: true });
    for answer in [cluster.ended(waits), cluster.records(index, DURABLE, &framed(1, 3, b"late"))] {
        assert_eq!(answer.expect_err("closed").code(), Some(ErrorCode::ChunkSealed));
    }
}

/// Hundreds of writers would stay in one chunk, or a few be spread over many.
#[test]
fn many_writers_are_told_to_spread() {
    let cluster = Cluster::start(1);
    let index = cluster.allocate(0).expect("an index");
    let told = |writer: u64, lanes: u32| {
        let request = RecordAppendRequest { lanes, ..cluster.record_request(index, MEMORY) };
        let answer = cluster.ended(cluster.begin_records(request, &framed(writer, 1, b"record")));
        answer.expect("appended").lanes
    };
    for writer in 1..=64 {
        assert_eq!(told(writer, 1), 1);
    }
    assert_eq!(told(1, 1), 1, "one that is known already");
    assert_eq!(told(65, 1), 2);
    assert_eq!(told(65, 16), 2, "it stands for 16: 80");
    assert_eq!([66, 67, 68, 69].map(|writer| told(writer, 16)), [2, 2, 2, 4], "96, 112, 128, then 144");
}

/// Nobody would tell those who wait for the next chunk where it is, and they would wait for ever.
#[test]
fn whose_turn_it_is_and_who_is_gone_is_followed_by_another() {
    let cluster = Cluster::start(1);
    let index = cluster.allocate(0).expect("an index");
    let long = framed(1, 1, &pattern(1, 16 << 20));
    for sequence in 0..3 {
        send_long(&cluster, index, sequence, &long).expect("appended");
    }
    // There is no room for a fourth one, and nobody opens the next chunk.
    assert!(send_long(&cluster, index, 4, &long).expect("its turn").roll);
    let second = cluster.begin_records(cluster.record_request(index, DURABLE), &framed(2, 1, b"second"));
    let third = cluster.begin_records(cluster.record_request(index, DURABLE), &framed(3, 1, b"third"));
    assert!(cluster.ended(second).expect("its turn").roll, "after some seconds");
    match cluster.ended(third) {
        Ok(answer) => assert!(answer.roll),
        Err(error) => assert_eq!(error.code(), Some(ErrorCode::ChunkSealed), "it finds out itself"),
    }
}

fn send_long(cluster: &Cluster, index: u32, sequence: u64, frame: &[u8]) -> Answer {
    let mut last = None;
    for (i, bytes) in frame.chunks(3 << 20).enumerate() {
        let part = RecordPart { writer: 1, sequence, total: frame.len() as u32, at: (i * (3 << 20)) as u32 };
        let request = RecordAppendRequest { part: Some(part), ..cluster.record_request(index, DURABLE) };
        last = Some(cluster.ended(cluster.begin_records(request, bytes))?);
    }
    Ok(last.expect("it has parts"))
}

/// A long record would be torn by others, be published in parts, or count as durable before its end is.
#[test]
fn long_records_are_whole_among_others() {
    let cluster = Cluster::start(2);
    let index = cluster.allocate(0).expect("an index");
    let long = pattern(3, 5 << 20);
    let frame = framed(1, 1, &long);
    let mut wanted = vec![(2, 0, b"before".to_vec())];
    cluster.records(index, DURABLE, &framed(2, 0, b"before")).expect("appended");
    let mut others = Vec::new();
    for (i, bytes) in frame.chunks(2 << 20).enumerate() {
        others
            .push(cluster.begin_records(cluster.record_request(index, VISIBLE), &framed(2, i as u64 + 1, b"between")));
        let part = RecordPart { writer: 1, sequence: 1, total: frame.len() as u32, at: (i * (2 << 20)) as u32 };
        let request = RecordAppendRequest { part: Some(part), ..cluster.record_request(index, DURABLE) };
        others.push(cluster.begin_records(request, bytes));
    }
    let answers: Vec<_> = others.into_iter().map(|one| cluster.ended(one).expect("appended")).collect();
    let end = answers.iter().map(|answer| answer.end).max().expect("some");
    for i in 0..2 {
        let bytes = cluster.read_up_to(i, index, end);
        let found = read(&bytes);
        assert!(found.iter().any(|(writer, _, bytes)| *writer == 1 && *bytes == long), "member {i}");
        wanted.truncate(1);
        assert!(found.starts_with(&wanted) && found.len() == 5, "member {i}");
        // Where a writer may publish, a frame has ended.
        for answer in answers.iter().filter(|answer| answer.end > 0) {
            let records = read(&bytes[..answer.end as usize]).len();
            assert!(records > 0 && answer.durable <= end);
            read(&bytes[..answer.durable as usize]);
        }
    }
}
