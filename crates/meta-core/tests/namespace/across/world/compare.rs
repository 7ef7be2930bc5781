//! The partitions beside the model. What the model removes whole, partitions take apart behind: until they have, the
//! model keeps it aside, and whoever asks for something in it may still be served, or refused.
use super::{World, owner};
use cairn_meta_core::Fsck;
use cairn_model::{Attributes, Body, Model, Operation, Reply, Request};
use cairn_types::ErrorCode;
use cairn_wire::Opcode;
use cairn_wire::common::Credentials;
use cairn_wire::meta::{AttributesResponse, GetattrRequest, MetaHeader};
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};

const ROOT: u64 = 1;
/// Holds the tops of removed trees in the model.
const KEEPER: u64 = u64::MAX;

/// What is known of removed trees.
#[derive(Default)]
pub struct Removed {
    /// Were in trees that are gone.
    gone: BTreeSet<u64>,
    /// Files that lost a name, or will, at a time that the model does not know.
    unnamed_behind: BTreeSet<u64>,
    /// (session, slot) → number and answer of what was refused because it is in such a tree.
    refused: BTreeMap<(u64, u32), (u64, ErrorCode)>,
    last: BTreeMap<(u64, u32), u64>,
}

/// Inodes that no path leads to.
pub(super) fn set_aside(model: &Model) -> BTreeSet<u64> {
    let mut aside: BTreeSet<u64> = model.nodes.keys().copied().collect();
    let mut todo = vec![ROOT];
    while let Some(inode) = todo.pop() {
        if aside.remove(&inode) {
            todo.extend(model.nodes[&inode].entries().into_values());
        }
    }
    aside
}

/// Inodes that a request names.
fn named(operation: &Operation) -> Vec<u64> {
    match operation {
        Operation::Mkdir { parent, .. }
        | Operation::Symlink { parent, .. }
        | Operation::Unlink { parent, .. }
        | Operation::Rmdir { parent, .. }
        | Operation::RemoveTree { parent, .. } => vec![*parent],
        Operation::Link { inode, parent, .. } => vec![*parent, *inode],
        Operation::Rename { parent, new_parent, .. } => vec![*parent, *new_parent],
        Operation::Create(create) => vec![create.parent],
        Operation::Setattr(set) => vec![set.inode],
        other => panic!("{other:?} is not chosen"),
    }
}

/// The inode whose partition a client asks.
pub fn routed_by(operation: &Operation) -> u64 {
    named(operation)[0]
}

impl World {
    /// What an operation answers of a sharded directory is put together with what its shards say by who needs it.
    fn without_shards(&self, reply: Reply) -> Reply {
        let is_known = |a: &Attributes| self.shards.known.contains(&a.inode);
        let masked = |a: Attributes| match is_known(&a) {
            true => Attributes { nlink: 0, size: 0, mtime: 0, ctime: 0, ..a },
            false => a,
        };
        reply.map(|attributes| attributes.map(masked))
    }

    /// Whether two answers are the same, of a file that loses names behind but for what changes thereby.
    fn same(&self, core: &Reply, model: &Reply) -> bool {
        let known = |reply: &Reply| {
            let masked = |a: Attributes| match self.shards.known.contains(&a.inode) {
                true => Attributes { generation: 0, ..a },
                false => a,
            };
            let masked = |a: Attributes| match self.removed.unnamed_behind.contains(&a.inode) {
                true => Attributes { nlink: 0, ctime: 0, generation: 0, ..a },
                false => masked(a),
            };
            reply.map(|attributes| attributes.map(masked))
        };
        known(core) == known(model)
    }

    /// The same of an inode at a snapshot.
    pub(super) fn same_at(&self, core: &Reply, then: &Attributes, sharded: bool) -> bool {
        // Names go behind; times and numbers of what is sharded are put together.
        let unknown = |a: Attributes| match (self.removed.unnamed_behind.contains(&a.inode), sharded) {
            (true, _) => Attributes { nlink: 0, ctime: 0, generation: 0, ..a },
            (_, true) => Attributes { generation: 0, ..a },
            _ => a,
        };
        core.map(|found| found.map(unknown)) == Ok(Some(unknown(*then)))
    }

