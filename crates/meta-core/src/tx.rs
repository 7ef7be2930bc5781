//! Operations across partitions: an operation whose inodes are not all in the partition that it is sent to.
//!
//! The partition of the request *decides*, those of the other inodes take part. The leader of the one that decides has
//! the others lock those inodes and say what they are (`TxPrepare`), puts the request with what they said into its log
//! (`TxDecide`), and has them do their part (`TxFinish`). Everybody's part is one entry of his log.
//!
//! The decision runs the operation as if all its inodes were here: what was prepared stands in the tree as *guests*
//! while it runs ([`crate::tx_guests`]), so that there is one code for an operation, with all its checks. What it did
//! to the guests is its record, which stays until all participants have finished (`TxDone`).
//!
//! | state at the one that decides | the operation |
//! |---|---|
//! | a record | was done |
//! | no record, and its leader leads in a later term than the operation's | was not done, and never will be: no entry of an earlier term follows one of a later term |
//! | no record, same term | its leader knows: whoever may still propose the decision is this leader alone |
//!
//! So nothing is logged for an operation that is given up, and a lock that is left over is resolved by asking.
//!
//! Invariants: an inode is locked by one operation at a time; what is locked is neither read nor changed by others;
//! what is locked is there until the operation has finished; effects are carried out once, whoever repeats them: they
//! name the lock under which they were prepared; an inode id is given out once. Moving a directory that has
//! subdirectories to another parent takes the lock of such moves (id 0 at the partition of the root), so that what is
//! above a directory stays the same while it is looked at; one that is locked all the same may have been moved, and is
//! waited for. Not here: who sends what to whom and when (the `meta` crate).
use crate::at_snapshot::At;
use crate::encoding::{Dentry, Inode, TxLock};
use crate::error::{OpError, Result};
use crate::inode_table::check_entry_name;
use crate::key::{self, Kind};
use crate::layers::Layer;
use crate::limits::TX_INODES_MAX;
use crate::namespace::Namespace;
use cairn_types::shard::is_shard_name;
use cairn_types::{ErrorCode, InodeId};
use cairn_wire::error::WireError;
use cairn_wire::meta;
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};

/// The lock of directories that change their parent.
pub const MOVES: u64 = 0;
const TAG: u8 = 0x10;

/// Names an operation across partitions: never given twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct TxId {
    /// That decides.
    pub partition: u32,
    /// In which its leader began it.
    pub term: u64,
    /// Ascending within the term.
    pub number: u64,
}

impl TxId {
    /// As it stands in messages.
    pub const fn wire(self) -> meta::TxId {
        meta::TxId { partition: self.partition, term: self.term, number: self.number }
    }

    /// From a message.
    pub const fn from_wire(wire: meta::TxId) -> TxId {
        TxId { partition: wire.partition, term: wire.term, number: wire.number }
    }

    fn read(wire: Option<meta::TxId>) -> Result<TxId> {
        wire.map(TxId::from_wire).ok_or(OpError::BAD_REQUEST)
    }
}

/// What operations across partitions have locked here, as in the tree; and what the one has that is being decided.
#[derive(Debug, Default)]
pub(crate) struct TxTable {
    locked: BTreeMap<u64, TxId>,
    held: BTreeMap<TxId, TxLock>,
    pub(crate) guests: BTreeSet<u64>,
    /// Asked for as guests, and no more.
    pub(crate) gone: BTreeSet<u64>,
    pub(crate) new_guest: u64,
    pub(crate) deciding: bool,
    pub(crate) moves_locked: bool,
    /// Inodes that are given out and not made.
    given: u64,
}

impl TxTable {
    #[inline]
    pub fn is_locked(&self, id: u64) -> bool {
        !self.locked.is_empty() && self.locked.contains_key(&id)
    }

    /// What was locked when a snapshot was cut and still is, by the numbers by which that is read.
    pub fn as_of(&self, at: At) -> TxTable {
        let mut table = TxTable::default();
        for (tx, lock) in self.held.iter().filter(|(_, lock)| lock.number < at.cut) {
            table.locked.extend(lock.all().filter(|id| *id != MOVES).map(|id| (id | at.outward, *tx)));
        }
        table
    }

    pub fn has_locks(&self) -> bool {
        !self.locked.is_empty()
    }

    pub const fn given(&self) -> u64 {
        self.given
    }

    fn hold(&mut self, tx: TxId, lock: TxLock) {
        self.locked.extend(lock.all().map(|id| (id, tx)));
        self.given += u64::from(lock.new_inode != 0);
        if let Some(before) = self.held.insert(tx, lock) {
            self.given -= u64::from(before.new_inode != 0);
        }
    }

