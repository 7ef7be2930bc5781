//! Deciding an operation across partitions: inodes of others stand in the tree as guests while it runs.
//!
//! Invariant: after the decision nothing of a guest is left, whatever came of it; counters and quotas never saw it.
use crate::cut_across::SEVERAL_LEVEL;
use crate::encoding::{Dentry, Inode};
use crate::error::{OpError, Result};
use crate::key;
use crate::lend::AtLimit;
use crate::message::request;
use crate::namespace::Namespace;
use crate::ops::setattr::concerns_shards;
use crate::tx::{MOVES, TxId};
use cairn_types::shard::shard_name;
use cairn_types::{ErrorCode, InodeId};
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use cairn_wire::meta;
use prost::Message;

const EXCHANGE: u32 = 2;

/// What an operation needs of other partitions before it can be decided, beyond what it has.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TxWants {
    /// To be locked and told.
    pub inodes: Vec<u64>,
    /// To be looked up, in directories of others.
    pub names: Vec<(u64, Vec<u8>)>,
    /// The lock of directories that change their parent, before anything is `above`.
    pub moves: bool,
    /// Directories to be told with all above them.
    pub above: Vec<u64>,
}

impl TxWants {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What an operation has of other partitions.
struct Have<'a> {
    namespace: &'a Namespace,
    participants: &'a [meta::TxParticipant],
}

impl Have<'_> {
    fn prepared(&self) -> impl Iterator<Item = &meta::TxPrepared> {
        self.participants.iter().filter_map(|participant| participant.prepared.as_ref())
    }

    fn image(&self, id: u64) -> Option<&meta::TxInode> {
        self.prepared().flat_map(|prepared| &prepared.inodes).find(|image| image.inode == id)
    }

    fn has_moves(&self) -> bool {
        self.image(MOVES).is_some()
    }

    /// Type and links of a directory that is moved, parent of one that is above.
    fn attributes(&self, id: u64) -> Option<Inode> {
        if self.namespace.is_own(id) {
            return self.namespace.stored_inode(id).ok();
        }
        Inode::decode(&self.image(id).or_else(|| self.seen(id))?.attributes)
    }

    fn seen(&self, id: u64) -> Option<&meta::TxInode> {
        self.participants.iter().flat_map(|participant| &participant.seen).find(|seen| seen.inode == id)
    }

    /// What is at a name; `Err`: it has to be looked up elsewhere.
    fn at(&self, directory: u64, name: &[u8]) -> std::result::Result<Option<u64>, ()> {
        if self.namespace.is_own(directory) {
            return Ok(self.namespace.dentry(directory, name).ok().flatten().map(|there| there.inode));
        }
        let mut names = self.prepared().flat_map(|prepared| &prepared.names);
        let found = names.find(|found| found.directory == directory && found.name == name).ok_or(())?;
        Ok((found.inode != 0).then_some(found.inode))
    }
}

impl TxWants {
    fn inode(&mut self, have: &Have<'_>, id: u64) {
        if !have.namespace.is_own(id) && have.image(id).is_none() && !self.inodes.contains(&id) {
            self.inodes.push(id);
        }
    }

    /// The same of the directory by which the request came. Of one that is not here nothing is wanted: the request is
    /// refused, and the client asks the partition that has it.
    fn routed(&mut self, have: &Have<'_>, directory: u64, name: &[u8]) -> Option<u64> {
        if have.namespace.is_own(directory) { self.name(have, directory, name) } else { None }
    }

    /// What is at a name, and the directory.
    fn name(&mut self, have: &Have<'_>, directory: u64, name: &[u8]) -> Option<u64> {
        self.inode(have, directory);
        match have.at(directory, name) {
            Ok(Some(there)) => {
                self.inode(have, there);
                Some(there)
            }
            Ok(None) => None,
            Err(()) => {
                self.names.push((directory, name.to_vec()));
                None
            }
        }
    }

