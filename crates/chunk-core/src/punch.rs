//! What a free frees: whole blocks of the chunk, and when nothing is left of it.
//!
//! Invariant: a block that is only partly named is never freed, except the partial last one of a chunk, of which all
//! that exists is named.

use std::ops::Range;

use cairn_format::crc_table::blocks_of;
use cairn_types::BLOCK_SIZE;

/// Blocks of a chunk of `length` bytes that lie wholly within `offset..offset + bytes`.
pub fn freed_blocks(length: u64, offset: u64, bytes: u64) -> Range<u32> {
    let block = BLOCK_SIZE as u64;
    let end = offset.saturating_add(bytes);
    let last = if end >= length { length.div_ceil(block) } else { end / block };
    let first = offset.div_ceil(block).min(last);
    first as u32..last as u32
}

/// Whether the chunk's file can go: it takes nothing more, and all its blocks were freed.
pub fn is_dead(sealed: bool, length: u64, punched_blocks: u32) -> bool {
    sealed && punched_blocks >= blocks_of(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A block that still belongs to a file would be lost, or space would never come back.
    #[test]
    fn only_whole_blocks_are_freed() {
        for (length, offset, bytes, wanted) in [
            (20_000, 0, 4096, 0..1),
            (20_000, 1, 8192, 1..2),
            (20_000, 0, 4095, 0..0),
            (20_000, 16_384, 3616, 4..5),
            (20_000, 16_384, 3615, 4..4),
            (20_000, 0, u64::MAX, 0..5),
            (20_000, 40_000, 4096, 5..5),
            (0, 0, 4096, 0..0),
        ] {
            assert_eq!(freed_blocks(length, offset, bytes), wanted, "{length} {offset} {bytes}");
        }
        assert!(is_dead(true, 20_000, 5) && is_dead(true, 0, 0));
        assert!(!is_dead(false, 20_000, 5) && !is_dead(true, 20_000, 4));
    }
}
