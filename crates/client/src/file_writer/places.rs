//! Where the parts of a file being written came to lie, in the order of the file.
//!
//! Invariant: a place is taken only after its bytes are durable; neighbours in the same chunk become one extent.
use crate::append::part::Placed;
use crate::error::{ClientError, Result};
use cairn_types::ExtentKind;
use cairn_wire::common::{Extent, StripeSet};
use std::collections::VecDeque;
use tokio::sync::oneshot;

/// Parts whose places are not known yet, and the extents of those before them.
#[derive(Default)]
pub(crate) struct Places {
    placing: VecDeque<Placing>,
    pub(crate) extents: Vec<Extent>,
    /// Stripe sets that extents name.
    pub(crate) sets: Vec<StripeSet>,
}

/// A part on its way.
pub(crate) struct Placing {
    pub file_offset: u64,
    pub length: u64,
    pub place: oneshot::Receiver<Result<Placed>>,
}

impl Places {
    pub(crate) fn push(&mut self, placing: Placing) {
        self.placing.push_back(placing);
    }
    /// The stripe sets that these extents name: they are published together.
    pub(crate) fn sets_of(&self, extents: &[Extent]) -> Vec<StripeSet> {
        let named = |set: &&StripeSet| {
            let names = |e: &Extent| {
                let set_extent = matches!(ExtentKind::from_flags(e.flags), Some(ExtentKind::Set(_)));
                set_extent && (e.pg, e.index) == (set.pg, set.index)
            };
            extents.iter().any(names)
        };
        self.sets.iter().filter(named).cloned().collect()
    }
    /// Nothing is on its way or waits to be published.
    pub(crate) fn is_empty(&self) -> bool {
        self.placing.is_empty() && self.extents.is_empty()
    }
    /// Hands the extents so far to `name`, with the sets that they name. If that is certainly refused they stay here.
    pub(crate) async fn publish<T>(
        &mut self,
        name: impl AsyncFnOnce(Vec<Extent>, Vec<StripeSet>) -> Result<T>,
    ) -> Result<T> {
        let extents = std::mem::take(&mut self.extents);
        let sets = self.sets_of(&extents);
        let kept = extents.clone();
        let outcome = name(extents, sets).await;
        if outcome.as_ref().is_err_and(|error| !error.is_unknown()) {
            self.extents = kept;
        }
        outcome
    }
    /// Parts that are on their way.
    pub(crate) fn awaited(&self) -> usize {
        self.placing.len()
    }
    /// Waits for the place of the first part. May be dropped and called again: a part stays until its place is known.
    pub(crate) async fn take_one(&mut self, shown_as: &str) -> Result<()> {
        let Some(first) = self.placing.front_mut() else { return Ok(()) };
        let (file_offset, length) = (first.file_offset, first.length);
        let outcome = (&mut first.place).await;
        self.placing.pop_front();
        let placed = match outcome {
            Ok(placed) => placed.map_err(|e| e.named(shown_as))?,
            Err(_) => return Err(ClientError::protocol(shown_as, "the stream that wrote it ended")),
        };
        self.add(file_offset, length, placed);
        Ok(())
    }
    fn add(&mut self, file_offset: u64, length: u64, placed: Placed) {
        let flags = placed.kind.to_flags();
        if let Some(set) = placed.set
            && !self.sets.contains(&set)
        {
            self.sets.push(StripeSet::clone(&set));
        }
        if let Some(last) = self.extents.last_mut()
            && last.pg == placed.chunk.pg.0
            && last.index == placed.chunk.index
            && last.flags == flags
            && last.chunk_offset + last.length == placed.offset
            && last.file_offset + last.length == file_offset
        {
            last.length += length;
            return;
        }
        self.extents.push(Extent {
            file_offset,
            length,
            pg: placed.chunk.pg.0,
            index: placed.chunk.index,
            chunk_offset: placed.offset,
            flags,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_types::{ChunkId, PgId, Stripe};

    /// A file would have an extent a MiB, or one that covers what lies elsewhere.
    #[tokio::test]
    async fn neighbours_in_a_chunk_become_one_extent() {
        let rows = ExtentKind::Erasure(Stripe::new(3, 4096).expect("valid"));
        let mut places = Places::default();
        let parts =
            [(0, 10, rows, 1, 100), (10, 10, rows, 1, 110), (20, 10, rows, 1, 130), (30, 5, ExtentKind::Plain, 1, 140)];
        for (file_offset, length, kind, index, offset) in parts {
            let (done, place) = oneshot::channel();
            let chunk = ChunkId { pg: PgId(1), index };
            done.send(Ok(Placed { chunk, offset, kind, set: None })).expect("kept");
            places.push(Placing { file_offset, length, place });
        }
        while places.awaited() > 0 {
            places.take_one("file").await.expect("placed");
        }
        let lengths: Vec<_> = places.extents.iter().map(|e| (e.file_offset, e.length, e.flags)).collect();
        assert_eq!(lengths, [(0, 20, rows.to_flags()), (20, 10, rows.to_flags()), (30, 5, 0)]);
        let (done, place) = oneshot::channel::<Result<Placed>>();
        drop(done);
        places.push(Placing { file_offset: 0, length: 1, place });
        assert!(places.take_one("file").await.is_err());
    }
}