    /// Whether these are the locks, and no inode has two.
    pub fn holds(&self, found: &BTreeMap<TxId, TxLock>) -> bool {
        let all = found.iter().flat_map(|(tx, lock)| lock.all().map(|id| (id, *tx)));
        let count = found.values().map(|lock| lock.all().count()).sum::<usize>();
        let given = found.values().filter(|lock| lock.new_inode != 0).count() as u64;
        given == self.given
            && *found == self.held
            && all.collect::<BTreeMap<_, _>>() == self.locked
            && count == self.locked.len()
    }

    /// Whether an inode of another partition stands in the tree for the operation that is being decided.
    #[inline]
    pub fn is_guest(&self, id: u64) -> bool {
        !self.guests.is_empty() && self.guests.contains(&id)
    }

    /// Whether any inode of another partition does.
    pub fn has_guests(&self) -> bool {
        !self.guests.is_empty() || self.new_guest != 0
    }

    /// Whether an inode of another partition is known not to be any more.
    #[inline]
    pub fn is_gone(&self, id: u64) -> bool {
        self.gone.contains(&id)
    }

    /// The id that another partition has given out for the operation.
    #[inline]
    pub fn new_guest(&self) -> Option<u64> {
        (self.new_guest != 0).then_some(self.new_guest)
    }

    #[inline]
    pub fn is_deciding(&self) -> bool {
        self.deciding
    }
}

/// What this partition knows of an operation that it decides.
#[derive(Clone, PartialEq, Debug)]
pub enum Outcome {
    /// It was done; this is a participant's part.
    Done(meta::TxEffects),
    /// There is no record.
    NoRecord,
}

/// For the server around it.
impl Namespace {
    /// Operations that have locked something here, at most so many.
    pub fn tx_locks(&self, max: usize) -> Vec<(TxId, TxLock)> {
        self.txs.held.iter().take(max).map(|(tx, lock)| (*tx, lock.clone())).collect()
    }

    /// Operations that this partition decided and that some participant may not have finished, with those, at most so
    /// many.
    pub fn tx_decisions(&self, max: usize) -> Vec<(TxId, meta::TxDecided)> {
        let prefix = key::prefix(0, Kind::TxDecision);
        let mut range = self.tree.prefix(prefix.as_bytes());
        let mut decisions = Vec::new();
        while let Some((found, value)) = range.next() {
            if decisions.len() == max {
                break;
            }
            let id = key::tx_of_decision(&found[prefix.as_bytes().len()..]);
            let (term, number) = id.expect("written by this partition and checked when loaded");
            let decided = decode_decided(value).expect("written by this partition and checked when loaded");
            decisions.push((TxId { partition: self.partition, term, number }, decided));
        }
        decisions
    }

    /// Whether nothing that is to be prepared is locked by another operation, or led by a session.
    pub fn tx_is_free(&self, prepare: &meta::TxPrepare) -> bool {
        let tx = prepare.tx.map(TxId::from_wire);
        let is_free =
            |id: &u64| self.txs.locked.get(id).is_none_or(|by| Some(*by) == tx) && !self.delegations.covers(*id);
        prepare.inodes.iter().all(is_free)
    }

    /// The record of one of them.
    pub fn tx_decision(&self, tx: TxId) -> Option<meta::TxDecided> {
        let value = self.tree.get(key::tx_decision(tx.term, tx.number).as_bytes());
        value.filter(|_| tx.partition == self.partition).and_then(decode_decided)
    }

    /// What is known here of an operation, for a participant.
    pub fn tx_outcome(&self, tx: TxId, participant: u32) -> Outcome {
        let effects =
            self.tx_decision(tx).and_then(|decided| decided.effects.into_iter().find(|e| e.partition == participant));
        effects.map_or(Outcome::NoRecord, Outcome::Done)
    }
}

/// What names are about; the rest may have changed with a session's end.
fn take_effect(inode: &mut Inode, after: &Inode) {
    (inode.nlink, inode.parent, inode.unnamed) = (after.nlink, after.parent, after.unnamed);
    inode.ctime = after.ctime;
    if inode.is_dir() {
        (inode.size, inode.mtime) = (after.size, after.mtime);
        (inode.shards, inode.sharded) = (after.shards, after.sharded);
    }
    if inode.is_shard {
        inode.take_from_sharded(after);
    }
    inode.generation = after.generation.max(inode.generation + 1);
}

