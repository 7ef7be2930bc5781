//! What metadata frees: told to every disk of the group, again and again until each has answered under one epoch.

use std::collections::BTreeSet;

use cairn_replica_core::message::{Answer, Freed, Refused, Request};

use cairn_types::Epoch;

use super::{MS, World};
use crate::event::{Caller, Event};
use crate::words::Bytes;

/// What nobody names is freed when members have listed it for so long.
const COLLECTED_AFTER: u64 = 5_000 * MS;

/// One free.
#[derive(Debug)]
pub(crate) struct Free {
    index: u32,
    what: Freed,
    /// Nodes that have not done it, under this epoch of the group: in the next one it may have come to others again,
    /// from a member that has not freed it.
    left: BTreeSet<usize>,
    epoch: Epoch,
    /// The one that each call went to.
    asked: usize,
}

impl World {
    pub(super) fn free_something(&mut self) {
        let pause = self.chance.range(150 * MS..900 * MS);
        self.plan(pause, Event::Frees);
        self.collect();
        if self.quiet {
            return;
        }
        let now = self.now;
        if self.chance.per_mille(400)
            && let Some(at) = self.garbage.iter().position(|(_, since)| since + 5_000 * MS < now)
        {
            let (index, _) = self.garbage.remove(at);
            self.counts.add("metadata: freed garbage");
            return self.begin_free(index, Freed::Whole);
        }
        let may = |chunk: &crate::model::Chunk| !chunk.gone && !chunk.open && !chunk.busy && !chunk.blocks.is_empty();
        let chunks: Vec<u32> =
            self.model.chunks.iter().filter(|(_, chunk)| may(chunk)).map(|(index, _)| *index).collect();
        if chunks.len() < 3 {
            return;
        }
        let Some(index) = self.chance.one(&chunks) else { return };
        let whole = self.chance.per_mille(300);
        let Some(chunk) = self.model.chunks.get_mut(&index) else { return };
        let count = chunk.blocks.len() as u64;
        if whole {
            chunk.gone = true;
            self.note_open(index);
            self.counts.add("metadata: freed a chunk");
            return self.begin_free(index, Freed::Whole);
        }
        let first = self.chance.range(0..count) as u32;
        let end = (first + 1 + self.chance.range(0..3) as u32).min(count as u32);
        let Some(chunk) = self.model.chunks.get_mut(&index) else { return };
        for block in first..end {
            chunk.blocks[block as usize].freed = true;
        }
        chunk.gone = chunk.blocks.iter().all(|block| block.freed);
        let gone = chunk.gone;
        if gone {
            self.note_open(index);
        }
        self.counts.add("metadata: freed blocks");
        let run = first..end;
        self.begin_free(index, if gone { Freed::Whole } else { Freed::Blocks(Vec::from([run])) });
    }

    /// A chunk that is freed while a member has it open may be shorter there, and the end of its epoch may bring what
    /// is missing, from a member that has not freed it yet.
    fn note_open(&mut self, index: u32) {
        let is_open = |node: &crate::node::Node| node.disk.now.chunks.get(&index).is_some_and(|here| !here.sealed);
        if self.nodes.iter().any(is_open) {
            self.may_come_back.insert(index, None);
        }
    }

    /// As the collector of garbage does it: a chunk that no file names and members list is freed after a while. Of
    /// those that were closed when they were freed none may come back.
    fn collect(&mut self) {
        let (now, mut found) = (self.now, Vec::new());
        for (index, since) in &mut self.may_come_back {
            let is_freed_now = self.frees.values().any(|free| free.index == *index);
            let is_there = self.nodes.iter().any(|node| node.disk.now.chunks.contains_key(index));
            *since = (is_there && !is_freed_now).then_some(since.unwrap_or(now));
            if since.is_some_and(|since| since + COLLECTED_AFTER < now) {
                found.push(*index);
            }
        }
        for index in found {
            self.counts.add("metadata: freed what came back");
            self.begin_free(index, Freed::Whole);
        }
    }

    /// Whether something that was freed while it was open is to be collected yet.
    pub(super) fn has_garbage(&self) -> bool {
        self.may_come_back.values().any(Option::is_some)
    }

    fn begin_free(&mut self, index: u32, what: Freed) {
        self.say(|| format!("metadata frees {what:?} of chunk {index}"));
        let id = self.next_free;
        self.next_free += 1;
        let left = (0..self.nodes.len()).collect();
        self.frees.insert(id, Free { index, what, left, epoch: self.manager.pg.epoch, asked: 0 });
        self.free_again(id);
    }

    /// One disk after the other is told.
    pub(super) fn free_again(&mut self, id: u64) {
        let (epoch, count) = (self.manager.pg.epoch, self.nodes.len());
        let Some(free) = self.frees.get_mut(&id) else { return };
        if free.epoch != epoch {
            (free.epoch, free.left) = (epoch, (0..count).collect());
        }
        let places: Vec<usize> = free.left.iter().copied().collect();
        free.asked += 1;
        let node = places[free.asked % places.len()];
        let request = Request::Free { index: free.index, what: free.what.clone() };
        let place = self.metadata_place();
        // The call says which node it is of, and under which epoch.
        let from = Caller::Metadata { free: (id << 24 | epoch.get()) << 8 | node as u64 };
        self.send(place, node, Event::Asked { node, from, request });
        let pause = self.chance.range(60 * MS..200 * MS);
        self.plan(pause, Event::FreeAgain(id));
    }

    pub(super) fn free_heard(&mut self, call: u64, outcome: &Result<Answer<Bytes>, Refused>) {
        let (id, epoch, node) = (call >> 32, call >> 8 & 0xff_ffff, (call & 255) as usize);
        if outcome.is_err() || epoch != self.manager.pg.epoch.get() {
            return;
        }
        if let Some(free) = self.frees.get_mut(&id).filter(|free| free.epoch.get() == epoch) {
            free.left.remove(&node);
            if free.left.is_empty() {
                self.frees.remove(&id);
            }
        }
    }
}
