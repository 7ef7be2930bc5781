//! [`TempFile`]: a local file being written beside its final name, under `.name.cairn-XXXX`.
//!
//! Invariant: nothing half-written is ever under the final name; what is not finished is removed, also on Ctrl-C.
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::transfer::Overwrite;
use cairn_env::{FastRng, Rng};
use parking_lot::Mutex;
use rustix::fs::{AtFlags, Gid, Mode, RenameFlags, Timespec, Timestamps, Uid};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// Bytes of the name that a temporary name keeps: with the rest it stays within 255.
const NAME_KEPT: usize = 200;
/// Names tried until one is free.
const ATTEMPTS: usize = 16;

/// Temporary files that exist; `None` when the process ends.
static LIVE: Mutex<Option<BTreeSet<PathBuf>>> = Mutex::new(Some(BTreeSet::new()));
static RNG: LazyLock<FastRng> = LazyLock::new(FastRng::from_os);

/// Removes all temporary files of this process; no new ones can be made.
pub fn remove_all() {
    let Some(live) = LIVE.lock().take() else { return };
    for path in live {
        // Gone already, or not removable by us: there is nobody left to tell.
        drop(std::fs::remove_file(path));
    }
}

/// Attributes of a finished file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Finish {
    pub mode: u32,
    pub atime_ns: i64,
    pub mtime_ns: i64,
    /// Set, if given.
    pub owner: Option<(u32, u32)>,
    /// Wait until it is on stable storage.
    pub sync: bool,
    pub overwrite: Overwrite,
}

/// A file on its way.
pub struct TempFile {
    file: File,
    path: PathBuf,
    target: PathBuf,
    finished: bool,
}

impl TempFile {
    /// Begins the file that will be `target`.
    pub fn create(target: &Path) -> Result<TempFile> {
        let mut last = None;
        for _ in 0..ATTEMPTS {
            let path = temp_name(target, RNG.u64());
            // Under the lock, so that none can appear after `remove_all`.
            let mut live = LIVE.lock();
            let Some(live) = live.as_mut() else { return Err(CliError::Interrupted) };
            match OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path) {
                Ok(file) => {
                    live.insert(path.clone());
                    return Ok(TempFile { file, path, target: target.to_owned(), finished: false });
                }
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => last = Some(error),
                Err(error) => return Err(CliError::local(target, "creating it", error)),
            }
        }
        let error = last.unwrap_or_else(|| std::io::Error::other("no free temporary name"));
        Err(CliError::local(target, "creating a temporary file beside it", error))
    }
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.file.write_all_at(bytes, offset).map_err(|e| CliError::local(&self.target, "writing it", e))
    }
    /// What was written, to be read again.
    pub fn file(&self) -> &File {
        &self.file
    }
    /// Gives it size, attributes and its final name. `false`: there was one, and it was to be kept.
    pub fn finish(mut self, size: u64, finish: &Finish) -> Result<bool> {
        let failed = |doing| move |error: std::io::Error| (doing, error);
        let prepared = (|| {
            self.file.set_len(size).map_err(failed("setting its size"))?;
            if let Some((uid, gid)) = finish.owner {
                let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
                rustix::fs::fchown(&self.file, Some(uid), Some(gid))
                    .map_err(|e| failed("setting its owner")(e.into()))?;
            }
            // Whoever fetches a file of another one is its owner, and gives nobody his rights with it.
            let bits = if finish.owner.is_some() { 0o7777 } else { 0o777 };
            let mode = Mode::from_raw_mode(finish.mode & bits);
            rustix::fs::fchmod(&self.file, mode).map_err(|e| failed("setting its mode")(e.into()))?;
            let times = timestamps(finish.atime_ns, finish.mtime_ns);
            rustix::fs::futimens(&self.file, &times).map_err(|e| failed("setting its times")(e.into()))?;
            if finish.sync {
                self.file.sync_all().map_err(failed("syncing it"))?;
            }
            Ok(())
        })();
        prepared.map_err(|(doing, error)| CliError::local(&self.target, doing, error))?;
        let renamed = match finish.overwrite {
            Overwrite::Replace => std::fs::rename(&self.path, &self.target),
            Overwrite::Keep => rename_new(&self.path, &self.target),
        };
        match renamed {
            Ok(()) => {
                self.finished = true;
                if let Some(live) = LIVE.lock().as_mut() {
                    live.remove(&self.path);
                }
                if finish.sync {
                    sync_directory(&self.target)?;
                }
                Ok(true)
            }
            Err(error) if finish.overwrite == Overwrite::Keep && error.kind() == std::io::ErrorKind::AlreadyExists => {
                Ok(false)
            }
            Err(error) => match self.target.symlink_metadata() {
                Ok(found) if found.is_dir() => {
                    let text = format!("{} is a directory; it is not replaced by a file", self.target.display());
                    Err(CliError::refused(Exit::WrongKind, text))
                }
                _ => Err(CliError::local(&self.target, "giving it its name", error)),
            },
        }
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        // Whoever drops an unfinished file reports why; that it cannot be removed either adds nothing.
        drop(std::fs::remove_file(&self.path));
        if let Some(live) = LIVE.lock().as_mut() {
            live.remove(&self.path);
        }
    }
}

