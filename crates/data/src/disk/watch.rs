//! [`IoWatch`]: sees whether a disk stands still: operations are under way and none is completed. A disk that hangs
//! says nothing by itself, its threads just do not come back.
//!
//! What counts as completed is what the device did: a read of a cached file that came at once came from memory, also
//! while the device hangs. A disk with much to do completes something all the time, so it never stands still.
//!
//! Invariants: a disk without operations under way does not stand still; operations that failed were completed.
//! Not here: what follows from it ([`crate::server`]: pings, refusals).

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cairn_env::disk::DirEntry;
use cairn_env::{Clock, Disk, DiskError, File, LockGuard, OpenOptions, Pipe, Space};
use cairn_types::Time;
use parking_lot::Mutex;

/// What came sooner from a file that is not direct did not come from the device.
const FROM_MEMORY: Duration = Duration::from_micros(700);

/// What is under way on a disk. Bounded by its threads and the callers of its store.
pub(crate) struct IoWatch {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    /// Something was changed since that was forgotten.
    written: AtomicBool,
}

#[derive(Default)]
struct State {
    /// By number, so that the first one is the oldest.
    running: BTreeMap<u64, Time>,
    next: u64,
    completed: Time,
}

/// Whether the end of an operation says that the device does something.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Proof {
    Always,
    /// Only if it took as long as the device takes.
    IfSlow,
}

impl IoWatch {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self { clock, state: Mutex::default(), written: AtomicBool::new(false) })
    }

    /// For how long something is under way and nothing was completed.
    pub(crate) fn still_for(&self) -> Duration {
        let now = self.clock.now();
        let state = self.state.lock();
        state.running.first_key_value().map_or(Duration::ZERO, |(_, began)| now.since((*began).max(state.completed)))
    }

    /// Whether anything was written, made, cut or removed.
    pub(super) fn has_written(&self) -> bool {
        self.written.load(Ordering::Relaxed)
    }

    pub(super) fn forget_written(&self) {
        self.written.store(false, Ordering::Relaxed);
    }

    fn note_written(&self) {
        // Mostly it is noted already: no write to memory that others read.
        if !self.has_written() {
            self.written.store(true, Ordering::Relaxed);
        }
    }

    fn during<T>(&self, proof: Proof, operation: impl FnOnce() -> T) -> T {
        let began = self.clock.now();
        let number = {
            let mut state = self.state.lock();
            state.next += 1;
            let number = state.next;
            state.running.insert(number, began);
            number
        };
        let outcome = operation();
        let now = self.clock.now();
        let mut state = self.state.lock();
        state.running.remove(&number);
        if proof == Proof::Always || now.since(began) >= FROM_MEMORY {
            state.completed = now;
        }
        outcome
    }
}

/// A disk of which it is seen whether it stands still.
pub(super) struct WatchedDisk {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) watch: Arc<IoWatch>,
}

impl WatchedDisk {
    fn see<T>(&self, operation: impl FnOnce(&dyn Disk) -> T) -> T {
        self.watch.during(Proof::IfSlow, || operation(self.disk.as_ref()))
    }
}

impl Disk for WatchedDisk {
    fn open(&self, path: &str, options: OpenOptions) -> Result<Arc<dyn File>, DiskError> {
        let file = self.see(|disk| disk.open(path, options))?;
        let direct = file.is_direct();
        Ok(Arc::new(WatchedFile { file, watch: self.watch.clone(), direct }))
    }
    fn remove(&self, path: &str) -> Result<(), DiskError> {
        self.watch.note_written();
        self.see(|disk| disk.remove(path))
    }
    fn remove_dir(&self, path: &str) -> Result<(), DiskError> {
        self.see(|disk| disk.remove_dir(path))
    }
    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        self.watch.note_written();
        self.see(|disk| disk.rename(from, to))
    }
    fn sync_dir(&self, dir: &str) -> Result<(), DiskError> {
        self.watch.during(Proof::Always, || self.disk.sync_dir(dir))
    }
    fn create_dir_all(&self, dir: &str) -> Result<(), DiskError> {
        self.watch.during(Proof::Always, || self.disk.create_dir_all(dir))
    }
    fn list(&self, dir: &str) -> Result<Vec<DirEntry>, DiskError> {
        self.see(|disk| disk.list(dir))
    }
    fn exists(&self, path: &str) -> Result<bool, DiskError> {
        self.see(|disk| disk.exists(path))
    }
    fn space(&self) -> Result<Space, DiskError> {
        self.see(|disk| disk.space())
    }
    fn lock(&self, path: &str) -> Result<Box<dyn LockGuard>, DiskError> {
        self.see(|disk| disk.lock(path))
    }
    fn is_waiting(&self) -> bool {
        self.disk.is_waiting()
    }
    fn name(&self) -> &str {
        self.disk.name()
    }
}

