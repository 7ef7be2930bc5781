//! What concerns a directory with all below it, or the cluster: removing trees, limits, names of volumes.
use crate::error::{Error, Result};
use crate::live::Live;
use crate::metadata::FileKind;
use crate::path::absolute;
use crate::volume::{Place, Volume, place};
use cairn_client::RemotePath;
use cairn_vfs::VfsError;
use std::path::Path;

/// Limits of a directory with all below it, and what is used of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// `None`: no limit.
    pub bytes_max: Option<u64>,
    pub inodes_max: Option<u64>,
    /// Bytes that files below have stored, once each.
    pub bytes_used: u64,
    /// Files, directories and links below.
    pub inodes_used: u64,
}

impl Volume {
    /// Removes a directory with all that is below it: at once where the servers can, or else entry by entry, which may
    /// end half-way.
    pub fn remove_tree(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let at = absolute(path)?.remote;
        if at.path == b"/" {
            let next = "remove what is in it";
            return Err(Error::new(libc::EBUSY, "/", "the root of a volume cannot be removed", next));
        }
        if self.live()?.vfs.options().read_only {
            return Err(Error::of_path(libc::EROFS, path, "the connection is read-only"));
        }
        match self.remove_at_once(path, &at) {
            // Directories of others are below it, or those of other partitions.
            Err(error) if matches!(error.errno, libc::EPERM | libc::EACCES | libc::EXDEV | libc::ENOSYS) => {
                self.remove_each(path, &at)
            }
            outcome => outcome,
        }
    }
    fn remove_at_once(&self, path: &Path, at: &RemotePath) -> Result<()> {
        let live = self.live()?;
        // What was found by name is not a link: a directory that a link leads to is not the link's.
        let volume = live.own_volume();
        live.run_client(path, async { volume.remove_tree(&at.path).await })
    }
    /// Removes what is in a directory, and then the directory. It goes by inodes: whoever may rename what is below
    /// leads nobody elsewhere, by a symbolic link in the place of a directory.
    pub(crate) fn remove_each(&self, path: &Path, at: &RemotePath) -> Result<()> {
        let live = self.live()?;
        live.run(path, async {
            let top = place(live, at).await?;
            let found = live.vfs.lookup(&live.caller, top.parent, &top.name).await?;
            if !found.attr.is_directory() {
                return Err(VfsError::new(libc::ENOTDIR, "it is no directory"));
            }
            remove_below(live, top, found.attr.ino).await
        })
    }
    /// Limits of a directory; `None` if it has none of its own.
    pub fn quota(&self, path: impl AsRef<Path>) -> Result<Option<Quota>> {
        let path = path.as_ref();
        let at = absolute(path)?.remote;
        let inode = self.stat(path)?.inode;
        let live = self.live()?;
        let volume = live.own_volume();
        let found = live.run_client(path, async {
            match volume.quota(inode, &at.path).await? {
                None if at.path == b"/" => volume.quota(0, &at.path).await,
                found => Ok(found),
            }
        })?;
        let limit = |max| (max > 0).then_some(max);
        Ok(found.map(|quota| Quota {
            bytes_max: limit(quota.bytes_max),
            inodes_max: limit(quota.inodes_max),
            bytes_used: quota.bytes_used,
            inodes_used: quota.inodes_used,
        }))
    }
    /// Names of all volumes of the cluster, sorted.
    pub fn volumes(&self) -> Result<Vec<String>> {
        let live = self.live()?;
        let view = live.run_client(Path::new("/"), live.vfs.client().refresh())?;
        let serving = view.volumes.values().filter(|volume| !volume.deleted && volume.trashed_ns == 0);
        let mut names: Vec<String> = serving.map(|volume| volume.name.clone()).collect();
        names.sort_unstable();
        Ok(names)
    }
}

/// Removes a directory, which has that inode, with all that is below it.
async fn remove_below(live: &Live, top: Place, inode: u64) -> std::result::Result<(), VfsError> {
    let (vfs, caller) = (&live.vfs, &live.caller);
    let mut ahead = vec![(top, inode, false)];
    while let Some((at, inode, is_empty)) = ahead.pop() {
        if is_empty {
            gone(vfs.rmdir(caller, at.parent, &at.name).await)?;
            continue;
        }
        ahead.push((at, inode, true));
        let mut after = Some(Vec::new());
        while let Some(from) = after {
            let page = vfs.list(caller, inode, &from).await?;
            for entry in page.entries {
                match FileKind::of_mode(entry.kind) {
                    FileKind::Directory => {
                        ahead.push((Place { parent: inode, name: entry.name }, entry.ino, false));
                    }
                    _ => gone(vfs.unlink(caller, inode, &entry.name).await)?,
                }
            }
            after = page.next;
        }
    }
    Ok(())
}

/// Somebody else may have removed it, or the directory that it was in.
fn gone(outcome: std::result::Result<(), VfsError>) -> std::result::Result<(), VfsError> {
    match outcome {
        Err(error) if matches!(error.errno, libc::ENOENT | libc::ESTALE) => Ok(()),
        outcome => outcome,
    }
}
