//! Open handles by their numbers.
use super::dir::DirStream;
use crate::caller::Caller;
use crate::error::{Result, VfsError};
use crate::file::File;
use crate::flags::OpenFlags;
use crate::vfs::{Handle, Vfs};
use cairn_client::{ReadPattern, Volume, Writer};
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// An open file.
pub(crate) struct OpenFile {
    pub file: Arc<File>,
    pub flags: OpenFlags,
    pub bits: i32,
    pub caller: Caller,
    /// On behalf of who opened it.
    pub volume: Volume,
    pub pattern: Mutex<ReadPattern>,
    /// Generation of guarded writers that it is of; 0: of none.
    pub guard: AtomicU64,
}

impl OpenFile {
    pub(crate) fn new(file: Arc<File>, bits: i32, caller: &Caller, volume: Volume) -> OpenFile {
        let flags = OpenFlags::from_bits(bits);
        OpenFile {
            file,
            flags,
            bits,
            caller: caller.clone(),
            volume,
            pattern: Mutex::default(),
            guard: AtomicU64::new(0),
        }
    }
    pub(crate) fn ino(&self) -> u64 {
        self.file.ino
    }
    pub(crate) fn what(&self) -> String {
        format!("inode {}", self.file.ino)
    }
    pub(crate) fn check_write(&self) -> Result<()> {
        match self.flags.write {
            true => Ok(()),
            false => Err(VfsError::new(libc::EBADF, format!("{} is not open for writing", self.what()))),
        }
    }
    pub(crate) fn writer(&self, mtime_ns: i64) -> Writer<'_> {
        Writer { volume: &self.volume, mtime_ns, generation: self.guard.load(Ordering::Acquire) }
    }
    pub(crate) fn check_read(&self) -> Result<()> {
        match self.flags.read || self.flags.execute {
            true => Ok(()),
            false => Err(VfsError::new(libc::EBADF, format!("{} is not open for reading", self.what()))),
        }
    }
}

/// An open directory.
pub(crate) struct OpenDir {
    pub ino: u64,
    pub caller: Caller,
    pub noatime: bool,
    pub stream: tokio::sync::Mutex<DirStream>,
}

#[derive(Clone)]
pub(crate) enum OpenHandle {
    File(Arc<OpenFile>),
    Dir(Arc<OpenDir>),
}

/// All of a mount.
#[derive(Default)]
pub(crate) struct Handles {
    open: RwLock<HashMap<u64, OpenHandle>>,
    last: AtomicU64,
}

impl Handles {
    pub(crate) fn add(&self, handle: OpenHandle) -> Handle {
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        self.open.write().insert(number, handle);
        Handle(number)
    }
    pub(crate) fn put(&self, number: u64, handle: OpenHandle) {
        self.reserve(number);
        self.open.write().insert(number, handle);
    }
    /// The kernel has a handle with that number, whether it can be used or not: no other one gets it.
    pub(crate) fn reserve(&self, number: u64) {
        self.last.fetch_max(number, Ordering::Relaxed);
    }
    pub(crate) fn remove(&self, handle: Handle) -> Option<OpenHandle> {
        self.open.write().remove(&handle.0)
    }
    pub(crate) fn file(&self, handle: Handle) -> Result<Arc<OpenFile>> {
        match self.open.read().get(&handle.0) {
            Some(OpenHandle::File(file)) => Ok(file.clone()),
            _ => Err(unknown(handle)),
        }
    }
    pub(crate) fn dir(&self, handle: Handle) -> Result<Arc<OpenDir>> {
        match self.open.read().get(&handle.0) {
            Some(OpenHandle::Dir(dir)) => Ok(dir.clone()),
            _ => Err(unknown(handle)),
        }
    }
    /// By number.
    pub(crate) fn all(&self) -> Vec<(u64, OpenHandle)> {
        let mut all: Vec<_> = self.open.read().iter().map(|(number, handle)| (*number, handle.clone())).collect();
        all.sort_unstable_by_key(|(number, _)| *number);
        all
    }
    pub(crate) fn count(&self) -> usize {
        self.open.read().len()
    }
}

impl Vfs {
    /// The inode of an open file.
    pub fn inode_of(&self, handle: Handle) -> Result<u64> {
        self.inner.handles.file(handle).map(|open| open.ino())
    }
}

pub(crate) fn unknown(handle: Handle) -> VfsError {
    VfsError::new(libc::EBADF, format!("handle {} is not open", handle.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a program writes to a file that could not be opened again would be written to another one.
    #[test]
    fn a_number_that_the_kernel_has_is_given_to_no_other_file() {
        let handles = Handles::default();
        handles.reserve(50);
        handles.reserve(7);
        let dir = OpenDir { ino: 1, caller: Caller::root(), noatime: false, stream: tokio::sync::Mutex::default() };
        assert_eq!(handles.add(OpenHandle::Dir(Arc::new(dir))).0, 51);
        assert!(handles.file(Handle(50)).is_err());
    }
}
