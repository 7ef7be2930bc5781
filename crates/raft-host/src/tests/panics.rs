//! A state machine that panics.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use super::fixture::{Fate, Switch, config, start, wait_for};
use crate::HostConfig;

/// Says in the child process where its directory is.
const DIR: &str = "CAIRN_TEST_PANIC_DIR";
const SIGABRT: i32 = 6;

/// The state would be half changed, and yet be read, voted for and written into the next checkpoint.
#[test]
fn a_panic_of_a_state_machine_ends_the_process() {
    if let Some(dir) = std::env::var_os(DIR) {
        let node = start(dir.as_ref(), &Arc::new(Switch::default()), config(1), &[1], 0);
        wait_for("leadership", || node.handle.leads());
        assert_eq!(node.add(5), Some(Fate::Done(5)));
        let (sender, receiver) = std::sync::mpsc::channel();
        // Too short for a number: the state machine panics.
        node.handle.propose(vec![1], sender).expect("taken");
        // Until the process ends, or too late.
        let _ = receiver.recv_timeout(Duration::from_secs(20));
        std::thread::sleep(Duration::from_secs(20));
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let name = "tests::panics::a_panic_of_a_state_machine_ends_the_process";
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(DIR, dir.path())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&child.stderr);
    assert_eq!(child.status.signal(), Some(SIGABRT), "{told}");
    assert!(told.contains("panicked at"), "{told}");
}

/// A member whose thread is gone would be taken for a healthy leader.
#[test]
fn a_member_that_panicked_does_not_lead() {
    let dir = tempfile::tempdir().unwrap();
    let settings = HostConfig { abort_on_panic: false, ..config(1) };
    let node = start(dir.path(), &Arc::new(Switch::default()), settings, &[1], 0);
    wait_for("leadership", || node.handle.leads());
    assert!(node.handle.read_permit().is_ok());
    let (sender, receiver) = std::sync::mpsc::channel();
    node.handle.propose(vec![1], sender).expect("taken");
    assert!(receiver.recv_timeout(Duration::from_secs(20)).is_err(), "nobody answers");
    wait_for("the failure", || node.handle.status().failure.is_some());
    assert!(!node.handle.leads() && node.handle.read_permit().is_err());
    assert!(node.handle.propose(vec![0; 8], std::sync::mpsc::channel().0).is_err(), "nothing is taken any more");
}
