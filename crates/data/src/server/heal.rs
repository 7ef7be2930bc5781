//! Healing: a block that a reader or a scan found bad is read at rest; if it is bad, a good copy of another serving
//! member replaces it through the journal; a block of a shard is rebuilt from other shards ([`super::rebuild`]). A
//! member whose copy turns out to be bad as well is told ([`super::fetch`]).

use std::sync::Arc;

use cairn_chunk_core::fence;
use cairn_format::crc_table::{PunchedBits, blocks_of};
use cairn_format::pg_state::PgStateRecord;
use cairn_rpc::{Reply, Request};
use cairn_types::{BLOCK_SIZE, ChunkId, DiskId, Epoch, ErrorCode, PgId};
use cairn_wire::common::Empty;
use cairn_wire::data::ReportBadBlockRequest;
use cairn_wire::error::WireError;

use super::catch_up_shards::stopping;
use super::disk_calls::{on_control, wait};
use super::fetch::is_about_bytes;
use super::heal_log::Heard;
use super::member::{Member, bad_request};
use super::rebuild::{Rebuild, RebuildError, Rebuilt};
use super::{Inner, Refused};
use crate::disk::metrics::add;
use crate::disk::{DataError, DiskStore, GoodBlock};

/// A good block from another member.
pub(super) struct Copy {
    pub(super) good: GoodBlock,
    /// It is what the checksum here says.
    as_here: bool,
}

/// Bad blocks that are tried again one after the other before anything else is looked at.
const AGAIN_AT_ONCE: usize = 64;
/// Blocks that one report makes look at, around an unreadable range.
const RANGE_MAX: u32 = 1024;
/// So many of them that are not healed: the others are left to their next readers.
const FAILURES_MAX: u32 = 8;

impl Inner {
    pub(super) fn report_bad_block(self: &Arc<Self>, request: &Request<'_>, reply: Reply) -> Result<(), Refused> {
        let checked = request.decode().and_then(|asked: ReportBadBlockRequest| {
            let (member, id) = self.chunk_member(asked.chunk.as_ref(), true)?;
            let block = u32::try_from(asked.block).map_err(|_| bad_request("a chunk has no such block"))?;
            Ok((member, id, block))
        });
        let (member, id, block) = match checked {
            Ok(checked) => checked,
            Err(error) => return Err((reply, error)),
        };
        if self.is_news(member.disk, id, block, Heard::Report) {
            tracing::warn!(disk = %member.disk, chunk = %id, block, "a reader reports a bad block");
        }
        let inner = self.clone();
        self.tasks.spawn(async move {
            let outcome = inner.check_and_heal(member.disk, member.pg.clone(), member.store, id, block).await;
            reply.result(outcome.map(|_| Empty {}));
        });
        Ok(())
    }

    /// Looks after blocks that the device could not read.
    pub(super) fn heal_range(
        self: &Arc<Self>,
        disk: DiskId,
        pg: PgId,
        store: Arc<DiskStore>,
        id: ChunkId,
        offset: u64,
        length: u32,
    ) {
        let Some(record) = store.pg_files().get(pg) else { return };
        let first = (offset / BLOCK_SIZE as u64) as u32;
        let last = ((offset + u64::from(length)).div_ceil(BLOCK_SIZE as u64) as u32).min(first + RANGE_MAX);
        let inner = self.clone();
        self.tasks.spawn(async move {
            let mut failures = 0;
            for block in first..last {
                let healed = inner.check_and_heal(disk, record.clone(), store.clone(), id, block).await;
                if let Err(error) = healed {
                    if inner.is_news(disk, id, block, Heard::Unreadable) {
                        tracing::error!(%disk, chunk = %id, block, %error, "a block that cannot be read was not healed");
                    }
                    failures += 1;
                    if failures == FAILURES_MAX {
                        return;
                    }
                }
            }
        });
    }

    /// Whether a line about a block is to be logged: not if it was within the last minute.
    fn is_news(&self, disk: DiskId, id: ChunkId, block: u32, heard: Heard) -> bool {
        self.logged.lock().is_news((disk, id, block, heard), self.clock.now())
    }

    /// Tries again, now and then, what could not be healed, and looks after what reads found.
    pub(super) fn start_healing_again(self: &Arc<Self>) {
        let inner = Arc::downgrade(self);
        let pause = self.config.heal_pause;
        self.tasks.spawn(async move {
            loop {
                tokio::time::sleep(pause).await;
                let Some(inner) = inner.upgrade().filter(|inner| !inner.is_stopping()) else { return };
                inner.mend_rows_found().await;
                inner.look_after_unhealed();
                let due = inner.unhealed.lock().take_due(inner.clock.now(), AGAIN_AT_ONCE);
                for (disk, id, block) in due {
                    inner.heal_again(disk, id, block).await;
                }
            }
        });
    }

