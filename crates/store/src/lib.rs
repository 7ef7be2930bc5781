//! Durable building blocks over the disk seam: labels with an exclusive lock, the list
//! of a node's disks, the node's write-ahead log, checkpoints.
//!
//! All calls block and are made from I/O threads. Not here: what the bytes mean (state machines), Raft, chunk files.
pub mod checkpoint;
pub mod error;
pub mod known_disks;
pub mod label;
pub mod wal;

pub use checkpoint::{CheckpointFile, CheckpointSink, CheckpointSource, CheckpointStore};
pub use error::StoreError;
pub use known_disks::KnownDisks;
pub use label::LabelledDir;
pub use wal::{Completion, HardState, LogEntry, Record, RecoveredGroup, Wal, WalConfig, WalStats};
