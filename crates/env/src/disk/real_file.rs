//! [`RealFile`]: an open file of the machine, buffered or direct.
//!
//! Invariants: interrupted and short transfers are continued, so a call moves all bytes, reaches the end of the
//! file, or fails; misaligned direct I/O is refused here on every file system alike (not only where the kernel
//! happens to need 4096). Not here: names and directories (`real.rs`).

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags};

use super::error::{DiskError, DiskOp};
use super::real::{FILE_MODE, failed, retry};
use super::{File, OpenOptions};
use crate::buf::BUF_ALIGN;
use crate::pipe::Pipe;

/// Slices handed to the kernel in one call (`IOV_MAX`).
const IOV_MAX: usize = 1024;
/// `RWF_DONTCACHE`: what a read brings into the page cache leaves it with the read.
const DONTCACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);

#[derive(Debug)]
pub(super) struct RealFile {
    fd: OwnedFd,
    path: String,
    direct: bool,
}

/// Opens `path` below `root`.
pub(super) fn open_file(root: BorrowedFd<'_>, path: &str, options: OpenOptions) -> Result<RealFile, DiskError> {
    if let Some(reason) = options.flaw() {
        return Err(DiskError::BadUse { path: path.into(), reason });
    }
    let access = match (options.read, options.write) {
        (true, true) => OFlags::RDWR,
        (false, true) => OFlags::WRONLY,
        _ => OFlags::RDONLY,
    };
    let mut flags = access | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    flags.set(OFlags::CREATE, options.create || options.create_new);
    flags.set(OFlags::EXCL, options.create_new);
    let to_error = |errno| failed(DiskOp::Open, path)(errno);
    let fd = retry(|| rustix::fs::openat(root, path, flags, Mode::from_raw_mode(FILE_MODE))).map_err(to_error)?;
    let about = rustix::fs::fstat(&fd).map_err(to_error)?;
    if rustix::fs::FileType::from_raw_mode(about.st_mode) == rustix::fs::FileType::Directory {
        return Err(DiskError::IsDirectory { path: path.into() });
    }
    let direct = options.direct && make_direct(&fd, access).map_err(to_error)?;
    Ok(RealFile { fd, path: path.into(), direct })
}

/// Switches an open file to direct I/O; `false` where the file system has none, or needs coarser alignment than our
/// buffers have. Done after opening because an `O_DIRECT` open that fails may leave a created file behind.
fn make_direct(fd: &OwnedFd, access: OFlags) -> Result<bool, Errno> {
    match retry(|| rustix::fs::fcntl_setfl(fd, access | OFlags::DIRECT)) {
        Ok(()) => {}
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(false),
        Err(errno) => return Err(errno),
    }
    let wanted = rustix::fs::StatxFlags::DIOALIGN;
    let fine = match rustix::fs::statx(fd, "", rustix::fs::AtFlags::EMPTY_PATH, wanted) {
        Ok(about) if about.stx_mask & wanted.bits() != 0 => {
            let fits = |align: u32| align as usize <= BUF_ALIGN;
            about.stx_dio_offset_align > 0 && fits(about.stx_dio_offset_align) && fits(about.stx_dio_mem_align)
        }
        // Kernels before 6.1, and file systems that do not tell: 4096 suffices on all that we know.
        Ok(_) | Err(_) => true,
    };
    if !fine {
        retry(|| rustix::fs::fcntl_setfl(fd, access))?;
    }
    Ok(fine)
}

impl RealFile {
    fn failed(&self, op: DiskOp) -> impl FnOnce(Errno) -> DiskError + '_ {
        failed(op, &self.path)
    }

    /// Refuses direct I/O that is not aligned.
    fn check_aligned(&self, op: DiskOp, memory: &[u8], offset: u64) -> Result<(), DiskError> {
        if !self.direct {
            return Ok(());
        }
        let len = memory.len();
        let aligned = offset.is_multiple_of(BUF_ALIGN as u64)
            && len.is_multiple_of(BUF_ALIGN)
            && (len == 0 || (memory.as_ptr() as usize).is_multiple_of(BUF_ALIGN));
        if aligned { Ok(()) } else { Err(DiskError::Misaligned { path: self.path.clone(), op, offset, len }) }
    }

    /// Reads until all is there or the file ends.
    fn fill(
        &self,
        buf: &mut [u8],
        mut read: impl FnMut(&mut [u8], u64) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        let mut done = 0;
        while done < buf.len() {
            let got = retry(|| read(&mut buf[done..], done as u64))?;
            done += got;
            // A direct read that stops off the grid met the end of the file; going on would be misaligned.
            if got == 0 || (self.direct && !got.is_multiple_of(BUF_ALIGN)) {
                break;
            }
        }
        Ok(done)
    }

    fn write_zero(&self) -> DiskError {
        let kind = std::io::ErrorKind::WriteZero;
        DiskError::Io { path: self.path.clone(), op: DiskOp::Write, kind, errno: None }
    }

    fn fallocate(&self, op: DiskOp, mode: FallocateFlags, offset: u64, len: u64) -> Result<bool, DiskError> {
        if len == 0 {
            return Ok(true);
        }
        match retry(|| rustix::fs::fallocate(&self.fd, mode, offset, len)) {
            Ok(()) => Ok(true),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(false),
            Err(errno) => Err(self.failed(op)(errno)),
        }
    }

    fn stat(&self) -> Result<rustix::fs::Stat, DiskError> {
        retry(|| rustix::fs::fstat(&self.fd)).map_err(self.failed(DiskOp::Stat))
    }
}