fn sync_directory(target: &Path) -> Result<()> {
    let directory = target.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let synced = File::open(directory).and_then(|directory| directory.sync_all());
    synced.map_err(|error| CliError::local(directory, "syncing the directory", error))
}

fn rename_new(from: &Path, to: &Path) -> std::io::Result<()> {
    let here = rustix::fs::CWD;
    match rustix::fs::renameat_with(here, from, here, to, RenameFlags::NOREPLACE) {
        // File systems without it: a link refuses what exists as well.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {
            std::fs::hard_link(from, to)?;
            std::fs::remove_file(from)
        }
        result => result.map_err(Into::into),
    }
}

/// `.name.cairn-XXXXXXXX` beside the target.
fn temp_name(target: &Path, random: u64) -> PathBuf {
    let name = target.file_name().unwrap_or_default().as_bytes();
    let mut temp = vec![b'.'];
    temp.extend_from_slice(&name[..name.len().min(NAME_KEPT)]);
    temp.extend_from_slice(format!(".cairn-{:08x}", random as u32).as_bytes());
    target.with_file_name(OsString::from_vec(temp))
}

/// Times for the kernel.
pub fn timestamps(atime_ns: i64, mtime_ns: i64) -> Timestamps {
    let time = |ns: i64| {
        let (tv_sec, tv_nsec) = (ns.div_euclid(1_000_000_000), ns.rem_euclid(1_000_000_000));
        Timespec { tv_sec, tv_nsec: tv_nsec as _ }
    };
    Timestamps { last_access: time(atime_ns), last_modification: time(mtime_ns) }
}

/// Sets the times of a path; a symbolic link's own.
pub fn set_times(path: &Path, atime_ns: i64, mtime_ns: i64) -> std::io::Result<()> {
    let times = timestamps(atime_ns, mtime_ns);
    rustix::fs::utimensat(rustix::fs::CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).map_err(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    const FINISH: Finish = Finish {
        mode: 0o640,
        atime_ns: 1_000_000_007,
        mtime_ns: 2_000_000_008,
        owner: None,
        sync: true,
        overwrite: Overwrite::Replace,
    };

    /// A file would appear under its name with half of its bytes, or temporary ones would stay.
    #[test]
    fn a_file_appears_whole_or_not_at_all() {
        let dir = tempfile::tempdir().expect("dir");
        let target = dir.path().join("x".repeat(255));
        let temp = TempFile::create(&target).expect("create");
        temp.write_at(b"abc", 5).expect("write");
        assert!(!target.exists());
        drop(temp);
        assert_eq!(std::fs::read_dir(dir.path()).expect("list").count(), 0);

        let temp = TempFile::create(&target).expect("create");
        temp.write_at(b"abc", 5).expect("write");
        assert!(temp.finish(10, &FINISH).expect("finish"));
        assert_eq!(std::fs::read(&target).expect("read"), b"\0\0\0\0\0abc\0\0");
        let meta = target.metadata().expect("stat");
        assert_eq!((meta.mode() & 0o7777, meta.mtime(), meta.mtime_nsec()), (0o640, 2, 8));
        assert_eq!(std::fs::read_dir(dir.path()).expect("list").count(), 1);
    }

    /// Root who fetches what a user stored would make a program that runs as root, for whoever finds it.
    #[test]
    fn rights_of_an_owner_go_with_the_owner_alone() {
        let dir = tempfile::tempdir().expect("dir");
        let own = dir.path().metadata().expect("stat");
        for (owner, wanted) in [(None, 0o755), (Some((own.uid(), own.gid())), 0o6755)] {
            let target = dir.path().join("tool");
            let temp = TempFile::create(&target).expect("create");
            temp.finish(0, &Finish { mode: 0o6755, owner, ..FINISH }).expect("finish");
            assert_eq!(target.metadata().expect("stat").mode() & 0o7777, wanted);
        }
    }

    /// `--no-clobber` would replace a file that appeared meanwhile.
    #[test]
    fn what_exists_is_kept_if_asked() {
        let dir = tempfile::tempdir().expect("dir");
        let target = dir.path().join("a");
        std::fs::write(&target, "old").expect("write");
        let temp = TempFile::create(&target).expect("create");
        assert!(!temp.finish(0, &Finish { overwrite: Overwrite::Keep, ..FINISH }).expect("finish"));
        assert_eq!(std::fs::read(&target).expect("read"), b"old");
        assert_eq!(std::fs::read_dir(dir.path()).expect("list").count(), 1);
    }

    /// A directory must not be taken for a file that can be replaced.
    #[test]
    fn a_directory_is_not_replaced() {
        let dir = tempfile::tempdir().expect("dir");
        let target = dir.path().join("a");
        std::fs::create_dir(&target).expect("mkdir");
        let temp = TempFile::create(&target).expect("create");
        let error = temp.finish(0, &FINISH).expect_err("is a directory");
        assert_eq!(error.exit(), Exit::WrongKind);
        assert_eq!(std::fs::read_dir(dir.path()).expect("list").count(), 1);
    }
}
