//! [`RealDisk`]: a directory of the machine.
//!
//! Invariants: every path is resolved below the directory opened at the start (a rename of the directory does not move
//! the disk); what is made is for its owner alone; file handles are closed on exec; a lock belongs to the open file
//! description made for it. Not here: reading and writing (`real_file.rs`).
#![allow(clippy::disallowed_methods, reason = "this file is the seam's one access to the machine's directories")]

use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::error::{DiskError, DiskOp};
use super::path::{check_path, parent};
use super::real_file::{RealFile, open_file};
use super::{DirEntry, Disk, File, LockGuard, OpenOptions, Space};

/// What is stored is for its owner alone: modes of files of users are in the namespace, not here.
pub(super) const FILE_MODE: u32 = 0o600;
const DIR_MODE: u32 = 0o700;

/// A disk rooted at a directory.
#[derive(Debug)]
pub struct RealDisk {
    root: OwnedFd,
    name: String,
}

/// Translates an error number.
pub(super) fn failed(op: DiskOp, path: &str) -> impl FnOnce(Errno) -> DiskError + '_ {
    move |errno| DiskError::from_io(op, path, &errno.into())
}

/// Repeats a call that a signal interrupted.
pub(super) fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            done => return done,
        }
    }
}

impl RealDisk {
    /// Opens an existing directory as a disk.
    pub fn open(root: &Path) -> Result<Self, DiskError> {
        let name = root.display().to_string();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = retry(|| rustix::fs::open(root, flags, Mode::empty())).map_err(failed(DiskOp::Open, &name))?;
        Ok(Self { root: fd, name })
    }

    /// Makes the directory (and those above it) if needed, then opens it.
    pub fn create(root: &Path) -> Result<Self, DiskError> {
        let name = root.display().to_string();
        let failed = |e: std::io::Error| DiskError::from_io(DiskOp::CreateDir, &name, &e);
        let made = |above: &Path| std::fs::DirBuilder::new().recursive(true).mode(DIR_MODE).create(above);
        root.parent().map_or(Ok(()), made).map_err(failed)?;
        Self::create_in_parent(root)
    }

    /// Makes the directory itself if needed, but none above it, then opens it.
    pub fn create_in_parent(root: &Path) -> Result<Self, DiskError> {
        let name = root.display().to_string();
        match std::fs::DirBuilder::new().mode(DIR_MODE).create(root) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(DiskError::from_io(DiskOp::CreateDir, &name, &error));
            }
            _ => {}
        }
        let disk = Self::open(root)?;
        // The new directory's own name is durable only with its parent.
        if let Ok(above) = rustix::fs::openat(&disk.root, "..", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
            retry(|| rustix::fs::fsync(&above)).map_err(failed(DiskOp::SyncDir, &name))?;
        }
        Ok(disk)
    }

    fn open_dir(&self, dir: &str, op: DiskOp) -> Result<OwnedFd, DiskError> {
        check_path(dir)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let at = if dir.is_empty() { "." } else { dir };
        retry(|| rustix::fs::openat(&self.root, at, flags, Mode::empty())).map_err(failed(op, dir))
    }

    fn unlink(&self, path: &str, flags: AtFlags) -> Result<(), DiskError> {
        check_file_path(path)?;
        retry(|| rustix::fs::unlinkat(&self.root, path, flags)).map_err(failed(DiskOp::Remove, path))
    }
}

/// A path that must name something below the root.
fn check_file_path(path: &str) -> Result<(), DiskError> {
    if path.is_empty() {
        return Err(DiskError::BadPath { path: path.into(), reason: "it names the root of the disk" });
    }
    check_path(path)
}

impl Disk for RealDisk {
    fn open(&self, path: &str, options: OpenOptions) -> Result<Arc<dyn File>, DiskError> {
        check_file_path(path)?;
        let file: RealFile = open_file(self.root.as_fd(), path, options)?;
        Ok(Arc::new(file))
    }

    fn remove(&self, path: &str) -> Result<(), DiskError> {
        self.unlink(path, AtFlags::empty())
    }

    fn remove_dir(&self, path: &str) -> Result<(), DiskError> {
        self.unlink(path, AtFlags::REMOVEDIR)
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        check_file_path(from)?;
        check_file_path(to)?;
        let about =
            rustix::fs::statat(&self.root, from, AtFlags::SYMLINK_NOFOLLOW).map_err(failed(DiskOp::Rename, from))?;
        if FileType::from_raw_mode(about.st_mode) == FileType::Directory {
            return Err(DiskError::IsDirectory { path: from.into() });
        }
        retry(|| rustix::fs::renameat(&self.root, from, &self.root, to)).map_err(failed(DiskOp::Rename, to))
    }

    fn sync_dir(&self, dir: &str) -> Result<(), DiskError> {
        // To open it is not the sync yet: what fails here can be repeated.
        let fd = self.open_dir(dir, DiskOp::Open)?;
        retry(|| rustix::fs::fsync(&fd)).map_err(failed(DiskOp::SyncDir, dir))
    }

