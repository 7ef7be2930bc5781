//! Moving an entry. Errors name the path that they are about: what is in the way is the target's.
use crate::error::{Error, Result};
use crate::path::absolute;
use crate::volume::{Place, Rename, Volume, place};
use cairn_vfs::VfsError;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

impl Volume {
    /// Moves an entry; atomic.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>, how: Rename) -> Result<()> {
        let (from, to) = (from.as_ref(), to.as_ref());
        let (source, target) = (absolute(from)?, absolute(to)?);
        let flags = match how {
            Rename::Replace => 0,
            Rename::NoReplace => libc::RENAME_NOREPLACE,
            Rename::Exchange => libc::RENAME_EXCHANGE,
        };
        let same = source.remote.parent().path == target.remote.parent().path && !target.remote.name().is_empty();
        // One directory is looked up once.
        let other = match same {
            true => None,
            false => Some(self.walk(to, async |live| place(live, &target.remote).await)?),
        };
        let asked = AtomicBool::new(false);
        let outcome = self.walk(from, async |live| {
            asked.store(false, Relaxed);
            let Place { parent, name } = place(live, &source.remote).await?;
            if source.of_directory || target.of_directory {
                let found = live.vfs.find(&live.caller, &source.remote.path, false).await?;
                if !found.is_directory() {
                    return Err(VfsError::new(libc::ENOTDIR, "it is no directory; leave out the / at the end"));
                }
            }
            let to = other.as_ref().map_or((parent, target.remote.name()), |other| (other.parent, &other.name[..]));
            asked.store(true, Relaxed);
            live.vfs.rename(&live.caller, (parent, &name), to, flags).await
        });
        let in_the_way = [libc::EEXIST, libc::ENOTEMPTY, libc::EISDIR, libc::ENOTDIR];
        outcome.map_err(|error| match asked.load(Relaxed) && in_the_way.contains(&error.errno) {
            true => Error { what: to.to_string_lossy().into_owned(), ..error },
            false => error,
        })
    }
}
