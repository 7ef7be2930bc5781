//! Segments: up to 1 MiB of one file that go in one append. Their buffers, and the checksums of blocks.
use cairn_env::buf::{AlignedBuf, BufPool};
use cairn_types::{BLOCK_SIZE, crc32c_append, crc32c_blocks};
use std::sync::LazyLock;

/// Most bytes of a segment, filler included.
pub const SEGMENT_MAX: usize = 1 << 20;

/// Pages that writers of whole segments keep between them. New ones cost a page fault for every 4 KiB and are zeroed
/// twice before a byte is in them: nearly half of the CPU time of a writer.
const SEGMENT_POOL_BYTES: usize = 64 << 20;
static SEGMENT_POOL: LazyLock<BufPool> = LazyLock::new(|| BufPool::new(SEGMENT_POOL_BYTES));

/// An empty buffer for a segment; beyond what the pool has, a new one.
pub fn segment_buffer() -> AlignedBuf {
    SEGMENT_POOL.try_take(SEGMENT_MAX).unwrap_or_else(|_| AlignedBuf::unpooled(SEGMENT_MAX))
}

/// CRC32C of each 4 KiB block of `data`, the last one filled up with zeros, as the wire carries them.
pub fn block_crcs(data: &[u8]) -> Vec<u8> {
    const ZEROS: [u8; BLOCK_SIZE] = [0; BLOCK_SIZE];
    let mut crcs = Vec::new();
    crc32c_blocks(data, &mut crcs);
    if let (Some(last), filled @ 1..) = (crcs.last_mut(), data.len() % BLOCK_SIZE) {
        *last = crc32c_append(*last, &ZEROS[filled..]);
    }
    crcs.iter().flat_map(|crc| crc.to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every segment would cost new pages, or a writer see bytes of another file in a buffer that it did not fill.
    #[test]
    fn buffers_are_used_again_and_begin_empty() {
        let mut first = segment_buffer();
        assert_eq!((first.len(), first.capacity()), (0, SEGMENT_MAX));
        first.extend_from_slice(&[7; 5000]);
        drop(first.freeze());
        let mut next = segment_buffer();
        assert!(next.is_empty());
        next.resize(6000);
        assert!(next.iter().all(|byte| *byte == 0));
        assert!(SEGMENT_POOL.in_use() <= SEGMENT_POOL_BYTES);
    }

    #[test]
    fn a_partial_last_block_is_summed_with_zeros() {
        let mut data = vec![7u8; BLOCK_SIZE + 100];
        let crcs = block_crcs(&data);
        data.resize(2 * BLOCK_SIZE, 0);
        assert_eq!(crcs, block_crcs(&data));
        assert_eq!(crcs.len(), 8);
    }
}
