//! Seats for any processor: each thread waits in the system until its word is set. A turn costs two calls of the system
//! and a switch of its threads.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use crate::real;

/// See [`crate::seat`].
pub struct Seat {
    /// 1: it may run. Only this word is shared between running threads.
    word: AtomicU32,
    /// The number of its thread of the system.
    number: Cell<i32>,
}

impl Seat {
    /// Nobody's.
    pub fn new() -> Self {
        Self { word: AtomicU32::new(0), number: Cell::new(0) }
    }

    /// The calling thread has this seat, and runs.
    pub fn take(&self) {
        self.number.set(real::os_thread());
    }

    /// The calling thread sits down here until its turn.
    pub fn wait_first(&self) {
        self.take();
        self.wait();
    }

    /// The thread of this seat lets that of another one go on, and comes back with its next turn.
    pub fn give_to(&self, next: &Seat) {
        self.leave_to(next);
        self.wait();
    }

    /// The thread of this seat lets that of another one go on, for good.
    pub fn leave_to(&self, next: &Seat) {
        next.word.store(1, SeqCst);
        real::futex_wake(next.word.as_ptr());
    }

    /// Waits until the system has forgotten a thread that has left.
    pub fn let_go(&self) {
        real::wait_gone(self.number.get());
    }

    fn wait(&self) {
        while self.word.swap(0, SeqCst) == 0 {
            real::futex_wait(&self.word, 0);
        }
    }
}
