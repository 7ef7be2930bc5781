//! Walks of whole groups through failures.
use super::*;
use MemberState::{Offline, Serving, Syncing, Waiting};

const A: DiskId = DiskId(1);
const B: DiskId = DiskId(2);
const C: DiskId = DiskId(3);

fn pg(scheme: u8) -> Pg {
    let disks = [A, B, C, DiskId(4), DiskId(5)];
    Pg::new(PgId(1), VolumeId(1), Scheme::Replicated(scheme), &disks[..usize::from(scheme)], WallTime(0))
}

fn states(pg: &Pg) -> Vec<MemberState> {
    pg.members.iter().map(|m| m.state).collect()
}

const ALL: fn(DiskId) -> bool = |_| true;

/// A failed member must leave, come back by catch-up only, and every step must fence the one before.
#[test]
fn down_register_catch_up() {
    let mut pg = pg(3);
    assert!(pg.take_down(&[A]));
    assert_eq!(states(&pg), [Offline, Serving, Serving]);
    assert_eq!((pg.epoch, pg.primary(), pg.is_writable()), (Epoch(2), Some(B), true));
    assert!(pg.register(&[A], ALL, ALL));
    assert_eq!(states(&pg), [Syncing, Serving, Serving]);
    assert!(pg.caught_up(&[A]));
    assert_eq!(states(&pg), [Serving, Serving, Serving]);
    assert_eq!(pg.epoch, Epoch(4));
    assert!(!pg.caught_up(&[A]));
    assert_eq!(pg.epoch, Epoch(4));
}

/// The last complete copy must be waited for: a stale one that comes back first must not serve.
#[test]
fn last_serving_is_waited_for() {
    let mut pg = pg(3);
    pg.take_down(&[A]);
    pg.take_down(&[B]);
    assert!(!pg.is_writable(), "one of three is below the minimum");
    pg.take_down(&[C]);
    assert_eq!(states(&pg), [Offline, Offline, Waiting]);
    assert!(!pg.register(&[A], ALL, ALL), "a stale copy alone changes nothing");
    assert_eq!(states(&pg), [Offline, Offline, Waiting]);
    assert!(pg.register(&[C], ALL, |disk| disk != B));
    assert_eq!(states(&pg), [Syncing, Offline, Serving], "what is up catches up from it");
}

/// Losing a rack or the power of all members at once must not make the group hang on one of several complete copies.
#[test]
fn those_that_fall_together_wait_together() {
    let mut pg = pg(3);
    pg.take_down(&[B]);
    assert!(pg.take_down(&[A, C]));
    assert_eq!(states(&pg), [Waiting, Offline, Waiting]);
    assert!(pg.register(&[C], ALL, |disk| disk == C));
    assert_eq!(states(&pg), [Offline, Offline, Serving], "the other may be stale from now on");
}

/// After a kill of the whole cluster nobody was marked down: each holds everything acknowledged, and the group must
/// not depend on the first that came back.
#[test]
fn restart_of_everybody() {
    let mut pg = pg(3);
    assert!(pg.register(&[A], |d| d == A, ALL), "the epoch fences the old incarnation");
    assert!(pg.register(&[B], |d| d != C, ALL));
    assert_eq!(states(&pg), [Serving, Serving, Serving]);
    assert!(pg.register(&[C], ALL, ALL));
    assert_eq!(states(&pg), [Serving, Serving, Syncing], "with the minimum alive it catches up first");
    assert!(pg.take_down(&[A, B]));
    assert_eq!(states(&pg), [Waiting, Waiting, Syncing]);
}

/// A clean restart of one node is the same as a crash: it catches up before it serves.
#[test]
fn single_restart_syncs() {
    let mut pg = pg(3);
    assert!(pg.register(&[B], ALL, ALL));
    assert_eq!(states(&pg), [Serving, Syncing, Serving]);
    assert!(pg.register(&[B], ALL, ALL), "again: its old catch-up is void");
    assert_eq!(pg.epoch, Epoch(3));
    let mut single = self::pg(1);
    assert!(single.register(&[A], ALL, ALL));
    assert_eq!((states(&single), single.epoch), (vec![Serving], Epoch(2)));
}

/// Two disks of one process start together and must not count as living sources for each other.
#[test]
fn two_disks_of_one_process() {
    let mut pg = pg(2);
    assert!(pg.register(&[A, B], ALL, ALL));
    assert_eq!(states(&pg), [Serving, Serving]);
    assert_eq!(pg.epoch, Epoch(2), "one command, one epoch");
}

/// A report must never remove the last copy, and a false one on an offline member changes nothing.
#[test]
fn reports() {
    let mut pg = pg(2);
    assert!(pg.fail(A));
    assert!(!pg.fail(A));
    assert!(!pg.fail(B), "the last one stays");
    assert_eq!(states(&pg), [Offline, Serving]);
    assert!(pg.rejoin(A));
    assert_eq!(states(&pg), [Syncing, Serving]);
}

/// A deleted volume's groups must refuse whoever still holds an old map.
#[test]
fn retired_groups_are_fenced() {
    let mut pg = pg(3);
    assert!(pg.retire());
    assert!(!pg.retire());
    assert_eq!((pg.epoch, pg.is_writable()), (Epoch(2), false));
}
