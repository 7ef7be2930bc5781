//! [`Pool`]: the threads that handle a host's groups, as many as the machine has cores, and the timer of all of them.
//!
//! A group that has something to do is *ready*: any thread takes it, handles what waits for it, and lets it rest. One
//! that rests costs nothing but its place among the timers, if it asked for a time.
//!
//! Invariants: a task is handled by one thread at a time (whoever makes it ready marks it so, see [`crate::mailbox`]);
//! a task whose time has come is handled although others are always ready; what blocks a thread ([`blocking`]) takes no
//! thread from the others. Not here: what a group does (`owner.rs`), messages that wait to be sent ([`crate::outbox`]).

mod timers;

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use cairn_env::Clock;
use cairn_store::StoreError;
use cairn_types::Time;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::outbox::{self, Outbox};
use crate::transport::RaftTransport;
use timers::Timers;

/// More threads help no disk and no network.
pub const WORKERS_MAX: usize = 64;
/// Messages that can wait are sent after so long, whatever else there is to do.
const CALM: Duration = Duration::from_millis(2);

/// What a pool handles.
pub(crate) trait Task: Send + Sync {
    /// Its number; nobody else in the pool has it.
    fn number(&self) -> u64;
    /// Does what there is to do.
    fn run(&self) -> After;
    /// A time that it asked for has come: whether it rested, and is ready from now on.
    fn due(&self) -> bool;
    /// `run` took so long.
    fn worked(&self, _took: Duration) {}
    /// `run` panicked.
    fn panicked(&self);
}

/// How a task ended its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    /// It rests until somebody makes it ready, at this time at the latest.
    Rest(Option<Time>),
    /// There is more to do; others come first.
    Again,
}

/// Where a thread without work waits.
#[derive(Default)]
struct Bench {
    woken: Mutex<bool>,
    bell: Condvar,
}

impl Bench {
    fn wake(&self) {
        *self.woken.lock() = true;
        self.bell.notify_one();
    }

    fn wait(&self, patience: Option<Duration>) {
        let mut woken = self.woken.lock();
        match patience {
            None => self.bell.wait_while(&mut woken, |woken| !*woken),
            Some(patience) => drop(self.bell.wait_while_for(&mut woken, |woken| !*woken, patience)),
        }
        *woken = false;
    }
}

#[derive(Default)]
struct Inner {
    ready: VecDeque<Arc<dyn Task>>,
    /// Their time has come.
    due: VecDeque<Arc<dyn Task>>,
    /// `due` was asked last.
    due_last: bool,
    timers: Timers,
    /// Threads that wait for work, the newest last: it is the warmest.
    idle: Vec<Arc<Bench>>,
    /// The one that waits for a time as well, and for which.
    keeper: Option<(Arc<Bench>, Option<Time>)>,
    /// Threads that are not blocked.
    active: usize,
    threads: BTreeMap<u64, JoinHandle<()>>,
    started: u64,
    closing: bool,
}

impl Inner {
    fn pop(&mut self) -> Option<Arc<dyn Task>> {
        self.due_last = !self.due_last;
        let (first, then) =
            if self.due_last { (&mut self.due, &mut self.ready) } else { (&mut self.ready, &mut self.due) };
        first.pop_front().or_else(|| then.pop_front())
    }

    fn has_work(&self) -> bool {
        !self.ready.is_empty() || !self.due.is_empty()
    }

    /// Somebody who can take what is ready. The keeper last: another one would have to keep the time.
    fn somebody(&mut self) -> Option<Arc<Bench>> {
        self.idle.pop().or_else(|| self.keeper.take().map(|(bench, _)| bench))
    }
}

struct Shared {
    clock: Arc<dyn Clock>,
    transport: Arc<dyn RaftTransport>,
    workers: usize,
    inner: Mutex<Inner>,
    /// Nanoseconds that threads were at work.
    busy: AtomicU64,
}

/// What a thread of a pool knows of itself.
struct Worker {
    shared: Arc<Shared>,
    outbox: Outbox,
    /// The task that it handles.
    task: Option<u64>,
}

