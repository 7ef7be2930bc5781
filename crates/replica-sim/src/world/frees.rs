//! What metadata frees: told to every disk of the group, again and again until each has answered under one epoch.

use std::collections::BTreeSet;

use cairn_replica_core::message::{Answer, Freed, Refused, Request};

use cairn_types::Epoch;

use super::{MS, World};
use crate::event::{Caller, Event};
use crate::words::Bytes;

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
        self.counts.add("metadata: freed blocks");
        let run = first..end;
        self.begin_free(index, if gone { Freed::Whole } else { Freed::Blocks(Vec::from([run])) });
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
