//! The file `generation` of a disk: how often it has risen above what it was, by which the manager knows a disk that is
//! an older copy of itself.
//!
//! It rises at each start, before anything else is done, and while something is written, at most every [`RISE_PAUSE`].
//! Invariants: a number is told to nobody before it is durable; writing it needs no room; a failed write takes the disk
//! out of service, for a generation that may or may not have risen says nothing. Not here: what follows from it (the
//! manager's registration of disks).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cairn_env::{AlignedBuf, Disk, DiskError, File, OpenOptions};
use cairn_format::generation::{
    GENERATION_FILE_LEN, GENERATION_LEN, GENERATION_SLOT, GenerationError, GenerationRecord,
};
use cairn_types::generation::Lineage;
use cairn_types::{DiskUuid, Time};
use parking_lot::Mutex;

use super::{DiskContext, DiskStore, OpenError, paths};

/// Shortest time between two rises while something is written.
pub const RISE_PAUSE: Duration = Duration::from_secs(10);

/// The generation of an open disk.
pub(super) struct GenerationFile {
    /// None: the disk was full when it was to be made.
    file: Option<Arc<dyn File>>,
    /// What is durable; what the manager confirmed becomes so with the next rise.
    state: Mutex<(Lineage, Time)>,
    rising: AtomicBool,
}

impl GenerationFile {
    /// Reads it, or makes it, and lets it rise for this start.
    pub(super) fn start(context: &DiskContext) -> Result<Self, OpenError> {
        let disk = context.disk.as_ref();
        let found = match disk.open(paths::GENERATION, OpenOptions::READ_WRITE) {
            Err(DiskError::NotFound { .. }) => make(disk),
            other => other,
        };
        let (file, mut lineage) = match found {
            Ok(file) => {
                let lineage = read(disk, file.as_ref(), context.uuid)?;
                (Some(file), lineage)
            }
            Err(error @ DiskError::NoSpace { .. }) => {
                tracing::warn!(disk = disk.name(), %error, "the disk is too full to keep its generation; whether it is an older copy of itself is not known");
                (None, Lineage::default())
            }
            Err(error) => return Err(error.into()),
        };
        if let Some(file) = &file {
            lineage.start(context.rng.u64());
            write(file.as_ref(), context.uuid, &lineage)?;
        }
        let state = Mutex::new((lineage, context.clock.now()));
        Ok(Self { file, state, rising: AtomicBool::new(false) })
    }
}

/// A file of its whole length from the beginning. An interrupted attempt leaves none.
fn make(disk: &dyn Disk) -> Result<Arc<dyn File>, DiskError> {
    let file = disk.open(paths::GENERATION_TEMP, OpenOptions::CREATE)?;
    file.set_len(0)?;
    let mut zeros = AlignedBuf::unpooled(GENERATION_FILE_LEN as usize);
    zeros.resize(GENERATION_FILE_LEN as usize);
    file.write_at(&zeros, 0)?;
    file.sync_all()?;
    disk.rename(paths::GENERATION_TEMP, paths::GENERATION)?;
    disk.sync_dir("")?;
    disk.open(paths::GENERATION, OpenOptions::READ_WRITE)
}

/// What the slots say. None of them can be read: the disk begins anew, and the manager, which knows more, has it
/// compared.
fn read(disk: &dyn Disk, file: &dyn File, uuid: DiskUuid) -> Result<Lineage, OpenError> {
    let (mut newest, mut damaged) = (Lineage::default(), None);
    for slot in 0..2 {
        let mut bytes = [0; GENERATION_LEN];
        if file.len()? >= slot * GENERATION_SLOT + GENERATION_LEN as u64 {
            file.read_exact_at(&mut bytes, slot * GENERATION_SLOT)?;
        }
        if bytes.iter().all(|byte| *byte == 0) {
            continue;
        }
        match GenerationRecord::decode(&bytes) {
            Ok(record) if record.disk == uuid => {
                if record.lineage.present().map(|at| at.number) > newest.present().map(|at| at.number) {
                    newest = record.lineage;
                }
            }
            Ok(record) => damaged = Some(format!("it is of disk {}", record.disk)),
            Err(error @ GenerationError::Version(_)) => {
                let file = format!("{}/{}", disk.name(), paths::GENERATION);
                return Err(OpenError::Corrupt { file, what: error.to_string() });
            }
            Err(error) => damaged = Some(error.to_string()),
        }
    }
    if let (Some(what), None) = (damaged, newest.present()) {
        tracing::error!(
            disk = disk.name(),
            what,
            "the disk's generation cannot be read: it begins anew, and what it has is compared with others"
        );
    }
    Ok(newest)
}

fn write(file: &dyn File, disk: DiskUuid, lineage: &Lineage) -> Result<(), DiskError> {
    let record = GenerationRecord { disk, lineage: lineage.clone() };
    let mut bytes = AlignedBuf::unpooled(GENERATION_LEN);
    bytes.extend_from_slice(&record.encode());
    file.write_at(&bytes, record.offset())?;
    file.sync_data()
}

impl DiskStore {
    /// What the disk went through; nothing if it keeps no generation.
    pub fn lineage(&self) -> Lineage {
        self.generation.state.lock().0.clone()
    }

    /// The manager has logged what it was told.
    pub fn generation_confirmed(&self, told: &Lineage) {
        let number = told.present().map_or(0, |present| present.number);
        let mut state = self.generation.state.lock();
        state.0.confirmed = state.0.confirmed.max(number);
    }

    /// Has the generation rise, on the control thread, if something was written and the last rise is old enough.
    pub fn rise_later(self: &Arc<Self>) {
        let since = self.context.clock.now().since(self.generation.state.lock().1);
        let due = since >= RISE_PAUSE && self.watch.has_written() && self.failure().is_none();
        if !due || self.generation.file.is_none() || self.generation.rising.swap(true, Ordering::AcqRel) {
            return;
        }
        let job = |store: &DiskStore| {
            store.rise();
            store.generation.rising.store(false, Ordering::Release);
        };
        if self.control(job).is_err() {
            // Too busy or closing: at the next call.
            self.generation.rising.store(false, Ordering::Release);
        }
    }

    fn rise(&self) {
        let Some(file) = &self.generation.file else { return };
        // First of all: what comes from now on is of the next one.
        self.watch.forget_written();
        let mut lineage = self.lineage();
        lineage.rise();
        match write(file.as_ref(), self.context.uuid, &lineage) {
            Ok(()) => {
                let mut state = self.generation.state.lock();
                let confirmed = state.0.confirmed;
                *state = (Lineage { confirmed, ..lineage }, self.context.clock.now());
            }
            Err(error) => drop(self.fail(&error)),
        }
    }
}
