//! What a stream writes, and how much of it is under way.
use cairn_types::Stripe;

/// What a stream writes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Shape {
    /// Segments of many files in replicated chunks.
    Segments,
    /// Whole rows, each in one erasure chunk; rows of one file follow each other.
    Rows(Stripe),
}

/// How much a stream has under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// File bytes that wait, are encoded or on their way, or are not yet durable.
    pub window: usize,
    /// Unanswered parts of a chunk: more keep no disk busier, and the bytes leave the caches before they are sent.
    pub in_flight: usize,
    /// Bytes after which a chunk is synced though nobody waits.
    pub sync_every: u64,
}

impl Shape {
    pub(crate) fn bounds(self) -> Bounds {
        match self {
            Self::Segments => Bounds { window: 32 << 20, in_flight: 8, sync_every: 8 << 20 },
            Self::Rows(_) => Bounds { window: 64 << 20, in_flight: 4, sync_every: 24 << 20 },
        }
    }
}