thread_local! {
    static WORKER: RefCell<Option<Worker>> = const { RefCell::new(None) };
}

fn with_worker<R>(then: impl FnOnce(&mut Worker) -> R) -> Option<R> {
    WORKER.with_borrow_mut(|worker| worker.as_mut().map(then))
}

/// What this thread has to send later; `None`: it is none of a pool.
pub(crate) fn with_outbox<R>(then: impl FnOnce(&mut Outbox) -> R) -> Option<R> {
    with_worker(|worker| then(&mut worker.outbox))
}

/// Whether this thread handles that task of that pool at this moment.
pub(crate) fn handles(pool: &Waker, task: u64) -> bool {
    let same = |worker: &mut Worker| {
        worker.task == Some(task) && std::ptr::eq(Arc::as_ptr(&worker.shared), pool.shared.as_ptr())
    };
    with_worker(same).unwrap_or(false)
}

/// Does something that waits for a disk or for somebody else; another thread handles the other tasks meanwhile.
pub(crate) fn blocking<R>(then: impl FnOnce() -> R) -> R {
    let Some(shared) = with_worker(|worker| worker.shared.clone()) else { return then() };
    shared.send_waiting();
    shared.leave();
    let _back = Back(shared);
    then()
}

/// A thread goes on that was blocked.
struct Back(Arc<Shared>);

impl Drop for Back {
    fn drop(&mut self) {
        // One too many from now on: the first that finds out ends.
        self.0.inner.lock().active += 1;
    }
}

/// The threads of a host.
pub(crate) struct Pool {
    shared: Arc<Shared>,
}

/// How a task is made ready from elsewhere.
#[derive(Clone)]
pub(crate) struct Waker {
    shared: Weak<Shared>,
}

impl Waker {
    /// The task was at rest, and whoever calls has marked it as ready.
    pub fn ready(&self, task: Arc<dyn Task>) {
        let Some(shared) = self.shared.upgrade() else { return };
        let mut inner = shared.inner.lock();
        inner.ready.push_back(task);
        let somebody = inner.somebody();
        drop(inner);
        if let Some(bench) = somebody {
            bench.wake();
        }
    }
}

impl Pool {
    /// Starts so many threads; 0: one a core.
    pub fn start(workers: usize, clock: Arc<dyn Clock>, transport: Arc<dyn RaftTransport>) -> Result<Self, StoreError> {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let workers = if workers == 0 { cores() } else { workers }.min(WORKERS_MAX);
        let shared = Arc::new(Shared { clock, transport, workers, inner: Mutex::default(), busy: AtomicU64::new(0) });
        for _ in 0..workers {
            shared
                .spawn(&mut shared.inner.lock())
                .map_err(|error| StoreError::LogStopped { dir: "raft".into(), cause: error.to_string() })?;
        }
        Ok(Self { shared })
    }

    pub fn waker(&self) -> Waker {
        Waker { shared: Arc::downgrade(&self.shared) }
    }

    /// Threads that it means to have.
    pub fn workers(&self) -> usize {
        self.shared.workers
    }

    /// How long its threads were at work, all together.
    pub fn busy(&self) -> Duration {
        Duration::from_nanos(self.shared.busy.load(Ordering::Relaxed))
    }

