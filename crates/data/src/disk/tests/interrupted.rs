//! A simulated disk on which something else happens at a chosen moment.

use std::io::IoSlice;
use std::sync::Arc;

use cairn_env::disk::DirEntry;
use cairn_env::{Disk, DiskError, File, LockGuard, OpenOptions, Space};
use cairn_sim::SimDisk;
use parking_lot::Mutex;

pub(super) type Meanwhile = Box<dyn FnOnce() + Send>;

/// What happens the next time, once.
type Moment = Arc<Mutex<Option<Meanwhile>>>;

/// Something happens just before or just behind the next time that a file is opened, or just behind the next time that
/// one is asked for its length.
pub(super) struct Interrupted {
    pub(super) disk: SimDisk,
    pub(super) before: Moment,
    pub(super) behind: Moment,
    pub(super) measured: Moment,
}

impl Interrupted {
    pub(super) fn new() -> Arc<Self> {
        let (before, behind, measured) = (Moment::default(), Moment::default(), Moment::default());
        Arc::new(Self { disk: SimDisk::new(1), before, behind, measured })
    }
}

fn happen(moment: &Moment) {
    let meanwhile = moment.lock().take();
    if let Some(meanwhile) = meanwhile {
        meanwhile();
    }
}

impl Disk for Interrupted {
    fn open(&self, path: &str, options: OpenOptions) -> Result<Arc<dyn File>, DiskError> {
        happen(&self.before);
        let file = self.disk.open(path, options);
        happen(&self.behind);
        Ok(Arc::new(MeasuredFile { file: file?, measured: self.measured.clone() }))
    }
    fn remove(&self, path: &str) -> Result<(), DiskError> {
        self.disk.remove(path)
    }
    fn remove_dir(&self, path: &str) -> Result<(), DiskError> {
        self.disk.remove_dir(path)
    }
    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        self.disk.rename(from, to)
    }
    fn sync_dir(&self, dir: &str) -> Result<(), DiskError> {
        self.disk.sync_dir(dir)
    }
    fn create_dir_all(&self, dir: &str) -> Result<(), DiskError> {
        self.disk.create_dir_all(dir)
    }
    fn list(&self, dir: &str) -> Result<Vec<DirEntry>, DiskError> {
        self.disk.list(dir)
    }
    fn exists(&self, path: &str) -> Result<bool, DiskError> {
        self.disk.exists(path)
    }
    fn space(&self) -> Result<Space, DiskError> {
        self.disk.space()
    }
    fn lock(&self, path: &str) -> Result<Box<dyn LockGuard>, DiskError> {
        self.disk.lock(path)
    }
    fn name(&self) -> &str {
        self.disk.name()
    }
}

struct MeasuredFile {
    file: Arc<dyn File>,
    measured: Moment,
}

impl File for MeasuredFile {
    fn len(&self) -> Result<u64, DiskError> {
        let len = self.file.len();
        happen(&self.measured);
        len
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, DiskError> {
        self.file.read_at(buf, offset)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> Result<(), DiskError> {
        self.file.write_at(buf, offset)
    }
    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> Result<(), DiskError> {
        self.file.write_vectored_at(bufs, offset)
    }
    fn sync_data(&self) -> Result<(), DiskError> {
        self.file.sync_data()
    }
    fn sync_all(&self) -> Result<(), DiskError> {
        self.file.sync_all()
    }
    fn set_len(&self, len: u64) -> Result<(), DiskError> {
        self.file.set_len(len)
    }
    fn allocate(&self, offset: u64, len: u64) -> Result<bool, DiskError> {
        self.file.allocate(offset, len)
    }
    fn punch_hole(&self, offset: u64, len: u64) -> Result<bool, DiskError> {
        self.file.punch_hole(offset, len)
    }
    fn allocated_bytes(&self) -> Result<u64, DiskError> {
        self.file.allocated_bytes()
    }
    fn is_direct(&self) -> bool {
        self.file.is_direct()
    }
    fn path(&self) -> &str {
        self.file.path()
    }
}
