//! What has no name any more: holds that keep it, and how the rest is taken apart.
//!
//! Invariant: an inode with nlink 0 is held, or it is in the list of dead inodes, or it is gone in the same operation.
//! A removed tree is its root in that list with everything below still attached; `ReclaimBatch` works it off in bounded
//! steps, and counters fall as it does.
use crate::encoding::{Dentry, Extent, FreeRecord, Hold, Inode};
use crate::error::{OpError, Result};
use crate::key::{self, Kind};
use crate::limits::INLINE_EXTENTS_MAX;
use crate::namespace::Namespace;

const DEAD_FILE: [u8; 1] = [0x10];
const DEAD_DIRECTORY: [u8; 1] = [0x11];
const LISTED: [u8; 1] = [0x10];

/// What waits for `ReclaimBatch`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reclaimable {
    /// Dead files and roots of removed trees, but for those that wait for `ReclaimEntry`.
    pub inodes: u64,
    /// Ended sessions with holds.
    pub sessions: u64,
    /// Files that were cut and have extents behind their end.
    pub cuts: u64,
    /// Directories whose entries are to be counted by another quota; 0 while an operation across partitions has locked
    /// the next one.
    pub recounts: u64,
    /// Snapshots that are being deleted.
    pub snapshots: u64,
    /// Inodes that readers may have open: only for a batch that says up to which death.
    pub deferred: u64,
}

impl Reclaimable {
    /// Nothing but what is deferred.
    pub const fn is_empty(&self) -> bool {
        self.inodes == 0 && self.sessions == 0 && self.cuts == 0 && self.recounts == 0 && self.snapshots == 0
    }
}

/// What is left of an inode without names and holders.
#[derive(Default)]
struct Remains {
    keys: Vec<Vec<u8>>,
    extents: Vec<Extent>,
}

/// What one batch may still do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    pub inodes: usize,
    pub extents: usize,
}

impl Budget {
    pub fn is_used_up(&self) -> bool {
        self.inodes == 0 || self.extents == 0
    }
    pub fn take_inode(&mut self) {
        self.inodes = self.inodes.saturating_sub(1);
    }
}

impl Namespace {
    /// What waits for `ReclaimBatch`; the leader proposes batches until it is empty.
    pub fn reclaimable(&self) -> Reclaimable {
        Reclaimable {
            inodes: self.counters.dead_inodes - self.waiting.directories,
            sessions: self.counters.dead_sessions,
            cuts: self.cuts,
            recounts: if self.recount_waits() { 0 } else { self.recounts },
            snapshots: self.dying_snapshots(),
            deferred: self.deferred,
        }
    }

    /// Free records with ids greater than `after`, at most `max`, ascending.
    pub fn pending_frees(&self, after: u64, max: usize) -> Vec<FreeRecord> {
        let prefix = key::prefix(0, Kind::FreeRecord);
        let mut records = Vec::new();
        let mut cursor = self.tree.cursor();
        let mut found = cursor.seek(key::free_record(after.saturating_add(1)).as_bytes());
        while found && records.len() < max {
            let Some(suffix) = cursor.key().strip_prefix(prefix.as_bytes()) else { break };
            let record = key::number(suffix).and_then(|id| FreeRecord::decode(id, cursor.value()));
            records.push(record.expect("free records were written by this partition and checked when loaded"));
            found = cursor.advance();
        }
        records
    }

    /// True when any session holds the inode, or an operation across partitions has locked it.
    pub(crate) fn is_held(&self, inode: u64) -> bool {
        self.txs.is_locked(inode) || self.has_hold(inode)
    }

    /// True when any session holds the inode.
    pub(crate) fn has_hold(&self, inode: u64) -> bool {
        self.counters.holds > 0 && {
            let prefix = key::prefix(inode, Kind::Hold);
            let mut cursor = self.tree.cursor();
            cursor.seek(prefix.as_bytes()) && cursor.key().starts_with(prefix.as_bytes())
        }
    }

