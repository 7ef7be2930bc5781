//! Durable building blocks over the disk seam: labels with an exclusive lock, the node's write-ahead log, checkpoints.
//!
//! All calls block and are made from I/O threads. Not here: what the bytes mean (state machines), Raft, chunk files.
pub mod checkpoint;
pub mod error;

pub use checkpoint::{CheckpointSink, CheckpointSource};
pub use error::StoreError;
