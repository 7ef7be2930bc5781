//! What is known of a file's extents, of one version of its contents.
//!
//! Invariants: extents do not overlap; what lies in a known range and in no extent is a hole. Bound: [`EXTENTS_MAX`];
//! beyond, all is forgotten and fetched anew.
use crate::read::set::SetColumns;
use cairn_wire::common::{Extent, StripeSet};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Extents that are kept of a file.
const EXTENTS_MAX: usize = 1 << 18;

#[derive(Default, Debug)]
pub(crate) struct ExtentCache {
    extents: BTreeMap<u64, Extent>,
    /// Ranges by their start: neither overlapping nor touching.
    known: BTreeMap<u64, u64>,
    sets: BTreeMap<(u32, u32), Arc<SetColumns>>,
}

/// A part of the file: of one extent, cut to it, or a hole.
#[derive(Clone, Debug)]
pub(crate) struct Stretch {
    pub from: u64,
    pub to: u64,
    pub extent: Option<Extent>,
    pub columns: Option<Arc<SetColumns>>,
}

fn end_of(extent: &Extent) -> u64 {
    extent.file_offset + extent.length
}

/// The part of an extent in `from..to`, which it overlaps.
fn cut_to(extent: &Extent, from: u64, to: u64) -> Extent {
    let (start, end) = (extent.file_offset.max(from), end_of(extent).min(to));
    let chunk_offset = extent.chunk_offset + (start - extent.file_offset);
    Extent { file_offset: start, length: end - start, chunk_offset, ..*extent }
}