    /// The hold of a session on an inode.
    pub(crate) fn hold_of(&self, session: u64, inode: u64) -> Option<Hold> {
        if self.counters.holds == 0 {
            return None;
        }
        Hold::decode(self.tree.get(key::hold(inode, session).as_bytes())?)
    }

    /// True when the session opened the file for writing.
    pub(crate) fn may_write_by_hold(&self, session: u64, inode: u64) -> bool {
        self.hold_of(session, inode).is_some_and(|hold| hold.write)
    }

    /// Notes that a session holds an inode. Holding twice is holding once; writing stays allowed.
    pub(crate) fn add_hold(&mut self, session: u64, inode: u64, write: bool) {
        let before = self.hold_of(session, inode);
        let hold = Hold { write: write || before.is_some_and(|hold| hold.write) };
        self.tree.put(key::hold(inode, session).as_bytes(), &hold.encode());
        if before.is_none() {
            self.tree.put(key::session_hold(session, inode).as_bytes(), &LISTED);
            self.counters.holds += 1;
        }
    }

    /// Lets go of an inode. The last holder of a file without a name takes it along. False when it was not held.
    pub(crate) fn remove_hold(&mut self, session: u64, inode: u64) -> Result<bool> {
        if self.hold_of(session, inode).is_none() {
            return Ok(false);
        }
        let mut attributes = self.stored_inode(inode)?;
        if attributes.lease.is_some_and(|lease| lease.session == session) {
            self.lose_lease(inode, &mut attributes, session);
        }
        self.tree.remove(key::hold(inode, session).as_bytes());
        self.tree.remove(key::session_hold(session, inode).as_bytes());
        self.counters.holds -= 1;
        // A removed tree's root may be held while it is being taken apart: that goes on.
        if attributes.nlink == 0 && !self.is_listed_dead(inode) && !self.is_deferred(inode) {
            self.put_or_bury(inode, &attributes)?;
        }
        Ok(true)
    }

    pub(crate) fn is_listed_dead(&self, inode: u64) -> bool {
        self.counters.dead_inodes > 0
            && (self.tree.contains_key(key::dead_inode(inode).as_bytes()) || self.is_waiting_directory(inode))
    }

    /// Stores a file whose number of links changed; without links and holders it goes.
    pub(crate) fn put_or_bury(&mut self, inode: u64, attributes: &Inode) -> Result<()> {
        // Whoever has it is told, and does the rest.
        if attributes.nlink > 0 || self.txs.is_guest(inode) {
            self.put_inode(inode, attributes);
            return Ok(());
        }
        if self.is_held(inode) {
            self.put_inode(inode, attributes);
            return Ok(());
        }
        if self.deferring && !attributes.unnamed {
            self.defer(inode, attributes);
            return Ok(());
        }
        self.bury_unless_held(inode, attributes)
    }

    /// Takes an inode with nlink 0 apart if that is little work, else puts it into the list of the dead. An empty
    /// directory is little work.
    pub(crate) fn bury_unless_held(&mut self, inode: u64, attributes: &Inode) -> Result<()> {
        if self.is_held(inode) {
            return Ok(());
        }
        self.forget_cut(inode);
        self.forget_volatile(inode);
        self.forget_appending(inode);
        self.forget_staged(inode);
        self.forget_locks(inode)?;
        let Some(remains) = self.remains(inode)? else {
            self.put_inode(inode, attributes);
            self.list_dead(inode, attributes);
            return Ok(());
        };
        self.free_all(inode, &remains.extents);
        for key in &remains.keys {
            self.tree.remove(key);
        }
        self.free_references(inode, &remains.extents);
        self.subtract_inode(inode, attributes);
        Ok(())
    }

