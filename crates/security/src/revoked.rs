//! [`Revoked`]: names of holders that are let in no more, from a file that is looked at again and again.
//!
//! Invariants: a file that is gone or cannot be read takes no name off the list; each look that found another list
//! raises the version.
use crate::error::SecurityError;
use parking_lot::RwLock;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};

/// What a look at the list found.
#[derive(Debug, PartialEq, Eq)]
pub struct Change {
    /// Names that count no more.
    pub came: Vec<String>,
    /// Names that count again.
    pub went: Vec<String>,
}

/// Names of holders whose keys count no more.
#[derive(Debug, Default)]
pub struct Revoked {
    path: PathBuf,
    version: AtomicU64,
    names: RwLock<BTreeSet<String>>,
}

impl Revoked {
    /// Reads the list: a name a line, `#` begins a comment. The file has to be there.
    pub fn read(path: &Path) -> Result<Self, SecurityError> {
        let list = Self { path: path.to_path_buf(), ..Self::default() };
        list.look()?;
        Ok(list)
    }

    /// Reads the file again. Returns what changed, if the list is another one.
    pub fn look(&self) -> Result<Option<Change>, SecurityError> {
        let text = std::fs::read_to_string(&self.path).map_err(|error| SecurityError::io(&self.path, error))?;
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
        let names: BTreeSet<String> = lines.filter(|name| !name.is_empty()).map(str::to_owned).collect();
        if *self.names.read() == names {
            return Ok(None);
        }
        let before = std::mem::replace(&mut *self.names.write(), names.clone());
        let without = |all: &BTreeSet<String>, others| all.difference(others).cloned().collect();
        let change = Change { came: without(&names, &before), went: without(&before, &names) };
        self.version.fetch_add(1, Release);
        Ok(Some(change))
    }

    /// Changes with the list.
    pub fn version(&self) -> u64 {
        self.version.load(Acquire)
    }

    /// Whether a holder's key counts no more.
    pub fn has(&self, name: &str) -> bool {
        self.names.read().contains(name)
    }
}
