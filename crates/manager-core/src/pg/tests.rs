//! Walks of whole groups through failures.
mod fresh;
mod random;

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

fn forced<'a>(lost: &'a [DiskId], promoted: &'a [DiskId], index_floor: u32) -> Forced<'a> {
    Forced { lost, promoted, index_floor, fresh: &[] }
}

/// A failed member must leave, come back by catch-up only, and every step must fence the one before.
#[test]
fn down_register_catch_up() {
    let mut pg = pg(3);
    assert!(pg.take_down(&[A]));
    assert_eq!(states(&pg), [Offline, Serving, Serving]);
    assert_eq!((pg.epoch, pg.primary(), pg.is_writable()), (Epoch(2), Some(B), true));
    assert!(pg.register(&[A], &[], ALL, ALL));
    assert_eq!(states(&pg), [Syncing, Serving, Serving]);
    assert!(pg.caught_up(&[A]));
    assert_eq!(states(&pg), [Serving, Serving, Serving]);
    assert_eq!(pg.epoch, Epoch(4));
    assert!(!pg.caught_up(&[A]));
    assert_eq!(pg.epoch, Epoch(4));
}

/// A stale copy that comes back first must not serve; of the complete ones each may, whoever comes first.
#[test]
fn complete_members_are_waited_for() {
    let mut pg = pg(3);
    pg.take_down(&[A]);
    pg.take_down(&[B]);
    assert_eq!(states(&pg), [Offline, Waiting, Serving], "what one of three took alone was never acknowledged");
    assert!(!pg.is_writable(), "one of three is below the minimum");
    pg.take_down(&[C]);
    assert_eq!(states(&pg), [Offline, Waiting, Waiting]);
    assert!(!pg.register(&[A], &[], ALL, ALL), "a stale copy alone changes nothing");
    assert!(pg.register(&[B], &[], ALL, |disk| disk != C));
    assert_eq!(states(&pg), [Syncing, Serving, Waiting], "what is up catches up from it");
    assert!(pg.caught_up(&[A]));
    assert_eq!(states(&pg), [Serving, Serving, Offline], "writes go on: from now on the third misses them");
    assert!(pg.register(&[C], &[], ALL, ALL));
    assert_eq!(states(&pg), [Serving, Serving, Syncing]);
}

/// Losing a rack or the power of all members at once must not make the group hang on one of several complete copies.
#[test]
fn those_that_fall_together_wait_together() {
    let mut pg = pg(3);
    pg.take_down(&[B]);
    assert!(pg.take_down(&[A, C]));
    assert_eq!(states(&pg), [Waiting, Offline, Waiting]);
    assert!(pg.register(&[C], &[], ALL, |disk| disk == C));
    assert_eq!(states(&pg), [Waiting, Offline, Serving], "nothing is written yet, so the other misses nothing");
    assert!(pg.register(&[A], &[], ALL, |disk| disk != B));
    assert_eq!(states(&pg), [Serving, Offline, Serving]);
}

/// Four shards lost one after another must not need all of them back, nor let a stale one count as a source.
#[test]
fn erasure_groups_wait_for_enough_shards() {
    let disks: Vec<DiskId> = (1..=9).map(DiskId).collect();
    let mut pg = Pg::new(PgId(1), VolumeId(1), Scheme::Erasure { k: 6, m: 3 }, &disks, WallTime(0));
    for disk in &disks[..5] {
        assert!(pg.take_down(&[*disk]));
    }
    assert_eq!(states(&pg)[..5], [Offline, Offline, Waiting, Waiting, Waiting]);
    assert!(!pg.is_readable(), "four of six");
    assert!(!pg.register(&[DiskId(1)], &[], ALL, ALL), "too few sources to catch up from");
    assert!(pg.register(&[DiskId(4)], &[], ALL, ALL));
    assert!(pg.register(&[DiskId(3)], &[], ALL, |disk| disk != DiskId(2) && disk != DiskId(5)));
    assert!(pg.is_readable() && !pg.has_write_minimum());
    assert_eq!(states(&pg)[..5], [Syncing, Offline, Serving, Serving, Waiting], "the first can catch up now");
    assert!(pg.caught_up(&[DiskId(1)]));
    assert_eq!(states(&pg)[..5], [Serving, Offline, Serving, Serving, Offline], "writes go on without the rest");
    assert!(pg.is_writable());
}

