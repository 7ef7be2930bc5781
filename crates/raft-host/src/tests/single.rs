//! One member.

use std::sync::Arc;

use super::fixture::{Fate, Node, Sum, Switch, config, start, wait_for};

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
