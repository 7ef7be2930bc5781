//! [`Unhealed`]: blocks that are known to be bad and could not be healed. They are tried again by themselves, told to
//! whoever asks and to the manager, and kept on their disk, so that they are known again after a restart.
//!
//! Invariants: a block is in the list from its first failure until it was found good, freed, cut off or deleted; a
//! chunk that was changed is looked at again at once. No more than [`BAD_BLOCKS_MAX`] are remembered on a node; that
//! there were more is remembered until the list is empty. Not here: how a block is healed (`heal.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use cairn_format::bad_blocks::{BAD_BLOCKS_MAX, BadBlocks};
use cairn_format::overwrite_number::OverwriteNumber;
use cairn_rpc::{Reply, Request};
use cairn_telemetry::Samples;
use cairn_types::{ChunkId, DiskId, PgId, Time};
use cairn_wire::data::{BadBlocks as BadBlocksOfChunk, BadBlocksRequest, BadBlocksResponse};
use cairn_wire::manager::UnhealedBlocks;

use super::later::Later;
use super::{Inner, Refused};
use crate::disk::DiskStore;

/// A disk's list is written at most once in so many pauses of healing.
const KEEP_EVERY: u32 = 5;

/// What changes with a chunk's contents: length, freed blocks, last overwrite.
type Shape = (u64, u32, OverwriteNumber);

/// The list of a node.
pub(super) struct Unhealed {
    later: Later<(DiskId, ChunkId, u32)>,
    /// Chunks with such blocks as they were when they were looked at last.
    shapes: BTreeMap<(DiskId, ChunkId), Option<Shape>>,
    /// Disks whose list is to be written.
    changed: BTreeSet<DiskId>,
    kept_at: Time,
    keep_every: Duration,
    /// Disks whose list was read.
    read: BTreeSet<DiskId>,
    /// There were more than are remembered.
    more: bool,
}

impl Unhealed {
    /// An empty one; `pause`: after the first failure of a block.
    pub(super) fn new(pause: Duration) -> Self {
        Self {
            later: Later::bounded(pause, BAD_BLOCKS_MAX),
            shapes: BTreeMap::new(),
            changed: BTreeSet::new(),
            kept_at: Time::default(),
            keep_every: pause * KEEP_EVERY,
            read: BTreeSet::new(),
            more: false,
        }
    }

    /// It is bad, and could not be healed now. Returns whether that is news.
    pub(super) fn failed(&mut self, key: (DiskId, ChunkId, u32), now: Time) -> bool {
        let new = self.later.failed(key, now);
        if new {
            self.note_new(key);
        }
        new
    }

    /// It was bad before the restart, perhaps.
    fn remember(&mut self, key: (DiskId, ChunkId, u32), now: Time) {
        if self.later.put(key, now) {
            self.note_new(key);
        }
    }

    fn note_new(&mut self, key: (DiskId, ChunkId, u32)) {
        self.more |= !self.later.contains(key);
        if self.later.contains(key) {
            self.changed.insert(key.0);
            self.shapes.entry((key.0, key.1)).or_insert(None);
        }
    }

    /// It is good, or there is no such block any more. Returns whether it was known to be bad.
    pub(super) fn done(&mut self, key: (DiskId, ChunkId, u32)) -> bool {
        if !self.later.contains(key) {
            return false;
        }
        self.later.done(key);
        self.changed.insert(key.0);
        if self.blocks_of(key.0, key.1).next().is_none() {
            self.shapes.remove(&(key.0, key.1));
        }
        self.more &= !self.later.is_empty();
        true
    }

    /// What is to be tried now.
    pub(super) fn take_due(&mut self, now: Time, max: usize) -> Vec<(DiskId, ChunkId, u32)> {
        self.later.take_due(now, max)
    }

    fn blocks_of(&self, disk: DiskId, chunk: ChunkId) -> impl Iterator<Item = u32> {
        self.later.range((disk, chunk, 0)..=(disk, chunk, u32::MAX)).map(|(_, _, block)| *block)
    }

    /// A chunk as it is now; `None`: it is gone.
    fn look(&mut self, disk: DiskId, chunk: ChunkId, shape: Option<Shape>, now: Time) {
        let Some(known) = self.shapes.get_mut(&(disk, chunk)) else { return };
        let blocks: Vec<u32> = match shape {
            Some(shape) if known.replace(shape).is_none_or(|known| known == shape) => return,
            _ => self.blocks_of(disk, chunk).collect(),
        };
        for block in blocks {
            match shape {
                Some(_) => self.later.hurry((disk, chunk, block), now),
                None => drop(self.done((disk, chunk, block))),
            }
        }
    }

