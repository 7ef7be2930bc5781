//! Catching up: a syncing member of a replicated group compares what it has with the lists of the serving members, the
//! primary's first, and copies what it lacks ([`super::copy`]), until a whole pass finds nothing; then it says so under
//! this epoch, and the manager makes it serving. New chunks come through the chain. Erasure groups:
//! [`super::catch_up_shards`].
//!
//! Invariant: it reports only after a pass in which every sealed chunk of any serving member was the same here,
//! durably. It can be interrupted anywhere: the next pass begins with what is there. A chunk that nobody has whole
//! keeps no other one out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use cairn_chunk_core::catch_up::is_surplus;
use cairn_chunk_core::fence;
use cairn_replica_core::message::ChunkSum;
use cairn_replica_core::reconcile::{Purpose, Said, Step, Verdict};
use cairn_replica_core::source::Source;
use cairn_rpc::Payload;
use cairn_types::{ChunkId, DiskId, ErrorCode, Time};
use cairn_wire::Opcode;
use cairn_wire::data::{ChunkSummary, ListChunksRequest, ListChunksResponse};
use cairn_wire::error::WireError;

use super::Inner;
use super::allocate::raise_mark;
use super::catch_up_shards::stopping;
use super::disk_calls::on_control;
use super::member::Member;
use super::witness::{own_witness, sum_of, witness};
use crate::disk::ChunkInfo;

/// Chunks in one page of a list.
const PAGE: u32 = 500;
/// What a member waits for is logged again after this time.
const SAY_AGAIN: Duration = Duration::from_secs(60);

/// Chunks that a pass could not bring, because nobody has them whole now.
#[derive(Default)]
pub(super) struct Waits {
    first: Option<WireError>,
    chunks: BTreeSet<u32>,
}

impl Waits {
    /// Takes an error that concerns one chunk only; any other ends the pass.
    pub(super) fn note(&mut self, id: ChunkId, error: WireError) -> Result<(), WireError> {
        if !matches!(error.code, ErrorCode::Missing | ErrorCode::ChecksumMismatch | ErrorCode::Internal) {
            return Err(error);
        }
        self.chunks.insert(id.index);
        self.first.get_or_insert(error);
        Ok(())
    }

    /// What comes of the pass; `same`: nothing else differed.
    pub(super) fn outcome(&self, same: bool) -> Result<bool, WireError> {
        let Some(first) = &self.first else { return Ok(same) };
        let more = self.chunks.len() - 1;
        let text =
            if more == 0 { first.message.clone() } else { format!("{} (and {more} more chunks)", first.message) };
        Err(WireError::new(first.code, text))
    }
}

/// What is known of a member that cannot go on.
#[derive(Default)]
struct Stuck {
    /// What the last pass waited for.
    chunks: BTreeSet<u32>,
    /// What was logged last.
    said: Option<(String, Time)>,
}

impl Stuck {
    /// Takes what a pass waited for. Whether the one before it waited for some of that, too: a chunk that was listed
    /// and freed before it was read, or a block that is healed at this moment, is no reason to wait at the next pass.
    fn lasts(&mut self, chunks: &BTreeSet<u32>) -> bool {
        // What concerns no chunk of its own counts as one.
        let chunks = if chunks.is_empty() { BTreeSet::from([u32::MAX]) } else { chunks.clone() };
        let lasts = self.chunks.intersection(&chunks).next().is_some();
        self.chunks = chunks;
        lasts
    }
    /// Whether that is to be logged now.
    fn is_news(&mut self, text: &str, now: Time) -> bool {
        let known = self.said.as_ref().is_some_and(|(before, at)| before == text && now.since(*at) < SAY_AGAIN);
        if !known {
            self.said = Some((text.to_owned(), now));
        }
        !known
    }
}