pub(crate) fn decode_decided(value: &[u8]) -> Option<meta::TxDecided> {
    let message = value.strip_prefix(&[TAG])?;
    meta::TxDecided::decode(message).ok()
}

/// Participants.
impl Namespace {
    /// Locks inodes and answers what they are. Repeated, or with more inodes, it adds to what the operation has.
    pub(crate) fn tx_prepare(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let request = meta::TxPrepare::decode(bytes).map_err(|_| OpError::BAD_REQUEST)?;
        let tx = TxId::read(request.tx)?;
        let mut lock = self.txs.held.get(&tx).cloned().unwrap_or_else(|| TxLock {
            number: self.applied,
            since: self.time,
            ..TxLock::default()
        });
        for id in &request.inodes {
            let is_here = if *id == MOVES { self.is_own(InodeId::ROOT.0) } else { self.is_own(*id) };
            if !is_here {
                return Err(OpError::FOREIGN);
            }
            match self.txs.locked.get(id) {
                Some(other) if *other != tx => return Err(OpError::LOCKED),
                None if self.delegations.covers(*id) => {
                    self.refuse_delegated(*id);
                    return Err(OpError::LOCKED);
                }
                Some(_) => {}
                None => lock.inodes.push(*id),
            }
        }
        lock.inodes.sort_unstable();
        lock.inodes.dedup();
        if lock.inodes.len() > TX_INODES_MAX || request.names.len() > TX_INODES_MAX {
            return Err(OpError::new(ErrorCode::BadRequest, "an operation across partitions takes too many inodes"));
        }
        for name in &request.names {
            if !is_shard_name(&name.name) {
                check_entry_name(&name.name)?;
            }
            if lock.inodes.binary_search(&name.directory).is_err() {
                return Err(OpError::new(
                    ErrorCode::BadRequest,
                    "a name is looked up in a directory that is not locked",
                ));
            }
        }
        let is_given = request.new_inode && lock.new_inode == 0;
        if is_given {
            self.check_memory()?;
            self.check_volume(0, 1)?;
            lock.new_inode = self.next_inode()?;
        }
        let prepared = self.tx_prepared(&request, &lock)?;
        if is_given {
            self.inode_next = self.inode_next.wrapping_add(1);
        }
        self.put_tx_lock(tx, lock);
        prepared.encode(out).map_err(|_| OpError::DAMAGED)
    }

    fn tx_prepared(&self, request: &meta::TxPrepare, lock: &TxLock) -> Result<meta::TxPrepared> {
        let image = |id: &u64| if *id == MOVES { Ok(meta::TxInode::default()) } else { self.tx_image(*id) };
        let inodes = request.inodes.iter().map(image).collect::<Result<_>>()?;
        let look = |asked: &meta::TxName| {
            let there = self.dentry(asked.directory, &asked.name)?;
            let (inode, d_type) = there.map_or((0, 0), |there| (there.inode, u32::from(there.d_type)));
            Ok(meta::TxName { inode, d_type, ..asked.clone() })
        };
        let names = request.names.iter().map(look).collect::<Result<_>>()?;
        Ok(meta::TxPrepared { inodes, names, new_inode: lock.new_inode, lock: lock.number })
    }

    /// An inode as others see it that may have it as a guest; one that is no more has no attributes.
    fn tx_image(&self, id: u64) -> Result<meta::TxInode> {
        let mut inode = match self.stored_inode(id) {
            Ok(inode) => inode,
            Err(OpError::STALE) => return Ok(meta::TxInode { inode: id, ..meta::TxInode::default() }),
            Err(error) => return Err(error),
        };
        if inode.is_dir() && self.is_removed(&inode) {
            inode.nlink = 0;
        } else if inode.nlink == 0 && !self.has_hold(id) && !self.is_deferred(id) {
            return Ok(meta::TxInode { inode: id, ..meta::TxInode::default() });
        }
        let mut attributes = Vec::new();
        inode.encode(&mut attributes);
        let xattrs = if inode.acl || inode.default_acl { self.tx_xattrs(id) } else { Vec::new() };
        Ok(meta::TxInode { inode: id, attributes, xattrs })
    }

    pub(crate) fn tx_xattrs(&self, id: u64) -> Vec<meta::TxXattr> {
        let prefix = key::prefix(id, Kind::Xattr);
        let mut range = self.tree.prefix(prefix.as_bytes());
        let mut xattrs = Vec::new();
        while let Some((found, value)) = range.next() {
            let name = &found[prefix.as_bytes().len()..];
            if crate::acl::is_acl(name) {
                xattrs.push(meta::TxXattr { name: name.to_vec(), value: value.to_vec() });
            }
        }
        xattrs
    }

