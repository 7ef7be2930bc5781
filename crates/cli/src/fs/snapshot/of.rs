//! [`Of`]: what an operand of `cairn fs snapshot` is about, a volume or one of its directories, and which of several
//! snapshots is meant.
use crate::at_snapshot::is_inside;
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::fs::quota::paths_of;
use crate::mode::is_directory;
use crate::output::printable;
use crate::remote::NamedFor;
use cairn_client::snapshot::Snapshot;
use cairn_client::{RemotePath, Volume};
use cairn_types::InodeId;
use std::collections::BTreeMap;
use std::ffi::OsStr;

/// See the module.
pub struct Of {
    pub at: RemotePath,
    pub volume: Volume,
    /// Inode; 0: the volume.
    pub directory: u64,
}

/// A directory as a person reads it.
pub fn shown(directory: u64, path: Option<&Vec<u8>>) -> String {
    match path {
        Some(path) => printable(&String::from_utf8_lossy(path), false),
        None => format!("a removed directory (inode {directory})"),
    }
}

impl Of {
    pub async fn find(context: &Context, path: &OsStr) -> Result<Of> {
        let at = context.remote(path)?;
        let volume = context.volume(&at).await?;
        if at.path == b"/" {
            return Ok(Of { at, volume, directory: 0 });
        }
        let found = volume.stat(&at.path, true).await.map_err(|error| error.named_for(&at))?;
        if is_inside(&at, &found) {
            let text = format!("{at} is a directory as it was; snapshots are of directories as they are now");
            return Err(CliError::usage(text));
        }
        if !is_directory(found.mode) {
            let text = format!("{at} is no directory; take a snapshot of {}, or clone the file", at.parent());
            return Err(CliError::usage(text));
        }
        let directory = if found.inode == InodeId::ROOT.0 { 0 } else { found.inode };
        Ok(Of { at, volume, directory })
    }

    /// Paths of directories that are there, by their inodes; that of 0 is the root's.
    pub async fn paths(&self, directories: impl Iterator<Item = u64>) -> Result<BTreeMap<u64, Vec<u8>>> {
        let directories: std::collections::BTreeSet<u64> = directories.filter(|directory| *directory != 0).collect();
        let found = paths_of(&self.volume, directories.into_iter()).await;
        let mut paths = found.map_err(|error| CliError::from(error.named_for(&self.at)))?;
        paths.insert(0, b"/".to_vec());
        Ok(paths)
    }

    /// The snapshot of a name: of this directory; or of the volume; or, where the volume has none, the only one of a
    /// directory.
    pub async fn one(&self, name: &[u8], number: Option<u64>) -> Result<Snapshot> {
        let all = self.volume.snapshots().await.map_err(|error| CliError::from(error.named_for(&self.at)))?;
        let is_it =
            |one: &Snapshot| !one.deleting && one.name == name && number.is_none_or(|number| one.number == number);
        let mut named: Vec<Snapshot> = all.into_iter().filter(is_it).collect();
        if let Some(exact) = named.iter().position(|one| one.directory == self.directory) {
            return Ok(named.swap_remove(exact));
        }
        let name = String::from_utf8_lossy(name);
        let (of, volume) = (if self.directory == 0 { "the volume" } else { "the directory" }, &self.at.volume);
        match named.as_slice() {
            [one] if self.directory == 0 => Ok(one.clone()),
            [_, _, ..] if self.directory == 0 => {
                let text = format!(
                    "{}: several directories have a snapshot {name:?}; name the directory, or give --number (cairn fs snapshot ls {volume}:/ shows them)",
                    self.at
                );
                Err(CliError::usage(text))
            }
            _ => {
                let text = format!(
                    "{}: {of} has no snapshot {name:?}; cairn fs snapshot ls {volume}:/ shows which there are",
                    self.at
                );
                Err(CliError::refused(Exit::NotFound, text))
            }
        }
    }
}
