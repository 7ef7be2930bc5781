//! Space: fallocate, holes, copies between files, the volume's capacity.
use super::handles::OpenFile;
use super::io::Place;
use crate::error::{Result, VfsError};
use crate::status::Space;
use crate::vfs::{Handle, ROOT, Vfs, now_ns};
use cairn_client::volume_counts::Quota;
use cairn_types::{Layout, Scheme};
use std::collections::BTreeSet;
use std::sync::Arc;

/// What is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    Data,
    Hole,
}

/// Bytes that are copied at a time.
const COPY_STEP: u64 = 4 << 20;
/// Bytes that are read and written by one call, and steps of it; a caller asks again for the rest.
const COPY_MAX: u64 = 256 << 20;
const COPY_TURNS_MAX: u32 = 4096;
/// Shorter holes are copied as zeros where the target may have something.
const HOLE_MIN: u64 = 64 << 10;
/// Unit of what statfs answers.
const BLOCK: u32 = 4096;
/// Inodes that can still be made where no quota limits them: memory does, and that is shared.
const FILES_FREE: u64 = 1 << 32;

impl Vfs {
    /// fallocate(2) with its `mode`. Space is not reserved: allocating makes the file longer, no more. But what does
    /// not fit now is refused; `directories`: those of which the quotas count, besides the volume's.
    pub async fn fallocate(
        &self,
        handle: Handle,
        mode: i32,
        (offset, length): (u64, u64),
        directories: &[u64],
    ) -> Result<()> {
        let open = self.inner.handles.file(handle)?;
        let what = open.what();
        let (keep, punch, zero) = (libc::FALLOC_FL_KEEP_SIZE, libc::FALLOC_FL_PUNCH_HOLE, libc::FALLOC_FL_ZERO_RANGE);
        open.check_write()?;
        let Some(end) = offset.checked_add(length).filter(|end| *end <= i64::MAX as u64) else {
            return Err(VfsError::new(libc::EFBIG, format!("{what}: no file is that long")));
        };
        if mode & !(keep | punch | zero) != 0 || mode & punch != 0 && mode & (keep | zero) != keep {
            return Err(VfsError::new(libc::EOPNOTSUPP, format!("{what}: fallocate mode {mode:#x} is not supported")));
        }
        if mode & (punch | zero) == 0 {
            self.check_fits(&open, length, directories).await?;
        }
        let work = async move {
            let (data, volume) = (&open.file.data, &open.volume);
            if mode & (punch | zero) != 0 {
                data.punch(volume, offset, length, mode & keep == 0).await?;
            } else if mode & keep == 0 && data.attributes().size < end {
                data.extend(volume, end).await?;
            }
            Ok(())
        };
        self.inner.change(&what, work).await
    }
    /// Refuses what is longer than what is free and what the file has already.
    async fn check_fits(&self, open: &OpenFile, length: u64, directories: &[u64]) -> Result<()> {
        let needed = length.saturating_sub(open.file.data.attributes().stored_bytes);
        if needed == 0 {
            return Ok(());
        }
        let (room, disks_free) = self.room(directories).await?;
        if needed <= room.free {
            return Ok(());
        }
        let (errno, whose) = match needed > disks_free {
            true => (libc::ENOSPC, "on the disks"),
            false => (libc::EDQUOT, "in the quota"),
        };
        Err(VfsError::new(errno, format!("{}: {length} bytes do not fit; {} are free {whose}", open.what(), room.free)))
    }
    /// The next data or hole from `offset` on; ENXIO beyond the end.
    pub async fn lseek(&self, handle: Handle, offset: u64, what: Seek) -> Result<u64> {
        let open = self.inner.handles.file(handle)?;
        let find = async {
            if open.file.data.age() > self.inner.options.attr_ttl {
                open.file.data.refresh().await?;
            }
            Ok(open.file.data.seek(offset, what == Seek::Data, u64::MAX).await?)
        };
        let found = self.inner.limited("lseek", find).await?;
        found.ok_or_else(|| VfsError::new(libc::ENXIO, format!("{} has none behind {offset}", open.what())))
    }
    /// Copies between files of the volume without the kernel; returns how much was copied, less at the end of the
    /// source and when there is much to copy. What can be is shared; of the rest holes stay holes.
    pub async fn copy_file_range(&self, from: (Handle, u64), to: (Handle, u64), length: u64) -> Result<u64> {
        let (source, target) = (self.inner.handles.file(from.0)?, self.inner.handles.file(to.0)?);
        source.check_read()?;
        target.check_write()?;
        let overlaps = from.1.abs_diff(to.1) < length;
        if source.ino() == target.ino() && overlaps {
            return Err(VfsError::new(libc::EINVAL, format!("{}: the ranges overlap", source.what())));
        }
        let size = source.file.data.attributes().size;
        let length = length.min(size.saturating_sub(from.1));
        let started = tokio::time::Instant::now();
        let mut done = self.share_range(&source, &target, (from.1, to.1, length)).await?;
        let (mut copied, mut turns) = (0, 0);
        // What is left is for another call: each ends long before its limit.
        let ends_here = |copied, turns| {
            copied >= COPY_MAX || turns >= COPY_TURNS_MAX || started.elapsed() > self.inner.options.timeout / 2
        };
        while done < length && !(turns > 0 && ends_here(copied, turns)) {
            turns += 1;
            let (at, end) = (from.1 + done, from.1 + length);
            let data = self.next(&source, at, Seek::Data, end).await?;
            let hole = data - at;
            let fresh = to.1 + done >= target.file.data.attributes().size;
            if hole > 0 && (fresh || hole >= HOLE_MIN) {
                if !fresh {
                    self.make_hole(&target, to.1 + done, hole).await?;
                }
                done += hole;
                continue;
            }
            let until = match fresh {
                true => self.next(&source, at, Seek::Hole, end).await?,
                false => end,
            };
            let step = (until - at).min(COPY_STEP) as u32;
            let moved = self.copy_step((from.0, at), (to.0, to.1 + done), step).await?;
            if moved == 0 {
                break;
            }
            (done, copied) = (done + moved, copied + moved);
        }
        if target.file.data.attributes().size < to.1 + done {
            let (own, end) = (target.clone(), to.1 + done);
            let extend = async move { Ok(own.file.data.extend(&own.volume, end).await?) };
            self.inner.change(&target.what(), extend).await?;
        }
        Ok(done)
    }
    /// Copies bytes; returns how many, fewer only at the end of the source.
    async fn copy_step(&self, from: (Handle, u64), to: (Handle, u64), length: u32) -> Result<u64> {
        let mut moved = 0;
        for part in self.read(from.0, from.1, length).await? {
            let bytes = part.len() as u64;
            self.write_to(to.0, Place::At(to.1 + moved), part).await?;
            moved += bytes;
        }
        Ok(moved)
    }
    /// A hole instead of zeros, whatever its size.
    async fn make_hole(&self, target: &Arc<OpenFile>, offset: u64, length: u64) -> Result<()> {
        let own = target.clone();
        let punch = async move { Ok(own.file.data.punch(&own.volume, offset, length, false).await?) };
        self.inner.change(&target.what(), punch).await
    }
    /// Lets the target share what it can of the source's range; returns how much from its beginning on that is.
    async fn share_range(
        &self,
        source: &Arc<OpenFile>,
        target: &Arc<OpenFile>,
        (from, to, length): (u64, u64, u64),
    ) -> Result<u64> {
        let mut done = 0;
        while done < length && target.file.data.may_clone(&source.file.data, from + done, to + done, length - done) {
            let (source, own) = (source.clone(), target.clone());
            let range = (from + done, to + done, length - done);
            let share =
                async move { Ok(own.file.data.clone_from(&own.volume, &source.file.data, range, now_ns()).await?) };
            match self.inner.change(&target.what(), share).await? {
                0 => break,
                shared => done += shared,
            }
        }
        if done > 0 {
            self.inner.cache.forget_attributes(target.ino());
        }
        Ok(done)
    }
    /// Where the next data or hole begins, `end` at most.
    async fn next(&self, open: &OpenFile, at: u64, what: Seek, end: u64) -> Result<u64> {
        let find = async { Ok(open.file.data.seek(at, what == Seek::Data, end).await?) };
        Ok(self.inner.limited("copy_file_range", find).await?.unwrap_or(end).min(end))
    }
    /// Space of the volume: its quota if it has one, or what the disks in service have, by the copies of its layout. If
    /// one of these directories has a quota, what that leaves, of the one that leaves the least.
    pub async fn statfs(&self, directories: &[u64]) -> Result<Space> {
        let (room, _) = self.room(directories).await?;
        Ok(Space {
            block_size: BLOCK,
            blocks: (room.used + room.free) / u64::from(BLOCK),
            blocks_free: room.free / u64::from(BLOCK),
            files: room.inodes + room.inodes_free,
            files_free: room.inodes_free,
            name_max: 255,
        })
    }
    /// What is used and free within all limits, and what is free on the disks.
    async fn room(&self, directories: &[u64]) -> Result<(Room, u64)> {
        let inner = &self.inner;
        let find = async {
            let mut quotas = Vec::new();
            for ino in directories.iter().filter(|ino| **ino != ROOT) {
                match inner.volume.quota(*ino, format!("inode {ino}").as_bytes()).await.map_err(VfsError::from) {
                    Ok(quota) => quotas.extend(quota),
                    // It was removed, and is open still.
                    Err(error) if matches!(error.errno, libc::ENOENT | libc::ESTALE) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok((inner.volume.statfs().await?, quotas))
        };
        let (found, quotas) = inner.limited("statfs", find).await?;
        let view = inner.client.view();
        let layout = view.volumes.get(&inner.volume.id()).map_or(0, |volume| volume.layout);
        let copies = Layout::from_bits(layout).map_or(1.0, |layout| overhead(layout.scheme()));
        let mut counted = BTreeSet::new();
        // Disks on one file system share its space.
        let in_service = view.disks.values().filter(|disk| disk.is_in_service());
        let own = in_service.filter(|disk| disk.filesystem == 0 || counted.insert(disk.filesystem));
        // What is kept free is nothing that a program could write.
        let raw: u64 = own.map(|disk| disk.writable_bytes.unwrap_or(disk.free_bytes)).sum();
        let (used, disks_free) = (found.stored_bytes, (raw as f64 / copies) as u64);
        let (total, free) = match found.quota_bytes {
            0 => (used + disks_free, disks_free),
            quota => (quota.max(used), quota.saturating_sub(used).min(disks_free)),
        };
        let files_free = match found.quota_inodes {
            0 => FILES_FREE,
            quota => quota.saturating_sub(found.inodes),
        };
        let volume = Room { used: total - free, free, inodes: found.inodes, inodes_free: files_free };
        Ok((quotas.iter().fold(volume, |room, quota| room.within(quota)), disks_free))
    }
}

/// What is used and what is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Room {
    used: u64,
    free: u64,
    inodes: u64,
    inodes_free: u64,
}

impl Room {
    /// The same below a directory with a quota, as far as it limits more.
    fn within(self, quota: &Quota) -> Room {
        let limited = |used: u64, free: u64, max: u64, own: u64| match max {
            0 => (used, free),
            max if max.saturating_sub(own) > free => (used, free),
            max => (own, max.saturating_sub(own)),
        };
        let (used, free) = limited(self.used, self.free, quota.bytes_max, quota.bytes_used);
        let (inodes, inodes_free) = limited(self.inodes, self.inodes_free, quota.inodes_max, quota.inodes_used);
        Room { used, free, inodes, inodes_free }
    }
}

/// Raw bytes for a byte of a file.
fn overhead(scheme: Scheme) -> f64 {
    match scheme {
        Scheme::Replicated(copies) => f64::from(copies),
        Scheme::Erasure { k, m } => f64::from(k + m) / f64::from(k),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A container would be shown the space of the whole cluster and fail with EDQUOT, or of its quota where the disks
    /// have less.
    #[test]
    fn a_quota_is_shown_where_it_limits() {
        let volume = Room { used: 500, free: 1000, inodes: 70, inodes_free: 1 << 32 };
        let quota =
            |bytes_max, inodes_max| Quota { bytes_max, inodes_max, bytes_used: 30, inodes_used: 4, ..Quota::default() };
        assert_eq!(volume.within(&quota(0, 0)), volume);
        assert_eq!(volume.within(&quota(100, 10)), Room { used: 30, free: 70, inodes: 4, inodes_free: 6 });
        assert_eq!(volume.within(&quota(10, 0)), Room { used: 30, free: 0, ..volume });
        assert_eq!(volume.within(&quota(5000, 0)), volume, "the disks have less");
    }
}
