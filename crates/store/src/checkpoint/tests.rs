//! Tests of checkpoints: reading back, crashes at every operation, damage, handing over to another node.

use std::sync::Arc;

use cairn_env::{Disk, DiskOp};
use cairn_format::checkpoint::{CheckpointHeader, PAGE_DATA_MAX};
use cairn_sim::{CrashPolicy, FaultRule, FaultWhen, SimDisk};
use cairn_types::{ClusterId, GroupId, WallTime};

use super::{CheckpointSink, CheckpointSource, CheckpointStore};
use crate::StoreError;

const GROUP: GroupId = GroupId(3);

fn store(disk: &SimDisk) -> CheckpointStore {
    CheckpointStore::new(Arc::new(disk.clone()), "checkpoints", ClusterId([1; 16]))
}

fn header(index: u64) -> CheckpointHeader {
    CheckpointHeader {
        cluster: ClusterId([1; 16]),
        group: GROUP,
        index,
        term: index / 10,
        time: WallTime(index),
        voters: vec![1, 2, 3],
        learners: vec![],
    }
}

/// A state whose every byte depends on the index.
fn state(index: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(index + 7) >> 3) as u8).collect()
}

fn write(store: &CheckpointStore, index: u64, len: usize) -> Result<(), StoreError> {
    store.write(header(index), |writer| state(index, len).chunks(10_000).try_for_each(|part| writer.write(part)))?;
    store.prune(GROUP, None)?;
    Ok(())
}

fn read(store: &CheckpointStore, index: u64) -> Result<Vec<u8>, StoreError> {
    let mut file = store.open(GROUP, index)?;
    let mut out = vec![0; file.len() as usize];
    file.read_exact(&mut out)?;
    Ok(out)
}

/// States of all sizes around the pages' borders must read back.
#[test]
fn reads_back_and_keeps_two_generations() {
    let disk = SimDisk::new(1);
    let store = store(&disk);
    let sizes = [0, 1, PAGE_DATA_MAX - 1, PAGE_DATA_MAX, PAGE_DATA_MAX + 1, 3 * PAGE_DATA_MAX + 5000];
    for (at, len) in sizes.into_iter().enumerate() {
        let index = 10 * (at as u64 + 1);
        write(&store, index, len).unwrap();
        assert_eq!(read(&store, index).unwrap(), state(index, len));
    }
    assert_eq!(store.indices(GROUP).unwrap(), [60, 50]);
    let mut file = store.open(GROUP, 60).unwrap();
    file.verify().unwrap();
    assert_eq!(file.header(), &header(60));
    let mut more = vec![0; sizes[5] + 1];
    assert!(matches!(file.read_exact(&mut more), Err(StoreError::Corrupt { .. })), "it does not read beyond the end");
}

/// What was acknowledged as written must be found after any crash, and nothing half-written.
#[test]
fn every_operation_may_be_the_last() {
    let mut crashes = 0;
    for policy in [CrashPolicy::LoseAll, CrashPolicy::KeepAll, CrashPolicy::random(), CrashPolicy::harsh()] {
        for n in 1.. {
            let disk = SimDisk::new(n);
            disk.crash_at_op(n);
            let mut acknowledged = 0;
            for index in [10, 20, 30, 40] {
                if write(&store(&disk), index, 300_000).is_err() {
                    break;
                }
                acknowledged = index;
            }
            let fired = disk.is_down();
            disk.crash(policy);
            let store = store(&disk);
            for _ in 0..2 {
                let found = store.recover(GROUP).unwrap();
                assert!(found.damaged.is_empty(), "crash at {n}, {policy:?}: {:?}", found.damaged);
                let newest = found.newest.map_or(0, |file| file.header().index);
                assert!(newest >= acknowledged, "crash at {n}, {policy:?}: {newest} < {acknowledged}");
                for index in store.indices(GROUP).unwrap() {
                    assert_eq!(read(&store, index).unwrap(), state(index, 300_000), "crash at {n}, {policy:?}");
                }
            }
            if !fired {
                break;
            }
            crashes += disk.counts().crashes;
        }
    }
    println!("{crashes} crashes");
    assert!(crashes > 60);
}

