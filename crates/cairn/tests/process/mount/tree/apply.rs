//! Carrying an operation out on one side.
use super::choose::Op;
use super::look;
use rustix::fd::OwnedFd;
use rustix::fs::{
    AtFlags, CWD, Gid, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT, Uid, XattrFlags, chmodat, chownat, fchmod,
    fstat, fsync, ftruncate, getxattr, linkat, listxattr, mkdirat, mknodat, openat, readlinkat, removexattr,
    renameat_with, setxattr, statat, symlinkat, unlinkat, utimensat,
};
use rustix::io::{Result, pread, pwrite, write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// Handles that are open at a time.
const OPEN_MAX: usize = 6;

/// A tree, and the handles that are open in it.
pub struct Side {
    root: PathBuf,
    open: Vec<OwnedFd>,
}

fn omit() -> Timespec {
    Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT }
}

fn times(atime: Option<(i64, i64)>, mtime: Option<(i64, i64)>) -> Timestamps {
    let time = |at: Option<(i64, i64)>| at.map_or(omit(), |(tv_sec, tv_nsec)| Timespec { tv_sec, tv_nsec });
    Timestamps { last_access: time(atime), last_modification: time(mtime) }
}

fn nofollow(follow: bool) -> AtFlags {
    if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW }
}

/// What was read, short.
fn told(bytes: &[u8]) -> String {
    let mut runs: Vec<(u8, usize)> = Vec::new();
    for byte in bytes {
        match runs.last_mut() {
            Some((last, count)) if last == byte => *count += 1,
            _ => runs.push((*byte, 1)),
        }
    }
    let runs: Vec<String> = runs.iter().map(|(byte, count)| format!("{byte}*{count}")).collect();
    format!("{} bytes {}", bytes.len(), runs.join(" "))
}

fn read_all(fd: &OwnedFd) -> Result<Vec<u8>> {
    let mut bytes = vec![0; 1 << 20];
    let mut got = 0;
    loop {
        match pread(fd, &mut bytes[got..], got as u64)? {
            0 => break,
            count => got += count,
        }
    }
    bytes.truncate(got);
    Ok(bytes)
}

impl Side {
    pub fn new(root: PathBuf) -> Side {
        Side { root, open: Vec::new() }
    }
    pub fn root(&self) -> &Path {
        &self.root
    }
    pub fn open(&self) -> usize {
        self.open.len()
    }
    pub fn close_all(&mut self) {
        self.open.clear();
    }
    fn at(&self, path: &str) -> PathBuf {
        // Not `join` alone: it would take a slash at the end away from nothing, and an empty name stays one.
        PathBuf::from(format!("{}/{path}", self.root.display()))
    }
    /// Change times, of links themselves; `None` where nothing is.
    pub fn change_times(&self, places: &[String]) -> Vec<Option<(i64, i64)>> {
        let look = |place: &String| {
            let found = statat(CWD, self.at(place), AtFlags::SYMLINK_NOFOLLOW).ok()?;
            Some((found.st_ctime as i64, found.st_ctime_nsec as i64))
        };
        places.iter().map(look).collect()
    }

