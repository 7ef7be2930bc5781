//! Opening, closing, syncing.
//!
//! A file is opened by the `Open` call, which checks the permission, revalidates what is cached and brings the first
//! extents, without a log entry. Who may write holds it in the log as well, once for all handles of the mount; that
//! hold outlasts the last handle a little, because many files are opened again soon.
use super::handles::{OpenFile, OpenHandle, unknown};
use crate::attr::{Entry, REGULAR};
use crate::caller::Caller;
use crate::error::{Result, VfsError};
use crate::file::File;
use crate::flags::OpenFlags;
use crate::vfs::{Handle, Inner, Opened, Vfs, named, of_file, shown};
use cairn_client::attributes::Attributes;
use cairn_client::changes::{NewFile, SetAttributes};
use cairn_client::opened::Opened as Answered;
use cairn_client::{ClientError, FileData, Volume};
use cairn_types::ErrorCode;
use std::sync::Arc;

/// Extents that an open brings along.
const EXTENTS_MAX: u32 = 64;

impl Vfs {
    /// Opens a regular file. `flags` of open(2); O_CREAT is [`create`](Self::create). One that has no name is first
    /// answered with ESTALE: another machine may have replaced it, and the kernel looks its name up again. Whoever asks
    /// a second time means this one, which he has open.
    pub async fn open(&self, caller: &Caller, ino: u64, flags: i32) -> Result<Opened> {
        let was_open = self.inner.files.get(ino).is_some();
        let opened = self.open_any(caller, ino, flags).await?;
        let nameless = self.inner.files.get(ino).is_some_and(|file| file.data.attributes().nlink == 0);
        // Whoever does not come through an open file has a handle of the file as it was (open_by_handle_at).
        if !nameless || was_open && self.inner.nameless.is_meant(ino, caller.pid) {
            return Ok(opened);
        }
        self.release(opened.handle, None).await?;
        Err(VfsError::new(libc::ESTALE, format!("inode {ino} has lost its name; look the path up again")))
    }
    /// The same of a file that is known to be meant.
    pub(crate) async fn open_any(&self, caller: &Caller, ino: u64, flags: i32) -> Result<Opened> {
        let decoded = OpenFlags::from_bits(flags);
        let what = format!("inode {ino}");
        if decoded.access() & 2 != 0 {
            self.inner.check_writable(&what)?;
        }
        let (inner, caller) = (self.inner.clone(), caller.clone());
        let open = async move {
            let user = inner.as_user(&caller);
            let told = inner.told(ino);
            let file = inner.open_file(&user, ino, decoded).await?;
            let attributes_changed = told != Some(look_of(&of_file(&file)));
            if decoded.truncate {
                if let Err(error) = file.data.truncate(&user, SetAttributes::to_size(0)).await {
                    inner.close_file(&file).await;
                    return Err(error.into());
                }
                inner.cache.forget_attributes(ino);
            }
            let (keep_cache, changed) = inner.keeps_pages(&file);
            Ok(inner.opened(file, flags, &caller, user, (keep_cache, attributes_changed || changed)))
        };
        let inner = self.inner.clone();
        self.inner.change_or_undo(&what, open, async move |opened: Opened| inner.undo_open(opened.handle).await).await
    }

