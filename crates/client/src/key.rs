//! [`Key`]: which key this process shows to a cluster.
//!
//! Invariants: a key that was named, or that lies where keys are looked for, is used or is an error: nobody who has a
//! key speaks without it. Nothing that another user could have put there is taken for a key. Not here: what is in the
//! file (`security`).
use crate::error::{ClientError, Result};
use cairn_security::{KeyFile, SecurityError, Tls};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Names the file of the key where a command or a program names none.
pub const KEY_VARIABLE: &str = "CAIRN_KEY";

/// Which key is shown.
#[derive(Clone, Debug, Default)]
pub enum Key {
    /// That of [`KEY_VARIABLE`], or the one of this user for a manager's address; none where neither is there.
    #[default]
    Find,
    /// None.
    None,
    /// The one in a file.
    File(PathBuf),
    /// One that was read already: a server's, for what it does as a client.
    Given(Arc<Tls>),
}

impl Key {
    /// A file that was named, or else what is found. An empty name is none.
    pub fn named(file: Option<PathBuf>) -> Self {
        file.filter(|file| !file.as_os_str().is_empty()).map_or(Self::Find, Self::File)
    }

    /// Reads the key for a cluster with these managers.
    pub fn read(&self, managers: &[String]) -> Result<Option<Arc<Tls>>> {
        let bad = |error: SecurityError| ClientError::Key(error.to_string());
        let path = match self {
            Self::None => None,
            Self::Given(tls) => return Ok(Some(tls.clone())),
            Self::File(path) => Some(path.clone()),
            Self::Find => match std::env::var_os(KEY_VARIABLE).filter(|path| !path.is_empty()) {
                Some(path) => Some(path.into()),
                None => of_user(managers).map_err(bad)?,
            },
        };
        let Some(path) = path else { return Ok(None) };
        let file = KeyFile::read(&path).map_err(bad)?;
        Ok(Some(Arc::new(Tls::of_client(&file).map_err(bad)?)))
    }
}

/// The directory with the keys of this user, a file for each address.
pub fn directory() -> Option<PathBuf> {
    let of =
        |variable: &str| std::env::var_os(variable).filter(|path| Path::new(path).is_absolute()).map(PathBuf::from);
    Some(of("XDG_CONFIG_HOME").or_else(|| Some(of("HOME")?.join(".config")))?.join("cairn"))
}

/// The key of this user for one of the addresses.
fn of_user(managers: &[String]) -> std::result::Result<Option<PathBuf>, SecurityError> {
    let Some(dir) = directory() else { return Ok(None) };
    // An address with a slash would lead elsewhere.
    for path in managers.iter().filter(|address| !address.contains('/')).map(|address| dir.join(address)) {
        match std::fs::symlink_metadata(&path) {
            Ok(found) if found.is_file() => return Ok(Some(path)),
            Ok(_) => {
                let why =
                    "keys are looked for here, and this is no ordinary file; name the key with --key or $CAIRN_KEY";
                return Err(SecurityError::Exposed { path, why: why.to_owned() });
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
            // The variables may be of another user, whose keys are none of this one's; who needs one is told by the
            // cluster.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let path = path.display();
                tracing::warn!(%path, "this user may not look for a key there ({error}) and goes on without; name one with --key or $CAIRN_KEY");
            }
            Err(source) => return Err(SecurityError::Io { path, source }),
        }
    }
    Ok(None)
}
