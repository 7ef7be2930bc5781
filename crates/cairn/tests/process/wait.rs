//! Waiting for what other processes do: by condition, and for as long as a slow machine may need.
//!
//! Invariant of all process tests: no limit here says how fast something is. A limit only ends a test whose condition
//! never comes about, so all of them are [`LIMIT`], far above what anything takes on a machine that is ten times
//! slower.
use crate::support::{Cluster, text};
use std::time::{Duration, Instant};

/// What has not come about by then never will.
pub const LIMIT: Duration = Duration::from_secs(300);

/// The same for `--timeout` of commands that have to succeed, in seconds.
pub const PATIENT: &str = "240";

/// Waits until something holds.
pub fn until(what: &str, holds: impl FnMut() -> bool) {
    until_told(what, holds, String::new);
}

/// The same; `told` says what is there instead when it never does.
pub fn until_told(what: &str, mut holds: impl FnMut() -> bool, told: impl Fn() -> String) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < LIMIT, "not within {LIMIT:?}: {what} {}", told());
        // Looking often costs what the others need to get there.
        std::thread::sleep((begin.elapsed() / 10).clamp(Duration::from_millis(10), Duration::from_millis(500)));
    }
}

/// The same; a failure shows the state of the cluster.
pub fn eventually(cluster: &Cluster, what: &str, holds: impl FnMut() -> bool) {
    until_told(what, holds, || {
        let said = |args: &[&str]| text(&cluster.cairn(args).stdout);
        said(&["admin", "status"]) + &said(&["admin", "pg", "ls"])
    });
}
