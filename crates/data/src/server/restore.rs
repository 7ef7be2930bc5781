//! Chunks that a serving member should have and lacks: its file was set aside as damaged, or vanished. A reader that gets
//! Missing here, the start that found the damage, or the end of a scrub ([`super::vanished`]) has it brought back from the others in the background.
//!
//! Invariants: only a serving member, only below the high-water mark, never what was freed here in this epoch; one at a
//! time, after a pause in which a deletion that is under way reaches everybody; a chunk is tried again only after
//! `restore_again`. What is remembered is bounded by [`RESTORES_MAX`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use cairn_chunk_core::fence;
use cairn_format::crc_table::blocks_of;
use cairn_types::{ChunkId, DiskId, ErrorCode, MemberState, Time};
use cairn_wire::error::WireError;
use parking_lot::Mutex;

use super::Inner;
use super::catch_up_shards::stopping;
use super::member::Member;
use crate::disk::Chunk;
use crate::disk::metrics::add;

/// Chunks that wait or were tried lately; more are left to their next reader.
const RESTORES_MAX: usize = 1024;

/// Attempts that follow a failed one without anybody asking.
const TRIES_MAX: u32 = 8;
/// Longest sleep before looking whether something else is due earlier.
const NAP: Duration = Duration::from_millis(250);

/// What waits, and what was tried.
#[derive(Default)]
pub(super) struct Restores {
    due: BTreeSet<(Time, DiskId, ChunkId)>,
    /// When it was noted or tried last, and how often in vain.
    noted: BTreeMap<(DiskId, ChunkId), (Time, u32)>,
    running: bool,
}

#[cfg(test)]
impl Restores {
    /// How often a chunk was tried in vain.
    pub(super) fn tries(&self, disk: DiskId, id: ChunkId) -> u32 {
        self.noted.get(&(disk, id)).map_or(0, |(_, tries)| *tries)
    }
}

/// Keeps a chunk from being brought twice, and from being freed half, as long as it lives.
pub(super) struct Bringing<'a> {
    all: &'a Mutex<BTreeSet<(DiskId, ChunkId)>>,
    key: (DiskId, ChunkId),
}

impl Drop for Bringing<'_> {
    fn drop(&mut self) {
        self.all.lock().remove(&self.key);
    }
}

impl<'a> Bringing<'a> {
    fn begin(all: &'a Mutex<BTreeSet<(DiskId, ChunkId)>>, key: (DiskId, ChunkId)) -> Option<Self> {
        // The lock is let go before a `Bringing` is made, whose end takes it.
        let is_new = all.lock().insert(key);
        is_new.then(|| Bringing { all, key })
    }
}

