//! [`PathFinder`]: names of some inodes in a version of the namespace. Files do not know where their names are, so all
//! names are walked over once for any number of inodes.
use crate::encoding::{Dentry, Inode};
use crate::key::{self, Kind};
use crate::snapshot::NamespaceSnapshot;
use cairn_types::InodeId;
use cairn_types::shard::is_shard_name;
use std::collections::BTreeMap;

/// Components of a path; what is deeper is shown with `…` in front.
const DEPTH_MAX: usize = 256;

/// Directories that are gone up at most.
const STEPS_MAX: usize = 1 << 20;

/// A name: directory and name in it.
type Place = (u64, Vec<u8>);

/// Looks for the names of some inodes.
pub struct PathFinder {
    wanted: BTreeMap<u64, Option<Place>>,
    from: Vec<u8>,
}

impl PathFinder {
    pub fn new(inodes: impl IntoIterator<Item = u64>) -> Self {
        let wanted = inodes.into_iter().filter(|inode| *inode != 0).map(|inode| (inode, None)).collect();
        Self { wanted, from: Vec::new() }
    }

    /// Looks at up to `entries` more entries. False when all is done.
    pub fn step(&mut self, snapshot: &NamespaceSnapshot, entries: usize) -> bool {
        if self.wanted.is_empty() {
            return false;
        }
        let mut cursor = snapshot.tree.cursor();
        let mut found = cursor.seek(&self.from);
        for _ in 0..entries {
            if !found {
                return false;
            }
            if let Some((directory, Kind::Dentry, name)) = key::split(cursor.key())
                && let Some(dentry) = Dentry::decode(cursor.value())
                && let Some(place @ None) = self.wanted.get_mut(&dentry.inode)
            {
                *place = Some((directory, name.to_vec()));
            }
            found = cursor.advance();
        }
        self.from.clear();
        self.from.extend_from_slice(cursor.key());
        found
    }

    /// Where an inode has a name.
    pub fn place(&self, inode: u64) -> Option<&(u64, Vec<u8>)> {
        self.wanted.get(&inode)?.as_ref()
    }

    /// A path of an inode; `None` if it has no name. Directories on the way are looked through for each call.
    pub fn path(&self, snapshot: &NamespaceSnapshot, inode: u64) -> Option<Vec<u8>> {
        if inode == InodeId::ROOT.0 {
            return Some(b"/".to_vec());
        }
        let (mut directory, name) = self.wanted.get(&inode)?.clone()?;
        let mut names = vec![name];
        while directory != InodeId::ROOT.0 && names.len() < DEPTH_MAX {
            let above = snapshot.tree.get(key::attributes(directory).as_bytes()).and_then(Inode::decode)?;
            let name = name_in(snapshot, above.parent, directory)?;
            if !is_shard_name(&name) {
                names.push(name);
            }
            directory = above.parent;
        }
        let start: &[u8] = if directory == InodeId::ROOT.0 { b"" } else { "…".as_bytes() };
        let parts = names.iter().rev().flat_map(|name| [b"/", name.as_slice()]);
        Some(std::iter::once(start).chain(parts).collect::<Vec<_>>().concat())
    }
}

/// The way from a directory up to where it leaves the partition.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct WayUp {
    /// The first directory that another partition has; 0: the way leads to the root, or nowhere.
    pub above: u64,
    /// The last one that this partition has.
    pub top: u64,
    /// From the bottom up, without the name of the last one; only those that were asked for.
    pub names: Vec<Vec<u8>>,
    /// It leads to the root or to another partition, and all names were found.
    pub known: bool,
}

impl NamespaceSnapshot {
    /// Whether this partition gives the id out.
    pub fn has(&self, id: u64) -> bool {
        self.is_own(id)
    }

    /// Goes up from a directory of this partition. `names`: those of directories on the way are wanted, and first that
    /// of `child`, unless that is 0.
    pub fn way_up(&self, directory: u64, child: u64, names: bool) -> WayUp {
        let mut way = WayUp { top: directory, ..WayUp::default() };
        let (mut at, mut below) = (directory, child);
        for _ in 0..STEPS_MAX {
            if names && below != 0 && way.names.len() < DEPTH_MAX {
                let Some(name) = name_in(self, at, below) else { return way };
                if !is_shard_name(&name) {
                    way.names.push(name);
                }
            }
            way.top = at;
            if at == InodeId::ROOT.0 {
                way.known = true;
                return way;
            }
            let inode = self.tree.get(key::attributes(at).as_bytes()).and_then(Inode::decode);
            let Some(inode) = inode.filter(|inode| inode.is_dir() && inode.nlink > 0) else { return way };
            if !self.is_own(inode.parent) {
                (way.above, way.known) = (inode.parent, inode.parent != 0);
                return way;
            }
            (below, at) = (at, inode.parent);
        }
        way
    }
}

/// The name that an inode has in a directory.
fn name_in(snapshot: &NamespaceSnapshot, directory: u64, inode: u64) -> Option<Vec<u8>> {
    let prefix = key::prefix(directory, Kind::Dentry);
    let mut range = snapshot.tree.prefix(prefix.as_bytes());
    while let Some((found, value)) = range.next() {
        if Dentry::decode(value).is_some_and(|dentry| dentry.inode == inode) {
            return Some(found[prefix.as_bytes().len()..].to_vec());
        }
    }
    None
}
