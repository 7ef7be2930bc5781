//! [`PatientDisk`]: a disk whose operations wait while the machine or the process is short of what has nothing to do
//! with the disk: file descriptors, memory of the kernel. Such an error says nothing of the device, and a log that
//! stopped for it, or a disk that left service, would stay so when the shortage is long over.
//!
//! Invariants: a failed sync is never repeated (what it dropped is not known); everything else that is short is
//! repeated until it works or the owner [ends](PatientDisk::new). While anything waits, [`short_of`] says for what.
//! Not here: keeping descriptors for disks, which is why they rarely wait (the limits of connections).

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;

use super::{DirEntry, Disk, DiskError, File, LockGuard, OpenOptions, Space};
use crate::clock::monotonic_now;
use crate::pipe::Pipe;

const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// Operations of this process that had to wait since its start.
static WAITED: AtomicU64 = AtomicU64::new(0);
/// How many wait now, since when, and the error of the latest. Of the process, as its descriptors are.
static WAITING: Mutex<Waiting> = Mutex::new(Waiting { count: 0, since: Duration::ZERO, error: None });

struct Waiting {
    count: usize,
    since: Duration,
    error: Option<DiskError>,
}

/// What operations wait for now, and for how long the first of them has: for messages and the state of the node.
pub fn short_of() -> Option<(DiskError, Duration)> {
    let waiting = WAITING.lock();
    let error = waiting.error.clone().filter(|_| waiting.count > 0)?;
    Some((error, monotonic_now().saturating_sub(waiting.since)))
}

/// Operations that had to wait since the start of the process.
pub fn waits_for_resources() -> u64 {
    WAITED.load(Relaxed)
}

/// Counts as waiting as long as it lives.
struct Wait<'a>(&'a Patience);

impl<'a> Wait<'a> {
    fn begin(patience: &'a Patience, error: &DiskError) -> Self {
        patience.waiting.fetch_add(1, Relaxed);
        WAITED.fetch_add(1, Relaxed);
        let mut waiting = WAITING.lock();
        if waiting.count == 0 {
            waiting.since = monotonic_now();
        }
        waiting.count += 1;
        waiting.error = Some(error.clone());
        Self(patience)
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Relaxed);
        WAITING.lock().count -= 1;
    }
}

/// What the operations of one disk share.
struct Patience {
    ending: Arc<AtomicBool>,
    waiting: AtomicUsize,
}

/// Repeats what fails for want of resources, until it works or `ending` is set.
fn patiently<T>(patience: &Patience, mut operation: impl FnMut() -> Result<T, DiskError>) -> Result<T, DiskError> {
    let mut outcome = operation();
    let Err(error) = &outcome else { return outcome };
    if !error.is_shortage() {
        return outcome;
    }
    let _wait = Wait::begin(patience, error);
    let mut pause = PAUSE_MIN;
    while matches!(&outcome, Err(error) if error.is_shortage()) && !patience.ending.load(Relaxed) {
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
        outcome = operation();
    }
    outcome
}

/// See the module.
pub struct PatientDisk {
    disk: Arc<dyn Disk>,
    patience: Arc<Patience>,
}

impl PatientDisk {
    /// Waits until `ending` is set; then operations that are short fail with [`DiskError::Shortage`].
    pub fn new(disk: Arc<dyn Disk>, ending: Arc<AtomicBool>) -> Self {
        Self { disk, patience: Arc::new(Patience { ending, waiting: AtomicUsize::new(0) }) }
    }

    fn wait<T>(&self, mut operation: impl FnMut(&dyn Disk) -> Result<T, DiskError>) -> Result<T, DiskError> {
        patiently(&self.patience, || operation(self.disk.as_ref()))
    }
}

