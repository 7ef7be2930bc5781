//! How much of a chunk is durable: bulk bytes become so by a sync of the file, small ones by the journal.
//!
//! Invariant: [`Durability::promise`] never names a byte that is neither under a successful sync nor in a journal
//! record that goes before the promise. Not here: who syncs when.

/// Bulk bytes of a chunk on their way to stable storage. Offsets are in the chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Durability {
    /// First byte written in bulk that no sync covers.
    dirty_from: Option<u64>,
    /// The same of the sync that is under way.
    syncing_from: Option<u64>,
}

impl Durability {
    /// Bytes from `offset` on were written to the file past the journal.
    pub fn wrote_bulk(&mut self, offset: u64) {
        self.dirty_from = Some(self.dirty_from.map_or(offset, |from| from.min(offset)));
    }

    /// Whether a sync of the file is needed for all to be durable.
    pub fn is_dirty(&self) -> bool {
        self.dirty_from.is_some() || self.syncing_from.is_some()
    }

    /// A sync of the file begins: from which byte on it covers, `None` when there is nothing to sync.
    pub fn begin_sync(&mut self) -> Option<u64> {
        assert!(self.syncing_from.is_none(), "one sync of a chunk at a time");
        self.syncing_from = self.dirty_from.take();
        self.syncing_from
    }

    /// It succeeded.
    pub fn end_sync(&mut self) {
        self.syncing_from = None;
    }

    /// Bytes of a chunk of `written` bytes that are durable once everything journaled so far is.
    pub fn promise(&self, written: u64) -> u64 {
        let first = |a: Option<u64>, b: Option<u64>| [a, b].into_iter().flatten().min();
        first(self.dirty_from, self.syncing_from).map_or(written, |from| from.min(written))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A byte would be promised that a crash can take back.
    #[test]
    fn promises_cover_only_what_is_synced_or_journaled() {
        let mut d = Durability::default();
        assert_eq!(d.promise(100), 100, "everything came through the journal");
        d.wrote_bulk(4096);
        assert_eq!((d.promise(10_000), d.is_dirty()), (4096, true));
        assert_eq!(d.begin_sync(), Some(4096));
        d.wrote_bulk(12_288);
        assert_eq!(d.promise(20_000), 4096, "the sync under way has not succeeded");
        d.end_sync();
        assert_eq!(d.promise(20_000), 12_288);
        assert_eq!(d.begin_sync(), Some(12_288));
        d.end_sync();
        assert_eq!((d.promise(20_000), d.is_dirty(), d.begin_sync()), (20_000, false, None));
    }
}