impl Inner {
    /// `None` when it is being brought already.
    pub(super) fn begin_bringing(&self, disk: DiskId, id: ChunkId) -> Option<Bringing<'_>> {
        Bringing::begin(&self.bringing, (disk, id))
    }

    /// Whether a chunk is being copied or rebuilt at this moment.
    pub(super) fn is_being_brought(&self, disk: DiskId, id: ChunkId) -> bool {
        self.bringing.lock().contains(&(disk, id))
    }

    /// Somebody asked for bytes of a chunk that are not here.
    pub(super) fn note_missing(self: &Arc<Self>, member: &Member, id: ChunkId) {
        self.restore_later(member, id, self.config.restore_delay);
    }

    /// The same of a copy; there mostly its writer has not come so far. One of an earlier epoch that is open was not brought back whole.
    pub(super) fn note_part(self: &Arc<Self>, disk: DiskId, id: ChunkId) {
        if let Ok(member) = self.member(disk.get(), id.pg.get(), 0)
            && is_part(&member, id)
        {
            self.note_missing(&member, id);
        }
    }

    /// Whether another serving member has more of a chunk, and sealed it.
    pub(super) async fn is_longer_elsewhere(&self, member: &Member, id: ChunkId) -> Result<bool, WireError> {
        let here = member.store.info(id).map_or(0, |here| here.length);
        for other in fence::serving(&member.pg).filter(|other| *other != member.disk) {
            let theirs = self.listed(&member.pg, other, id).await?;
            if theirs.is_some_and(|theirs| theirs.sealed && theirs.length > here) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Has a chunk brought back after `pause`, if it was not tried lately; `false`: there is no room for it now.
    pub(super) fn restore_later(self: &Arc<Self>, member: &Member, id: ChunkId, pause: Duration) -> bool {
        if !lacks(member, id) {
            return true;
        }
        let (now, again) = (self.clock.now(), self.config.restore_again + pause);
        let mut restores = self.restores.lock();
        if restores.noted.len() >= RESTORES_MAX {
            restores.noted.retain(|_, (at, _)| now.since(*at) < again);
        }
        let key = (member.disk, id);
        let known = restores.noted.get(&key).is_some_and(|(at, _)| now.since(*at) < again);
        if known || restores.noted.len() >= RESTORES_MAX {
            return known;
        }
        // Mostly one whose writer was interrupted before it was acknowledged. What was damaged or vanished is told by the start.
        tracing::info!(disk = %member.disk, chunk = %id, "a chunk was asked for of which nothing, or less, is here; looking at the other members");
        restores.noted.insert(key, (now, 0));
        restores.due.insert((now + pause, member.disk, id));
        if !std::mem::replace(&mut restores.running, true) {
            let inner = self.clone();
            self.tasks.spawn(async move { inner.restore_all().await });
        }
        true
    }

    async fn restore_all(self: Arc<Self>) {
        loop {
            let now = self.clock.now();
            let (due, disk, id) = {
                let mut restores = self.restores.lock();
                let Some(first) = restores.due.first().copied().filter(|_| !self.is_stopping()) else {
                    restores.running = false;
                    return;
                };
                if first.0 <= now {
                    restores.due.pop_first();
                }
                first
            };
            if due > now {
                tokio::time::sleep(due.since(now).min(NAP)).await;
                continue;
            }
            let outcome = self.restore(disk, id).await;
            self.note_outcome(disk, id, outcome);
        }
    }

    fn note_outcome(&self, disk: DiskId, id: ChunkId, outcome: Result<bool, WireError>) {
        let now = self.clock.now();
        let mut restores = self.restores.lock();
        let tries = restores.noted.get(&(disk, id)).map_or(0, |(_, tries)| *tries);
        let tries = if outcome.is_err() { tries + 1 } else { 0 };
        restores.noted.insert((disk, id), (now, tries));
        match outcome {
            Ok(true) => tracing::info!(%disk, chunk = %id, "a chunk that was missing is back"),
            Ok(false) => tracing::debug!(%disk, chunk = %id, "nothing to bring back"),
            Err(error) if tries <= TRIES_MAX => {
                tracing::debug!(%disk, chunk = %id, %error, tries, "a missing chunk is tried again");
                let pause = self.config.retry_pause * (1 << tries);
                restores.due.insert((now + pause.min(self.config.restore_again), disk, id));
            }
            Err(error) => {
                tracing::warn!(%disk, chunk = %id, %error, "a chunk that is missing was not brought back; its next reader has it tried again");
            }
        }
    }

    /// Brings one chunk back; `false` when it is here, or nobody has it.
    async fn restore(self: &Arc<Self>, disk: DiskId, id: ChunkId) -> Result<bool, WireError> {
        let member = self.member(disk.get(), id.pg.get(), 0)?;
        if !lacks(&member, id) {
            return Ok(false);
        }
        let before = member.store.info(id).map_or(0, |info| info.length);
        if member.is_striped() {
            let holders = self.holders(&member, id).await?;
            self.bring_shard(&member, id, holders).await?;
        } else if !member.store.info(id).is_some_and(|here| here.sealed) {
            // Nothing is here, or what an attempt brought that ended early.
            self.copy_back(&member, id).await?;
        }
        let restored = member.store.info(id).is_some_and(|info| info.length > before);
        if restored {
            add(&member.store.metrics().restored_chunks, 1);
        }
        if !self.is_current(&member) {
            // It may have ended early with that.
            let text = format!("{id}: a new epoch of its group began while it was brought back");
            return Err(WireError::new(ErrorCode::Unavailable, text));
        }
        Ok(restored)
    }

    /// Copies a replicated chunk from the member that has most of it.
    async fn copy_back(self: &Arc<Self>, member: &Member, id: ChunkId) -> Result<(), WireError> {
        let mut sources = Vec::new();
        let others: Vec<DiskId> = fence::serving(&member.pg).filter(|other| *other != member.disk).collect();
        let mut problem = None;
        for other in others {
            match self.look_up(member, other, id).await {
                // An open one comes through the chain, or its primary is about to seal it.
                Ok(Some(theirs)) if theirs.sealed => sources.push((theirs.length, other, theirs.punched_blocks)),
                Ok(_) => {}
                Err(error) => problem = Some(error),
            }
        }
        sources.retain(|(length, _, punched)| *punched < u64::from(blocks_of(*length)));
        sources.sort_unstable_by(|a, b| b.cmp(a));
        if sources.is_empty() {
            return problem.map_or(Ok(()), Err);
        }
        let _permit = self.copies.acquire().await.map_err(|_| stopping())?;
        let Some(_bringing) = self.begin_bringing(member.disk, id) else { return Ok(()) };
        let mut sources: Vec<DiskId> = sources.into_iter().map(|(_, source, _)| source).collect();
        let mut outcome = Ok(());
        for _ in 0..sources.len() {
            match self.copy_chunk(member, &sources, id, member.store.info(id)).await {
                Ok(_was_same) => return Ok(()),
                Err(error) => outcome = Err(error),
            }
            // By the table of another one.
            sources.rotate_left(1);
        }
        outcome
    }
}

/// Whether a copy is here that can only be a part: at the beginning of an epoch all are closed.
pub(super) fn is_part(member: &Member, id: ChunkId) -> bool {
    let is_old = |chunk: &Arc<Chunk>| !chunk.is_sealed() && chunk.creation_epoch() < member.pg.epoch;
    !member.is_striped() && member.check_entered().is_ok() && member.store.chunk(id).as_ref().is_some_and(is_old)
}

/// Whether the member serves and a chunk of that index was given out and not freed here.
fn lacks(member: &Member, id: ChunkId) -> bool {
    let serves = fence::state_of(&member.pg, member.disk) == Ok(MemberState::Serving) && !member.pg.retired;
    serves && id.index < member.pg.high_water && !member.runtime.state.lock().was_deleted(id.index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_types::PgId;

    /// The second one who wants to bring a chunk would wait for itself for ever, and everybody after it.
    #[test]
    fn a_chunk_is_brought_once_at_a_time_and_again_later() {
        let all = Mutex::new(BTreeSet::new());
        let key = (DiskId(1), ChunkId { pg: PgId(2), index: 3 });
        let first = Bringing::begin(&all, key).expect("nobody brings it");
        assert!(Bringing::begin(&all, key).is_none());
        assert!(Bringing::begin(&all, key).is_none(), "a refused one changes nothing");
        drop(first);
        assert!(Bringing::begin(&all, key).is_some());
    }
}