    /// Lets the model do what a partition did, which has to answer the same.
    pub(super) fn hold_against_model(&mut self, request: &Request, operation: &Operation, core: &Reply) {
        let slot = (request.session, request.slot);
        if let Some((_, code)) = self.removed.refused.get(&slot).filter(|(sequence, _)| *sequence == request.sequence) {
            assert_eq!(*core, Err(*code), "a repeat is answered as before: {operation:?}");
            return;
        }
        let mut next = self.model.clone();
        self.lend_names(&mut next, operation, true);
        let model = next.apply(request, operation);
        self.lend_names(&mut next, operation, false);
        // Whether what is in the way is above the directory that it is moved from is not looked at: it is not empty
        // either way.
        let either =
            core.is_err() && model == Err(ErrorCode::NotEmpty) && matches!(operation, Operation::Rename { .. });
        if either || self.same(&self.without_shards(*core), &self.without_shards(model)) {
            if let Operation::RemoveTree { parent, name } = operation
                && model.is_ok()
                && self.removed.last.get(&slot) != Some(&request.sequence)
            {
                self.keep_aside(&mut next, *parent, name);
            }
            self.removed.last.insert(slot, request.sequence);
            self.model = next;
            self.look_for_unnamed();
            return;
        }
        let aside = set_aside(&self.model);
        let is_in_one = named(operation).iter().any(|inode| aside.contains(inode) || self.removed.gone.contains(inode));
        // What was above the directory was looked at before it was removed with that.
        let was_above = *core == Err(ErrorCode::InvalidArgument) && matches!(operation, Operation::Rename { .. });
        let Some(code) = core.err().filter(|code| was_above || matches!(code, ErrorCode::NotFound | ErrorCode::Stale))
        else {
            panic!("{core:?}, {model:?}: partition and model answer {operation:?} of {request:?} differently");
        };
        assert!(is_in_one, "{code:?}, {model:?}: partition and model answer {operation:?} of {request:?} differently");
        self.note("refused in a removed tree");
        self.refuse(request, code);
    }

    /// Its repeats are refused from now on, whatever they were answered.
    pub(super) fn forget_answers_of(&mut self, session: u64) {
        self.removed.refused.retain(|(owner, _), _| *owner != session);
        self.removed.last.retain(|(owner, _), _| *owner != session);
    }

    /// The model does nothing, but the number of the request is used.
    pub(super) fn refuse(&mut self, request: &Request, code: ErrorCode) {
        let refused = (request.sequence, code);
        if self.removed.refused.insert((request.session, request.slot), refused) != Some(refused) {
            let nothing = Operation::Rmdir { parent: KEEPER, name: b"x".to_vec() };
            assert!(self.model.apply(request, &nothing).is_err());
        }
    }

    /// A shard knows later than its directory that this was removed: until then it serves, as if the directory had a
    /// name.
    fn lend_names(&self, next: &mut Model, operation: &Operation, lend: bool) {
        let aside = set_aside(&self.model);
        let lent = named(operation).into_iter().filter(|i| aside.contains(i) && self.shards.known.contains(i));
        for inode in lent {
            let name = inode.to_be_bytes().to_vec();
            let Some(Body::Directory { entries, .. }) = next.nodes.get_mut(&ROOT).map(|root| &mut root.body) else {
                unreachable!("the root is a directory");
            };
            _ = match lend {
                true => entries.insert(name, inode),
                false => entries.remove(&name),
            };
        }
    }

    /// Puts what the model has removed with a tree back to where no path leads to it.
    fn keep_aside(&mut self, next: &mut Model, parent: u64, name: &[u8]) {
        let top = self.model.nodes[&parent].entries()[name];
        // An empty one goes at once, unless it has shards.
        if self.model.nodes[&top].entries().is_empty() && !self.shards.known.contains(&top) {
            return;
        }
        for (inode, node) in self.model.nodes.iter().filter(|(inode, _)| **inode != parent) {
            next.nodes.insert(*inode, node.clone());
        }
        if let Body::Directory { parent, .. } = &mut next.nodes.get_mut(&top).expect("it was put back").body {
            *parent = ROOT;
        }
        next.holds.insert((KEEPER, top), false);
        self.note("tree removed");
    }

