//! `PATH@SNAPSHOT`: a path as it was when a snapshot was taken, and the path below `.snapshots` that leads there.
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::remote::{Found, NamedFor, find};
use cairn_client::{RemotePath, Volume};
use cairn_wire::meta::Attributes;
use std::ffi::OsStr;

/// Lower bits of an inode's number at a snapshot are the inode's own; above them is which snapshot.
const INODE_BITS: u32 = 48;

/// What an operand that may name a snapshot means.
pub struct AtSnapshot {
    /// What is there: at the snapshot, or now.
    pub found: Found,
    /// The path as it was, or is.
    pub path: RemotePath,
    pub snapshot: Option<Vec<u8>>,
}

/// `PATH` and `SNAPSHOT` of `PATH@SNAPSHOT`.
fn split(at: &RemotePath) -> Option<(RemotePath, Vec<u8>)> {
    let name = at.name();
    let cut = name.iter().rposition(|byte| *byte == b'@')?;
    let (base, snapshot) = (&name[..cut], &name[cut + 1..]);
    let path = if base.is_empty() { at.parent() } else { at.parent().join(base) };
    (!snapshot.is_empty()).then(|| (path, snapshot.to_vec()))
}

/// Looks an operand up. `needed`: it has to name a snapshot.
pub async fn find_at(context: &Context, text: &OsStr, needed: bool) -> Result<AtSnapshot> {
    let at = context.remote(text)?;
    let volume = context.volume(&at).await?;
    let now = volume.try_stat(&at.path, false).await.map_err(|error| error.named_for(&at))?;
    let Some((path, snapshot)) = split(&at) else {
        if needed {
            let text =
                format!("{at} names no snapshot; write PATH@SNAPSHOT (cairn fs snapshot ls shows which there are)");
            return Err(CliError::usage(text));
        }
        let found = find(context, at.clone(), false).await?;
        return Ok(AtSnapshot { found, path: at, snapshot: None });
    };
    let names = volume.snapshots().await.map_err(|error| error.named_for(&at))?;
    let is_known = names.iter().any(|one| !one.deleting && one.name == snapshot);
    match (now, is_known) {
        (Some(_), true) => {
            let text = format!(
                "{at} is a file's name and may mean {path} at a snapshot; write {} for the latter, or rename the file",
                below(&path, &snapshot)
            );
            Err(CliError::usage(text))
        }
        (Some(attributes), false) if !needed => {
            let found = Found { at: at.clone(), volume, attributes };
            Ok(AtSnapshot { found, path: at, snapshot: None })
        }
        (_, false) => {
            let name = String::from_utf8_lossy(&snapshot);
            let text = format!(
                "{at}: the volume has no snapshot {name:?}; cairn fs snapshot ls {}:/ shows which it has",
                at.volume
            );
            Err(CliError::refused(Exit::NotFound, text))
        }
        (None, true) => {
            let found = find_there(volume, &path, &snapshot).await?;
            Ok(AtSnapshot { found, path, snapshot: Some(snapshot) })
        }
    }
}

/// Where a path is read as it was.
pub fn below(path: &RemotePath, snapshot: &[u8]) -> RemotePath {
    let root = RemotePath { path: b"/.snapshots".to_vec(), ..path.clone() }.join(snapshot);
    match path.path == b"/" {
        true => root,
        false => RemotePath { path: [&root.path[..], &path.path[..]].concat(), ..root },
    }
}

async fn find_there(volume: Volume, path: &RemotePath, snapshot: &[u8]) -> Result<Found> {
    let at = below(path, snapshot);
    let name = String::from_utf8_lossy(snapshot);
    let attributes = volume.try_stat(&at.path, false).await.map_err(|error| error.named_for(&at))?;
    let Some(attributes) = attributes else {
        let text = format!(
            "{path} was not there when the snapshot {name:?} was taken; cairn fs ls {} shows what was",
            at.parent()
        );
        return Err(CliError::refused(Exit::NotFound, text));
    };
    check_inside(&at, &attributes)?;
    Ok(Found { at, volume, attributes })
}

/// Whether a path leads into a snapshot, or to the list of a directory's snapshots.
pub fn is_inside(at: &RemotePath, attributes: &Attributes) -> bool {
    // A volume that has given out larger numbers has no snapshots.
    let is_named = at.path.split(|byte| *byte == b'/').any(|part| part == b".snapshots");
    is_named && attributes.inode >> INODE_BITS != 0
}

/// A symbolic link may lead to what is there now.
pub fn check_inside(at: &RemotePath, attributes: &Attributes) -> Result<()> {
    if attributes.inode >> INODE_BITS == 0 {
        let text = format!("{at}: a symbolic link leads out of the snapshot; name the path that it points to");
        return Err(CliError::usage(text));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> RemotePath {
        RemotePath::parse(text.as_bytes()).expect("a path")
    }

    /// Another path, or what is there now, would be cloned.
    #[test]
    fn operands_are_split_at_the_last_sign() {
        let (path, snapshot) = split(&at("data:/a/b@monday")).expect("a snapshot");
        assert_eq!((path.path.as_slice(), snapshot.as_slice()), (b"/a/b".as_slice(), b"monday".as_slice()));
        assert_eq!(below(&path, &snapshot).path, b"/.snapshots/monday/a/b");
        let (path, snapshot) = split(&at("data:/@monday")).expect("a snapshot");
        assert_eq!(path.path, b"/");
        assert_eq!(below(&path, &snapshot).path, b"/.snapshots/monday");
        assert_eq!(split(&at("/a@b@c")).expect("a snapshot").1, b"c");
        assert!(split(&at("/a@x/b")).is_none() && split(&at("/a@")).is_none() && split(&at("/a")).is_none());
    }
}