    /// Directories above one, itself first, as far as they are in this partition: for an operation that holds the lock
    /// of moves. Refused while another one has locked any of them: it may have moved it, and not be finished here. One
    /// that is gone has no attributes.
    pub fn tx_above(&self, tx: TxId, directory: u64) -> std::result::Result<Vec<meta::TxInode>, WireError> {
        let (mut at, mut above) = (directory, Vec::new());
        while let Ok(inode) = self.stored_inode(at) {
            if self.txs.locked.get(&at).is_some_and(|by| *by != tx) || self.delegations.covers(at) {
                return Err(OpError::LOCKED.to_wire());
            }
            let mut attributes = Vec::new();
            inode.encode(&mut attributes);
            above.push(meta::TxInode { inode: at, attributes, xattrs: Vec::new() });
            if !inode.is_dir() || inode.parent == at {
                break;
            }
            at = inode.parent;
        }
        if above.is_empty() {
            above.push(meta::TxInode { inode: directory, ..meta::TxInode::default() });
        }
        Ok(above)
    }

    /// Ends an operation here: does its part, or nothing. Unknown: it has ended before.
    pub(crate) fn tx_finish(&mut self, bytes: &[u8]) -> Result<()> {
        let request = meta::TxFinish::decode(bytes).map_err(|_| OpError::BAD_REQUEST)?;
        let tx = TxId::read(request.tx)?;
        let Some(lock) = self.txs.held.get(&tx).filter(|lock| lock.number == request.lock).cloned() else {
            return Ok(());
        };
        // A request to prepare that came late has locked anew what was finished before.
        let effects = request.effects.filter(|effects| effects.lock == lock.number).unwrap_or_default();
        let changes = self.tx_changes(&lock, &effects)?;
        self.remove_tx_lock(tx);
        // Snapshots that were cut after the decision have it.
        let older = self.snapshots.up_to(effects.after_snapshot);
        self.change_older(&changes, &effects, older);
        self.tree.set_newest(older);
        let done = self.carry_out(&lock, &changes, &effects);
        self.tree.set_newest(self.snapshots.newest());
        done?;
        for id in lock.inodes.iter().filter(|id| !changes.contains_key(*id)) {
            // Whoever held it has gone meanwhile.
            if let Ok(inode) = self.stored_inode(*id)
                && inode.nlink == 0
                && !self.is_listed_dead(*id)
                && !self.is_deferred(*id)
            {
                self.put_or_bury(*id, &inode)?;
            }
        }
        Ok(())
    }

    fn carry_out(&mut self, lock: &TxLock, changes: &BTreeMap<u64, Inode>, effects: &meta::TxEffects) -> Result<()> {
        for effect in effects.inodes.iter().filter(|effect| changes.get(&effect.inode).is_some_and(|i| i.is_shard)) {
            self.take_acls(effect);
        }
        for (id, inode) in changes {
            self.carry_out_on_inode(*id, inode)?;
        }
        if let Some(new) = effects.inodes.iter().find(|new| new.inode == lock.new_inode && new.inode != 0) {
            self.carry_out_new(new)?;
        }
        for name in &effects.names {
            self.carry_out_on_name(name);
        }
        Ok(())
    }

    /// What was locked has no images of since, unless somebody changed what is not of names: those get what names are
    /// about.
    fn change_older(&mut self, changes: &BTreeMap<u64, Inode>, effects: &meta::TxEffects, older: Option<Layer>) {
        if older == self.snapshots.newest() {
            return;
        }
        for effect in effects.inodes.iter().filter(|effect| changes.contains_key(&effect.inode)) {
            let Some(after) = Inode::decode(&effect.attributes) else { continue };
            self.tree.change_after(key::attributes(effect.inode).as_bytes(), effects.after_snapshot, older, |image| {
                let mut inode = image.and_then(Inode::decode)?;
                take_effect(&mut inode, &after);
                let mut value = Vec::new();
                inode.encode(&mut value);
                Some(value)
            });
        }
    }