    async fn heal_again(self: &Arc<Self>, disk: DiskId, id: ChunkId, block: u32) {
        // Where the group is not known any more, nobody reads that block.
        let Ok(member) = self.member(disk.get(), id.pg.get(), 0) else {
            let _known = self.unhealed.lock().done((disk, id, block));
            return;
        };
        let outcome = self.check_and_heal(disk, member.pg.clone(), member.store.clone(), id, block).await;
        if let Err(error) = outcome {
            tracing::debug!(%disk, chunk = %id, block, %error, "a bad block is tried again later");
        }
    }

    /// Verifies a block at rest and heals it if it is bad; what cannot be healed now is tried again. Returns whether it
    /// was bad.
    pub(super) async fn check_and_heal(
        self: &Arc<Self>,
        disk: DiskId,
        pg: Arc<PgStateRecord>,
        store: Arc<DiskStore>,
        id: ChunkId,
        block: u32,
    ) -> Result<bool, WireError> {
        let outcome = self.check_and_heal_now(disk, pg, store.clone(), id, block).await;
        let here = store.info(id).is_some_and(|info| block < blocks_of(info.length));
        let (mut unhealed, key) = (self.unhealed.lock(), (disk, id, block));
        let new = match &outcome {
            Err(_) if here => unhealed.failed(key, self.clock.now()),
            Ok(true) => !unhealed.done(key),
            _ => {
                unhealed.done(key);
                false
            }
        };
        drop(unhealed);
        // Once, however often it is read or tried again: one block that nobody has is no sign of a bad device.
        add(&store.metrics().bad_blocks, u64::from(new));
        outcome
    }

    async fn check_and_heal_now(
        self: &Arc<Self>,
        disk: DiskId,
        pg: Arc<PgStateRecord>,
        store: Arc<DiskStore>,
        id: ChunkId,
        block: u32,
    ) -> Result<bool, WireError> {
        if on_control(&store, move |store| store.verify_block(id, block)).await? {
            return Ok(false);
        }
        self.heal_block(disk, &pg, &store, id, block).await.map(|()| true)
    }

    /// Replaces a block by one from the others, or frees it if they have.
    pub(super) async fn heal_block(
        self: &Arc<Self>,
        disk: DiskId,
        pg: &Arc<PgStateRecord>,
        store: &Arc<DiskStore>,
        id: ChunkId,
        block: u32,
    ) -> Result<(), WireError> {
        // The blocks under a checksum are the same in every epoch, and this member may know the present one later.
        let any_epoch = PgStateRecord { epoch: Epoch(0), ..(**pg).clone() };
        let _permit = self.heals.acquire().await.map_err(|_| stopping())?;
        let runtime = self.runtime(disk, id.pg);
        let asker = Member { disk, store: store.clone(), pg: Arc::new(any_epoch), told: None, runtime };
        let good = match pg.scheme.is_replicated() {
            true => match self.good_copy(&asker, id, block).await? {
                Some(Copy { as_here: false, .. }) if store.chunk(id).is_some_and(|chunk| chunk.is_overwritten()) => {
                    let text =
                        format!("{id}: other members have block {block} as it was before, or is since, an overwrite");
                    return Err(WireError::new(ErrorCode::ChecksumMismatch, text));
                }
                copy => copy.map(|copy| copy.good),
            },
            false => self.rebuilt_block(&Member { pg: pg.clone(), ..asker.clone() }, &asker, id, block).await?,
        };
        let Some(good) = good else { return Ok(()) };
        wait(|done| store.heal(id, block, good, done)).await?;
        add(&store.metrics().heals, 1);
        tracing::info!(%disk, chunk = %id, block, "a bad block was healed from another member");
        Ok(())
    }