/// A stalled member below the minimum must come back by answering, without catching up from fewer than can be read.
#[test]
fn reports_below_the_minimum() {
    let mut pg = pg(5);
    assert!(pg.take_down(&[A, B]));
    assert!(pg.fail(C), "two of five serve on, for reads");
    assert_eq!(states(&pg), [Offline, Offline, Waiting, Serving, Serving]);
    assert!(pg.fail(DiskId(4)));
    assert!(!pg.fail(DiskId(5)), "the last one stays");
    assert!(pg.rejoin(A, ALL), "one complete copy is a source");
    assert!(pg.rejoin(DiskId(4), ALL));
    assert!(pg.rejoin(C, ALL));
    assert_eq!(states(&pg), [Syncing, Offline, Serving, Serving, Serving]);
}

/// After a kill of the whole cluster nobody was marked down: each holds everything acknowledged, and the group must
/// not depend on the first that came back.
#[test]
fn restart_of_everybody() {
    let mut pg = pg(3);
    assert!(pg.register(&[A], &[], |d| d == A, ALL), "the epoch fences the old incarnation");
    assert!(pg.register(&[B], &[], |d| d != C, ALL));
    assert_eq!(states(&pg), [Serving, Serving, Serving]);
    assert!(pg.register(&[C], &[], ALL, ALL));
    assert_eq!(states(&pg), [Serving, Serving, Syncing], "with the minimum alive it catches up first");
    assert!(pg.take_down(&[A, B]));
    assert_eq!(states(&pg), [Waiting, Waiting, Syncing]);
}

/// A clean restart of one node is the same as a crash: it catches up before it serves.
#[test]
fn single_restart_syncs() {
    let mut pg = pg(3);
    assert!(pg.register(&[B], &[], ALL, ALL));
    assert_eq!(states(&pg), [Serving, Syncing, Serving]);
    assert!(pg.register(&[B], &[], ALL, ALL), "again: its old catch-up is void");
    assert_eq!(pg.epoch, Epoch(3));
    let mut single = self::pg(1);
    assert!(single.register(&[A], &[], ALL, ALL));
    assert_eq!((states(&single), single.epoch), (vec![Serving], Epoch(2)));
}