    /// Ends all threads; what is ready is not handled any more.
    pub fn stop(&self) {
        let threads = {
            let mut inner = self.shared.inner.lock();
            inner.closing = true;
            inner.ready.clear();
            inner.due.clear();
            inner.timers = Timers::default();
            while let Some(bench) = inner.somebody() {
                bench.wake();
            }
            std::mem::take(&mut inner.threads)
        };
        let own = std::thread::current().id();
        for thread in threads.into_values() {
            if thread.thread().id() != own && thread.join().is_err() {
                tracing::error!("a thread that handles groups panicked");
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn spawn(self: &Arc<Self>, inner: &mut MutexGuard<'_, Inner>) -> std::io::Result<()> {
        let number = inner.started;
        let shared = self.clone();
        let thread =
            std::thread::Builder::new().name(format!("cairn-groups-{number}")).spawn(move || shared.work(number))?;
        inner.started += 1;
        inner.active += 1;
        inner.threads.insert(number, thread);
        Ok(())
    }

    /// A thread of the pool is about to block.
    fn leave(self: &Arc<Self>) {
        let mut inner = self.inner.lock();
        inner.active -= 1;
        if inner.active < self.workers && !inner.closing {
            // Without one the others are slower, no more.
            if let Err(error) = self.spawn(&mut inner) {
                tracing::warn!(%error, "no thread could be started in place of one that is blocked");
            }
        }
    }

    fn work(self: Arc<Self>, number: u64) {
        WORKER.set(Some(Worker { shared: self.clone(), outbox: Outbox::default(), task: None }));
        let bench = Arc::new(Bench::default());
        while let Some(task) = self.next(number, &bench) {
            self.handle(&task);
        }
        self.send_waiting();
        WORKER.set(None);
    }

    fn send_waiting(&self) {
        outbox::send_all(self.transport.as_ref(), with_outbox(Outbox::take).unwrap_or_default());
    }

    /// Waits for a task; `None`: the thread ends.
    fn next(&self, number: u64, bench: &Arc<Bench>) -> Option<Arc<dyn Task>> {
        loop {
            let now = self.clock.now();
            let mut inner = self.inner.lock();
            if inner.closing {
                return None;
            }
            if inner.active > self.workers {
                inner.active -= 1;
                // Nobody joins it.
                drop(inner.threads.remove(&number));
                return None;
            }
            while let Some(task) = inner.timers.pop(now) {
                if let Some(task) = task.upgrade().filter(|task| task.due()) {
                    inner.due.push_back(task);
                }
            }
            if let Some(task) = inner.pop() {
                let helper = if inner.has_work() { inner.somebody() } else { None };
                drop(inner);
                if let Some(bench) = helper {
                    bench.wake();
                }
                let old = with_outbox(|outbox| outbox.take_older(now, CALM));
                outbox::send_all(self.transport.as_ref(), old.unwrap_or_default());
                return Some(task);
            }
            if with_outbox(|outbox| outbox.is_empty()) == Some(false) {
                drop(inner);
                self.send_waiting();
                continue;
            }
            let patience = match inner.keeper {
                None => {
                    let first = inner.timers.first();
                    inner.keeper = Some((bench.clone(), first));
                    first.map(|first| first.since(now))
                }
                Some(_) => {
                    inner.idle.push(bench.clone());
                    None
                }
            };
            drop(inner);
            bench.wait(patience);
            let mut inner = self.inner.lock();
            inner.idle.retain(|other| !Arc::ptr_eq(other, bench));
            inner.keeper.take_if(|(keeper, _)| Arc::ptr_eq(keeper, bench));
        }
    }

    fn handle(&self, task: &Arc<dyn Task>) {
        let started = self.clock.now();
        with_worker(|worker| worker.task = Some(task.number()));
        let after = catch_unwind(AssertUnwindSafe(|| task.run()));
        let after = after.unwrap_or_else(|_| {
            // What is left of it may panic as well.
            let ended = catch_unwind(AssertUnwindSafe(|| task.panicked()));
            if ended.is_err() {
                tracing::error!("a group that panicked could not be taken down");
            }
            After::Rest(None)
        });
        with_worker(|worker| worker.task = None);
        let took = self.clock.now().since(started);
        task.worked(took);
        self.busy.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        match after {
            After::Again => self.inner.lock().ready.push_back(task.clone()),
            After::Rest(Some(at)) => {
                let mut inner = self.inner.lock();
                inner.timers.arm(task, at);
                // Waits for a later time, or for none.
                let keeper = inner.keeper.take_if(|(_, until)| until.is_none_or(|until| at < until));
                drop(inner);
                if let Some((bench, _)) = keeper {
                    bench.wake();
                }
            }
            After::Rest(None) => {}
        }
    }
}

#[cfg(test)]
mod tests;
