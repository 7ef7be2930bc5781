//! [`Wal`]: one write-ahead log per node, shared by all its Raft groups.
//!
//! A thread of its own takes everything that waits, writes it as one batch and syncs once (group commit), then calls
//! the completions. Segments are files of a fixed size, written directly (bypassing the page cache: measured to be
//! faster than buffered writes at 4–64 KiB a commit, at half the CPU), zeroed ahead and recycled, so that a commit
//! changes no metadata of the file system.
//!
//! Invariants owned here:
//! - a completion says Ok only after the batch with its records was synced;
//! - a batch is written only after the one before was synced, and never over bytes of an earlier one, so only the
//!   last batch can be torn; a bad batch with a valid one behind it is reported, not cut off;
//! - each batch names the one before it, each segment its length, and a mark outside of them how far the log was
//!   durable at the latest a second ago: what ends before, or belongs to another history, is reported, not cut off;
//! - as long as the program of before must be able to go on with the log, segments are made in version 1, which names
//!   neither lengths nor what came before, and nothing is recorded that it does not know;
//! - **after the first failed write or sync everything is refused for ever** (until the process starts anew);
//! - the first batch of each segment repeats the small state of all groups, so older segments hold entries alone and
//!   go as soon as all groups have truncated past them, oldest first.
//!
//! A submission that does not fit into one batch becomes durable record by record, in order.
//!
//! Not here: which entries may be truncated (the host's checkpoints decide), what entries mean.

mod groups;
mod mark;
mod reader;
mod record;
mod recovery;
mod segments;
mod stats;
#[cfg(test)]
mod tests;
mod writer;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use cairn_env::Disk;
use cairn_types::{DiskUuid, GroupId};
use parking_lot::Mutex;

use crate::StoreError;

pub use groups::RecoveredGroup;
pub use record::{HardState, LogEntry, Record};
pub use stats::WalStats;

use recovery::recover;
use writer::{Shared, Writer};

/// Called once, on the log's thread, with the fate of a submission. Must not block.
pub type Completion = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// How a log is kept.
#[derive(Debug, Clone)]
pub struct WalConfig {
    /// Directory on the disk.
    pub dir: String,
    /// Identity of the log: the uuid of the node's label.
    pub log: DiskUuid,
    /// Bytes of a segment file; a multiple of 4096, at least 64 KiB.
    pub segment_bytes: u64,
    /// Bytes of records that one batch takes at most (a single larger record goes alone).
    pub batch_bytes_max: usize,
    /// Bytes that may wait; then [`Wal::submit`] blocks.
    pub queue_bytes_max: usize,
    /// Whether the next segment is prepared by a thread of its own ahead of need.
    pub prepare_ahead: bool,
    /// How often it is noted outside of the segments how far the log reaches, while anything is written. Besides, it
    /// is noted with the first batch of each segment and when the log is closed.
    pub mark_every: Duration,
    /// New segments have version 2 from the start on; else from [`Wal::chain`] on.
    pub chained: bool,
    /// Recycled files kept for later use.
    pub spares_max: usize,
}

impl WalConfig {
    /// 64 MiB segments, batches up to 8 MiB, 64 MiB of queue.
    pub fn new(dir: impl Into<String>, log: DiskUuid) -> Self {
        Self {
            dir: dir.into(),
            log,
            segment_bytes: 64 << 20,
            batch_bytes_max: 8 << 20,
            queue_bytes_max: 64 << 20,
            prepare_ahead: true,
            mark_every: Duration::from_secs(1),
            chained: false,
            spares_max: 2,
        }
    }
}

/// The log. Dropping the last handle writes what waits and ends the threads.
pub struct Wal {
    shared: Arc<Shared>,
    stats: Arc<WalStats>,
    /// See [`Wal::is_chained`].
    chained: Arc<AtomicBool>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Wal {
    /// Opens or creates the log in a directory, verifies and replays it, and starts its thread.
    pub fn open(
        disk: Arc<dyn Disk>,
        config: WalConfig,
    ) -> Result<(Self, BTreeMap<GroupId, RecoveredGroup>), StoreError> {
        assert!(
            config.segment_bytes.is_multiple_of(4096) && config.segment_bytes >= 64 << 10,
            "a segment needs a multiple of 4096 bytes, at least 64 KiB"
        );
        let recovered = recover(disk.as_ref(), &config)?;
        let position = &recovered.position;
        let chained = config.chained || position.segments.iter().chain(&position.prepared).any(|s| s.chained);
        let chained = Arc::new(AtomicBool::new(chained));
        let stats = Arc::new(WalStats::default());
        let shared = Arc::new(Shared::new(&config));
        let (writer, mut threads) =
            Writer::new(disk, config, recovered.position, chained.clone(), shared.clone(), stats.clone())?;
        let spawned = std::thread::Builder::new().name("cairn-wal".into()).spawn(move || writer.run());
        match spawned {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                return Err(StoreError::LogStopped { dir: shared.dir().into(), cause: error.to_string() });
            }
        }
        Ok((Self { shared, stats, chained, threads: Mutex::new(threads) }, recovered.groups))
    }

    /// Queues records; `done` is called when they are durable (or never will be known to be). Waits while the queue
    /// is full. On an error nothing was queued and `done` is dropped.
    pub fn submit(&self, records: Vec<Record>, done: Option<Completion>) -> Result<(), StoreError> {
        self.shared.submit(records, done)
    }

    /// Whether so much waits that [`submit`](Self::submit) would wait, too.
    pub fn is_crowded(&self) -> bool {
        self.shared.is_crowded()
    }

    /// Queues records and waits until they are durable.
    pub fn append(&self, records: Vec<Record>) -> Result<(), StoreError> {
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        let done = Box::new(move |result| {
            // The receiver lives until it got this.
            let _ = sender.send(result);
        });
        self.submit(records, Some(done))?;
        receiver.recv().unwrap_or_else(|_| Err(self.shared.stopped("the log's thread ended")))
    }

    /// Nobody goes back to the program of before any more: new segments have version 2, and everything may be recorded.
    pub fn chain(&self) {
        self.chained.store(true, Ordering::Relaxed);
    }

    /// Whether that was said, now or before an earlier start. Only then [`Record::Fetched`] may be submitted, and its
    /// absence says something.
    pub fn is_chained(&self) -> bool {
        self.chained.load(Ordering::Relaxed)
    }

    /// Bytes of the longest record that [`submit`](Self::submit) takes.
    pub fn record_bytes_max(&self) -> usize {
        self.shared.record_bytes_max()
    }

    /// Counters.
    pub fn stats(&self) -> &WalStats {
        &self.stats
    }

    /// The group whose entries keep the oldest segment, if older segments than the present one exist.
    pub fn oldest_holder(&self) -> Option<GroupId> {
        self.shared.oldest_holder()
    }

    /// It stands still because there is no room for the next segment, and goes on when there is.
    pub fn is_full(&self) -> bool {
        self.shared.is_full()
    }

    /// Why the log refuses everything, if it does.
    pub fn failure(&self) -> Option<StoreError> {
        self.shared.failure()
    }
}

impl Drop for Wal {
    fn drop(&mut self) {
        self.shared.close();
        let own = std::thread::current().id();
        for thread in self.threads.lock().drain(..) {
            // The last handle may be dropped by a completion, on the log's thread itself.
            if thread.thread().id() != own && thread.join().is_err() {
                tracing::error!(dir = self.shared.dir(), "a thread of the log panicked");
            }
        }
    }
}
