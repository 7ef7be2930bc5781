//! [`WorkQueue`]: hands work from any thread to the threads of a disk.
//!
//! Not here: bounds; whoever pushes asks the bound that is named there (`queue_ops_max`, `reads_max`, …).

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// A queue with waiting.
pub(crate) struct WorkQueue<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    items: VecDeque<T>,
    closed: bool,
    poked: bool,
}

impl<T> Default for WorkQueue<T> {
    fn default() -> Self {
        let state = State { items: VecDeque::new(), closed: false, poked: false };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }
}

impl<T> WorkQueue<T> {
    /// Adds work; after [`close`](Self::close) it is given back.
    pub(crate) fn push(&self, item: T) -> Result<(), T> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(item);
        }
        state.items.push_back(item);
        drop(state);
        self.changed.notify_one();
        Ok(())
    }

    /// The oldest item.
    pub(crate) fn pop(&self) -> Option<T> {
        self.state.lock().items.pop_front()
    }

    /// Up to `max` of the oldest items.
    pub(crate) fn take(&self, max: usize) -> Vec<T> {
        let mut state = self.state.lock();
        let count = state.items.len().min(max);
        state.items.drain(..count).collect()
    }

    /// Puts items back before all others.
    pub(crate) fn put_back(&self, items: Vec<T>) {
        let mut state = self.state.lock();
        for item in items.into_iter().rev() {
            state.items.push_front(item);
        }
    }

    /// What `look` says about up to `max` of the oldest items.
    pub(crate) fn visit<R>(&self, max: usize, look: impl FnMut(&mut T) -> R) -> Vec<R> {
        self.state.lock().items.iter_mut().take(max).map(look).collect()
    }

    /// Looks at all items behind the first ones; how many there were.
    pub(crate) fn visit_from(&self, first: usize, look: impl FnMut(&T)) -> usize {
        let state = self.state.lock();
        state.items.iter().skip(first).map(look).count()
    }

    /// Waits until there are more items than that. `false` when it is closed or the time is over.
    pub(crate) fn wait_for_more(&self, known: usize, timeout: Duration) -> bool {
        let mut state = self.state.lock();
        // A poke is for those that wait for room.
        let lacks = |state: &mut State<T>| state.items.len() <= known && !state.closed;
        self.changed.wait_while_for(&mut state, lacks, timeout);
        state.items.len() > known && !state.closed
    }

    pub(crate) fn len(&self) -> usize {
        self.state.lock().items.len()
    }

    /// Wakes those that wait although nothing was added.
    pub(crate) fn poke(&self) {
        self.state.lock().poked = true;
        self.changed.notify_all();
    }

    /// Waits until there is something, somebody pokes, or the time is over. `false` once closed and empty.
    pub(crate) fn wait(&self, timeout: Duration) -> bool {
        let mut state = self.state.lock();
        if state.items.is_empty() && !state.closed && !state.poked {
            self.changed.wait_for(&mut state, timeout);
        }
        state.poked = false;
        !(state.closed && state.items.is_empty())
    }

    /// Waits for a poke, a push or the time, whatever is in the queue.
    pub(crate) fn pause(&self, timeout: Duration) {
        let mut state = self.state.lock();
        if !state.closed && !state.poked {
            self.changed.wait_for(&mut state, timeout);
        }
        state.poked = false;
    }

    /// Nothing more is taken in; what is there is still handed out.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_all();
    }
}
