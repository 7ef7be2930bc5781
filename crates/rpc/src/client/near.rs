//! Which of a client's runtimes the present thread belongs to.
//!
//! A call from a thread that belongs to one takes a connection whose task runs there, so that the answer wakes whoever
//! waits for it without a hop to another thread. Threads that say nothing belong to none.
use std::cell::Cell;

thread_local! {
    static NEAR: Cell<Option<usize>> = const { Cell::new(None) };
}

/// From now on this thread belongs to the runtime with that number of every client made by
/// [`Client::with_runtimes`](super::Client::with_runtimes).
pub fn belong_to(runtime: usize) {
    NEAR.set(Some(runtime));
}

pub(super) fn runtime() -> Option<usize> {
    NEAR.get()
}
