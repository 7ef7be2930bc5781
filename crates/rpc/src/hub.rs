//! [`Hub`]: wakes the connection tasks of one runtime thread with one system call for many of them.
//!
//! A wake-up from another thread costs a write to the runtime's event descriptor. The hub's task is woken at most once
//! until it has run; it then wakes the connection tasks on their own thread, which costs none.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

use parking_lot::Mutex;

#[derive(Default)]
struct State {
    /// Tasks to be woken. Bounded: a connection is here at most once, for its own flag says that it was woken.
    pending: Vec<Waker>,
    task: Option<Waker>,
    scheduled: bool,
    stopped: bool,
}

/// The mailbox of one runtime thread.
#[derive(Default)]
pub(crate) struct Hub {
    state: Mutex<State>,
}

impl Hub {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Wakes one task.
    pub(crate) fn wake(&self, waker: Waker) {
        self.wake_all(std::iter::once(waker));
    }

    /// Wakes several tasks.
    pub(crate) fn wake_all(&self, wakers: impl Iterator<Item = Waker>) {
        let task = {
            let mut state = self.state.lock();
            state.pending.extend(wakers);
            if state.stopped || (!state.scheduled && state.task.is_none()) {
                // No hub task runs (yet, or any more): wake directly.
                let pending = std::mem::take(&mut state.pending);
                drop(state);
                pending.into_iter().for_each(Waker::wake);
                return;
            }
            if std::mem::replace(&mut state.scheduled, true) { None } else { state.task.clone() }
        };
        if let Some(task) = task {
            task.wake();
        }
    }

    /// Whether [`stop`](Self::stop) was called.
    pub(crate) fn is_stopped(&self) -> bool {
        self.state.lock().stopped
    }

    /// Ends [`run`](Self::run).
    pub(crate) fn stop(&self) {
        let task = {
            let mut state = self.state.lock();
            state.stopped = true;
            state.task.take()
        };
        if let Some(task) = task {
            task.wake();
        }
    }

    /// The hub's task, to be spawned on the thread of its connections.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut batch = Vec::new();
        poll_fn(move |cx| {
            let stopped = {
                let mut state = self.state.lock();
                state.scheduled = false;
                if !state.stopped && !state.task.as_ref().is_some_and(|t| t.will_wake(cx.waker())) {
                    state.task = Some(cx.waker().clone());
                }
                std::mem::swap(&mut state.pending, &mut batch);
                state.stopped
            };
            batch.drain(..).for_each(Waker::wake);
            if stopped { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}
