//! Where supervisors have their sockets and logs: `/run/cairn` for root, else `$XDG_RUNTIME_DIR/cairn` or
//! `/tmp/cairn-UID`; `$CAIRN_RUN_DIR` overrides it.
use crate::failure::{Failure, Kind, Result};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};

/// A supervisor that has answered ends within this.
const ENDING: Duration = Duration::from_secs(5);
const SOCKET: &str = "sock";
const LOG: &str = "log";

/// Files of one supervisor.
pub struct Place {
    socket: PathBuf,
    log: PathBuf,
}

impl Place {
    pub fn remove(&self, with_log: bool) {
        if with_log {
            let _may_be_gone = std::fs::remove_file(&self.log);
        }
        let _may_be_gone = std::fs::remove_file(&self.socket);
    }
}

/// The directory, made if it is missing; nobody else may write to it.
pub fn directory() -> Result<PathBuf> {
    let uid = rustix::process::geteuid();
    let dir = match (std::env::var_os("CAIRN_RUN_DIR"), uid.is_root(), std::env::var_os("XDG_RUNTIME_DIR")) {
        (Some(dir), _, _) => PathBuf::from(dir),
        (None, true, _) => PathBuf::from("/run/cairn"),
        (None, false, Some(dir)) => PathBuf::from(dir).join("cairn"),
        (None, false, None) => PathBuf::from(format!("/tmp/cairn-{}", uid.as_raw())),
    };
    let shown = dir.display().to_string();
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&dir)
        .map_err(|error| Failure::io(&format!("{shown} (CAIRN_RUN_DIR names another place)"), &error))?;
    // Not what a link leads to: another user may have put it there.
    let found = std::fs::symlink_metadata(&dir).map_err(|error| Failure::io(&shown, &error))?;
    if !found.is_dir() || found.uid() != uid.as_raw() || found.mode() & 0o022 != 0 {
        let text = format!(
            "{shown}: it is no directory of yours, or others may write there; remove it, or name another place with CAIRN_RUN_DIR"
        );
        return Err(Failure::new(Kind::Permission, text));
    }
    Ok(dir)
}

fn file(dir: &Path, pid: u32, ending: &str) -> PathBuf {
    dir.join(format!("mount-{pid}.{ending}"))
}

/// Where a supervisor logs that was not told where.
pub fn log_file(pid: u32) -> Result<PathBuf> {
    directory().map(|dir| file(&dir, pid, LOG))
}

/// The socket of this process.
pub fn listen() -> Result<(UnixListener, Place)> {
    let (dir, pid) = (directory()?, std::process::id());
    let place = Place { socket: file(&dir, pid, SOCKET), log: file(&dir, pid, LOG) };
    let _of_a_dead_process = std::fs::remove_file(&place.socket);
    let listener =
        UnixListener::bind(&place.socket).map_err(|error| Failure::io(&place.socket.display().to_string(), &error))?;
    Ok((listener, place))
}

/// Waits until a supervisor that is ending has taken its files away, so that nothing is left when its command returns.
pub async fn wait_for_end(pid: u64) {
    let Ok(dir) = directory() else { return };
    let socket = dir.join(format!("mount-{pid}.{SOCKET}"));
    let started = tokio::time::Instant::now();
    while socket.exists() && started.elapsed() < ENDING {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Connections to all supervisors; sockets of dead ones are removed.
pub async fn supervisors() -> Result<Vec<(u32, UnixStream)>> {
    let dir = directory()?;
    let entries = std::fs::read_dir(&dir).map_err(|error| Failure::io(&dir.display().to_string(), &error))?;
    let mut found = Vec::new();
    for path in entries.flatten().map(|entry| entry.path()) {
        let pid = path.file_name().and_then(|name| name.to_str()).and_then(pid_of);
        let Some(pid) = pid else { continue };
        match UnixStream::connect(&path).await {
            Ok(stream) => found.push((pid, stream)),
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                let _somebody_else_did = std::fs::remove_file(&path);
            }
            Err(_) => {}
        }
    }
    found.sort_by_key(|(pid, _)| *pid);
    Ok(found)
}

fn pid_of(name: &str) -> Option<u32> {
    name.strip_prefix("mount-")?.strip_suffix(SOCKET)?.strip_suffix('.')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A log would be taken for a socket.
    #[test]
    fn sockets_are_known_by_their_names() {
        assert_eq!(pid_of("mount-77.sock"), Some(77));
        assert_eq!(pid_of("mount-77.log"), None);
        assert_eq!(pid_of("mount-x.sock"), None);
    }
}
