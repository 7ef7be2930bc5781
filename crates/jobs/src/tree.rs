//! [`Walk`]: what is below a path, page by page, each directory before what is in it.
//!
//! Bound: a page of entries for each level.
use cairn_client::{Result, Volume};
use cairn_types::name::check_name;
use cairn_wire::meta::{Attributes, DirEntry};
use std::collections::VecDeque;

/// Paths have at most 4,096 bytes, so no tree is deeper.
const DEPTH_MAX: usize = 2100;
const KIND: u32 = 0o170_000;
const DIRECTORY: u32 = 0o040_000;

/// A thing in the tree.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub path: Vec<u8>,
    pub inode: u64,
    pub mode: u32,
}

impl Found {
    pub(crate) fn new(path: Vec<u8>, attributes: &Attributes) -> Found {
        Found { path, inode: attributes.inode, mode: attributes.mode }
    }
    fn is_directory(&self) -> bool {
        self.mode & KIND == DIRECTORY
    }
}

struct Level {
    path: Vec<u8>,
    inode: u64,
    after: Vec<u8>,
    page: VecDeque<DirEntry>,
    end: bool,
}

/// A walk in progress.
pub(crate) struct Walk {
    volume: Volume,
    start: Option<Found>,
    levels: Vec<Level>,
}

impl Walk {
    pub(crate) fn new(volume: &Volume, start: Found) -> Walk {
        Walk { volume: volume.clone(), start: Some(start), levels: Vec::new() }
    }

    /// The next thing; after an error the walk goes on behind the directory that could not be read.
    pub(crate) async fn next(&mut self) -> Option<Result<Found>> {
        if let Some(start) = self.start.take() {
            self.enter(&start);
            return Some(Ok(start));
        }
        loop {
            let level = self.levels.last_mut()?;
            if let Some(entry) = level.page.pop_front() {
                let Some(found) = found(&level.path, entry) else { continue };
                self.enter(&found);
                return Some(Ok(found));
            }
            if level.end {
                self.levels.pop();
                continue;
            }
            match self.volume.readdir(level.inode, &level.after, true).await {
                Ok(page) => {
                    level.end = page.end || page.entries.is_empty();
                    if let Some(last) = page.entries.last() {
                        level.after.clone_from(&last.cookie);
                    }
                    level.page = page.entries.into();
                }
                Err(error) => {
                    level.end = true;
                    // A directory that was removed meanwhile is no failure.
                    if !error.is_not_found() && error.errno() != 116 {
                        let path = String::from_utf8_lossy(&level.path).into_owned();
                        return Some(Err(error.named(&path)));
                    }
                }
            }
        }
    }

    fn enter(&mut self, found: &Found) {
        if found.is_directory() && self.levels.len() < DEPTH_MAX {
            let (path, inode) = (found.path.clone(), found.inode);
            self.levels.push(Level { path, inode, after: Vec::new(), page: VecDeque::new(), end: false });
        }
    }
}

/// An entry with its path; `None` for what has no valid name.
fn found(directory: &[u8], entry: DirEntry) -> Option<Found> {
    check_name(&entry.name).ok()?;
    let mut path = directory.to_vec();
    if path.last() != Some(&b'/') {
        path.push(b'/');
    }
    path.extend_from_slice(&entry.name);
    Some(Found::new(path, &entry.attributes?))
}
