//! Open files: opening, reading, writing, syncing, closing.
use crate::abi::file::{
    CreateIn, FOPEN_DIRECT_IO, FOPEN_KEEP_CACHE, FOPEN_PARALLEL_DIRECT_WRITES, FSYNC_FDATASYNC, FlushIn, FsyncIn,
    OPEN_KILL_SUIDGID, OpenIn, OpenOut, READ_LOCKOWNER, RELEASE_FLOCK_UNLOCK, ReadIn, ReleaseIn, WRITE_CACHE,
    WRITE_KILL_SUIDGID, WRITE_LOCKOWNER, WriteIn, WriteOut,
};
use crate::abi::opcode::Opcode;
use crate::open_table::{Record, Unsynced};
use crate::session::reply::{Outcome, Reply};
use crate::session::request::Request;
use crate::session::{Session, caller};
use cairn_vfs::{Caller, Entry, Handle, Opened, Place, VfsError};
use rustix::io::Errno;
use std::sync::atomic::Ordering;

impl Session {
    pub(in crate::session) async fn opens(&self, opcode: Opcode, request: &Request) -> Outcome {
        self.close_unanswered(request).await;
        let ino = self.ino(request.header.nodeid);
        match opcode {
            Opcode::Open => {
                let asked: OpenIn = request.arg()?;
                let who = caller::of(&request.header, 0);
                let opened = self.vfs.open(&who, ino, asked.flags as i32).await?;
                self.note_open(&who, ino, opened, asked.flags as i32, request);
                if opened.attributes_changed {
                    // Before the answer: whoever opens it sees the size that others gave it.
                    self.invalidate_attributes(request.header.nodeid);
                }
                if asked.open_flags & OPEN_KILL_SUIDGID != 0 {
                    self.kill_privileges(request, opened.handle).await?;
                }
                Ok(Reply::of(&open_out(opened)))
            }
            Opcode::Create => {
                let asked: CreateIn = request.arg()?;
                let (entry, opened, who) = self.create(request, &asked).await?;
                self.note_open(&who, entry.attr.ino, opened, asked.flags as i32, request);
                Ok(Reply::of_two(&self.entry(&entry), &open_out(opened)))
            }
            Opcode::Tmpfile => {
                let asked: CreateIn = request.arg()?;
                let (who, flags) = (caller::of(&request.header, asked.umask), asked.flags as i32);
                let (entry, opened) = self.vfs.tmpfile(&who, ino, asked.mode, flags).await?;
                self.note_open(&who, entry.attr.ino, opened, flags, request);
                Ok(Reply::of_two(&self.entry(&entry), &open_out(opened)))
            }
            _ => Ok(Reply::Errno(libc::EOPNOTSUPP)),
        }
    }
    async fn create(&self, request: &Request, asked: &CreateIn) -> Result<(Entry, Opened, Caller), VfsError> {
        let (name, who) = (request.name(size_of::<CreateIn>())?, caller::of(&request.header, asked.umask));
        self.check_name(request, name)?;
        let (parent, flags) = (self.ino(request.header.nodeid), asked.flags as i32);
        match self.vfs.create(&who, parent, name, asked.mode, flags).await {
            Ok((entry, opened)) => Ok((entry, opened, who)),
            Err(error) if error.errno == libc::EEXIST && request.is_resent() => {
                let entry = self.made(Opcode::Create, request).await.ok_or(error)?;
                let opened = self.vfs.open(&who, entry.attr.ino, flags & !(libc::O_CREAT | libc::O_EXCL)).await?;
                Ok((entry, opened, who))
            }
            Err(error) => Err(error),
        }
    }
    pub(super) fn note_open(&self, who: &Caller, ino: u64, opened: Opened, flags: i32, request: &Request) {
        let record = Record {
            handle: opened.handle.0,
            ino,
            flags,
            directory: request.header.opcode == Opcode::Opendir as u32,
            uid: who.uid,
            gid: who.gid,
            groups: &who.groups,
            request: request.number(),
        };
        self.table.record(&record);
    }
    /// A worker that died had opened a handle for this request and not told the kernel of it.
    pub(super) async fn close_unanswered(&self, request: &Request) {
        if !request.is_resent() {
            return;
        }
        let Some(handle) = self.table.opened_by(request.number()) else { return };
        let closed = match request.header.opcode == Opcode::Opendir as u32 {
            true => self.vfs.releasedir(Handle(handle)).await,
            false => self.vfs.release(Handle(handle), None).await,
        };
        self.table.forget(handle);
        tracing::info!(handle, ?closed, "a handle that the kernel never heard of is closed");
    }

    pub(in crate::session) async fn read(&self, request: &Request) -> Outcome {
        let asked: ReadIn = request.arg()?;
        if asked.read_flags & READ_LOCKOWNER == 0 {
            self.vfs.fills_pages(Handle(asked.fh))?;
        }
        let parts = self.vfs.read(Handle(asked.fh), asked.offset, asked.size).await?;
        let length: usize = parts.iter().map(|part| part.len()).sum();
        if length > asked.size as usize {
            return Err(VfsError::new(
                libc::EIO,
                format!("{length} bytes were read where {} were asked for", asked.size),
            ));
        }
        self.stats.read_bytes.fetch_add(length as u64, Ordering::Relaxed);
        Ok(Reply::Data(parts))
    }

