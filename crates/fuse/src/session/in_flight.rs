//! Requests that were read and are not answered: how many, and where an interrupt finds one.
//!
//! Invariants owned here: each is in the table from before its operation starts until its answer is sent; a reader
//! waits when [`IN_FLIGHT_MAX`](super::IN_FLIGHT_MAX) are there.
use super::{IN_FLIGHT_MAX, watchdog};
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::oneshot;

const SHARDS: usize = 16;
/// A waiting reader looks again after this, whoever forgot to wake it.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// One request.
struct Entry {
    opcode: u32,
    /// Thread that asked.
    pid: u32,
    /// The lane that serves it, and the look of the watchdog before which it began.
    lane: usize,
    since: u32,
    interrupted: bool,
    /// Hears of an interrupt.
    heard_by: Option<oneshot::Sender<()>>,
    /// Ends the operation.
    cancel: Option<oneshot::Sender<()>>,
}

/// A request that an interrupt met.
pub struct Found {
    pub opcode: u32,
    pub pid: u32,
}

/// A request that has been there for some looks of the watchdog.
#[derive(Clone, Copy, Debug)]
pub struct Old {
    pub unique: u64,
    pub opcode: u32,
    pub pid: u32,
    pub lane: usize,
    pub looks: u32,
}

#[derive(Default)]
pub struct InFlight {
    shards: [Mutex<HashMap<u64, Entry>>; SHARDS],
    count: AtomicUsize,
    looks: AtomicU32,
    full: Mutex<()>,
    room: Condvar,
}

impl InFlight {
    fn shard(&self, unique: u64) -> &Mutex<HashMap<u64, Entry>> {
        // Numbers of requests are even.
        &self.shards[(unique >> 1) as usize % SHARDS]
    }
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
    /// Blocks the reader's thread while too many are there.
    pub fn wait_for_room(&self) {
        while self.count() >= IN_FLIGHT_MAX {
            let mut full = self.full.lock();
            self.room.wait_for(&mut full, LOOK_AGAIN);
        }
    }
    pub fn begin(&self, unique: u64, opcode: u32, pid: u32) {
        self.count.fetch_add(1, Ordering::Relaxed);
        let since = self.looks.load(Ordering::Relaxed);
        let entry =
            Entry { opcode, pid, lane: watchdog::lane(), since, interrupted: false, heard_by: None, cancel: None };
        self.shard(unique).lock().insert(unique, entry);
    }
    /// Whoever ends it answers it: false if somebody else did.
    pub fn end(&self, unique: u64) -> bool {
        let ended = self.shard(unique).lock().remove(&unique).is_some();
        if ended && self.count.fetch_sub(1, Ordering::Relaxed) >= IN_FLIGHT_MAX {
            self.room.notify_all();
        }
        ended
    }
    /// The watchdog looks again.
    pub fn next_look(&self) {
        self.looks.fetch_add(1, Ordering::Relaxed);
    }
    /// Requests that have been there for at least so many looks.
    pub fn older_than(&self, looks: u32) -> Vec<Old> {
        let now = self.looks.load(Ordering::Relaxed);
        let mut found = Vec::new();
        for shard in &self.shards {
            let old = |(unique, entry): (&u64, &Entry)| Old {
                unique: *unique,
                opcode: entry.opcode,
                pid: entry.pid,
                lane: entry.lane,
                looks: now.wrapping_sub(entry.since),
            };
            found.extend(shard.lock().iter().map(old).filter(|old| old.looks >= looks));
        }
        found
    }
    /// Its operation goes on as a task, which ends when the receiver hears.
    pub fn make_cancellable(&self, unique: u64) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        if let Some(entry) = self.shard(unique).lock().get_mut(&unique) {
            entry.cancel = Some(sender);
        }
        receiver
    }
    /// Its operation ends by itself when it hears of an interrupt.
    pub fn make_interruptible(&self, unique: u64) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        if let Some(entry) = self.shard(unique).lock().get_mut(&unique) {
            match entry.interrupted {
                true => _ = sender.send(()),
                false => entry.heard_by = Some(sender),
            }
        }
        receiver
    }
    /// Notes an interrupt; `None` if there is no such request (any more, or yet).
    pub fn interrupt(&self, unique: u64) -> Option<Found> {
        let mut shard = self.shard(unique).lock();
        let entry = shard.get_mut(&unique)?;
        entry.interrupted = true;
        if let Some(sender) = entry.heard_by.take() {
            let _may_have_ended = sender.send(());
        }
        Some(Found { opcode: entry.opcode, pid: entry.pid })
    }
    pub fn contains(&self, unique: u64) -> bool {
        self.shard(unique).lock().contains_key(&unique)
    }
    /// Ends an operation that is a task; false if it is not one.
    pub fn cancel(&self, unique: u64) -> bool {
        let sender = self.shard(unique).lock().get_mut(&unique).and_then(|entry| entry.cancel.take());
        sender.is_some_and(|sender| sender.send(()).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An interrupt would be lost, or end another request.
    #[test]
    fn an_interrupt_finds_its_request_only() {
        let table = InFlight::default();
        table.begin(4, 15, 9);
        table.begin(6, 16, 10);
        assert!(table.interrupt(8).is_none());
        assert_eq!(table.interrupt(4).map(|found| (found.opcode, found.pid)), Some((15, 9)));
        assert!(!table.cancel(4));
        assert!(table.make_interruptible(4).try_recv().is_ok(), "it came before");
        let mut heard = table.make_interruptible(6);
        assert!(heard.try_recv().is_err() && table.interrupt(6).is_some() && heard.try_recv().is_ok());
        let mut heard = table.make_cancellable(4);
        assert!(table.cancel(4));
        assert!(heard.try_recv().is_ok());
        assert!(table.end(4) && !table.end(4), "it is answered once");
        assert!(!table.contains(4) && table.contains(6));
        assert_eq!(table.count(), 1);
    }
}
