//! Directories of nodes and disks are for the server's user alone: other users of the machine would read everybody's
//! files from chunks, journals and logs, whatever the modes of those files in Cairn.
//!
//! What a server makes is 0600 and 0700. What an earlier build made is mended at the start: the directory itself, which
//! hides all that is below it, and what lies right in it. Only directories with Cairn's label are touched: they are
//! Cairn's as a whole. Not here: files of users under a mount; a worker of a mount changes no modes.
use cairn_store::label::LABEL_FILE;
use rustix::fs::Mode;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Rights of anybody but the owner.
const OF_OTHERS: u32 = 0o077;

/// From now on nothing that this process makes is for others.
pub fn for_owner_alone() {
    rustix::process::umask(Mode::from_raw_mode(OF_OTHERS));
}

/// Mends directories that have a label, and says so in the log.
pub fn mend<'a>(dirs: impl IntoIterator<Item = &'a Path>) {
    let mut mended = Vec::new();
    for dir in dirs.into_iter().filter(|dir| dir.join(LABEL_FILE).is_file()) {
        match mend_one(dir) {
            Ok(0) => {}
            Ok(_) => mended.push(dir.display().to_string()),
            Err(error) => tracing::warn!(
                dir = %dir.display(), %error,
                "other users of this machine can read this directory, and it cannot be changed: chmod -R go= on it, as its owner"
            ),
        }
    }
    if !mended.is_empty() {
        tracing::info!(
            dirs = mended.join(", "),
            "other users of this machine could read these directories: from now on they are 0700, which hides what is below them"
        );
    }
}

/// How much was changed.
fn mend_one(dir: &Path) -> io::Result<usize> {
    let mut changed = usize::from(close(dir)?);
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if !kind.is_file() && !kind.is_dir() {
            continue;
        }
        match close(&entry.path()) {
            Ok(done) => changed += usize::from(done),
            // A file that is made and replaced while the server starts.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(changed)
}

/// Takes the rights of others away, if they have some.
fn close(path: &Path) -> io::Result<bool> {
    let mode = fs::metadata(path)?.permissions().mode();
    if mode & OF_OTHERS == 0 {
        return Ok(false);
    }
    fs::set_permissions(path, Permissions::from_mode(mode & 0o7777 & !OF_OTHERS))?;
    Ok(true)
}

/// The mode of a directory that others may enter or read; `None`: nobody else may, or it is not there.
pub fn open_to_others(dir: &Path) -> Option<u32> {
    let mode = fs::metadata(dir).ok()?.permissions().mode() & 0o7777;
    (mode & OF_OTHERS != 0).then_some(mode)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("there").permissions().mode() & 0o7777
    }

    /// Somebody's pictures would lose their modes because a configuration named their directory; or what an earlier
    /// build made stay open to all.
    #[test]
    fn only_what_is_cairns_is_mended() {
        let top = tempfile::tempdir().expect("a directory");
        for (name, label, wanted) in [("node", true, (0o700, 0o600, 0o700)), ("photos", false, (0o755, 0o644, 0o755))] {
            let dir = top.path().join(name);
            fs::create_dir_all(dir.join("below")).expect("directories");
            fs::write(dir.join(if label { LABEL_FILE } else { "holiday" }), b"x").expect("a file");
            fs::write(dir.join("log"), b"x").expect("a file");
            for (path, mode) in [(dir.clone(), 0o755), (dir.join("below"), 0o755), (dir.join("log"), 0o644)] {
                fs::set_permissions(path, Permissions::from_mode(mode)).expect("a mode");
            }
            std::os::unix::fs::symlink("/etc/hostname", dir.join("link")).expect("a link");
            mend([dir.as_path()]);
            assert_eq!((mode(&dir), mode(&dir.join("log")), mode(&dir.join("below"))), wanted, "{name}");
            assert_eq!(open_to_others(&dir).is_none(), label);
            if label {
                assert_eq!(mend_one(&dir).expect("mended"), 0, "nothing is left to do");
            }
        }
    }
}
