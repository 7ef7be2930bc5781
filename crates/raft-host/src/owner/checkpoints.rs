//! When a group makes checkpoints, what of the log may go then, and taking over a fetched one.
//!
//! A group that is idle holds old segments of the shared log with entries behind its older checkpoint. It writes them
//! once more, as one record (so that a crash never leaves a part of them), and the old segments go.
//!
//! Invariant: the log is truncated only up to the older of the two checkpoints kept, so that it still reaches back to
//! it when the newer one turns out to be damaged.

use std::sync::atomic::Ordering;
use std::time::Duration;

use cairn_raft::{Input, LogEntry, Position, SnapshotMeta};
use cairn_store::{Record, StoreError};

use cairn_types::Time;
use cairn_wire::raft::{TakeCheckpointRequest, TakeCheckpointResponse};

use super::Owner;
use super::freeze::Image;
use crate::error::HostError;
use crate::mailbox::{FreezeAnswer, TakeAnswer};
use crate::pool;
use crate::state_machine::StateMachine;

/// Backups that wait for a checkpoint of one group.
const TAKERS_MAX: usize = 16;
/// Pause after a checkpoint that failed, or entries that were logged again.
const PAUSE: Duration = Duration::from_secs(2);

/// Checkpoints kept, and what has been logged since.
pub(crate) struct Generations {
    /// Newest first.
    pub(super) kept: Vec<Position>,
    /// Bytes applied since the newest.
    pub(super) log_bytes: u64,
    /// Where the log on disk begins.
    log_base: u64,
    /// What is being written.
    pub(super) writing: Option<Position>,
    /// Before this nothing is tried again that did not help or failed.
    pause_until: Time,
    /// Who waits for a checkpoint of at least an entry, and whether it was promised by a leader.
    takers: Vec<(u64, bool, TakeAnswer)>,
    /// Who waits for a checkpoint of one moment to be begun.
    pub(super) freezers: Vec<FreezeAnswer>,
    /// The last of those, while another one is being written.
    pub(super) frozen: Option<Image>,
    /// The last of those that was begun, and until when its file stays.
    pub(super) pinned: Option<(Position, Time)>,
}

impl Generations {
    pub fn new(kept: Vec<Position>, log_base: u64, log_bytes: u64) -> Self {
        Self {
            kept,
            log_base,
            log_bytes,
            writing: None,
            pause_until: Time(0),
            takers: Vec::new(),
            freezers: Vec::new(),
            frozen: None,
            pinned: None,
        }
    }

    /// Somebody waits for a checkpoint.
    pub(super) fn is_awaited(&self) -> bool {
        !self.takers.is_empty()
    }

    /// Answers those for whom a checkpoint is new enough.
    fn serve_takers(&mut self, at: Position) {
        let (served, waiting) =
            std::mem::take(&mut self.takers).into_iter().partition(|(least, ..)| *least <= at.index);
        self.takers = waiting;
        for (_, led, answer) in served {
            let (index, term) = (at.index, at.term);
            answer(Ok(TakeCheckpointResponse { taken: true, leader: 0, index, term, led }));
        }
    }
}

impl<S: StateMachine> Owner<S> {
    /// A checkpoint for a backup: of everything that is applied now, or one that was begun at a moment before.
    pub(super) fn take(&mut self, request: &TakeCheckpointRequest, answer: TakeAnswer) {
        if let Err(stopped) = self.running() {
            return answer(Err(stopped));
        }
        if let Some(at) = self.begun(request.index) {
            let (index, term) = (at.index, at.term);
            return answer(Ok(TakeCheckpointResponse { taken: true, leader: 0, index, term, led: true }));
        }
        let led = request.index > 0 || self.leads_or_wakes();
        if !led && !request.any_member {
            let leader = self.hint().map_or(0, |node| node.0);
            return answer(Ok(TakeCheckpointResponse { leader, ..TakeCheckpointResponse::default() }));
        }
        if self.checkpoints.takers.len() >= TAKERS_MAX {
            return answer(Err(HostError::Refused("too many backups wait for a checkpoint; come again".into())));
        }
        let least = if request.index > 0 { request.index } else { self.applied.index };
        self.checkpoints.takers.push((least, led, answer));
        match self.checkpoints.kept.first().copied() {
            Some(newest) => self.checkpoints.serve_takers(newest),
            None if self.applied.index == 0 => self.refuse_takers(),
            None => {}
        }
        self.checkpoint_wanted |= self.checkpoints.is_awaited();
    }

    /// Nobody gets a checkpoint any more.
    pub(super) fn refuse_takers(&mut self) {
        for (.., answer) in std::mem::take(&mut self.checkpoints.takers) {
            answer(Err(HostError::Refused(
                "this member has nothing that could be written into a checkpoint now".into(),
            )));
        }
    }

    /// Starts a checkpoint when enough was logged, when this group holds back the log, or when it is wanted.
    pub(super) fn maybe_checkpoint(&mut self, wanted: bool) {
        self.parts.log.note(self.core.log_bytes());
        let config = &self.parts.config;
        let at = self.applied;
        let newest = self.checkpoints.kept.first().copied().unwrap_or_default();
        let members = self.core.members();
        // A change of several members is short; a checkpoint has no place for it.
        if self.failed || self.checkpoints.writing.is_some() || members.joint || members.voters.is_empty() {
            return;
        }
        let now = self.parts.clock.now();
        let holds = self.parts.wal.stats().segments() > config.segments_max
            && self.parts.wal.oldest_holder() == Some(self.parts.group)
            && now >= self.checkpoints.pause_until;
        if at.index <= newest.index && !(wanted && newest.index == 0) {
            if holds {
                self.checkpoints.pause_until = now + PAUSE;
                self.release();
            }
            return;
        }
        if !wanted
            && !holds
            && self.checkpoints.log_bytes < self.parts.log.checkpoint_after(config.checkpoint_log_bytes)
        {
            return;
        }
        let image = self.image();
        self.write(image);
    }

