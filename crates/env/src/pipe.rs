//! [`Pipe`]: bytes of a file on their way to a socket, held by the kernel and copied by nobody; [`PipePool`] bounds
//! them.
//!
//! Invariants: a pipe says how many bytes it holds before any of them is sent, so what announces their number never
//! lies, whatever happens to the file meanwhile; a pipe that goes back to its pool is empty.
//!
//! What a pipe holds are references to pages of the page cache, not copies: a block that is written again while it is
//! in a pipe may arrive old, new or mixed. Whoever fills one takes only what does not change, and the receiver checks.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags};

/// Bytes that a pipe can hold: what the kernel allows everybody by default.
pub const PIPE_BYTES: usize = 1 << 20;

/// The two ends of a pipe of the kernel.
struct Ends {
    read: OwnedFd,
    write: OwnedFd,
}

impl Ends {
    fn new() -> Result<Self, Errno> {
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let size = rustix::pipe::fcntl_setpipe_size(&write, PIPE_BYTES)?;
        if size < PIPE_BYTES { Err(Errno::PERM) } else { Ok(Self { read, write }) }
    }
}

/// Bytes between a file and a socket.
pub struct Pipe {
    /// `None` only while being dropped.
    ends: Option<Ends>,
    len: usize,
    pool: PipePool,
}

