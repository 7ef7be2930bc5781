//! Tests of the list of disks, and of directories whose disk is absent.

use std::sync::Arc;

use cairn_env::{Disk, OpenOptions};
use cairn_sim::{CrashPolicy, SimDisk, SimRng};
use cairn_types::{ClusterId, DiskUuid, WallTime};

use super::{DISKS_FILE, KnownDisks};
use crate::StoreError;
use crate::label::{LabelledDir, read_label};

const NODE: DiskUuid = DiskUuid([9; 16]);

fn known(node_dir: &SimDisk, replaced: &[DiskUuid]) -> Result<KnownDisks, StoreError> {
    KnownDisks::open(Arc::new(node_dir.clone()), NODE, replaced.iter().copied())
}

fn open(disk: &SimDisk, known: &KnownDisks, seed: u64) -> Result<DiskUuid, StoreError> {
    let rng = SimRng::seeded(seed);
    let dir = LabelledDir::open_disk(Arc::new(disk.clone()), known, ClusterId::NONE, &rng, WallTime(5))?;
    Ok(dir.label().uuid)
}

/// An unmounted disk's mount point would become a new disk, and fill the file system below it, while the node's real
/// chunks count as lost.
#[test]
fn an_empty_directory_where_a_disk_was_is_refused_until_it_is_declared_replaced() {
    let node_dir = SimDisk::new(1);
    let uuid = open(&SimDisk::new(2), &known(&node_dir, &[]).unwrap(), 1).unwrap();
    // All simulated disks have the same name, so this is another directory at the same path.
    let empty = SimDisk::new(3);
    let error = open(&empty, &known(&node_dir, &[]).unwrap(), 2).unwrap_err();
    assert!(matches!(&error, StoreError::DiskAbsent { uuid: found, .. } if *found == uuid), "{error}");
    let text = error.to_string();
    assert!(text.contains("mount") && text.contains(&format!("replaced_disks = [\"{uuid}\"]")), "{text}");
    // Nothing is made in what may be the root file system, not even the lock.
    assert_eq!(empty.list("").unwrap().len(), 0);
    // Another disk declared lost says nothing about this one.
    assert!(open(&empty, &known(&node_dir, &[DiskUuid([7; 16])]).unwrap(), 2).is_err());
    let new = open(&empty, &known(&node_dir, &[uuid]).unwrap(), 3).unwrap();
    assert_ne!(new, uuid);
    // The declaration stays in the configuration, and must not open the same hole for the disk that came instead.
    let again = open(&SimDisk::new(4), &known(&node_dir, &[uuid]).unwrap(), 4).unwrap_err();
    assert!(matches!(&again, StoreError::DiskAbsent { uuid, .. } if *uuid == new), "{again}");
}

/// A disk that is there must be used, also one of a node that had no list yet, and another one that took its place.
#[test]
fn labelled_disks_are_used_and_noted() {
    let node_dir = SimDisk::new(1);
    let (first, second) = (SimDisk::new(2), SimDisk::new(3));
    let old = open(&first, &known(&SimDisk::new(9), &[]).unwrap(), 1).unwrap();
    assert_eq!(open(&first, &known(&node_dir, &[]).unwrap(), 2).unwrap(), old);
    assert_eq!(open(&first, &known(&node_dir, &[]).unwrap(), 2).unwrap(), old);
    let other = open(&second, &known(&SimDisk::new(9), &[]).unwrap(), 3).unwrap();
    assert_eq!(open(&second, &known(&node_dir, &[]).unwrap(), 4).unwrap(), other);
    assert_eq!(known(&node_dir, &[]).unwrap().expected(first.name()), Some(other));
}

/// A directory with somebody's files stays refused for that reason, which tells more.
#[test]
fn a_directory_with_files_is_told_as_such() {
    let node_dir = SimDisk::new(1);
    open(&SimDisk::new(2), &known(&node_dir, &[]).unwrap(), 1).unwrap();
    let full = SimDisk::new(3);
    full.open("holiday.jpg", OpenOptions::CREATE).unwrap();
    let error = open(&full, &known(&node_dir, &[]).unwrap(), 2).unwrap_err();
    assert!(matches!(error, StoreError::Unlabelled { .. }), "{error}");
}

/// A list that cannot be trusted must stop the node, not be begun anew.
#[test]
fn damage_and_foreign_lists_are_refused() {
    let node_dir = SimDisk::new(1);
    open(&SimDisk::new(2), &known(&node_dir, &[]).unwrap(), 1).unwrap();
    let foreign = KnownDisks::open(Arc::new(node_dir.clone()), DiskUuid([8; 16]), []);
    assert!(matches!(foreign, Err(StoreError::Corrupt { .. })));
    node_dir.flip_bit(DISKS_FILE, 70, 1);
    assert!(matches!(known(&node_dir, &[]), Err(StoreError::Corrupt { .. })));
}

/// After a crash at any operation a disk that may hold chunks is known, and one that is labelled can be opened.
#[test]
fn every_operation_may_be_the_last() {
    let mut crashes = 0;
    for policy in [CrashPolicy::LoseAll, CrashPolicy::KeepAll, CrashPolicy::harsh()] {
        for n in 1.. {
            let (node_dir, disk) = (SimDisk::new(n), SimDisk::new(1000 + n));
            node_dir.crash_at_op(n);
            let done = known(&node_dir, &[]).and_then(|known| open(&disk, &known, 1)).is_ok();
            let fired = node_dir.is_down();
            node_dir.crash(policy);
            let known = known(&node_dir, &[]).unwrap_or_else(|error| panic!("crash at {n}, {policy:?}: {error}"));
            let label = read_label(&disk).unwrap().map(|label| label.uuid);
            if done {
                assert_eq!(known.expected(disk.name()), label, "crash at {n}, {policy:?}");
            }
            open(&disk, &known, 2).unwrap_or_else(|error| panic!("crash at {n}, {policy:?}: {error}"));
            if !fired {
                break;
            }
            crashes += node_dir.counts().crashes;
        }
    }
    println!("{crashes} crashes");
    assert!(crashes > 15);
}
