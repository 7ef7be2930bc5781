//! One member.

use std::sync::Arc;

use cairn_types::{GroupId, NodeId};

use super::fixture::{Adder, Fate, GROUP, Node, Sum, Switch, config, start, start_machine, wait_for};
use crate::{HostConfig, HostError};

fn start_adder(dir: &std::path::Path, sm: Adder) -> Node {
    let disk = Arc::new(cairn_env::RealDisk::open(dir).unwrap());
    start_machine(disk, Arc::new(cairn_env::RealClock), &Arc::new(Switch::default()), config(1), &[1], sm)
}

fn leader(dir: &std::path::Path) -> Node {
    let node = start(dir, &Arc::new(Switch::default()), config(1), &[1], 0);
    wait_for("leadership", || node.handle.leads());
    node
}

/// Acknowledged proposals would be lost if the log were not replayed, or replayed twice.
#[test]
fn proposals_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let node = leader(dir.path());
    for number in 1..=100 {
        assert_eq!(node.add(number), Some(Fate::Done(number * (number + 1) / 2)));
    }
    assert!(node.handle.read_permit().is_ok());
    drop(node);
    let node = leader(dir.path());
    let state = node.state.lock().clone();
    assert_eq!(state, Sum { sum: 5050, count: 100, time: state.time });
    assert_eq!(node.add(1), Some(Fate::Done(5051)));
}

/// A read would miss what was acknowledged: a leader whose state machine is still taking entries from before has its
/// lease already.
#[test]
fn nothing_is_read_before_all_is_applied() {
    let dir = tempfile::tempdir().unwrap();
    let node = leader(dir.path());
    assert_eq!(node.add(7), Some(Fate::Done(7)));
    drop(node);
    let state = Arc::new(parking_lot::Mutex::new(Sum::default()));
    let busy = state.lock();
    let node = start_adder(dir.path(), Adder::new(&state));
    let refused = (0..100).all(|_| {
        std::thread::sleep(std::time::Duration::from_millis(2));
        node.handle.read_permit().is_err()
    });
    drop(busy);
    assert!(refused, "nothing was applied yet");
    wait_for("a permit", || node.handle.read_permit().is_ok());
    assert_eq!(state.lock().sum, 7);
}

/// The log would grow for ever, or the state be lost, if checkpoints did not replace it.
#[test]
fn checkpoints_replace_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let mut settings = config(1);
    settings.checkpoint_log_bytes = 64 << 10;
    settings.segment_bytes = 256 << 10;
    let switch = Arc::new(Switch::default());
    let mut sum = 0;
    for round in 0..3 {
        let node = start(dir.path(), &switch, settings.clone(), &[1], 100_000);
        wait_for("leadership", || node.handle.leads());
        assert_eq!(node.state.lock().sum, sum, "round {round}");
        for _ in 0..600 {
            sum += 1;
            let (sender, receiver) = std::sync::mpsc::channel();
            let mut item = vec![0; 2000];
            item[0] = 1;
            node.handle.propose(item, sender).unwrap();
            assert_eq!(receiver.recv(), Ok(Fate::Done(sum)));
        }
        wait_for("a checkpoint", || node.handle.status().checkpoints >= 2);
    }
    let node = start(dir.path(), &switch, settings, &[1], 100_000);
    wait_for("leadership", || node.handle.leads());
    assert_eq!(node.state.lock().sum, sum);
    let logs = std::fs::read_dir(dir.path().join("log")).unwrap().count();
    assert!(logs <= 12, "{logs} files in the log");
}

