//! Overwrites in place: what is to be overwritten, what became of it, and the requests of a volume that are under way.
//! Not here: how they are sent (`send`).
pub(crate) mod send;

use cairn_env::buf::SharedBuf;
use cairn_types::{ChunkId, Epoch, PgId};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tokio::sync::Semaphore;

/// Requests of a volume that are under way; further ones wait.
const IN_FLIGHT_MAX: usize = 64;

/// Epochs of groups.
pub(crate) type Epochs = BTreeMap<PgId, Epoch>;

/// Blocks of a chunk that are overwritten.
#[derive(Clone, Debug)]
pub struct BlockWrite {
    /// The chunk.
    pub chunk: ChunkId,
    /// Where in the chunk, a multiple of 4096.
    pub offset: u64,
    /// Whole blocks of 4096 bytes; a partial last block of a chunk is filled up with zeros.
    pub data: SharedBuf,
}

/// What became of blocks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Overwritten {
    /// They are durable on every serving member.
    InPlace,
    /// They have to be written to new space: in place they cannot be, or not now. `why` is for people.
    NewSpace { why: String },
}

/// Requests of a volume.
pub(crate) struct Overwrites {
    numbers: Mutex<Numbers>,
    window: Semaphore,
    /// Blocks that are in place.
    blocks: AtomicU64,
}

#[derive(Default)]
struct Numbers {
    last: u64,
    live: BTreeSet<u64>,
}

impl Default for Overwrites {
    fn default() -> Self {
        Self { numbers: Mutex::default(), window: Semaphore::new(IN_FLIGHT_MAX), blocks: AtomicU64::new(0) }
    }
}

/// A request's number; given back when nobody waits for it any more.
struct Number {
    of: Arc<Overwrites>,
    number: u64,
}

impl Number {
    fn new(of: &Arc<Overwrites>) -> Self {
        let mut numbers = of.numbers.lock();
        numbers.last += 1;
        let number = numbers.last;
        numbers.live.insert(number);
        Self { of: of.clone(), number }
    }
    /// Nothing below it is waited for.
    fn floor(&self) -> u64 {
        self.of.numbers.lock().live.first().copied().unwrap_or(self.number)
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        self.of.numbers.lock().live.remove(&self.number);
    }
}