    /// Lists to write, if it is time.
    fn lists_due(&mut self, now: Time) -> Vec<(DiskId, Vec<(ChunkId, u32)>)> {
        if self.changed.is_empty() || now.since(self.kept_at) < self.keep_every {
            return Vec::new();
        }
        self.kept_at = now;
        let changed = std::mem::take(&mut self.changed);
        let list = |disk: DiskId| {
            let of_disk = self.later.range((disk, FIRST, 0)..=(disk, LAST, u32::MAX));
            (disk, of_disk.map(|(_, chunk, block)| (*chunk, *block)).collect())
        };
        changed.into_iter().map(list).collect()
    }

    /// Of each member, how many.
    fn counts(&self) -> BTreeMap<(DiskId, PgId), u64> {
        let mut counts = BTreeMap::new();
        for (disk, chunk, _) in self.later.keys() {
            *counts.entry((*disk, chunk.pg)).or_insert(0) += 1;
        }
        counts
    }
}

const FIRST: ChunkId = ChunkId { pg: PgId(0), index: 0 };
const LAST: ChunkId = ChunkId { pg: PgId(u32::MAX), index: u32::MAX };

impl Inner {
    /// Takes up a disk's list after a start; once is enough.
    pub(super) fn remember_bad_blocks(&self, disk: DiskId, store: &DiskStore) {
        if !self.unhealed.lock().read.insert(disk) {
            return;
        }
        let blocks = store.read_bad_blocks();
        if !blocks.is_empty() {
            tracing::warn!(%disk, blocks = blocks.len(), "blocks of this disk were bad before the restart; they are looked at again");
        }
        let (now, mut unhealed) = (self.clock.now(), self.unhealed.lock());
        for (chunk, block) in blocks {
            unhealed.remember((disk, chunk, block), now);
        }
    }

    /// Notices chunks that were changed or deleted, and writes what changed in the lists.
    pub(super) fn look_after_unhealed(&self) {
        let now = self.clock.now();
        let chunks: Vec<(DiskId, ChunkId)> = self.unhealed.lock().shapes.keys().copied().collect();
        for (disk, chunk) in chunks {
            // Of a disk that is out of service nothing is known.
            let Some(store) = self.slot(disk).and_then(|slot| slot.store()).filter(|s| s.failure().is_none()) else {
                continue;
            };
            let shape = store.info(chunk).map(|info| (info.length, info.punched_blocks, info.overwrite));
            self.unhealed.lock().look(disk, chunk, shape, now);
        }
        let lists = self.unhealed.lock().lists_due(now);
        for (disk, blocks) in lists {
            let Some(store) = self.slot(disk).and_then(|slot| slot.store()) else { continue };
            let list = BadBlocks { disk: store.uuid(), blocks };
            let kept = store.control(move |store| {
                if let Err(error) = store.write_bad_blocks(&list) {
                    tracing::warn!(disk = store.name(), %error, "the list of bad blocks could not be kept");
                }
            });
            if let Err(error) = kept {
                tracing::debug!(%disk, %error, "the list of bad blocks is kept later");
                self.unhealed.lock().changed.insert(disk);
            }
        }
    }

    fn in_service(&self, disk: DiskId) -> Option<Arc<DiskStore>> {
        self.slot(disk).and_then(|slot| slot.store()).filter(|store| store.failure().is_none())
    }

    /// For the manager, with each heartbeat.
    pub(super) fn unhealed_reports(&self) -> Vec<UnhealedBlocks> {
        let (counts, more) = {
            let unhealed = self.unhealed.lock();
            (unhealed.counts(), unhealed.more)
        };
        let counts = counts.into_iter().filter(|((disk, _), _)| self.in_service(*disk).is_some());
        let report = |((disk, pg), blocks): ((DiskId, PgId), u64)| UnhealedBlocks {
            disk: disk.get(),
            pg: pg.get(),
            blocks,
            more,
        };
        counts.map(report).collect()
    }

    /// Names all of them.
    pub(super) fn bad_blocks(&self, request: &Request<'_>, reply: Reply) -> Result<(), Refused> {
        if let Err(error) = request.decode::<BadBlocksRequest>() {
            return Err((reply, error));
        }
        let mut answer = BadBlocksResponse::default();
        {
            let unhealed = self.unhealed.lock();
            answer.more = unhealed.more;
            for (disk, chunk, block) in unhealed.later.keys() {
                let (disk, pg, index) = (disk.get(), chunk.pg.get(), chunk.index);
                match answer.chunks.last_mut().filter(|of| (of.disk, of.pg, of.index) == (disk, pg, index)) {
                    Some(of) => of.blocks.push(*block),
                    None => answer.chunks.push(BadBlocksOfChunk { disk, pg, index, blocks: vec![*block] }),
                }
            }
        }
        let limits = request.peer.limits();
        answer.chunks.retain(|chunk| {
            let (disk, pg) = (DiskId(chunk.disk), PgId(chunk.pg));
            self.in_service(disk).is_some() && self.may_hear_of(limits, disk, pg)
        });
        reply.ok(&answer, ());
        Ok(())
    }

