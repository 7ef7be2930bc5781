//! `/dev/fuse`: one connection to the kernel, as a file descriptor that processes hand to each other.
//!
//! Invariants owned here: a request is read with one system call and an answer written with one, so that several
//! threads and several processes can use the connection at the same time. Not here: what is in requests (`abi`,
//! `session`).
use crate::abi::header::{InHeader, OutHeader};
use crate::abi::notify::{InvalEntry, InvalInode, NOTIFY_INVAL_ENTRY, NOTIFY_INVAL_INODE, NOTIFY_RESEND};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use zerocopy::IntoBytes;

/// What became of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// So many bytes.
    Request(usize),
    /// A signal came, or the request was taken back: read again.
    Nothing,
    /// The file system is unmounted, or the connection was aborted.
    Ended,
}

/// One connection. Clones are the same descriptor.
#[derive(Clone, Debug)]
pub struct Device {
    fd: Arc<OwnedFd>,
}

impl Device {
    pub fn new(fd: OwnedFd) -> Device {
        Device { fd: Arc::new(fd) }
    }
    /// Opens an unconnected device: mounting connects it.
    pub fn open() -> rustix::io::Result<Device> {
        use rustix::fs::{Mode, OFlags};
        Ok(Device::new(rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?))
    }
    /// A descriptor with a queue of its own for what it read: if its owner dies, these requests fail instead of waiting
    /// for somebody who hands them out again.
    pub fn separate(&self) -> rustix::io::Result<Device> {
        let other = Device::open()?;
        let source = std::os::fd::AsRawFd::as_raw_fd(&self.fd) as u32;
        // SAFETY: FUSE_DEV_IOC_CLONE reads one u32 through its argument, which outlives the call.
        unsafe { rustix::ioctl::ioctl(&other.fd, rustix::ioctl::Setter::<CLONE, u32>::new(source))? };
        Ok(other)
    }
    /// Waits for the next request. Its first bytes go to `head`, the rest to `body`.
    pub fn receive(&self, head: &mut [u8], body: &mut [u8]) -> rustix::io::Result<Received> {
        match rustix::io::readv(&self.fd, &mut [IoSliceMut::new(head), IoSliceMut::new(body)]) {
            Ok(count) if count >= size_of::<InHeader>() => Ok(Received::Request(count)),
            Ok(_) | Err(Errno::NODEV | Errno::CONNABORTED) => Ok(Received::Ended),
            Err(Errno::INTR | Errno::NOENT | Errno::AGAIN) => Ok(Received::Nothing),
            Err(error) => Err(error),
        }
    }
    /// Whether a request is there within the time. An ended connection counts as one.
    pub fn wait(&self, at_most: Duration) -> bool {
        let mut fds = [PollFd::new(&*self.fd, PollFlags::IN)];
        let limit = Timespec { tv_sec: at_most.as_secs() as i64, tv_nsec: i64::from(at_most.subsec_nanos()) };
        matches!(rustix::event::poll(&mut fds, Some(&limit)), Ok(ready) if ready > 0)
    }
    /// Whether the file system is unmounted or the connection aborted.
    pub fn is_ended(&self) -> bool {
        let mut fds = [PollFd::new(&*self.fd, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(rustix::event::poll(&mut fds, Some(&now)), Ok(n) if n > 0)
            && fds[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
    }
    /// Answers with an error, 0 for success without anything to say. False if nobody waits for it any more.
    pub fn answer_error(&self, unique: u64, errno: i32) -> bool {
        self.send(unique, -errno, &[])
    }
    /// Answers with parts of data. False if nobody waits for it any more, or the kernel did not take it.
    pub fn answer(&self, unique: u64, parts: &[&[u8]]) -> bool {
        self.send(unique, 0, parts)
    }
    fn send(&self, unique: u64, error: i32, parts: &[&[u8]]) -> bool {
        let len = size_of::<OutHeader>() + parts.iter().map(|part| part.len()).sum::<usize>();
        let header = OutHeader { len: len as u32, error, unique };
        match self.write(&header, parts) {
            // The caller was killed and the request taken back, or the file system was unmounted meanwhile.
            Ok(()) => return true,
            Err(Errno::NOENT | Errno::NODEV | Errno::CONNABORTED) => {}
            Err(why) if error == 0 => {
                tracing::error!(unique, len, %why, "the kernel refused an answer; EIO is sent instead");
                let header = OutHeader { len: size_of::<OutHeader>() as u32, error: -libc::EIO, unique };
                let _told_as_well_as_possible = self.write(&header, &[]);
            }
            Err(why) => tracing::error!(unique, error, %why, "the kernel refused an answer"),
        }
        false
    }
    fn write(&self, header: &OutHeader, parts: &[&[u8]]) -> rustix::io::Result<()> {
        let mut slices: Vec<IoSlice<'_>> = Vec::with_capacity(1 + parts.len());
        slices.push(IoSlice::new(header.as_bytes()));
        slices.extend(parts.iter().map(|part| IoSlice::new(part)));
        rustix::io::writev(&self.fd, &slices).map(|_| ())
    }
    fn notify(&self, code: i32, parts: &[&[u8]]) -> rustix::io::Result<()> {
        let len = size_of::<OutHeader>() + parts.iter().map(|part| part.len()).sum::<usize>();
        self.write(&OutHeader { len: len as u32, error: code, unique: 0 }, parts)
    }
    /// Drops attributes and, from `offset` on (negative: none), pages of an inode. Waits for reads of these pages, so
    /// it must not be called where requests are answered.
    pub fn invalidate_inode(&self, ino: u64, off: i64, len: i64) -> rustix::io::Result<()> {
        self.notify(NOTIFY_INVAL_INODE, &[InvalInode { ino, off, len }.as_bytes()])
    }
    /// Drops a name. Waits for operations in the directory, so it must not be called where requests are answered.
    pub fn invalidate_entry(&self, parent: u64, name: &[u8]) -> rustix::io::Result<()> {
        let head = InvalEntry { parent, namelen: name.len() as u32, flags: 0 };
        self.notify(NOTIFY_INVAL_ENTRY, &[head.as_bytes(), name, &[0]])
    }
    /// Hands out again what was read through this descriptor (in any process) and not answered. Whoever reads from it
    /// meanwhile gets what it has under way a second time, and answers to the first are not heard.
    pub fn resend(&self) -> rustix::io::Result<()> {
        self.notify(NOTIFY_RESEND, &[])
    }
}

/// `FUSE_DEV_IOC_CLONE`, `_IOR(229, 0, u32)`.
const CLONE: rustix::ioctl::Opcode = rustix::ioctl::opcode::read::<u32>(229, 0);

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
