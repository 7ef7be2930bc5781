//! Sharded directories: what clients do with an operation by a name that the directory itself does not have, and what
//! users see.
use super::compare::routed_by;
use super::{Under, World, owner};
use crate::translate::attributes;
use cairn_model::{Attributes, Operation, Request};
use cairn_types::ErrorCode;
use cairn_types::shard::shard_of;
use cairn_wire::Opcode;
use cairn_wire::meta::{AttributesResponse, GetattrRequest, ReaddirRequest, ReaddirResponse};
use std::collections::BTreeSet;

#[derive(Default)]
pub struct Shards {
    /// Directories get some.
    pub wanted: bool,
    /// That have them, or had.
    pub known: BTreeSet<u64>,
}

/// Directories of names that an operation is about, with the names.
fn places(operation: &mut Operation) -> Vec<(&mut u64, &[u8])> {
    match operation {
        Operation::Mkdir { parent, name, .. }
        | Operation::Symlink { parent, name, .. }
        | Operation::Unlink { parent, name }
        | Operation::Rmdir { parent, name }
        | Operation::RemoveTree { parent, name }
        | Operation::Link { parent, name, .. } => vec![(parent, name)],
        Operation::Rename { parent, name, new_parent, new_name, .. } => vec![(parent, name), (new_parent, new_name)],
        Operation::Create(create) => vec![(&mut create.parent, &create.name)],
        _ => Vec::new(),
    }
}

impl World {
    pub fn with_shards(seed: u64) -> World {
        World { shards: Shards { wanted: true, known: BTreeSet::new() }, ..World::new(seed) }
    }

    /// All shards of a directory, complete or not.
    pub(super) fn shards_of(&self, inode: u64) -> Vec<u64> {
        let at = owner(inode);
        let request = ReaddirRequest { header: self.header(at), inode, shards: true, ..ReaddirRequest::default() };
        let listed = self.ask::<ReaddirResponse>(at, Opcode::Readdir, &request);
        listed.map(|listed| listed.entries.into_iter().map(|entry| entry.inode).collect()).unwrap_or_default()
    }

    /// Whether new names go to shards; not to be said while the directory is locked.
    fn is_sharded(&self, inode: u64) -> bool {
        let part = &self.parts[owner(inode) as usize - 1];
        part.namespace.shards_of(inode).is_ok_and(|(_, all)| all)
    }

    /// What a client sends that asks the directory first, wherever the name is not there.
    /// Nothing while it cannot ask.
    pub(super) fn by_shards(&self, operation: &Operation) -> Option<Operation> {
        let mut sent = operation.clone();
        for (parent, name) in places(&mut sent) {
            if self.look_at(*parent) == Err(ErrorCode::LeaseHeld) {
                return None;
            }
            if !self.is_sharded(*parent) || self.has(*parent, name) {
                continue;
            }
            let shards = self.shards_of(*parent);
            *parent = shards[shard_of(name, shards.len())];
        }
        Some(sent)
    }

    /// Whether the directory itself has the name.
    fn has(&self, directory: u64, name: &[u8]) -> bool {
        self.entries(directory).iter().any(|(there, _)| there == name)
    }

    fn entries(&self, inode: u64) -> Vec<(Vec<u8>, u64)> {
        let at = owner(inode);
        let request = ReaddirRequest { header: self.header(at), inode, ..ReaddirRequest::default() };
        let listed = self.ask::<ReaddirResponse>(at, Opcode::Readdir, &request);
        listed.map(|listed| listed.entries.into_iter().map(|e| (e.name, e.inode)).collect()).unwrap_or_default()
    }

    /// The directory, or the other one, does not have a name any more that it had when the client looked, or got its
    /// shards meanwhile.
    pub(super) fn go_to_shards(&mut self, client: usize, under: &Under) {
        self.note("sent on to a shard");
        self.refuse(&under.request, ErrorCode::Sharded);
        if under.proposed {
            self.begin_anew(client, "anew by its shard");
            self.clients[client].iter_mut().for_each(|under| under.sent_on = true);
        }
    }

    /// Whether a client that was sent on knows where to.
    pub(super) fn knows_shards(&mut self, client: usize) -> bool {
        let Some(under) = self.clients[client].clone().filter(|under| under.sent_on) else { return true };
        let Some(sent) = self.by_shards(&under.operation) else { return false };
        let at = owner(routed_by(&sent));
        let elsewhere = if under.elsewhere == at { 0 } else { under.elsewhere };
        let request = Request { slot: at, sequence: self.next_sequence(client, at), ..under.request };
        self.clients[client] = Some(Under { sent, elsewhere, ..Under::new(request, under.operation, None, at) });
        true
    }

    /// What users see of an inode.
    pub(super) fn look_at(&self, inode: u64) -> Result<Attributes, ErrorCode> {
        let look = |inode| {
            let at = owner(inode);
            let request = GetattrRequest { header: self.header(at), inode };
            let answer = self.ask::<AttributesResponse>(at, Opcode::Getattr, &request);
            answer.map(|answer| attributes(&answer.attributes.expect("attributes")))
        };
        let mut whole = look(inode)?;
        for shard in self.shards_of(inode) {
            let shard = look(shard)?;
            whole.size += shard.size;
            whole.nlink += shard.nlink - 2;
            (whole.mtime, whole.ctime) = (whole.mtime.max(shard.mtime), whole.ctime.max(shard.ctime));
        }
        Ok(whole)
    }

    /// The entries that users see, in the order of their names.
    pub(super) fn list(&self, inode: u64) -> Vec<(Vec<u8>, u64)> {
        let mut all = self.entries(inode);
        self.shards_of(inode).into_iter().for_each(|shard| all.extend(self.entries(shard)));
        all.sort_unstable();
        all
    }
}