impl Inner {
    pub(super) async fn catch_up(self: Arc<Self>, member: Member) {
        let (mut first_pass, mut stuck) = (true, Stuck::default());
        while self.is_current(&member) {
            let mut waits = Waits::default();
            let outcome = match member.is_striped() {
                true => self.pass_shards(&member, &mut waits).await,
                false => self.pass(&member, first_pass, &mut waits).await,
            };
            first_pass &= outcome.is_err();
            let pause = match outcome {
                Ok(true) => {
                    self.is_complete(&member);
                    return;
                }
                Ok(false) => {
                    self.waits_no_more(&member, &mut stuck);
                    self.config.retry_pause / 4
                }
                Err(error) => {
                    self.waits(&member, &error, &waits, &mut stuck);
                    self.config.retry_pause
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// The member has everything: the manager is told.
    fn is_complete(&self, member: &Member) {
        if self.is_current(member) {
            let mut state = member.runtime.state.lock();
            if state.epoch == member.pg.epoch {
                state.caught_up = true;
                state.changed = true;
                state.waits_for.clear();
            }
        }
        tracing::info!(disk = %member.disk, pg = %member.pg.pg, epoch = %member.pg.epoch, "caught up");
        self.poke();
    }

    /// A pass failed: what the others lack is for people to know, in the log and in the cluster's status.
    fn waits(&self, member: &Member, error: &WireError, waits: &Waits, stuck: &mut Stuck) {
        let (text, now) = (&error.message, self.clock.now());
        tracing::debug!(disk = %member.disk, pg = %member.pg.pg, %error, "catching up is repeated");
        if !matches!(error.code, ErrorCode::Missing | ErrorCode::ChecksumMismatch | ErrorCode::Internal) {
            return;
        }
        let lasts = stuck.lasts(&waits.chunks);
        if lasts && stuck.is_news(text, now) {
            tracing::error!(disk = %member.disk, pg = %member.pg.pg, %error, "this member cannot catch up while the others lack that; bring their disks back, or delete the files concerned");
        }
        let mut state = member.runtime.state.lock();
        if state.epoch == member.pg.epoch {
            let since = state.waits_since.filter(|_| lasts);
            state.waits_since = Some(since.unwrap_or(now));
        }
        if state.epoch == member.pg.epoch && state.waits_for != *text {
            state.waits_for.clone_from(text);
            state.changed = true;
        }
    }

    /// A pass had nothing to wait for.
    fn waits_no_more(&self, member: &Member, stuck: &mut Stuck) {
        stuck.chunks.clear();
        let mut state = member.runtime.state.lock();
        if state.epoch == member.pg.epoch && state.waits_since.take().is_some() {
            state.waits_for.clear();
            state.changed = true;
        }
    }

    /// One pass over everything that the primary has; `true` when nothing differed.
    async fn pass(self: &Arc<Self>, member: &Member, first_pass: bool, waits: &mut Waits) -> Result<bool, WireError> {
        let primary = fence::primary(&member.pg).ok_or_else(|| {
            WireError::new(ErrorCode::NotServing, format!("{} has no primary to catch up from", member.pg.pg))
        })?;
        let (mut same, mut from) = (true, None);
        let mut listed = BTreeSet::new();
        loop {
            let request = ListChunksRequest {
                disk: primary.get(),
                pg: member.pg.pg.get(),
                after_index: from.unwrap_or(0),
                from_start: from.is_none(),
                count_max: PAGE,
                open_only: false,
                overwritten_only: false,
                used: false,
            };
            let page: ListChunksResponse =
                self.ask(&member.pg, primary, Opcode::ListChunks, &request, Payload::None).await?.0;
            if page.epoch != member.pg.epoch.get() {
                let text = format!("the primary is at e{}, this member at {}", page.epoch, member.pg.epoch);
                return Err(WireError::new(ErrorCode::NotServing, text));
            }
            raise_mark(member.store.clone(), member.pg.clone(), page.high_water).await?;
            let last = page.chunks.last().map(|chunk| chunk.index);
            let end = page.end || last.is_none();
            let range = from.map_or(0, |after: u32| after.saturating_add(1))..=if end {
                u32::MAX
            } else {
                last.unwrap_or(u32::MAX)
            };
            if first_pass {
                self.note_surplus(member, &page, range);
            }
            listed.extend(page.chunks.iter().map(|chunk| chunk.index));
            let brings = page.chunks.into_iter().map(|chunk| self.bring(member, primary, chunk));
            let Some(all_same) = self.bring_several(member, brings, waits).await? else { return Ok(false) };
            same &= all_same;
            if end {
                break;
            }
            from = last;
        }
        same &= self.pass_lacking(member, primary, &listed, waits).await?;
        waits.outcome(same)
    }

    /// Brings what other serving members have and the primary lacks: it may have lost a chunk, and a member that is
    /// complete without it would be the word for a replaced disk to delete the last copy. What metadata freed meanwhile
    /// is freed here too: its `Free` comes again until this member has answered for it.
    async fn pass_lacking(
        self: &Arc<Self>,
        member: &Member,
        primary: DiskId,
        listed: &BTreeSet<u32>,
        waits: &mut Waits,
    ) -> Result<bool, WireError> {
        let mut lacking: BTreeMap<u32, (DiskId, ChunkSummary)> = BTreeMap::new();
        for other in fence::serving(&member.pg).filter(|other| ![member.disk, primary].contains(other)) {
            let all = self.list_all(member, other, ListChunksRequest::default(), Some(member.pg.epoch)).await?;
            for chunk in all.into_iter().filter(|chunk| !listed.contains(&chunk.index)) {
                let longest = lacking.get(&chunk.index).is_none_or(|(_, known)| known.length < chunk.length);
                if longest {
                    lacking.insert(chunk.index, (other, chunk));
                }
            }
        }
        let brings = lacking.into_values().map(|(holder, chunk)| self.bring(member, holder, chunk));
        Ok(self.bring_several(member, brings, waits).await?.unwrap_or(false))
    }

    /// Names what is here and not at the primary, once an epoch. It stays: a list of a peer never decides that bytes go
    /// (the primary may have lost the chunk). What metadata freed is freed here too when its `Free` comes, which is
    /// repeated until every member has answered.
    fn note_surplus(&self, member: &Member, page: &ListChunksResponse, range: std::ops::RangeInclusive<u32>) {
        let theirs: BTreeSet<u32> = page.chunks.iter().map(|chunk| chunk.index).collect();
        let here = member.store.list(member.pg.pg, *range.start(), usize::MAX);
        let here = here.iter().map(|chunk| chunk.info()).take_while(|info| range.contains(&info.id.index));
        let surplus = |info: &ChunkInfo| {
            let index = info.id.index;
            !theirs.contains(&index) && is_surplus(index, info.creation_epoch, page.high_water, member.pg.epoch)
        };
        let extra: Vec<u32> = here.filter(surplus).map(|info| info.id.index).collect();
        if let Some(first) = extra.first() {
            tracing::warn!(disk = %member.disk, pg = %member.pg.pg, count = extra.len(), first, "chunks are here that the primary lacks: freed while this member was away, or lost there; they stay until they are freed");
        }
    }

    /// Brings one chunk up to what `holder` has; `true` when it was the same before.
    async fn bring(
        self: &Arc<Self>,
        member: &Member,
        holder: DiskId,
        theirs: ChunkSummary,
    ) -> (ChunkId, Result<bool, WireError>) {
        let id = ChunkId { pg: member.pg.pg, index: theirs.index };
        (id, self.bring_from(member, holder, id, theirs).await)
    }

    async fn bring_from(
        self: &Arc<Self>,
        member: &Member,
        holder: DiskId,
        id: ChunkId,
        theirs: ChunkSummary,
    ) -> Result<bool, WireError> {
        if let Some(chunk) = member.store.chunk(id).filter(|chunk| !member.store.is_table_known(chunk)) {
            on_control(&member.store, move |store| store.know_table(&chunk)).await?;
        }
        let theirs = sum_of(&theirs);
        let witnesses = [own_witness(member, id), witness(member, holder, Said::Has(theirs))];
        let plan = match self.decide(member, Purpose::Follow { holder }, id, &witnesses) {
            Verdict::Act(plan) => plan,
            verdict => return Ok(verdict.is_complete()),
        };
        let mut same = true;
        for step in plan.steps {
            same &= match step {
                Step::Durable => {
                    self.make_durable(member, member.store.info(id).as_ref()).await?;
                    true
                }
                Step::InStep { number } => self.copied_up_to(member, id, number).await?,
                Step::Level { source: Source::Copy(sources), .. } => {
                    self.copy_from(member, id, &sources, &theirs).await?
                }
                other => unreachable!("{other:?} follows nobody"),
            };
        }
        Ok(same)
    }

    /// Copies a chunk of which the first of `sources` has listed `theirs`; `true` when it was the same before.
    async fn copy_from(
        self: &Arc<Self>,
        member: &Member,
        id: ChunkId,
        sources: &[DiskId],
        theirs: &ChunkSum,
    ) -> Result<bool, WireError> {
        let missing = theirs.length.saturating_sub(member.store.info(id).map_or(0, |here| here.length));
        self.keep_pace(member, missing, 1).await;
        let _permit = self.copies.acquire().await.map_err(|_| stopping())?;
        let Some(_bringing) = self.begin_bringing(member, id, theirs.length) else { return Ok(false) };
        match self.copy_chunk(member, sources, id, member.store.info(id)).await {
            // Freed there just now: the next pass sees what is left.
            Err(error) if error.code == ErrorCode::ChunkDeleted => Ok(false),
            // Overwritten there since: the same.
            Err(error) if self.has_moved_on(member, sources[0], id, theirs.number).await => {
                tracing::debug!(chunk = %id, %error, "a chunk was overwritten while it was copied");
                Ok(false)
            }
            outcome => outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Somebody would be told to delete files because chunks were freed while a member caught up; or never hear that
    /// one is lost, or hear it again with every pass.
    #[test]
    fn only_what_lasts_is_told_and_once_a_minute() {
        let (mut stuck, at) = (Stuck::default(), |seconds| Time(0) + Duration::from_secs(seconds));
        let mut told = |chunks: &[u32], seconds| {
            let lasts = stuck.lasts(&chunks.iter().copied().collect());
            lasts && stuck.is_news("text", at(seconds))
        };
        assert!(!told(&[1], 0) && !told(&[2], 1), "another one each time");
        assert!(told(&[2, 7], 2), "the second pass that waits for it");
        assert!(!told(&[2], 3) && !told(&[2], 61));
        assert!(told(&[2], 63), "a minute later");
        assert!(!told(&[], 64) && !told(&[2], 65));
    }
}
