//! [`PageSet`]: a set of 4 KiB pages of a file, kept as runs, for space accounting.
//!
//! Invariant: runs are not empty, do not overlap and do not touch; `count` is their total length.

use std::collections::BTreeMap;
use std::ops::Range;

/// Which pages of a file occupy space.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PageSet {
    /// First page of a run → the page behind it.
    runs: BTreeMap<u64, u64>,
    count: u64,
}

impl PageSet {
    /// Pages in the set.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Pages of the range that are in the set.
    pub(super) fn count_in(&self, range: Range<u64>) -> u64 {
        self.overlapping(&range).map(|(start, end)| end.min(range.end) - start.max(range.start)).sum()
    }

    fn overlapping(&self, range: &Range<u64>) -> impl Iterator<Item = (u64, u64)> {
        let first = self.runs.range(..=range.start).next_back().map_or(range.start, |(&start, _)| start);
        let wanted = range.clone();
        self.runs
            .range(first..range.end.max(first))
            .map(|(&start, &end)| (start, end))
            .filter(move |&(start, end)| start < wanted.end && end > wanted.start)
    }

    /// Adds the range.
    pub(super) fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        self.remove(range.clone());
        let (mut start, mut end) = (range.start, range.end);
        if let Some((&before, &before_end)) = self.runs.range(..start).next_back()
            && before_end == start
        {
            self.runs.remove(&before);
            start = before;
        }
        if let Some(after_end) = self.runs.remove(&end) {
            end = after_end;
        }
        self.runs.insert(start, end);
        self.count += range.end - range.start;
    }

    /// Takes the range out.
    pub(super) fn remove(&mut self, range: Range<u64>) {
        let hit: Vec<(u64, u64)> = self.overlapping(&range).collect();
        for (start, end) in hit {
            self.runs.remove(&start);
            if start < range.start {
                self.runs.insert(start, range.start);
            }
            if end > range.end {
                self.runs.insert(range.end, end);
            }
            self.count -= end.min(range.end) - start.max(range.start);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::SimRng;
    use std::collections::BTreeSet;

    /// Space would be counted wrongly if runs were split or joined wrongly; a plain set is the oracle.
    #[test]
    fn agrees_with_a_plain_set() {
        let rng = SimRng::seeded(1);
        let (mut set, mut oracle) = (PageSet::default(), BTreeSet::new());
        for _ in 0..5000 {
            let start = rng.range(0..60);
            let range = start..rng.range(start..61);
            match rng.range(0..3) {
                0 => {
                    set.insert(range.clone());
                    oracle.extend(range);
                }
                1 => {
                    set.remove(range.clone());
                    oracle.retain(|page| !range.contains(page));
                }
                _ => assert_eq!(set.count_in(range.clone()), oracle.range(range).count() as u64),
            }
            assert_eq!(set.count(), oracle.len() as u64);
        }
    }
}