    fn create_dir_all(&self, dir: &str) -> Result<(), DiskError> {
        check_path(dir)?;
        let ends = dir.match_indices('/').map(|(at, _)| at).chain([dir.len()]);
        for end in ends.filter(|_| !dir.is_empty()) {
            let part = &dir[..end];
            match retry(|| rustix::fs::mkdirat(&self.root, part, Mode::from_raw_mode(DIR_MODE))) {
                Ok(()) => self.sync_dir(parent(part))?,
                // Something is there: it must be a directory, else the next step would misreport it.
                Err(Errno::EXIST) => drop(self.open_dir(part, DiskOp::CreateDir)?),
                Err(errno) => return Err(failed(DiskOp::CreateDir, part)(errno)),
            }
        }
        Ok(())
    }

    fn list(&self, dir: &str) -> Result<Vec<DirEntry>, DiskError> {
        let fd = self.open_dir(dir, DiskOp::List)?;
        let names = rustix::fs::Dir::read_from(&fd).map_err(failed(DiskOp::List, dir))?;
        let mut entries = Vec::new();
        for entry in names {
            let entry = entry.map_err(failed(DiskOp::List, dir))?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let about = match rustix::fs::statat(&fd, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(about) => about,
                // Removed since it was listed.
                Err(Errno::NOENT) => continue,
                Err(errno) => return Err(failed(DiskOp::List, dir)(errno)),
            };
            let is_dir = FileType::from_raw_mode(about.st_mode) == FileType::Directory;
            let len = if is_dir { 0 } else { u64::try_from(about.st_size).unwrap_or(0) };
            entries.push(DirEntry { name: name.to_string_lossy().into_owned(), is_dir, len });
        }
        entries.sort();
        Ok(entries)
    }

    fn exists(&self, path: &str) -> Result<bool, DiskError> {
        if path.is_empty() {
            return Ok(true);
        }
        check_path(path)?;
        match retry(|| rustix::fs::statat(&self.root, path, AtFlags::SYMLINK_NOFOLLOW)) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
            Err(errno) => Err(failed(DiskOp::Stat, path)(errno)),
        }
    }

    fn space(&self) -> Result<Space, DiskError> {
        let about = retry(|| rustix::fs::fstatvfs(&self.root)).map_err(failed(DiskOp::Space, &self.name))?;
        Ok(Space {
            total: about.f_blocks.saturating_mul(about.f_frsize),
            free: about.f_bavail.saturating_mul(about.f_frsize),
            filesystem: rustix::fs::fstat(&self.root).map_or(0, |stat| filesystem_id(stat.st_dev)),
        })
    }

    fn lock(&self, path: &str) -> Result<Box<dyn LockGuard>, DiskError> {
        check_file_path(path)?;
        Ok(Box::new(lock_file(self.root.as_fd(), path)?))
    }

    fn name(&self) -> &str {
        &self.name
    }
}

/// A device number means something on one machine between two boots, so both are in the id.
fn filesystem_id(device: u64) -> u64 {
    static BOOT: LazyLock<String> =
        LazyLock::new(|| std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default());
    let mut hasher = DefaultHasher::new();
    (BOOT.as_str(), device).hash(&mut hasher);
    hasher.finish().max(1)
}

/// The lock is tied to this open file description and ends with it.
struct RealLock {
    _fd: OwnedFd,
}

impl LockGuard for RealLock {}

/// Takes the advisory lock. Repeats when the file was replaced between opening and locking, for then the lock
/// would be on a file that nobody else looks at.
fn lock_file(root: std::os::fd::BorrowedFd<'_>, path: &str) -> Result<RealLock, DiskError> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let to_error = |errno| failed(DiskOp::Lock, path)(errno);
    loop {
        let fd = retry(|| rustix::fs::openat(root, path, flags, Mode::from_raw_mode(FILE_MODE))).map_err(to_error)?;
        match retry(|| rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive)) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                return Err(DiskError::Locked { path: path.into(), holder: read_holder(&fd) });
            }
            Err(errno) => return Err(to_error(errno)),
        }
        let held = rustix::fs::fstat(&fd).map_err(to_error)?;
        match rustix::fs::statat(root, path, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(named) if (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino) => {}
            Ok(_) | Err(Errno::NOENT) => continue,
            Err(errno) => return Err(to_error(errno)),
        }
        let pid = format!("{}\n", std::process::id());
        retry(|| rustix::fs::ftruncate(&fd, 0)).map_err(to_error)?;
        retry(|| rustix::io::pwrite(&fd, pid.as_bytes(), 0)).map_err(to_error)?;
        return Ok(RealLock { _fd: fd });
    }
}

/// The process id in a lock file; only for the message, so any trouble means "unknown".
fn read_holder(fd: &OwnedFd) -> Option<u32> {
    let mut text = [0u8; 16];
    let got = retry(|| rustix::io::pread(fd, &mut text[..], 0)).ok()?;
    std::str::from_utf8(&text[..got]).ok()?.trim().parse().ok()
}
