//! [`Revoked`]: names of holders that are let in no more: those of a file that is looked at again and again, and those
//! that the cluster's managers told, which are kept in a file of the process.
//!
//! Invariants: a file that is gone or cannot be read takes no name off the list; what was told once counts for ever,
//! whoever forgets it; each look or word that made another list raises the version.
use crate::error::SecurityError;
use crate::secret_file::write_secret;
use cairn_wire::holder::{Holder, sum_of_names};
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
    /// The list of whoever runs this process, if he keeps one.
    path: Option<PathBuf>,
    /// Where what was told is kept.
    kept: Option<PathBuf>,
    version: AtomicU64,
    names: RwLock<Names>,
}

#[derive(Debug, Default)]
struct Names {
    file: BTreeSet<String>,
    told: BTreeSet<String>,
    /// Of the list that was told last: whoever tells another one says it again.
    told_sum: u64,
}

impl Revoked {
    /// Reads the list: a name a line, `#` begins a comment. The file has to be there.
    pub fn read(path: &Path) -> Result<Self, SecurityError> {
        let list = Self { path: Some(path.to_path_buf()), ..Self::default() };
        list.look()?;
        Ok(list)
    }

    /// The list of a server: of its file, if it has one, and of what was told it before, which is kept beside its data.
    pub fn of_server(path: Option<&Path>, kept: &Path) -> Result<Self, SecurityError> {
        let told = match std::fs::read_to_string(kept) {
            Ok(text) => names_in(&text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => BTreeSet::new(),
            Err(error) => return Err(SecurityError::io(kept, error)),
        };
        let told_sum = sum_of_names(told.iter().map(String::as_str));
        let names = RwLock::new(Names { told, told_sum, ..Names::default() });
        let list = Self { path: path.map(Path::to_path_buf), kept: Some(kept.to_path_buf()), names, ..Self::default() };
        list.look()?;
        Ok(list)
    }

    /// Reads the file again. Returns what changed, if the list is another one.
    pub fn look(&self) -> Result<Option<Change>, SecurityError> {
        let Some(path) = &self.path else { return Ok(None) };
        let text = std::fs::read_to_string(path).map_err(|error| SecurityError::io(path, error))?;
        let names = names_in(&text);
        let (before, told) = {
            let mut all = self.names.write();
            if all.file == names {
                return Ok(None);
            }
            (std::mem::replace(&mut all.file, names.clone()), all.told.clone())
        };
        let without = |all: &BTreeSet<String>, others: &BTreeSet<String>| {
            all.difference(others).filter(|name| !told.contains(*name)).cloned().collect()
        };
        let change = Change { came: without(&names, &before), went: without(&before, &names) };
        self.version.fetch_add(1, Release);
        Ok(Some(change))
    }

    /// Takes the names that the managers told, and which list that is. Returns those that are new. They count from now
    /// on; where they cannot be kept, they have to be told again.
    pub fn take(&self, told: &[String], sum: u64) -> Result<Vec<String>, SecurityError> {
        let (came, text) = {
            let mut names = self.names.write();
            let new = told.iter().filter(|name| Holder::is_name(name) && !names.told.contains(*name));
            let came: Vec<String> = new.cloned().collect();
            names.told.extend(came.iter().cloned());
            (came, names.told.iter().map(|name| format!("{name}\n")).collect::<String>())
        };
        if !came.is_empty() {
            self.version.fetch_add(1, Release);
        }
        if let Some(kept) = &self.kept {
            write_secret(kept, &text, true)?;
        }
        self.names.write().told_sum = sum;
        Ok(came)
    }

    /// Which list was told last, and how many names were ever told.
    pub fn told(&self) -> (u64, usize) {
        let names = self.names.read();
        (names.told_sum, names.told.len())
    }

    /// Changes with the list.
    pub fn version(&self) -> u64 {
        self.version.load(Acquire)
    }

    /// Whether a holder's key counts no more.
    pub fn has(&self, name: &str) -> bool {
        let names = self.names.read();
        names.file.contains(name) || names.told.contains(name)
    }
}

fn names_in(text: &str) -> BTreeSet<String> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    lines.filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stolen key would count again after a restart, or when somebody empties the file of one server.
    #[test]
    fn what_was_told_counts_for_ever() {
        let dir = tempfile::tempdir().expect("a directory");
        let (file, kept) = (dir.path().join("revoked"), dir.path().join("revoked.told"));
        std::fs::write(&file, "alice\nbob\n").expect("a list");
        let list = Revoked::of_server(Some(&file), &kept).expect("a list");
        let version = list.version();
        let told = ["alice".to_owned(), "carol".to_owned(), "no name".to_owned()];
        assert_eq!(list.take(&told, 7).expect("kept"), ["alice", "carol"]);
        assert!(list.version() > version && list.has("carol") && !list.has("no name"));
        assert_eq!(list.told(), (7, 2));
        std::fs::write(&file, "").expect("a list");
        let change = list.look().expect("read").expect("another list");
        assert_eq!((change.came, change.went), (vec![], vec!["bob".to_owned()]), "alice was told too");
        assert!(list.has("alice") && !list.has("bob"));
        assert_eq!(list.take(&[], 0).expect("kept"), [""; 0], "whoever forgot it changes nothing");

        let again = Revoked::of_server(None, &kept).expect("a list");
        assert!(again.has("alice") && again.has("carol") && !again.has("bob"));
        assert_eq!(again.told(), (sum_of_names(["alice", "carol"].into_iter()), 2));
        assert_eq!(again.look().expect("no file"), None);
    }
}
