//! Proof of a version of the namespace, in steps and in bounded memory, however large it is: every inode has a name or
//! a reason to be without one, every directory leads to the root, numbers of links, sizes, totals and quotas are what
//! they count, extents of a file are in order.
//!
//! Four walks: [`Stage::Entries`] looks at each inode's own keys and adds up totals; [`Stage::Links`] counts the names
//! of a part of the inodes at a time; [`Stage::Tree`] climbs from each directory; [`Stage::Shares`] counts who names
//! shared blocks (`share_check`). Memory: the inodes of a part, one sum a quota, [`FINDINGS_MAX`] findings. Not here:
//! chunks on data nodes (`meta`), mending (`mend`).
mod finding;

use finding::is_unfinished;
pub use finding::{Finding, FsckReport, Mend};

use crate::counters::Counters;
use crate::cut::decode_mark;
use crate::encoding::{Dentry, Extent, Inode, QuotaRecord, TxLock};
use crate::key::{self, Kind};
use crate::names_of::Names;
use crate::review::SUSPECTS_MAX;
use crate::shards::is_stored_name;
use crate::share_check::ShareCheck;
use crate::snapshot::NamespaceSnapshot;
use cairn_tree::Cursor;
use cairn_types::InodeId;
use std::collections::{BTreeMap, BTreeSet};

/// Findings kept one by one; more are counted.
pub const FINDINGS_MAX: usize = 10_000;
/// Places of unfinished clones that are told.
pub const UNFINISHED_MAX: usize = 100;
/// Directories known to lead to the root that are remembered.
const KNOWN_DIRECTORIES: usize = 64 << 10;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Entries,
    Links,
    Tree,
    Shares,
    Done,
}

/// How much of other partitions a check asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Others {
    /// What they may have is left to them.
    Unasked,
    /// The part's names here were counted; those of others are waited for.
    Waiting,
    Asked,
}

/// What is known of the inode whose keys are being walked over.
#[derive(Default)]
struct Group {
    id: u64,
    attributes: Option<Inode>,
    keys: u64,
    entries: u64,
    subdirectories: u64,
    stored: u64,
    /// End of the last extent.
    end: u64,
    holds: u64,
    deferred: bool,
}

/// An inode of the part whose names are counted.
struct Linked {
    id: u64,
    nlink: u32,
    is_dir: bool,
    d_type: u8,
    parent: u64,
    names: u32,
}

/// The check of one version.
pub struct Fsck {
    stage: Stage,
    /// Where the walk of the stage goes on.
    from: Vec<u8>,
    group: Group,
    totals: Counters,
    quotas: BTreeMap<u64, QuotaRecord>,
    /// Bytes and inodes as counted.
    quota_sums: BTreeMap<u64, (u64, u64)>,
    /// Inodes of one part.
    part_max: usize,
    part: Vec<Linked>,
    /// The part is complete, and names are being counted.
    counting: bool,
    /// The part has the inodes from here on …
    part_from: u64,
    /// … up to this one, with which the next part begins; `None`: there is none.
    next_part: Option<u64>,
    known: BTreeSet<u64>,
    /// By operations across partitions, in this version.
    locked: BTreeSet<u64>,
    shares: ShareCheck,
    others: Others,
    /// Inodes whose names in all partitions do not seem to fit.
    suspects: BTreeSet<u64>,
    /// Directories of other partitions in which ones of this partition lie.
    exits: BTreeSet<u64>,
    /// Directories in which clones are built, or were when their builders died.
    unfinished: Vec<u64>,
    findings: Vec<Finding>,
    /// Of all, kept or not.
    found: u64,
}

impl Fsck {
    /// `part_max`: inodes whose names are counted together, 32 bytes each.
    pub fn new(part_max: usize) -> Self {
        Self {
            stage: Stage::Entries,
            from: Vec::new(),
            group: Group::default(),
            totals: Counters::default(),
            quotas: BTreeMap::new(),
            quota_sums: BTreeMap::new(),
            part_max: part_max.max(1),
            part: Vec::new(),
            counting: false,
            part_from: 0,
            next_part: None,
            known: BTreeSet::new(),
            locked: BTreeSet::new(),
            shares: ShareCheck::default(),
            others: Others::Unasked,
            suspects: BTreeSet::new(),
            exits: BTreeSet::new(),
            unfinished: Vec::new(),
            findings: Vec::new(),
            found: 0,
        }
    }

