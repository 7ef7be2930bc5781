//! Which of a client's runtimes the present thread belongs to.
//!
//! A call from a thread that belongs to one takes a connection whose task runs there, so that the answer wakes whoever
//! waits for it without a hop to another thread. Threads that say nothing belong to none.
//!
//! A thread may also say that it only begins what the runtime's thread goes on with. What it sent itself would wake
//! that thread once for the request and once for who waits for the answer; [`handed_on`] leaves both to it.
use std::cell::Cell;
use std::future::poll_fn;
use std::task::Poll;

thread_local! {
    static NEAR: Cell<Option<usize>> = const { Cell::new(None) };
    static HANDS_ON: Cell<bool> = const { Cell::new(false) };
}

/// From now on this thread belongs to the runtime with that number of every client made by
/// [`Client::with_runtimes`](super::Client::with_runtimes).
pub fn belong_to(runtime: usize) {
    NEAR.set(Some(runtime));
}

/// From now on this thread polls futures once, and whoever is pending then is polled by another thread.
pub fn hand_on() {
    HANDS_ON.set(true);
}

/// On a thread that [hands on](hand_on) it is pending once: what follows is done where the future is polled next. On
/// others it is ready.
pub async fn handed_on() {
    let mut here = HANDS_ON.get();
    poll_fn(|context| {
        if !std::mem::take(&mut here) {
            return Poll::Ready(());
        }
        // Who collects futures polls only those again that ask for it.
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

pub(super) fn runtime() -> Option<usize> {
    NEAR.get()
}
