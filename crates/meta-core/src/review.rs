//! [`Review`]: inodes that did not seem to have the names that they say, looked at again while the volume is in use.
//!
//! Partitions cannot be looked at in one moment, so names and inodes of different ones never fit exactly while
//! something is renamed. Each *look* takes a version of the inodes' partition first, then one of each other partition.
//! A fault is one if [`LOOKS`] looks one after the other see it, the inode was unlocked and unchanged in all of them,
//! and no lock that any partition had in the first of them is left in the next one.
//!
//! Why that is enough: an operation that changes names of an inode locks the inode in its partition from before it is
//! decided until its part is done there, or is decided there; both change the inode. So none was decided between the
//! first look and the last one. One that was decided before and is not finished everywhere has a lock elsewhere since
//! before the first look, and is finished when that lock is gone. What the second look sees then is how it stays.
//!
//! Memory: [`SUSPECTS_MAX`] inodes. Not here: who asks whom (`meta`).
use crate::encoding::Inode;
use crate::fsck::{Finding, Mend};
use crate::key;
use crate::names_of::{Names, locks_in};
use crate::snapshot::NamespaceSnapshot;
use cairn_types::InodeId;
use std::collections::{BTreeMap, BTreeSet};

/// Inodes of one review; more are left to the next check.
pub const SUSPECTS_MAX: usize = 4096;
/// Looks one after the other that have to see the same.
const LOOKS: usize = 3;

/// An inode as its partition has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct State {
    generation: u64,
    nlink: u32,
    is_dir: bool,
    d_type: u8,
    parent: u64,
}

/// One inode in one look.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Sight {
    /// `None`: it is not there.
    state: Option<State>,
    /// An operation has it, or one of its names, locked.
    open: bool,
    /// It was removed, or waits to be taken apart.
    dead: bool,
    names: Names,
}

/// What one look saw, while it is taken.
pub struct Look {
    sights: BTreeMap<u64, Sight>,
    /// Partition and number.
    locks: BTreeSet<(u32, u64)>,
}

impl Look {
    /// Begins with the inodes' own partition.
    pub fn new(snapshot: &NamespaceSnapshot, inodes: &[u64]) -> Self {
        let (locked, numbers) = locks_in(snapshot);
        let sight = |id: u64| {
            let inode = snapshot.tree.get(key::attributes(id).as_bytes()).and_then(Inode::decode);
            let state = inode.map(|inode| State {
                generation: inode.generation,
                nlink: inode.nlink,
                is_dir: inode.is_dir(),
                d_type: inode.d_type(),
                parent: inode.parent,
            });
            let dead = snapshot.is_listed_dead(id);
            (id, Sight { state, open: locked.contains(&id), dead, names: Names::default() })
        };
        let locks = numbers.into_iter().map(|number| (snapshot.partition, number)).collect();
        Self { sights: inodes.iter().map(|id| sight(*id)).collect(), locks }
    }

    /// What a partition names of them, and the locks that it had then.
    pub fn add(
        &mut self,
        partition: u32,
        names: impl IntoIterator<Item = (u64, Names)>,
        locks: impl IntoIterator<Item = u64>,
    ) {
        for (id, names) in names {
            if let Some(sight) = self.sights.get_mut(&id) {
                sight.names.add(&names);
                sight.open |= names.open;
            }
        }
        self.locks.extend(locks.into_iter().map(|number| (partition, number)));
    }
}

/// What is wrong with an inode and its names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    WithoutInode,
    OfOtherType,
    OfOtherParent,
    WithoutName,
    Links,
}

impl Sight {
    fn fault(&self) -> Option<Fault> {
        let Some(state) = self.state else { return (self.names.count > 0).then_some(Fault::WithoutInode) };
        if self.names.count > 0 && self.names.types != 1 << (state.d_type & 15) {
            return Some(Fault::OfOtherType);
        }
        let expected = if state.is_dir { u32::from(state.nlink > 0) } else { state.nlink };
        match self.names.count {
            // What was removed with a tree has lost its name, and goes.
            0 if expected > 0 && !self.dead => Some(Fault::WithoutName),
            0 => None,
            count if count != expected && !self.dead => Some(Fault::Links),
            _ if state.is_dir && self.names.directory != state.parent && !self.dead => Some(Fault::OfOtherParent),
            _ => None,
        }
    }
}

/// What became of a suspect so far.
#[derive(Default)]
struct Trail {
    /// The last sights that were alike.
    sights: Vec<Sight>,
    confirmed: bool,
}

