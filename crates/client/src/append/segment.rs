//! A segment: up to 1 MiB of one file, on its way into a chunk; kept until it is durable on every serving member.
use super::retry::Retry;
use crate::error::{ClientError, Result};
use cairn_env::buf::{AlignedBuf, BufPool, SharedBuf};
use cairn_types::{BLOCK_SIZE, ChunkId, crc32c_append, crc32c_blocks};
use std::sync::{Arc, LazyLock, OnceLock};
use tokio::sync::oneshot;

/// Most bytes of a segment, filler included.
pub const SEGMENT_MAX: usize = 1 << 20;

/// Where a segment's first file byte is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placed {
    pub chunk: ChunkId,
    pub offset: u64,
}

/// A writer that goes on when a segment is in the memory of all members, and hears later where it became durable.
#[derive(Debug)]
pub struct Show {
    /// Told at once; `None`: it was.
    pub tell: Option<oneshot::Sender<Result<Placed>>>,
    /// Where it was then.
    pub at: Arc<OnceLock<Placed>>,
}

/// Bytes to be stored. `data` begins with `lead` filler bytes, so that chunk offset and file offset agree modulo 4 KiB.
#[derive(Debug)]
pub struct Segment {
    pub data: SharedBuf,
    pub lead: usize,
    /// u32 little-endian per block; the last block is summed as if filled up with zeros.
    pub crcs: Vec<u8>,
    /// Somebody waits for it: make it durable soon.
    pub sync: bool,
    pub done: oneshot::Sender<Result<Placed>>,
    /// Its writer does not wait until it is durable. What was shown is sent again for as long as it takes: it has a
    /// name.
    pub show: Option<Show>,
    /// Chunks that it was sent to and that failed.
    pub retry: Retry,
    /// Memory that it holds until it is durable.
    pub _permit: tokio::sync::OwnedSemaphorePermit,
}

impl Segment {
    /// It will not be stored.
    pub fn fail(self, error: &ClientError) {
        if let Some(tell) = self.show.and_then(|show| show.tell) {
            // Writers that were dropped no longer ask.
            let _gone = tell.send(Err(error.clone()));
        }
        let _gone = self.done.send(Err(error.clone()));
    }
    /// All members have it in memory, there.
    pub fn show(&mut self, placed: Placed) {
        let Some(show) = &mut self.show else { return };
        if let Some(tell) = show.tell.take()
            && show.at.set(placed).is_ok()
        {
            let _gone = tell.send(Ok(placed));
        }
    }
    /// Its writer was told that it is in this chunk, and may have given it a name there.
    pub fn is_shown_in(&self, chunk: ChunkId) -> bool {
        self.show.as_ref().and_then(|show| show.at.get()).is_some_and(|at| at.chunk == chunk)
    }
    pub fn is_shown(&self) -> bool {
        self.show.as_ref().is_some_and(|show| show.at.get().is_some())
    }
}

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
