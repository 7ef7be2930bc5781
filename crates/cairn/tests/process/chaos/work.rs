//! What all clients of a run share: what may be read, whether it is over, and counts.
use super::appends::Appends;
use super::blocks::Blocks;
use super::records::RecordFiles;
use super::rounds::Rounds;
use super::versions::Versions;
use crate::wait::LIMIT;
use cairn_history::Outcome;
use cairn_history::tree_model::Answer;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub struct Work {
    pub versions: Versions,
    pub appends: Appends,
    pub records: RecordFiles,
    pub blocks: Blocks,
    pub rounds: Rounds,
    pub counts: Counts,
    over: AtomicBool,
}

impl Work {
    pub fn new(commands: usize, clients: usize) -> Work {
        Work {
            versions: Versions::new(commands, clients),
            appends: Appends::default(),
            records: RecordFiles::default(),
            blocks: Blocks::new(clients),
            rounds: Rounds::default(),
            counts: Counts::default(),
            over: AtomicBool::new(false),
        }
    }
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }
    pub fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

/// Ends the run when it goes, also by a panic.
pub struct EndsWith(pub std::sync::Arc<Work>);

impl Drop for EndsWith {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// A number of something.
#[derive(Default)]
pub struct Count(AtomicU64);

impl Count {
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Default)]
pub struct Counts {
    pub stored: Count,
    pub not_stored: Count,
    pub read: Count,
    pub not_read: Count,
    pub appended: Count,
    pub not_appended: Count,
    pub recorded: Count,
    pub not_recorded: Count,
    pub overwritten: Count,
    pub not_overwritten: Count,
    pub blocks_read: Count,
    /// Snapshots that were read at both ends of their lives, and those that a mount showed as well.
    pub snapshots: Count,
    pub snapshots_mounted: Count,
    pub snapshot_blocks: Count,
    names_done: Count,
    names_refused: Count,
    names_seen: Count,
    names_untold: Count,
    rounds: Count,
    /// Rounds whose history has too many orders to be decided.
    pub undecided: Count,
    operations: Count,
    unknown: Count,
    longest_ms: AtomicU64,
}

impl Counts {
    fn ended(&self, took: Duration) {
        self.longest_ms.fetch_max(took.as_millis() as u64, Ordering::Relaxed);
        assert!(took < LIMIT, "an operation was stuck for {took:?}");
    }
    /// Runs an operation, which has to end by itself.
    pub async fn timed<T>(&self, operation: impl Future<Output = T>) -> T {
        let began = Instant::now();
        let result = operation.await;
        self.ended(began.elapsed());
        result
    }
    pub fn timed_blocking<T>(&self, operation: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let result = operation();
        self.ended(began.elapsed());
        result
    }
    pub fn names(&self, outcome: &Outcome) {
        let count = match outcome {
            Outcome::Known(Answer::Done) => &self.names_done,
            Outcome::Known(Answer::Refused(_)) => &self.names_refused,
            Outcome::Known(Answer::Found { .. } | Answer::Names(_)) => &self.names_seen,
            Outcome::Nothing | Outcome::Unknown => &self.names_untold,
        };
        count.add(1);
    }
    /// A history was checked.
    pub fn checked(&self, operations: usize, unknown: usize) {
        self.rounds.add(1);
        self.operations.add(operations as u64);
        self.unknown.add(unknown as u64);
    }
    /// Panics if some part of the workload did nothing.
    pub fn check(&self) {
        let parts = [
            ("compared with its snapshot", &self.snapshots),
            ("blocks of snapshots read", &self.snapshot_blocks),
            ("stored", &self.stored),
            ("read", &self.read),
            ("appended", &self.appended),
            ("appended as a record", &self.recorded),
            ("overwritten", &self.overwritten),
            ("blocks read", &self.blocks_read),
            ("names changed", &self.names_done),
            ("rounds checked", &self.rounds),
        ];
        for (what, count) in parts {
            assert!(count.get() > 0, "nothing was proved: nothing was {what}");
        }
    }
    pub fn told(&self) -> String {
        let n = |count: &Count| count.get();
        format!(
            "files: {} versions stored, {} not, {} reads, {} failed\n\
             appends: {} stored, {} failed; records: {} acknowledged, {} writers failed; blocks: {} overwritten, {} not, {} read\n\
             names: {} changed, {} refused, {} looked at, {} not known; {} rounds with {} operations are linearizable, {} of them unknown; {} rounds are undecided\n\
             snapshots: {} are what they were, {} times through a mount, {} blocks in them\n\
             longest operation: {} ms",
            n(&self.stored),
            n(&self.not_stored),
            n(&self.read),
            n(&self.not_read),
            n(&self.appended),
            n(&self.not_appended),
            n(&self.recorded),
            n(&self.not_recorded),
            n(&self.overwritten),
            n(&self.not_overwritten),
            n(&self.blocks_read),
            n(&self.names_done),
            n(&self.names_refused),
            n(&self.names_seen),
            n(&self.names_untold),
            n(&self.rounds),
            n(&self.operations),
            n(&self.unknown),
            n(&self.undecided),
            n(&self.snapshots),
            n(&self.snapshots_mounted),
            n(&self.snapshot_blocks),
            self.longest_ms.load(Ordering::Relaxed),
        )
    }
}
