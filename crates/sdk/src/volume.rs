//! A connected volume, by paths.
use crate::directory::Directory;
use crate::error::{Error, Result};
use crate::fence::{Fence, MARK};
use crate::file::File;
use crate::live::Live;
use crate::metadata::{Metadata, SetMetadata, Space};
use crate::of_process::OfProcess;
use crate::options::{ConnectOptions, OpenOptions};
use crate::path::{At, absolute};
use cairn_client::RemotePath;
use cairn_vfs::{Attr, VfsError};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// Somebody else may remove or replace what a path leads to between two steps of a call; then the path is looked up
/// again.
const TRIES: u32 = 8;

/// What renaming does with what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rename {
    Replace,
    /// Refuse with EEXIST.
    NoReplace,
    Exchange,
}

/// A connected volume. Clones share the connection; any number of threads may use it.
///
/// A child made by fork(2) connects anew at its first call, under a session of its own. Files and directories that its
/// parent had open fail there with EBADF.
#[derive(Clone)]
pub struct Volume {
    shared: Arc<Shared>,
}

struct Shared {
    options: ConnectOptions,
    name: String,
    first: Generation,
}

/// The connection of a process, and those of the children that were forked since.
struct Generation {
    live: OfProcess<Arc<Live>>,
    next: OnceLock<Box<Generation>>,
}

impl Generation {
    fn new(live: Live) -> Generation {
        Generation { live: OfProcess::new(Arc::new(live)), next: OnceLock::new() }
    }
}

/// A directory and a name in it.
pub(crate) struct Place {
    pub(crate) parent: u64,
    pub(crate) name: Vec<u8>,
}

impl Volume {
    /// Connects to a volume; "default" is the one that every cluster has.
    pub fn connect(options: &ConnectOptions, name: &str) -> Result<Volume> {
        let first = Generation::new(Live::connect(options, name)?);
        let shared = Shared { options: options.clone(), name: name.to_owned(), first };
        Ok(Volume { shared: Arc::new(shared) })
    }
    /// Writes everything out and ends the session. Clones, files and directories are of no use afterwards.
    pub fn close(&self) -> Result<()> {
        match self.own_live() {
            Some(live) => live.close(),
            // What the parent has is not the child's to close.
            None => Ok(()),
        }
    }
    pub fn name(&self) -> &str {
        &self.shared.name
    }
    fn own_live(&self) -> Option<&Arc<Live>> {
        let mut at = &self.shared.first;
        loop {
            match at.live.get() {
                Some(live) => return Some(live),
                None => at = at.next.get()?,
            }
        }
    }
    /// The connection of this process.
    pub(crate) fn live(&self) -> Result<&Arc<Live>> {
        loop {
            if let Some(live) = self.own_live() {
                live.check_open()?;
                return Ok(live);
            }
            let mut last = &self.shared.first;
            while let Some(next) = last.next.get() {
                last = next;
            }
            let new = Generation::new(Live::connect(&self.shared.options, &self.shared.name)?);
            // Another thread of this process may have been quicker: then its connection is used.
            drop(last.next.set(Box::new(new)));
        }
    }
    /// Does something that takes several steps, again if what a path led to is gone by the next step.
    pub(crate) fn walk<T>(
        &self,
        path: &Path,
        step: impl AsyncFn(&Live) -> std::result::Result<T, VfsError>,
    ) -> Result<T> {
        let live = self.live()?;
        live.run(path, async {
            let mut tries = 1;
            loop {
                match step(live).await {
                    Err(error) if error.errno == libc::ESTALE && tries < TRIES => tries += 1,
                    outcome => return outcome,
                }
            }
        })
    }

