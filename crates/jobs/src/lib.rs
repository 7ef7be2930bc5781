//! Jobs of a node: long work on a tree that the manager hands out, done with the client library in the name of whoever
//! started it. At present: the conversion of files to another layout.
//!
//! Invariants: one job of a node at a time; a server that is told to stop, or that cannot report for [`REPORT_PATIENCE`],
//! stops before the manager may give its job to another one. Bounds: [`FILES_AT_ONCE`] files are worked on at a time; a
//! walk keeps a page of entries a level. Not here: who gets which job (`manager-core`), how one file is converted
//! (`client`).
mod run;
mod worker;

pub use worker::{JobWorker, WorkerConfig};

use std::time::Duration;

/// Files that are worked on at a time.
const FILES_AT_ONCE: usize = 4;
/// Between two reports of a running job.
const REPORT_PAUSE: Duration = Duration::from_secs(3);
/// A job whose reports fail for so long is stopped here: shorter than the silence after which it is given away.
const REPORT_PATIENCE: Duration = Duration::from_secs(20);
