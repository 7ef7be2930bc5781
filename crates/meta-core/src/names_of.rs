//! [`NameScan`]: the names that one partition's version has for inodes of a range, or for some inodes, in one walk that
//! can be done in steps: what another partition needs to know whether its inodes have the names that they say.
//!
//! Memory: as many inodes as were asked for; the first ones of the range, and how far these go. Not here: what is
//! concluded (`fsck`, `review`).
use crate::encoding::{Dentry, TxLock};
use crate::key::{self, Kind};
use crate::snapshot::NamespaceSnapshot;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

/// Names of one inode.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Names {
    pub count: u32,
    /// A directory that has one.
    pub directory: u64,
    /// That name.
    pub name: Vec<u8>,
    /// A bit for each `d_type` that they say.
    pub types: u32,
    /// An operation across partitions has the directory of one of them locked: it may be about to go.
    pub open: bool,
}

impl Names {
    /// Those of another partition besides.
    pub fn add(&mut self, other: &Names) {
        if self.count == 0 {
            (self.directory, self.name) = (other.directory, other.name.clone());
        }
        self.count += other.count;
        self.types |= other.types;
        self.open |= other.open;
    }
}

/// What operations across partitions have locked in a version: inodes, and the numbers of the locks.
pub(crate) fn locks_in(snapshot: &NamespaceSnapshot) -> (BTreeSet<u64>, BTreeSet<u64>) {
    let prefix = key::prefix(0, Kind::TxLock);
    let mut range = snapshot.tree.prefix(prefix.as_bytes());
    let (mut inodes, mut numbers) = (BTreeSet::new(), BTreeSet::new());
    while let Some((_, value)) = range.next() {
        let Some(lock) = TxLock::decode(value) else { continue };
        inodes.extend(lock.all());
        numbers.insert(lock.number);
    }
    (inodes, numbers)
}

/// A walk over the names of a version.
pub struct NameScan {
    first: u64,
    /// Names of inodes up to this one are complete.
    last: u64,
    only: Option<BTreeSet<u64>>,
    /// These alone are not wanted.
    own: Option<RangeInclusive<u64>>,
    inodes_max: usize,
    from: Vec<u8>,
    locked: BTreeSet<u64>,
    locks: BTreeSet<u64>,
    found: BTreeMap<u64, Names>,
}

impl NameScan {
    /// Of inodes of this range, of at most so many: the first ones.
    pub fn of_range(snapshot: &NamespaceSnapshot, first: u64, last: u64, inodes_max: usize) -> Self {
        let (locked, locks) = locks_in(snapshot);
        let found = BTreeMap::new();
        Self {
            first,
            last,
            only: None,
            own: None,
            inodes_max: inodes_max.max(1),
            from: Vec::new(),
            locked,
            locks,
            found,
        }
    }

    /// Of these alone, with one of the names.
    pub fn of(snapshot: &NamespaceSnapshot, inodes: impl IntoIterator<Item = u64>) -> Self {
        let only = Some(inodes.into_iter().collect());
        Self { only, ..Self::of_range(snapshot, 1, u64::MAX, usize::MAX) }
    }

    /// Of inodes from this one on that are not the partition's own, of at most so many, with one of the names.
    pub fn of_others(snapshot: &NamespaceSnapshot, first: u64, inodes_max: usize) -> Self {
        let own = Some(snapshot.inode_first..=snapshot.inode_last);
        Self { own, ..Self::of_range(snapshot, first, u64::MAX, inodes_max) }
    }

    /// Looks at up to `entries` more entries. False when all is done.
    pub fn step(&mut self, snapshot: &NamespaceSnapshot, entries: usize) -> bool {
        let mut cursor = snapshot.tree.cursor();
        let mut found = cursor.seek(&self.from);
        for _ in 0..entries {
            if !found {
                return false;
            }
            if let Some((directory, Kind::Dentry, name)) = key::split(cursor.key())
                && directory != 0
                && let Some(dentry) = Dentry::decode(cursor.value())
            {
                self.visit(directory, name, dentry);
            }
            found = cursor.advance();
        }
        self.from.clear();
        self.from.extend_from_slice(cursor.key());
        found
    }

    fn visit(&mut self, directory: u64, name: &[u8], dentry: Dentry) {
        let wanted = match &self.only {
            Some(only) => only.contains(&dentry.inode),
            None => self.first <= dentry.inode && dentry.inode <= self.last,
        };
        let wanted = wanted && self.own.as_ref().is_none_or(|own| !own.contains(&dentry.inode));
        if !wanted {
            return;
        }
        let names = self.found.entry(dentry.inode).or_default();
        if names.count == 0 {
            names.directory = directory;
            if self.only.is_some() || self.own.is_some() {
                names.name = name.to_vec();
            }
        }
        names.count += 1;
        names.types |= 1 << (dentry.d_type & 15);
        names.open |= self.locked.contains(&directory);
        if self.found.len() > self.inodes_max
            && let Some((beyond, _)) = self.found.pop_last()
        {
            self.last = beyond - 1;
        }
    }

    /// The inodes with their names, up to which inode these are complete, and the numbers of the locks in the version.
    pub fn into_parts(self) -> (BTreeMap<u64, Names>, u64, BTreeSet<u64>) {
        (self.found, self.last, self.locks)
    }
}
