//! [`MarkBook`]: what a node remembers of how far members of Raft groups got, in memory and in a file.
//!
//! A node that hosts members keeps the marks that they and their leaders tell; every node keeps those of the managers.
//! They count when one of these members starts ([`cairn_raft::marks`]). What the witness of this node's own members
//! said is kept here until their groups are opened: the manager for meta partitions, the nodes for the manager's group.
//!
//! So is, durably, of which groups a person accepted that this node's member has forgotten something.
//!
//! Invariants: a mark never goes back while its member is one; those of former members go with the next view of the
//! group; marks alone are written at most every [`FLUSH_PAUSE`]. A damaged file is set aside: what it said of others is
//! gathered anew, and all members here count as such that have forgotten something.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cairn_env::{Clock, Disk, DiskError, OpenOptions};
use cairn_format::marks::{LOSS_ACCEPTED, MARKS_MAX, MARKS_VERSION, MarkEntry, MarkList, MarkListError};
use cairn_raft::{Mark, Testimony};
use cairn_store::StoreError;
use cairn_types::{DiskUuid, GroupId, NodeId, Time};
use parking_lot::Mutex;

const FILE: &str = "marks";
const TEMP: &str = "marks.tmp";
const DAMAGED: &str = "marks.damaged";
/// No list of the format is longer.
const LEN_MAX: u64 = 64 + 32 * MARKS_MAX as u64;
/// The file is not written again before.
pub const FLUSH_PAUSE: Duration = Duration::from_secs(2);

/// What is remembered of a group.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GroupMarks {
    /// An entry that was applied when the group had these members.
    pub index: u64,
    /// Its members.
    pub members: BTreeMap<NodeId, Mark>,
}

impl GroupMarks {
    /// Takes over another view: the newer one says who is a member, an older one only raises marks.
    pub fn merge(&mut self, view: &GroupMarks) {
        if view.members.is_empty() {
            return;
        }
        if view.index >= self.index {
            self.index = view.index;
            self.members.retain(|node, _| view.members.contains_key(node));
            for node in view.members.keys() {
                self.members.entry(*node).or_default();
            }
        }
        for (node, mark) in &view.members {
            if let Some(known) = self.members.get_mut(node) {
                *known = (*known).max(*mark);
            }
        }
    }
}

#[derive(Default)]
struct Inner {
    groups: BTreeMap<GroupId, GroupMarks>,
    /// Groups whose member here has forgotten something, as a person accepted.
    forgot: BTreeSet<GroupId>,
    dirty: bool,
    flushed: Option<Time>,
    /// What the manager said of this node's members of partitions, once it was heard; others are unknown to it.
    partitions: Option<BTreeMap<GroupId, Mark>>,
    /// What nodes said of this node's member of the manager's group.
    manager: Option<Testimony>,
}

/// The marks that a node knows.
pub struct MarkBook {
    disk: Arc<dyn Disk>,
    clock: Arc<dyn Clock>,
    dir: DiskUuid,
    /// The file was damaged as it was opened.
    damaged: bool,
    inner: Mutex<Inner>,
    /// Held by whoever writes the file.
    writing: Mutex<()>,
    /// Rises with each testimony.
    testimonies: AtomicU64,
}

impl std::fmt::Debug for MarkBook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MarkBook").field("disk", &self.disk.name()).finish_non_exhaustive()
    }
}

impl MarkBook {
    /// Reads what the directory of this uuid has; without a file nothing is known.
    pub fn open(disk: Arc<dyn Disk>, clock: Arc<dyn Clock>, dir: DiskUuid) -> Result<Self, StoreError> {
        let (mut inner, mut damaged) = (Inner::default(), false);
        match read(disk.as_ref(), dir) {
            Ok(list) => list.entries.into_iter().for_each(|entry| {
                let group = inner.groups.entry(entry.group).or_default();
                match entry.node.0 {
                    0 => {
                        group.index = entry.index;
                        if entry.term == LOSS_ACCEPTED {
                            inner.forgot.insert(entry.group);
                        }
                    }
                    _ => drop(group.members.insert(entry.node, Mark { term: entry.term, index: entry.index })),
                }
            }),
            Err(error @ StoreError::Corrupt { .. }) => {
                tracing::error!(%error, "what this node remembers of others is damaged; it is set aside and gathered anew");
                disk.rename(FILE, DAMAGED)?;
                damaged = true;
            }
            Err(error) => return Err(error),
        }
        let (inner, writing) = (Mutex::new(inner), Mutex::default());
        Ok(Self { disk, clock, dir, damaged, inner, writing, testimonies: AtomicU64::new(0) })
    }

    /// What is known of a group.
    pub fn known(&self, group: GroupId) -> GroupMarks {
        self.inner.lock().groups.get(&group).cloned().unwrap_or_default()
    }

    /// A view of a group's members, with their marks and an applied entry. An older view than the known one only raises
    /// marks.
    pub fn note(&self, group: GroupId, view: &GroupMarks) {
        if view.members.is_empty() {
            return;
        }
        let mut inner = self.inner.lock();
        let known = inner.groups.entry(group).or_default();
        // An entry more alone is not worth a write.
        let before = known.members.clone();
        known.merge(view);
        let news = known.members != before;
        inner.dirty |= news;
    }

