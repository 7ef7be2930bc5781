//! [`LocalTree`]: a local tree, entry by entry, each directory before what is in it. Blocks; runs on its own thread.
//!
//! Bound: an open directory handle for each level, and beyond [`OPEN_MAX`] levels the names of one directory a level.
use crate::error::CliError;
use std::fs::{DirEntry, FileType, ReadDir};
use std::io;
use std::path::{Path, PathBuf};

/// Levels that keep a directory handle open.
const OPEN_MAX: usize = 200;

/// What the walk found.
pub struct Entry {
    pub path: PathBuf,
    pub kind: FileType,
}

enum Level {
    Open(ReadDir),
    Names(std::vec::IntoIter<io::Result<Entry>>),
}

impl Iterator for Level {
    type Item = io::Result<Entry>;
    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Level::Open(entries) => entries.next().map(look),
            Level::Names(entries) => entries.next(),
        }
    }
}

/// A `DirEntry` keeps its directory open; an [`Entry`] does not.
fn look(entry: io::Result<DirEntry>) -> io::Result<Entry> {
    let entry = entry?;
    Ok(Entry { path: entry.path(), kind: entry.file_type()? })
}

/// Something that happened while walking.
pub enum Event<D> {
    /// An entry of the directory that was entered with this tag.
    Entry(D, Entry),
    Failed(CliError),
}

/// A walk; `D` is what the caller ties to each directory that it enters.
pub struct LocalTree<D> {
    levels: Vec<(PathBuf, D, Level)>,
}

impl<D: Clone> LocalTree<D> {
    pub fn new() -> Self {
        Self { levels: Vec::new() }
    }
    /// The entries of a directory come next.
    pub fn enter(&mut self, path: &Path, tag: D) -> Result<(), CliError> {
        let entries = std::fs::read_dir(path).map_err(|error| CliError::local(path, "listing it", error))?;
        let level = match self.levels.len() < OPEN_MAX {
            true => Level::Open(entries),
            false => Level::Names(entries.map(look).collect::<Vec<_>>().into_iter()),
        };
        self.levels.push((path.to_owned(), tag, level));
        Ok(())
    }
    pub fn next(&mut self) -> Option<Event<D>> {
        loop {
            let (path, tag, level) = self.levels.last_mut()?;
            let Some(entry) = level.next() else {
                self.levels.pop();
                continue;
            };
            return Some(match entry {
                Ok(entry) => Event::Entry(tag.clone(), entry),
                // Removed since it was listed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => Event::Failed(CliError::local(path, "listing it", error)),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files of a tree would be left out without a word.
    #[test]
    fn everything_comes_once_with_the_tag_of_its_directory() {
        let dir = tempfile::tempdir().expect("dir");
        let mut deep = dir.path().to_owned();
        for level in 0..OPEN_MAX + 20 {
            std::fs::write(deep.join("f"), "").expect("write");
            deep.push(format!("d{level}"));
            std::fs::create_dir(&deep).expect("mkdir");
        }
        let mut tree = LocalTree::new();
        tree.enter(dir.path(), 0).expect("enter");
        let (mut files, mut deepest) = (0, 0);
        while let Some(event) = tree.next() {
            let Event::Entry(tag, entry) = event else { panic!("no failure expected") };
            match entry.kind.is_dir() {
                true => {
                    assert_eq!(entry.path.file_name().and_then(|n| n.to_str()), Some(format!("d{tag}").as_str()));
                    deepest = tag + 1;
                    tree.enter(&entry.path, deepest).expect("enter");
                }
                false => files += 1,
            }
        }
        assert_eq!((files, deepest), (OPEN_MAX + 20, OPEN_MAX + 20));
    }
}
