//! Delegated directories across sessions: whoever leads one that is in somebody's way is told by its keep-alives.

use cairn_types::{ErrorCode, FEATURE_LEVEL};
use cairn_wire::Opcode;
use cairn_wire::common::Empty;
use cairn_wire::meta::*;

use super::fixture::{Caller, Cluster, eventually, quick};
use crate::config::MetaTimings;
use std::time::{Duration, Instant};

/// Makes a directory that the session leads, as soon as all members are known to understand that.
pub(super) fn lead(caller: &mut Caller) -> u64 {
    let (mut led, mut tries) = (None, 0);
    eventually("a delegation", || {
        tries += 1;
        let ask = Some(DelegationAsk { ids: 8, token: 0, level: FEATURE_LEVEL });
        let header = Some(caller.header());
        let name = format!("d{}-{tries}", caller.sequence).into_bytes();
        let request = MkdirRequest { header, parent: 1, name, mode: 0o755, ask, ..Default::default() };
        match caller.call::<AttributesResponse>(Opcode::Mkdir, &request) {
            Ok(made) => led = made.delegation.map(|told| told.number),
            Err(ErrorCode::NotLeader | ErrorCode::Unavailable) => caller.sequence -= 1,
            Err(error) => panic!("{error}"),
        }
        led.is_some()
    });
    led.expect("just given")
}

/// A batch that ends a delegation in which nothing was done.
fn end(caller: &mut Caller, number: u64) -> Result<BatchResponse, ErrorCode> {
    let request = BatchRequest { header: Some(caller.header()), delegation: number, end: true, ..Default::default() };
    caller.call(Opcode::Batch, &request)
}

/// Whether somebody may look at the directory.
fn looks(cluster: &Cluster, caller: &Caller, inode: u64) -> bool {
    let mut seen = None;
    eventually("a leader that answers", || {
        let request = GetattrRequest { header: Some(caller.read_header()), inode };
        let leader = cluster.address(cluster.leader());
        seen = match caller.call_at::<AttributesResponse>(leader, Opcode::Getattr.code(), &request) {
            Ok(_) => Some(true),
            Err(error) if error.code == ErrorCode::LeaseHeld => Some(false),
            Err(error) if matches!(error.code, ErrorCode::NotLeader | ErrorCode::Unavailable) => None,
            Err(error) => panic!("{error}"),
        };
        seen.is_some()
    });
    seen == Some(true)
}

/// What keep-alives say that the session is to end: with and without opens that are not in the log.
fn wanted(caller: &Caller) -> Vec<u64> {
    let ask = |soft_holds| {
        let request =
            KeepAliveRequest { header: Some(caller.read_header()), soft_holds, ..KeepAliveRequest::default() };
        caller.call::<KeepAliveResponse>(Opcode::KeepAlive, &request).expect("renewed").delegations
    };
    let (plain, soft) = (ask(false), ask(true));
    assert_eq!(plain, soft);
    plain
}

/// Whoever looks would wait for as long as the other machine runs, which does not know of it.
#[test]
fn a_wanted_delegation_is_told_until_it_ends() {
    let mut cluster = Cluster::with(3, quick(), |config| config);
    let (mut first, second) = (cluster.caller(1), cluster.caller(2));
    let number = lead(&mut first);
    assert!(wanted(&first).is_empty());
    assert!(!looks(&cluster, &second, number));
    assert_eq!((wanted(&first), wanted(&second)), (vec![number], vec![]));
    assert_eq!(wanted(&first), [number], "it is told until it has ended");
    // Another leader hears of it when somebody looks again.
    let leader = cluster.leader();
    cluster.kill(leader);
    cluster.leader();
    eventually("word of it again", || {
        assert!(!looks(&cluster, &second, number));
        wanted(&first) == [number]
    });
    let state = cluster.meta(cluster.leader()).partitions().read().values().next().expect("open").state.clone();
    let ends = state.across.ends();
    let request = EndDelegationsRequest { header: Some(first.header()), numbers: vec![number] };
    let _: Empty = first.call(Opcode::EndDelegations, &request).expect("ended");
    eventually("word to who waits across partitions", || state.across.ends() != ends);
    assert!(wanted(&first).is_empty(), "what has ended is not asked for");
    assert!(looks(&cluster, &second, number));
}