    /// The node has left a group.
    pub fn forget(&self, group: GroupId) {
        let mut inner = self.inner.lock();
        inner.dirty |= inner.groups.remove(&group).is_some();
        inner.forgot.remove(&group);
        if let Some(partitions) = &mut inner.partitions {
            partitions.remove(&group);
        }
    }

    /// Writes it down if there is news and the last time is long enough ago.
    pub fn flush(&self) -> Result<(), StoreError> {
        let now = self.clock.now();
        {
            let inner = self.inner.lock();
            if !inner.dirty || inner.flushed.is_some_and(|at| now.since(at) < FLUSH_PAUSE) {
                return Ok(());
            }
        }
        self.write()
    }

    /// Whether something that this node's member of a group has forgotten, as a person accepted, is not known again.
    pub(crate) fn has_forgotten(&self, group: GroupId) -> bool {
        self.inner.lock().forgot.contains(&group)
    }

    /// The file was damaged: whether something was accepted is not known.
    pub(crate) fn is_damaged(&self) -> bool {
        self.damaged
    }

    /// Writes down, durably, whether it has; what could not be written is tried again with the next marks.
    pub(crate) fn set_forgotten(&self, group: GroupId, forgot: bool) -> Result<(), StoreError> {
        {
            let mut inner = self.inner.lock();
            inner.groups.entry(group).or_default();
            match forgot {
                true => inner.forgot.insert(group),
                false => inner.forgot.remove(&group),
            };
        }
        self.write()
    }

    fn write(&self) -> Result<(), StoreError> {
        // The later list is in the file at the end.
        let _writing = self.writing.lock();
        let list = {
            let mut inner = self.inner.lock();
            inner.dirty = false;
            inner.flushed = Some(self.clock.now());
            self.list(&inner)
        };
        let written = self.replace(&list);
        if written.is_err() {
            self.inner.lock().dirty = true;
        }
        written
    }

    fn list(&self, inner: &Inner) -> MarkList {
        let entry =
            |group: GroupId, node: NodeId, mark: Mark| MarkEntry { group, node, term: mark.term, index: mark.index };
        let of = |(group, marks): (&GroupId, &GroupMarks)| {
            let term = if inner.forgot.contains(group) { LOSS_ACCEPTED } else { 0 };
            let head = entry(*group, NodeId(0), Mark { term, index: marks.index });
            let group = *group;
            let members = marks.members.iter().map(move |(node, mark)| entry(group, *node, *mark));
            std::iter::once(head).chain(members).collect::<Vec<_>>()
        };
        let entries = inner.groups.iter().flat_map(of).take(MARKS_MAX).collect();
        MarkList { node: self.dir, entries }
    }

    fn replace(&self, list: &MarkList) -> Result<(), StoreError> {
        let file = self.disk.open(TEMP, OpenOptions::CREATE)?;
        file.set_len(0)?;
        file.write_at(&list.encode(), 0)?;
        file.sync_all()?;
        self.disk.rename(TEMP, FILE)?;
        self.disk.sync_dir("")?;
        Ok(())
    }

    /// The manager registered this node and said what it knows of its members of partitions.
    pub fn manager_said(&self, marks: BTreeMap<GroupId, Mark>) {
        self.inner.lock().partitions = Some(marks);
        self.testimonies.fetch_add(1, Ordering::Release);
    }

    /// Nodes said what they know of the managers; `own` is this node's member.
    pub fn nodes_said(&self, own: NodeId, view: &GroupMarks) {
        let mark = view.members.get(&own).copied();
        let left_before = if mark.is_none() && !view.members.is_empty() { view.index } else { 0 };
        let mut inner = self.inner.lock();
        let known = inner.manager.unwrap_or_default();
        let next = Testimony {
            mark: known.mark.max(mark.unwrap_or_default()),
            left_before: known.left_before.max(left_before),
        };
        if inner.manager.replace(next) != Some(next) {
            self.testimonies.fetch_add(1, Ordering::Release);
        }
    }

    /// Counts testimonies.
    pub(crate) fn testimonies(&self) -> u64 {
        self.testimonies.load(Ordering::Acquire)
    }

    /// What the witness said of this node's member of a group, if it was heard.
    pub(crate) fn testimony(&self, group: GroupId) -> Option<Testimony> {
        let inner = self.inner.lock();
        if group == GroupId::MANAGER {
            return inner.manager;
        }
        let mark = inner.partitions.as_ref()?.get(&group).copied().unwrap_or_default();
        Some(Testimony { mark, left_before: 0 })
    }
}

