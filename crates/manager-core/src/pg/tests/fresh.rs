//! Groups of which every disk is lost.
use super::*;

const NEW: DiskId = DiskId(9);

fn empty<'a>(lost: &'a [DiskId], fresh: &'a [(DiskId, DiskId)], index_floor: u32) -> Forced<'a> {
    Forced { lost, fresh, index_floor, promoted: &[] }
}

/// A group with one copy would wait for its lost disk for ever, or give an index a second time.
#[test]
fn a_lost_single_copy_is_given_up_by_word_only() {
    let mut pg = pg(1);
    pg.take_down(&[A]);
    let waits = pg.clone();
    let new = |disk: DiskId| disk == NEW;
    let floor = pg.index_floor_of_none();
    assert!(floor >= u32::MAX / 2);
    // Nobody without a word, in the place of who is not lost, of a disk that is not there, or with indices that may
    // have been given.
    assert!(!pg.force(empty(&[], &[(A, NEW)], floor), new));
    assert!(!pg.force(empty(&[A], &[(B, NEW)], floor), new));
    assert!(!pg.force(empty(&[A], &[(A, NEW)], floor), |_| false));
    assert!(!pg.force(empty(&[A], &[(A, NEW)], 0), new));
    assert!(!pg.force(empty(&[A], &[(A, A)], floor), ALL));
    assert_eq!(pg, waits);
    assert!(pg.force(empty(&[A], &[(A, NEW)], floor), new));
    assert_eq!((states(&pg), pg.primary(), pg.index_floor), (vec![Serving], Some(NEW), floor));
    assert!(pg.epoch > waits.epoch && pg.is_writable() && pg.formers_flaw().is_none());
    // Who is lost has nothing more to do with it, so that its disk can be removed.
    assert!(pg.formers.iter().all(|f| f.disk == A && f.drop));
    assert!(pg.index_floor_of_none() > floor && pg.index_floor_of_none() < u32::MAX);
}

/// An empty disk would serve, and what a stale copy still has be deleted for it.
#[test]
fn nothing_empty_serves_while_somebody_may_have_something() {
    let mut pg = pg(3);
    for disk in [C, B, A] {
        pg.take_down(&[disk]);
    }
    assert_eq!(states(&pg), [Waiting, Waiting, Offline]);
    let (waits, able) = (pg.clone(), |disk: DiskId| disk == NEW);
    let floor = pg.index_floor_of_none();
    assert_eq!(pg.left_without(&[A, B]).collect::<Vec<_>>(), [C]);
    assert!(!pg.force(empty(&[A, B], &[(A, NEW)], floor), able) && pg == waits, "C may have a stale copy");
    assert!(pg.force(empty(&[A, B, C], &[(A, NEW)], floor), able));
    assert_eq!(states(&pg), [Serving, Offline, Offline]);
    assert!(!pg.is_writable(), "until the others are replaced");
    // A disk that was replaced and has not deleted its copy counts as well.
    let mut pg = self::pg(1);
    pg.take_down(&[A]);
    pg.formers.push(Former { disk: B, position: 0, served: true, complete: false, drop: false });
    let waits = pg.clone();
    assert!(!pg.force(empty(&[A], &[(A, NEW)], floor), able) && pg == waits);
    assert!(pg.force(empty(&[A, B], &[(A, NEW)], floor), able));
}

/// A drain that the loss cut short would keep the group, or the disk that joins be taken for one with everything.
#[test]
fn a_disk_that_was_joining_has_to_be_named_too() {
    let mut pg = pg(1);
    assert!(pg.begin_move(A, B, ALL));
    pg.take_down(&[A, B]);
    let (waits, able) = (pg.clone(), |disk: DiskId| disk == NEW);
    let floor = pg.index_floor_of_none();
    assert!(!pg.force(empty(&[A], &[(A, NEW)], floor), able) && pg == waits);
    assert!(pg.force(empty(&[A, B], &[(A, NEW)], floor), able));
    assert!(pg.joining.is_none() && pg.formers.iter().all(|f| f.drop) && pg.formers_flaw().is_none());
    assert_eq!(states(&pg), [Serving]);
}

/// Of shards, empty ones would come beside those that are there but are not enough, one place twice, or too many.
#[test]
fn shards_that_are_too_few_are_filled_up() {
    let disks: Vec<DiskId> = (1..=5).map(DiskId).collect();
    let mut pg = Pg::new(PgId(1), VolumeId(1), Scheme::Erasure { k: 3, m: 2 }, &disks, WallTime(0));
    pg.take_down(&disks[..3]);
    let (lost, floor) = (&disks[..3], pg.index_floor_of_none());
    assert_eq!(pg.missing_without(lost), 1);
    assert!(!pg.force(empty(lost, &[(A, NEW), (B, DiskId(10))], floor), ALL), "one is missing");
    assert!(!pg.force(empty(lost, &[(disks[3], NEW)], floor), ALL), "it serves");
    assert!(pg.force(empty(lost, &[(A, NEW)], floor), |disk| disk == NEW || disk > C));
    assert_eq!(states(&pg), [Serving, Offline, Offline, Serving, Serving]);
}
