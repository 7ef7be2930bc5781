//! Local files as sources: their attributes, small ones in one step, larger ones in parts with holes. Blocks.
use crate::error::{CliError, Result};
use crate::transfer::SMALL_MAX;
use crate::transfer::remote_make::Meta;
use cairn_client::SEGMENT_MAX;
use cairn_env::buf::{AlignedBuf, BufPool};
use rustix::fs::SeekFrom;
use std::fs::{File, Metadata, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;
use tokio::sync::mpsc;

/// How long a wait for a buffer lasts before it is looked whether anybody still needs it.
const POOL_WAIT: Duration = Duration::from_millis(500);
/// The system fetches a file from its disk so far ahead of what is read, while what was read is on its way.
const FETCH_AHEAD: u64 = 32 << 20;
/// It is told so at every so many bytes.
const FETCH_STEP: u64 = 8 << 20;

/// The attributes that a copy gets.
pub fn meta_of(found: &Metadata) -> Meta {
    let ns = |seconds: i64, nanos: i64| seconds.max(0).saturating_mul(1_000_000_000).saturating_add(nanos.max(0));
    Meta {
        mode: found.mode() & 0o7777,
        atime_ns: ns(found.atime(), found.atime_nsec()),
        mtime_ns: ns(found.mtime(), found.mtime_nsec()),
        owner: (found.uid(), found.gid()),
    }
}

/// A regular file that was opened.
pub struct Opened {
    pub file: File,
    pub meta: Meta,
    pub size: u64,
    /// It has holes.
    sparse: bool,
    changed_ns: (i64, i64),
}

/// Opens a file; `follow`: what a symbolic link leads to. Never waits for the other end of a pipe.
pub fn open(path: &Path, follow: bool) -> Result<Opened> {
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY | if follow { 0 } else { libc::O_NOFOLLOW };
    let failed = |error| CliError::local(path, "opening", error);
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    if !found.is_file() {
        let error = std::io::Error::new(ErrorKind::InvalidInput, "it is no regular file any more");
        return Err(CliError::local(path, "opening", error));
    }
    let size = found.len();
    Ok(Opened {
        file,
        meta: meta_of(&found),
        size,
        sparse: found.blocks() * 512 < size,
        changed_ns: (found.mtime(), found.mtime_nsec()),
    })
}

impl Opened {
    /// It fits one step.
    pub fn is_small(&self) -> bool {
        self.size <= SMALL_MAX
    }
    /// Size or time of change are others than when it was opened.
    pub fn has_changed(&self, path: &Path) -> Result<bool> {
        let now = self.file.metadata().map_err(|error| CliError::local(path, "looking at it again", error))?;
        Ok(now.len() != self.size || (now.mtime(), now.mtime_nsec()) != self.changed_ns)
    }
    /// Fills a buffer with up to `length` bytes from `offset`; fewer at the end of the file.
    fn fill(&self, path: &Path, buffer: &mut AlignedBuf, offset: u64, length: usize) -> Result<()> {
        let start = buffer.len();
        while buffer.len() - start < length {
            let done = buffer.len() - start;
            let spare = &mut buffer.spare_mut()[..length - done];
            match self.file.read_at(spare, offset + done as u64) {
                Ok(0) => break,
                Ok(count) => buffer.advance(count),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(CliError::local(path, "reading it", error)),
            }
        }
        Ok(())
    }
    /// The whole of a small file.
    pub fn read_small(&self, path: &Path, mut buffer: AlignedBuf) -> Result<AlignedBuf> {
        self.fill(path, &mut buffer, 0, self.size as usize)?;
        if (buffer.len() as u64) < self.size {
            return Err(CliError::Changed { what: path.display().to_string(), detail: " (it was cut)" });
        }
        Ok(buffer)
    }
    /// Where data begins at or behind `offset`, if the file system can tell; the end if there is none.
    fn next_data(&self, offset: u64) -> u64 {
        if !self.sparse {
            return offset;
        }
        match rustix::fs::seek(&self.file, SeekFrom::Data(offset)) {
            Ok(data) => data,
            Err(rustix::io::Errno::NXIO) => self.size,
            Err(_) => offset,
        }
    }
    /// Lets the disk work while parts are sent. Only a hint: what it cannot do is read when it is needed.
    fn fetch_ahead(&self, offset: u64, fetched: &mut u64) {
        while *fetched < self.size.min(offset + FETCH_AHEAD) {
            let from = (*fetched).max(offset);
            *fetched = from + FETCH_STEP;
            let length = std::num::NonZeroU64::new(FETCH_STEP);
            if rustix::fs::fadvise(&self.file, from, length, rustix::fs::Advice::WillNeed).is_err() {
                *fetched = u64::MAX;
            }
        }
    }
    /// Sends the file in parts; all but the last are full. Ends early when nobody takes them any more.
    pub fn send_parts(&self, path: &Path, pool: &BufPool, parts: &mpsc::Sender<Part>) -> Result<()> {
        // Files of /proc and the like say 0 and have contents.
        let end = if self.size == 0 { u64::MAX } else { self.size };
        let (mut offset, mut fetched) = (0, 0);
        while offset < end {
            self.fetch_ahead(offset, &mut fetched);
            let data = self.next_data(offset).min(end);
            let hole = match data == end {
                true => data - offset,
                false => (data - offset) / SEGMENT_MAX as u64 * SEGMENT_MAX as u64,
            };
            if hole > 0 {
                offset += hole;
                if parts.blocking_send(Part::Hole(hole)).is_err() {
                    return Ok(());
                }
                continue;
            }
            let wanted = (end - offset).min(SEGMENT_MAX as u64) as usize;
            let Some(mut buffer) = take_buffer(pool, wanted, || parts.is_closed()) else { return Ok(()) };
            self.fill(path, &mut buffer, offset, wanted)?;
            let (read, cut) = (buffer.len() as u64, buffer.len() < wanted);
            offset += read;
            if read > 0 && parts.blocking_send(Part::Data(buffer)).is_err() {
                return Ok(());
            }
            if cut && self.size > 0 {
                return Err(CliError::Changed { what: path.display().to_string(), detail: " (it was cut)" });
            }
            if cut {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Part of a file.
pub enum Part {
    Data(AlignedBuf),
    Hole(u64),
}

/// A buffer from the pool; `None` when nobody needs it any more.
pub fn take_buffer(pool: &BufPool, bytes: usize, given_up: impl Fn() -> bool) -> Option<AlignedBuf> {
    while !given_up() {
        if let Ok(buffer) = pool.take_blocking(bytes.max(1), POOL_WAIT) {
            return Some(buffer);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts_of(path: &Path) -> (Vec<(u64, bool)>, Result<()>) {
        let pool = BufPool::new(64 << 20);
        let (sender, mut receiver) = mpsc::channel(64);
        let opened = open(path, false).expect("open");
        let result = opened.send_parts(path, &pool, &sender);
        drop(sender);
        let mut parts = Vec::new();
        while let Ok(part) = receiver.try_recv() {
            parts.push(match part {
                Part::Data(buffer) => (buffer.len() as u64, false),
                Part::Hole(length) => (length, true),
            });
        }
        (parts, result)
    }

    /// A sparse image would fill the cluster with zeros, or its parts would be refused by the writer.
    #[test]
    fn parts_are_full_and_holes_are_left_out() {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("sparse");
        let file = File::create(&path).expect("create");
        let mib = SEGMENT_MAX as u64;
        file.set_len(10 * mib + 77).expect("size");
        file.write_all_at(b"x", 4 * mib + 5).expect("write");
        let (parts, result) = parts_of(&path);
        result.expect("read");
        assert_eq!(parts.iter().map(|(length, _)| length).sum::<u64>(), 10 * mib + 77);
        for (at, (length, hole)) in parts.iter().enumerate() {
            assert!(at + 1 == parts.len() || length % mib == 0, "{parts:?}");
            assert!(*hole || *length <= mib);
        }
        let data: u64 = parts.iter().filter(|(_, hole)| !hole).map(|(length, _)| length).sum();
        assert!(data <= 2 * mib, "{parts:?}");
    }

    /// A file without a size of its own, as in /proc, would be stored empty.
    #[test]
    fn files_without_a_size_are_read_to_their_end() {
        let path = Path::new("/proc/self/status");
        assert_eq!(open(path, false).expect("open").size, 0);
        let (parts, result) = parts_of(path);
        result.expect("read");
        assert!(parts.len() == 1 && parts[0].0 > 100, "{parts:?}");
    }

    /// What a link leads to must not be stored in place of the link.
    #[test]
    fn links_are_not_followed_unless_asked() {
        let dir = tempfile::tempdir().expect("dir");
        let (path, link) = (dir.path().join("f"), dir.path().join("l"));
        std::fs::write(&path, "abc").expect("write");
        std::os::unix::fs::symlink(&path, &link).expect("link");
        assert!(open(&link, false).is_err());
        let opened = open(&link, true).expect("follow");
        let buffer = opened.read_small(&link, AlignedBuf::unpooled(4096)).expect("read");
        assert_eq!(&buffer[..], b"abc");
        assert!(!opened.has_changed(&link).expect("stat"));
        std::fs::write(&path, "abcd").expect("write");
        assert!(opened.has_changed(&link).expect("stat"));
    }
}
