//! [`Names`]: the directory tree, as the process sees it and as the device has it.
//!
//! Invariants: a change of names is durable only when every directory it touches was synced after it; a rename is
//! one change (both names or neither); a change survives a crash only together with the earlier unsynced ones that
//! touch the same names, the same file, or make or remove the directory it is in. Files have one name each.

use std::collections::{BTreeMap, BTreeSet};

use cairn_env::disk::parent;

use super::crash::Decider;
use super::fault::FaultCounts;

/// Number of a simulated file (its inode).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FileId(pub(super) u64);

/// What a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Entry {
    File(FileId),
    Dir,
}

/// One unsynced change: names and what they stand for after it.
#[derive(Debug, Clone)]
struct Change {
    names: Vec<(String, Option<Entry>)>,
    /// The file concerned, `None` for directories.
    file: Option<FileId>,
    /// Directories that must still be synced.
    waits_for: BTreeSet<String>,
}

impl Change {
    /// Whether this change cannot be on the device without the earlier one.
    fn needs(&self, earlier: &Self) -> bool {
        let same_file = self.file.is_some() && self.file == earlier.file;
        let same_name = |a: &str, b: &str| a == b || parent(a) == b || parent(b) == a;
        let near = |(mine, _): &(String, _)| {
            earlier.names.iter().any(|(theirs, _)| {
                mine == theirs || (earlier.file.is_none() || self.file.is_none()) && same_name(mine, theirs)
            })
        };
        same_file || self.names.iter().any(near)
    }
}

/// The tree of names, by full path. The root is not in it.
#[derive(Debug, Clone, Default)]
pub(super) struct Names {
    live: BTreeMap<String, Entry>,
    durable: BTreeMap<String, Entry>,
    pending: Vec<Change>,
    /// How often a file is named in `live`, `durable` and `pending` together.
    links: BTreeMap<FileId, u32>,
    /// Files that have a name now.
    named: BTreeSet<FileId>,
}

impl Names {
    pub(super) fn get(&self, path: &str) -> Option<Entry> {
        if path.is_empty() { Some(Entry::Dir) } else { self.live.get(path).copied() }
    }

    /// Whether a part of the path above the last is a file.
    pub(super) fn blocked_by_file(&self, path: &str) -> bool {
        path.match_indices('/').any(|(at, _)| matches!(self.live.get(&path[..at]), Some(Entry::File(_))))
    }

    /// The names directly in a directory, with what they stand for.
    pub(super) fn children<'a>(&'a self, dir: &str) -> impl Iterator<Item = (&'a str, Entry)> {
        let prefix = if dir.is_empty() { String::new() } else { format!("{dir}/") };
        let skip = prefix.len();
        self.live
            .range(prefix.clone()..)
            .take_while(move |(path, _)| path.starts_with(&prefix))
            .map(move |(path, &entry)| (&path[skip..], entry))
            .filter(|(name, _)| !name.contains('/'))
    }

    /// Changes names in one step, volatile until their directories are synced.
    pub(super) fn change(&mut self, names: Vec<(String, Option<Entry>)>) {
        let mut file = None;
        for (path, entry) in &names {
            if let Some(Entry::File(id)) = entry {
                file = Some(*id);
                self.link(*id, 1);
            } else if let Some(Entry::File(id)) = self.live.get(path)
                && file.is_none()
            {
                file = Some(*id);
            }
        }
        for (path, entry) in &names {
            self.set_live(path, *entry);
        }
        let waits_for = names.iter().map(|(path, _)| parent(path).to_owned()).collect();
        self.pending.push(Change { names, file, waits_for });
    }

    fn set_live(&mut self, path: &str, entry: Option<Entry>) {
        let before = match entry {
            Some(entry) => self.live.insert(path.to_owned(), entry),
            None => self.live.remove(path),
        };
        if let Some(Entry::File(id)) = before {
            self.named.remove(&id);
            self.link(id, -1);
        }
        if let Some(Entry::File(id)) = entry {
            self.named.insert(id);
            self.link(id, 1);
        }
    }

    fn link(&mut self, id: FileId, by: i32) {
        let count = self.links.entry(id).or_default();
        *count = count.checked_add_signed(by).expect("a name is taken away only after it was given");
        if *count == 0 {
            self.links.remove(&id);
        }
    }

    /// Whether the file has a name now.
    pub(super) fn is_named(&self, id: FileId) -> bool {
        self.named.contains(&id)
    }

    /// Whether the file has a name now or may have one after a crash.
    pub(super) fn is_linked(&self, id: FileId) -> bool {
        self.links.contains_key(&id)
    }

    /// Unsynced changes.
    pub(super) fn unsynced(&self) -> usize {
        self.pending.len()
    }

    /// The directory's names become durable, with the changes that they need.
    pub(super) fn sync_dir(&mut self, dir: &str) {
        let mut done: Vec<bool> = Vec::with_capacity(self.pending.len());
        for change in &mut self.pending {
            change.waits_for.remove(dir);
            done.push(change.waits_for.is_empty());
        }
        for at in (0..self.pending.len()).rev() {
            let (earlier, rest) = done.split_at_mut(at);
            if rest[0] {
                for (done, change) in earlier.iter_mut().zip(&self.pending) {
                    *done |= self.pending[at].needs(change);
                }
            }
        }
        let mut settled = done.into_iter();
        let (ready, rest): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.pending).into_iter().partition(|_| settled.next().unwrap_or(false));
        self.pending = rest;
        for change in ready {
            self.make_durable(change);
        }
    }

    fn make_durable(&mut self, change: Change) {
        for (path, entry) in change.names {
            let before = match entry {
                Some(entry) => self.durable.insert(path, entry),
                None => self.durable.remove(&path),
            };
            if let Some(Entry::File(id)) = before {
                self.link(id, -1);
            }
            // The mention in `pending` becomes one in `durable`: the count of a new entry stays.
        }
    }

    /// Power goes: each unsynced change survives or not.
    pub(super) fn crash(&mut self, decider: &mut Decider<'_>, counts: &mut FaultCounts) {
        let mut lost: Vec<Change> = Vec::new();
        for change in std::mem::take(&mut self.pending) {
            let survives = decider.name_survives() && !lost.iter().any(|earlier| change.needs(earlier));
            if survives {
                counts.names_kept += 1;
                self.make_durable(change);
            } else {
                counts.names_lost += 1;
                lost.push(change);
            }
        }
        self.live = self.durable.clone();
        self.links.clear();
        self.named.clear();
        let files: Vec<FileId> =
            self.live.values().filter_map(|e| if let Entry::File(id) = e { Some(*id) } else { None }).collect();
        for id in files {
            self.named.insert(id);
            // Once in `live`, once in `durable`.
            self.link(id, 2);
        }
    }
}