    /// How many are left on each disk.
    pub(super) fn sample_unhealed(&self, out: &mut Samples) {
        let counts = self.unhealed.lock().counts();
        for (disk, slot) in self.by_id.read().iter() {
            let Some(store) = slot.store() else { continue };
            let blocks: u64 = counts.iter().filter(|((on, _), _)| on == disk).map(|(_, blocks)| blocks).sum();
            let labels = [("disk", store.name())];
            out.gauge("cairn_data_unhealed_blocks", UNHEALED_HELP, &labels, blocks as f64);
        }
    }
}

const UNHEALED_HELP: &str = "Blocks that are known to be bad and could not be healed yet.";

#[cfg(test)]
mod tests {
    use super::*;

    const DISK: DiskId = DiskId(3);

    fn chunk(index: u32) -> ChunkId {
        ChunkId { pg: PgId(1), index }
    }

    fn number(count: u64) -> OverwriteNumber {
        OverwriteNumber { epoch: cairn_types::Epoch(1), count }
    }

    /// Blocks that were overwritten or deleted would be called bad for minutes, or for ever.
    #[test]
    fn a_chunk_that_changes_is_looked_at_at_once() {
        let (mut unhealed, mut now) = (Unhealed::new(Duration::from_secs(1)), Time::default());
        for block in [4, 9] {
            for _ in 0..8 {
                unhealed.failed((DISK, chunk(1), block), now);
            }
        }
        unhealed.failed((DISK, chunk(2), 7), now);
        assert_eq!(unhealed.counts(), BTreeMap::from([((DISK, PgId(1)), 3)]));
        let shape = |count| Some((100_000, 0, number(count)));
        unhealed.look(DISK, chunk(1), shape(1), now);
        unhealed.look(DISK, chunk(2), shape(1), now);
        now = now + Duration::from_millis(500);
        assert!(unhealed.take_due(now, 10).is_empty(), "nothing changed");
        unhealed.look(DISK, chunk(1), shape(1), now);
        assert!(unhealed.take_due(now, 10).is_empty(), "nothing changed");
        unhealed.look(DISK, chunk(1), shape(2), now);
        assert_eq!(unhealed.take_due(now, 10), [(DISK, chunk(1), 4), (DISK, chunk(1), 9)]);
        unhealed.look(DISK, chunk(2), None, now);
        assert_eq!(unhealed.counts(), BTreeMap::from([((DISK, PgId(1)), 2)]));
        unhealed.done((DISK, chunk(1), 4));
        unhealed.done((DISK, chunk(1), 9));
        assert!(unhealed.counts().is_empty() && unhealed.shapes.is_empty());
    }

    /// The list would be written every second while many blocks are bad, or not at all; or it would be taken for all
    /// there is.
    #[test]
    fn lists_are_kept_now_and_then_and_are_bounded() {
        let (mut unhealed, mut now) = (Unhealed::new(Duration::from_secs(1)), Time(1_000_000_000_000));
        assert!(unhealed.lists_due(now).is_empty());
        for block in 0..BAD_BLOCKS_MAX as u32 {
            assert!(unhealed.failed((DISK, chunk(1), block), now));
        }
        assert!(!unhealed.more);
        unhealed.failed((DiskId(4), chunk(1), 0), now);
        assert!(unhealed.more, "one is not remembered");
        let lists = unhealed.lists_due(now);
        assert_eq!(
            lists.iter().map(|(disk, blocks)| (*disk, blocks.len())).collect::<Vec<_>>(),
            [(DISK, BAD_BLOCKS_MAX)]
        );
        unhealed.done((DISK, chunk(1), 0));
        assert!(unhealed.lists_due(now).is_empty(), "too soon");
        now = now + Duration::from_secs(5);
        assert_eq!(unhealed.lists_due(now)[0].1.len(), BAD_BLOCKS_MAX - 1);
        (1..BAD_BLOCKS_MAX as u32).for_each(|block| assert!(unhealed.done((DISK, chunk(1), block))));
        assert!(!unhealed.more);
    }
}