    /// A block of a shard, made from the others; `None` when they have freed it, and so it is freed here now.
    async fn rebuilt_block(
        self: &Arc<Self>,
        member: &Member,
        asker: &Member,
        id: ChunkId,
        block: u32,
    ) -> Result<Option<GoodBlock>, WireError> {
        let disk = member.disk;
        let chunk = member.store.chunk(id).ok_or_else(|| DataError::NoChunk { chunk: id }.to_wire())?;
        let job = Arc::new(Rebuild::new(member, id, chunk.creation_epoch())?);
        match self.rebuild(&job, block..block + 1).await {
            Ok(Rebuilt { data, sums, .. }) => {
                Ok(Some(GoodBlock { data: data.freeze(), crc: sums.crcs[0], row_crcs: sums.row_crcs }))
            }
            Err(RebuildError::Freed { disk: freer, .. }) => {
                self.free_as_there(asker, freer, id, block).await?;
                Ok(None)
            }
            Err(error) => {
                if self.is_news(disk, id, block, Heard::NotHealed) {
                    tracing::warn!(%disk, chunk = %id, block, %error, "a bad block cannot be healed now; it is tried again");
                }
                Err(error.to_wire())
            }
        }
    }

    /// Frees a block that another member has freed: metadata told all of them to, and what was done here was lost with
    /// what the disk had not kept.
    async fn free_as_there(&self, asker: &Member, freer: DiskId, id: ChunkId, block: u32) -> Result<(), WireError> {
        let theirs = self.table_of(&asker.pg, freer, id).await?;
        if !theirs.punched.get(block) {
            let text = format!("{id}: {freer} has not got block {block} and does not say why");
            return Err(WireError::new(ErrorCode::Missing, text));
        }
        let mut freed = PunchedBits::default();
        freed.set(block..block + 1);
        self.take_punched(asker, id, &freed, theirs.crcs.len() as u32).await?;
        tracing::info!(disk = %asker.disk, chunk = %id, block, "a bad block was freed by the others, and is freed here now");
        Ok(())
    }

    /// A copy of a block from another serving member that matches its checksum there; one that matches the checksum
    /// here as well goes first. `None` when nobody has one and it was freed there, or here, and so it is freed here
    /// now.
    pub(super) async fn good_copy(
        self: &Arc<Self>,
        asker: &Member,
        id: ChunkId,
        block: u32,
    ) -> Result<Option<Copy>, WireError> {
        let Member { disk, store, pg, .. } = asker;
        let disk = *disk;
        let info = store.info(id).ok_or_else(|| DataError::NoChunk { chunk: id }.to_wire())?;
        let known = store.tables(id).ok().and_then(|tables| tables.crcs.get(block as usize).copied());
        let from = u64::from(block) * BLOCK_SIZE as u64;
        let length = info.length.saturating_sub(from).min(BLOCK_SIZE as u64);
        let mut second = None;
        let mut problems = Vec::new();
        let (mut unanswered, mut freer) = (false, None);
        for other in fence::serving(pg).filter(|other| *other != disk) {
            match self.fetch(pg.as_ref(), other, id, from, length as u32).await {
                Ok((data, crcs)) if data.len() == BLOCK_SIZE => {
                    if known == crcs.first().copied() {
                        let good = GoodBlock { data: data.freeze(), crc: crcs[0], row_crcs: Vec::new() };
                        return Ok(Some(Copy { good, as_here: true }));
                    }
                    second = second.or(Some((data, crcs[0])));
                }
                Ok(_) => problems.push(format!("{other} sent something else")),
                Err(error) => {
                    unanswered |= !is_about_bytes(&error);
                    freer = freer.or(Some(other).filter(|_| error.code == ErrorCode::ChunkDeleted));
                    problems.push(format!("{other}: {error}"));
                }
            }
        }
        if let Some((data, crc)) = second {
            let good = GoodBlock { data: data.freeze(), crc, row_crcs: Vec::new() };
            return Ok(Some(Copy { good, as_here: false }));
        }
        if let Some(freer) = freer
            && self.free_as_there(asker, freer, id, block).await.is_ok()
        {
            return Ok(None);
        }
        if !unanswered && self.free_unmarked(asker, id, block).await? {
            return Ok(None);
        }
        let behind = if unanswered || freer.is_some() { None } else { self.behind_ends(asker, id, block).await? };
        if let Some(good) = behind {
            return Ok(Some(Copy { as_here: known == Some(good.crc), good }));
        }
        let text = format!("{id}: no other member has a good copy of block {block} ({})", problems.join("; "));
        let problems = problems.join("; ");
        if !self.is_news(disk, id, block, Heard::NotHealed) {
            // Readers that do not give up have it tried several times a second.
        } else if unanswered {
            tracing::warn!(%disk, chunk = %id, block, problems, "a bad block cannot be healed now; it is tried again");
        } else {
            tracing::error!(%disk, chunk = %id, block, problems, "a bad block cannot be healed: no other member has it intact");
        }
        Err(WireError::new(ErrorCode::ChecksumMismatch, text))
    }
}
