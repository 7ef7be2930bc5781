//! Without faults.

use std::sync::Arc;

use cairn_env::PatientDisk;
use cairn_env::disk::DiskOp;
use cairn_sim::{FaultRule, SimDisk};
use cairn_types::GroupId;

use super::fixture::{Model, Script, config, entries, hard, open};
use crate::wal::{Record, Wal, WalConfig};

/// Records would be lost or changed by a restart, or old segments kept for ever.
#[test]
fn reads_back_over_many_segments() {
    let disk = SimDisk::new(1);
    let mut model = Model::default();
    let mut script = Script::new(1);
    for _ in 0..6 {
        let (wal, groups) = open(&disk).unwrap();
        assert_eq!(groups, model.0);
        for _ in 0..100 {
            let records = script.next();
            model.take(&records);
            wal.append(records).unwrap();
        }
    }
    let (wal, groups) = open(&disk).unwrap();
    assert_eq!(groups, model.0);
    assert!(wal.stats().segments() < 60, "{} segments", wal.stats().segments());
}

/// A log would stop until the next start because the process had no descriptor left when a segment was full.
#[test]
fn a_log_waits_for_descriptors() {
    let disk = SimDisk::new(7);
    let patient = PatientDisk::new(Arc::new(disk.clone()), Arc::default());
    let (wal, _) = Wal::open(Arc::new(patient), config()).unwrap();
    let rule = disk.inject(FaultRule::no_descriptors(&[DiskOp::Open]).times(4));
    let mut index = 1;
    while disk.hits(rule) < 4 {
        wal.append(vec![entries(1, index, 1, 1, 5000)]).unwrap();
        index += 1;
    }
    wal.append(vec![entries(1, index, 1, 1, 10)]).unwrap();
    drop(wal);
    let (_, groups) = open(&disk).unwrap();
    assert_eq!(groups[&GroupId(1)].entries.len() as u64, index);
}

/// A group that is never truncated keeps its entries although others move on; once it is, segments go.
#[test]
fn segments_live_as_long_as_a_group_needs_them() {
    let disk = SimDisk::new(2);
    let (wal, _) = open(&disk).unwrap();
    wal.append(vec![hard(9, 3, 0), entries(9, 1, 5, 3, 10)]).unwrap();
    for index in 1..100 {
        wal.append(vec![entries(1, index, 1, 1, 5000), Record::Truncate { group: GroupId(1), index, term: 1 }])
            .unwrap();
    }
    assert_eq!(wal.oldest_holder(), Some(GroupId(9)));
    assert!(wal.stats().segments() > 5);
    wal.append(vec![Record::Truncate { group: GroupId(9), index: 5, term: 3 }]).unwrap();
    drop(wal);
    let (wal, groups) = open(&disk).unwrap();
    assert_eq!(wal.stats().segments(), 1, "all others were given up");
    assert_eq!(groups[&GroupId(9)].base, (5, 3));
    assert_eq!(groups[&GroupId(9)].hard.map(|h| h.term), Some(3), "promises outlive the segment that had them");
}

/// Submissions from many threads must all be there, each group's in order, with completions only after the sync.
#[test]
fn group_commit_serves_many_submitters() {
    let disk = SimDisk::new(3);
    let config = WalConfig { prepare_ahead: true, segment_bytes: 1 << 20, ..config() };
    let (wal, _) = Wal::open(Arc::new(disk.clone()), config.clone()).unwrap();
    std::thread::scope(|scope| {
        for group in 1..=8 {
            let wal = &wal;
            scope.spawn(move || {
                for index in 1..=200 {
                    wal.append(vec![entries(group, index, 1, 1, 100)]).unwrap();
                }
            });
        }
    });
    assert_eq!(wal.stats().records(), 1600);
    drop(wal);
    disk.crash(cairn_sim::CrashPolicy::LoseAll);
    let (_, groups) = Wal::open(Arc::new(disk), config).unwrap();
    assert_eq!(groups.len(), 8);
    for group in groups.values() {
        assert!(group.entries.iter().map(|e| e.index).eq(1..=200));
    }
}

/// A submission larger than a batch must arrive whole, and one larger than the queue must not block for ever.
#[test]
fn large_submissions_are_cut_into_batches() {
    let disk = SimDisk::new(4);
    let mut model = Model::default();
    let (wal, _) = open(&disk).unwrap();
    let records: Vec<Record> = (0..40).map(|i| entries(1, 1 + i, 1, 1, 12_000)).collect();
    model.take(&records);
    wal.append(records).unwrap();
    assert!(wal.stats().batches() > 10);
    drop(wal);
    assert_eq!(open(&disk).unwrap().1, model.0);
}

/// Entries written once more free the segments that had them, and are there exactly once afterwards.
#[test]
fn entries_logged_again_free_old_segments() {
    let disk = SimDisk::new(5);
    let mut model = Model::default();
    let (wal, _) = open(&disk).unwrap();
    let mut write = |records: Vec<Record>| {
        model.take(&records);
        wal.append(records).unwrap();
    };
    write(vec![hard(9, 3, 0), entries(9, 1, 5, 3, 10)]);
    for index in 1..60 {
        write(vec![entries(1, index, 1, 1, 5000), Record::Truncate { group: GroupId(1), index, term: 1 }]);
    }
    assert_eq!(wal.oldest_holder(), Some(GroupId(9)));
    write(vec![entries(9, 1, 5, 3, 10)]);
    write(vec![hard(9, 3, 5)]);
    assert_eq!(wal.oldest_holder(), None);
    drop(wal);
    disk.crash(cairn_sim::CrashPolicy::LoseAll);
    let (wal, groups) = open(&disk).unwrap();
    assert_eq!(groups, model.0);
    assert_eq!(wal.stats().segments(), 1);
}
