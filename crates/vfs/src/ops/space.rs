//! Space: fallocate, holes, copies between files, the volume's capacity.
use crate::error::{Result, VfsError};
use crate::status::Space;
use crate::vfs::{Handle, Vfs};
use cairn_wire::meta::PunchRequest;

/// What is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    Data,
    Hole,
}

/// Bytes that are copied at a time.
const COPY_STEP: u64 = 4 << 20;

impl Vfs {
    /// fallocate(2) with its `mode`. Space is not reserved: allocating makes the file longer, no more.
    pub async fn fallocate(&self, handle: Handle, mode: i32, offset: u64, length: u64) -> Result<()> {
        let open = self.inner.handles.file(handle)?;
        let what = format!("inode {}", open.ino);
        let (keep, punch, zero) = (libc::FALLOC_FL_KEEP_SIZE, libc::FALLOC_FL_PUNCH_HOLE, libc::FALLOC_FL_ZERO_RANGE);
        if !open.flags.write {
            return Err(VfsError::new(libc::EBADF, format!("{what} is not open for writing")));
        }
        let Some(end) = offset.checked_add(length).filter(|end| *end <= i64::MAX as u64) else {
            return Err(VfsError::new(libc::EFBIG, format!("{what}: no file is that long")));
        };
        if mode & !(keep | punch | zero) != 0 || mode & punch != 0 && mode & (keep | zero) != keep {
            return Err(VfsError::new(libc::EOPNOTSUPP, format!("{what}: fallocate mode {mode:#x} is not supported")));
        }
        let volume = self.inner.as_user(&open.caller);
        let work = async move {
            let mut file = open.file.lock().await;
            file.sync().await?;
            let shown_as = format!("inode {}", open.ino).into_bytes();
            if mode & (punch | zero) != 0 {
                let extend = mode & keep == 0;
                let request = PunchRequest { offset, length, extend, ..Default::default() };
                volume.punch(open.ino, &shown_as, request).await?;
            } else if mode & keep == 0 && file.attributes().await?.size < end {
                file.truncate(end).await?;
            }
            Ok(())
        };
        self.inner.change(&what, work).await
    }
    /// The next data or hole from `offset` on; ENXIO beyond the end.
    pub async fn lseek(&self, handle: Handle, offset: u64, what: Seek) -> Result<u64> {
        let open = self.inner.handles.file(handle)?;
        let volume = self.inner.as_user(&open.caller);
        let find = async {
            let mut file = open.file.lock().await;
            file.sync().await?;
            let size = file.attributes().await?.size;
            if offset >= size {
                return Err(VfsError::new(libc::ENXIO, format!("inode {} ends at {size}", open.ino)));
            }
            let mut at = offset;
            for extent in volume.all_extents(open.ino).await? {
                let end = extent.file_offset + extent.length;
                match what {
                    Seek::Data if end > at => return Ok(at.max(extent.file_offset)),
                    Seek::Hole if extent.file_offset <= at && end > at => at = end,
                    _ => {}
                }
            }
            match what {
                Seek::Hole => Ok(at.min(size)),
                Seek::Data => Err(VfsError::new(libc::ENXIO, format!("inode {} has no data behind", open.ino))),
            }
        };
        self.inner.limited("lseek", find).await
    }
    /// Copies between files of the volume without the kernel; returns how much was copied, less only at the end.
    pub async fn copy_file_range(&self, from: (Handle, u64), to: (Handle, u64), length: u64) -> Result<u64> {
        let mut done = 0;
        while done < length {
            let step = (length - done).min(COPY_STEP) as u32;
            let mut at = to.1 + done;
            let parts = self.read(from.0, from.1 + done, step).await?;
            if parts.is_empty() {
                break;
            }
            for part in parts {
                let bytes = part.len() as u64;
                self.write(to.0, at, part).await?;
                at += bytes;
            }
            done = at - to.1;
        }
        Ok(done)
    }
    /// Space of the volume.
    pub async fn statfs(&self) -> Result<Space> {
        let find = async { Ok(self.inner.volume.statfs().await?) };
        let found = self.inner.limited("statfs", find).await?;
        let block = 4096;
        let free: u64 = self
            .inner
            .client
            .view()
            .pgs
            .values()
            .filter(|pg| pg.volume == self.inner.volume.id() && pg.writable)
            .map(|pg| pg.free_bytes)
            .sum();
        let used = found.stored_bytes;
        Ok(Space {
            block_size: block,
            blocks: (used + free) / u64::from(block),
            blocks_free: free / u64::from(block),
            files: found.inodes + (1 << 40),
            files_free: 1 << 40,
            name_max: 255,
        })
    }
}