/// Two disks of one process start together and must not count as living sources for each other.
#[test]
fn two_disks_of_one_process() {
    let mut pg = pg(2);
    assert!(pg.register(&[A, B], &[], ALL, ALL));
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
    assert!(pg.rejoin(A, ALL));
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

/// A group would serve what it does not have without anybody having said so, or give an index a second time.
#[test]
fn destroyed_disks_are_given_up_by_word_only() {
    let mut pg = pg(3);
    pg.take_down(&[B]);
    pg.take_down(&[C]);
    pg.take_down(&[A]);
    assert_eq!(states(&pg), [Waiting, Offline, Waiting]);
    let waits = pg.clone();
    let b = |disk: DiskId| disk == B;
    // One of two complete copies is destroyed: the other one is waited for, and nobody stands in.
    assert_eq!(pg.missing_without(&[A]), 0);
    assert!(!pg.force(forced(&[A], &[B], 77), b) && pg == waits);
    assert!(pg.force(forced(&[A], &[], 0), b));
    assert_eq!((states(&pg), pg.epoch.get()), (vec![Offline, Offline, Waiting], waits.epoch.get() + 1));
    // Both are: too few, a lost one, one that is not in service, none lost.
    let mut pg = waits.clone();
    assert_eq!((pg.missing_without(&[A, C]), pg.stand_ins(&[A, C]).collect::<Vec<_>>()), (1, vec![B]));
    assert!(!pg.force(forced(&[A, C], &[], 77), b) && !pg.force(forced(&[A, C], &[A], 77), ALL));
    assert!(!pg.force(forced(&[A, C], &[B], 77), |_| false) && !pg.force(forced(&[], &[B], 77), b));
    assert_eq!(pg, waits);
    assert!(pg.force(forced(&[A, C], &[B], 77), b));
    assert_eq!((states(&pg), pg.primary(), pg.index_floor), (vec![Offline, Serving, Offline], Some(B), 77));
    // What comes back after all copies from who serves.
    assert!(pg.register(&[A], &[], ALL, ALL));
    assert_eq!(states(&pg), [Syncing, Serving, Offline]);
}

/// When the last complete copies are given up, an old copy that was replaced would be passed over for the little that
/// its successor has got so far; or both of one shard would count as two.
#[test]
fn a_replaced_disk_may_stand_in() {
    let d = DiskId(9);
    let mut pg = pg(3);
    pg.take_down(&[A]);
    assert!(pg.replace(&[(A, d)], |disk| disk != A));
    pg.take_down(&[B, C]);
    assert_eq!(states(&pg), [Syncing, Waiting, Waiting]);
    let lost = [B, C];
    assert_eq!(pg.stand_ins(&lost).collect::<Vec<_>>(), [d, A]);
    assert_eq!((pg.position_of(A), pg.position_of(d), pg.missing_without(&lost)), (Some(0), Some(0), 1));
    let able = |disk: DiskId| disk == A || disk == d;
    assert!(pg.force(forced(&lost, &[A], 50), able));
    assert_eq!((pg.members[0].disk, pg.primary(), pg.index_floor), (A, Some(A), 50));
    assert_eq!(pg.formers.iter().map(|f| (f.disk, f.served)).collect::<Vec<_>>(), [(d, false)]);
    let disks: Vec<DiskId> = (1..=9).map(DiskId).collect();
    let mut shards = Pg::new(PgId(1), VolumeId(1), Scheme::Erasure { k: 6, m: 3 }, &disks, WallTime(0));
    shards.take_down(&disks[..1]);
    assert!(shards.replace(&[(A, DiskId(10))], |disk| disk != A));
    shards.take_down(&disks[1..5]);
    let lost = &disks[1..3];
    assert_eq!(shards.missing_without(lost), 0);
    let lost = &disks[1..5];
    assert_eq!(shards.missing_without(lost), 2);
    assert!(!shards.force(forced(lost, &[A, DiskId(10)], 1), |_| true), "one shard is not two");
}

/// Data would be out of reach although a disk with all of it is back, because another one that took its place and is as
/// complete is waited for.
#[test]
fn a_replaced_disk_serves_for_a_complete_one_that_is_away() {
    let (d, e, fresh) = (DiskId(4), DiskId(5), DiskId(9));
    let mut pg = pg(5);
    pg.take_down(&[A, B]);
    assert!(pg.fail(C) && pg.fail(d));
    assert_eq!(states(&pg), [Offline, Offline, Waiting, Waiting, Serving]);
    assert!(pg.replace(&[(C, fresh)], |disk| disk != C));
    assert!(pg.caught_up(&[fresh]), "two of five: nothing can be acknowledged yet");
    pg.take_down(&[e, fresh]);
    assert_eq!(states(&pg), [Offline, Offline, Waiting, Waiting, Waiting]);
    assert!(pg.take_back(C, |disk| disk == C));
    assert_eq!((pg.members[2].disk, pg.primary()), (C, Some(C)));
    assert!(!pg.take_back(fresh, ALL), "nobody takes the place of one that serves");
    assert!(pg.register(&[d, e], &[], ALL, ALL));
    assert!(pg.is_writable() && pg.formers.iter().all(|f| !f.complete), "from now on the other one misses something");
}

/// A copy of a disk as it was before would serve what it lacks, and the only one that has it would copy that.
#[test]
fn older_copies_catch_up_from_who_holds_everything() {
    let mut pg = pg(3);
    assert!(pg.register(&[A], &[A], ALL, ALL));
    assert_eq!(states(&pg), [Syncing, Serving, Serving]);
    assert!(pg.register(&[B], &[B], |_| false, ALL), "whether the third one was heard or not");
    assert_eq!(states(&pg), [Syncing, Syncing, Serving]);
    assert!(pg.members[0].older && pg.members[1].older && pg.older == Older::default());
    assert!(pg.caught_up(&[A, B]));
    assert!(pg.is_complete() && pg.members.iter().all(|m| !m.older));
}

/// A group would go on from older copies although the disk that it waits for has everything.
#[test]
fn older_copies_wait_for_who_holds_everything() {
    let mut pg = pg(3);
    pg.take_down(&[A, B, C]);
    assert!(pg.register(&[A, B], &[A, B], ALL, ALL));
    assert_eq!(states(&pg), [Offline, Offline, Waiting]);
    assert!(!pg.is_readable() && pg.older == Older::default());
    assert!(pg.register(&[C], &[], ALL, ALL));
    assert_eq!(states(&pg), [Syncing, Syncing, Serving]);
}

/// Nobody would ever serve again, or the loss would be named nowhere, or clients would read one of the copies before
/// they were compared.
#[test]
fn when_all_are_older_copies_they_serve_together_once_compared() {
    let mut pg = pg(3);
    pg.take_down(&[A, B, C]);
    assert!(pg.register(&[A], &[A], ALL, |disk| disk == A));
    assert!(pg.register(&[B], &[B], ALL, |disk| disk != C));
    let epoch = pg.epoch;
    assert!(pg.register(&[C], &[C], ALL, ALL));
    assert_eq!(states(&pg), [Serving, Serving, Serving]);
    assert_eq!(pg.older, Older { epoch: Epoch(epoch.get() + 1), comparing: true, unconfirmed: true });
    assert!(!pg.is_writable() && pg.members.iter().all(|m| !m.older));
    assert!(!pg.caught_up(&[B, C]), "only the primary compares");
    assert!(pg.caught_up(&[A]));
    assert!(pg.is_writable() && pg.older.unconfirmed && pg.epoch.get() == epoch.get() + 2);
    assert!(pg.confirm_older() && !pg.confirm_older());
}

/// Older copies would be put together without the only disk that has everything, and written over it.
#[test]
fn who_catches_up_takes_part_in_the_comparison_of_older_copies() {
    let mut pg = pg(3);
    assert!(pg.register(&[C], &[], ALL, ALL), "the others were heard a moment ago");
    assert_eq!(states(&pg), [Serving, Serving, Syncing]);
    assert!(pg.register(&[A], &[A], ALL, ALL));
    assert!(pg.register(&[B], &[B], ALL, ALL));
    assert_eq!(states(&pg), [Serving, Serving, Serving]);
    assert!(pg.older.comparing && pg.older.unconfirmed, "what the others acknowledged since may be lost");
    let mut filled = self::pg(3);
    let fresh = DiskId(9);
    filled.take_down(&[C]);
    assert!(filled.replace(&[(C, fresh)], |disk| disk != C));
    assert!(filled.register(&[A], &[A], ALL, ALL));
    assert!(filled.register(&[B], &[B], ALL, ALL));
    assert_eq!(states(&filled), [Serving, Serving, Syncing], "it never had everything");
}

/// Shards would be given up for lost while k of them are sure, or a disk that never was complete would count as one of
/// the last.
#[test]
fn of_shards_k_are_enough() {
    let disks: Vec<DiskId> = (1..=5).map(DiskId).collect();
    let mut pg = Pg::new(PgId(1), VolumeId(1), Scheme::Erasure { k: 3, m: 2 }, &disks, WallTime(0));
    assert!(pg.register(&disks[..2], &disks[..2], ALL, ALL));
    assert_eq!(states(&pg), [Syncing, Syncing, Serving, Serving, Serving]);
    assert!(pg.register(&disks[..1], &disks[..1], ALL, ALL), "once more");
    assert_eq!(pg.older, Older::default());
    assert!(pg.register(&disks[2..3], &disks[2..3], ALL, ALL));
    assert_eq!(states(&pg), [Serving; 5]);
    assert!(pg.older.unconfirmed && !pg.older.comparing);
}

/// A copy alone in its group has nobody to be compared with, but indices go on far above and the loss is named.
#[test]
fn a_single_copy_serves_and_is_named() {
    let mut pg = pg(1);
    assert!(pg.register(&[A], &[A], ALL, ALL));
    assert_eq!(states(&pg), [Serving]);
    assert_eq!(pg.older, Older { epoch: Epoch(2), comparing: false, unconfirmed: true });
}
