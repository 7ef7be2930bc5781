//! Memory for data of many open files together: what is written and not published yet, and what was read ahead.
//!
//! Invariant: what is reserved never exceeds the limit, except for one reservation that alone is larger.
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::Notify;

/// Bytes that are in use, and how many may be.
#[derive(Debug)]
pub struct Budget {
    limit: usize,
    used: AtomicUsize,
    freed: Notify,
}

impl Budget {
    pub fn new(limit: usize) -> Self {
        Self { limit, used: AtomicUsize::new(0), freed: Notify::new() }
    }
    /// For callers with a bound of their own.
    pub fn unlimited() -> Self {
        Self::new(usize::MAX)
    }
    pub fn limit(&self) -> usize {
        self.limit
    }
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Acquire)
    }
    /// Takes so many bytes if they are free.
    pub fn try_reserve(&self, bytes: usize) -> bool {
        let take = |used: usize| (used == 0 || used.saturating_add(bytes) <= self.limit).then(|| used + bytes);
        self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, take).is_ok()
    }
    /// Waits until so many bytes are free, and takes them.
    pub async fn reserve(&self, bytes: usize) {
        loop {
            let freed = self.freed.notified();
            tokio::pin!(freed);
            // From here on no notification is missed.
            freed.as_mut().enable();
            if self.try_reserve(bytes) {
                return;
            }
            freed.await;
        }
    }
    pub fn release(&self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let before = self.used.fetch_sub(bytes, Ordering::AcqRel);
        assert!(before >= bytes, "no more is released than was reserved");
        self.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// A mount would use more memory than it was given, or a writer would wait for ever.
    #[tokio::test]
    async fn writers_wait_for_memory() {
        let budget = Arc::new(Budget::new(100));
        budget.reserve(90).await;
        assert!(!budget.try_reserve(20));
        let waiting = tokio::spawn({
            let budget = budget.clone();
            async move { budget.reserve(60).await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        budget.release(50);
        waiting.await.expect("reserved");
        assert_eq!(budget.used(), 100);
        budget.release(100);
        budget.reserve(1000).await;
        assert_eq!(budget.used(), 1000, "one alone may be larger");
    }
}
