//! One member: the service over the wire, restarts, bounds.

use std::time::Duration;

use cairn_raft_host::HostConfig;
use cairn_rpc::{CallError, CallOptions};
use cairn_types::{ErrorCode, PartitionId};
use cairn_wire::Opcode;
use cairn_wire::common::Empty;
use cairn_wire::meta::{
    AttributesResponse, CreateRequest, ExpireSessions, FinishTxRequest, KeepAliveRequest, KeepAliveResponse,
    LookupRequest, MetaHeader, ReaddirRequest, ReaddirResponse, TxFinish, TxId,
};

use super::fixture::{Cluster, PARTITION, block_on, quick};

/// Nothing would work.
#[test]
fn creates_and_looks_up_over_the_wire() {
    let cluster = Cluster::start(1);
    let mut caller = cluster.caller(9);
    let inode = caller.create("a").expect("created");
    assert_eq!(caller.lookup("a"), Ok(inode));
    assert_eq!(caller.lookup("b"), Err(ErrorCode::NotFound));
    assert_eq!(caller.create("a"), Err(ErrorCode::Exists));
    let request = ReaddirRequest {
        header: Some(caller.read_header()),
        inode: 1,
        count_max: 10,
        attributes: true,
        ..ReaddirRequest::default()
    };
    let listing: ReaddirResponse = caller.call(Opcode::Readdir, &request).expect("a listing");
    assert_eq!(listing.entries.len(), 1);
    assert_eq!(caller.statfs().inodes, 2);
    let report = &cluster.meta(0).partition_reports()[0];
    assert!(report.leader && report.inodes == 2 && report.partition == PARTITION && report.memory_bytes > 0);
    assert!(cluster.meta(0).stats().ops(Opcode::Create) >= 2, "attempts count");
}

/// A repeated request would be executed twice, or a client that lost an answer would never learn it.
#[test]
fn a_repeat_gets_the_kept_answer() {
    let cluster = Cluster::start(1);
    let mut caller = cluster.caller(9);
    let request = caller.create_request("a");
    let first: AttributesResponse = caller.call(Opcode::Create, &request).expect("created");
    let again: AttributesResponse = caller.call(Opcode::Create, &request).expect("the same");
    assert_eq!(first, again);
    assert_eq!(caller.statfs().inodes, 2);
}

/// What was acknowledged would be gone after a restart, or the kept answers with it.
#[test]
fn a_restart_keeps_everything() {
    let mut cluster = Cluster::start(1);
    let mut caller = cluster.caller(9);
    let inodes: Vec<u64> = (0..50).map(|n| caller.create(&format!("f{n}")).expect("created")).collect();
    let last = caller.create_request("last");
    let answer: AttributesResponse = caller.call(Opcode::Create, &last).expect("created");
    for round in 0..2 {
        cluster.kill(0);
        // No map: the partition is opened from the list and the log alone.
        cluster.run(0);
        let mut caller = cluster.caller(9);
        caller.sequence = 51;
        let found: Vec<u64> = (0..50).map(|n| caller.lookup(&format!("f{n}")).expect("kept")).collect();
        assert_eq!(found, inodes, "round {round}");
        let again: AttributesResponse = caller.call(Opcode::Create, &last).expect("kept");
        assert_eq!(again, answer);
        assert_eq!(caller.statfs().inodes, 52);
    }
}

/// A node would not start again, or start with old state, once its log was cut behind a checkpoint.
#[test]
fn a_restart_from_a_checkpoint_keeps_everything() {
    let mut cluster = Cluster::with(1, quick(), |config| HostConfig {
        checkpoint_log_bytes: 8 << 10,
        segment_bytes: 64 << 10,
        ..config
    });
    let mut caller = cluster.caller(9);
    for n in 0..600 {
        caller.create(&format!("a file with a long name, number {n}")).expect("created");
    }
    super::fixture::eventually("a checkpoint", || {
        cluster.meta(0).partitions().read()[&PartitionId(PARTITION)].handle.status().checkpoints > 1
    });
    cluster.kill(0);
    cluster.run(0);
    let mut caller = cluster.caller(9);
    caller.sequence = 600;
    for n in 0..600 {
        caller.lookup(&format!("a file with a long name, number {n}")).expect("kept");
    }
    caller.create("after").expect("goes on");
    assert_eq!(caller.statfs().inodes, 602);
}

