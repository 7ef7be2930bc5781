//! Reads the batches of one segment through a window, so that memory stays bounded and direct reads are large.

use cairn_env::{AlignedBuf, File};
use cairn_format::wal_batch::{BATCH_ALIGN, BATCH_LEN_MAX, BatchHeader};

use crate::StoreError;

/// Bytes read at a time.
const WINDOW: usize = 4 << 20;

/// A window over a segment file.
pub(super) struct SegmentReader<'a> {
    file: &'a dyn File,
    /// Bytes of the file, rounded down to whole blocks.
    pub len: u64,
    window: AlignedBuf,
    start: u64,
}

impl<'a> SegmentReader<'a> {
    pub(super) fn new(file: &'a dyn File) -> Result<Self, StoreError> {
        let len = file.len()? / BATCH_ALIGN as u64 * BATCH_ALIGN as u64;
        let capacity = WINDOW.min(usize::try_from(len).unwrap_or(WINDOW)).max(BATCH_ALIGN);
        Ok(Self { file, len, window: AlignedBuf::unpooled(capacity), start: 0 })
    }

    /// `len` bytes at `offset` (both whole blocks), or fewer where the file ends.
    pub(super) fn bytes(&mut self, offset: u64, len: usize) -> Result<&[u8], StoreError> {
        let end = (offset + len as u64).min(self.len);
        let have = self.start + self.window.len() as u64;
        if offset < self.start || end > have {
            let wanted = usize::try_from(end.saturating_sub(offset)).unwrap_or(usize::MAX);
            if wanted > self.window.capacity() {
                self.window = AlignedBuf::unpooled(wanted);
            }
            let fill = (self.window.capacity() as u64).min(self.len.saturating_sub(offset)) as usize;
            self.window.clear();
            self.window.resize(fill);
            self.file.read_exact_at(&mut self.window, offset)?;
            self.start = offset;
        }
        let from = (offset.min(end) - self.start) as usize;
        Ok(&self.window[from..(end - self.start) as usize])
    }

    /// The header of a batch at `offset`, if there is one whose length fits the file.
    pub(super) fn header(&mut self, offset: u64) -> Result<Option<BatchHeader>, StoreError> {
        let rest = self.len.saturating_sub(offset);
        let block = self.bytes(offset, BATCH_ALIGN)?;
        let header = BatchHeader::decode(block).ok();
        Ok(header.filter(|h| u64::from(h.length) <= rest && h.length as usize <= BATCH_LEN_MAX))
    }
}
