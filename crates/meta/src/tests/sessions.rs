//! Leases: silent sessions end, what they held goes, renewed ones live.

use std::time::Duration;

use cairn_meta_core::SessionState;
use cairn_types::ErrorCode;
use cairn_wire::Opcode;
use cairn_wire::common::Empty;
use cairn_wire::meta::{
    AttributesResponse, CreateRequest, EndDelegationsRequest, EndSessionRequest, GetattrRequest, KeepAliveRequest,
    KeepAliveResponse, MetaHeader, RemovedResponse, UnlinkRequest,
};

use super::delegations::lead;
use super::fixture::{Caller, Cluster, eventually, quick};
use crate::MetaTimings;
use crate::leases::{CLIENT_SESSIONS_MAX, SESSION_BYTES_MAX};

/// A lease that no pause of a busy machine outlasts, and that a test can wait for.
fn short_lease() -> MetaTimings {
    MetaTimings { lease: Duration::from_secs(8), ..quick() }
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
    let mut cluster = Cluster::with(3, short_lease(), |config| config);
    let mut caller = cluster.caller(1);
    let inode = unlinked_but_open(&mut caller);
    let leader = cluster.leader();
    cluster.kill(leader);
    assert!(getattr(&caller, inode).is_ok());
    // Whoever leads by now.
    let state = || cluster.meta(cluster.leader()).partitions().read().values().next().expect("open").state.clone();
    eventually("the lease", || state().leases.len() == 1);
    let other = cluster.caller(2);
    eventually("the end of the silent session", || state().namespace.read().session_state(1) == SessionState::Ended);
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

/// A cluster's leader, asked directly: a client would repeat what is refused for want of room.
struct Direct<'a> {
    caller: &'a Caller,
    address: String,
}

impl Direct<'_> {
    /// Makes a mutation that fails.
    fn fail(&self, session: u64, slot: u32) -> ErrorCode {
        let header = MetaHeader { session, slot, sequence: 1, ..self.caller.read_header() };
        let request = UnlinkRequest { header: Some(header), parent: 1, name: b"none".to_vec() };
        let answer = self.caller.call_at::<RemovedResponse>(&self.address, Opcode::Unlink.code(), &request);
        answer.expect_err("there is no such name").code
    }

    fn end(&self, session: u64) -> Result<Empty, ErrorCode> {
        let header = MetaHeader { session, ..self.caller.read_header() };
        let request = EndSessionRequest { header: Some(header) };
        self.caller.call_at(&self.address, Opcode::EndSession.code(), &request).map_err(|error| error.code)
    }
}

/// Anybody could fill every member's memory with sessions, and keep others out.
#[test]
fn sessions_are_bounded_for_an_address_and_in_memory() {
    let cluster = Cluster::start(1);
    let leader = cluster.leader();
    let caller = cluster.caller(1);
    let direct = Direct { caller: &caller, address: cluster.address(leader).to_owned() };
    let state = cluster.meta(leader).partitions().read().values().next().expect("open").state.clone();
    let many = u64::from(CLIENT_SESSIONS_MAX);
    for session in 10..10 + many {
        assert_eq!(direct.fail(session, 255), ErrorCode::NotFound);
    }
    assert_eq!(direct.fail(9, 0), ErrorCode::Overloaded, "one more than an address has");
    assert_eq!(state.namespace.read().session_state(9), SessionState::Unknown, "nothing is kept of it");
    direct.end(10).expect("ended");
    assert_eq!(direct.fail(9, 0), ErrorCode::NotFound);
    let led = lead(&mut cluster.caller(12));

    // Slots of one session until the memory of all is used up.
    let used = (1..250).take_while(|slot| direct.fail(9, *slot) != ErrorCode::Overloaded).count();
    assert!((10..200).contains(&used), "{used} slots");
    let bytes = state.namespace.read().session_bytes();
    assert!((SESSION_BYTES_MAX..SESSION_BYTES_MAX + 1024).contains(&bytes), "{bytes}");
    assert_eq!(direct.fail(9, 1), ErrorCode::NotFound, "slots that are there go on");
    // What others wait for is given back all the same, under a slot that is new.
    let give_back = |session| {
        let header = Some(MetaHeader { session, slot: 254, sequence: 1, ..caller.read_header() });
        let request = EndDelegationsRequest { header, numbers: vec![led] };
        caller.call_at::<Empty>(&direct.address, Opcode::EndDelegations.code(), &request).map_err(|error| error.code)
    };
    assert_eq!(give_back(13), Err(ErrorCode::Overloaded), "it leads nothing");
    assert!(state.namespace.read().leads(12));
    give_back(12).expect("given back");
    assert!(!state.namespace.read().leads(12));
    assert_eq!(direct.fail(11, 255), ErrorCode::NotFound);
    direct.end(9).expect("ended");
    assert_eq!(direct.fail(11, 0), ErrorCode::NotFound, "and there is room again");
}

/// Numbers that nobody was given would make sessions at the partition, and push those that were given to the ended
/// ones.
#[test]
fn a_session_that_the_manager_never_gave_is_refused() {
    let cluster = Cluster::start(1);
    let leader = cluster.leader();
    let caller = cluster.caller(1);
    let direct = Direct { caller: &caller, address: cluster.address(leader).to_owned() };
    let state = cluster.meta(leader).partitions().read().values().next().expect("open").state.clone();
    cluster.meta(leader).common().sessions_below.store(4097, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(direct.fail(4000, 0), ErrorCode::NotFound);
    assert_eq!(direct.fail(4097 + 1000, 0), ErrorCode::NotFound, "given since it was told");
    for session in [1 << 20, 1 << 40] {
        assert_eq!(direct.fail(session, 0), ErrorCode::Overloaded);
        assert_eq!(direct.end(session), Err(ErrorCode::Overloaded));
        assert_eq!(state.namespace.read().session_state(session), SessionState::Unknown);
    }
}