    /// The shards of a directory, which have to be known themselves first.
    fn shards(&mut self, have: &Have<'_>, directory: u64) {
        let inode = have.attributes(directory).filter(Inode::is_dir);
        for index in 0..inode.map_or(0, |inode| inode.shards) {
            self.name(have, directory, &shard_name(index));
        }
    }

    /// The same of one by which the request came.
    fn own_shards(&mut self, have: &Have<'_>, inode: u64) {
        if have.namespace.is_own(inode) {
            self.shards(have, inode);
        }
    }

    /// All above a directory up to the root.
    fn above(&mut self, have: &Have<'_>, directory: u64) {
        let mut at = directory;
        // Nothing is above a directory that was removed.
        while at != InodeId::ROOT.0 && at != 0 {
            match have.attributes(at) {
                Some(inode) if inode.is_dir() && inode.parent != at => at = inode.parent,
                Some(_) => return,
                // It is gone, which is said later on.
                None if have.namespace.is_own(at) || have.image(at).is_some() || have.seen(at).is_some() => return,
                None => return self.above.push(at),
            }
        }
    }
}

impl Namespace {
    /// What a request needs of other partitions, beyond what `participants` have prepared; nothing: it can be logged as
    /// it is, or, with participants, be decided.
    pub fn tx_wants(
        &self,
        opcode: Opcode,
        request: &[u8],
        participants: &[meta::TxParticipant],
    ) -> std::result::Result<TxWants, WireError> {
        if !self.is_one_of_several() {
            return Ok(TxWants::default());
        }
        let have = Have { namespace: self, participants };
        self.wants(opcode, request, &have).map_err(OpError::to_wire)
    }

    fn wants(&self, opcode: Opcode, bytes: &[u8], have: &Have<'_>) -> Result<TxWants> {
        let mut wants = TxWants::default();
        match opcode {
            Opcode::Unlink => {
                let request = request::Unlink::decode(bytes)?;
                wants.routed(have, request.parent, request.name);
            }
            Opcode::Rmdir => {
                let request = request::Rmdir::decode(bytes)?;
                if let Some(victim) = wants.routed(have, request.parent, request.name) {
                    wants.shards(have, victim);
                }
            }
            Opcode::RemoveTree => {
                let request = request::RemoveTree::decode(bytes)?;
                wants.routed(have, request.parent, request.name);
            }
            Opcode::Create => {
                let request = request::Create::decode(bytes)?;
                wants.routed(have, request.parent, request.name);
            }
            Opcode::Link => {
                let request = request::Link::decode(bytes)?;
                if self.is_own(request.parent) {
                    wants.inode(have, request.inode);
                }
                wants.routed(have, request.parent, request.name);
            }
            Opcode::Rename => {
                let request = request::Rename::decode(bytes)?;
                if !self.is_own(request.parent) {
                    return Ok(wants);
                }
                let moved = wants.name(have, request.parent, request.name);
                let there = wants.name(have, request.new_parent, request.new_name);
                if let Some(there) = there.filter(|_| request.flags != EXCHANGE) {
                    wants.shards(have, there);
                }
                if wants.is_empty() && request.parent != request.new_parent {
                    let swapped = there.filter(|_| request.flags == EXCHANGE);
                    self.wants_of_move(have, &mut wants, moved, request.new_parent);
                    self.wants_of_move(have, &mut wants, swapped, request.parent);
                }
            }
            Opcode::Setattr => {
                let request = request::Setattr::decode(bytes)?;
                if concerns_shards(&request) {
                    wants.own_shards(have, request.inode);
                }
            }
            Opcode::SetXattr => {
                let request = request::SetXattr::decode(bytes)?;
                wants.own_shards(have, request.inode);
            }
            Opcode::RemoveXattr => {
                let request = request::RemoveXattr::decode(bytes)?;
                wants.own_shards(have, request.inode);
            }
            Opcode::ReclaimEntry => {
                let request = request::ReclaimEntry::decode(bytes)?;
                if let Some((_, dentry)) = self.entry_to_reclaim(request.directory, request.name)? {
                    wants.inode(have, dentry.inode);
                }
            }
            _ => {}
        }
        Ok(wants)
    }