    pub(super) fn checkpointed(&mut self, meta: SnapshotMeta, result: Result<(u64, Duration), StoreError>) {
        self.checkpoints.writing = None;
        self.written(meta, result);
        if let Some(image) = self.checkpoints.frozen.take() {
            self.write(image);
        }
    }

    fn written(&mut self, meta: SnapshotMeta, result: Result<(u64, Duration), StoreError>) {
        let shared = &self.parts.shared;
        let group = self.parts.group;
        let (bytes, took) = match result {
            Ok(written) => written,
            Err(error) => {
                // Tried again after as much has been logged once more, or when the log is held back; it is kept
                // meanwhile.
                self.checkpoints.pause_until = self.parts.clock.now() + PAUSE;
                shared.checkpoint_failures.fetch_add(1, Ordering::Relaxed);
                tracing::error!(%group, index = meta.at.index, %error, "a checkpoint could not be written");
                self.checkpoints.pinned.take_if(|(at, _)| *at == meta.at);
                self.refuse_takers();
                return;
            }
        };
        shared.checkpoints.fetch_add(1, Ordering::Relaxed);
        shared.checkpoint_bytes.store(bytes, Ordering::Relaxed);
        shared.checkpoint_nanos.store(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        tracing::info!(%group, index = meta.at.index, bytes, ?took, "checkpoint written");
        let at = meta.at;
        if self.checkpoints.kept.first().is_some_and(|newest| newest.index >= at.index) {
            // Overtaken by a fetched one.
            return;
        }
        self.checkpoints.kept.insert(0, at);
        self.checkpoints.kept.truncate(self.parts.store.generations());
        let now = self.parts.clock.now();
        let pinned = self.checkpoints.pinned.filter(|(_, until)| now < *until).map(|(at, _)| at.index);
        if let Err(error) = pool::blocking(|| self.parts.store.prune(group, pinned)) {
            tracing::warn!(%group, %error, "old checkpoints could not be removed");
        }
        if let [_, older, ..] = self.checkpoints.kept[..] {
            self.truncate(older);
        }
        self.checkpoints.serve_takers(at);
        self.checkpoint_wanted |= self.checkpoints.is_awaited();
        self.step_quietly(Input::Checkpointed(SnapshotMeta { bytes, ..meta }));
    }

    /// Gives old segments up although there is nothing new to make a checkpoint of.
    fn release(&mut self) {
        if !self.log_again() {
            let group = self.parts.group;
            tracing::debug!(%group, "old segments of the log are held until the next checkpoint: an entry is asked for");
            self.step_quietly(Input::EntryWanted);
            self.carry_out();
        }
    }

    /// Gives whether that was possible.
    fn log_again(&mut self) -> bool {
        let group = self.parts.group;
        let from = self.checkpoints.log_base;
        let Some(entries) = self.core.entries_after(from).filter(|entries| !entries.is_empty()) else { return false };
        let bytes: usize = entries.iter().map(|entry| entry.data.len() + 64).sum();
        if bytes > self.parts.wal.record_bytes_max() {
            return false;
        }
        let entry = |e: LogEntry| cairn_store::LogEntry { term: e.term, index: e.index, kind: e.kind, data: e.data };
        let entries: Vec<_> = entries.into_iter().map(entry).collect();
        tracing::debug!(%group, entries = entries.len(), bytes, "entries are logged again, old segments can go");
        self.log(vec![Record::Entries { group, entries }], None);
        true
    }

    fn truncate(&mut self, at: Position) {
        self.checkpoints.log_base = at.index;
        let record = Record::Truncate { group: self.parts.group, index: at.index, term: at.term };
        self.log(vec![record], None);
    }

    /// The state becomes that of a fetched checkpoint; older ones cannot be continued by the log any more.
    pub(super) fn restore(&mut self, meta: &SnapshotMeta) -> bool {
        let (group, at) = (self.parts.group, meta.at);
        let (store, sm) = (&self.parts.store, &mut self.sm);
        let read = || {
            let mut file = store.open(group, at.index)?;
            sm.restore(&mut file)?;
            Ok::<_, StoreError>(file.header().time)
        };
        let restored = pool::blocking(read);
        match restored {
            Ok(time) => {
                self.allow_chain();
                self.log_clock.observe(time);
                self.parts.shared.set_logged(time);
                self.applied = at;
                self.checkpoints.kept = vec![at];
                self.checkpoints.frozen = None;
                self.checkpoints.pinned = None;
                self.checkpoints.log_base = at.index;
                self.checkpoints.log_bytes = 0;
                if let Err(error) = pool::blocking(|| self.parts.store.drop_before(group, at.index)) {
                    tracing::warn!(%group, %error, "old checkpoints could not be removed");
                }
                tracing::info!(%group, index = at.index, "took over a checkpoint");
                true
            }
            Err(error) => {
                self.fail(&error.to_string());
                false
            }
        }
    }
}