impl ExtentCache {
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
    /// First byte of `from..to` of which nothing is known.
    pub(crate) fn unknown(&self, from: u64, to: u64) -> Option<u64> {
        let known = self.known.range(..=from).next_back().filter(|(_, end)| **end > from);
        let at = known.map_or(from, |(_, end)| *end);
        (at < to).then_some(at)
    }
    /// End of what is known without a gap from that byte on, if something is.
    pub(crate) fn known_end(&self, at: u64) -> Option<u64> {
        self.known.range(..=at).next_back().map(|(_, end)| *end).filter(|end| *end > at)
    }
    /// Begin and end of the first known extent that ends behind that byte.
    pub(crate) fn next_extent(&self, at: u64) -> Option<(u64, u64)> {
        let before = self.extents.range(..=at).next_back().filter(|(_, e)| end_of(e) > at);
        let next = before.or_else(|| self.extents.range(at..).next());
        next.map(|(begin, extent)| (*begin, end_of(extent)))
    }
    /// All of `from..to` is as these extents say, which may reach beyond.
    pub(crate) fn learn(&mut self, from: u64, to: u64, extents: &[Extent], sets: &[StripeSet]) {
        if self.extents.len() + extents.len() > EXTENTS_MAX {
            self.clear();
        }
        self.sets.extend(sets.iter().map(|set| ((set.pg, set.index), Arc::new(SetColumns::decode(set)))));
        self.forget(from, to);
        for extent in extents.iter().filter(|e| end_of(e) > from && e.file_offset < to) {
            let part = cut_to(extent, from, to);
            self.extents.insert(part.file_offset, part);
        }
        self.know(from, to);
    }
    /// The file has these extents in their ranges now.
    pub(crate) fn put(&mut self, extents: &[Extent], sets: &[StripeSet]) {
        for extent in extents {
            self.learn(extent.file_offset, end_of(extent), std::slice::from_ref(extent), sets);
        }
    }
    /// `from..to` is a hole now.
    pub(crate) fn punch(&mut self, from: u64, to: u64) {
        if from < to {
            self.learn(from, to, &[], &[]);
        }
    }
    /// The part of extents in `from..to` goes.
    fn forget(&mut self, from: u64, to: u64) {
        let before = self.extents.range(..from).next_back().filter(|(_, e)| end_of(e) > from).map(|(at, _)| *at);
        let inside = self.extents.range(from..to).map(|(at, _)| *at);
        let touched: Vec<u64> = before.into_iter().chain(inside).collect();
        for at in touched {
            let Some(extent) = self.extents.remove(&at) else { continue };
            if extent.file_offset < from {
                let head = cut_to(&extent, 0, from);
                self.extents.insert(head.file_offset, head);
            }
            if end_of(&extent) > to {
                let tail = cut_to(&extent, to, u64::MAX);
                self.extents.insert(tail.file_offset, tail);
            }
        }
    }
    fn know(&mut self, mut from: u64, mut to: u64) {
        let touching: Vec<u64> =
            self.known.range(..=to).rev().take_while(|(_, end)| **end >= from).map(|k| *k.0).collect();
        for at in touching {
            let end = self.known.remove(&at).unwrap_or(at);
            (from, to) = (from.min(at), to.max(end));
        }
        self.known.insert(from, to);
    }
    /// A range of which all is known, in order and without gaps.
    pub(crate) fn stretches(&self, from: u64, to: u64) -> Vec<Stretch> {
        let mut found = Vec::new();
        let mut at = from;
        let hole = |from, to| Stretch { from, to, extent: None, columns: None };
        let before = self.extents.range(..from).next_back().filter(|(_, e)| end_of(e) > from).map(|(_, e)| e);
        for extent in before.into_iter().chain(self.extents.range(from..to.max(from)).map(|(_, e)| e)) {
            let part = cut_to(extent, from, to);
            if part.file_offset > at {
                found.push(hole(at, part.file_offset));
            }
            at = end_of(&part);
            let columns = self.sets.get(&(part.pg, part.index)).cloned();
            found.push(Stretch { from: part.file_offset, to: at, extent: Some(part), columns });
        }
        if at < to {
            found.push(hole(at, to));
        }
        found
    }
    /// Extents that overlap a range of which all is known.
    pub(crate) fn extents(&self, from: u64, to: u64) -> Vec<Extent> {
        self.stretches(from, to).into_iter().filter_map(|s| s.extent).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(file_offset: u64, length: u64, index: u32) -> Extent {
        Extent { file_offset, length, pg: 1, index, chunk_offset: 1 << 20 | file_offset, flags: 0 }
    }
    fn shape(cache: &ExtentCache, from: u64, to: u64) -> Vec<(u64, u64, u32)> {
        cache.stretches(from, to).iter().map(|s| (s.from, s.to, s.extent.map_or(0, |e| e.index))).collect()
    }

    /// Reads would get bytes from where they were before a write, or zeros for what was not asked for yet.
    #[test]
    fn what_is_published_covers_what_was_known() {
        let mut cache = ExtentCache::default();
        assert_eq!(cache.unknown(0, 10), Some(0));
        cache.learn(0, 100, &[extent(10, 50, 1)], &[]);
        assert_eq!((cache.unknown(0, 100), cache.unknown(50, 101)), (None, Some(100)));
        assert_eq!(shape(&cache, 0, 100), [(0, 10, 0), (10, 60, 1), (60, 100, 0)]);
        cache.put(&[extent(20, 10, 2), extent(95, 30, 3)], &[]);
        assert_eq!(
            shape(&cache, 5, 125),
            [(5, 10, 0), (10, 20, 1), (20, 30, 2), (30, 60, 1), (60, 95, 0), (95, 125, 3)]
        );
        assert_eq!(cache.unknown(0, 126), Some(125));
        assert_eq!(cache.stretches(40, 50)[0].extent.map(|e| e.chunk_offset), Some(1 << 20 | 40));
        cache.punch(25, 100);
        assert_eq!(shape(&cache, 20, 110), [(20, 25, 2), (25, 100, 0), (100, 110, 3)]);
        cache.learn(200, 300, &[extent(150, 100, 4)], &[]);
        assert_eq!((cache.unknown(0, 300), cache.unknown(220, 280)), (Some(125), None));
        assert_eq!(shape(&cache, 200, 300), [(200, 250, 4), (250, 300, 0)]);
    }
}