    /// Makes a regular file and opens it; without O_EXCL an existing one is opened.
    pub async fn create(
        &self,
        caller: &Caller,
        parent: u64,
        name: &[u8],
        mode: u32,
        flags: i32,
    ) -> Result<(Entry, Opened)> {
        self.create_as(caller, (parent, name), mode, flags, false).await
    }
    /// The same; an existing file that the caller may write gives way to the new one, which gets nothing of it. Whoever
    /// has the old one open goes on with that, though it has no name any more.
    pub async fn create_anew(
        &self,
        caller: &Caller,
        parent: u64,
        name: &[u8],
        mode: u32,
        flags: i32,
    ) -> Result<(Entry, Opened)> {
        self.create_as(caller, (parent, name), mode, flags, true).await
    }
    async fn create_as(
        &self,
        caller: &Caller,
        (parent, name): (u64, &[u8]),
        mode: u32,
        flags: i32,
        replace: bool,
    ) -> Result<(Entry, Opened)> {
        let shown_as = named(parent, name);
        let what = shown(&shown_as);
        self.inner.check_writable(&what)?;
        let decoded = OpenFlags::from_bits(flags);
        let (vfs, caller, name) = (self.clone(), caller.clone(), name.to_vec());
        let create = async move {
            let inner = &vfs.inner;
            let user = inner.as_user(&caller);
            let new = NewFile {
                mode: REGULAR | mode & 0o7777,
                exclusive: decoded.exclusive,
                umask: caller.umask,
                hold: true,
                ..NewFile::default()
            };
            let session = user.session_number().await?;
            // Of a file that its owner may not open like this it has to be known who made it: programs lock with that.
            let closed = caller.uid != 0 && (mode & !caller.umask) >> 6 & decoded.access() != decoded.access();
            let (made, there) = match replace {
                true => (vfs.make_anew(&user, (parent, &name), &shown_as, new).await?, false),
                false => make_or_find(&user, (parent, &name), &shown_as, new, closed).await,
            };
            match &made {
                Ok(made) if is_untouched(made) => vfs.gained(parent, &name, made.ctime_ns),
                _ => vfs.changed(parent, &name),
            }
            let made = inner.unless_gone(made.map_err(VfsError::from), &[parent]).await?;
            if !made.is_regular() {
                user.note_held(made.inode).await?;
                user.release_inode(made.inode).await?;
                return Err(VfsError::new(libc::EEXIST, format!("{} is not a regular file", shown(&shown_as))));
            }
            let new = !there && is_untouched(&made) && made.uid == caller.uid;
            if !new && let Err(error) = inner.may_open(&user, made.inode, decoded).await {
                user.note_held(made.inode).await?;
                user.release_inode(made.inode).await?;
                return Err(error);
            }
            if new {
                inner.cache.put_incapable(made.inode, inner.options.attr_ttl);
            }
            let _opening = inner.opening(made.inode).lock().await;
            let opened = Answered::of(made);
            let file = inner.enter(made.inode, &opened)?;
            inner.was_held(&user, &file, session).await?;
            if new {
                file.data.was_made(made.data_version);
            }
            let mut entry = inner.entry(&caller, parent, &name, &made);
            if decoded.truncate && made.size > 0 {
                let cut = match file.data.truncate(&user, SetAttributes::to_size(0)).await {
                    Ok(cut) => cut,
                    Err(error) => {
                        inner.close_entered(&file).await;
                        return Err(error.into());
                    }
                };
                (entry.attr, entry.attr_ttl) = inner.attr(&cut);
            }
            let (keep_cache, _) = inner.keeps_pages(&file);
            // The answer brings the attributes.
            Ok((entry, inner.opened(file, flags, &caller, user, (keep_cache, false))))
        };
        let inner = self.inner.clone();
        let undo = async move |(_, opened): (Entry, Opened)| inner.undo_open(opened.handle).await;
        self.inner.change_or_undo(&what, create, undo).await
    }
    /// Makes a file in the place of the one that is there, if there is one.
    async fn make_anew(
        &self,
        user: &Volume,
        (parent, name): (u64, &[u8]),
        shown_as: &[u8],
        new: NewFile,
    ) -> Result<cairn_client::Result<Attributes>> {
        let made = user.create_at(parent, name, shown_as, NewFile { exclusive: true, ..new }).await;
        if new.exclusive || !made.as_ref().is_err_and(is_there) {
            return Ok(made);
        }
        let there = match user.lookup(parent, name, shown_as).await {
            Err(error) if error.code() == Some(ErrorCode::NotFound) => None,
            there => Some(there?),
        };
        if let Some(there) = there.filter(Attributes::is_regular) {
            self.inner.may_open(user, there.inode, OpenFlags { write: true, ..OpenFlags::default() }).await?;
        }
        let made = user.create_at(parent, name, shown_as, NewFile { replace: true, ..new }).await;
        if let Some(there) = there {
            // It has lost a name.
            self.forget_attributes(there.inode);
        }
        Ok(made)
    }
    /// A file without a name in the directory, as by O_TMPFILE.
    pub async fn tmpfile(&self, caller: &Caller, parent: u64, mode: u32, flags: i32) -> Result<(Entry, Opened)> {
        let what = format!("a file without a name in inode {parent}");
        self.inner.check_writable(&what)?;
        let (inner, caller) = (self.inner.clone(), caller.clone());
        let make = async move {
            let user = inner.as_user(&caller);
            let session = user.session_number().await?;
            let made = user.create_unnamed_at(parent, REGULAR | mode & 0o7777, caller.umask, 0).await;
            let made = inner.unless_gone(made.map_err(VfsError::from), &[parent]).await?;
            let opened = Answered::of(made);
            let file = inner.enter(made.inode, &opened)?;
            file.set_held(session);
            let (attr, attr_ttl) = inner.attr(&made);
            let entry = Entry { attr, entry_ttl: inner.options.entry_ttl, attr_ttl };
            Ok((entry, inner.opened(file, flags, &caller, user, (false, false))))
        };
        let inner = self.inner.clone();
        let undo = async move |(_, opened): (Entry, Opened)| inner.undo_open(opened.handle).await;
        self.inner.change_or_undo(&what, make, undo).await
    }

