//! The state, its entry points, and sessions.
use crate::caller::Caller;
use crate::locks::LockOwner;
use crate::node::{Attributes, Body, Node};
use crate::operation::{Operation, Reply};
use cairn_types::ErrorCode;
use std::collections::{BTreeMap, BTreeSet};

/// Circumstances of a mutation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    pub caller: Caller,
    pub session: u64,
    pub slot: u32,
    pub sequence: u64,
    pub now: u64,
}

/// The tree.
#[derive(Clone, Debug)]
pub struct Model {
    pub nodes: BTreeMap<u64, Node>,
    /// (session, inode) → open for writing.
    pub holds: BTreeMap<(u64, u64), bool>,
    /// Blocks of chunks that were used and are not any more.
    pub free: BTreeSet<(u32, u32, u64)>,
    pub next_inode: u64,
    /// Readers may have open what loses its last name: it stays until [`Model::reclaim_deferred`].
    pub deferring: bool,
    pub deferred: BTreeSet<u64>,
    /// Directories with quotas; 0: the volume.
    pub quotas: BTreeSet<u64>,
    /// (inode, flock, byte) → owner → for writing.
    pub locks: BTreeMap<(u64, bool, u64), BTreeMap<LockOwner, bool>>,
    /// Several files may name a block.
    pub(crate) shares: bool,
    answers: BTreeMap<(u64, u32), (u64, Reply)>,
    ended: BTreeSet<u64>,
}

/// The root directory.
pub const ROOT: u64 = 1;

impl Model {
    pub fn new(mode: u32, layout: u64, now: u64) -> Self {
        let root = Node {
            mode: 0o040_000 | mode,
            uid: 0,
            gid: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            layout,
            generation: 1,
            data_version: 0,
            body: Body::Directory { parent: ROOT, entries: BTreeMap::new() },
            xattrs: BTreeMap::new(),
            linkable: false,
        };
        Model {
            nodes: BTreeMap::from([(ROOT, root)]),
            holds: BTreeMap::new(),
            free: BTreeSet::new(),
            next_inode: 2,
            deferring: false,
            deferred: BTreeSet::new(),
            quotas: BTreeSet::new(),
            locks: BTreeMap::new(),
            shares: false,
            answers: BTreeMap::new(),
            ended: BTreeSet::new(),
        }
    }

    /// Executes a mutation once; a repeat gets the same answer.
    pub fn apply(&mut self, request: &Request, operation: &Operation) -> Reply {
        if self.ended.contains(&request.session) {
            return Err(ErrorCode::SessionEnded);
        }
        let slot = (request.session, request.slot);
        let last = self.answers.get(&slot).map_or(0, |(sequence, _)| *sequence);
        if last > 0 && request.sequence == last {
            return self.answers[&slot].1;
        }
        if request.sequence != last + 1 {
            return Err(ErrorCode::BadSequence);
        }
        let reply = self.execute(request, operation);
        self.answers.insert(slot, (request.sequence, reply));
        reply
    }

    fn execute(&mut self, request: &Request, operation: &Operation) -> Reply {
        let answered = match operation {
            Operation::Mkdir { parent, name, mode, layout, umask } => {
                self.mkdir(request, *parent, name, *mode, *layout, *umask)?
            }
            Operation::Create(create) => self.create(request, create)?,
            Operation::Symlink { parent, name, target } => self.symlink(request, *parent, name, target)?,
            Operation::CreateUnnamed { parent, mode, layout, umask } => {
                self.create_unnamed(request, *parent, *mode, *layout, *umask)?
            }
            Operation::Link { inode, parent, name, replace } => {
                self.link(request, *inode, *parent, name, *replace)?;
                *inode
            }
            Operation::Setattr(set) => {
                self.setattr(request, set)?;
                set.inode
            }
            Operation::Publish(publish) => {
                self.publish(request, publish)?;
                publish.inode
            }
            Operation::SetQuota { inode, limited } => return self.set_quota(request, *inode, *limited).map(|()| None),
            Operation::SetLock(lock) => return self.set_lock(request, lock).map(|()| None),
            Operation::Punch(punch) => {
                self.punch(request, punch)?;
                punch.inode
            }
            Operation::Hold { inode, write } => {
                self.hold(request, *inode, *write)?;
                *inode
            }
            Operation::Unlink { parent, name } => return self.unlink(request, *parent, name).map(|()| None),
            Operation::Rmdir { parent, name } => return self.rmdir(request, *parent, name).map(|()| None),
            Operation::RemoveTree { parent, name } => return self.remove_tree(request, *parent, name).map(|()| None),
            Operation::Rename { parent, name, new_parent, new_name, flags } => {
                return self.rename(request, (*parent, name), (*new_parent, new_name), *flags).map(|()| None);
            }
            Operation::SetXattr { inode, name, value, flags } => {
                return self.set_xattr(request, *inode, name, value, *flags).map(|()| None);
            }
            Operation::RemoveXattr { inode, name } => return self.remove_xattr(request, *inode, name).map(|()| None),
            Operation::Release { inode } => {
                self.holds.remove(&(request.session, *inode));
                self.sweep();
                return Ok(None);
            }
        };
        Ok(Some(self.attributes(answered)))
    }