    /// What locked inodes become. Everything is looked at before anything is changed.
    fn tx_changes(&self, lock: &TxLock, effects: &meta::TxEffects) -> Result<BTreeMap<u64, Inode>> {
        let mut changes = BTreeMap::new();
        for effect in &effects.inodes {
            let after = Inode::decode(&effect.attributes).ok_or(OpError::BAD_REQUEST)?;
            if effect.inode == lock.new_inode && effect.inode != 0 {
                continue;
            }
            lock.inodes.binary_search(&effect.inode).map_err(|_| OpError::BAD_REQUEST)?;
            let mut inode = self.stored_inode(effect.inode)?;
            take_effect(&mut inode, &after);
            changes.insert(effect.inode, inode);
        }
        let is_locked = |name: &meta::TxName| lock.inodes.binary_search(&name.directory).is_ok();
        if effects.names.iter().all(is_locked) { Ok(changes) } else { Err(OpError::BAD_REQUEST) }
    }

    fn carry_out_on_inode(&mut self, id: u64, inode: &Inode) -> Result<()> {
        if inode.is_dir() && inode.nlink == 0 && inode.size > 0 {
            self.put_inode(id, inode);
            self.list_dead(id, inode);
            return Ok(());
        }
        self.put_or_bury(id, inode)
    }

    fn carry_out_new(&mut self, new: &meta::TxInode) -> Result<()> {
        let inode = Inode::decode(&new.attributes).ok_or(OpError::BAD_REQUEST)?;
        self.put_inode(new.inode, &inode);
        for xattr in &new.xattrs {
            self.tree.put(key::xattr(new.inode, &xattr.name).as_bytes(), &xattr.value);
        }
        self.counters.inodes += 1;
        self.counters.directories += u64::from(inode.is_dir());
        Ok(())
    }

    fn carry_out_on_name(&mut self, name: &meta::TxName) {
        match name.inode {
            0 => drop(self.tree.remove(key::dentry(name.directory, &name.name).as_bytes())),
            inode => self.put_dentry(name.directory, &name.name, Dentry { inode, d_type: name.d_type as u8 }),
        }
    }

    fn put_tx_lock(&mut self, tx: TxId, lock: TxLock) {
        let mut value = Vec::new();
        lock.encode(&mut value);
        self.tree.put(key::tx_lock(tx).as_bytes(), &value);
        self.txs.hold(tx, lock);
    }

    fn remove_tx_lock(&mut self, tx: TxId) {
        self.tree.remove(key::tx_lock(tx).as_bytes());
        let Some(lock) = self.txs.held.remove(&tx) else { return };
        self.txs.given -= u64::from(lock.new_inode != 0);
        for id in lock.all() {
            self.txs.locked.remove(&id);
        }
    }

    /// What is not in the checkpoint's header, found again when one is loaded.
    pub(crate) fn recount_txs(&mut self) -> Result<()> {
        let prefix = key::prefix(0, Kind::TxLock);
        let mut table = TxTable::default();
        let mut range = self.tree.prefix(prefix.as_bytes());
        while let Some((found, value)) = range.next() {
            let tx = key::tx_of_lock(&found[prefix.as_bytes().len()..]).ok_or(OpError::DAMAGED)?;
            let lock = TxLock::decode(value).ok_or(OpError::DAMAGED)?;
            table.hold(tx, lock);
        }
        let prefix = key::prefix(0, Kind::TxDecision);
        let mut range = self.tree.prefix(prefix.as_bytes());
        while let Some((found, value)) = range.next() {
            key::tx_of_decision(&found[prefix.as_bytes().len()..]).ok_or(OpError::DAMAGED)?;
            decode_decided(value).ok_or(OpError::DAMAGED)?;
        }
        self.txs = table;
        Ok(())
    }
}

/// The one that decides.
impl Namespace {
    /// Forgets operations that all participants have finished.
    pub(crate) fn tx_done(&mut self, bytes: &[u8]) -> Result<()> {
        let request = meta::TxDone::decode(bytes).map_err(|_| OpError::BAD_REQUEST)?;
        for tx in request.txs.iter().filter(|tx| tx.partition == self.partition) {
            self.tree.remove(key::tx_decision(tx.term, tx.number).as_bytes());
        }
        Ok(())
    }

    /// Whether there is a record of it.
    pub fn has_decided(&self, tx: TxId) -> bool {
        self.tree.contains_key(key::tx_decision(tx.term, tx.number).as_bytes())
    }

    pub(crate) fn put_decision(&mut self, tx: TxId, decided: &meta::TxDecided) {
        let mut value = vec![TAG];
        decided.encode(&mut value).expect("a vector has room");
        let is_new = self.tree.put(key::tx_decision(tx.term, tx.number).as_bytes(), &value);
        assert!(is_new, "an operation is decided once");
    }

    pub(crate) fn tx_read(wire: Option<meta::TxId>) -> Result<TxId> {
        TxId::read(wire)
    }
}