impl Disk for PatientDisk {
    fn open(&self, path: &str, options: OpenOptions) -> Result<Arc<dyn File>, DiskError> {
        let file = self.wait(|disk| disk.open(path, options))?;
        Ok(Arc::new(PatientFile { file, patience: self.patience.clone() }))
    }
    fn remove(&self, path: &str) -> Result<(), DiskError> {
        self.wait(|disk| disk.remove(path))
    }
    fn remove_dir(&self, path: &str) -> Result<(), DiskError> {
        self.wait(|disk| disk.remove_dir(path))
    }
    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        self.wait(|disk| disk.rename(from, to))
    }
    fn sync_dir(&self, dir: &str) -> Result<(), DiskError> {
        // Short only before the sync itself: a sync that fails is no shortage, whatever the number.
        self.wait(|disk| disk.sync_dir(dir))
    }
    fn create_dir_all(&self, dir: &str) -> Result<(), DiskError> {
        self.wait(|disk| disk.create_dir_all(dir))
    }
    fn list(&self, dir: &str) -> Result<Vec<DirEntry>, DiskError> {
        self.wait(|disk| disk.list(dir))
    }
    fn exists(&self, path: &str) -> Result<bool, DiskError> {
        self.wait(|disk| disk.exists(path))
    }
    fn space(&self) -> Result<Space, DiskError> {
        self.wait(|disk| disk.space())
    }
    fn lock(&self, path: &str) -> Result<Box<dyn LockGuard>, DiskError> {
        self.wait(|disk| disk.lock(path))
    }
    fn is_waiting(&self) -> bool {
        self.patience.waiting.load(Relaxed) > 0
    }
    fn name(&self) -> &str {
        self.disk.name()
    }
}

struct PatientFile {
    file: Arc<dyn File>,
    patience: Arc<Patience>,
}

impl PatientFile {
    fn wait<T>(&self, mut operation: impl FnMut(&dyn File) -> Result<T, DiskError>) -> Result<T, DiskError> {
        patiently(&self.patience, || operation(self.file.as_ref()))
    }
}

impl File for PatientFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, DiskError> {
        self.wait(|file| file.read_at(buf, offset))
    }
    fn read_in_memory(&self, buf: &mut [u8], offset: u64) -> Option<()> {
        self.file.read_in_memory(buf, offset)
    }
    fn read_once_at(&self, buf: &mut [u8], offset: u64) -> Result<Option<usize>, DiskError> {
        self.wait(|file| file.read_once_at(buf, offset))
    }
    fn splice_at(&self, pipe: &mut Pipe, offset: u64, len: usize) -> Result<Option<usize>, DiskError> {
        // Part of it may be in the pipe: whoever asks reads instead.
        self.file.splice_at(pipe, offset, len)
    }
    fn will_need(&self, offset: u64, len: u64) {
        self.file.will_need(offset, len);
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> Result<(), DiskError> {
        self.wait(|file| file.write_at(buf, offset))
    }
    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> Result<(), DiskError> {
        self.wait(|file| file.write_vectored_at(bufs, offset))
    }
    fn sync_data(&self) -> Result<(), DiskError> {
        self.file.sync_data()
    }
    fn sync_all(&self) -> Result<(), DiskError> {
        self.file.sync_all()
    }
    fn len(&self) -> Result<u64, DiskError> {
        self.wait(|file| file.len())
    }
    fn set_len(&self, len: u64) -> Result<(), DiskError> {
        self.wait(|file| file.set_len(len))
    }
    fn allocate(&self, offset: u64, len: u64) -> Result<bool, DiskError> {
        self.wait(|file| file.allocate(offset, len))
    }
    fn punch_hole(&self, offset: u64, len: u64) -> Result<bool, DiskError> {
        self.wait(|file| file.punch_hole(offset, len))
    }
    fn allocated_bytes(&self) -> Result<u64, DiskError> {
        self.wait(|file| file.allocated_bytes())
    }
    fn is_direct(&self) -> bool {
        self.file.is_direct()
    }
    fn path(&self) -> &str {
        self.file.path()
    }
}