/// What other partitions ask would wait, and stay in memory, where there are none and nobody works it off.
#[test]
fn who_asks_as_another_partition_is_refused_where_there_is_none() {
    let cluster = Cluster::start(1);
    let mut caller = cluster.caller(9);
    caller.create("a").expect("created");
    let header = Some(caller.read_header());
    let tx = Some(TxId { partition: PARTITION + 1, term: 1, number: 1 });
    let finish = TxFinish { tx, ..Default::default() };
    let request = FinishTxRequest { header, finishes: vec![finish] };
    for _ in 0..3 {
        let options = CallOptions::new(Duration::from_secs(60));
        let call = cluster.server_client.call(cluster.address(0), Opcode::FinishTx.code(), &request, (), options);
        let Err(CallError::Remote(error)) = block_on(call) else { panic!("it is kept") };
        assert_eq!(error.code, ErrorCode::Unavailable, "{error}");
        assert!(error.message.contains("no other partition of its volume"), "{error}");
    }
}

/// A damaged or foreign request would reach the log, or crash the server.
#[test]
fn bad_requests_are_refused_at_the_door() {
    let cluster = Cluster::start(1);
    let mut caller = cluster.caller(9);
    caller.create("a").expect("created");
    let at = cluster.address(0);
    let code = |opcode: u16, header: MetaHeader| {
        let request = LookupRequest { header: Some(header), parent: 1, name: b"a".to_vec() };
        caller.call_at::<AttributesResponse>(at, opcode, &request).expect_err("refused").code
    };
    let header = caller.read_header();
    let (lookup, mkdir) = (Opcode::Lookup.code(), Opcode::Mkdir.code());
    assert_eq!(code(lookup, MetaHeader { partition: 77, ..header.clone() }), ErrorCode::UnknownPartition);
    assert_eq!(code(lookup, MetaHeader { volume: 77, ..header.clone() }), ErrorCode::UnknownPartition);
    assert_eq!(code(mkdir, MetaHeader { volume: 77, ..header.clone() }), ErrorCode::UnknownPartition);
    assert_eq!(code(mkdir, MetaHeader { session: 0, ..header.clone() }), ErrorCode::BadRequest);
    assert_eq!(code(mkdir, MetaHeader { who: None, ..header.clone() }), ErrorCode::BadRequest);
    assert_eq!(code(0x0499, header.clone()), ErrorCode::UnknownOperation);
    assert_eq!(code(Opcode::Append.code(), header.clone()), ErrorCode::UnknownOperation);
    assert_eq!(code(Opcode::ReclaimBatch.code(), header), ErrorCode::BadRequest);
    let internal = ExpireSessions { sessions: vec![9], ..Default::default() };
    for opcode in [Opcode::ExpireSessions, Opcode::FreeDone, Opcode::Lookup] {
        let error = caller.call_at::<Empty>(at, opcode.code(), &internal).expect_err("refused");
        assert_eq!(error.code, ErrorCode::BadRequest, "{opcode:?}");
    }
    assert!(caller.lookup("a").is_ok(), "it serves on");
}

/// A client would not know how often to renew its lease.
#[test]
fn keep_alive_tells_the_lease() {
    let cluster = Cluster::start(1);
    let caller = cluster.caller(9);
    let request = KeepAliveRequest { header: Some(caller.read_header()), ..Default::default() };
    let answer: KeepAliveResponse = caller.call(Opcode::KeepAlive, &request).expect("renewed");
    assert_eq!(answer.lease_ms, 60_000);
}

/// Memory would grow without bound under a flood, or requests would never be answered.
#[test]
fn overload_is_refused_and_everything_is_answered() {
    let small = |config| HostConfig { proposals_max: 4, batches_in_flight_max: 1, ..config };
    let cluster = Cluster::with(1, quick(), small);
    cluster.leader();
    let requests: Vec<CreateRequest> = (0..2000u64)
        .map(|n| {
            let mut caller = cluster.caller(1000 + n);
            caller.create_request(&format!("f{n}"))
        })
        .collect();
    let calls: Vec<_> = requests
        .iter()
        .map(|request| {
            let options = cairn_rpc::CallOptions::new(super::fixture::PATIENCE);
            cluster.client.call(cluster.address(0), Opcode::Create.code(), request, (), options)
        })
        .collect();
    let (mut done, mut refused) = (0, 0);
    block_on(async {
        for call in calls {
            match call.await {
                Ok(_) => done += 1,
                Err(error) => {
                    assert_eq!(error.code(), Some(ErrorCode::Overloaded), "{error}");
                    refused += 1;
                }
            }
        }
    });
    assert!(done > 0 && refused > 0, "{done} done, {refused} refused");
    assert_eq!(cluster.meta(0).stats().overloaded(), refused);
    assert_eq!(cluster.caller(9).statfs().inodes, 1 + done);
}