    fn wants_of_move(&self, have: &Have<'_>, wants: &mut TxWants, moved: Option<u64>, to: u64) {
        let inode = moved.and_then(|moved| have.attributes(moved));
        if !inode.is_some_and(|inode| inode.has_subdirectories()) {
            return;
        }
        if have.has_moves() {
            wants.above(have, to);
        } else {
            wants.moves = true;
        }
    }

    /// Does an operation with what its participants have prepared.
    pub(crate) fn tx_decide(
        &mut self,
        term: u64,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> std::result::Result<(), WireError> {
        let decide = meta::TxDecide::decode(bytes).map_err(|_| OpError::BAD_REQUEST.to_wire())?;
        let (tx, opcode) = self.tx_to_decide(&decide).map_err(OpError::to_wire)?;
        if tx.term != term {
            // The leader of this term may have said that it was not done.
            return Err(OpError::LOCKED.to_wire());
        }
        let moves = decide.participants.iter().filter_map(|p| p.prepared.as_ref());
        self.txs.moves_locked = moves.flat_map(|prepared| &prepared.inodes).any(|image| image.inode == MOVES);
        self.txs.deciding = true;
        self.lending.at_limit = AtLimit::from_code(decide.at_limit);
        self.put_guests(&decide.participants);
        let mut decided = None;
        let mut done = |namespace: &mut Self| decided = Some(namespace.effects_on(&decide.participants));
        let result = match opcode {
            // The leader's own: of no session, and nothing is kept of it but what it did.
            Opcode::ReclaimEntry => self.reclaim_entry(&decide.request).map(|()| done(self)).map_err(OpError::to_wire),
            Opcode::AddShard => self.add_shard(&decide.request).map(|()| done(self)).map_err(OpError::to_wire),
            _ => self.apply_once(opcode, &decide.request, out, done),
        };
        self.lending.at_limit = None;
        self.remove_guests(&decide.participants);
        if let Some(decided) = decided {
            self.put_decision(tx, &decided);
        }
        result
    }

    /// That all of it is of others, and none of it here.
    fn tx_to_decide(&self, decide: &meta::TxDecide) -> Result<(TxId, Opcode)> {
        let tx = Self::tx_read(decide.tx)?;
        let opcode = u16::try_from(decide.opcode).ok().and_then(Opcode::from_code);
        let may_be = |opcode: &Opcode| {
            opcode.is_meta_mutation() && !opcode.is_internal()
                || matches!(opcode, Opcode::ReclaimEntry | Opcode::AddShard)
        };
        let opcode = opcode.filter(may_be);
        let opcode = opcode.ok_or(OpError::BAD_REQUEST)?;
        let prepared = || decide.participants.iter().filter_map(|participant| participant.prepared.as_ref());
        let seen = decide.participants.iter().flat_map(|participant| &participant.seen);
        let inodes = prepared().flat_map(|prepared| &prepared.inodes).chain(seen).map(|image| image.inode);
        let named = prepared().flat_map(|prepared| &prepared.names).map(|name| name.directory);
        let given = prepared().map(|prepared| prepared.new_inode);
        let foreign = inodes.chain(named).chain(given).all(|id| id == MOVES || !self.is_own(id));
        let ours = tx.partition == self.partition && !self.has_decided(tx);
        if foreign && ours { Ok((tx, opcode)) } else { Err(OpError::BAD_REQUEST) }
    }

    fn put_guests(&mut self, participants: &[meta::TxParticipant]) {
        let prepared = participants.iter().filter_map(|participant| participant.prepared.as_ref());
        let images = prepared.clone().flat_map(|prepared| &prepared.inodes);
        // What is locked counts; what was only seen is above it, or the same.
        let seen = participants.iter().flat_map(|participant| &participant.seen);
        for image in seen.chain(images) {
            if image.attributes.is_empty() {
                self.txs.gone.insert(image.inode);
                continue;
            }
            self.txs.guests.insert(image.inode);
            self.tree.put(key::attributes(image.inode).as_bytes(), &image.attributes);
            for xattr in &image.xattrs {
                self.tree.put(key::xattr(image.inode, &xattr.name).as_bytes(), &xattr.value);
            }
        }
        for prepared in prepared {
            for name in prepared.names.iter().filter(|name| name.inode != 0) {
                self.txs.guests.insert(name.directory);
                self.put_dentry(name.directory, &name.name, Dentry { inode: name.inode, d_type: name.d_type as u8 });
            }
            if prepared.new_inode != 0 {
                self.txs.guests.insert(prepared.new_inode);
                self.txs.new_guest = prepared.new_inode;
            }
        }
    }

    fn effects_on(&self, participants: &[meta::TxParticipant]) -> meta::TxDecided {
        let of = |participant: &meta::TxParticipant| {
            let prepared = participant.prepared.clone().unwrap_or_default();
            // Members of before do not look at it.
            let after_snapshot = if self.level >= SEVERAL_LEVEL { self.snapshots.state.last } else { 0 };
            let (partition, lock) = (participant.partition, prepared.lock);
            let mut effects = meta::TxEffects { partition, lock, after_snapshot, ..meta::TxEffects::default() };
            for before in &prepared.inodes {
                let after = self.tree.get(key::attributes(before.inode).as_bytes());
                if let Some(after) = after.filter(|after| *after != before.attributes.as_slice()) {
                    let is_shard = Inode::decode(after).is_some_and(|inode| inode.is_shard);
                    let xattrs = if is_shard { self.tx_xattrs(before.inode) } else { Vec::new() };
                    effects.inodes.push(meta::TxInode { attributes: after.to_vec(), xattrs, ..*before });
                }
            }
            if let Some(made) = self.tree.get(key::attributes(prepared.new_inode).as_bytes()) {
                let (inode, xattrs) = (prepared.new_inode, self.tx_xattrs(prepared.new_inode));
                effects.inodes.push(meta::TxInode { inode, attributes: made.to_vec(), xattrs });
            }
            for before in &prepared.names {
                let there =
                    self.tree.get(key::dentry(before.directory, &before.name).as_bytes()).and_then(Dentry::decode);
                let (inode, d_type) = there.map_or((0, 0), |there| (there.inode, u32::from(there.d_type)));
                if inode != before.inode {
                    effects.names.push(meta::TxName { inode, d_type, ..before.clone() });
                }
            }
            effects
        };
        meta::TxDecided { effects: participants.iter().map(of).collect() }
    }

    fn remove_guests(&mut self, participants: &[meta::TxParticipant]) {
        for guest in std::mem::take(&mut self.txs.guests) {
            self.tree.remove_prefix(&key::of_inode(guest));
        }
        // A directory that is gone was no guest, its name may have been asked for all the same.
        let prepared = participants.iter().filter_map(|participant| participant.prepared.as_ref());
        for name in prepared.flat_map(|prepared| &prepared.names) {
            self.tree.remove(key::dentry(name.directory, &name.name).as_bytes());
        }
        self.txs.gone.clear();
        (self.txs.deciding, self.txs.moves_locked, self.txs.new_guest) = (false, false, 0);
    }

    /// Refuses to move a directory that has others in it while these may be moved elsewhere at the same time.
    pub(crate) fn check_move(&self, moved: &Inode) -> Result<()> {
        let safe = !self.is_one_of_several() || self.txs.moves_locked || !moved.has_subdirectories();
        // What a session leads nobody else moves meanwhile.
        let safe = safe || self.delegations.acting().is_some();
        if safe { Ok(()) } else { Err(OpError::FOREIGN) }
    }

    /// Operations that find more of others than was prepared are prepared anew.
    pub fn is_prepared_anew(error: &WireError) -> bool {
        error.code == ErrorCode::CrossVolume && error.message == OpError::FOREIGN.text
    }

    /// An inode is locked by an operation across partitions, and free again when that has finished here.
    pub fn is_locked_across(error: &WireError) -> bool {
        error.code == ErrorCode::LeaseHeld && error.message == OpError::LOCKED.text
    }
}
