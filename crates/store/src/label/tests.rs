//! Tests of labels and the lock.

use std::sync::Arc;

use cairn_env::{Disk, OpenOptions};
use cairn_format::label::LabelKind;
use cairn_sim::{CrashPolicy, SimDisk, SimRng};
use cairn_types::{ClusterId, DiskId, NodeId, WallTime};

use super::{LABEL_FILE, LabelledDir, read_label};
use crate::StoreError;

const A: ClusterId = ClusterId([0xaa; 16]);
const B: ClusterId = ClusterId([0xbb; 16]);

fn open(disk: &SimDisk, kind: LabelKind, cluster: ClusterId) -> Result<LabelledDir, StoreError> {
    LabelledDir::open(Arc::new(disk.clone()), kind, cluster, &SimRng::seeded(1), WallTime(5))
}

/// Two processes in one directory, or one in another cluster's, would destroy it.
#[test]
fn one_process_and_one_cluster_a_directory() {
    let disk = SimDisk::new(1);
    let mut dir = open(&disk, LabelKind::Node, ClusterId::NONE).unwrap();
    let second = open(&disk, LabelKind::Node, A).err().unwrap();
    assert!(matches!(second, StoreError::InUse { .. }) && second.to_string().contains("stop that process"));
    dir.set_cluster(A).unwrap();
    dir.set_node(NodeId(17)).unwrap();
    let uuid = dir.label().uuid;
    assert!(dir.set_cluster(B).is_err());
    drop(dir);
    let error = open(&disk, LabelKind::Node, B).err().unwrap().to_string();
    assert!(error.contains(&A.to_string()) && error.contains(&B.to_string()) && error.contains("sim"), "{error}");
    assert!(matches!(open(&disk, LabelKind::Disk, A), Err(StoreError::OtherKind { .. })));
    let dir = open(&disk, LabelKind::Node, A).unwrap();
    assert_eq!((dir.label().uuid, dir.label().node, dir.label().cluster), (uuid, NodeId(17), A));
}

/// A directory with somebody's files must not be taken over, nor a damaged label be replaced.
#[test]
fn foreign_files_and_damage_are_refused() {
    let disk = SimDisk::new(1);
    disk.open("holiday.jpg", OpenOptions::CREATE).unwrap();
    let error = open(&disk, LabelKind::Disk, A).err().unwrap();
    assert!(matches!(&error, StoreError::Unlabelled { example, .. } if example == "holiday.jpg"), "{error}");
    let disk = SimDisk::new(2);
    drop(open(&disk, LabelKind::Disk, A).unwrap());
    disk.flip_bit(LABEL_FILE, 40, 1);
    assert!(matches!(open(&disk, LabelKind::Disk, A), Err(StoreError::Corrupt { .. })));
}

/// The identity must be the old or the new one after a crash at any operation, never none and never half.
#[test]
fn every_operation_may_be_the_last() {
    let mut crashes = 0;
    for policy in [CrashPolicy::LoseAll, CrashPolicy::KeepAll, CrashPolicy::harsh()] {
        for n in 1.. {
            let disk = SimDisk::new(n);
            disk.crash_at_op(n);
            let work = || -> Result<(), StoreError> {
                let mut dir = open(&disk, LabelKind::Disk, ClusterId::NONE)?;
                dir.set_cluster(A)?;
                dir.set_disk(NodeId(16), DiskId(4))
            };
            let done = work().is_ok();
            let fired = disk.is_down();
            disk.crash(policy);
            let label = read_label(&disk).unwrap_or_else(|error| panic!("crash at {n}, {policy:?}: {error}"));
            if done {
                assert_eq!(label.map(|l| (l.cluster, l.disk)), Some((A, DiskId(4))));
            }
            open(&disk, LabelKind::Disk, A).unwrap_or_else(|error| panic!("crash at {n}, {policy:?}: {error}"));
            if !fired {
                break;
            }
            crashes += disk.counts().crashes;
        }
    }
    println!("{crashes} crashes");
    assert!(crashes > 30);
}