/// Inodes that are looked at again.
pub struct Review {
    trails: BTreeMap<u64, Trail>,
    /// Of the last looks.
    locks: Vec<BTreeSet<(u32, u64)>>,
    left_out: bool,
}

impl Review {
    /// Of these inodes.
    pub fn new(suspects: impl IntoIterator<Item = u64>) -> Self {
        let mut trails = BTreeMap::new();
        let mut left_out = false;
        for id in suspects.into_iter().filter(|id| *id != InodeId::ROOT.0) {
            left_out |= trails.len() == SUSPECTS_MAX;
            if trails.len() < SUSPECTS_MAX {
                trails.insert(id, Trail::default());
            }
        }
        Self { trails, locks: Vec::new(), left_out }
    }

    /// Whether there were more than are looked at.
    pub fn has_left_out(&self) -> bool {
        self.left_out
    }

    /// Those that have to be looked at once more.
    pub fn open(&self) -> Vec<u64> {
        self.trails.iter().filter(|(_, trail)| !trail.confirmed).map(|(id, _)| *id).collect()
    }

    /// Takes a look into account that all partitions have added to.
    pub fn conclude(&mut self, look: Look) {
        self.locks.push(look.locks);
        let overlap =
            |from: usize| self.locks.get(from).zip(self.locks.get(from + 1)).is_none_or(|(a, b)| !a.is_disjoint(b));
        let first = self.locks.len().checked_sub(LOOKS);
        let settled = first.is_some_and(|first| !overlap(first));
        for (id, sight) in look.sights {
            let Some(trail) = self.trails.get_mut(&id).filter(|trail| !trail.confirmed) else { continue };
            if sight.open {
                trail.sights.clear();
                continue;
            }
            if sight.fault().is_none() {
                self.trails.remove(&id);
                continue;
            }
            let alike = |last: &Sight| {
                last.state == sight.state && last.names.count == sight.names.count && last.fault() == sight.fault()
            };
            if !trail.sights.last().is_none_or(alike) {
                trail.sights.clear();
            }
            trail.sights.push(sight);
            trail.confirmed = settled && trail.sights.len() >= LOOKS;
        }
    }

    /// What was confirmed. `gets_names`: what has no name gets one, as the partition has the root, and `lost+found`
    /// with it, or all understand how it gets one there.
    pub fn into_suspicions(self, gets_names: bool) -> Vec<Suspicion> {
        let confirmed = self.trails.into_iter().filter(|(_, trail)| trail.confirmed);
        confirmed.filter_map(|(id, trail)| suspicion(id, trail.sights.last()?, gets_names)).collect()
    }
}

/// What a review confirmed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Suspicion {
    pub finding: Finding,
    /// Where it has a name: directory and name.
    pub place: Option<(u64, Vec<u8>)>,
}

fn suspicion(id: u64, sight: &Sight, gets_names: bool) -> Option<Suspicion> {
    let Names { count, directory, name: bytes, .. } = &sight.names;
    let place = (*count > 0).then(|| (*directory, bytes.clone()));
    let name = String::from_utf8_lossy(bytes);
    let (text, mend) = match (sight.fault()?, sight.state) {
        (Fault::WithoutInode, _) | (_, None) => {
            let text = format!("inode {id}, for which directory {directory} has this name, is not there");
            (text, Some(Mend::Name))
        }
        (Fault::OfOtherType, Some(_)) => {
            (format!("the name {name:?} in directory {directory} says that it is of another type"), None)
        }
        (Fault::OfOtherParent, Some(state)) => {
            (format!("has the name {name:?} in directory {directory}, its parent is {}", state.parent), None)
        }
        (Fault::WithoutName, Some(state)) => {
            let mend = gets_names.then_some(Mend::AdoptUnchanged { generation: state.generation });
            ("has no name in any partition and says that it has".to_owned(), mend)
        }
        (Fault::Links, Some(state)) if state.is_dir => {
            (format!("is a directory with {count} names, one of them {name:?} in directory {directory}"), None)
        }
        (Fault::Links, Some(state)) => {
            let mend = i32::try_from(i64::from(*count) - i64::from(state.nlink)).ok().map(Mend::Links);
            (format!("says that it has {} names, it has {count}", state.nlink), mend)
        }
    };
    Some(Suspicion { finding: Finding { inode: id, text, mend }, place })
}