    /// What is at a path; a symbolic link at its end is followed.
    pub fn stat(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        self.look(path.as_ref(), true)
    }
    /// The same without following a symbolic link at the end.
    pub fn lstat(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        self.look(path.as_ref(), false)
    }
    fn look(&self, path: &Path, follow: bool) -> Result<Metadata> {
        let at = absolute(path)?;
        self.walk(path, async |live| Ok(Metadata::of(&find(live, &at, follow).await?)))
    }
    /// Whether the process may do what bits of access(2) say: 4 read, 2 write, 1 search or execute.
    pub fn access(&self, path: impl AsRef<Path>, mask: u32) -> Result<()> {
        self.on_inode(path.as_ref(), async |live, inode| live.vfs.access(&live.caller, inode, mask).await)
    }
    /// Opens a directory for listing.
    pub fn open_directory(&self, path: impl AsRef<Path>) -> Result<Directory> {
        let path = path.as_ref();
        let found = self.directory(path)?;
        Ok(Directory::new(self.live()?.clone(), path, found.inode))
    }
    /// Makes a directory. The process's umask is taken off `mode`.
    pub fn make_directory(&self, path: impl AsRef<Path>, mode: u32) -> Result<()> {
        self.make(path.as_ref(), async |live, place| {
            live.vfs.mkdir(&live.caller, place.parent, &place.name, mode).await.map(|_| ())
        })
    }
    /// Makes a directory and all that are missing above it; an existing one is fine.
    pub fn make_directories(&self, path: impl AsRef<Path>, mode: u32) -> Result<()> {
        let path = path.as_ref();
        let mut missing = Vec::new();
        let mut at = absolute(path)?.remote;
        // From below upwards: most of the way is there.
        loop {
            match self.stat(as_path(&at.path)) {
                Ok(found) if found.is_directory() => break,
                Ok(_) => return Err(Error::of_path(libc::ENOTDIR, as_path(&at.path), "it is no directory")),
                Err(error) if error.is_not_found() && at.path != b"/" => {
                    let parent = at.parent();
                    missing.push(std::mem::replace(&mut at, parent));
                }
                Err(error) => return Err(error),
            }
        }
        for made in missing.iter().rev() {
            let made = as_path(&made.path);
            match self.make_directory(made, mode) {
                // Somebody else makes the same.
                Err(error) if error.errno == libc::EEXIST && self.stat(made)?.is_directory() => {}
                outcome => outcome?,
            }
        }
        Ok(())
    }
    /// Removes a name of anything but a directory.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let at = absolute(path)?;
        self.walk(path, async |live| {
            if at.of_directory {
                find(live, &at, true).await?;
                return Err(VfsError::new(libc::EISDIR, "it is a directory; cairn_rmdir removes it if it is empty"));
            }
            let place = place(live, &at.remote).await?;
            live.vfs.unlink(&live.caller, place.parent, &place.name).await
        })
    }
    /// Removes an empty directory.
    pub fn remove_directory(&self, path: impl AsRef<Path>) -> Result<()> {
        self.make(path.as_ref(), async |live, place| live.vfs.rmdir(&live.caller, place.parent, &place.name).await)
    }
    pub fn symlink(&self, target: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<()> {
        let target = target.as_ref().as_os_str().as_bytes();
        self.make_file(path.as_ref(), async |live, place| {
            live.vfs.symlink(&live.caller, place.parent, &place.name, target).await.map(|_| ())
        })
    }
    /// What a symbolic link says.
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        let path = path.as_ref();
        let at = absolute(path)?;
        self.walk(path, async |live| {
            let found = find(live, &at, false).await?;
            match found.is_symlink() {
                true => live.vfs.readlink(&live.caller, found.ino).await,
                false => Err(VfsError::new(libc::EINVAL, "it is no symbolic link")),
            }
        })
    }
    /// Gives an existing file another name.
    pub fn hard_link(&self, existing: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<()> {
        let found = self.lstat(existing)?;
        self.make_file(path.as_ref(), async |live, place| {
            live.vfs.link(&live.caller, found.inode, place.parent, &place.name).await.map(|_| ())
        })
    }
    /// Changes attributes of a file or directory; a symbolic link at the end is followed.
    pub fn set_metadata(&self, path: impl AsRef<Path>, set: SetMetadata) -> Result<Metadata> {
        let path = path.as_ref();
        let at = absolute(path)?;
        self.walk(path, async |live| {
            let found = find(live, &at, true).await?;
            if set.size.is_some() && !found.is_regular() {
                let errno = if found.is_directory() { libc::EISDIR } else { libc::EINVAL };
                return Err(VfsError::new(errno, "only files have a size to set"));
            }
            if set.size.is_some() {
                // By its owner's mode, as of anybody who writes.
                live.vfs.access(&live.caller, found.ino, 2).await?;
            }
            let (found, _) = live.vfs.setattr(&live.caller, found.ino, None, set.for_vfs()).await?;
            Ok(Metadata::of(&found))
        })
    }
    pub fn get_xattr(&self, path: impl AsRef<Path>, name: &[u8]) -> Result<Vec<u8>> {
        self.on_inode(path.as_ref(), async |live, inode| live.vfs.getxattr(&live.caller, inode, name).await)
    }
    /// `flags` of setxattr(2): XATTR_CREATE, XATTR_REPLACE.
    pub fn set_xattr(&self, path: impl AsRef<Path>, name: &[u8], value: &[u8], flags: u32) -> Result<()> {
        let set = async |live: &Live, inode| live.vfs.setxattr(&live.caller, inode, name, value, flags).await;
        self.on_inode(path.as_ref(), set)
    }
    pub fn list_xattrs(&self, path: impl AsRef<Path>) -> Result<Vec<Vec<u8>>> {
        self.on_inode(path.as_ref(), async |live, inode| live.vfs.listxattr(&live.caller, inode).await)
    }
    pub fn remove_xattr(&self, path: impl AsRef<Path>, name: &[u8]) -> Result<()> {
        self.on_inode(path.as_ref(), async |live, inode| live.vfs.removexattr(&live.caller, inode, name).await)
    }
    /// Space for files in the volume.
    pub fn space(&self) -> Result<Space> {
        let found = self.walk(Path::new("/"), async |live| live.vfs.statfs(&[]).await)?;
        let unit = u64::from(found.block_size);
        Ok(Space {
            bytes: found.blocks * unit,
            bytes_free: found.blocks_free * unit,
            files: found.files,
            files_free: found.files_free,
        })
    }
    /// Makes everything that was written durable and visible.
    pub fn sync(&self) -> Result<()> {
        self.walk(Path::new("/"), async |live| live.vfs.syncfs().await)
    }
    /// Opens a file.
    pub fn open(&self, path: impl AsRef<Path>, options: OpenOptions) -> Result<File> {
        let path = path.as_ref();
        let at = absolute(path)?;
        let follow = !options.has(libc::O_NOFOLLOW);
        let (opened, fence) = self.walk(path, async |live| open(live, &at, follow, options).await)?;
        Ok(File::new(self.live()?.clone(), path, opened, options, fence))
    }
    /// Shuts out whoever has a file open as [`fenced`](OpenOptions::fenced) writer: what was reported to them as done
    /// is there when it returns, and nothing of theirs comes later. `mark` is something that no other call for this
    /// file was given.
    pub fn fence(&self, path: impl AsRef<Path>, mark: &[u8]) -> Result<()> {
        let path = path.as_ref();
        let at = absolute(path)?;
        self.walk(path, async |live| {
            let found = find(live, &at, true).await?;
            match found.is_regular() {
                true => live.vfs.shut_out(&live.caller, found.ino, MARK, mark).await,
                false => Err(VfsError::new(libc::EISDIR, "it is no file")),
            }
        })
    }
    /// Opens the file with this number ([`Metadata::inode`]) for reading, whatever its name is by now. ESTALE if it has
    /// none any more.
    pub fn open_inode(&self, inode: u64) -> Result<File> {
        let shown = format!("inode {inode}");
        let path = Path::new(&shown);
        let live = self.live()?;
        let opened = live.run_as_it_is(path, live.vfs.open(&live.caller, inode, libc::O_RDONLY))?;
        Ok(File::new(live.clone(), path, opened.handle, OpenOptions::reading(), None))
    }

    /// Changes the entry that a path names.
    fn make(&self, path: &Path, change: impl AsyncFn(&Live, Place) -> std::result::Result<(), VfsError>) -> Result<()> {
        let at = absolute(path)?;
        self.walk(path, async |live| change(live, place(live, &at.remote).await?).await)
    }
    /// The same of what is no directory.
    fn make_file(
        &self,
        path: &Path,
        change: impl AsyncFn(&Live, Place) -> std::result::Result<(), VfsError>,
    ) -> Result<()> {
        match absolute(path)?.of_directory {
            true => Err(Error::new(
                libc::ENOENT,
                &path.to_string_lossy(),
                "only directories have a / at the end",
                "leave it out",
            )),
            false => self.make(path, change),
        }
    }
    fn on_inode<T>(
        &self,
        path: &Path,
        call: impl AsyncFn(&Live, u64) -> std::result::Result<T, VfsError>,
    ) -> Result<T> {
        let at = absolute(path)?;
        self.walk(path, async |live| call(live, find(live, &at, true).await?.ino).await)
    }
}