    /// A handle's descriptor is closed: what was written becomes visible, and durable unless that is left to the
    /// background; errors of earlier writes come here.
    pub async fn flush(&self, handle: Handle, lock_owner: u64) -> Result<()> {
        let open = self.inner.handles.file(handle)?;
        let data = &open.file.data;
        let flushed = match data.is_settled() || !open.flags.write && !data.has_later() {
            true => Ok(()),
            false => {
                let (file, show) = (open.file.clone(), self.inner.options.close_visible);
                self.inner.change(&open.what(), async move { file.finish(show).await }).await
            }
        };
        let unlocked = self.unlock_owner(&open, lock_owner, false).await;
        flushed.and(unlocked)
    }
    /// Makes what was written durable and visible to other mounts.
    pub async fn fsync(&self, handle: Handle, _datasync: bool) -> Result<()> {
        let open = self.inner.handles.file(handle)?;
        if !open.file.data.is_durable() {
            let file = open.file.clone();
            self.inner.change(&open.what(), async move { file.sync().await }).await?;
        }
        self.inner.commit(&open.what(), open.ino()).await
    }
    /// The last descriptor of a handle is gone. `flock_owner`: its flock(2) locks end.
    pub async fn release(&self, handle: Handle, flock_owner: Option<u64>) -> Result<()> {
        let Some(OpenHandle::File(open)) = self.inner.handles.remove(handle) else { return Err(unknown(handle)) };
        if let Some(owner) = flock_owner {
            // The session's end is the last resort.
            self.unlock_owner(&open, owner, true).await.unwrap_or_else(|error| tracing::warn!(%error, "unlocking"));
        }
        let inner = self.inner.clone();
        let file = open.file.clone();
        let close = async move {
            // What is dirty here was written after the last flush, through a mapping; or it could not be written.
            let flushed = if file.data.is_settled() { Ok(()) } else { file.finish(inner.options.close_visible).await };
            inner.close_file(&file).await;
            flushed
        };
        self.inner.change_here(&open.what(), close).await
    }
}

