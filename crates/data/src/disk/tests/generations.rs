//! The generation of a disk: it rises with each start and with what is written, over crashes, damage and full disks.

use std::sync::Arc;

use cairn_env::disk::DiskOp;
use cairn_format::generation::GENERATION_SLOT;
use cairn_sim::{CrashPolicy, FaultRule, SimClock, SimDisk};
use cairn_types::generation::Lineage;

use super::model::{append, append_op, config, context, id, open};
use crate::disk::{DiskStore, RISE_PAUSE, paths};

fn number(lineage: &Lineage) -> u64 {
    lineage.present().expect("it keeps one").number
}

/// A copy of a disk could not be told from the disk.
#[test]
fn it_rises_at_each_start_and_while_something_is_written() {
    let (disk, clock) = (SimDisk::new(1), Arc::new(SimClock::new()));
    let start = || {
        let context = crate::disk::DiskContext { clock: clock.clone(), ..context(Arc::new(disk.clone())) };
        DiskStore::open(context, config()).expect("it opens")
    };
    let store = start();
    assert_eq!(number(&store.lineage()), 1);
    let later = |store: &Arc<DiskStore>| {
        clock.advance(RISE_PAUSE);
        store.rise_later();
        store.drive();
        number(&store.lineage())
    };
    // What the start itself wrote.
    let begun = later(&store);
    append(&store, append_op(id(1), 0, &[5; 5000], true)).expect("durable");
    store.rise_later();
    store.drive();
    assert_eq!(number(&store.lineage()), begun, "not so soon");
    assert_eq!(later(&store), begun + 1);
    // What was on its way home.
    store.checkpoint();
    let written = later(&store);
    assert_eq!(later(&store), written, "nothing was written since");
    store.generation_confirmed(&store.lineage());
    append(&store, append_op(id(2), 0, &[6; 5000], true)).expect("durable");
    assert_eq!(later(&store), written + 1);
    let told = store.lineage();
    drop(store);
    disk.crash(CrashPolicy::LoseAll);
    let store = start();
    let now = store.lineage();
    assert_eq!(number(&now), number(&told) + 1);
    assert_eq!(now.runs.len(), 2, "each start has a nonce of its own");
    assert_eq!((now.runs[0], now.confirmed), (told.present().expect("one"), written));
}

/// A generation that was told and is lost would make a sound disk an older copy of itself.
#[test]
fn what_was_told_survives_every_crash() {
    let mut crashes = 0;
    for policy in [CrashPolicy::LoseAll, CrashPolicy::KeepAll, CrashPolicy::random(), CrashPolicy::harsh()] {
        for n in 0..40 {
            let disk = SimDisk::new(n);
            let mut told = Lineage::default();
            disk.crash_at_op(n);
            for _ in 0..3 {
                match open(&disk) {
                    Ok(store) => told = store.lineage(),
                    Err(_) => break,
                }
                disk.kill();
            }
            crashes += u64::from(disk.is_down());
            disk.crash(policy);
            let now = open(&disk).expect("it opens").lineage();
            assert!(number(&now) > told.present().map_or(0, |present| present.number), "{policy:?} {n}");
            let follows = told.runs.iter().all(|run| now.runs.contains(run));
            assert!(follows, "{policy:?} {n}: {told:?}, then {now:?}");
        }
    }
    assert!(crashes > 50, "{crashes} crashes");
}

/// A damaged generation would be taken for a good one, keep a disk out of service, or hide that it may be older.
#[test]
fn a_damaged_slot_is_the_generation_before_and_two_are_none() {
    let disk = SimDisk::new(1);
    let mut last = Lineage::default();
    for _ in 0..3 {
        last = open(&disk).expect("it opens").lineage();
        disk.kill();
    }
    let slot = number(&last) % 2 * GENERATION_SLOT;
    disk.flip_bit(paths::GENERATION, slot + 70, 1);
    let before = open(&disk).expect("it opens").lineage();
    assert_eq!((number(&before), before.runs[..2] == last.runs[..2]), (3, true), "it went on from the one before");
    disk.kill();
    for slot in 0..2 {
        disk.flip_bit(paths::GENERATION, slot * GENERATION_SLOT + 66, 1);
    }
    let anew = open(&disk).expect("it opens").lineage();
    assert_eq!((number(&anew), anew.runs.len()), (1, 1));
    assert_eq!(disk.counts().bits_flipped, 3);
}

/// A full disk could not be started, or a failed rise be told.
#[test]
fn full_and_failing_disks() {
    let disk = SimDisk::new(1);
    drop(open(&disk).expect("it opens"));
    disk.kill();
    let image = disk.snapshot();
    disk.set_capacity(0);
    assert_eq!(number(&open(&disk).expect("it needs no room").lineage()), 2);
    disk.restore(&image);
    disk.set_capacity(1 << 30);
    let rule = disk.inject(FaultRule::io(&[DiskOp::Write]).on_path("generation").times(1));
    assert!(open(&disk).is_err(), "it may or may not have risen");
    assert_eq!(disk.hits(rule), 1);
    // From a build of before, and too full to make it.
    disk.kill();
    cairn_env::Disk::remove(&disk, paths::GENERATION).expect("removed");
    disk.set_capacity(0);
    assert_eq!(open(&disk).expect("it opens").lineage(), Lineage::default());
}
