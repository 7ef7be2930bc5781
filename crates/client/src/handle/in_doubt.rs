//! [`Doubt`]: what is kept of an append whose publish got no answer. Not here: finding out what came of it
//! (`file_data`).
use crate::again::Again;
use cairn_wire::common::{Extent, StripeSet};

/// What the file may or may not name.
pub(crate) struct Doubt {
    /// None: its session has ended.
    pub(super) again: Option<Again>,
    pub(super) extents: Vec<Extent>,
    pub(super) sets: Vec<StripeSet>,
    /// Ranges of them over which nothing was written here since.
    pub(super) as_sent: Vec<(u64, u64)>,
}

impl Doubt {
    pub(super) fn end(&self) -> u64 {
        self.extents.last().map_or(0, |extent| extent.file_offset + extent.length)
    }
    pub(super) fn written_over(&mut self, from: u64, to: u64) {
        let cut = |(first, end): (u64, u64)| [(first, end.min(from)), (first.max(to), end)];
        let left = self.as_sent.drain(..).flat_map(cut).filter(|(first, end)| first < end).collect();
        self.as_sent = left;
    }
}