struct WatchedFile {
    file: Arc<dyn File>,
    watch: Arc<IoWatch>,
    direct: bool,
}

impl WatchedFile {
    /// Bytes: past the page cache if the file is direct.
    fn transfer<T>(&self, operation: impl FnOnce(&dyn File) -> T) -> T {
        let proof = if self.direct { Proof::Always } else { Proof::IfSlow };
        self.watch.during(proof, || operation(self.file.as_ref()))
    }
    fn see<T>(&self, operation: impl FnOnce(&dyn File) -> T) -> T {
        self.watch.during(Proof::IfSlow, || operation(self.file.as_ref()))
    }
    fn sync<T>(&self, operation: impl FnOnce(&dyn File) -> T) -> T {
        self.watch.during(Proof::Always, || operation(self.file.as_ref()))
    }
}

impl File for WatchedFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, DiskError> {
        self.transfer(|file| file.read_at(buf, offset))
    }
    fn read_in_memory(&self, buf: &mut [u8], offset: u64) -> Option<()> {
        // The device has no part in it.
        self.file.read_in_memory(buf, offset)
    }
    fn read_once_at(&self, buf: &mut [u8], offset: u64) -> Result<Option<usize>, DiskError> {
        self.transfer(|file| file.read_once_at(buf, offset))
    }
    fn splice_at(&self, pipe: &mut Pipe, offset: u64, len: usize) -> Result<Option<usize>, DiskError> {
        self.transfer(|file| file.splice_at(pipe, offset, len))
    }
    fn will_need(&self, offset: u64, len: u64) {
        self.see(|file| file.will_need(offset, len));
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> Result<(), DiskError> {
        self.watch.note_written();
        self.transfer(|file| file.write_at(buf, offset))
    }
    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> Result<(), DiskError> {
        self.watch.note_written();
        self.transfer(|file| file.write_vectored_at(bufs, offset))
    }
    fn sync_data(&self) -> Result<(), DiskError> {
        self.sync(|file| file.sync_data())
    }
    fn sync_all(&self) -> Result<(), DiskError> {
        self.sync(|file| file.sync_all())
    }
    fn len(&self) -> Result<u64, DiskError> {
        self.see(|file| file.len())
    }
    fn set_len(&self, len: u64) -> Result<(), DiskError> {
        self.watch.note_written();
        self.see(|file| file.set_len(len))
    }
    fn allocate(&self, offset: u64, len: u64) -> Result<bool, DiskError> {
        self.see(|file| file.allocate(offset, len))
    }
    fn punch_hole(&self, offset: u64, len: u64) -> Result<bool, DiskError> {
        self.watch.note_written();
        self.see(|file| file.punch_hole(offset, len))
    }
    fn allocated_bytes(&self) -> Result<u64, DiskError> {
        self.see(|file| file.allocated_bytes())
    }
    fn is_direct(&self) -> bool {
        self.direct
    }
    fn path(&self) -> &str {
        self.file.path()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_sim::SimClock;

    fn watch() -> (Arc<SimClock>, Arc<IoWatch>) {
        let clock = Arc::new(SimClock::new());
        (clock.clone(), IoWatch::new(clock))
    }

    /// A disk that hangs would be taken for one that has nothing to do, or one with much to do for one that hangs.
    #[test]
    fn only_a_disk_that_completes_nothing_stands_still() {
        let (clock, watch) = watch();
        let second = Duration::from_secs(1);
        assert_eq!(watch.still_for(), Duration::ZERO, "nothing is under way");
        watch.during(Proof::Always, || {
            clock.advance(second);
            assert_eq!(watch.still_for(), second);
            watch.during(Proof::Always, || ());
            assert_eq!(watch.still_for(), Duration::ZERO, "another one was completed");
            clock.advance(second);
            watch.during(Proof::IfSlow, || ());
            assert_eq!(watch.still_for(), second, "what came from memory says nothing");
            watch.during(Proof::IfSlow, || clock.advance(FROM_MEMORY));
            assert_eq!(watch.still_for(), Duration::ZERO, "that one waited for the device");
        });
        clock.advance(second);
        assert_eq!(watch.still_for(), Duration::ZERO);
    }

    /// Reads from memory that follow each other without a gap would make a disk look as if it hung.
    #[test]
    fn the_oldest_operation_counts() {
        let (clock, watch) = watch();
        for _ in 0..50 {
            watch.during(Proof::IfSlow, || {
                clock.advance(Duration::from_micros(300));
                watch.during(Proof::IfSlow, || clock.advance(Duration::from_micros(300)));
                assert!(watch.still_for() < Duration::from_millis(1));
            });
        }
    }
}
