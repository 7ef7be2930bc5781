//! Records that a writer keeps: until all members have them on stable storage they take a part of its window.
use crate::error::Result;
use cairn_env::buf::SharedBuf;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

/// A record until it is durable.
pub(super) struct Kept {
    pub sequence: u64,
    pub framed: SharedBuf,
    /// The end of the chunk as it was known when this was sent: it stands behind it.
    pub after: u64,
    /// The chunk's end behind it, when all members had it.
    pub end: u64,
    pub done: Option<oneshot::Sender<Result<()>>>,
    /// Its part of the window.
    pub permit: OwnedSemaphorePermit,
}

impl Kept {
    pub fn tell(&mut self, outcome: Result<()>) {
        if let Some(done) = self.done.take() {
            // Whoever dropped the ticket does not ask.
            let _gone = done.send(outcome);
        }
    }
}

/// Records in the members' memory.
pub(super) struct Unsynced {
    all: Vec<Kept>,
    /// What they take of the window, and may take before they are made durable.
    kib: usize,
    kib_max: usize,
}

impl Unsynced {
    pub fn new(kib_max: usize) -> Self {
        Self { all: Vec::new(), kib: 0, kib_max }
    }

    pub fn push(&mut self, kept: Kept) {
        self.kib += kept.permit.num_permits();
        self.all.push(kept);
    }

    /// What ends there or before is durable.
    pub fn forget_up_to(&mut self, end: u64) {
        self.all.retain(|kept| kept.end > end);
        self.kib = self.all.iter().map(|kept| kept.permit.num_permits()).sum();
    }

    pub fn take(&mut self) -> Vec<Kept> {
        self.kib = 0;
        std::mem::take(&mut self.all)
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// A small window would stand still until they are made durable in any case.
    pub fn is_much(&self) -> bool {
        self.kib > self.kib_max
    }

    /// The last one ends there.
    pub fn end(&self) -> u64 {
        self.all.iter().map(|kept| kept.end).max().unwrap_or(0)
    }
}