impl Inner {
    /// Opens a file for one more handle.
    async fn open_file(&self, user: &Volume, ino: u64, flags: OpenFlags) -> Result<Arc<File>> {
        let _opening = self.opening(ino).lock().await;
        let session = user.session_number().await?;
        let writes = flags.access() & 2 != 0;
        let shown_as = format!("inode {ino}");
        let present = self.files.get(ino);
        if let Some(file) = &present {
            // The permission is asked of the servers.
            file.data.send_later().await?;
        }
        let lingers = self.background.take_lingering(ino) == Some(session);
        self.background.wait_released(ino).await;
        let held = lingers || present.as_ref().is_some_and(|file| file.held() == session);
        let opened = if flags.access() == 2 && !held && present.is_none() {
            // Holding it says all that is asked: only a writer's size and version.
            return self.enter_held(user, ino, session).await;
        } else {
            user.open_for_read(ino, flags.access(), EXTENTS_MAX).await
        };
        let version = opened.as_ref().ok().map(|opened| opened.attributes.data_version);
        let entered = self.enter_opened(user, ino, flags.access(), opened.map_err(VfsError::from), session).await;
        let file = match entered {
            Ok(file) => file,
            Err(error) => {
                if lingers {
                    self.background.linger(ino, session);
                }
                return Err(error);
            }
        };
        if lingers {
            file.set_held(session);
        }
        if version.is_some_and(|version| file.data.data_version() < version)
            && let Err(error) = file.data.refresh().await
        {
            self.close_entered(&file).await;
            return Err(error.into());
        }
        if writes && !held {
            if let Err(error) = user.hold_inode(ino, shown_as.as_bytes(), true).await {
                self.close_entered(&file).await;
                return Err(error.into());
            }
            file.set_held(session);
        }
        Ok(file)
    }
    /// Whether a file that somebody else made may be opened like this: who makes it holds it whatever its mode is.
    async fn may_open(&self, user: &Volume, ino: u64, flags: OpenFlags) -> Result<()> {
        if let Some(file) = self.files.get(ino) {
            file.data.send_later().await?;
        }
        Ok(user.access_inode(ino, flags.access()).await?)
    }
    /// Holds a file and enters it.
    async fn enter_held(&self, user: &Volume, ino: u64, session: u64) -> Result<Arc<File>> {
        let attributes = user.hold_inode(ino, format!("inode {ino}").as_bytes(), true).await?;
        check_regular(&attributes)?;
        let opened = Answered::of(attributes);
        let file = self.enter(ino, &opened)?;
        file.set_held(session);
        Ok(file)
    }
    /// Enters a file that has no name any more and is kept by the session of a worker before this one, until that is
    /// ended.
    pub(crate) async fn take_over_unnamed(&self, caller: &Caller, ino: u64, flags: i32) -> Result<Opened> {
        let user = self.as_user(caller);
        let session = user.session_number().await?;
        let _opening = self.opening(ino).lock().await;
        let file = self.enter_held(&user, ino, session).await?;
        let (keep_cache, changed) = self.keeps_pages(&file);
        Ok(self.opened(file, flags, caller, user, (keep_cache, changed)))
    }
    /// A handle of a file that was entered for it.
    fn opened(&self, file: Arc<File>, flags: i32, caller: &Caller, user: Volume, known: (bool, bool)) -> Opened {
        let (keep_cache, attributes_changed) = known;
        let open = OpenFile::new(file, flags, caller, user);
        let decoded = OpenFlags::from_bits(flags);
        let handle = self.handles.add(OpenHandle::File(Arc::new(open)));
        Opened { handle, keep_cache: keep_cache && !decoded.direct, direct: decoded.past_pages(), attributes_changed }
    }
    /// What the kernel was last told of a file, as far as it may still believe it.
    fn told(&self, ino: u64) -> Option<Look> {
        match self.files.get(ino) {
            Some(file) => Some(look_of(&of_file(&file))),
            None => self.cache.attributes(ino).map(|(attributes, _)| look_of(&attributes)),
        }
    }
    async fn enter_opened(
        &self,
        user: &Volume,
        ino: u64,
        access: u32,
        opened: Result<Answered>,
        session: u64,
    ) -> Result<Arc<File>> {
        let opened = match opened {
            Err(error) if matches!(error.errno, libc::ENOENT | libc::ESTALE) => {
                // It has no name any more, but a handle of this mount keeps it alive.
                user.access_inode(ino, access).await?;
                let file = self.files.join(ino).ok_or(error)?;
                file.data.lost_name();
                return Ok(file);
            }
            opened => opened?,
        };
        match check_regular(&opened.attributes).and_then(|()| self.enter(ino, &opened)) {
            // One open for all handles.
            Ok(file) if file.soft() == session => user.close_for_read(ino).await.map(|()| file).map_err(VfsError::from),
            Ok(file) => {
                file.set_soft(session);
                Ok(file)
            }
            Err(error) => {
                user.close_for_read(ino).await?;
                Err(error)
            }
        }
    }
    /// The file with one handle more.
    fn enter(&self, ino: u64, opened: &Answered) -> Result<Arc<File>> {
        if let Some(file) = self.files.join(ino) {
            file.data.reopened(opened);
            return Ok(file);
        }
        let shown_as = format!("inode {ino}");
        let data = FileData::new(&self.volume, shown_as.as_bytes(), opened, self.budget.clone())?;
        let file = self.files.join_or(File::new(ino, data));
        // From now on they are the file's own.
        self.cache.forget_attributes(ino);
        Ok(file)
    }
    /// A create held the file, once more than is needed if it was held already.
    async fn was_held(&self, user: &Volume, file: &Arc<File>, session: u64) -> Result<()> {
        let lingering = self.background.take_lingering(file.ino) == Some(session);
        if file.held() != session && !lingering {
            user.note_held(file.ino).await?;
        }
        file.set_held(session);
        Ok(())
    }
    /// Whether the kernel's pages of a file are of the version that it is at; from now on they are. And whether others
    /// had changed the file since this was asked last.
    fn keeps_pages(&self, file: &Arc<File>) -> (bool, bool) {
        let changed = file.was_changed();
        let version = file.data.data_version();
        let shared = file.is_shared() && self.cache.pages(file.ino).is_some();
        let before = self.cache.pages_are_of(file.ino, version);
        (!changed && (shared || before == Some(version)), changed)
    }
    /// Whoever asked for the handle is gone.
    async fn undo_open(&self, handle: Handle) {
        if let Some(OpenHandle::File(open)) = self.handles.remove(handle) {
            open.file.pages_are_old();
            self.close_file(&open.file).await;
        }
    }
    /// One handle less.
    pub(crate) async fn close_file(&self, file: &Arc<File>) {
        let _opening = self.opening(file.ino).lock().await;
        self.close_entered(file).await;
    }
    /// One handle less, under the lock of opening.
    async fn close_entered(&self, file: &Arc<File>) {
        if !file.is_shared() {
            // Kernels close behind the program, which may set attributes by the name meanwhile.
            file.data.end_later();
            if let Err(error) = file.data.send_later().await {
                tracing::error!(inode = file.ino, %error, "what was set of a file is lost");
            }
        }
        if !self.files.leave(file, &self.cache) {
            return;
        }
        file.data.drop_ahead();
        end_lease(file);
        let clean = file.data.is_clean();
        if clean {
            // What somebody else learned since it left the table is newer, and stays.
            let attributes = of_file(file);
            self.cache.put_attributes(&attributes, self.options.attr_ttl.saturating_sub(file.data.age()));
        } else {
            // Its size is one that the file never got.
            tracing::error!(inode = file.ino, "a file was closed with data that could not be written; it is lost");
        }
        self.atimes.note(file.ino, file.take_atime());
        let session = self.volume.session_number().await.unwrap_or_default();
        if file.soft() == session
            && let Err(error) = self.volume.close_for_read(file.ino).await
        {
            tracing::debug!(inode = file.ino, %error, "a closed file is released with the session");
        }
        if file.held() == session {
            self.background.linger(file.ino, session);
        }
    }
}

