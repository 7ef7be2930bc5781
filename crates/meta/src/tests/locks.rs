//! Locks across sessions: refused, waited for, released with their session, kept over a change of leaders.

use std::time::{Duration, Instant};

use cairn_types::ErrorCode;
use cairn_wire::Opcode;
use cairn_wire::common::Empty;
use cairn_wire::meta::*;

use super::fixture::{Caller, Cluster, eventually, quick};
use crate::MetaTimings;

fn set_lock(caller: &mut Caller, inode: u64, lock_type: u32) -> Result<(), ErrorCode> {
    let header = Some(caller.header());
    let request = SetLockRequest { header, inode, owner: 1, r#type: lock_type, end: 9, pid: 7, ..Default::default() };
    caller.call::<Empty>(Opcode::SetLock, &request).map(|_| ())
}

fn wait_lock(caller: &Caller, inode: u64, wait_ms: u32) -> bool {
    wait(caller, inode, wait_ms).free
}

fn wait(caller: &Caller, inode: u64, wait_ms: u32) -> WaitLockResponse {
    let header = Some(caller.read_header());
    let request = WaitLockRequest { header, inode, owner: 1, r#type: 2, end: 9, wait_ms, ..Default::default() };
    caller.call::<WaitLockResponse>(Opcode::WaitLock, &request).expect("answered")
}

/// Two clients would both have the lock, or the second one would poll or never hear of its release.
#[test]
fn a_lock_excludes_and_its_release_is_heard() {
    let cluster = Cluster::with(3, quick(), |config| config);
    let (mut first, mut second) = (cluster.caller(1), cluster.caller(2));
    let inode = first.create("f").expect("created");
    set_lock(&mut first, inode, 2).expect("locked");
    assert_eq!(set_lock(&mut second, inode, 1), Err(ErrorCode::Locked));
    let header = Some(second.read_header());
    let request = GetLockRequest { header, inode, r#type: 1, end: u64::MAX, ..Default::default() };
    let other: GetLockResponse = second.call(Opcode::GetLock, &request).expect("answered");
    assert_eq!((other.r#type, other.end, other.pid, other.session, other.owner), (2, 9, 7, 1, 1));
    assert!(!wait_lock(&second, inode, 100), "the time is over, the lock is not free");
    let waiter = std::thread::spawn({
        let second = cluster.caller(2);
        move || (wait_lock(&second, inode, 5000), Instant::now())
    });
    std::thread::sleep(Duration::from_millis(200));
    let released = Instant::now();
    set_lock(&mut first, inode, 0).expect("released");
    let (free, heard) = waiter.join().expect("no panic");
    assert!(free && heard > released, "heard of it, and not before");
    set_lock(&mut second, inode, 2).expect("free");
    assert!(wait_lock(&second, inode, 5000), "one's own lock is not in the way");
}

/// A client that died would keep its locks, or a change of leaders would lose them.
#[test]
fn locks_outlive_a_leader_and_go_with_their_session() {
    // No pause of a busy machine outlasts it.
    let timings = MetaTimings { lease: Duration::from_secs(8), ..quick() };
    let mut cluster = Cluster::with(3, timings, |config| config);
    let (mut first, mut second) = (cluster.caller(1), cluster.caller(2));
    let inode = first.create("f").expect("created");
    set_lock(&mut first, inode, 2).expect("locked");
    let leader = cluster.leader();
    cluster.kill(leader);
    cluster.leader();
    assert_eq!(set_lock(&mut second, inode, 2), Err(ErrorCode::Locked));
    // The second session is heard meanwhile; the first one is not.
    eventually("the end of the silent session", || wait_lock(&second, inode, 300));
    set_lock(&mut second, inode, 2).expect("free");
}

/// Programs on two machines that wait for each other's locks would wait for ever; or one that only waits long would be
/// told that it never gets the lock.
#[test]
fn who_waits_in_a_ring_is_told() {
    let cluster = Cluster::with(1, quick(), |config| config);
    let (mut first, mut second) = (cluster.caller(1), cluster.caller(2));
    let (a, b) = (first.create("a").expect("created"), first.create("b").expect("created"));
    set_lock(&mut first, a, 2).expect("locked");
    set_lock(&mut second, b, 2).expect("locked");
    for _ in 0..4 {
        let told = wait(&second, a, 50);
        assert!(!told.free && !told.deadlock, "the other one does not wait");
    }
    let waits = |number: u64, inode: u64| {
        let caller = cluster.caller(number);
        std::thread::spawn(move || {
            loop {
                let told = wait(&caller, inode, 1000);
                if told.free || told.deadlock {
                    return told.deadlock;
                }
            }
        })
    };
    let (one, other) = (waits(1, b), waits(2, a));
    eventually("one is told", || one.is_finished() || other.is_finished());
    // He gives up what he has, as programs do that are told.
    if one.is_finished() {
        assert!(one.join().expect("no panic"));
        set_lock(&mut first, a, 0).expect("released");
        assert!(!other.join().expect("no panic"), "one is told, not both");
    } else {
        assert!(other.join().expect("no panic"));
        set_lock(&mut second, b, 0).expect("released");
        assert!(!one.join().expect("no panic"), "one is told, not both");
    }
}