    /// All keys of an inode and its extents, if that is little.
    fn remains(&self, inode: u64) -> Result<Option<Remains>> {
        let prefix = key::of_inode(inode);
        let mut remains = Remains::default();
        let mut cursor = self.tree.cursor();
        let mut found = cursor.seek(&prefix);
        while found && cursor.key().starts_with(&prefix) {
            if remains.keys.len() > INLINE_EXTENTS_MAX {
                return Ok(None);
            }
            if let Some((_, Kind::Extent, suffix)) = key::split(cursor.key()) {
                let extent = key::file_offset(suffix).and_then(|offset| Extent::decode(offset, cursor.value()));
                remains.extents.push(extent.ok_or(OpError::DAMAGED)?);
            }
            remains.keys.push(cursor.key().to_vec());
            found = cursor.advance();
        }
        Ok(Some(remains))
    }

    /// Puts an inode into the list of the dead. Its attributes with nlink 0 are stored by the caller.
    pub(crate) fn list_dead(&mut self, inode: u64, attributes: &Inode) {
        if self.txs.is_guest(inode) {
            return;
        }
        self.forget_waiting_entries(inode);
        let value = if attributes.is_dir() { &DEAD_DIRECTORY } else { &DEAD_FILE };
        let is_new = self.tree.put(key::dead_inode(inode).as_bytes(), value);
        assert!(is_new, "inode {inode} dies once");
        self.counters.dead_inodes += 1;
        self.counters.dead_directories += u64::from(attributes.is_dir());
    }

    fn unlist_dead(&mut self, inode: u64, attributes: &Inode) {
        let waited = self.is_waiting_directory(inode);
        self.waiting.directories -= u64::from(waited);
        let key = if waited { key::waiting_directory(inode) } else { key::dead_inode(inode) };
        let was_there = self.tree.remove(key.as_bytes());
        assert!(was_there, "inode {inode} was taken from the list");
        self.counters.dead_inodes -= 1;
        self.counters.dead_directories -= u64::from(attributes.is_dir());
    }

    /// Removes all keys of an inode whose extents have been freed, and its part of the totals.
    fn forget_inode(&mut self, inode: u64, attributes: &Inode) {
        self.tree.remove_prefix(&key::of_inode(inode));
        self.subtract_inode(inode, attributes);
    }

    fn subtract_inode(&mut self, inode: u64, attributes: &Inode) {
        self.uncount_inode(inode, attributes);
        self.forget_waiting_entries(inode);
        self.counters.inodes -= 1;
        self.counters.directories -= u64::from(attributes.is_dir());
        if attributes.is_regular() {
            self.counters.file_bytes -= attributes.size;
        }
        self.counters.stored_bytes -= attributes.stored;
    }

    /// Works off what is dead, as far as the budget goes.
    pub(crate) fn reclaim(&mut self, mut budget: Budget, deferred_to: u64) -> Result<()> {
        while !budget.is_used_up() {
            if let Some(session) = self.first_listed(Kind::DeadSession) {
                self.release_dead_session(session, &mut budget)?;
            } else if let Some(inode) = self.first_listed(Kind::DeadInode) {
                let attributes = self.stored_inode(inode)?;
                if attributes.is_dir() {
                    self.reclaim_directory(inode, attributes, &mut budget)?;
                } else {
                    self.reclaim_file(inode, attributes, &mut budget)?;
                }
            } else if !self.reclaim_deferred(deferred_to, &mut budget)?
                && !self.reclaim_recount(&mut budget)?
                && !self.reclaim_cut(&mut budget)?
                && !self.reclaim_snapshot(&mut budget)?
            {
                break;
            }
        }
        Ok(())
    }

    pub(crate) fn first_listed(&self, kind: Kind) -> Option<u64> {
        let prefix = key::prefix(0, kind);
        let mut cursor = self.tree.cursor();
        cursor.seek(prefix.as_bytes());
        key::number(cursor.key().strip_prefix(prefix.as_bytes())?)
    }

