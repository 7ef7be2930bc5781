//! Segment files: names, making a new one ready, recycling old ones.
//!
//! Invariants: a file gets a segment's name only after its header (and its zeros) were synced; names disappear one at
//! a time, oldest first, each synced, so the segments that exist always have consecutive numbers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cairn_env::{AlignedBuf, Disk, DiskError, File, OpenOptions};
use cairn_format::wal_segment::SegmentHeader;
use cairn_types::DiskUuid;

use super::WalConfig;
use crate::StoreError;

/// Bytes of zeros written at a time when a new file is made.
const ZERO_CHUNK: usize = 1 << 20;

/// An open segment.
#[derive(Clone)]
pub(super) struct Segment {
    pub number: u64,
    pub file: Arc<dyn File>,
    /// Bytes of the file.
    pub len: u64,
    /// Its batches name the ones before them (format version 2).
    pub chained: bool,
}

/// Names in the log's directory.
pub(super) fn segment_path(dir: &str, number: u64) -> String {
    format!("{dir}/seg-{number:020}.wal")
}

fn spare_path(dir: &str, number: u64) -> String {
    format!("{dir}/spare-{number:020}")
}

fn number_in(name: &str, prefix: &str, suffix: &str) -> Option<u64> {
    let digits = name.strip_prefix(prefix)?.strip_suffix(suffix)?;
    if digits.len() == 20 && digits.bytes().all(|b| b.is_ascii_digit()) { digits.parse().ok() } else { None }
}

/// Numbers of the segments and of the spares in a directory, ascending.
pub(super) fn list(disk: &dyn Disk, dir: &str) -> Result<(Vec<u64>, Vec<u64>), DiskError> {
    let mut segments = Vec::new();
    let mut spares = Vec::new();
    for entry in disk.list(dir)? {
        if let Some(number) = number_in(&entry.name, "seg-", ".wal") {
            segments.push(number);
        } else if let Some(number) = number_in(&entry.name, "spare-", "") {
            spares.push(number);
        }
    }
    segments.sort_unstable();
    spares.sort_unstable();
    Ok((segments, spares))
}

/// Makes segment files and takes them back.
pub(super) struct Factory {
    disk: Arc<dyn Disk>,
    dir: String,
    log: DiskUuid,
    bytes: u64,
    /// Segments are made in version 2.
    chained: Arc<AtomicBool>,
    spares_max: usize,
    spares: Vec<u64>,
    /// Segments to be given up, oldest first.
    retiring: VecDeque<u64>,
}

impl Factory {
    pub(super) fn new(disk: Arc<dyn Disk>, config: &WalConfig, chained: Arc<AtomicBool>, spares: Vec<u64>) -> Self {
        let WalConfig { log, segment_bytes: bytes, spares_max, .. } = *config;
        let dir = config.dir.clone();
        Self { disk, dir, log, bytes, chained, spares_max, spares, retiring: VecDeque::new() }
    }

    /// Makes the segment of that number, empty, durable and open.
    pub(super) fn prepare(&mut self, number: u64) -> Result<Segment, StoreError> {
        let spare = match self.spares.last() {
            Some(&spare) => spare,
            None => self.make_spare(number)?,
        };
        let path = spare_path(&self.dir, spare);
        let file = self.disk.open(&path, OpenOptions::READ_WRITE.direct())?;
        let len = file.len()?;
        if len != self.bytes {
            // Made by a process that ended before the file was complete, or with another configured size.
            drop(file);
            self.disk.remove(&path)?;
            self.spares.retain(|&s| s != spare);
            return self.prepare(number);
        }
        let chained = self.chained.load(Ordering::Relaxed);
        let header = SegmentHeader { log: self.log, number, length: chained.then_some(len) };
        let mut block = AlignedBuf::unpooled(4096);
        block.extend_from_slice(&header.encode());
        file.write_at(&block, 0)?;
        file.sync_data()?;
        drop(file);
        let name = segment_path(&self.dir, number);
        self.disk.rename(&path, &name)?;
        self.disk.sync_dir(&self.dir)?;
        self.spares.retain(|&s| s != spare);
        let file = self.disk.open(&name, OpenOptions::READ_WRITE.direct())?;
        Ok(Segment { number, file, len, chained })
    }

    /// A new file of zeros: blocks that were written once need no change of metadata when they are synced later.
    fn make_spare(&mut self, number: u64) -> Result<u64, StoreError> {
        let path = spare_path(&self.dir, number);
        let file = self.disk.open(&path, OpenOptions::CREATE.direct())?;
        file.allocate(0, self.bytes)?;
        let mut zeros = AlignedBuf::unpooled(ZERO_CHUNK);
        zeros.resize(ZERO_CHUNK.min(usize::try_from(self.bytes).unwrap_or(ZERO_CHUNK)));
        let mut at = 0;
        while at < self.bytes {
            let len = (self.bytes - at).min(zeros.len() as u64) as usize;
            file.write_at(&zeros[..len], at)?;
            at += len as u64;
        }
        file.sync_all()?;
        self.spares.push(number);
        Ok(number)
    }

    /// Takes a segment out of the log: its file becomes a spare, or goes. What fails is tried again with the next
    /// one (or after the next start), before any later segment, so that no gap arises.
    pub(super) fn retire(&mut self, number: u64) {
        self.retiring.push_back(number);
        while let Some(&oldest) = self.retiring.front() {
            if let Err(error) = self.retire_one(oldest) {
                tracing::warn!(segment = oldest, %error, "an old log segment could not be recycled; trying later");
                return;
            }
            self.retiring.pop_front();
        }
    }

    fn retire_one(&mut self, number: u64) -> Result<(), DiskError> {
        let path = segment_path(&self.dir, number);
        let keep = self.spares.len() < self.spares_max;
        let result =
            if keep { self.disk.rename(&path, &spare_path(&self.dir, number)) } else { self.disk.remove(&path) };
        match result {
            Ok(()) if keep => self.spares.push(number),
            // Done by an earlier try that reported a failure.
            Ok(()) | Err(DiskError::NotFound { .. }) => {}
            Err(other) => return Err(other),
        }
        self.disk.sync_dir(&self.dir)
    }
}