    /// What the operation answers, as text.
    pub fn apply(&mut self, op: &Op) -> Result<String> {
        match op {
            Op::Write { .. }
            | Op::ReadAt { .. }
            | Op::Cut { .. }
            | Op::StatOpen { .. }
            | Op::ChmodOpen { .. }
            | Op::TouchOpen { .. }
            | Op::Sync { .. }
            | Op::Close { .. } => self.on_handle(op),
            Op::SetXattr { .. } | Op::GetXattr { .. } | Op::ListXattr { .. } | Op::RemoveXattr { .. } => self.xattr(op),
            Op::Readlink { .. } | Op::List { .. } | Op::Stat { .. } | Op::Read { .. } => self.read(op),
            Op::Chmod { .. } | Op::Chown { .. } | Op::Truncate { .. } | Op::Times { .. } => self.attributes(op),
            _ => self.names(op),
        }
    }
    fn names(&mut self, op: &Op) -> Result<String> {
        match op {
            Op::Open { path, flags, mode, keep } => {
                let opened = openat(CWD, self.at(path), *flags | OFlags::CLOEXEC, Mode::from_raw_mode(*mode))?;
                let told = look::short(&fstat(&opened)?);
                if *keep && self.open.len() < OPEN_MAX {
                    self.open.push(opened);
                }
                return Ok(told);
            }
            Op::Unnamed { dir, link } => {
                let mode = Mode::from_raw_mode(0o640);
                let file = openat(CWD, self.at(dir), OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, mode)?;
                pwrite(&file, b"unnamed", 0)?;
                let found = fstat(&file)?;
                let open = format!("/proc/self/fd/{}", file.as_raw_fd());
                let linked = linkat(CWD, open, CWD, self.at(link), AtFlags::SYMLINK_FOLLOW);
                return Ok(format!("links {} then {linked:?}", found.st_nlink));
            }
            Op::Mkdir { path, mode } => mkdirat(CWD, self.at(path), Mode::from_raw_mode(*mode))?,
            Op::Mknod { path, kind, mode } => {
                mknodat(CWD, self.at(path), *kind, Mode::from_raw_mode(*mode), rustix::fs::makedev(1, 3))?;
            }
            Op::Symlink { target, path } => symlinkat(target.as_str(), CWD, self.at(path))?,
            Op::Link { from, to, follow } => {
                let flags = if *follow { AtFlags::SYMLINK_FOLLOW } else { AtFlags::empty() };
                linkat(CWD, self.at(from), CWD, self.at(to), flags)?;
            }
            Op::Rename { from, to, flags } => renameat_with(CWD, self.at(from), CWD, self.at(to), *flags)?,
            Op::Unlink { path, flags } => unlinkat(CWD, self.at(path), *flags)?,
            Op::Append { path, length, byte } => {
                let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let file = openat(CWD, self.at(path), flags, Mode::empty())?;
                if rustix::fs::FileType::from_raw_mode(fstat(&file)?.st_mode).is_file() {
                    return write(&file, &vec![*byte; *length]).map(|count| count.to_string());
                }
            }
            op => panic!("not here: {op:?}"),
        }
        Ok(String::new())
    }
    fn attributes(&self, op: &Op) -> Result<String> {
        let (path, follow) = match op {
            Op::Chmod { path, mode } => {
                chmodat(CWD, self.at(path), Mode::from_raw_mode(*mode), AtFlags::empty())?;
                (path, true)
            }
            Op::Chown { path, uid, gid, follow } => {
                let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
                chownat(CWD, self.at(path), uid, gid, nofollow(*follow))?;
                (path, *follow)
            }
            Op::Truncate { path, size } => {
                super::super::truncate(&self.at(path), *size)?;
                (path, true)
            }
            Op::Times { path, atime, mtime, follow } => {
                utimensat(CWD, self.at(path), &times(*atime, *mtime), nofollow(*follow))?;
                let found = statat(CWD, self.at(path), nofollow(*follow))?;
                let set = atime.map(|_| (found.st_atime as i64, found.st_atime_nsec as i64));
                return Ok(format!("{} atime {set:?}", look::short(&found)));
            }
            op => panic!("not here: {op:?}"),
        };
        statat(CWD, self.at(path), nofollow(follow)).map(|found| look::short(&found))
    }
    fn xattr(&self, op: &Op) -> Result<String> {
        match op {
            Op::SetXattr { path, name, value, flags } => {
                let flags: XattrFlags = *flags;
                setxattr(self.at(path), *name, value, flags)?;
            }
            Op::GetXattr { path, name, room } => {
                let mut value = vec![0; *room];
                let length = getxattr(self.at(path), *name, &mut value[..])?;
                value.truncate(length.min(*room));
                return Ok(format!("{length}: {}", told(&value)));
            }
            Op::ListXattr { path } => {
                let mut names = vec![0; 4096];
                let length = listxattr(self.at(path), &mut names[..])?;
                return Ok(look::names_of(&names[..length]).join(" "));
            }
            Op::RemoveXattr { path, name } => removexattr(self.at(path), *name)?,
            op => panic!("not here: {op:?}"),
        }
        Ok(String::new())
    }
    fn read(&self, op: &Op) -> Result<String> {
        match op {
            Op::Readlink { path } => {
                readlinkat(CWD, self.at(path), Vec::new()).map(|target| target.to_string_lossy().into_owned())
            }
            Op::List { path } => look::list(&self.at(path)),
            Op::Stat { path, follow } => statat(CWD, self.at(path), nofollow(*follow)).map(|found| look::short(&found)),
            Op::Read { path } => {
                let file =
                    openat(CWD, self.at(path), OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
                if rustix::fs::FileType::from_raw_mode(fstat(&file)?.st_mode).is_char_device() {
                    return Ok(String::new());
                }
                read_all(&file).map(|bytes| told(&bytes))
            }
            op => panic!("not here: {op:?}"),
        }
    }
    fn on_handle(&mut self, op: &Op) -> Result<String> {
        match op {
            Op::Write { handle, offset, length, byte } => {
                let count = pwrite(&self.open[*handle], &vec![*byte; *length], *offset)?;
                Ok(count.to_string())
            }
            Op::ReadAt { handle, offset, length } => {
                let mut bytes = vec![0; *length];
                let count = pread(&self.open[*handle], &mut bytes, *offset)?;
                Ok(told(&bytes[..count]))
            }
            Op::Cut { handle, size } => ftruncate(&self.open[*handle], *size).map(|()| String::new()),
            Op::StatOpen { handle } => fstat(&self.open[*handle]).map(|found| look::short(&found)),
            Op::ChmodOpen { handle, mode } => {
                fchmod(&self.open[*handle], Mode::from_raw_mode(*mode)).map(|()| String::new())
            }
            Op::TouchOpen { handle } => {
                let past = Some((1_000, 5));
                rustix::fs::futimens(&self.open[*handle], &times(past, past)).map(|()| String::new())
            }
            Op::Sync { handle } => fsync(&self.open[*handle]).map(|()| String::new()),
            Op::Close { handle } => {
                drop(self.open.remove(*handle));
                Ok(String::new())
            }
            op => panic!("not here: {op:?}"),
        }
    }
}