pub(crate) fn as_path(bytes: &[u8]) -> &Path {
    Path::new(std::ffi::OsStr::from_bytes(bytes))
}

/// What is at a path.
async fn find(live: &Live, at: &At, follow: bool) -> std::result::Result<Attr, VfsError> {
    let found = live.vfs.find(&live.caller, &at.remote.path, follow || at.of_directory).await?;
    match at.of_directory && !found.is_directory() {
        true => Err(VfsError::new(libc::ENOTDIR, "it is no directory; leave out the / at the end")),
        false => Ok(found),
    }
}

/// The directory that a path's last name is in.
pub(crate) async fn place(live: &Live, at: &RemotePath) -> std::result::Result<Place, VfsError> {
    if at.name().is_empty() {
        return Err(VfsError::new(libc::EBUSY, "the root of a volume cannot be made, removed or renamed"));
    }
    let parent = live.vfs.find(&live.caller, &at.parent().path, true).await?;
    match parent.is_directory() {
        true => Ok(Place { parent: parent.ino, name: at.name().to_vec() }),
        false => Err(VfsError::new(libc::ENOTDIR, "a part of the path before the last is not a directory")),
    }
}

/// A file is open, and what its writer knows of the mark if that one can be shut out.
async fn open(
    live: &Live,
    at: &At,
    follow: bool,
    options: OpenOptions,
) -> std::result::Result<(cairn_vfs::Handle, Option<Fence>), VfsError> {
    let (handle, made) = open_or_make(live, at, follow, options).await?;
    if !options.fenced {
        return Ok((handle, None));
    }
    match Fence::of(live, handle, made.as_ref()).await {
        Ok(fence) => Ok((handle, Some(fence))),
        Err(error) => {
            // The caller hears of the first error.
            let _closed = live.vfs.release(handle, None).await;
            Err(error)
        }
    }
}