/// An idle group would keep the shared log from ever shrinking while another one is busy.
#[test]
fn an_idle_group_does_not_hold_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let settings = HostConfig {
        checkpoint_log_bytes: 100_000,
        segment_bytes: 64 << 10,
        item_bytes_max: 8 << 10,
        batch_bytes_max: 8 << 10,
        segments_max: 2,
        ..config(1)
    };
    let idle_group = GroupId(8);
    for round in 1..=2u64 {
        let node = start(dir.path(), &Arc::new(Switch::default()), settings.clone(), &[1], 0);
        let idle_state = Arc::default();
        let idle = node._host.open_group(idle_group, &[NodeId(1)], Adder::new(&idle_state)).unwrap();
        wait_for("leadership", || node.handle.leads() && idle.leads());
        let (sender, receiver) = std::sync::mpsc::channel();
        idle.propose(5u64.to_le_bytes().to_vec(), sender).unwrap();
        assert_eq!(receiver.recv(), Ok(Fate::Done(5 * round)));
        let mut most = 0;
        for _ in 0..1500 {
            let (sender, receiver) = std::sync::mpsc::channel();
            let mut item = vec![0; 5000];
            item[0] = 1;
            node.handle.propose(item, sender).unwrap();
            assert!(matches!(receiver.recv(), Ok(Fate::Done(_))));
            most = most.max(node._host.wal_stats().segments());
        }
        wait_for("old segments to go", || node._host.wal_stats().segments() <= 6);
        println!("at most {most} segments");
    }
}

/// A group that became idle just after a checkpoint has nothing newer to check, and more entries before it than can be
/// logged again at once: the shared log would grow until the disk is full.
#[test]
fn a_group_that_is_idle_after_a_checkpoint_does_not_hold_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let settings = HostConfig {
        checkpoint_log_bytes: 1 << 30,
        segment_bytes: 64 << 10,
        item_bytes_max: 8 << 10,
        batch_bytes_max: 8 << 10,
        segments_max: 2,
        idle_entry: std::time::Duration::from_millis(100),
        ..config(1)
    };
    let node = start(dir.path(), &Arc::new(Switch::default()), settings, &[1], 0);
    let idle = node._host.open_group(GroupId(8), &[NodeId(1)], Adder::new(&Arc::default())).unwrap();
    wait_for("leadership", || node.handle.leads() && idle.leads());
    let propose = |handle: &crate::GroupHandle<_>| {
        let (sender, receiver) = std::sync::mpsc::channel();
        let mut item = vec![0; 5000];
        item[0] = 1;
        handle.propose(item, sender).unwrap();
        assert!(matches!(receiver.recv(), Ok(Fate::Done(_))));
    };
    // Two checkpoints with more between them than one record takes.
    for _ in 0..2 {
        (0..30).for_each(|_| propose(&idle));
        let before = idle.status().checkpoints;
        idle.checkpoint_soon();
        wait_for("a checkpoint", || idle.status().checkpoints > before);
    }
    for _ in 0..300 {
        propose(&node.handle);
    }
    wait_for("old segments to go", || {
        propose(&node.handle);
        node._host.wal_stats().segments() <= 6
    });
}

/// A group opened twice in one process would begin anew over its own log; one that was left must be able to join again.
#[test]
fn groups_are_opened_once_and_can_be_left() {
    let dir = tempfile::tempdir().unwrap();
    let node = leader(dir.path());
    assert_eq!(node.add(3), Some(Fate::Done(3)));
    let again = || node._host.open_group(GROUP, &[NodeId(1)], Adder::new(&Arc::default())).map(|_| ());
    assert_eq!(again(), Err(HostError::Open(GROUP)));
    node._host.close_group(GROUP);
    assert_eq!(again(), Err(HostError::Open(GROUP)));
    drop(node);
    let node = leader(dir.path());
    assert_eq!(node.state.lock().sum, 3);
    node.handle.checkpoint_soon();
    wait_for("a checkpoint", || node.handle.status().checkpoints > 0);
    let files = || -> Vec<_> {
        let group = dir.path().join("checkpoints").join(format!("{:010}", GROUP.0));
        std::fs::read_dir(group).unwrap().map(|file| file.unwrap().path()).collect()
    };
    let kept: Vec<_> = files().into_iter().map(|path| (path.clone(), std::fs::read(path).unwrap())).collect();
    assert_eq!(kept.len(), 1);
    node._host.remove_group(GROUP).unwrap();
    assert!(files().is_empty());
    assert!(!node._host.knows_group(GROUP).unwrap());
    drop(node);
    // As if the process had been killed before the checkpoint was dropped.
    kept.iter().for_each(|(path, bytes)| std::fs::write(path, bytes).unwrap());
    let node = leader(dir.path());
    assert_eq!(node.add(4), Some(Fate::Done(4)), "nothing of the old group is left");
}