impl File for RealFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, DiskError> {
        self.check_aligned(DiskOp::Read, buf, offset)?;
        self.fill(buf, |rest, done| rustix::io::pread(&self.fd, rest, offset + done)).map_err(self.failed(DiskOp::Read))
    }

    fn read_once_at(&self, buf: &mut [u8], offset: u64) -> Result<Option<usize>, DiskError> {
        if self.direct {
            return self.read_at(buf, offset).map(Some);
        }
        let read = |rest: &mut [u8], done| {
            rustix::io::preadv2(&self.fd, &mut [IoSliceMut::new(rest)], offset + done, DONTCACHE)
        };
        match self.fill(buf, read) {
            // Kernels before 6.14, and file systems that cannot.
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(None),
            outcome => outcome.map(Some).map_err(self.failed(DiskOp::Read)),
        }
    }

    fn read_in_memory(&self, buf: &mut [u8], offset: u64) -> Option<()> {
        if self.direct {
            return None;
        }
        let len = buf.len();
        let got = rustix::io::preadv2(&self.fd, &mut [IoSliceMut::new(buf)], offset, ReadWriteFlags::NOWAIT);
        (got == Ok(len)).then_some(())
    }

    fn splice_at(&self, pipe: &mut Pipe, offset: u64, len: usize) -> Result<Option<usize>, DiskError> {
        if self.direct {
            return Ok(None);
        }
        assert!(pipe.is_empty(), "a pipe takes one range at a time");
        match pipe.fill(self.fd.as_fd(), offset, len) {
            // File systems that cannot say so before they took anything.
            Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) if pipe.is_empty() => Ok(None),
            outcome => outcome.map(Some).map_err(self.failed(DiskOp::Read)),
        }
    }

    fn will_need(&self, offset: u64, len: u64) {
        if let Some(len) = std::num::NonZeroU64::new(len).filter(|_| !self.direct) {
            // A hint that is not taken costs time only.
            let _unheard = rustix::fs::fadvise(&self.fd, offset, Some(len), rustix::fs::Advice::WillNeed);
        }
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> Result<(), DiskError> {
        self.check_aligned(DiskOp::Write, buf, offset)?;
        let mut done = 0;
        while done < buf.len() {
            let put = retry(|| rustix::io::pwrite(&self.fd, &buf[done..], offset + done as u64))
                .map_err(self.failed(DiskOp::Write))?;
            if put == 0 {
                return Err(self.write_zero());
            }
            done += put;
        }
        Ok(())
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> Result<(), DiskError> {
        let mut at = offset;
        for buf in bufs {
            self.check_aligned(DiskOp::Write, buf, at)?;
            at += buf.len() as u64;
        }
        let mut slices = bufs.to_vec();
        let mut rest = &mut slices[..];
        let mut at = offset;
        IoSlice::advance_slices(&mut rest, 0);
        while !rest.is_empty() {
            let batch = &rest[..rest.len().min(IOV_MAX)];
            let put = retry(|| rustix::io::pwritev(&self.fd, batch, at)).map_err(self.failed(DiskOp::Write))?;
            if put == 0 {
                return Err(self.write_zero());
            }
            at += put as u64;
            IoSlice::advance_slices(&mut rest, put);
        }
        Ok(())
    }

    fn sync_data(&self) -> Result<(), DiskError> {
        retry(|| rustix::fs::fdatasync(&self.fd)).map_err(self.failed(DiskOp::Sync))
    }

    fn sync_all(&self) -> Result<(), DiskError> {
        retry(|| rustix::fs::fsync(&self.fd)).map_err(self.failed(DiskOp::Sync))
    }

    fn len(&self) -> Result<u64, DiskError> {
        Ok(u64::try_from(self.stat()?.st_size).unwrap_or(0))
    }

    fn set_len(&self, len: u64) -> Result<(), DiskError> {
        retry(|| rustix::fs::ftruncate(&self.fd, len)).map_err(self.failed(DiskOp::SetLen))
    }

    fn allocate(&self, offset: u64, len: u64) -> Result<bool, DiskError> {
        self.fallocate(DiskOp::Allocate, FallocateFlags::KEEP_SIZE, offset, len)
    }

    fn punch_hole(&self, offset: u64, len: u64) -> Result<bool, DiskError> {
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        self.fallocate(DiskOp::PunchHole, mode, offset, len)
    }

    fn allocated_bytes(&self) -> Result<u64, DiskError> {
        // st_blocks counts 512-byte units whatever the block size is.
        Ok(u64::try_from(self.stat()?.st_blocks).unwrap_or(0).saturating_mul(512))
    }

    fn is_direct(&self) -> bool {
        self.direct
    }

    fn path(&self) -> &str {
        &self.path
    }
}
