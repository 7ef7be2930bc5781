//! Files that hold a private key: 0600, of the user who reads them or of root, in directories that others cannot write.
//! Root takes those of the user who called it with `sudo`, too: what he may have done as root, he says himself.
use crate::error::SecurityError;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Keys are some kilobytes.
const SECRET_MAX: u64 = 1 << 20;

/// Whether a key at this place is nobody's but its owner's.
pub fn check_secret(path: &Path) -> Result<(), SecurityError> {
    let file = File::open(path).map_err(|error| SecurityError::io(path, error))?;
    check(path, &file)
}

fn check(path: &Path, file: &File) -> Result<(), SecurityError> {
    let exposed = |why: String| SecurityError::Exposed { path: path.to_path_buf(), why };
    let meta = file.metadata().map_err(|error| SecurityError::io(path, error))?;
    if !meta.is_file() {
        return Err(exposed("a key is an ordinary file".to_owned()));
    }
    let mode = meta.mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(exposed(format!("other users can reach this private key (mode {mode:04o}): chmod 600 it")));
    }
    let user = rustix::process::geteuid().as_raw();
    if meta.uid() != user && meta.uid() != 0 && !(user == 0 && caller_of_sudo() == Some(meta.uid())) {
        return Err(exposed(format!("it belongs to uid {}, who could change it: chown it to uid {user}", meta.uid())));
    }
    let real = fs::canonicalize(path).map_err(|error| SecurityError::io(path, error))?;
    let Some(above) = real.parent() else { return Ok(()) };
    let dir = fs::metadata(above).map_err(|error| SecurityError::io(above, error))?;
    // Where everybody may write, others may still not replace what is not theirs if the directory is sticky.
    if dir.mode() & 0o022 != 0 && dir.mode() & 0o1000 == 0 {
        let (above, mode) = (above.display(), dir.mode() & 0o7777);
        return Err(exposed(format!(
            "others can replace files in {above} (mode {mode:04o}): chmod go-w that directory"
        )));
    }
    Ok(())
}

/// The user who called root with `sudo`, which says so.
fn caller_of_sudo() -> Option<u32> {
    // Not where a program only has root's rights: its environment is somebody else's.
    if !rustix::process::getuid().is_root() {
        return None;
    }
    std::env::var("SUDO_UID").ok()?.parse().ok()
}

/// Reads a key, if it is nobody's but its owner's.
pub(crate) fn read_secret(path: &Path) -> Result<Vec<u8>, SecurityError> {
    // What is no ordinary file is refused, and not waited for.
    let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path);
    let file = file.map_err(|error| SecurityError::io(path, error))?;
    check(path, &file)?;
    let mut bytes = Vec::new();
    file.take(SECRET_MAX).read_to_end(&mut bytes).map_err(|error| SecurityError::io(path, error))?;
    Ok(bytes)
}

/// Removes a private key, durably.
pub fn forget_secret(path: &Path) -> Result<(), SecurityError> {
    let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let gone = fs::remove_file(path).and_then(|()| File::open(above)?.sync_all());
    gone.map_err(|error| SecurityError::io(path, error))
}

/// Writes a private key, 0600, durably. Nothing that is there is replaced unless `replace` says so; then it is in one
/// step.
pub fn write_secret(path: &Path, text: &str, replace: bool) -> Result<(), SecurityError> {
    let io = |error| SecurityError::io(path, error);
    let name = path.file_name().ok_or_else(|| io(std::io::ErrorKind::InvalidInput.into()))?;
    let mut beside = name.to_os_string();
    beside.push(format!(".new-{}", std::process::id()));
    let beside = path.with_file_name(beside);
    let written = (|| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        match replace {
            true => fs::rename(&beside, path)?,
            // Fails where something is, in one step.
            false => fs::hard_link(&beside, path).and_then(|()| fs::remove_file(&beside))?,
        }
        let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(above)?.sync_all()
    })();
    written.map_err(|error: std::io::Error| {
        // What was not finished is of no use to anybody.
        drop(fs::remove_file(&beside));
        match error.kind() {
            std::io::ErrorKind::AlreadyExists => SecurityError::Exists(path.to_path_buf()),
            _ => io(error),
        }
    })
}