/// Makes a file, or answers the one that is there. `closed`: it has to be known for certain which. Whether it was
/// there, as far as that is known.
async fn make_or_find(
    user: &Volume,
    (parent, name): (u64, &[u8]),
    shown_as: &[u8],
    new: NewFile,
    closed: bool,
) -> (cairn_client::Result<Attributes>, bool) {
    let first = NewFile { exclusive: new.exclusive || closed, ..new };
    let made = user.create_at(parent, name, shown_as, first).await;
    match closed && !new.exclusive && made.as_ref().is_err_and(is_there) {
        true => (user.create_at(parent, name, shown_as, new).await, true),
        false => (made, false),
    }
}

/// What tells two states of a file apart: its size and its times of modification and change.
type Look = (u64, i64, i64);

fn look_of(attributes: &Attributes) -> Look {
    (attributes.size, attributes.mtime_ns, attributes.ctime_ns)
}

/// Gives the lease for overwriting in place back, if there is one; it is not waited for.
pub(crate) fn end_lease(file: &Arc<File>) {
    if !file.data.has_lease() {
        return;
    }
    let file = file.clone();
    tokio::spawn(async move {
        if let Err(error) = file.data.end_lease().await {
            tracing::debug!(inode = file.ino, %error, "the overwrite lease goes with the hold or the session");
        }
    });
}

fn check_regular(attributes: &Attributes) -> Result<()> {
    match attributes.is_regular() {
        true => Ok(()),
        false => Err(VfsError::new(libc::EINVAL, format!("inode {} is not a regular file", attributes.inode))),
    }
}

fn is_there(error: &ClientError) -> bool {
    error.code() == Some(ErrorCode::Exists)
}

/// Nothing was set or written since it was made: by the same log entry, or by another one a moment ago.
fn is_untouched(made: &Attributes) -> bool {
    made.btime_ns == made.ctime_ns
}
