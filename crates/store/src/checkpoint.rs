//! Checkpoints: files that hold the state of a group after a certain log entry.
//!
//! [`CheckpointSink`] is what a state machine writes itself into, [`CheckpointSource`] what it reads itself from; both
//! are plain byte streams, cut into checksummed pages below.

use crate::StoreError;

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
