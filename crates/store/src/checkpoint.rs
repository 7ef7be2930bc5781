//! Checkpoints: files that hold the state of a group after a certain log entry.
//!
//! [`CheckpointSink`] is what a state machine writes itself into, [`CheckpointSource`] what it reads itself from; both
//! are plain byte streams, cut into checksummed pages below. [`CheckpointStore`] keeps the files of a node.
//!
//! Invariants owned here:
//! - a file gets its final name only when it is complete, verified by construction, and synced;
//! - the newest generations of a group are kept, two or more; a damaged one is set aside under another name and
//!   reported;
//! - no byte reaches a state machine before its page's checksum was verified.
//!
//! Not here: which log entries may go (the host truncates only up to the older generation kept).

mod file;
mod install;
mod store;
#[cfg(test)]
mod tests;

use crate::StoreError;

pub use file::{CheckpointFile, CheckpointWriter};
pub use install::{Incoming, Outgoing};
pub use store::{CheckpointStore, Found, GENERATIONS, GENERATIONS_MAX};

/// Takes the bytes of a state, in order. Any error makes the checkpoint void.
pub trait CheckpointSink {
    /// Appends bytes.
    fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError>;
}

/// Gives the bytes of a state back, in order, each verified before it is handed out.
pub trait CheckpointSource {
    /// Bytes of the whole state.
    fn len(&self) -> u64;
    /// Whether the state has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Fills a part of `buf`; 0 only at the end (or for an empty `buf`).
    fn read(&mut self, buf: &mut [u8]) -> Result<usize, StoreError>;
    /// Fills all of `buf`, or fails with [`StoreError::Corrupt`] naming the file when the state ends before.
    fn read_exact(&mut self, buf: &mut [u8]) -> Result<(), StoreError>;
}
