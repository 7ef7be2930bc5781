//! Overwrite leases across sessions: whoever has one that is wanted is told by its keep-alives, and gets out of the
//! way.

use std::time::Duration;

use cairn_types::ErrorCode;
use cairn_wire::Opcode;
use cairn_wire::common::Extent;
use cairn_wire::meta::*;

use super::fixture::{Caller, Cluster, PG, eventually, quick};
use crate::MetaTimings;

fn hold(caller: &mut Caller, inode: u64) {
    let request = HoldRequest { header: Some(caller.header()), inode, write: true };
    let _: AttributesResponse = caller.call(Opcode::Hold, &request).expect("held");
}

fn lease(caller: &mut Caller, inode: u64, give: u64) -> u64 {
    let (header, release) = (Some(caller.header()), give != 0);
    let request =
        OverwriteLeaseRequest { header, inode, release, number: give, changed: true, mtime_ns: 0, answered: true };
    caller.call::<OverwriteLeaseResponse>(Opcode::OverwriteLease, &request).expect("answered").number
}

/// What keep-alives say that the session is to give back: with and without opens that are not in the log.
fn wanted(caller: &Caller) -> Vec<u64> {
    let ask = |soft_holds| {
        let request =
            KeepAliveRequest { header: Some(caller.read_header()), soft_holds, ..KeepAliveRequest::default() };
        caller.call::<KeepAliveResponse>(Opcode::KeepAlive, &request).expect("renewed").wanted
    };
    let (plain, soft) = (ask(false), ask(true));
    assert_eq!(plain, soft);
    plain.iter().map(|lease| lease.number).collect()
}

/// Takes blocks of the file out of it, as a write to new space does, at whoever leads. False: somebody has the lease.
fn replace(cluster: &Cluster, caller: &mut Caller, inode: u64) -> bool {
    let (header, written_by) = (Some(caller.header()), caller.session);
    let extents = vec![Extent { length: 4096, pg: PG, index: 77, ..Default::default() }];
    let request = PublishRequest { header, inode, extents, written_by, ..Default::default() };
    let mut replaced = None;
    eventually("a leader that answers", || {
        let leader = cluster.address(cluster.leader());
        match caller.call_at::<AttributesResponse>(leader, Opcode::Publish.code(), &request) {
            Ok(_) => replaced = Some(true),
            Err(error) if error.code == ErrorCode::LeaseHeld => replaced = Some(false),
            // Another one leads since a moment ago: the same request again.
            Err(error) if matches!(error.code, ErrorCode::NotLeader | ErrorCode::Unavailable) => {}
            Err(error) => panic!("{error}"),
        }
        replaced.is_some()
    });
    let replaced = replaced.expect("it came about");
    if !replaced {
        // The number was not used.
        caller.sequence -= 1;
    }
    replaced
}

/// Whoever wants to write would wait for ever for somebody who does not know of it.
#[test]
fn a_wanted_lease_is_told_and_given_back() {
    let mut cluster = Cluster::with(3, quick(), |config| config);
    let (mut first, mut second) = (cluster.caller(1), cluster.caller(2));
    let inode = first.create_with_chunks("f", 1);
    hold(&mut first, inode);
    let number = lease(&mut first, inode, 0);
    assert!(number > 0);
    assert!(wanted(&first).is_empty());
    // A leader of its own accord would not know of it either.
    eventually("word of it", || {
        assert!(!replace(&cluster, &mut second, inode));
        wanted(&first) == [number]
    });
    assert!(wanted(&second).is_empty());
    // Another leader hears of it when it is asked again.
    let leader = cluster.leader();
    cluster.kill(leader);
    cluster.leader();
    eventually("word of it again", || {
        assert!(!replace(&cluster, &mut second, inode));
        wanted(&first) == [number]
    });
    assert_eq!(lease(&mut first, inode, number), 0);
    assert!(wanted(&first).is_empty(), "what was given back is not asked for again");
    assert!(replace(&cluster, &mut second, inode));
}

/// A client that died would keep everybody else from writing.
#[test]
fn the_lease_of_a_silent_session_ends() {
    // No pause of a busy machine outlasts it.
    let timings = MetaTimings { lease: Duration::from_secs(8), ..quick() };
    let cluster = Cluster::with(1, timings, |config| config);
    let (mut dead, mut live) = (cluster.caller(1), cluster.caller(2));
    let inode = dead.create_with_chunks("f", 1);
    hold(&mut dead, inode);
    assert!(lease(&mut dead, inode, 0) > 0);
    assert!(!replace(&cluster, &mut live, inode));
    eventually("the end of the lease", || replace(&cluster, &mut live, inode));
}
