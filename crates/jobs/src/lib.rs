//! Work of a node with files, done with the client library: jobs, long work on a tree that the manager hands out, in
//! the name of whoever started it (at present the conversion of files to another layout), and moves of what lives in
//! packs that are mostly dead, for which leaders of meta partitions ask.
//!
//! Invariants: one job of a node at a time; a server that cannot report for [`REPORT_PATIENCE`] stops before the
//! manager may give its job to another one; one that is told to stop says what it has done when it has stopped, within
//! [`STOP_PATIENCE`]. Bounds: [`FILES_AT_ONCE`] files are worked on at a time; a walk keeps a page of entries a level.
//! Not here: who gets which job (`manager-core`), how one file is converted (`client`).
mod compact;
mod count;
mod encode;
mod run;
mod worker;

pub use worker::{JobWorker, WorkerConfig};

use std::time::Duration;

/// Files that are worked on at a time.
const FILES_AT_ONCE: usize = 4;
/// Between the beginning of a job and its first report; then twice as long each time, up to [`REPORT_PAUSE`].
const FIRST_REPORT: Duration = Duration::from_millis(300);
/// Between two reports of a running job.
const REPORT_PAUSE: Duration = Duration::from_secs(3);
/// Files that are being worked on when a job is cancelled are left within this time; with the time between two reports
/// it is shorter than the silence after which nobody waits for the server any more.
const STOP_PATIENCE: Duration = Duration::from_secs(15);
/// A job whose reports fail for so long is stopped here: shorter than the silence after which it is given away.
const REPORT_PATIENCE: Duration = Duration::from_secs(20);
