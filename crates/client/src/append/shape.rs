//! What a stream writes, and how much of it is under way.
use super::part::Part;
use super::segment::SEGMENT_MAX;
use cairn_types::Stripe;

/// Bounds of the memory of a writer of stripe sets.
const MEMORY_MIN: usize = 32 << 20;
const MEMORY_MAX: usize = 128 << 20;
/// Memory of a session for segments in columns: as much as four streams of segments.
const COLUMNS_MEMORY: usize = 128 << 20;
/// Bytes of a set after which it is synced.
const SYNC_EVERY_MIN: u64 = 8 << 20;
const SYNC_EVERY_COLUMN: u64 = 512 << 10;

/// What a stream writes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Shape {
    /// Segments of many files in replicated chunks.
    Segments,
    /// The same in one of so many columns of a stripe group that a session fills alike.
    Column(u8),
    /// Whole rows, each in one erasure chunk; rows of one file follow each other.
    Rows(Stripe),
    /// Stripe units of one file on the columns of stripe sets, in rounds.
    Units(Stripe),
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
            Self::Column(columns) => {
                let window = (COLUMNS_MEMORY / usize::from(columns.max(1))).min(32 << 20);
                Bounds { window, in_flight: 8, sync_every: (window as u64 / 2).min(8 << 20) }
            }
            Self::Rows(_) => Bounds { window: 64 << 20, in_flight: 4, sync_every: 24 << 20 },
            Self::Units(stripe) => {
                let window = memory_bytes(stripe) - round_bytes(stripe);
                // Each column has to have some to sync.
                let sync_every = SYNC_EVERY_MIN.max(u64::from(stripe.columns()) * SYNC_EVERY_COLUMN);
                Bounds { window, in_flight: 8, sync_every }
            }
        }
    }
    /// Columns of a set that begins with this part: a file of fewer units has no more, as far as it is known to end.
    pub(crate) fn columns(self, first: Option<&Part>) -> u16 {
        let Self::Units(stripe) = self else { return 1 };
        let ends = first.filter(|part| part.sync && part.retry.times() == 0);
        ends.map_or(stripe.columns(), |part| part.bytes.units().clamp(2, usize::from(stripe.columns())) as u16)
    }
}

/// Whether no column of a set with so many gets more of these bytes than one append takes.
pub(crate) fn fits_columns(bytes: u64, unit: u64, columns: usize) -> bool {
    bytes.div_ceil(unit).div_ceil(columns as u64) * unit <= unit.max(SEGMENT_MAX as u64)
}

/// Memory of the writer of a file in stripe sets: a MiB a column, but no less and no more. A round of it is gathered,
/// the rest is the window.
pub(crate) fn memory_bytes(stripe: Stripe) -> usize {
    (usize::from(stripe.columns()) << 20).clamp(MEMORY_MIN, MEMORY_MAX)
}
/// Bytes of a round: no column gets more than one append takes; whole rows, if there is one.
pub(crate) fn round_bytes(stripe: Stripe) -> usize {
    let (row, unit) = (stripe.row() as usize, stripe.unit() as usize);
    let most = (memory_bytes(stripe) / 4).min(usize::from(stripe.columns()) * SEGMENT_MAX);
    let whole = if most >= row { row } else { unit };
    (most / whole * whole).max(unit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::append::part::Bytes;
    use crate::append::retry::Retry;
    use crate::net::NetError;
    use cairn_env::buf::SharedBuf;
    use cairn_types::Time;
    use std::sync::Arc;
    use tokio::sync::{Semaphore, oneshot};

    /// Memory of a writer would not be bounded as documented, or every append be as small as a unit.
    #[test]
    fn rounds_are_large_and_memory_is_bounded() {
        let mib = 1 << 20;
        for (columns, unit, memory, round) in [
            (4, 64 << 10, 32 * mib, 4 * mib),
            (128, 64 << 10, 128 * mib, 32 * mib),
            (128, 1 << 20, 128 * mib, 32 * mib),
            (7, 8 << 10, 32 * mib, 7 * mib),
            (12, 64 << 10, 32 * mib, 10 * 12 * (64 << 10)),
            (2, 4 << 10, 32 * mib, 2 * mib),
        ] {
            let stripe = Stripe::new(columns, unit).expect("valid");
            assert_eq!((memory_bytes(stripe), round_bytes(stripe)), (memory, round), "{stripe:?}");
            let bounds = Shape::Units(stripe).bounds();
            assert!(bounds.sync_every as usize + round <= bounds.window, "it would wait for a sync not asked for");
            let columns = usize::from(columns);
            assert!(fits_columns(round as u64, unit, columns));
            // A round that comes back does not go into the narrow set of a file's end.
            assert_eq!(fits_columns(round as u64, unit, 2), columns == 2 || round <= 2 * SEGMENT_MAX);
        }
    }
    /// A session would take more memory the more columns it fills; or wait for a sync that nobody asks for.
    #[test]
    fn columns_share_the_memory_of_a_session() {
        for columns in 2..=16 {
            let Bounds { window, sync_every, .. } = Shape::Column(columns).bounds();
            assert!(window * usize::from(columns) <= COLUMNS_MEMORY);
            assert!(sync_every as usize + SEGMENT_MAX <= window, "{columns}");
        }
    }
    /// A short file would get a chunk on each column; or what comes back of a failed set be cut for fewer columns than
    /// it has.
    #[test]
    fn only_the_end_of_a_file_makes_a_narrow_set() {
        let stripe = Stripe::new(8, 4096).expect("valid");
        let shape = Shape::Units(stripe);
        let part = |units: usize, sync: bool| {
            let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().expect("a permit");
            let bytes = Bytes::Units(vec![SharedBuf::from_owner(vec![1u8; 4096]); units]);
            let (done, _nobody_waits) = oneshot::channel();
            Part { bytes, sync, done, show: None, retry: Retry::default(), _permit: permit }
        };
        assert_eq!(shape.columns(None), 8);
        assert_eq!(shape.columns(Some(&part(3, false))), 8, "more may follow");
        for (units, columns) in [(1, 2), (3, 3), (8, 8), (20, 8)] {
            assert_eq!(shape.columns(Some(&part(units, true))), columns);
        }
        let mut back = part(3, true);
        back.retry.failed(Time(1), &NetError::Unknown("away".into()));
        assert_eq!(shape.columns(Some(&back)), 8);
        assert_eq!(Shape::Segments.columns(Some(&back)), 1);
    }
}
