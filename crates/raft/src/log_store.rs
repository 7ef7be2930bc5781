//! [`LogStore`]: the entries in memory that the `raft` crate reads.
//!
//! Invariants: entries are consecutive and follow the base; the base never passes the newest checkpoint, so a follower
//! can always be given either entries or a checkpoint. Not here: durability (the host persists what the core puts out).

use std::cell::Cell;
use std::collections::VecDeque;

use raft::eraftpb::{ConfState, Entry, Snapshot};
use raft::{Error, GetEntriesContext, RaftState, Storage, StorageError};

use crate::{HardState, Members, Position, SnapshotMeta};

/// Memory that an entry takes beside its bytes, roughly.
const ENTRY_OVERHEAD: u64 = 160;

/// The log in memory.
pub struct LogStore {
    base: Position,
    entries: VecDeque<Entry>,
    bytes: u64,
    hard: HardState,
    conf: ConfState,
    snapshot: Option<SnapshotMeta>,
    wanted: Cell<bool>,
}

fn size(entry: &Entry) -> u64 {
    entry.data.len() as u64 + ENTRY_OVERHEAD
}

impl LogStore {
    pub(crate) fn new(
        base: Position,
        entries: Vec<Entry>,
        hard: HardState,
        conf: ConfState,
        snapshot: Option<SnapshotMeta>,
    ) -> Self {
        let bytes = entries.iter().map(size).sum();
        Self { base, entries: entries.into(), bytes, hard, conf, snapshot, wanted: Cell::new(false) }
    }

    /// Where the log in memory begins.
    pub fn base(&self) -> Position {
        self.base
    }

    /// Bytes of memory, roughly.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Index of the last entry.
    pub fn last(&self) -> u64 {
        self.base.index + self.entries.len() as u64
    }

    /// All entries behind an index, if they are still in memory.
    pub(crate) fn after(&self, index: u64) -> Option<impl Iterator<Item = &Entry>> {
        let from = usize::try_from(index.checked_sub(self.base.index)?).ok()?;
        (from <= self.entries.len()).then(|| self.entries.range(from..))
    }

    /// The newest checkpoint.
    pub fn checkpoint(&self) -> Option<&SnapshotMeta> {
        self.snapshot.as_ref()
    }

    pub(crate) fn conf(&self) -> &ConfState {
        &self.conf
    }

    pub(crate) fn set_conf(&mut self, conf: ConfState) {
        self.conf = conf;
    }

    pub(crate) fn set_checkpoint(&mut self, meta: SnapshotMeta) {
        if self.snapshot.as_ref().is_none_or(|have| have.at.index < meta.at.index) {
            self.snapshot = Some(meta);
        }
    }

    /// Whether a follower needed a checkpoint that is not there, since the last call.
    pub(crate) fn take_wanted(&self) -> bool {
        self.wanted.take()
    }

    fn slot(&self, index: u64) -> Option<usize> {
        index.checked_sub(self.base.index + 1).and_then(|slot| usize::try_from(slot).ok())
    }

    /// Appends entries, replacing what is there from the first on.
    pub(crate) fn append(&mut self, entries: &[Entry]) {
        let Some(first) = entries.first() else { return };
        let slot = self.slot(first.index).filter(|&slot| slot <= self.entries.len());
        let slot = slot.expect("the core appends entries that join those which are there");
        for old in self.entries.drain(slot..) {
            self.bytes -= size(&old);
        }
        self.bytes += entries.iter().map(size).sum::<u64>();
        self.entries.extend(entries.iter().cloned());
    }

    /// Starts anew behind an installed checkpoint.
    pub(crate) fn reset(&mut self, at: Position, conf: ConfState) {
        self.entries.clear();
        self.bytes = 0;
        self.base = at;
        self.conf = conf;
    }

    /// Gives up the oldest entries beyond `keep` bytes, as far as the newest checkpoint (and `applied`) goes.
    pub(crate) fn trim(&mut self, keep: u64, applied: u64) {
        let limit = self.snapshot.as_ref().map_or(0, |meta| meta.at.index).min(applied);
        while self.bytes > keep && self.base.index < limit {
            let Some(gone) = self.entries.pop_front() else { return };
            self.bytes -= size(&gone);
            self.base = Position { index: gone.index, term: gone.term };
        }
    }

    pub(crate) fn check_invariants(&self) {
        for (at, entry) in self.entries.iter().enumerate() {
            assert_eq!(entry.index, self.base.index + 1 + at as u64, "entries are consecutive");
        }
        assert!(self.entries.iter().map(|e| e.term).is_sorted(), "terms never go back in a log");
        assert_eq!(self.bytes, self.entries.iter().map(size).sum::<u64>());
    }
}

impl Storage for LogStore {
    fn initial_state(&self) -> raft::Result<RaftState> {
        let mut hard = raft::eraftpb::HardState::default();
        hard.term = self.hard.term;
        hard.vote = self.hard.vote;
        hard.commit = self.hard.commit;
        Ok(RaftState::new(hard, self.conf.clone()))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        let (Some(from), Some(to)) = (self.slot(low), self.slot(high)) else {
            return Err(Error::Store(StorageError::Compacted));
        };
        if to > self.entries.len() {
            return Err(Error::Store(StorageError::Unavailable));
        }
        let max = max_size.into().unwrap_or(u64::MAX);
        let mut total = 0;
        let mut out = Vec::new();
        for entry in self.entries.range(from..to) {
            total += entry.data.len() as u64 + 24;
            if !out.is_empty() && total > max {
                break;
            }
            out.push(entry.clone());
        }
        Ok(out)
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        if index == self.base.index {
            return Ok(self.base.term);
        }
        let slot = self.slot(index).ok_or(Error::Store(StorageError::Compacted))?;
        self.entries.get(slot).map(|entry| entry.term).ok_or(Error::Store(StorageError::Unavailable))
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.base.index + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last())
    }

    fn snapshot(&self, request_index: u64, to: u64) -> raft::Result<Snapshot> {
        // One of before the receiver was added would be refused by it; or, if it was a member then too, it would go by
        // members that are none any more, and could elect itself with votes that count no longer.
        let members = Members::from_conf(&self.conf);
        let usable = |meta: &&SnapshotMeta| {
            meta.at.index >= request_index.max(self.base.index)
                && meta.members == members
                && u32::try_from(to).is_ok_and(|to| members.contains(cairn_types::NodeId(to)))
        };
        let Some(meta) = self.snapshot.as_ref().filter(usable) else {
            self.wanted.set(true);
            return Err(Error::Store(StorageError::SnapshotTemporarilyUnavailable));
        };
        let mut snapshot = Snapshot::default();
        let inner = snapshot.mut_metadata();
        inner.index = meta.at.index;
        inner.term = meta.at.term;
        inner.set_conf_state(meta.members.to_conf());
        Ok(snapshot)
    }
}
