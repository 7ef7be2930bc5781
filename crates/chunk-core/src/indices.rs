//! Which chunk index the primary gives out next.
//!
//! Invariant: an index is given out only when it lies below a high-water mark that is durable on every serving member,
//! and never twice: a new start goes on above the mark, what lay unused below it is skipped.

use std::ops::Range;

/// Gives out indices of one placement group while this member is its primary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexAllocator {
    next: u32,
    limit: u32,
}

impl IndexAllocator {
    /// Starts above what may have been given out before.
    pub fn new(high_water: u32) -> Self {
        Self { next: high_water, limit: high_water }
    }

    /// Up to `count` indices that may be used now; empty when a higher mark is needed first.
    pub fn take(&mut self, count: u32) -> Range<u32> {
        let end = self.next.saturating_add(count).min(self.limit);
        let taken = self.next..end;
        self.next = end;
        taken
    }

    /// Indices left below the mark.
    pub fn left(&self) -> u32 {
        self.limit - self.next
    }

    /// The mark to make durable on all serving members next; `None` when all indices of a group are used up.
    pub fn next_mark(&self, step: u32) -> Option<u32> {
        self.limit.checked_add(step)
    }

    /// A mark is durable on every serving member. `seen` is the highest mark that any of them had before: another
    /// primary may have given out all below it.
    pub fn raise(&mut self, mark: u32, seen: u32) {
        if seen > self.limit {
            self.next = self.next.max(seen);
        }
        self.limit = self.limit.max(mark);
        self.next = self.next.min(self.limit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two chunks under one index would mix two files.
    #[test]
    fn never_twice() {
        let mut first = IndexAllocator::new(0);
        assert!(first.take(1).is_empty());
        first.raise(first.next_mark(8).expect("room"), 0);
        assert_eq!(first.take(3), 0..3);
        assert_eq!(first.left(), 5);
        // A new start skips what was left.
        let mut second = IndexAllocator::new(8);
        second.raise(second.next_mark(8).expect("room"), 8);
        assert_eq!(second.take(20), 8..16);
        // Another member knew of a higher mark.
        let mut third = IndexAllocator::new(8);
        third.raise(40, 32);
        assert_eq!(third.take(1), 32..33);
        assert_eq!(IndexAllocator::new(u32::MAX).next_mark(1), None);
    }
}