    /// Puts the holds of an ended session into the list of what is to be released.
    pub(crate) fn list_dead_session(&mut self, session: u64) {
        if self.tree.put(key::dead_session(session).as_bytes(), &LISTED) {
            self.counters.dead_sessions += 1;
        }
    }

    /// Releases holds of an ended session; true when none are left.
    pub(crate) fn release_holds(&mut self, session: u64, budget: &mut Budget) -> Result<bool> {
        let prefix = key::session_holds(session);
        let mut inodes = Vec::new();
        let mut is_last = true;
        let mut range = self.tree.prefix(prefix.as_bytes());
        while let Some((found, _)) = range.next() {
            if inodes.len() == budget.inodes {
                is_last = false;
                break;
            }
            inodes.push(key::number(&found[prefix.as_bytes().len()..]).ok_or(OpError::DAMAGED)?);
        }
        for inode in inodes {
            self.remove_hold(session, inode)?;
            budget.take_inode();
        }
        Ok(is_last)
    }

    fn release_dead_session(&mut self, session: u64, budget: &mut Budget) -> Result<()> {
        if self.release_holds(session, budget)? && self.release_locks(session, budget)? {
            self.tree.remove(key::dead_session(session).as_bytes());
            self.counters.dead_sessions -= 1;
            budget.take_inode();
        }
        Ok(())
    }

    fn reclaim_file(&mut self, inode: u64, mut attributes: Inode, budget: &mut Budget) -> Result<()> {
        let (count, bytes) = self.take_dead_extents(inode, budget.extents)?;
        self.lose_stored(&mut attributes, bytes);
        budget.extents -= count;
        if attributes.stored > 0 {
            self.put_inode(inode, &attributes);
            return Ok(());
        }
        self.unlist_dead(inode, &attributes);
        self.forget_inode(inode, &attributes);
        budget.take_inode();
        Ok(())
    }

    /// Unlinks entries of a dead directory; subdirectories die in turn. Gone when it is empty, unless it is held. An
    /// entry whose inode is locked, led by a session, or another partition's, is noted and waits.
    fn reclaim_directory(&mut self, inode: u64, mut attributes: Inode, budget: &mut Budget) -> Result<()> {
        let entries = self.entries_after(inode, &self.last_waiting(inode), budget.inodes)?;
        for (name, dentry) in &entries {
            budget.take_inode();
            let led = self.delegations.hides(dentry.inode);
            if led || self.txs.is_locked(dentry.inode) || self.is_foreign(dentry.inode) {
                self.note_waiting(inode, name, dentry.inode);
                continue;
            }
            self.remove_dentry(inode, name);
            attributes.size -= 1;
            self.unlink_dead_entry(*dentry)?;
        }
        if attributes.size == 0 {
            budget.take_inode();
            return self.end_dead_directory(inode, &attributes);
        }
        self.put_inode(inode, &attributes);
        if entries.is_empty() {
            self.list_waiting(inode);
            budget.take_inode();
        }
        Ok(())
    }

    /// The last entry of a dead directory is gone.
    pub(crate) fn end_dead_directory(&mut self, inode: u64, attributes: &Inode) -> Result<()> {
        self.unlist_dead(inode, attributes);
        if self.is_held(inode) {
            self.put_inode(inode, attributes);
            return Ok(());
        }
        self.forget_locks(inode)?;
        self.forget_inode(inode, attributes);
        Ok(())
    }

    pub(crate) fn unlink_dead_entry(&mut self, dentry: Dentry) -> Result<()> {
        let mut child = self.stored_inode(dentry.inode)?;
        if child.nlink == 0 {
            return Ok(());
        }
        child.touch(self.time);
        if child.is_dir() {
            child.nlink = 0;
            child.parent = 0;
            self.put_inode(dentry.inode, &child);
            self.list_dead(dentry.inode, &child);
            return Ok(());
        }
        child.nlink -= 1;
        self.put_or_bury(dentry.inode, &child)
    }
}
