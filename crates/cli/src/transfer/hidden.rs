//! [`Hidden`]: a place beside a target in which a tree is built, so that it appears under its name whole, by one
//! rename.
//!
//! It is the directory `.NAME.cloning`, for its owner alone, with a file that is locked as long as the session of the
//! builder lives: a second builder is refused, and one that comes after a crash removes what was left. A signal removes
//! it at once (`Context::note_hidden`). Invariants: nothing is removed but what a builder made, so a directory of that
//! name that has anything else in it is left as it is and named; nothing of it is ever under the target's name before
//! it is complete; what is there under that name is never removed.
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::mode::{TYPE_REGULAR, is_directory};
use crate::remote::NamedFor;
use cairn_client::attributes::Attributes;
use cairn_client::changes::{NewFile, SetAttributes};
use cairn_client::locks::{FileLock, LOCK_TO_THE_END, LockFamily, LockMode};
use cairn_client::{RemotePath, RenameMode, Volume};
use cairn_types::ErrorCode;

/// What is built.
const TREE: &[u8] = b"tree";
/// Files with several names, by the inodes that they are copies of.
const LINKS: &[u8] = b"links";
const LOCK: &[u8] = b"lock";
/// So much of the target's name is in the name of the place.
const NAME_MAX: usize = 200;

/// See the module.
pub struct Hidden {
    pub volume: Volume,
    /// The target.
    pub at: RemotePath,
    /// The place.
    place: RemotePath,
    pub inode: u64,
    /// Directory for files with several names.
    pub links: u64,
}

impl Hidden {
    /// Makes the place for a target whose directory is there.
    pub async fn make(context: &Context, volume: &Volume, at: RemotePath) -> Result<Hidden> {
        let shown = &at.name()[..at.name().len().min(NAME_MAX)];
        let place = at.parent().join(&[b".", shown, b".cloning"].concat());
        let made = match volume.mkdir(&place.path, 0o700, 0).await {
            Err(error) if error.code() == Some(ErrorCode::Exists) => existing(volume, &place).await?,
            made => made.map_err(|error| error.named_for(&place))?,
        };
        let mut hidden = Hidden { volume: volume.clone(), at, place, inode: made.inode, links: 0 };
        hidden.lock().await?;
        context.note_hidden(volume.clone(), hidden.place.path.clone());
        hidden.clean().await.map_err(|error| error.named_for(&hidden.place))?;
        hidden.links = volume.mkdir_at(hidden.inode, LINKS, &hidden.place.path, 0o700, 0).await?.inode;
        Ok(hidden)
    }

    /// Held as long as this process lives.
    async fn lock(&self) -> Result<()> {
        let new = NewFile { mode: TYPE_REGULAR | 0o600, ..NewFile::default() };
        let file = self.volume.create_at(self.inode, LOCK, &self.place.path, new).await;
        let file = file.map_err(|error| error.named_for(&self.place))?;
        let (family, mode) = (LockFamily::Flock, LockMode::Write);
        let lock = FileLock { family, mode, owner: 1, start: 0, end: LOCK_TO_THE_END, pid: 0 };
        match self.volume.set_lock(file.inode, &self.place.path, lock).await {
            Err(error) if error.code() == Some(ErrorCode::Locked) => {
                let text = format!(
                    "{}: somebody is building it at this moment (in {}), or was until a minute ago; wait, then repeat",
                    self.at, self.place
                );
                Err(CliError::refused(Exit::InUse, text))
            }
            result => Ok(result.map_err(|error| error.named_for(&self.place))?),
        }
    }

    /// Without what a builder before left, and without what the directory above passes on.
    async fn clean(&self) -> cairn_client::Result<()> {
        take_built(&self.volume, &self.place.path).await?;
        for acl in ["system.posix_acl_default", "system.posix_acl_access"] {
            match self.volume.remove_xattr(self.inode, acl.as_bytes()).await {
                Err(error) if error.code() != Some(ErrorCode::NoAttribute) => return Err(error),
                _ => {}
            }
        }
        let set = SetAttributes { mode: Some(0o700), ..SetAttributes::default() };
        self.volume.setattr(self.inode, &self.place.path, set).await.map(|_| ())
    }

    /// Where the tree is built.
    pub fn tree(&self) -> RemotePath {
        self.place.join(TREE)
    }

