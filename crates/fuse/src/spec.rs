//! What is mounted where: all that a supervisor and its workers have to know.
use crate::failure::{Failure, Result};
use crate::options::MountOptions;
use cairn_client::RemotePath;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MountSpec {
    /// Managers.
    pub cluster: Vec<String>,
    pub volume: String,
    /// Directory of the volume that is the mount's root.
    pub path: Vec<u8>,
    /// Mount point, absolute.
    pub dir: PathBuf,
    pub options: MountOptions,
    /// Program that workers run.
    pub program: PathBuf,
}

impl MountSpec {
    /// From what a person wrote. `cluster` is used where the URI names none.
    pub fn new(uri: &[u8], cluster: &[String], dir: &Path, options: MountOptions) -> Result<MountSpec> {
        let remote = RemotePath::parse(uri).map_err(|error| Failure::usage(error.to_string()))?;
        let shown = dir.display();
        let dir = std::fs::canonicalize(dir).map_err(|error| {
            let hint =
                if error.raw_os_error() == Some(libc::ENOTCONN) { "; a dead mount is there: umount -l it" } else { "" };
            Failure::io(&format!("mount point {shown}{hint}"), &error)
        })?;
        let program = std::env::current_exe().map_err(|error| Failure::io("finding this program", &error))?;
        let cluster = remote.cluster.unwrap_or_else(|| cluster.to_vec());
        Ok(MountSpec { cluster, volume: remote.volume, path: remote.path, dir, options, program })
    }
    /// As in the table of mounts.
    pub fn source(&self) -> String {
        let path = String::from_utf8_lossy(&self.path);
        format!("cairn://{}/{}{}", self.cluster.join(","), self.volume, path.trim_end_matches('/'))
    }
}