fn read(disk: &dyn Disk, dir: DiskUuid) -> Result<MarkList, StoreError> {
    let name = format!("{}/{FILE}", disk.name());
    let corrupt = |what: String| StoreError::Corrupt { file: name.clone(), offset: 0, what };
    let file = match disk.open(FILE, OpenOptions::READ) {
        Err(DiskError::NotFound { .. }) => return Ok(MarkList { node: dir, entries: Vec::new() }),
        Err(error) => return Err(error.into()),
        Ok(file) => file,
    };
    let len = file.len()?;
    if len > LEN_MAX {
        return Err(corrupt(format!("it has {len} bytes, more than any list of marks")));
    }
    let mut bytes = vec![0; len as usize];
    file.read_exact_at(&mut bytes, 0)?;
    let list = MarkList::decode(&bytes).map_err(|error| match error {
        MarkListError::Version(found) => StoreError::Version { file: name.clone(), found, known: MARKS_VERSION },
        other => corrupt(other.to_string()),
    })?;
    if list.node != dir {
        return Err(corrupt(format!("it belongs to the directory {}, not to {dir}", list.node)));
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_env::{RealClock, RealDisk};

    fn view(index: u64, members: &[(u32, u64, u64)]) -> GroupMarks {
        let members = members.iter().map(|&(node, term, index)| (NodeId(node), Mark { term, index })).collect();
        GroupMarks { index, members }
    }

    fn open(dir: &tempfile::TempDir) -> MarkBook {
        let disk = Arc::new(RealDisk::open(dir.path()).expect("a directory"));
        MarkBook::open(disk, Arc::new(RealClock), DiskUuid([7; 16])).expect("a book")
    }

    /// A member that was removed would be remembered for ever, or one that went on be forgotten.
    #[test]
    fn the_newest_view_counts_and_marks_only_grow() {
        let dir = tempfile::tempdir().expect("a directory");
        let (book, group) = (open(&dir), GroupId(4));
        book.note(group, &view(10, &[(1, 3, 9), (2, 3, 10)]));
        book.note(group, &view(12, &[(1, 3, 8), (3, 0, 0)]));
        assert_eq!(book.known(group), view(12, &[(1, 3, 9), (3, 0, 0)]));
        book.note(group, &view(11, &[(1, 4, 1), (2, 9, 9)]));
        assert_eq!(book.known(group), view(12, &[(1, 4, 1), (3, 0, 0)]), "an older view has no other members");
        book.flush().expect("written");
        assert_eq!(open(&dir).known(group), view(12, &[(1, 4, 1), (3, 0, 0)]));
    }

    /// A member would serve after its next start what it gives a second time; or never be trusted again.
    #[test]
    fn what_was_accepted_is_written_at_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let book = open(&dir);
        book.note(GroupId(4), &view(10, &[(1, 3, 9)]));
        book.flush().expect("written");
        for group in [4, 9] {
            book.set_forgotten(GroupId(group), true).expect("written");
        }
        let again = open(&dir);
        assert_eq!([4, 5, 9].map(|group| again.has_forgotten(GroupId(group))), [true, false, true]);
        assert_eq!(again.known(GroupId(4)), view(10, &[(1, 3, 9)]));
        again.set_forgotten(GroupId(9), false).expect("written");
        again.forget(GroupId(4));
        again.flush().expect("written");
        assert_eq!([4, 9].map(|group| again.has_forgotten(GroupId(group))), [false, false]);
        assert!(!open(&dir).has_forgotten(GroupId(9)) && !open(&dir).is_damaged());
    }

    /// A damaged memory would keep a node from starting, or count.
    #[test]
    fn a_damaged_file_is_set_aside() {
        let dir = tempfile::tempdir().expect("a directory");
        let book = open(&dir);
        book.note(GroupId(4), &view(10, &[(1, 3, 9)]));
        book.flush().expect("written");
        let path = dir.path().join(FILE);
        let mut bytes = std::fs::read(&path).expect("it is there");
        bytes[70] ^= 1;
        std::fs::write(&path, bytes).expect("written");
        let again = open(&dir);
        assert!(again.known(GroupId(4)) == GroupMarks::default() && again.is_damaged());
        assert!(dir.path().join(DAMAGED).exists() && !path.exists());
    }

    /// A member would be let in before its witness was heard, or a removed manager not be told.
    #[test]
    fn testimonies_are_kept_until_they_are_asked_for() {
        let dir = tempfile::tempdir().expect("a directory");
        let book = open(&dir);
        assert_eq!((book.testimony(GroupId(4)), book.testimony(GroupId::MANAGER)), (None, None));
        let mark = Mark { term: 3, index: 9 };
        book.manager_said([(GroupId(4), mark)].into());
        assert_eq!(book.testimony(GroupId(4)), Some(Testimony { mark, left_before: 0 }));
        assert_eq!(book.testimony(GroupId(5)), Some(Testimony::default()));
        book.nodes_said(NodeId(1), &view(20, &[(1, 3, 9), (2, 3, 10)]));
        book.nodes_said(NodeId(1), &view(15, &[(1, 3, 7), (2, 3, 10)]));
        assert_eq!(book.testimony(GroupId::MANAGER), Some(Testimony { mark, left_before: 0 }));
        book.nodes_said(NodeId(1), &view(30, &[(2, 3, 20), (3, 3, 20)]));
        assert_eq!(book.testimony(GroupId::MANAGER), Some(Testimony { mark, left_before: 30 }));
        assert_eq!(book.testimonies(), 3);
    }
}