/// The file, and its attributes if it may have been made.
async fn open_or_make(
    live: &Live,
    at: &At,
    follow: bool,
    options: OpenOptions,
) -> std::result::Result<(cairn_vfs::Handle, Option<Attr>), VfsError> {
    let (vfs, caller) = (&live.vfs, &live.caller);
    if options.has(libc::O_TMPFILE) {
        return Err(VfsError::new(libc::EOPNOTSUPP, "files without a name are made through a mount"));
    }
    if options.has(libc::O_CREAT) && (at.of_directory || options.has(libc::O_DIRECTORY)) {
        return Err(VfsError::new(
            libc::EISDIR,
            "a file is to be made, and its name is a directory's; make that with cairn_mkdir",
        ));
    }
    if options.has(libc::O_CREAT) {
        let place = place(live, &at.remote).await?;
        let (parent, name, mode, flags) = (place.parent, &place.name[..], options.mode, options.flags);
        let made = match options.replace {
            true => vfs.create_anew(caller, parent, name, mode, flags).await,
            false => vfs.create(caller, parent, name, mode, flags).await,
        };
        match made {
            // A directory, or a symbolic link, which is followed.
            Err(error) if error.errno == libc::EEXIST && !options.has(libc::O_EXCL) => {}
            made => return made.map(|(entry, opened)| (opened.handle, Some(entry.attr))),
        }
    }
    let found = find(live, at, follow).await?;
    if options.has(libc::O_DIRECTORY) && !found.is_directory() {
        return Err(VfsError::new(libc::ENOTDIR, "it is no directory, as O_DIRECTORY asks"));
    }
    if found.is_directory() {
        return Err(VfsError::new(libc::EISDIR, "it is a directory"));
    }
    if found.is_symlink() {
        return Err(VfsError::new(libc::ELOOP, "it is a symbolic link, which was not to be followed"));
    }
    if !found.is_regular() {
        return Err(VfsError::new(libc::ENXIO, "it is no regular file; only those have contents here"));
    }
    let opened = vfs.open(caller, found.ino, options.flags & !(libc::O_CREAT | libc::O_EXCL)).await?;
    Ok((opened.handle, None))
}
