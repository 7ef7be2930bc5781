//! Damage at rest and a failing disk.

use cairn_env::{Disk, DiskOp};
use cairn_sim::{FaultRule, FaultWhen, SimDisk};

use super::fixture::{Model, entries, hard, open};
use crate::StoreError;

fn written(batches: u64) -> SimDisk {
    let disk = SimDisk::new(9);
    let (wal, _) = open(&disk).unwrap();
    for index in 1..=batches {
        wal.append(vec![entries(1, index, 1, 1, 100)]).unwrap();
    }
    drop(wal);
    disk
}

fn segment(number: u64) -> String {
    format!("log/seg-{number:020}.wal")
}

fn refusal(disk: &SimDisk) -> (String, u64) {
    match open(disk).map(|_| ()) {
        Err(StoreError::Corrupt { file, offset, .. }) => (file, offset),
        other => panic!("expected damage to be reported, got {other:?}"),
    }
}

/// Acknowledged records would vanish silently if a damaged batch were taken for the end of the log.
#[test]
fn damage_before_the_end_is_reported_by_file_and_offset() {
    for (number, at) in [(1, 4096), (1, 8192), (1, 12 << 10), (2, 8192)] {
        let disk = written(25);
        disk.flip_bit(&segment(number), at + 70, 3);
        assert_eq!(refusal(&disk), (format!("sim/{}", segment(number)), at));
        assert_eq!(refusal(&disk), (format!("sim/{}", segment(number)), at), "and again, for nothing was cut");
        disk.flip_bit(&segment(number), at + 70, 3);
        assert_eq!(open(&disk).unwrap().1.values().next().unwrap().entries.len(), 25);
    }
}

/// The whole first batch of a segment may be unreadable: then the segment before must not count as the end.
#[test]
fn damage_at_the_start_of_a_segment_is_reported() {
    let disk = written(25);
    disk.flip_bit(&segment(2), 4096 + 20, 0);
    let (file, _) = refusal(&disk);
    assert!(file.contains("seg-"), "{file}");
}

/// A segment's header tells whose it is; damaged, or of another log, it must not be replayed.
#[test]
fn damaged_headers_and_missing_segments_are_reported() {
    let disk = written(25);
    disk.flip_bit(&segment(1), 33, 0);
    assert_eq!(refusal(&disk), (format!("sim/{}", segment(1)), 0));
    let disk = written(60);
    disk.remove(&segment(2)).unwrap();
    assert_eq!(refusal(&disk).0, format!("sim/{}", segment(2)));
    let disk = written(25);
    let other = crate::wal::WalConfig { log: cairn_types::DiskUuid([6; 16]), ..super::fixture::config() };
    let error = crate::wal::Wal::open(std::sync::Arc::new(disk), other).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("belongs to the log of node"), "{error}");
}

/// Data that a failed sync may have lost must never be acknowledged by a later, successful one.
#[test]
fn a_failed_sync_is_final() {
    let disk = SimDisk::new(10);
    let (wal, _) = open(&disk).unwrap();
    wal.append(vec![hard(1, 1, 0)]).unwrap();
    let rule = disk.inject(FaultRule::io(&[DiskOp::Sync]).when(FaultWhen::Nth(1)));
    assert!(matches!(wal.append(vec![hard(1, 2, 0)]), Err(StoreError::LogStopped { .. })));
    assert_eq!(disk.hits(rule), 1);
    assert!(matches!(wal.append(vec![hard(1, 3, 0)]), Err(StoreError::LogStopped { .. })));
    assert!(wal.failure().is_some());
    drop(wal);
    disk.kill();
    let term = open(&disk).unwrap().1.values().next().and_then(|g| g.hard).map(|h| h.term);
    assert!(term == Some(1) || term == Some(2), "{term:?}");
}

/// A full disk must not lose the log: it waits, or says so when it is closed.
#[test]
fn no_space_for_a_segment_is_no_corruption() {
    let disk = SimDisk::new(11);
    let mut model = Model::default();
    let (wal, _) = open(&disk).unwrap();
    let rule = disk.inject(FaultRule::no_space(&[DiskOp::Write, DiskOp::Allocate]).on_path("log/spare*"));
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for index in 1..=40 {
                wal.append(vec![entries(1, index, 1, 1, 3000)]).unwrap();
            }
        });
        while disk.hits(rule) == 0 {
            std::thread::yield_now();
        }
        disk.heal_all();
        writer.join().unwrap();
    });
    assert!(disk.hits(rule) > 0);
    drop(wal);
    for index in 1..=40 {
        model.take(&[entries(1, index, 1, 1, 3000)]);
    }
    assert_eq!(open(&disk).unwrap().1, model.0);
}