    fn look_for_unnamed(&mut self) {
        let aside = set_aside(&self.model);
        for inode in &aside {
            let below = self.model.nodes[inode].entries().into_values();
            self.removed.unnamed_behind.extend(below.filter(|below| !self.model.nodes[below].is_directory()));
        }
    }

    /// Nothing is left of a tree that was removed, once there is nothing more to take apart.
    pub(super) fn forget_removed(&mut self) {
        if !self.is_all_reclaimed() {
            return;
        }
        for inode in set_aside(&self.model) {
            let at = owner(inode);
            let request = GetattrRequest { header: self.header(at), inode };
            let found = self.ask::<AttributesResponse>(at, Opcode::Getattr, &request);
            assert_eq!(found.err(), Some(ErrorCode::Stale), "inode {inode} of partition {at} was in a removed tree");
            self.model.nodes.remove(&inode);
            self.removed.gone.insert(inode);
            self.note("gone with its tree");
        }
        self.model.holds.clear();
    }

    pub(super) fn is_all_reclaimed(&self) -> bool {
        self.parts.iter().all(|part| {
            let open = !part.namespace.tx_locks(1).is_empty() || !part.namespace.tx_decisions(1).is_empty();
            !open && part.namespace.reclaimable().is_empty() && part.namespace.reclaim_blocked(1).is_empty()
        })
    }

    pub(super) fn header(&self, partition: u32) -> Option<MetaHeader> {
        let who = Some(Credentials::default());
        Some(MetaHeader { volume: 1, partition, session: 99, slot: 0, sequence: 0, who })
    }

    pub(super) fn ask<A: Message + Default>(
        &self,
        at: u32,
        opcode: Opcode,
        request: &impl Message,
    ) -> Result<A, ErrorCode> {
        let mut out = Vec::new();
        let part = &self.parts[at as usize - 1];
        part.namespace.read(opcode, &request.encode_to_vec(), &mut out).map_err(|error| error.code)?;
        Ok(A::decode(out.as_slice()).expect("an answer"))
    }

    /// A reader sees what was done last, or has to wait.
    pub(super) fn read(&mut self) {
        let all: Vec<u64> = self.model.nodes.keys().copied().collect();
        let inode = all[self.rng.below(all.len() as u64) as usize];
        if set_aside(&self.model).contains(&inode) {
            return;
        }
        let at = owner(inode);
        match self.look_at(inode) {
            Err(ErrorCode::LeaseHeld) => self.note("read waits"),
            found => {
                let found = found.map(Some);
                let expected = Ok(Some(self.model.attributes(inode)));
                assert!(self.same(&found, &expected), "inode {inode} of partition {at}: {found:?}, {expected:?}");
            }
        }
    }

    /// All partitions together are the model.
    pub fn compare(&mut self) {
        self.check_all();
        self.forget_removed();
        self.compare_snapshots();
        assert_eq!(set_aside(&self.model), BTreeSet::new(), "everything was taken apart");
        let mut inodes = 0;
        for (inode, node) in &self.model.nodes {
            let at = owner(*inode);
            let found = self.look_at(*inode).map(Some);
            let expected = self.model.attributes(*inode);
            assert!(self.same(&found, &Ok(Some(expected))), "inode {inode} of partition {at}: {found:?}, {expected:?}");
            let links = found.ok().flatten().map(|found| found.nlink);
            assert_eq!(links, Some(expected.nlink), "links of inode {inode} of partition {at}");
            inodes += 1;
            if node.is_directory() {
                let found = self.list(*inode);
                let expected: Vec<(Vec<u8>, u64)> = node.entries().into_iter().collect();
                assert_eq!(found, expected, "entries of {inode} of partition {at}");
            }
        }
        for part in &self.parts {
            let snapshot = part.namespace.snapshot();
            let mut fsck = Fsck::new(4);
            while fsck.step(&snapshot, 7) {}
            let report = fsck.into_report();
            assert_eq!(report.found, 0, "{:?}", report.findings);
        }
        let counted: u64 = self.parts.iter().map(|part| part.namespace.counters().inodes).sum();
        let shards: usize = self.model.nodes.keys().map(|inode| self.shards_of(*inode).len()).sum();
        assert_eq!(counted, inodes + shards as u64, "inodes that nobody names");
    }
}