    /// The same for a partition of several: it asks for what the others name ([`wants_names`](Self::wants_names)).
    pub fn with_others(part_max: usize) -> Self {
        Self { others: Others::Asked, ..Self::new(part_max) }
    }

    /// Of which inodes the other partitions' names are wanted before it goes on: from the first to the last one.
    pub fn wants_names(&self, snapshot: &NamespaceSnapshot) -> Option<(u64, u64)> {
        let last = self.next_part.map_or(snapshot.inode_last, |next| next - 1);
        (self.others == Others::Waiting).then(|| (self.part_from.max(snapshot.inode_first), last))
    }

    /// Another partition has these names for inodes of this one.
    pub fn add_names(&mut self, names: impl IntoIterator<Item = (u64, Names)>) {
        for (id, names) in names {
            let Ok(at) = self.part.binary_search_by_key(&id, |linked| linked.id) else {
                self.suspect(id);
                continue;
            };
            let linked = &mut self.part[at];
            linked.names += names.count;
            let elsewhere = linked.is_dir && names.directory != linked.parent;
            if elsewhere || names.types != 1 << (linked.d_type & 15) {
                self.suspect(id);
            }
        }
    }

    /// All others have told their names; `false`: one did not answer, so what they have is left to them from now on.
    pub fn names_are_told(&mut self, snapshot: &NamespaceSnapshot, all: bool) {
        self.others = if all { Others::Asked } else { Others::Unasked };
        if !all {
            // Some may have been told.
            self.part.clear();
        }
        self.end_links(snapshot);
    }

    /// Inodes that have to be looked at again.
    pub fn take_suspects(&mut self) -> BTreeSet<u64> {
        std::mem::take(&mut self.suspects)
    }

    /// Directories of other partitions that have to lead to the root.
    pub fn take_exits(&mut self) -> BTreeSet<u64> {
        std::mem::take(&mut self.exits)
    }

    /// How many of them there are.
    pub fn exits(&self) -> usize {
        self.exits.len()
    }

    fn suspect(&mut self, id: u64) {
        if self.suspects.len() <= SUSPECTS_MAX {
            self.suspects.insert(id);
        }
    }

    /// Looks at up to `entries` more entries. False when all is done.
    pub fn step(&mut self, snapshot: &NamespaceSnapshot, entries: usize) -> bool {
        if self.others == Others::Waiting {
            return true;
        }
        let mut cursor = snapshot.tree.cursor();
        let mut found = cursor.seek(&self.from);
        for _ in 0..entries {
            if !found {
                break;
            }
            self.visit(snapshot, &cursor);
            // A part that is full needs no more of this walk.
            let full = self.stage == Stage::Links && !self.counting && self.next_part.is_some();
            found = !full && cursor.advance();
        }
        self.from.clear();
        self.from.extend_from_slice(cursor.key());
        if !found {
            self.end_walk(snapshot);
        }
        self.stage != Stage::Done
    }

    /// What was found.
    pub fn into_report(self) -> FsckReport {
        FsckReport {
            inodes: self.totals.inodes,
            directories: self.totals.directories,
            unfinished: self.unfinished,
            findings: self.findings,
            found: self.found,
        }
    }

    fn visit(&mut self, snapshot: &NamespaceSnapshot, cursor: &Cursor<'_>) {
        let Some((inode, kind, suffix)) = key::split(cursor.key()) else {
            if self.stage == Stage::Entries {
                self.find(0, format!("the key {:?} is none of this version", cursor.key()), None);
            }
            return;
        };
        match self.stage {
            Stage::Entries => self.visit_entry(snapshot, inode, kind, suffix, cursor.value()),
            Stage::Links => self.visit_link(snapshot, inode, kind, cursor.value()),
            Stage::Tree if kind == Kind::Attributes => self.climb(snapshot, inode, cursor.value()),
            Stage::Shares => {
                if let Some(text) = self.shares.visit(inode, kind, suffix, cursor.value(), self.part_max) {
                    self.find(inode, text, None);
                }
            }
            Stage::Tree | Stage::Done => {}
        }
    }

