//! Shards that are made of copies on the same disk, and checksums that are answered alone.

use cairn_format::crc_table::decode_crcs;
use cairn_rpc::{CallError, Payload};
use cairn_types::MemberState::Serving;
use cairn_types::{BLOCK_SIZE, ErrorCode, crc32c};
use cairn_wire::Opcode;
use cairn_wire::data::{
    AllocateRequest, AllocateResponse, AppendRequest, AppendResponse, ChunkHeader, LocalBlocks, PgMember, PgState,
    ReadRequest, ReadResponse,
};

use super::cluster::{Cluster, SESSION, eventually};
use super::shards::{ALL, RS32, UNIT};
use super::stripes::Shards;

/// A group of one copy, on the disk of this member.
const COPY: u32 = 99;
const MEMBER: usize = 1;

/// Another one there, of another volume.
const OTHERS: u32 = 98;

fn tell_group(cluster: &Cluster, pg: u32, volume: u32) {
    let node = &cluster.nodes[MEMBER];
    let member = PgMember { disk: node.disk, state: u32::from(Serving.code()), node: node.node };
    cluster.tell_state(PgState {
        pg,
        volume,
        scheme: 1,
        epoch: 1,
        creation_epoch: 1,
        members: vec![member],
        ..PgState::default()
    });
}

/// A chunk of it: 8 KiB of something else, then these bytes.
fn copy(cluster: &Cluster, bytes: &[u8]) -> u32 {
    let node = &cluster.nodes[MEMBER];
    tell_group(cluster, COPY, 1);
    let request = AllocateRequest { disk: node.disk, pg: COPY, epoch: 1, session: SESSION, count: 1 };
    let mut index = 0;
    eventually("the group of the copy gives out indices", || {
        let answer = cluster.call::<AllocateResponse>(MEMBER, Opcode::Allocate, &request, Payload::None);
        index = answer.as_ref().map_or(0, |(answer, _)| answer.indices[0]);
        answer.is_ok()
    });
    let all = [&[7; 2 * BLOCK_SIZE], bytes].concat();
    let chunk = Some(ChunkHeader { disk: node.disk, pg: COPY, index, epoch: 1, session: SESSION });
    let whole = cluster.append_request(MEMBER, &[], index, 0, &all);
    let request = AppendRequest { chunk, creation_epoch: 1, scheme: 1, sync: true, ..whole };
    cluster.send(MEMBER, &request, &all).expect("the copy is written");
    index
}

fn append(cluster: &Cluster, request: &AppendRequest, payload: Payload) -> Result<AppendResponse, CallError> {
    cluster.call(MEMBER, Opcode::Append, request, payload).map(|(answer, _)| answer)
}

/// A shard would get other bytes than parity was computed of, be made of what is elsewhere, or its bytes be sent after
/// all; and what a disk reads back be told without having been held against its checksums.
#[test]
fn a_copy_becomes_a_shard_if_it_is_what_was_computed_with() {
    let cluster = Cluster::start_scheme(RS32, |_| {});
    let index = cluster.allocate(0).expect("an index");
    let shards = Shards::new(RS32, 1, 4 * UNIT);
    let bytes = &shards.bytes[MEMBER];
    // It ends within a block.
    let ends = bytes.len() - BLOCK_SIZE + 100;
    assert!(bytes[ends..].len() > 100);
    let mut cut = bytes.clone();
    cut[ends..].fill(0);
    let from = copy(&cluster, &cut[..ends]);
    let others: Vec<usize> = ALL.into_iter().filter(|i| *i != MEMBER).collect();
    shards.put(&cluster, &others, index);
    let local = |at: usize, length: usize| {
        Some(LocalBlocks { pg: COPY, index: from, offset: (2 * BLOCK_SIZE + at) as u64, length: length as u32 })
    };
    let part = |at: usize, length: usize| {
        let request = cluster.append_request(MEMBER, &[], index, at as u64, &cut[at..at + length]);
        AppendRequest { local: local(at, length), ..request }
    };
    let refused = |request: AppendRequest, payload: Payload, code: ErrorCode| {
        let error = append(&cluster, &request, payload).expect_err("refused");
        assert_eq!(error.code(), Some(code), "{error}");
    };
    let good = part(0, UNIT);
    let mut other = good.clone();
    other.crcs[5] ^= 1;
    refused(other, Payload::None, ErrorCode::ChecksumMismatch);
    refused(
        AppendRequest { local: local(BLOCK_SIZE, UNIT), ..good.clone() },
        Payload::None,
        ErrorCode::ChecksumMismatch,
    );
    refused(good.clone(), Payload::One(cut[..UNIT].to_vec().into()), ErrorCode::BadRequest);
    refused(AppendRequest { local: local(1, UNIT), ..good.clone() }, Payload::None, ErrorCode::BadRequest);
    let beyond = LocalBlocks { offset: 1 << 30, ..local(0, UNIT).expect("some") };
    let missing = append(&cluster, &AppendRequest { local: Some(beyond), ..good.clone() }, Payload::None);
    assert!(missing.is_err(), "the copy has nothing there");
    // Which groups of others a disk has is nobody's business.
    tell_group(&cluster, OTHERS, 2);
    eventually("it to be there", || {
        let request =
            AllocateRequest { disk: cluster.nodes[MEMBER].disk, pg: OTHERS, epoch: 1, session: SESSION, count: 1 };
        cluster.call::<AllocateResponse>(MEMBER, Opcode::Allocate, &request, Payload::None).is_ok()
    });
    for pg in [1234, OTHERS] {
        let foreign = LocalBlocks { pg, ..local(0, UNIT).expect("some") };
        refused(AppendRequest { local: Some(foreign), ..good.clone() }, Payload::None, ErrorCode::UnknownPg);
    }
    assert_eq!(append(&cluster, &good, Payload::None).expect("appended").length, UNIT as u64);
    let rest = AppendRequest { sync: true, ..part(UNIT, ends - UNIT) };
    let answer = append(&cluster, &rest, Payload::None).expect("appended");
    assert_eq!((answer.durable_length, answer.members.len()), (bytes.len() as u64, 1));
    // All of it is read back, and only its checksums are told.
    let sums = ReadRequest {
        chunk: Some(ChunkHeader { epoch: 0, ..cluster.header(MEMBER, index) }),
        length: bytes.len() as u32,
        shard: MEMBER as u32 + 1,
        at_rest: true,
        sums: true,
        ..ReadRequest::default()
    };
    let (answer, payload): (ReadResponse, _) =
        cluster.call(MEMBER, Opcode::Read, &sums, Payload::None).expect("read back");
    let wanted: Vec<u32> = cut.chunks(BLOCK_SIZE).map(crc32c).collect();
    assert_eq!((decode_crcs(&answer.crcs), payload.map_or(0, |payload| payload.len())), (Some(wanted), 0));
    let cached = ReadRequest { at_rest: false, ..sums };
    let error = cluster.call::<ReadResponse>(MEMBER, Opcode::Read, &cached, Payload::None).expect_err("refused");
    assert_eq!(error.code(), Some(ErrorCode::BadRequest));
}
