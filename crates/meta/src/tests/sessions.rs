//! Leases: silent sessions end, what they held goes, renewed ones live.

use std::time::Duration;

use cairn_types::ErrorCode;
use cairn_wire::Opcode;
use cairn_wire::common::Empty;
use cairn_wire::meta::{
    AttributesResponse, CreateRequest, EndSessionRequest, GetattrRequest, KeepAliveRequest, KeepAliveResponse,
    RemovedResponse, UnlinkRequest,
};

use super::fixture::{Caller, Cluster, eventually, quick};
use crate::MetaTimings;

fn short_lease() -> MetaTimings {
    MetaTimings { lease: Duration::from_millis(400), ..quick() }
}

/// Creates a file, holds it open, and takes its name away.
fn unlinked_but_open(caller: &mut Caller) -> u64 {
    let request = CreateRequest { hold: true, ..caller.create_request("open") };
    let answer: AttributesResponse = caller.call(Opcode::Create, &request).expect("created");
    let request = UnlinkRequest { header: Some(caller.header()), parent: 1, name: b"open".to_vec() };
    let removed: RemovedResponse = caller.call(Opcode::Unlink, &request).expect("unlinked");
    let again: RemovedResponse = caller.call(Opcode::Unlink, &request).expect("the answer of before");
    let root = getattr(caller, 1).expect("the directory").attributes;
    assert!(root.is_some() && removed.directory == root && again.directory == root, "{removed:?} {again:?}");
    answer.attributes.expect("some").inode
}

fn getattr(caller: &Caller, inode: u64) -> Result<AttributesResponse, ErrorCode> {
    caller.call(Opcode::Getattr, &GetattrRequest { header: Some(caller.read_header()), inode })
}

/// Files of clients that died would stay for ever; or a live client would lose the file that it has open.
#[test]
fn a_silent_session_ends_and_an_unlinked_file_goes_with_it() {
    let cluster = Cluster::with(1, short_lease(), |config| config);
    let mut dead = cluster.caller(1);
    let mut live = cluster.caller(2);
    let lost = unlinked_but_open(&mut dead);
    let kept = unlinked_but_open(&mut live);
    assert!(getattr(&live, lost).is_ok(), "held until its session ends");
    eventually("the end of the silent session", || {
        let renew = KeepAliveRequest { header: Some(live.read_header()), ..Default::default() };
        let _: KeepAliveResponse = live.call(Opcode::KeepAlive, &renew).expect("renewed");
        cluster.meta(0).stats().sessions_expired() == 1
    });
    eventually("the end of its file", || {
        let renew = KeepAliveRequest { header: Some(live.read_header()), ..Default::default() };
        let _: KeepAliveResponse = live.call(Opcode::KeepAlive, &renew).expect("renewed");
        getattr(&live, lost).is_err()
    });
    assert!(getattr(&live, kept).is_ok(), "the renewed session holds its file");
    let renew = KeepAliveRequest { header: Some(dead.read_header()), ..Default::default() };
    assert_eq!(dead.call::<KeepAliveResponse>(Opcode::KeepAlive, &renew), Err(ErrorCode::SessionEnded));
    assert_eq!(dead.create("x"), Err(ErrorCode::SessionEnded), "never executed");
}

/// A new leader would end sessions that could not be heard while there was no leader.
#[test]
fn a_new_leader_knows_the_sessions_and_grants_a_full_lease() {
    let mut cluster = Cluster::with(3, MetaTimings { lease: Duration::from_secs(2), ..quick() }, |config| config);
    let mut caller = cluster.caller(1);
    let inode = unlinked_but_open(&mut caller);
    let leader = cluster.leader();
    cluster.kill(leader);
    let new = cluster.leader();
    assert!(getattr(&caller, inode).is_ok());
    assert_eq!(cluster.meta(new).partitions().read().values().next().expect("open").state.leases.len(), 1);
    let other = cluster.caller(2);
    eventually("the end of the silent session", || cluster.meta(new).stats().sessions_expired() == 1);
    eventually("the end of its file", || getattr(&other, inode).is_err());
}

/// A client that leaves would leave its locks and files behind until the lease is over.
#[test]
fn ending_a_session_releases_at_once() {
    let cluster = Cluster::start(1);
    let mut caller = cluster.caller(1);
    let inode = unlinked_but_open(&mut caller);
    let request = EndSessionRequest { header: Some(caller.read_header()) };
    let _: Empty = caller.call(Opcode::EndSession, &request).expect("ended");
    let other = cluster.caller(2);
    eventually("the end of its file", || getattr(&other, inode).is_err());
    assert_eq!(caller.create("x"), Err(ErrorCode::SessionEnded));
}
