//! [`Marks`]: notes in a file of its own how far the log was durable, so that the loss of its end is noticed.
//!
//! Invariants: a mark is written only after what it names was synced; of the two places of the file the older one is
//! overwritten, so a torn write leaves the mark before. Without room for the file the log works without marks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn_env::{AlignedBuf, Disk, DiskError, File, OpenOptions};
use cairn_format::wal_mark::{WAL_MARK_LEN, WAL_MARK_VERSION, WalMark, WalMarkError};
use cairn_types::DiskUuid;

use super::WalConfig;
use crate::StoreError;

/// Places in the file.
const PLACES: u64 = 2;

fn path(dir: &str) -> String {
    format!("{dir}/mark")
}

/// The newest mark, if there is one.
pub(super) fn read(disk: &dyn Disk, config: &WalConfig) -> Result<Option<WalMark>, StoreError> {
    let path = path(&config.dir);
    let file = match disk.open(&path, OpenOptions::READ_WRITE.direct()) {
        Err(DiskError::NotFound { .. }) => return Ok(None),
        other => other?,
    };
    let mut newest: Option<WalMark> = None;
    for place in 0..PLACES {
        let mut block = AlignedBuf::unpooled(WAL_MARK_LEN);
        block.resize(WAL_MARK_LEN);
        if file.len()? < (place + 1) * WAL_MARK_LEN as u64 {
            break;
        }
        file.read_exact_at(&mut block, place * WAL_MARK_LEN as u64)?;
        let block: &[u8; WAL_MARK_LEN] = block[..].try_into().expect("the buffer was made with this length");
        match WalMark::decode(block) {
            Ok(mark) if mark.log == config.log => {
                newest = newest.into_iter().chain([mark]).max_by_key(|mark| mark.sequence);
            }
            Err(WalMarkError::Version(found)) => {
                let file = format!("{}/{path}", disk.name());
                return Err(StoreError::Version { file, found, known: WAL_MARK_VERSION });
            }
            // Of another log, torn, or never written: the other place counts.
            _ => {}
        }
    }
    Ok(newest)
}

/// Writes the marks of a log.
pub(super) struct Marks {
    disk: Arc<dyn Disk>,
    dir: String,
    log: DiskUuid,
    every: Duration,
    /// Open once there was room for it.
    file: Option<Arc<dyn File>>,
    last: Option<WalMark>,
    /// When the last one was written, or tried.
    at: Instant,
}

impl Marks {
    pub(super) fn new(disk: Arc<dyn Disk>, config: &WalConfig, last: Option<WalMark>) -> Result<Self, StoreError> {
        let (dir, log, every) = (config.dir.clone(), config.log, config.mark_every);
        let mut marks = Self { disk, dir, log, every, file: None, last, at: Instant::now() };
        match marks.open() {
            Ok(_) | Err(DiskError::NoSpace { .. }) => Ok(marks),
            Err(other) => Err(other.into()),
        }
    }

    fn lags(&self, batch: u64) -> bool {
        self.last.map_or(0, |mark| mark.batch) < batch
    }

    /// How long to wait for more before a mark is due; `None`: none is.
    pub(super) fn patience(&self, batch: u64) -> Option<Duration> {
        let waits = self.lags(batch) && self.every != Duration::MAX;
        waits.then(|| self.every.saturating_sub(self.at.elapsed()).max(Duration::from_millis(1)))
    }

    /// Whether a mark is due, with `batch` being durable.
    pub(super) fn is_due(&self, batch: u64) -> bool {
        self.lags(batch) && self.at.elapsed() >= self.every
    }

    /// Notes that `batch`, which ends at `end` of `segment`, is durable.
    pub(super) fn write(&mut self, segment: u64, batch: u64, end: u64, chain: u32) -> Result<(), StoreError> {
        if !self.lags(batch) {
            return Ok(());
        }
        self.at = Instant::now();
        let sequence = self.last.map_or(1, |mark| mark.sequence + 1);
        let mark = WalMark { log: self.log, sequence, segment, batch, end, chain };
        match self.put(&mark) {
            Ok(()) => {
                self.last = Some(mark);
                Ok(())
            }
            Err(DiskError::NoSpace { path, .. }) => {
                tracing::warn!(%path, "no space to note how far the log reaches; trying again");
                Ok(())
            }
            Err(other) => Err(other.into()),
        }
    }

    fn put(&mut self, mark: &WalMark) -> Result<(), DiskError> {
        let file = match &self.file {
            Some(file) => file.clone(),
            None => self.open()?,
        };
        let mut block = AlignedBuf::unpooled(WAL_MARK_LEN);
        block.extend_from_slice(&mark.encode());
        file.write_at(&block, mark.sequence % PLACES * WAL_MARK_LEN as u64)?;
        file.sync_data()
    }

    /// Opens the file, or makes it with both places, durably.
    fn open(&mut self) -> Result<Arc<dyn File>, DiskError> {
        let path = path(&self.dir);
        let file = match self.disk.open(&path, OpenOptions::READ_WRITE.direct()) {
            Err(DiskError::NotFound { .. }) => self.disk.open(&path, OpenOptions::CREATE.direct())?,
            other => other?,
        };
        if file.len()? < PLACES * WAL_MARK_LEN as u64 {
            let mut zeros = AlignedBuf::unpooled(WAL_MARK_LEN);
            zeros.resize(WAL_MARK_LEN);
            for place in file.len()? / WAL_MARK_LEN as u64..PLACES {
                file.write_at(&zeros, place * WAL_MARK_LEN as u64)?;
            }
            file.sync_all()?;
            self.disk.sync_dir(&self.dir)?;
        }
        self.file = Some(file.clone());
        Ok(file)
    }
}
