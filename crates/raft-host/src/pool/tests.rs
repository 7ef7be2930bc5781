//! Tasks that count their turns, on one thread and on several.

use std::sync::atomic::{AtomicBool, AtomicU32};

use bytes::Bytes;
use cairn_env::RealClock;
use cairn_types::NodeId;
use cairn_wire::raft::{FetchCheckpointRequest, FetchCheckpointResponse, RaftBatch};

use super::*;
use crate::tests::fixture::{PATIENCE, wait_for};
use crate::transport::FetchError;

struct Nowhere;

impl RaftTransport for Nowhere {
    fn send(&self, _to: NodeId, _batch: RaftBatch) {}

    fn fetch(
        &self,
        from: NodeId,
        _request: FetchCheckpointRequest,
    ) -> Result<(FetchCheckpointResponse, Bytes), FetchError> {
        Err(FetchError::Gone { from })
    }
}

type Work = Box<dyn Fn() -> After + Send + Sync>;

struct Counted {
    number: u64,
    ready: AtomicBool,
    turns: AtomicU64,
    at_once: AtomicU32,
    panics: AtomicU32,
    work: Work,
}

impl Counted {
    fn new(number: u64, work: impl Fn() -> After + Send + Sync + 'static) -> Arc<Self> {
        let (turns, at_once, panics) = (AtomicU64::new(0), AtomicU32::new(0), AtomicU32::new(0));
        Arc::new(Self { number, ready: AtomicBool::new(false), turns, at_once, panics, work: Box::new(work) })
    }

    fn wake(self: &Arc<Self>, pool: &Pool) {
        if !self.ready.swap(true, Ordering::SeqCst) {
            pool.waker().ready(self.clone());
        }
    }

    fn turns(&self) -> u64 {
        self.turns.load(Ordering::SeqCst)
    }
}

impl Task for Counted {
    fn number(&self) -> u64 {
        self.number
    }

    fn run(&self) -> After {
        assert_eq!(self.at_once.fetch_add(1, Ordering::SeqCst), 0, "one thread at a time");
        self.turns.fetch_add(1, Ordering::SeqCst);
        let after = (self.work)();
        self.at_once.fetch_sub(1, Ordering::SeqCst);
        if after != After::Again {
            self.ready.store(false, Ordering::SeqCst);
        }
        after
    }

    fn due(&self) -> bool {
        !self.ready.swap(true, Ordering::SeqCst)
    }

    fn panicked(&self) {
        self.panics.fetch_add(1, Ordering::SeqCst);
    }
}

fn pool(workers: usize) -> Pool {
    Pool::start(workers, Arc::new(RealClock), Arc::new(Nowhere)).expect("threads")
}

fn in_ms(ms: u64) -> After {
    After::Rest(Some(RealClock.now() + Duration::from_millis(ms)))
}

/// A group would be forgotten by its timer, or handled by two threads.
#[test]
fn timers_and_wakes_reach_every_task() {
    for workers in [1, 2, 4] {
        let pool = pool(workers);
        let tasks: Vec<_> = (0..50).map(|number| Counted::new(number, || in_ms(2))).collect();
        tasks.iter().for_each(|task| task.wake(&pool));
        for round in 1..5 {
            wait_for("all to be handled again", || tasks.iter().all(|task| task.turns() > round * 10));
            tasks.iter().for_each(|task| task.wake(&pool));
        }
        pool.stop();
        assert!(tasks.iter().all(|task| task.panics.load(Ordering::SeqCst) == 0));
    }
}

/// A timer that is earlier than the one that is waited for would be late.
#[test]
fn an_earlier_time_is_noticed() {
    let pool = pool(2);
    let late = Counted::new(1, || After::Rest(Some(RealClock.now() + PATIENCE)));
    late.wake(&pool);
    wait_for("the late one", || late.turns() == 1);
    let soon = Counted::new(2, || in_ms(5));
    soon.wake(&pool);
    wait_for("the early one", || soon.turns() > 3);
    assert_eq!(late.turns(), 1);
}

/// A busy group would keep the others' heartbeats back until it had nothing more to do.
#[test]
fn timers_come_between_tasks_that_are_always_ready() {
    let pool = pool(1);
    let busy: Vec<_> = (0..3).map(|number| Counted::new(number, || After::Again)).collect();
    let timed = Counted::new(9, || in_ms(1));
    timed.wake(&pool);
    busy.iter().for_each(|task| task.wake(&pool));
    wait_for("turns of all", || timed.turns() > 20 && busy.iter().all(|task| task.turns() > 20));
    pool.stop();
}

/// A group that reads a checkpoint would stop all others of its thread, or threads would become more and more.
#[test]
fn what_blocks_takes_no_thread_from_others() {
    let pool = pool(1);
    let gate = Arc::new(AtomicBool::new(false));
    let open = gate.clone();
    let blocked = Counted::new(1, move || {
        blocking(|| wait_for("the gate", || open.load(Ordering::SeqCst)));
        After::Rest(None)
    });
    let other = Counted::new(2, || in_ms(1));
    blocked.wake(&pool);
    wait_for("it to block", || blocked.turns() == 1);
    other.wake(&pool);
    wait_for("the other one", || other.turns() > 5);
    gate.store(true, Ordering::SeqCst);
    wait_for("the thread that is too many to end", || {
        let inner = pool.shared.inner.lock();
        inner.threads.len() == 1 && inner.active == 1
    });
    let turns = other.turns();
    wait_for("the rest to go on", || other.turns() > turns + 5);
}

/// The groups of a thread would stop with the one that panicked.
#[test]
fn a_panic_ends_one_task_alone() {
    let pool = pool(1);
    let bad = Counted::new(1, || panic!("as the test wants it"));
    let good = Counted::new(2, || in_ms(1));
    bad.wake(&pool);
    good.wake(&pool);
    wait_for("the other one", || good.turns() > 5 && bad.panics.load(Ordering::SeqCst) == 1);
}
