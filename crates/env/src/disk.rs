//! Disks behind traits: [`Disk`] is one directory tree on one device, [`File`] an open file in it.
//!
//! The contract, which [`RealDisk`] inherits from the kernel and the simulated disk enforces:
//! - **A write is volatile until a sync of that file has returned Ok**, direct or not. `sync_data` makes durable all
//!   bytes written before it began and the size needed to read them; `sync_all` also other attributes.
//! - **A failed sync is final**: what was written before it may be gone although a later sync succeeds. The owner
//!   takes the disk out of service until its content was read again.
//! - **Creating, renaming or removing a name is volatile until [`Disk::sync_dir`]** of the directory (for a rename
//!   between directories: of both) has returned Ok. A rename is atomic: after a crash the name has the old file or
//!   the new one. A synced file whose name was never synced may vanish with its data.
//! - Several unsynced writes reach the device in any order and subset, in units of 512-byte sectors.
//! - After an error other than the ones that say "refused" ([`DiskError::is_refusal`]) it is unknown whether the
//!   operation took effect.
//!
//! Paths are relative to the disk's root, `/`-separated, without empty, `.` or `..` parts; `""` is the root.
//!
//! Not here: what the files mean (the store and the servers), identity labels, and health rules.

mod error;
mod path;
mod patient;
mod real;
mod real_file;
#[cfg(test)]
mod tests;

use std::io::IoSlice;
use std::sync::Arc;

pub use error::{DiskError, DiskOp};
pub use path::{check_path, parent};
pub use patient::{PatientDisk, short_of, waits_for_resources};
pub use real::RealDisk;

use crate::pipe::Pipe;

/// How to open a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OpenOptions {
    /// Reading is meant. At least one of `read` and `write` must be set.
    pub read: bool,
    /// Writing is meant.
    pub write: bool,
    /// Make an empty file when there is none (needs `write`).
    pub create: bool,
    /// Make an empty file and refuse with [`DiskError::Exists`] when there is one (needs `write`).
    pub create_new: bool,
    /// Bypass the page cache where the file system can; see [`File::is_direct`].
    pub direct: bool,
}

impl OpenOptions {
    /// Reads only.
    pub const READ: Self = Self { read: true, write: false, create: false, create_new: false, direct: false };
    /// Reads and writes what is there.
    pub const READ_WRITE: Self = Self { write: true, ..Self::READ };
    /// Reads and writes, making the file when there is none.
    pub const CREATE: Self = Self { create: true, ..Self::READ_WRITE };
    /// Reads and writes a file that must be new.
    pub const CREATE_NEW: Self = Self { create_new: true, ..Self::READ_WRITE };

    /// The same, bypassing the page cache.
    pub const fn direct(self) -> Self {
        Self { direct: true, ..self }
    }

    /// Why these options make no sense, if so.
    pub fn flaw(&self) -> Option<&'static str> {
        if !self.read && !self.write {
            Some("neither reading nor writing was asked")
        } else if (self.create || self.create_new) && !self.write {
            Some("creating needs writing")
        } else {
            None
        }
    }
}

/// One name in a directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirEntry {
    /// The name, without its directory. Bytes that are not UTF-8 are replaced (such names are not ours).
    pub name: String,
    /// Whether it is a directory.
    pub is_dir: bool,
    /// Bytes of the file; 0 for a directory.
    pub len: u64,
}

/// Space of the file system that a disk lies on, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Space {
    /// Size of the file system.
    pub total: u64,
    /// What can still be written by us (without the part reserved for root).
    pub free: u64,
    /// Says which file system of which machine it is: disks with the same number share their space. 0: not known.
    pub filesystem: u64,
}

/// Holds an exclusive lock; dropping it (or the end of the process) releases it.
pub trait LockGuard: Send + Sync {}