impl Pipe {
    /// Bytes that it holds.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn ends(&self) -> &Ends {
        self.ends.as_ref().expect("the ends leave only in drop")
    }

    /// Takes up to `len` bytes of `file` from `offset`; fewer where the file ends or the pipe is full.
    pub(crate) fn fill(&mut self, file: BorrowedFd<'_>, offset: u64, len: usize) -> Result<usize, Errno> {
        let mut filled = 0;
        let mut at = offset;
        while filled < len && self.len < PIPE_BYTES {
            let want = (len - filled).min(PIPE_BYTES - self.len);
            let moved =
                rustix::pipe::splice(file, Some(&mut at), &self.ends().write, None, want, SpliceFlags::NONBLOCK);
            match moved {
                Ok(0) | Err(Errno::AGAIN) => break,
                Ok(count) => {
                    filled += count;
                    self.len += count;
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(filled)
    }

    /// Takes bytes out of it into memory, for a receiver that is no socket: as many as it holds, if there is room.
    pub fn take_out(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let mut taken = 0;
        let wanted = self.len.min(into.len());
        while taken < wanted {
            match rustix::io::read(&self.ends().read, &mut into[taken..wanted]) {
                // The pipe holds what it says; its ends are nobody else's.
                Ok(0) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    taken += count;
                    self.len -= count;
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(taken)
    }

    /// Moves what it holds into a socket that does not block, as far as that takes it now: `WouldBlock` when it takes
    /// nothing. `more`: further bytes follow at once.
    pub fn send(&mut self, socket: impl AsFd, more: bool) -> std::io::Result<usize> {
        let mut flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
        flags.set(SpliceFlags::MORE, more);
        loop {
            match rustix::pipe::splice(&self.ends().read, None, socket.as_fd(), None, self.len, flags) {
                Ok(count) => {
                    self.len -= count;
                    return Ok(count);
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl std::fmt::Debug for Pipe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pipe").field("len", &self.len).finish()
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        if let Some(ends) = self.ends.take() {
            self.pool.give_back(ends, self.len == 0);
        }
    }
}

/// Pipes for reuse, at most so many at a time. Cloning gives another handle to the same pool.
#[derive(Clone)]
pub struct PipePool {
    shared: Arc<Shared>,
}

struct Shared {
    max: usize,
    /// Made and not closed, idle ones included.
    count: AtomicUsize,
    idle: Mutex<Vec<Ends>>,
    /// The kernel gave none of the size wanted: not asked again.
    refused: AtomicBool,
}

impl PipePool {
    /// At most `max` pipes; none is made yet.
    pub fn new(max: usize) -> Self {
        let shared =
            Shared { max, count: AtomicUsize::new(0), idle: Mutex::default(), refused: AtomicBool::new(false) };
        Self { shared: Arc::new(shared) }
    }

    /// An empty pipe, or `None` when all are in use or the kernel gives none: then bytes are copied.
    pub fn take(&self) -> Option<Pipe> {
        let shared = &self.shared;
        let idle = shared.idle.lock().pop();
        let ends = match idle {
            Some(ends) => ends,
            None => self.make()?,
        };
        Some(Pipe { ends: Some(ends), len: 0, pool: self.clone() })
    }

    fn make(&self) -> Option<Ends> {
        let shared = &self.shared;
        if shared.refused.load(Relaxed) {
            return None;
        }
        let max = shared.max;
        shared.count.fetch_update(Relaxed, Relaxed, |count| (count < max).then_some(count + 1)).ok()?;
        let made = Ends::new();
        if made.is_err() {
            shared.count.fetch_sub(1, Relaxed);
            shared.refused.store(true, Relaxed);
        }
        made.ok()
    }

    fn give_back(&self, ends: Ends, empty: bool) {
        if empty {
            self.shared.idle.lock().push(ends);
        } else {
            // Closing throws away what nobody wants any more.
            drop(ends);
            self.shared.count.fetch_sub(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Disk, OpenOptions, RealDisk};
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    fn file(bytes: &[u8]) -> (tempfile::TempDir, Arc<dyn crate::File>) {
        let dir = tempfile::tempdir().unwrap();
        let disk = RealDisk::open(dir.path()).unwrap();
        let file = disk.open("f", OpenOptions::CREATE).unwrap();
        file.write_at(bytes, 0).unwrap();
        (dir, file)
    }

    /// Bytes would be announced that never come, or others would come, if the count or the order were wrong.
    #[test]
    fn what_a_pipe_holds_arrives() {
        let bytes: Vec<u8> = (0..PIPE_BYTES + 5000).map(|i| (i / 3) as u8).collect();
        let (_dir, file) = file(&bytes);
        let pool = PipePool::new(2);
        let mut pipe = pool.take().expect("a pipe");
        assert_eq!(file.splice_at(&mut pipe, 4096, PIPE_BYTES), Ok(Some(PIPE_BYTES)));
        assert_eq!(pipe.len(), PIPE_BYTES);
        // Cutting the file off no longer changes how much comes.
        file.set_len(0).unwrap();
        let (to, mut from) = UnixStream::pair().unwrap();
        to.set_nonblocking(true).unwrap();
        let reader = std::thread::spawn(move || {
            let mut got = Vec::new();
            from.read_to_end(&mut got).unwrap();
            got
        });
        while !pipe.is_empty() {
            match pipe.send(&to, false) {
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => std::thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        }
        drop(to);
        assert_eq!(reader.join().unwrap(), &bytes[4096..4096 + PIPE_BYTES]);
    }

    /// The end of the file must be told, not hidden.
    #[test]
    fn a_short_file_gives_what_it_has() {
        let (_dir, file) = file(&[7; 10_000]);
        let mut pipe = PipePool::new(1).take().expect("a pipe");
        assert_eq!(file.splice_at(&mut pipe, 4096, 8192), Ok(Some(10_000 - 4096)));
    }

    /// Stale bytes of one answer would go out with the next if a pipe that holds some were used again; without a bound
    /// a server would run out of descriptors.
    #[test]
    fn pipes_are_bounded_and_come_back_empty() {
        let (_dir, file) = file(&[7; 8192]);
        let pool = PipePool::new(1);
        let mut pipe = pool.take().expect("a pipe");
        assert!(pool.take().is_none());
        assert_eq!(file.splice_at(&mut pipe, 0, 8192), Ok(Some(8192)));
        drop(pipe);
        let pipe = pool.take().expect("another");
        assert!(pipe.is_empty());
        drop(pipe);
        assert_eq!(pool.shared.count.load(Relaxed), 1);
        assert!(pool.take().is_some_and(|pipe| pipe.is_empty()));
    }
}
