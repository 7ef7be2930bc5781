//! Chunks that a serving member should have and lacks: its file was set aside as damaged, or vanished, or ends early. A
//! reader that gets Missing here, the start that found the damage, or the comparison of lists ([`super::vanished`]) has
//! it brought back from the others in the background.
//!
//! Invariants: only a serving member, only below the high-water mark, never what was freed here; one at a time,
//! after a pause in which a deletion that is under way reaches everybody; until it is here, or nobody has it. What is
//! remembered, and what is told of it, is in [`super::missing`].

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use cairn_chunk_core::fence;
use cairn_replica_core::reconcile::{Purpose, Said, Step, Verdict};
use cairn_replica_core::role::Right;
use cairn_replica_core::source::Source;
use cairn_types::{ChunkId, DiskId, ErrorCode, MemberState};
use cairn_wire::error::WireError;
use parking_lot::Mutex;

use super::Inner;
use super::catch_up_shards::stopping;
use super::member::Member;
use super::missing::{Found, Noted, Restored};
use super::witness::{has_right, own_witness, witness};
use crate::disk::Chunk;
use crate::disk::metrics::add;

/// So many attempts in vain are told at WARN.
const TRIES_TOLD: u32 = 8;
/// Longest sleep before looking whether something else is due earlier.
const NAP: Duration = Duration::from_millis(250);

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
    /// Begins to bring `length` bytes of a chunk; from here on frees of it have to come again. `None`: it is brought
    /// already, or was freed since it was looked at, or is at this moment.
    pub(super) fn begin_bringing(&self, member: &Member, id: ChunkId, length: u64) -> Option<Bringing<'_>> {
        let bringing = Bringing::begin(&self.bringing, (member.disk, id))?;
        let now = member.runtime.state.lock().now(id.index);
        let freed = now.freeing || now.freed_up_to > 0 && length <= now.freed_up_to;
        (!freed).then_some(bringing)
    }

    /// Whether a chunk is being copied or rebuilt at this moment.
    pub(super) fn is_being_brought(&self, disk: DiskId, id: ChunkId) -> bool {
        self.bringing.lock().contains(&(disk, id))
    }

    /// Somebody asked for bytes of a chunk that are not here.
    pub(super) fn note_missing(self: &Arc<Self>, member: &Member, id: ChunkId, found: Found) {
        self.restore_later(member, id, found, self.config.restore_delay);
    }

    /// The same of a copy; there mostly its writer has not come so far. One of an earlier epoch that is open was not
    /// brought back whole.
    pub(super) fn note_part(self: &Arc<Self>, disk: DiskId, id: ChunkId, found: Found) {
        if let Ok(member) = self.member(disk.get(), id.pg.get(), 0)
            && is_part(&member, id)
        {
            self.note_missing(&member, id, found);
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

    /// Has a chunk brought back after `pause`; `false`: there is no room for it now.
    pub(super) fn restore_later(self: &Arc<Self>, member: &Member, id: ChunkId, found: Found, pause: Duration) -> bool {
        if !lacks(member, id) {
            if found == Found::Start {
                self.forget_lost(member, id);
            }
            return true;
        }
        let again = self.config.restore_again + pause;
        let noted = self.missing.lock().note((member.disk, id), found, self.clock.now(), pause, again);
        if noted == Noted::Begin {
            let inner = self.clone();
            self.tasks.spawn(async move { inner.restore_all().await });
        }
        noted != Noted::Full
    }

    /// Chunks that the start found gone or damaged; those for which there is no room come at the next comparison.
    pub(super) fn restore_lost(self: &Arc<Self>, member: &Member) {
        for id in member.store.take_lost(member.pg.pg) {
            if !self.restore_later(member, id, Found::Start, Duration::ZERO) {
                member.store.put_back_lost(id);
            }
        }
    }

    async fn restore_all(self: Arc<Self>) {
        loop {
            let now = self.clock.now();
            if self.is_stopping() {
                self.missing.lock().stop();
                return;
            }
            let Some((due, disk, id)) = self.missing.lock().take_first(now) else { return };
            if due > now {
                tokio::time::sleep(due.since(now).min(NAP)).await;
                continue;
            }
            let outcome = self.restore(disk, id).await;
            self.note_outcome(disk, id, outcome);
        }
    }

    fn note_outcome(&self, disk: DiskId, id: ChunkId, outcome: Result<Restored, WireError>) {
        let restored = outcome.as_ref().ok().copied();
        let tries = self.missing.lock().ended((disk, id), restored, self.clock.now());
        match outcome {
            Ok(Restored::Back) => tracing::info!(%disk, chunk = %id, "a chunk that was missing is back"),
            // A reader may go by an old map; the status names it all the same.
            Ok(Restored::Nowhere) if tries == 1 && !self.missing.lock().is_needed((disk, id)) => {
                tracing::info!(%disk, chunk = %id, "no member has anything of a chunk that a reader named; cairn admin fsck says whether a file lost bytes");
            }
            Ok(Restored::Nowhere) if tries == 1 => {
                tracing::error!(%disk, chunk = %id, "no other member has anything of a chunk whose file was damaged or gone; cairn admin fsck names the files that lost bytes, if any did");
            }
            Ok(Restored::Settled | Restored::Nowhere) => tracing::debug!(%disk, chunk = %id, "nothing to bring back"),
            Ok(Restored::Unsure) => {
                tracing::debug!(%disk, chunk = %id, tries, "who has a missing chunk is asked again")
            }
            Err(error) if tries != TRIES_TOLD => {
                tracing::debug!(%disk, chunk = %id, %error, tries, "a missing chunk is tried again");
            }
            Err(error) => {
                tracing::warn!(%disk, chunk = %id, %error, "a chunk that is missing could not be brought back so far; it is tried again");
            }
        }
        if matches!(restored, Some(Restored::Back | Restored::Settled))
            && let Ok(member) = self.member(disk.get(), id.pg.get(), 0)
        {
            self.forget_lost(&member, id);
        }
    }

    /// The next start does not look for it.
    pub(super) fn forget_lost(&self, member: &Member, id: ChunkId) {
        let begun = member.store.control(move |store| store.forget_lost(id));
        if let Err(error) = begun {
            tracing::debug!(disk = %member.disk, chunk = %id, %error, "the next start looks for the chunk once more");
        }
    }

    /// Brings one chunk back.
    async fn restore(self: &Arc<Self>, disk: DiskId, id: ChunkId) -> Result<Restored, WireError> {
        if self.slot(disk).is_none() {
            return Ok(Restored::Settled);
        }
        let member = self.member(disk.get(), id.pg.get(), 0)?;
        if !lacks(&member, id) {
            // One that catches up is brought everything, and looks for what is left when it serves.
            let syncs = fence::state_of(&member.pg, disk).is_ok_and(|state| state != MemberState::Serving);
            let needed = syncs && !member.pg.retired && !member.runtime.state.lock().deleted().is_whole(id.index);
            return Ok(if needed { Restored::Unsure } else { Restored::Settled });
        }
        let before = member.store.info(id).map_or(0, |info| info.length);
        let outcome = match member.is_striped() {
            true => self.rebuild_back(&member, id).await?,
            false => self.copy_back(&member, id).await?,
        };
        let restored = member.store.info(id).is_some_and(|info| info.length > before);
        if restored {
            add(&member.store.metrics().restored_chunks, 1);
        }
        if !self.is_current(&member) {
            // It may have ended early with that.
            let text = format!("{id}: a new epoch of its group began while it was brought back");
            return Err(WireError::new(ErrorCode::Unavailable, text));
        }
        Ok(if restored && outcome == Restored::Settled { Restored::Back } else { outcome })
    }

    /// Rebuilds a shard from those of the other members.
    async fn rebuild_back(self: &Arc<Self>, member: &Member, id: ChunkId) -> Result<Restored, WireError> {
        let witnesses = self.holders(member, id).await?;
        let has = witnesses.iter().filter(|theirs| theirs.said.has().is_some()).count();
        if has >= member.pg.scheme.read_minimum() {
            self.missing.lock().is_elsewhere((member.disk, id));
        }
        let verdict = self.bring_shard(member, id, witnesses).await?;
        Ok(match member.store.info(id) {
            // Or its writer is at it.
            Some(here) if here.sealed || here.creation_epoch >= member.pg.epoch => Restored::Settled,
            None if verdict == Verdict::Nowhere => Restored::Nowhere,
            None if verdict == Verdict::Settled => Restored::Settled,
            _ => Restored::Unsure,
        })
    }

    /// Copies a replicated chunk from the member that has most of it.
    async fn copy_back(self: &Arc<Self>, member: &Member, id: ChunkId) -> Result<Restored, WireError> {
        let (mut witnesses, mut problem) = (vec![own_witness(member, id)], None);
        for other in fence::serving(&member.pg).filter(|other| *other != member.disk) {
            witnesses.push(self.ask_witness(member, other, id).await.unwrap_or_else(|error| {
                problem = Some(error);
                witness(member, other, Said::Silent)
            }));
        }
        let step = match self.decide(member, Purpose::Restore, id, &witnesses) {
            Verdict::Act(plan) => plan.steps.into_iter().next(),
            Verdict::Wait => return problem.map_or(Ok(Restored::Unsure), Err),
            Verdict::Nowhere => return Ok(Restored::Nowhere),
            _ => return Ok(Restored::Settled),
        };
        let Some(Step::Level { source: Source::Copy(mut sources), .. }) = step else {
            unreachable!("{step:?} brings no copy back")
        };
        self.missing.lock().is_elsewhere((member.disk, id));
        let _permit = self.copies.acquire().await.map_err(|_| stopping())?;
        let longest = witnesses[1..].iter().filter_map(|theirs| theirs.said.has()).map(|sum| sum.length).max();
        let Some(_bringing) = self.begin_bringing(member, id, longest.unwrap_or(0)) else {
            return Ok(Restored::Unsure);
        };
        let mut outcome = Ok(Restored::Settled);
        for _ in 0..sources.len() {
            match self.copy_chunk(member, &sources, id, member.store.info(id)).await {
                Ok(_was_same) => return Ok(Restored::Settled),
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

/// Whether the member serves and a chunk of that index was given out and not freed as a whole here.
fn lacks(member: &Member, id: ChunkId) -> bool {
    let serves = has_right(member, member.disk, Right::Restore) && !member.pg.retired;
    serves && id.index < member.pg.high_water && !member.runtime.state.lock().deleted().is_whole(id.index)
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
