//! An open file: bytes by offsets, without a position of its own.
use crate::directory::inherited;
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::live::Live;
use crate::metadata::{Metadata, SetMetadata};
use crate::of_process::OfProcess;
use crate::options::OpenOptions;
use bytes::Bytes;
use cairn_vfs::{Handle, VfsError};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes of one step of a read or write: what is on its way at a time is in memory twice.
const STEP: usize = 4 << 20;
/// The same of an append, which goes behind the end in one piece.
const APPEND_STEP: usize = 64 << 20;

/// An open file. Threads may share it.
///
/// What is written is kept in memory for a few seconds at most, and is seen by others after [`flush`](Self::flush),
/// [`sync`](Self::sync) or [`close`](Self::close). Dropping a file closes it as well, but nobody hears if that fails.
pub struct File {
    live: OfProcess<Arc<Live>>,
    path: PathBuf,
    handle: Handle,
    appends: bool,
    closed: AtomicBool,
    fence: Option<Fence>,
}

impl File {
    pub(crate) fn new(
        live: Arc<Live>,
        path: &Path,
        handle: Handle,
        options: OpenOptions,
        fence: Option<Fence>,
    ) -> File {
        let (appends, closed) = (options.has(libc::O_APPEND), AtomicBool::new(false));
        File { live: OfProcess::new(live), path: path.to_owned(), handle, appends, closed, fence }
    }
    /// The path that it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }
    fn live(&self) -> Result<&Live> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::of_path(libc::EBADF, &self.path, "the file was closed"));
        }
        Ok(self.live.get().ok_or_else(|| inherited(&self.path, self.live.pid()))?)
    }
    /// Reads from `offset` on until the buffer is full or the file ends. How many bytes.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let mut done = 0;
        self.read_parts(buffer.len() as u64, offset, |part| {
            buffer[done..done + part.len()].copy_from_slice(part);
            done += part.len();
            Ok(())
        })?;
        Ok(done)
    }
    /// Reads `length` bytes from `offset` on, or to the end of the file, and hands them out in order, as they came and
    /// without a copy. How many bytes.
    pub fn read_parts(&self, length: u64, offset: u64, mut take: impl FnMut(&[u8]) -> Result<()>) -> Result<u64> {
        let live = self.live()?;
        if offset > i64::MAX as u64 {
            return Err(Error::of_path(libc::EINVAL, &self.path, "no file is that long"));
        }
        let mut done = 0;
        while done < length {
            let want = (length - done).min(STEP as u64);
            let read = live.vfs.read(self.handle, offset.saturating_add(done), want as u32);
            let parts = live.run(&self.path, read)?;
            let begin = done;
            for part in &parts {
                take(part)?;
                done += part.len() as u64;
            }
            if done - begin < want {
                break;
            }
        }
        Ok(done)
    }
    /// CRC-32C of the first `length` bytes, or of all if there are fewer, and of how many it is. It reads them.
    pub fn crc32c(&self, length: u64) -> Result<(u32, u64)> {
        let mut sum = 0;
        let read = self.read_parts(length, 0, |part| {
            sum = cairn_types::checksum::crc32c_append(sum, part);
            Ok(())
        })?;
        Ok((sum, read))
    }
    /// Puts what the source has from its beginning on behind the end of this file, which has to be open for writing;
    /// what can be is shared instead of copied. How many bytes. Nobody else may write to either meanwhile.
    pub fn append_from(&self, source: &File) -> Result<u64> {
        let live = self.live()?;
        let _written = self.writing();
        let (begin, length) = (self.metadata()?.size, source.metadata()?.size);
        let mut done = 0;
        while done < length {
            let copy = live.vfs.copy_file_range((source.handle, done), (self.handle, begin + done), length - done);
            match live.run(&self.path, copy)? {
                0 => return Err(Error::of_path(libc::ESTALE, &source.path, "it became shorter while it was copied")),
                copied => done += copied,
            }
        }
        Ok(done)
    }
    /// Writes all of `data`: at `offset`, or behind the end if the file was opened for appending, 64 MiB at a time in
    /// one piece each.
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        let live = self.live()?;
        let _written = self.writing();
        if data.is_empty() {
            return live.run(&self.path, async { live.vfs.write(self.handle, offset, Bytes::new()).await.map(|_| ()) });
        }
        // What is appended in two steps might have something of others in between.
        let step = if self.appends { APPEND_STEP } else { STEP };
        for (number, part) in data.chunks(step).enumerate() {
            let at = offset.checked_add((number * step) as u64);
            let at = at.ok_or_else(|| Error::of_path(libc::EFBIG, &self.path, "no file is that long"))?;
            // A copy: whoever called may change the buffer while it is on its way.
            self.run(live, live.vfs.write(self.handle, at, Bytes::copy_from_slice(part)))?;
        }
        Ok(())
    }
    /// The same with bytes that are given away, which are not copied.
    pub fn write_bytes_at(&self, data: Bytes, offset: u64) -> Result<()> {
        let live = self.live()?;
        if data.len() > APPEND_STEP {
            return self.write_at(&data, offset);
        }
        let _written = self.writing();
        self.run(live, live.vfs.write(self.handle, offset, data)).map(|_| ())
    }
    /// What was written is seen by whoever reads from now on, and durable unless the connection says `close_visible`.
    pub fn flush(&self) -> Result<()> {
        let live = self.live()?;
        self.guarded(live, false, || self.run(live, live.vfs.flush(self.handle, 0)))
    }
    /// What was written is durable and seen by others.
    pub fn sync(&self) -> Result<()> {
        let live = self.live()?;
        self.guarded(live, false, || self.run(live, live.vfs.fsync(self.handle, false)))
    }
    fn guarded(&self, live: &Live, closing: bool, publish: impl FnOnce() -> Result<()>) -> Result<()> {
        match &self.fence {
            Some(fence) => fence.guarded(live, &self.path, closing, publish),
            None => publish(),
        }
    }
    /// Waits for a call that writes. Whoever can be shut out is told so (ESTALE).
    fn run<T>(&self, live: &Live, call: impl Future<Output = std::result::Result<T, VfsError>>) -> Result<T> {
        match self.fence {
            Some(_) => live.run_as_it_is(&self.path, call),
            None => live.run(&self.path, call),
        }
    }
    /// When what it answers goes, something was written.
    fn writing(&self) -> Written<'_> {
        Written(self.fence.as_ref())
    }
    /// What is known of the file, with what was written to it here.
    pub fn metadata(&self) -> Result<Metadata> {
        let live = self.live()?;
        let get = async {
            let inode = live.vfs.inode_of(self.handle)?;
            live.vfs.getattr(&live.caller, inode, Some(self.handle)).await
        };
        live.run(&self.path, get).map(|(found, _)| Metadata::of(&found))
    }
    /// Changes attributes of the file, whatever its name is by now.
    pub fn set_metadata(&self, set: SetMetadata) -> Result<Metadata> {
        let live = self.live()?;
        let change = async {
            let inode = live.vfs.inode_of(self.handle)?;
            live.vfs.setattr(&live.caller, inode, Some(self.handle), set.for_vfs()).await
        };
        live.run(&self.path, change).map(|(found, _)| Metadata::of(&found))
    }
    /// Cuts or lengthens it. It has to be open for writing.
    pub fn set_size(&self, size: u64) -> Result<()> {
        let live = self.live()?;
        // Refused as a write is.
        live.run(&self.path, async { live.vfs.write(self.handle, 0, Bytes::new()).await })?;
        if self.fence.is_some() {
            // Whoever is shut out cuts nothing off that others wrote.
            drop(self.writing());
            self.flush()?;
        }
        self.set_metadata(SetMetadata { size: Some(size), ..SetMetadata::default() }).map(|_| ())
    }
    /// Closes it: what was written is durable, or at least visible with `close_visible`. Errors of writes that nobody
    /// heard of yet come here.
    pub fn close(&self) -> Result<()> {
        let live = self.live()?;
        if self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let flushed = self.guarded(live, true, || self.run(live, live.vfs.flush(self.handle, 0)));
        let released = self.run(live, live.vfs.release(self.handle, None));
        flushed.and(released)
    }
}

/// A write that is under way: also one that failed may have written something.
struct Written<'a>(Option<&'a Fence>);

impl Drop for Written<'_> {
    fn drop(&mut self) {
        if let Some(fence) = self.0 {
            fence.was_written();
        }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let Some(live) = self.live.get() else { return };
        if self.closed.swap(true, Ordering::AcqRel) || live.check_open().is_err() {
            return;
        }
        let (vfs, handle) = (live.vfs.clone(), self.handle);
        live.run_behind(async move {
            // Whoever wants to know closes it.
            let _nobody_hears = vfs.release(handle, None).await;
        });
    }
}