/// Whoever looks would wait for the holder's next keep-alive, or the holder ask again and again while it stores.
#[test]
fn a_keep_alive_that_waits_tells_what_is_wanted_at_once() {
    let mut cluster = Cluster::with(3, quick(), |config| config);
    let (mut first, second) = (cluster.caller(1), cluster.caller(2));
    let number = lead(&mut first);
    let waits = |wait_ms: u32, heard: Vec<u64>| {
        let (header, began) = (Some(first.read_header()), Instant::now());
        let request = KeepAliveRequest { header, wait_ms, heard, ..KeepAliveRequest::default() };
        let answer = first.call::<KeepAliveResponse>(Opcode::KeepAlive, &request);
        (answer.map(|answer| (answer.waits, answer.delegations)), began.elapsed())
    };
    let (answer, took) = waits(400, Vec::new());
    assert_eq!(answer, Ok((true, Vec::new())));
    assert!(took >= Duration::from_millis(300), "nothing was wanted, and it was answered after {took:?}");
    let (answer, told_at, looked_at) = std::thread::scope(|scope| {
        let told = scope.spawn(|| (waits(1_500, Vec::new()).0, Instant::now()));
        std::thread::sleep(Duration::from_millis(500));
        let looked_at = Instant::now();
        assert!(!looks(&cluster, &second, number));
        let (answer, told_at) = told.join().expect("answered");
        (answer, told_at, looked_at)
    });
    assert_eq!(answer, Ok((true, vec![number])));
    let took = told_at.saturating_duration_since(looked_at);
    assert!(took < Duration::from_millis(700), "{took:?}: only when its time was over");
    let (answer, took) = waits(400, vec![number]);
    assert_eq!(answer, Ok((true, vec![number])), "until it has ended");
    assert!(took >= Duration::from_millis(300), "it knows, and was answered after {took:?}");
    assert_eq!(waits(1_500, vec![number + 1]).0, Ok((true, vec![number])), "it knows of another one");
    // Nor does a process that ends, or a leader that is none any more.
    std::thread::scope(|scope| {
        let told = scope.spawn(|| waits(1_500, vec![number]).1);
        std::thread::sleep(Duration::from_millis(300));
        cluster.meta(cluster.leader()).answer_waiting();
        let took = told.join().expect("answered");
        assert!(took < Duration::from_millis(1_300), "{took:?}: only when its time was over");
    });
    std::thread::scope(|scope| {
        let told = scope.spawn(|| waits(1_500, vec![number]).0);
        std::thread::sleep(Duration::from_millis(300));
        let leader = cluster.leader();
        cluster.kill(leader);
        told.join().expect("answered").expect("by another one");
    });
}

/// A client that goes on to run, and never gives back what it leads, would keep everybody else out for ever.
#[test]
fn a_delegation_that_is_wanted_for_too_long_is_taken() {
    let timings = MetaTimings { delegation_wanted: Duration::from_millis(300), ..quick() };
    let cluster = Cluster::with(3, timings, |config| config);
    let (mut first, second) = (cluster.caller(1), cluster.caller(2));
    let (number, other) = (lead(&mut first), lead(&mut first));
    let taken = || cluster.meta(cluster.leader()).stats().delegations_taken();
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(taken(), 0, "nobody wants them");
    eventually("others to get in", || looks(&cluster, &second, number));
    assert_eq!((taken(), wanted(&first)), (1, vec![]));
    assert_eq!(end(&mut first, number).expect_err("it is over"), ErrorCode::Stale);
    assert!(end(&mut first, other).expect("its session, and what nobody wants, is as it was").ended);
}