/// A damaged newest checkpoint must be noticed wherever the damage is, and the older one still be there.
#[test]
fn damage_is_noticed_and_the_older_one_is_used() {
    let len = 300_000;
    for at in (0..310_000).step_by(1237).chain([0, 4095, 4096, 4127, 266_240, 266_300]) {
        let disk = SimDisk::new(1);
        let store = store(&disk);
        write(&store, 10, len).unwrap();
        write(&store, 20, len).unwrap();
        let path = store.path(GROUP, 20);
        let size = disk.list(&store.group_dir(GROUP)).unwrap().last().unwrap().len;
        disk.flip_bit(&path, (at as u64).min(size - 1), 5);
        let mut found = store.recover(GROUP).unwrap();
        let mut newest = found.newest.take().unwrap();
        if newest.header().index == 20 {
            assert!(matches!(newest.verify(), Err(StoreError::Corrupt { .. })), "byte {at}");
            store.set_aside(GROUP, 20).unwrap();
            newest = store.recover(GROUP).unwrap().newest.unwrap();
        } else {
            assert_eq!(found.damaged.len(), 1, "byte {at}");
            assert!(found.damaged[0].to_string().contains(&path), "{}", found.damaged[0]);
        }
        assert_eq!(newest.header().index, 10);
        assert_eq!(read(&store, 10).unwrap(), state(10, len));
    }
}

/// A checkpoint whose writing failed must leave nothing behind, and a later one must work.
#[test]
fn a_failed_write_leaves_nothing() {
    let mut failed = 0;
    for nth in 1..12 {
        let disk = SimDisk::new(nth);
        let store = store(&disk);
        write(&store, 10, 300_000).unwrap();
        let ops = [DiskOp::Write, DiskOp::Sync];
        let rule = disk.inject(FaultRule::io(&ops).when(FaultWhen::Nth(nth)));
        let result = write(&store, 20, 300_000);
        assert_eq!(result.is_err(), disk.hits(rule) > 0);
        failed += disk.hits(rule);
        disk.heal_all();
        if result.is_err() {
            assert_eq!(store.indices(GROUP).unwrap(), [10]);
        }
        write(&store, 30, 300_000).unwrap();
        assert_eq!(read(&store, 30).unwrap(), state(30, 300_000));
    }
    println!("{failed} failures");
    assert!(failed > 3);
}

/// A follower would restore garbage, or a leader give away what it replaced meanwhile.
#[test]
fn handing_over_verifies_and_survives_replacement() {
    let (from, to) = (SimDisk::new(1), SimDisk::new(2));
    let (giver, taker) = (store(&from), store(&to));
    write(&giver, 10, 700_000).unwrap();
    let file = giver.give(GROUP, 10).unwrap();
    for index in [20, 30, 40] {
        write(&giver, index, 10).unwrap();
    }
    assert!(matches!(giver.give(GROUP, 10), Err(StoreError::NoCheckpoint { .. })));
    let mut incoming = taker.receive(GROUP, 10, 1).unwrap();
    while incoming.len() < file.len() {
        let part = file.read(incoming.len(), 100_001).unwrap();
        incoming.write(&part).unwrap();
    }
    assert_eq!(incoming.finish().unwrap(), header(10));
    assert_eq!(read(&taker, 10).unwrap(), state(10, 700_000));
    // Wrong bytes, a short file and a wrong place are refused.
    for flaw in 0..3 {
        let mut incoming = taker.receive(GROUP, if flaw == 2 { 11 } else { 10 }, 1).unwrap();
        let mut bytes = file.read(0, file.len() as usize).unwrap();
        match flaw {
            0 => bytes[500_000] ^= 1,
            1 => bytes.truncate(500_000),
            _ => {}
        }
        incoming.write(&bytes).unwrap();
        assert!(matches!(incoming.finish(), Err(StoreError::Corrupt { .. })), "flaw {flaw}");
    }
    assert_eq!(taker.indices(GROUP).unwrap(), [10]);
}

/// A follower's crash while it takes a checkpoint over must leave it with what it had, or with the whole new one.
#[test]
fn taking_over_survives_a_crash_at_every_operation() {
    let from = SimDisk::new(1);
    let giver = store(&from);
    write(&giver, 20, 300_000).unwrap();
    let file = giver.give(GROUP, 20).unwrap();
    let bytes = file.read(0, file.len() as usize).unwrap();
    let mut crashes = 0;
    for n in 1.. {
        let disk = SimDisk::new(n);
        let taker = store(&disk);
        write(&taker, 10, 1000).unwrap();
        disk.crash_at_op(disk.ops() + n);
        let take = || {
            let mut incoming = taker.receive(GROUP, 20, 2)?;
            bytes.chunks(65_536).try_for_each(|part| incoming.write(part))?;
            incoming.finish()
        };
        let done = take().is_ok();
        let fired = disk.is_down();
        disk.crash(CrashPolicy::harsh());
        let found = taker.recover(GROUP).unwrap();
        let newest = found.newest.unwrap().header().index;
        assert!(newest == 20 || (newest == 10 && !done), "crash at {n}");
        assert!(found.damaged.is_empty());
        assert!(read(&taker, newest).is_ok());
        if !fired {
            break;
        }
        crashes += disk.counts().crashes;
    }
    assert!(crashes >= 8, "{crashes} crashes");
}
