//! [`LogMemory`]: what the logs of all groups of a node take in memory together.
//!
//! A group keeps what its followers may need, back to the second newest checkpoint. Each is bounded by itself; many
//! busy ones would take more than the node has. When all together have more than their share, a group makes its next
//! checkpoint after a fourth of the usual log already. Nothing waits for that: what is acknowledged stays, and more is
//! taken. Not here: when checkpoints are made otherwise (`owner/checkpoints.rs`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A group of which the log grew by this part of what usually makes a checkpoint is asked for one.
const PART: u64 = 4;

/// Bytes of all groups.
#[derive(Debug, Default)]
pub(crate) struct LogMemory {
    used: AtomicU64,
    max: u64,
}

impl LogMemory {
    pub fn new(max: u64) -> Arc<Self> {
        Arc::new(Self { used: AtomicU64::new(0), max })
    }
}

/// What one group has of them; gone with it.
#[derive(Debug)]
pub(crate) struct LogShare {
    memory: Arc<LogMemory>,
    counted: u64,
}

impl LogShare {
    pub fn new(memory: Arc<LogMemory>) -> Self {
        Self { memory, counted: 0 }
    }

    /// The group's log takes so much now.
    pub fn note(&mut self, bytes: u64) {
        let used = &self.memory.used;
        match bytes.checked_sub(self.counted) {
            Some(more) => used.fetch_add(more, Ordering::Relaxed),
            None => used.fetch_sub(self.counted - bytes, Ordering::Relaxed),
        };
        self.counted = bytes;
    }

    /// Bytes of log after which the group makes a checkpoint, of so many usually.
    pub fn checkpoint_after(&self, usual: u64) -> u64 {
        if self.memory.used.load(Ordering::Relaxed) > self.memory.max { usual / PART } else { usual }
    }
}

impl Drop for LogShare {
    fn drop(&mut self) {
        self.note(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node with many busy groups would be ended by the kernel for their logs; or what a group that was closed had be
    /// counted for ever.
    #[test]
    fn checkpoints_come_sooner_while_all_logs_take_too_much() {
        let memory = LogMemory::new(100);
        let (mut one, mut other) = (LogShare::new(memory.clone()), LogShare::new(memory.clone()));
        one.note(60);
        other.note(40);
        assert_eq!(one.checkpoint_after(64), 64);
        other.note(41);
        assert_eq!((one.checkpoint_after(64), other.checkpoint_after(64)), (16, 16));
        one.note(10);
        assert_eq!(other.checkpoint_after(64), 64, "it has given something back");
        one.note(90);
        drop(other);
        assert_eq!(one.checkpoint_after(64), 64);
        drop(one);
        assert_eq!(memory.used.load(Ordering::Relaxed), 0);
    }
}
