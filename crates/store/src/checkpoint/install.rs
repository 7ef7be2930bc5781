//! [`Incoming`]: a checkpoint file that comes from another node in parts, and giving one away.
//!
//! Invariant: it gets its name only after every page was verified on this disk and the file was synced.

use std::sync::Arc;

use cairn_env::{AlignedBuf, File, OpenOptions};
use cairn_format::checkpoint::{CHECKPOINT_BLOCK, CheckpointHeader};
use cairn_types::GroupId;

use super::file::CheckpointFile;
use super::store::CheckpointStore;
use crate::StoreError;

/// A file being received; dropping it unfinished leaves a temporary file that the next start clears.
pub struct Incoming<'a> {
    store: &'a CheckpointStore,
    group: GroupId,
    index: u64,
    term: u64,
    temp: String,
    file: Arc<dyn File>,
    len: u64,
}

impl<'a> Incoming<'a> {
    pub(super) fn start(store: &'a CheckpointStore, group: GroupId, index: u64, term: u64) -> Result<Self, StoreError> {
        store.disk().create_dir_all(&store.group_dir(group))?;
        let temp = format!("{}.in.tmp", store.path(group, index));
        let file = store.disk().open(&temp, OpenOptions::CREATE)?;
        file.set_len(0)?;
        Ok(Self { store, group, index, term, temp, file, len: 0 })
    }

    /// Bytes taken so far: the offset of the next part.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether nothing was taken yet.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends a part.
    pub fn write(&mut self, part: &[u8]) -> Result<(), StoreError> {
        self.file.write_at(part, self.len)?;
        self.len += part.len() as u64;
        Ok(())
    }

    /// Verifies and names the file; gives what it holds.
    pub fn finish(self) -> Result<CheckpointHeader, StoreError> {
        self.file.sync_all()?;
        let mut file = CheckpointFile::open(self.store.disk(), &self.temp)?;
        let header = file.header().clone();
        if (header.group, header.index, header.term) != (self.group, self.index, self.term) {
            let what = format!(
                "it holds {} at entry {} of term {}, not {} at {} of {}",
                header.group, header.index, header.term, self.group, self.index, self.term
            );
            return Err(StoreError::Corrupt { file: file.name().into(), offset: 32, what });
        }
        file.verify()?;
        self.store.publish(self.group, self.index, &self.temp)?;
        Ok(header)
    }
}

/// An open checkpoint that parts are read of for another node. It stays readable although the file is dropped.
pub struct Outgoing {
    file: Arc<dyn File>,
    len: u64,
}

impl CheckpointStore {
    /// Opens a checkpoint for giving it away.
    pub fn give(&self, group: GroupId, index: u64) -> Result<Outgoing, StoreError> {
        let file = self.open(group, index)?;
        Ok(Outgoing { file: file.raw(), len: file.file_len() })
    }
}

impl Outgoing {
    /// Bytes of the file.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the file is empty (never so for a checkpoint).
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Up to `max` bytes from `offset` on; empty at the end.
    pub fn read(&self, offset: u64, max: usize) -> Result<Vec<u8>, StoreError> {
        let end = offset.saturating_add(max as u64).min(self.len);
        if offset >= end {
            return Ok(Vec::new());
        }
        // The file is open for direct reads: whole blocks, then the part asked for.
        let block = CHECKPOINT_BLOCK as u64;
        let from = offset / block * block;
        let span = usize::try_from(end.next_multiple_of(block).min(self.len) - from).unwrap_or(usize::MAX);
        let mut buf = AlignedBuf::unpooled(span);
        buf.resize(span);
        self.file.read_exact_at(&mut buf, from)?;
        Ok(buf[(offset - from) as usize..(end - from) as usize].to_vec())
    }
}
