//! `PATH@SNAPSHOT`: a path as it was when a snapshot was taken, and the path below `.snapshots` that leads there. One
//! of the volume is read from its root; one of a directory from that, if the path leads through it now. `/@SNAPSHOT` is
//! the directory itself, wherever it is, or was.
use crate::context::Context;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::remote::{Found, NamedFor, find};
use cairn_client::attributes::Attributes;
use cairn_client::snapshot::Snapshot;
use cairn_client::{RemotePath, Volume};
use cairn_types::ErrorCode;
use std::ffi::OsStr;

/// Lower bits of an inode's number at a snapshot are the inode's own; above them is which snapshot.
const INODE_BITS: u32 = 48;

/// What an operand that may name a snapshot means.
pub struct AtSnapshot {
    /// What is there: at the snapshot, or now.
    pub found: Found,
    /// The path as it was, or is.
    pub path: RemotePath,
    pub snapshot: Option<Snapshot>,
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
    let known: Vec<Snapshot> = names.into_iter().filter(|one| !one.deleting && one.name == snapshot).collect();
    if known.is_empty() {
        if let Some(attributes) = now.filter(|_| !needed) {
            let found = Found { at: at.clone(), volume, attributes };
            return Ok(AtSnapshot { found, path: at, snapshot: None });
        }
        return Err(unknown(&at, &at.volume, &snapshot));
    }
    let place = locate(&volume, &path, &known).await?;
    if now.is_some() {
        let other = place.map_or_else(|| "the path below .snapshots".to_owned(), |(_, place)| place.to_string());
        let text = format!(
            "{at} is a file's name and may mean {path} at a snapshot; write {other} for the latter, or rename the file"
        );
        return Err(CliError::usage(text));
    }
    match (place, known.as_slice()) {
        (Some((taken, place)), _) => {
            let found = find_there(volume, &path, place, &snapshot).await?;
            Ok(AtSnapshot { found, path, snapshot: Some(taken) })
        }
        // Wherever its directory is.
        (None, [taken]) if path.path == b"/" => {
            let attributes = volume.directory_of_snapshot(taken).await.map_err(|error| error.named_for(&at))?;
            let found = Found { at: below(&path, b"/", &snapshot), volume, attributes };
            Ok(AtSnapshot { found, path, snapshot: Some(taken.clone()) })
        }
        _ => Err(not_of(&path, &snapshot)),
    }
}

fn unknown(at: &RemotePath, of: &str, snapshot: &[u8]) -> CliError {
    let name = String::from_utf8_lossy(snapshot);
    let text = format!("{at}: the volume has no snapshot {name:?}; cairn fs snapshot ls {of}:/ shows which it has");
    CliError::refused(Exit::NotFound, text)
}

/// No directory of a path has the snapshot.
pub fn not_of(path: &RemotePath, snapshot: &[u8]) -> CliError {
    let (name, volume) = (String::from_utf8_lossy(snapshot), &path.volume);
    let text = format!(
        "{path}: the snapshot {name:?} is of a directory that is not on this path; cairn fs snapshot ls {volume}:/ shows of which"
    );
    CliError::refused(Exit::NotFound, text)
}

/// Of snapshots of one name, that which is read below a path as it is now, and where.
pub async fn locate(volume: &Volume, path: &RemotePath, known: &[Snapshot]) -> Result<Option<(Snapshot, RemotePath)>> {
    if let Some(taken) = known.iter().find(|one| one.directory == 0) {
        return Ok(Some((taken.clone(), below(path, b"/", &taken.name))));
    }
    let mut above = path.clone();
    while above.path != b"/" {
        let found = volume.try_stat(&above.path, true).await;
        let found = match found {
            // Something on the way was no directory.
            Err(error) if error.code() == Some(ErrorCode::NotDirectory) => None,
            found => found.map_err(|error| error.named_for(&above))?,
        };
        if let Some(taken) = found.and_then(|found| known.iter().find(|one| one.directory == found.inode)) {
            return Ok(Some((taken.clone(), below(path, &above.path, &taken.name))));
        }
        above = above.parent();
    }
    Ok(None)
}

/// Where a path is read as it was, by the list of a directory above it.
pub fn below(path: &RemotePath, directory: &[u8], snapshot: &[u8]) -> RemotePath {
    let (directory, rest) = match directory {
        b"/" if path.path == b"/" => (&b""[..], &b""[..]),
        b"/" => (&b""[..], &path.path[..]),
        directory => (directory, &path.path[directory.len()..]),
    };
    RemotePath { path: [directory, b"/.snapshots/", snapshot, rest].concat(), ..path.clone() }
}

async fn find_there(volume: Volume, path: &RemotePath, at: RemotePath, snapshot: &[u8]) -> Result<Found> {
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
        assert_eq!(below(&path, b"/", &snapshot).path, b"/.snapshots/monday/a/b");
        assert_eq!(below(&path, b"/a", &snapshot).path, b"/a/.snapshots/monday/b");
        assert_eq!(below(&path, b"/a/b", &snapshot).path, b"/a/b/.snapshots/monday");
        let (path, snapshot) = split(&at("data:/@monday")).expect("a snapshot");
        assert_eq!(path.path, b"/");
        assert_eq!(below(&path, b"/", &snapshot).path, b"/.snapshots/monday");
        assert_eq!(split(&at("/a@b@c")).expect("a snapshot").1, b"c");
        assert!(split(&at("/a@x/b")).is_none() && split(&at("/a@")).is_none() && split(&at("/a")).is_none());
    }
}