    /// Takes back the names by which files with several names were found: nobody is to see one name too many.
    async fn clear_links(&self) -> Result<()> {
        loop {
            let page =
                self.volume.readdir(self.links, &[], false).await.map_err(|error| error.named_for(&self.place))?;
            if page.entries.is_empty() {
                return Ok(());
            }
            for entry in page.entries {
                let taken = self.volume.unlink_at(self.links, &entry.name, &self.place.path).await;
                taken.map_err(|error| error.named_for(&self.place))?;
            }
        }
    }

    /// Puts what was built under its name, where nothing may be.
    pub async fn show(&self, context: &Context) -> Result<()> {
        self.clear_links().await?;
        let shown = self.volume.rename(&self.tree().path, &self.at.path, RenameMode::NoReplace).await;
        self.remove(context).await;
        shown.map_err(|error| error.named_for(&self.at).into())
    }

    /// Puts what was built in the place of what has the name, which is under `beside` from then on. At each moment both
    /// are there.
    pub async fn exchange(&self, context: &Context, beside: &RemotePath) -> Result<()> {
        self.clear_links().await?;
        let moved = self.volume.rename(&self.tree().path, &beside.path, RenameMode::NoReplace).await;
        self.remove(context).await;
        moved.map_err(|error| error.named_for(beside))?;
        self.volume.rename(&beside.path, &self.at.path, RenameMode::Exchange).await.map_err(|error| {
            let text = format!("{} (what was restored is at {beside})", self.at);
            CliError::from(error.named(&text))
        })
    }

    /// What cannot be removed now goes when the same target is built again.
    pub async fn remove(&self, context: &Context) {
        if let Err(error) = take_away(&self.volume, &self.place.path).await {
            tracing::warn!(place = %self.place, %error, "the place of a clone stays; cairn fs rm -r removes it");
        }
        context.forget_hidden(&self.place.path);
    }
}

/// A place that is there: of a builder that lives, or that crashed. Whatever else has the name is somebody's own.
async fn existing(volume: &Volume, place: &RemotePath) -> Result<Attributes> {
    let found = volume.stat(&place.path, false).await.map_err(|error| error.named_for(place))?;
    if is_directory(found.mode) && found.uid == volume.who().uid {
        let page = volume.readdir(found.inode, &[], false).await.map_err(|error| error.named_for(place))?;
        let names: Vec<&[u8]> = page.entries.iter().map(|entry| &entry.name[..]).collect();
        if page.end && is_of_a_builder(&names, found.mode) {
            return Ok(found);
        }
    }
    let text = format!("{place}: it is in the way, and nothing that a clone left; rename or remove it, then repeat");
    Err(CliError::refused(Exit::Exists, text))
}

/// What a builder makes begins with the lock; before that its directory is empty.
fn is_of_a_builder(names: &[&[u8]], mode: u32) -> bool {
    let known = |name: &&[u8]| [LOCK, TREE, LINKS].contains(name);
    let begun = names.contains(&LOCK) || names.is_empty() && mode & 0o777 == 0o700;
    begun && names.iter().all(known)
}

/// Removes a place with what a builder made in it, and nothing else: what others put there keeps it.
pub async fn take_away(volume: &Volume, place: &[u8]) -> cairn_client::Result<()> {
    take_built(volume, place).await?;
    unless_gone(volume.unlink(&[place, b"/", LOCK].concat()).await)?;
    unless_gone(volume.rmdir(place).await)
}

async fn take_built(volume: &Volume, place: &[u8]) -> cairn_client::Result<()> {
    for name in [TREE, LINKS] {
        let path = [place, b"/", name].concat();
        match volume.try_stat(&path, false).await? {
            Some(found) if is_directory(found.mode) => unless_gone(volume.remove_tree(&path).await)?,
            Some(_) => unless_gone(volume.unlink(&path).await)?,
            None => {}
        }
    }
    Ok(())
}

fn unless_gone(done: cairn_client::Result<()>) -> cairn_client::Result<()> {
    match done {
        Err(error) if error.is_not_found() => Ok(()),
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory of a user that happens to have the name would be removed with all that is in it.
    #[test]
    fn only_what_a_builder_left_is_taken() {
        let names = |names: &[&'static str], mode| {
            is_of_a_builder(&names.iter().map(|name| name.as_bytes()).collect::<Vec<_>>(), mode)
        };
        assert!(names(&["lock"], 0o755) && names(&["links", "lock", "tree"], 0o700) && names(&[], 0o40700));
        assert!(!names(&["mine"], 0o700) && !names(&["lock", "mine", "tree"], 0o700) && !names(&["tree"], 0o700));
        assert!(!names(&[], 0o755), "an empty directory that no builder made");
    }
}
