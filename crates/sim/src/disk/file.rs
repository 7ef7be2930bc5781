//! [`SimFile`] and [`SimLock`]: handles of a simulated disk.
//!
//! Invariant: a handle made before a crash, kill or restore does nothing but fail.

use std::io::IoSlice;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use cairn_env::buf::BUF_ALIGN;
use cairn_env::disk::{DiskError, DiskOp, File, LockGuard, OpenOptions};

use super::hang::Hang;
use super::lock;
use super::names::FileId;
use super::world::World;

#[derive(Debug)]
pub(super) struct SimFile {
    world: Arc<Mutex<World>>,
    hang: Arc<Hang>,
    id: FileId,
    generation: u64,
    path: String,
    options: OpenOptions,
    direct: bool,
    holes: bool,
}

impl SimFile {
    pub(super) fn open(
        shared: &Arc<Mutex<World>>,
        world: &mut World,
        id: FileId,
        path: &str,
        options: OpenOptions,
    ) -> Arc<dyn File> {
        world.add_handle(id);
        Arc::new(Self {
            world: shared.clone(),
            hang: world.hang.clone(),
            id,
            generation: world.generation,
            path: path.into(),
            direct: options.direct && world.options.direct,
            holes: world.options.holes,
            options,
        })
    }

    /// The world, if the handle is still of this life of the disk.
    fn world(&self, op: DiskOp) -> Result<MutexGuard<'_, World>, DiskError> {
        if !matches!(op, DiskOp::Stat) {
            self.hang.pass();
        }
        let world = lock(&self.world);
        if world.generation == self.generation { Ok(world) } else { Err(World::gone(op, &self.path)) }
    }

    fn for_writing(&self, op: DiskOp) -> Result<MutexGuard<'_, World>, DiskError> {
        if !self.options.write {
            // What the kernel says to a write through a handle opened for reading.
            let error = std::io::Error::from_raw_os_error(9);
            return Err(DiskError::from_io(op, &self.path, &error));
        }
        self.world(op)
    }

    fn check_aligned(&self, op: DiskOp, memory: &[u8], offset: u64) -> Result<(), DiskError> {
        let len = memory.len();
        let aligned = offset.is_multiple_of(BUF_ALIGN as u64)
            && len.is_multiple_of(BUF_ALIGN)
            && (len == 0 || (memory.as_ptr() as usize).is_multiple_of(BUF_ALIGN));
        if aligned || !self.direct {
            return Ok(());
        }
        Err(DiskError::Misaligned { path: self.path.clone(), op, offset, len })
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        let mut world = lock(&self.world);
        if world.generation == self.generation {
            world.drop_handle(self.id);
        }
    }
}

impl File for SimFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, DiskError> {
        self.check_aligned(DiskOp::Read, buf, offset)?;
        self.world(DiskOp::Read)?.read(self.id, &self.path, buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> Result<(), DiskError> {
        self.check_aligned(DiskOp::Write, buf, offset)?;
        self.for_writing(DiskOp::Write)?.write(self.id, &self.path, buf, offset)
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> Result<(), DiskError> {
        let mut at = offset;
        for buf in bufs {
            self.check_aligned(DiskOp::Write, buf, at)?;
            at += buf.len() as u64;
        }
        let joined: Vec<u8> = bufs.iter().flat_map(|buf| buf.iter().copied()).collect();
        self.for_writing(DiskOp::Write)?.write(self.id, &self.path, &joined, offset)
    }

    fn sync_data(&self) -> Result<(), DiskError> {
        let sync_max = self.hang.sync_max();
        if !sync_max.is_zero() {
            // Whatever happens meanwhile finds it not synced.
            let time = lock(&self.world).rng.range(0..sync_max.as_nanos() as u64);
            std::thread::sleep(Duration::from_nanos(time));
        }
        self.world(DiskOp::Sync)?.sync(self.id, &self.path)
    }

    fn sync_all(&self) -> Result<(), DiskError> {
        self.sync_data()
    }

    fn len(&self) -> Result<u64, DiskError> {
        let mut world = self.world(DiskOp::Stat)?;
        world.look(DiskOp::Stat, &self.path, None)?;
        Ok(world.content(self.id).len())
    }

    fn set_len(&self, len: u64) -> Result<(), DiskError> {
        let id = self.id;
        self.for_writing(DiskOp::SetLen)?.change(DiskOp::SetLen, &self.path, |world| {
            world.update(id, |content| content.set_len(len));
            Ok(())
        })
    }

    fn allocate(&self, offset: u64, len: u64) -> Result<bool, DiskError> {
        let (id, op) = (self.id, DiskOp::Allocate);
        let mut world = self.for_writing(op)?;
        if !self.holes {
            return Ok(false);
        }
        world.change(op, &self.path, |world| {
            let missing = world.content(id).pages_missing(offset, len);
            if !world.fits(missing) {
                return Err(DiskError::NoSpace { path: self.path.clone(), op });
            }
            world.update(id, |content| content.allocate(offset, len));
            Ok(true)
        })
    }

    fn punch_hole(&self, offset: u64, len: u64) -> Result<bool, DiskError> {
        let id = self.id;
        let mut world = self.for_writing(DiskOp::PunchHole)?;
        if !self.holes {
            return Ok(false);
        }
        world.change(DiskOp::PunchHole, &self.path, |world| {
            world.update(id, |content| content.punch(offset, len));
            Ok(true)
        })
    }

    fn allocated_bytes(&self) -> Result<u64, DiskError> {
        let mut world = self.world(DiskOp::Stat)?;
        world.look(DiskOp::Stat, &self.path, None)?;
        Ok(world.content(self.id).pages_allocated() * BUF_ALIGN as u64)
    }

    fn is_direct(&self) -> bool {
        self.direct
    }

    fn path(&self) -> &str {
        &self.path
    }
}

/// An exclusive lock of a simulated disk.
pub(super) struct SimLock {
    world: Arc<Mutex<World>>,
    /// Keeps the file alive as the real lock's descriptor does.
    _file: Arc<dyn File>,
    id: FileId,
    generation: u64,
}

impl SimLock {
    pub(super) fn new(world: &Arc<Mutex<World>>, file: Arc<dyn File>, id: FileId, generation: u64) -> Self {
        Self { world: world.clone(), _file: file, id, generation }
    }
}

impl LockGuard for SimLock {}

impl Drop for SimLock {
    fn drop(&mut self) {
        let mut world = lock(&self.world);
        if world.generation == self.generation {
            world.locks.remove(&self.id);
        }
    }
}
