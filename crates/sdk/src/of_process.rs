//! What belongs to one process: threads, sockets, a session.
//!
//! fork(2) copies memory and no threads. A child that used its parent's runtime would wait for ever, one that used its
//! session would repeat the numbers under which requests are done exactly once, and one that dropped either would wait
//! or say goodbye for the parent. So the child sees nothing of it, and leaks its copy.
use std::mem;

/// A value that only the process sees that made it.
pub(crate) struct OfProcess<T> {
    pid: u32,
    /// `None` only while it is dropped.
    value: Option<T>,
}

impl<T> OfProcess<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { pid: std::process::id(), value: Some(value) }
    }
    /// `None` in a child of the process that made it.
    pub(crate) fn get(&self) -> Option<&T> {
        self.value.as_ref().filter(|_| self.pid == std::process::id())
    }
    /// The process that made it.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if self.pid != std::process::id() {
            mem::forget(self.value.take());
        }
    }
}
