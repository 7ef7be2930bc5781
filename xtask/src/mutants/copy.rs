//! A copy of the project's files for changes that are not to stay.
//!
//! Invariant: a file whose bytes are the same is not written again, so that builds in the copy stay incremental; what
//! the project has not is removed. Not copied: build output, hidden files besides those that builds read.
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Hidden, and part of how things are built.
const HIDDEN: &[&str] = &[".cargo"];

fn is_left_out(name: &str) -> bool {
    name == "target" || name.starts_with('.') && !HIDDEN.contains(&name)
}

/// Makes `to` the same as `from`.
pub fn renew(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("making {}", to.display()))?;
    let mut open = vec![PathBuf::new()];
    while let Some(dir) = open.pop() {
        let (here, there) = (from.join(&dir), to.join(&dir));
        let mut names = BTreeSet::new();
        for entry in fs::read_dir(&here).with_context(|| format!("listing {}", here.display()))? {
            let entry = entry.with_context(|| format!("listing {}", here.display()))?;
            let name = entry.file_name();
            let kind = entry.file_type().with_context(|| format!("looking at {}", entry.path().display()))?;
            if is_left_out(&name.to_string_lossy()) || !(kind.is_dir() || kind.is_file()) {
                continue;
            }
            names.insert(name.clone());
            let target = there.join(&name);
            if kind.is_dir() {
                fs::create_dir_all(&target).with_context(|| format!("making {}", target.display()))?;
                open.push(dir.join(&name));
            } else {
                copy(&entry.path(), &target)?;
            }
        }
        for entry in fs::read_dir(&there).with_context(|| format!("listing {}", there.display()))? {
            let entry = entry.with_context(|| format!("listing {}", there.display()))?;
            if !names.contains(&entry.file_name()) {
                let path = entry.path();
                let gone = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
                gone.with_context(|| format!("removing {}", path.display()))?;
            }
        }
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let bytes = fs::read(from).with_context(|| format!("reading {}", from.display()))?;
    if fs::read(to).is_ok_and(|there| there == bytes) {
        return Ok(());
    }
    fs::write(to, bytes).with_context(|| format!("writing {}", to.display()))?;
    let mode = fs::metadata(from).with_context(|| format!("looking at {}", from.display()))?.permissions();
    fs::set_permissions(to, mode).with_context(|| format!("setting the mode of {}", to.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A change of an earlier run would stay in the copy, or a file that is gone be built.
    #[test]
    fn a_copy_is_the_same_again() {
        let dir = tempfile::tempdir().expect("directory");
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        for path in ["a/b", ".cargo", ".git", "target/x"] {
            fs::create_dir_all(from.join(path)).expect("directory");
        }
        for path in ["a/b/file", "a/gone", ".cargo/config", ".git/head", "target/x/built"] {
            fs::write(from.join(path), path).expect("file");
        }
        renew(&from, &to).expect("copied");
        assert_eq!(fs::read_to_string(to.join("a/b/file")).expect("there"), "a/b/file");
        assert!(to.join(".cargo/config").exists() && !to.join(".git").exists() && !to.join("target").exists());
        let time = |path: &str| fs::metadata(to.join(path)).and_then(|m| m.modified()).expect("a time");
        let before = time(".cargo/config");
        fs::write(to.join("a/b/file"), "changed").expect("file");
        fs::remove_file(from.join("a/gone")).expect("removed");
        renew(&from, &to).expect("copied");
        assert_eq!(fs::read_to_string(to.join("a/b/file")).expect("there"), "a/b/file");
        assert!(!to.join("a/gone").exists() && time(".cargo/config") == before);
    }
}