    /// The walk came to its end: the next one, or the next part.
    fn end_walk(&mut self, snapshot: &NamespaceSnapshot) {
        match self.stage {
            Stage::Entries => {
                self.end_group(snapshot);
                self.end_entries(snapshot);
                self.stage = Stage::Links;
            }
            Stage::Links if !self.counting => self.counting = true,
            Stage::Links if self.others == Others::Asked => self.others = Others::Waiting,
            Stage::Links => return self.end_links(snapshot),
            Stage::Tree => self.stage = Stage::Shares,
            Stage::Shares => {
                let mut findings = Vec::new();
                let more = self.shares.end_walk(|text| findings.push(text));
                findings.into_iter().for_each(|text| self.find(0, text, None));
                if !more {
                    self.stage = Stage::Done;
                }
            }
            Stage::Done => {}
        }
        self.from.clear();
    }

    /// All names of the part were counted.
    fn end_links(&mut self, snapshot: &NamespaceSnapshot) {
        self.end_part(snapshot);
        self.from.clear();
        match self.next_part.take() {
            Some(next) => {
                (self.counting, self.part_from) = (false, next);
                self.from.extend_from_slice(&key::of_inode(next));
            }
            None => self.stage = Stage::Tree,
        }
    }

    fn find(&mut self, inode: u64, text: impl Into<String>, mend: Option<Mend>) {
        self.found += 1;
        // What is changed now, the operation that has it locked would set to what it saw.
        let mend = mend.filter(|_| !self.locked.contains(&inode));
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(Finding { inode, text: text.into(), mend });
        }
    }

    // --- entries ---

    fn visit_entry(&mut self, snapshot: &NamespaceSnapshot, inode: u64, kind: Kind, suffix: &[u8], value: &[u8]) {
        if inode == 0 {
            return self.visit_list(kind, suffix, value);
        }
        if self.group.id != inode {
            self.end_group(snapshot);
            self.group = Group { id: inode, ..Group::default() };
        }
        let group = &mut self.group;
        group.keys += 1;
        let readable = match kind {
            Kind::Attributes => {
                group.attributes = Inode::decode(value);
                group.attributes.is_some()
            }
            Kind::Dentry => match Dentry::decode(value) {
                Some(dentry) => {
                    group.entries += 1;
                    group.subdirectories += u64::from(dentry.is_dir());
                    if dentry.is_dir() && is_unfinished(suffix) && self.unfinished.len() < UNFINISHED_MAX {
                        self.unfinished.push(dentry.inode);
                    }
                    is_stored_name(suffix)
                }
                None => false,
            },
            Kind::Extent => return self.visit_extent(snapshot, suffix, value),
            Kind::Hold => {
                group.holds += 1;
                self.totals.holds += 1;
                true
            }
            Kind::Deferral => {
                group.deferred = true;
                true
            }
            _ => true,
        };
        if !readable {
            self.find(inode, format!("an entry of kind {kind:?} cannot be read"), None);
        }
    }

    fn visit_list(&mut self, kind: Kind, suffix: &[u8], value: &[u8]) {
        match kind {
            Kind::DeadInode => {
                self.totals.dead_inodes += 1;
                self.totals.dead_directories += u64::from(value == [0x11]);
            }
            Kind::WaitingDirectory => {
                self.totals.dead_inodes += 1;
                self.totals.dead_directories += 1;
            }
            Kind::TxLock => match TxLock::decode(value) {
                Some(lock) => self.locked.extend(lock.all()),
                None => self.find(0, "a lock of an operation across partitions cannot be read", None),
            },
            Kind::FreeRecord => self.totals.free_records += 1,
            Kind::DeadSession => self.totals.dead_sessions += 1,
            Kind::Quota => match (key::number(suffix), QuotaRecord::decode(value)) {
                (Some(directory), Some(record)) => drop(self.quotas.insert(directory, record)),
                _ => self.find(0, "the record of a quota cannot be read", None),
            },
            _ => {}
        }
    }

    fn visit_extent(&mut self, snapshot: &NamespaceSnapshot, suffix: &[u8], value: &[u8]) {
        let id = self.group.id;
        let extent = key::file_offset(suffix).and_then(|offset| Extent::decode(offset, value));
        let Some(extent) = extent else { return self.find(id, "an extent cannot be read", None) };
        self.group.stored += extent.length;
        let (before, size) = (self.group.end, self.group.attributes.as_ref().map_or(0, |a| a.size));
        self.group.end = extent.end();
        if extent.file_offset < before {
            self.find(id, format!("extents overlap at offset {}", extent.file_offset), None);
        }
        if extent.end() > size {
            let mark = snapshot.tree.get(key::cut(id).as_bytes()).and_then(decode_mark);
            if mark.is_none_or(|mark| extent.file_offset < mark) {
                self.find(id, format!("an extent goes to {}, the size is {size}", extent.end()), None);
            }
        }
    }

    /// All keys of an inode were seen.
    fn end_group(&mut self, snapshot: &NamespaceSnapshot) {
        let group = std::mem::take(&mut self.group);
        if group.id == 0 {
            return;
        }
        let Some(inode) = group.attributes else {
            return self.find(group.id, format!("has {} keys and no attributes that can be read", group.keys), None);
        };
        self.totals.inodes += 1;
        if inode.is_dir() {
            self.totals.directories += 1;
            self.check_directory(&group, &inode);
        } else if inode.is_regular() {
            self.totals.file_bytes += inode.size;
        }
        self.totals.stored_bytes += inode.stored;
        if inode.stored != group.stored {
            self.find(
                group.id,
                format!("says that {} bytes are stored, its extents have {}", inode.stored, group.stored),
                None,
            );
        }
        if inode.nlink == 0 {
            // What an operation across partitions has locked may get a name by it.
            let waits = snapshot.is_listed_dead(group.id) || self.locked.contains(&group.id);
            if group.holds == 0 && !group.deferred && !waits {
                let text = "has no name, is not open, and nothing takes it apart";
                self.find(group.id, text, adopt_in(snapshot));
            }
        }
        self.count_quota(group.id, &inode);
    }

    fn check_directory(&mut self, group: &Group, inode: &Inode) {
        if inode.size != group.entries {
            self.find(group.id, format!("says that it has {} entries, it has {}", inode.size, group.entries), None);
        }
        let links = 2 + group.subdirectories;
        if inode.nlink != 0 && u64::from(inode.nlink) != links {
            let mend = i32::try_from(links as i64 - i64::from(inode.nlink)).ok().map(Mend::Links);
            self.find(group.id, format!("has {} links, 2 and its subdirectories are {links}", inode.nlink), mend);
        }
    }

    fn count_quota(&mut self, id: u64, inode: &Inode) {
        if inode.quota == 0 {
            return;
        }
        let own = inode.is_dir() && inode.quota == id;
        let mut at = if own { self.quotas.get(&id).map_or(0, |record| record.outer) } else { inode.quota };
        if own && !self.quotas.contains_key(&id) {
            self.find(id, "says that it has a quota, there is none", None);
        }
        // Quotas lie in each other, so there are no more steps than quotas.
        for _ in 0..self.quotas.len() {
            if at == 0 {
                return;
            }
            let sum = self.quota_sums.entry(at).or_default();
            *sum = (sum.0 + inode.stored, sum.1 + 1);
            at = self.quotas.get(&at).map_or(0, |record| record.outer);
        }
        if at != 0 {
            self.find(id, "is counted by a quota that is not there, or by a circle of them", None);
        }
    }

    /// All inodes were seen: totals and quotas.
    fn end_entries(&mut self, snapshot: &NamespaceSnapshot) {
        let (kept, counted) = (snapshot.counters.to_array(), self.totals.to_array());
        if kept != counted {
            let change = std::array::from_fn(|at| counted[at].wrapping_sub(kept[at]) as i64);
            let text = format!("the totals are kept as {:?}, counted {:?}", snapshot.counters, self.totals);
            self.find(0, text, Some(Mend::Counters(change)));
        }
        for (directory, record) in std::mem::take(&mut self.quotas) {
            let (bytes, inodes) = self.quota_sums.remove(&directory).unwrap_or_default();
            if (record.bytes, record.inodes) != (bytes, inodes) {
                let change = |counted: u64, kept: u64| counted.wrapping_sub(kept) as i64;
                let mend = Mend::Quota { bytes: change(bytes, record.bytes), inodes: change(inodes, record.inodes) };
                let text = format!(
                    "its quota says {} bytes and {} inodes, counted are {bytes} and {inodes}",
                    record.bytes, record.inodes
                );
                self.find(directory, text, Some(mend));
            }
        }
    }

    // --- links ---

    fn visit_link(&mut self, snapshot: &NamespaceSnapshot, inode: u64, kind: Kind, value: &[u8]) {
        if !self.counting {
            if kind == Kind::Attributes {
                self.collect_linked(inode, value);
            }
            return;
        }
        if kind != Kind::Dentry || inode == 0 {
            return;
        }
        let Some(dentry) = Dentry::decode(value) else { return };
        let is_of_part = dentry.inode >= self.part_from && self.next_part.is_none_or(|next| dentry.inode < next);
        match self.part.binary_search_by_key(&dentry.inode, |linked| linked.id) {
            Ok(at) => {
                let linked = &mut self.part[at];
                linked.names += 1;
                if linked.is_dir && linked.parent != inode {
                    let text = format!("has a name in directory {inode}, its parent is {}", linked.parent);
                    let id = linked.id;
                    self.find(id, text, None);
                }
            }
            // Whether another partition has its own is asked there.
            Err(_) if is_of_part && snapshot.is_own(dentry.inode) => {
                self.find(inode, format!("has an entry for inode {}, which is not there", dentry.inode), None);
            }
            Err(_) => {}
        }
    }

    fn collect_linked(&mut self, id: u64, value: &[u8]) {
        if self.part.len() == self.part_max {
            self.next_part = Some(id);
            return;
        }
        if let Some(inode) = Inode::decode(value) {
            let (nlink, is_dir, parent) = (inode.nlink, inode.is_dir(), inode.parent);
            self.part.push(Linked { id, nlink, is_dir, d_type: inode.d_type(), parent, names: 0 });
        }
    }

    fn end_part(&mut self, snapshot: &NamespaceSnapshot) {
        for linked in std::mem::take(&mut self.part) {
            let Linked { id, nlink, is_dir, names, parent, .. } = linked;
            let root = id == InodeId::ROOT.0;
            if self.others == Others::Asked {
                let expected = if is_dir { u32::from(nlink > 0 && !root) } else { nlink };
                if names != expected {
                    self.suspect(id);
                }
                continue;
            }
            let named_here = nlink > 0 && !root && snapshot.is_own(parent);
            let expected = if is_dir { u32::from(named_here) } else { nlink };
            // The others may be in other partitions.
            let some = !is_dir && names < nlink && snapshot.is_one_of_several();
            if names == expected || some {
                continue;
            }
            let dead = snapshot.is_listed_dead(id);
            match (names, is_dir) {
                (0, _) if nlink > 0 && !dead => {
                    self.find(id, "has no name and says that it has", adopt_in(snapshot));
                }
                (_, false) => {
                    let mend = i32::try_from(i64::from(names) - i64::from(nlink)).ok().map(Mend::Links);
                    self.find(id, format!("says that it has {nlink} names, it has {names}"), mend);
                }
                _ => self.find(id, format!("is a directory with {names} names"), None),
            }
        }
    }

    // --- tree ---

    /// From a directory up to the root, or to one that is known to lead there.
    fn climb(&mut self, snapshot: &NamespaceSnapshot, id: u64, value: &[u8]) {
        let Some(inode) = Inode::decode(value).filter(|inode| inode.is_dir() && inode.nlink > 0) else { return };
        let (mut at, mut steps) = (inode.parent, 0);
        let mut way = vec![id];
        while at != InodeId::ROOT.0 && !self.known.contains(&at) {
            if !snapshot.is_own(at) {
                if self.others == Others::Asked {
                    self.exits.insert(at);
                }
                break;
            }
            let above = snapshot.tree.get(key::attributes(at).as_bytes()).and_then(Inode::decode);
            let Some(above) = above.filter(Inode::is_dir) else {
                return self.find(id, format!("lies in directory {at}, which is not there"), None);
            };
            if above.nlink == 0 {
                // In a tree that was removed and is being taken apart.
                return;
            }
            steps += 1;
            if steps > self.totals.directories {
                return self.find(id, "is in a circle of directories", None);
            }
            if way.len() < 256 {
                way.push(at);
            }
            at = above.parent;
        }
        if self.known.len() + way.len() > KNOWN_DIRECTORIES {
            self.known.clear();
        }
        self.known.extend(way);
    }
}

/// `lost+found` is where the root is.
fn adopt_in(snapshot: &NamespaceSnapshot) -> Option<Mend> {
    snapshot.is_own(InodeId::ROOT.0).then_some(Mend::Adopt)
}

#[cfg(test)]
mod tests;
