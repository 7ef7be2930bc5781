//! Numbers of blocks in chunks of whole shards ([`cairn_types::WHOLE_SHARD`]).
//!
//! In other chunks a block's number is its place in the members' files: what is freed there is freed on all of them.
//! Blocks of whole shards belong to one shard each, and different files may have the same block of different shards. So
//! they are counted through all shards, from [`FIRST`] on: block b of shard i is FIRST + i × 16,384 + b. References,
//! births, what snapshots keep and what is to be freed are by these numbers, as everywhere.
//!
//! Invariant: nothing of such a chunk is freed on members because *one* of these numbers is free: parity and the other
//! shards have that block too. A member's block goes when nothing names it in any shard, which the scan for garbage
//! finds out ([`crate::Named`] has places in the members' files). So there are no free records of such numbers.
use cairn_types::CHUNK_BLOCKS_MAX;
use cairn_types::layout::STRIPE_WIDTH_MAX;

const SHARD: u64 = CHUNK_BLOCKS_MAX as u64;
/// The number of the first block of the first shard: above all that other chunks have.
pub(crate) const FIRST: u64 = 1 << 24;
const END: u64 = FIRST + STRIPE_WIDTH_MAX as u64 * SHARD;

/// Whether a record may name these blocks: all of them in a member's file, or all in whole shards.
pub(crate) const fn are_blocks(first: u64, end: u64) -> bool {
    end <= SHARD || first >= FIRST && end <= END
}

/// Whether these are numbers of blocks in whole shards.
pub(crate) const fn is_in_whole_shards(first: u64) -> bool {
    first >= FIRST
}

/// The shard that has a block of that number.
pub(crate) fn shard_of(number: u64) -> u32 {
    (number.saturating_sub(FIRST) / SHARD) as u32
}

/// Where blocks lie in the members' files, first and one past the last: numbers of whole shards may be in several.
pub(crate) fn in_files(first: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
    let whole = is_in_whole_shards(first);
    let mut at = first;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let from = if whole { (at - FIRST) % SHARD } else { at };
        let until = if whole { end.min(at + SHARD - from) } else { end };
        let found = (from, from + (until - at));
        at = until;
        Some(found)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks that files name would be taken for garbage, or a record be refused that was written.
    #[test]
    fn numbers_lead_to_places_in_files() {
        let places = |first, end| in_files(first, end).collect::<Vec<_>>();
        assert_eq!(places(3, 9), [(3, 9)]);
        assert_eq!(places(0, SHARD), [(0, SHARD)]);
        assert_eq!(places(FIRST + 2 * SHARD + 3, FIRST + 2 * SHARD + 9), [(3, 9)]);
        assert_eq!(places(FIRST + SHARD - 2, FIRST + 2 * SHARD + 1), [(SHARD - 2, SHARD), (0, SHARD), (0, 1)]);
        assert_eq!([FIRST, FIRST + SHARD - 1, FIRST + 2 * SHARD].map(shard_of), [0, 0, 2]);
        assert!(are_blocks(0, SHARD) && are_blocks(FIRST, FIRST + 1) && are_blocks(FIRST, END));
        assert!(!are_blocks(0, SHARD + 1) && !are_blocks(FIRST - 1, FIRST + 1) && !are_blocks(FIRST, END + 1));
        assert!(!is_in_whole_shards(SHARD - 1) && is_in_whole_shards(FIRST));
    }
}
