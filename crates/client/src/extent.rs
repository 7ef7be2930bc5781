//! Where the bytes of a file are: [`Extent`], [`StripeSet`], [`ExtentPage`]. For who shows or checks it: reading and
//! writing go through handles.
use cairn_types::{ChunkId, EXTENT_SHARED, ExtentKind, PgId};
use cairn_wire::{common, meta};

/// A range of a file and the range of a chunk, or of a stripe set, that has its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    pub file_offset: u64,
    pub length: u64,
    /// Of a stripe set: its first one.
    pub chunk: ChunkId,
    /// Of a striped chunk: in its logical space.
    pub chunk_offset: u64,
    /// `None`: of a later version.
    pub kind: Option<ExtentKind>,
    /// Other files may name it, too: it is never overwritten in place.
    pub shared: bool,
}

/// The chunks of a stripe set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StripeSet {
    /// Names it in extents.
    pub first: ChunkId,
    /// Of all columns, the first one too.
    pub columns: Vec<ChunkId>,
}

/// Extents of a file, in its order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ExtentPage {
    pub extents: Vec<Extent>,
    /// Those that the extents name.
    pub sets: Vec<StripeSet>,
    /// There are no more behind them.
    pub end: bool,
    /// Of the file.
    pub size: u64,
    /// Of the file's contents, to which they belong.
    pub data_version: u64,
}

impl Extent {
    /// Behind its last byte.
    pub fn file_end(&self) -> u64 {
        self.file_offset.saturating_add(self.length)
    }
    pub(crate) fn of_wire(found: &common::Extent) -> Self {
        let common::Extent { file_offset, length, pg, index, chunk_offset, flags } = *found;
        Self {
            file_offset,
            length,
            chunk: ChunkId { pg: PgId(pg), index },
            chunk_offset,
            kind: ExtentKind::from_flags(flags),
            shared: flags & EXTENT_SHARED != 0,
        }
    }
}

impl StripeSet {
    fn of_wire(found: &common::StripeSet) -> Self {
        let chunk = |(pg, index): (&u32, &u32)| ChunkId { pg: PgId(*pg), index: *index };
        Self {
            first: ChunkId { pg: PgId(found.pg), index: found.index },
            columns: found.column_pgs.iter().zip(&found.column_indices).map(chunk).collect(),
        }
    }
}

impl ExtentPage {
    pub(crate) fn of_wire(found: &meta::GetExtentsResponse) -> Self {
        Self {
            extents: found.extents.iter().map(Extent::of_wire).collect(),
            sets: found.sets.iter().map(StripeSet::of_wire).collect(),
            end: found.end,
            size: found.size,
            data_version: found.data_version,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_types::Stripe;

    /// Who looks for a chunk would look for another one, or take rows for copies.
    #[test]
    fn an_extent_says_where_its_bytes_are() {
        let stripe = Stripe::new(6, 64 << 10).expect("a stripe");
        let flags = ExtentKind::Erasure(stripe).to_flags() | EXTENT_SHARED;
        let found = common::Extent { file_offset: 10, length: 20, pg: 3, index: 4, chunk_offset: 30, flags };
        let extent = Extent::of_wire(&found);
        assert_eq!((extent.chunk, extent.kind), (ChunkId { pg: PgId(3), index: 4 }, Some(ExtentKind::Erasure(stripe))));
        assert_eq!((extent.file_end(), extent.chunk_offset, extent.shared), (30, 30, true));
        let later = common::Extent { flags: 7 << 1, ..found };
        assert_eq!(Extent::of_wire(&later).kind, None);
    }
}