    pub(in crate::session) async fn write(&self, request: &Request) -> Outcome {
        let asked: WriteIn = request.arg()?;
        if request.data.len() != asked.size as usize {
            let (sent, said) = (request.data.len(), asked.size);
            return Err(VfsError::new(libc::EIO, format!("the kernel announced {said} bytes and sent {sent}")));
        }
        let handle = Handle(asked.fh);
        if asked.write_flags & WRITE_KILL_SUIDGID != 0 {
            self.kill_privileges(request, handle).await?;
        }
        self.table.mark_dirty(asked.fh);
        let written = self.vfs.write_to(handle, place(&asked), request.data.clone()).await;
        if asked.write_flags & (WRITE_CACHE | WRITE_LOCKOWNER) == WRITE_LOCKOWNER {
            self.drop_pages(request, &asked).await;
        }
        let size = written?;
        self.stats.written_bytes.fetch_add(u64::from(size), Ordering::Relaxed);
        Ok(Reply::of(&WriteOut { size, padding: 0 }))
    }

    /// A write past the kernel's pages is under way. The kernel dropped them before it sent it, and does so again
    /// behind it only if the program waited (not with `io_submit` and `io_uring`, nor with `FOPEN_DIRECT_IO`): a read
    /// in between has filled them with old bytes. Waits for reads of these pages, so it is done where nobody is
    /// answered.
    async fn drop_pages(&self, request: &Request, asked: &WriteIn) {
        // What a worker that died had answered is not known.
        if !request.is_resent() && !self.vfs.may_have_pages(Handle(asked.fh)) {
            return;
        }
        // Whoever appends may have written elsewhere; the page at the end of the file is another one now, too.
        let to_the_end = matches!(place(asked), Place::End(_));
        let length = if to_the_end { 0 } else { i64::from(asked.size) };
        let (device, node, offset) = (self.device.clone(), request.header.nodeid, asked.offset as i64);
        let told = tokio::task::spawn_blocking(move || device.invalidate_inode(node, offset, length)).await;
        match told {
            Ok(Ok(()) | Err(Errno::NOENT | Errno::NODEV | Errno::CONNABORTED)) => {}
            Ok(Err(error)) => tracing::debug!(%error, node, "pages were not dropped behind a direct write"),
            Err(error) => tracing::warn!(%error, node, "pages were not dropped behind a direct write"),
        }
    }

    pub(in crate::session) async fn closes(&self, opcode: Opcode, request: &Request) -> Outcome {
        match opcode {
            Opcode::Flush => {
                let asked: FlushIn = request.arg()?;
                let unsynced = self.table.unsynced(asked.fh);
                self.vfs.flush(Handle(asked.fh), asked.lock_owner).await?;
                self.synced(asked.fh, &unsynced)?;
                // It may be a child that closes its copy of the descriptor, and hears nothing: a sync will say it, too.
                match self.table.is_lost(asked.fh) {
                    true => Ok(Reply::Errno(libc::EIO)),
                    false => Ok(Reply::Done),
                }
            }
            Opcode::Fsync => {
                let asked: FsyncIn = request.arg()?;
                let datasync = asked.fsync_flags & FSYNC_FDATASYNC != 0;
                let unsynced = self.table.unsynced(asked.fh);
                self.vfs.fsync(Handle(asked.fh), datasync).await?;
                self.synced(asked.fh, &unsynced)
            }
            Opcode::Release => {
                let asked: ReleaseIn = request.arg()?;
                let owner = (asked.release_flags & RELEASE_FLOCK_UNLOCK != 0).then_some(asked.lock_owner);
                // Also what no flush gives back: locks of the open file description (F_OFD_SETLK).
                if let Err(error) = self.vfs.unlock_handle(Handle(asked.fh)).await {
                    tracing::warn!(handle = asked.fh, %error, "locks of a closed file may last until the session ends");
                }
                let released = self.vfs.release(Handle(asked.fh), owner).await;
                self.table.forget(asked.fh);
                released.map(|()| Reply::Done)
            }
            _ => self.vfs.syncfs().await.map(|()| Reply::Done),
        }
    }
    /// A worker that died may have had data of this handle: its next sync says so, once.
    fn synced(&self, handle: u64, unsynced: &Unsynced) -> Outcome {
        self.table.mark_clean(unsynced);
        if !self.table.is_lost(handle) {
            return Ok(Reply::Done);
        }
        tracing::warn!(
            handle,
            "data that was not synced when the mount's process died is lost; the program is told (EIO)"
        );
        Ok(Reply::Lost(handle))
    }
}

/// O_APPEND as it is now: fcntl(2) sets it and takes it away. Pages that were mapped go where they lie, through
/// whichever handle.
fn place(asked: &WriteIn) -> Place {
    let appends = asked.write_flags & WRITE_CACHE == 0 && asked.flags & libc::O_APPEND as u32 != 0;
    if appends { Place::End(asked.offset) } else { Place::At(asked.offset) }
}

pub(super) fn open_out(opened: Opened) -> OpenOut {
    let cache = if opened.direct { FOPEN_DIRECT_IO } else { 0 };
    let keep = if opened.keep_cache { FOPEN_KEEP_CACHE } else { 0 };
    OpenOut { fh: opened.handle.0, open_flags: cache | keep | FOPEN_PARALLEL_DIRECT_WRITES, backing_id: 0 }
}
