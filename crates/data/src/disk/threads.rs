//! The threads of a disk: who changes chunks, syncs, writes the journal, writes home, gives space back, reads. Without
//! threads (`write_threads` 0) the owner drives the same steps by hand, in a fixed order: that is how crash tests run.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::journal::Step;
use super::metrics::add;
use super::{DataError, DiskStore, OpenError};

/// Longest sleep of a thread without work; it is woken when there is some.
const NAP: Duration = Duration::from_millis(500);

/// How long the thread that writes home lets more come together before it begins, while there is room: one wake-up
/// instead of one for every group commit.
const GATHER: Duration = Duration::from_millis(2);
/// Part of the journal in use up to which it does.
const GATHER_BELOW: f64 = 0.25;

/// Takes the disk out of service if the thread that holds it panics.
pub(super) struct PanicGuard<'a>(pub(super) &'a DiskStore);

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail_by_panic();
        }
    }
}

impl DiskStore {
    pub(super) fn start_threads(self: &Arc<Self>) -> Result<(), OpenError> {
        let config = &self.config;
        if config.write_threads == 0 {
            return Ok(());
        }
        let mut threads = Vec::new();
        let mut start = |name: &str, body: fn(&DiskStore)| {
            let store = self.clone();
            let thread = std::thread::Builder::new().name(format!("disk-{name}")).spawn(move || {
                let _guard = PanicGuard(&store);
                body(&store);
            });
            thread
                .map(|thread| threads.push(thread))
                .map_err(|error| OpenError::Thread { dir: self.name().into(), why: error.to_string() })
        };
        for _ in 0..config.write_threads {
            start("write", DiskStore::write_loop)?;
        }
        for _ in 0..config.read_threads.max(1) {
            start("read", DiskStore::read_loop)?;
        }
        start("sync", DiskStore::sync_loop)?;
        start("journal", DiskStore::journal_loop)?;
        start("home", DiskStore::home_loop)?;
        start("free", DiskStore::free_loop)?;
        start("control", DiskStore::control_loop)?;
        *self.threads.lock() = threads;
        Ok(())
    }

    fn write_loop(&self) {
        while self.ready.wait(NAP) {
            while self.step_strand() {}
        }
    }

    fn read_loop(&self) {
        while self.reads.wait(NAP) {
            while self.step_read() {}
        }
    }

    fn sync_loop(&self) {
        while self.syncs.wait(NAP) {
            while self.step_sync() {}
        }
    }

    fn journal_loop(&self) {
        while self.journal.queue.wait(NAP) {
            while self.journal.linger(&*self.context.clock, self.config.journal_linger) {
                if !self.step_journal() && self.journal.queue.len() > 0 {
                    // No room: the thread that writes home makes some, then pokes.
                    self.homeward.poke();
                    self.journal.queue.pause(Duration::from_millis(5));
                    break;
                }
            }
        }
    }

    fn home_loop(&self) {
        let nap = NAP.min(self.config.flush_age);
        while self.homeward.wait(nap) {
            if self.homeward.len() > 0 && self.may_gather() {
                std::thread::sleep(GATHER);
            }
            while self.step_home(false) {}
        }
    }

    /// Whether nobody is waiting, or about to, for what lies in the journal or over the files to be written home.
    fn may_gather(&self) -> bool {
        let over = self.overlay_bytes.load(Ordering::Relaxed) > self.config.overlay_bytes_max / 4;
        !over && self.journal.fullness() < GATHER_BELOW && !self.stopping.load(Ordering::Relaxed)
    }

    fn free_loop(&self) {
        while self.holes.bell.wait(NAP) {
            let mut more = true;
            while more {
                more = !self.stopping.load(Ordering::Relaxed) && self.step_free();
            }
        }
    }

    fn control_loop(&self) {
        while self.control.wait(NAP) {
            while self.step_control() {}
        }
    }

    fn step_control(&self) -> bool {
        let Some(job) = self.control.pop() else { return false };
        job(self);
        true
    }

    /// One group commit. `false` when nothing waits or there is no room.
    pub(super) fn step_journal(&self) -> bool {
        if let Some(why) = self.failure() {
            let error = DataError::Failed { disk: self.name().into(), why: why.into() };
            let items = self.journal.queue.take(usize::MAX);
            let some = !items.is_empty();
            items.into_iter().for_each(|item| self.fail_item(item, &error));
            return some;
        }
        let started = self.context.clock.now();
        match self.journal.step() {
            Step::Idle => false,
            Step::Done(None) => true,
            Step::Done(Some(committed)) => {
                let took = self.context.clock.now().since(started).as_nanos();
                self.latency(started);
                add(&self.metrics.journal_batches, 1);
                add(&self.metrics.journal_bytes, committed.bytes);
                add(&self.metrics.journal_ns, u64::try_from(took).unwrap_or(u64::MAX));
                for chunk in committed.created() {
                    self.unblock(&chunk, Ok(()));
                }
                // A closed queue means that all threads end; the journal keeps what is not home.
                let _closing = self.homeward.push(committed);
                true
            }
            Step::Full => match self.journal.write_tail() {
                Ok(freed) => freed,
                Err(error) => {
                    self.fail(&error);
                    true
                }
            },
            Step::Failed(error, items) => {
                let error = self.fail(&error);
                items.into_iter().for_each(|item| self.fail_item(item, &error));
                true
            }
        }
    }

    fn fail_item(&self, item: super::journal::Item, error: &DataError) {
        if let Some(chunk) = item.created() {
            self.unblock(&chunk, Err(error.clone()));
        }
        item.fail(error);
    }

    /// Does everything that waits, in a fixed order, on the caller's thread. For stores without threads.
    pub fn drive(&self) {
        loop {
            let mut worked = false;
            while self.step_strand() || self.step_sync() {
                worked = true;
            }
            while self.step_journal() {
                worked = true;
            }
            worked |= self.step_home(self.journal.queue.len() > 0);
            while self.step_read() || self.step_control() || self.step_free() {
                worked = true;
            }
            if !worked || self.failure().is_some() && self.is_idle() {
                return;
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.ready.len() + self.syncs.len() + self.journal.queue.len() + self.reads.len() == 0
    }

    /// Writes everything home now, so that the next start has nothing to replay. For tests and an orderly end.
    pub fn checkpoint(&self) {
        self.drive();
        self.step_home(true);
        if self.failure().is_none()
            && let Err(error) = self.journal.write_tail()
        {
            self.fail(&error);
        }
    }

    /// Ends all threads: what waits is carried out, then everything is written home.
    pub fn close(&self) {
        if self.stopping.swap(true, Ordering::Relaxed) {
            return;
        }
        let threads = std::mem::take(&mut *self.threads.lock());
        // In the order of the flow, so that each finds the next one still taking work.
        for close in [
            &(|| self.ready.close()) as &dyn Fn(),
            &|| self.reads.close(),
            &|| self.control.close(),
            &|| self.syncs.close(),
            &|| self.journal.queue.close(),
            &|| self.homeward.close(),
            // What is left is found again by the next start.
            &|| self.holes.bell.close(),
        ] {
            close();
            std::thread::yield_now();
        }
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!(disk = self.name(), "a thread of the disk panicked");
            }
        }
        if self.failure().is_none() {
            self.step_home(true);
            if let Err(error) = self.journal.write_tail() {
                self.fail(&error);
            }
        }
    }
}