/// A directory tree on one device.
pub trait Disk: Send + Sync {
    /// Opens a file. A new file's name is volatile until [`sync_dir`](Self::sync_dir).
    fn open(&self, path: &str, options: OpenOptions) -> Result<Arc<dyn File>, DiskError>;
    /// Removes a file's name; its space goes when the last open handle does. [`DiskError::IsDirectory`] for one.
    fn remove(&self, path: &str) -> Result<(), DiskError>;
    /// Removes an empty directory.
    fn remove_dir(&self, path: &str) -> Result<(), DiskError>;
    /// Gives the file `from` the name `to` in one step, replacing a file of that name.
    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError>;
    /// Makes the names in this directory durable.
    fn sync_dir(&self, dir: &str) -> Result<(), DiskError>;
    /// Makes a directory and those above it, durably (each parent of a new one is synced).
    fn create_dir_all(&self, dir: &str) -> Result<(), DiskError>;
    /// The names in a directory, sorted.
    fn list(&self, dir: &str) -> Result<Vec<DirEntry>, DiskError>;
    /// Whether there is a file or directory of this name.
    fn exists(&self, path: &str) -> Result<bool, DiskError>;
    /// Total and free space.
    fn space(&self) -> Result<Space, DiskError>;
    /// Takes the exclusive lock kept in the file `path` (made when absent, holding the holder's process id), or
    /// says who has it.
    fn lock(&self, path: &str) -> Result<Box<dyn LockGuard>, DiskError>;
    /// Whether operations wait for what has nothing to do with the disk ([`PatientDisk`]).
    fn is_waiting(&self) -> bool {
        false
    }
    /// What a person calls this disk, for messages: the root directory.
    fn name(&self) -> &str;
}

/// An open file. Calls may come from several threads; overlapping concurrent writes have no defined order.
///
/// On a file with [`is_direct`](Self::is_direct), offsets, lengths and memory of reads and writes must be multiples
/// of [`BUF_ALIGN`](crate::buf::BUF_ALIGN); anything else is refused as [`DiskError::Misaligned`].
pub trait File: Send + Sync {
    /// Fills `buf` from `offset`; fewer bytes (the count is returned) only where the file ends. Unwritten ranges
    /// within the file read as zeros.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, DiskError>;

    /// Fills all of `buf`, or fails with [`DiskError::UnexpectedEnd`].
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), DiskError> {
        let got = self.read_at(buf, offset)?;
        if got == buf.len() {
            return Ok(());
        }
        Err(DiskError::UnexpectedEnd { path: self.path().into(), offset, wanted: buf.len(), got })
    }

    /// Fills `buf` from `offset` with what is in memory already. `None` where any of it is not, or cannot be read
    /// without waiting: then it is read as usual, which also finds what is wrong.
    fn read_in_memory(&self, _buf: &mut [u8], _offset: u64) -> Option<()> {
        None
    }

    /// Fills `buf` as [`read_at`](Self::read_at) does, and leaves nothing in memory that was not there before. `None`
    /// where the system cannot: then a direct file does the same, but that it leaves aside what is in memory.
    fn read_once_at(&self, _buf: &mut [u8], _offset: u64) -> Result<Option<usize>, DiskError> {
        Ok(None)
    }

    /// Puts up to `len` bytes from `offset` into an empty pipe without copying them; fewer (the count is returned) only
    /// where the file ends or the pipe is full. `None` where the file cannot: then they are read. Waits for the device
    /// as a read does.
    fn splice_at(&self, _pipe: &mut Pipe, _offset: u64, _len: usize) -> Result<Option<usize>, DiskError> {
        Ok(None)
    }

    /// Says that a range is going to be read, so that the system may begin to. A hint: nothing depends on it.
    fn will_need(&self, _offset: u64, _len: u64) {}

    /// Writes all of `buf` at `offset`, extending the file as needed. On an error any part may have been written.
    fn write_at(&self, buf: &[u8], offset: u64) -> Result<(), DiskError>;
    /// Writes all slices, one behind the other, starting at `offset`.
    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> Result<(), DiskError>;
    /// Makes what was written, and the size needed to read it, durable.
    fn sync_data(&self) -> Result<(), DiskError>;
    /// Makes data and all attributes durable.
    fn sync_all(&self) -> Result<(), DiskError>;
    /// The file's size in bytes.
    fn len(&self) -> Result<u64, DiskError>;
    /// Whether the file has no bytes.
    fn is_empty(&self) -> Result<bool, DiskError> {
        Ok(self.len()? == 0)
    }
    /// Cuts the file or extends it with a hole that reads as zeros.
    fn set_len(&self, len: u64) -> Result<(), DiskError>;
    /// Reserves space for a range without changing the size; `false` where the file system cannot.
    fn allocate(&self, offset: u64, len: u64) -> Result<bool, DiskError>;
    /// Frees the space of the blocks wholly within the range and makes all of it read as zeros, without changing
    /// the size. `false` where the file system cannot; then nothing changed. Volatile until a sync, like a write.
    fn punch_hole(&self, offset: u64, len: u64) -> Result<bool, DiskError>;
    /// Bytes of the device that the file occupies: holes do not count, reserved space does.
    fn allocated_bytes(&self) -> Result<u64, DiskError>;
    /// Whether I/O bypasses the page cache (direct was asked and the file system does it).
    fn is_direct(&self) -> bool;
    /// The path it was opened under, for messages.
    fn path(&self) -> &str;
}