    /// Ends a session: what only it held is gone.
    pub fn end_session(&mut self, session: u64) {
        self.ended.insert(session);
        self.answers.retain(|(owner, _), _| *owner != session);
        self.holds.retain(|(owner, _), _| *owner != session);
        self.locks.values_mut().for_each(|owners| owners.retain(|(owner, _), _| *owner != session));
        self.sweep();
    }

    /// What stat(2) shows of a node.
    pub fn attributes(&self, inode: u64) -> Attributes {
        let node = &self.nodes[&inode];
        let size = match &node.body {
            Body::File(bytes) => bytes.len(),
            Body::Directory { entries, .. } => entries.len(),
            Body::Symlink(target) => target.len(),
            Body::Special { .. } => 0,
        };
        Attributes {
            inode,
            mode: node.mode,
            nlink: self.links(inode),
            uid: node.uid,
            gid: node.gid,
            size: size as u64,
            atime: node.atime,
            mtime: node.mtime,
            ctime: node.ctime,
            btime: node.btime,
            layout: node.layout,
            generation: node.generation,
            rdev: if let Body::Special { rdev } = node.body { rdev } else { 0 },
            stored: node.bytes().iter().flatten().count() as u64,
            data_version: node.data_version,
        }
    }

    /// Names of a file; 2 + subdirectories of a directory that has a name.
    pub fn links(&self, inode: u64) -> u32 {
        let names = self.nodes.values().flat_map(|n| n.entries().into_values()).filter(|i| *i == inode).count() as u32;
        let node = &self.nodes[&inode];
        if !node.is_directory() {
            return names;
        }
        if names == 0 && inode != ROOT {
            return 0;
        }
        2 + node.entries().into_values().filter(|i| self.nodes[i].is_directory()).count() as u32
    }

    pub(crate) fn is_held(&self, inode: u64) -> bool {
        self.holds.keys().any(|(_, held)| *held == inode)
    }

    /// Removes what has neither a name nor a holder, again and again until nothing changes.
    pub(crate) fn sweep(&mut self) {
        let gone: Vec<u64> =
            self.nodes.keys().copied().filter(|i| *i != ROOT && self.links(*i) == 0 && !self.is_held(*i)).collect();
        for inode in gone {
            if self.deferred.contains(&inode) {
                continue;
            }
            if self.deferring && !self.nodes[&inode].linkable {
                self.deferred.insert(inode);
                continue;
            }
            let node = self.nodes.remove(&inode).expect("it was listed");
            assert!(node.entries().is_empty(), "directories are emptied before they go");
            self.locks.retain(|(locked, _, _), _| *locked != inode);
            self.lose(node.blocks());
        }
    }

    fn set_quota(&mut self, request: &Request, inode: u64, limited: bool) -> Result<(), ErrorCode> {
        if !request.caller.is_root() {
            return Err(ErrorCode::NotPermitted);
        }
        if inode != 0 {
            let node = self.existing(inode)?;
            if !node.is_directory() {
                return Err(ErrorCode::NotDirectory);
            }
            if self.links(inode) == 0 {
                return Err(ErrorCode::NotFound);
            }
            if !limited && !self.quotas.contains(&inode) {
                return Err(ErrorCode::NoAttribute);
            }
            self.node(inode).changed(request.now);
        }
        if limited {
            self.quotas.insert(inode)
        } else {
            self.quotas.remove(&inode)
        };
        Ok(())
    }

    /// All readers know by now what lost its name.
    pub fn reclaim_deferred(&mut self) {
        let before = std::mem::replace(&mut self.deferring, false);
        self.deferred.clear();
        self.sweep();
        self.deferring = before;
    }

    /// A node that is there: named, held, or deferred.
    pub(crate) fn existing(&self, inode: u64) -> Result<&Node, ErrorCode> {
        self.nodes.get(&inode).ok_or(ErrorCode::Stale)
    }

    /// A directory of the tree that the caller may search.
    pub(crate) fn searchable(&self, inode: u64, caller: &Caller) -> Result<&Node, ErrorCode> {
        let node = self.existing(inode)?;
        if !node.is_directory() {
            return Err(ErrorCode::NotDirectory);
        }
        if self.links(inode) == 0 {
            return Err(ErrorCode::NotFound);
        }
        if caller.can_execute(node) { Ok(node) } else { Err(ErrorCode::PermissionDenied) }
    }

    pub(crate) fn entry(&self, directory: u64, name: &[u8]) -> Option<u64> {
        match &self.nodes[&directory].body {
            Body::Directory { entries, .. } => entries.get(name).copied(),
            _ => None,
        }
    }

    pub(crate) fn set_entry(&mut self, directory: u64, name: &[u8], inode: u64) {
        let node = self.nodes.get_mut(&directory).expect("the caller looked");
        if let Body::Directory { entries, .. } = &mut node.body {
            entries.insert(name.to_vec(), inode);
        }
    }

    pub(crate) fn drop_entry(&mut self, directory: u64, name: &[u8]) {
        let node = self.nodes.get_mut(&directory).expect("the caller looked");
        if let Body::Directory { entries, .. } = &mut node.body {
            entries.remove(name);
        }
    }

    pub(crate) fn node(&mut self, inode: u64) -> &mut Node {
        self.nodes.get_mut(&inode).expect("the caller looked")
    }
}
