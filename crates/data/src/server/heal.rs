//! Healing: a block that a reader or a scan found bad is read at rest; if it is bad, a good copy of another serving
//! member replaces it through the journal; a block of a shard is rebuilt from other shards ([`super::rebuild`]).

use std::sync::Arc;

use cairn_chunk_core::fence;
use cairn_env::AlignedBuf;
use cairn_format::crc_table::decode_crcs;
use cairn_format::pg_state::PgStateRecord;
use cairn_rpc::{Payload, Reply, Request};
use cairn_types::{BLOCK_SIZE, ChunkId, DiskId, Epoch, ErrorCode, PgId, crc32c};
use cairn_wire::Opcode;
use cairn_wire::common::Empty;
use cairn_wire::data::{ChunkHeader, ReadRequest, ReadResponse, ReportBadBlockRequest};
use cairn_wire::error::WireError;
use tokio::sync::oneshot;

use super::heal_log::Heard;
use super::member::{Member, bad_request};
use super::rebuild::{Rebuild, RebuildError, Rebuilt};
use super::{Inner, Refused};
use crate::disk::metrics::add;
use crate::disk::{DataError, DiskStore, GoodBlock};

/// Blocks that one report makes look at, around an unreadable range.
const RANGE_MAX: u32 = 1024;

/// Blocks from another member that match their checksums.
pub(super) struct Fetched {
    pub(super) data: AlignedBuf,
    pub(super) crcs: Vec<u32>,
    /// Of parity shards, if they were asked for.
    pub(super) row_crcs: Vec<u32>,
}

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
            for block in first..last {
                let healed = inner.check_and_heal(disk, record.clone(), store.clone(), id, block).await;
                if let Err(error) = healed {
                    if inner.is_news(disk, id, block, Heard::Unreadable) {
                        tracing::error!(%disk, chunk = %id, block, %error, "a block that cannot be read was not healed");
                    }
                    return;
                }
            }
        });
    }

    /// Whether a line about a block is to be logged: not if it was within the last minute.
    fn is_news(&self, disk: DiskId, id: ChunkId, block: u32, heard: Heard) -> bool {
        self.logged.lock().is_news((disk, id, block, heard), self.clock.now())
    }

    /// Verifies a block at rest and heals it if it is bad. Returns whether it was.
    pub(super) async fn check_and_heal(
        self: &Arc<Self>,
        disk: DiskId,
        pg: Arc<PgStateRecord>,
        store: Arc<DiskStore>,
        id: ChunkId,
        block: u32,
    ) -> Result<bool, WireError> {
        let (sender, verified) = oneshot::channel();
        let job = move |store: &DiskStore| {
            // Nobody waits any more if this fails.
            let _gone = sender.send(store.verify_block(id, block));
        };
        store.control(job).map_err(|error| error.to_wire())?;
        let stopping = || DataError::Stopping { disk: store.name().into() };
        let good = verified.await.unwrap_or_else(|_| Err(stopping())).map_err(|error| error.to_wire())?;
        if good {
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
        let stopping = || DataError::Stopping { disk: store.name().into() };
        // The blocks under a checksum are the same in every epoch, and this member may know the present one later.
        let any_epoch = PgStateRecord { epoch: Epoch(0), ..(**pg).clone() };
        let _permit = self.heals.acquire().await.map_err(|_| stopping().to_wire())?;
        let good = if pg.scheme.is_replicated() {
            self.good_copy(disk, &any_epoch, store, id, block).await?
        } else {
            match self.rebuilt_block(disk, pg, store, id, block).await? {
                Some(good) => good,
                None => return Ok(()),
            }
        };
        let (sender, healed) = oneshot::channel();
        let done: crate::disk::Done<()> = Box::new(move |outcome| {
            // Nobody waits any more if this fails.
            let _gone = sender.send(outcome);
        });
        store.heal(id, block, good, done).map_err(|error| error.to_wire())?;
        healed.await.unwrap_or_else(|_| Err(stopping())).map_err(|error| error.to_wire())?;
        add(&store.metrics().heals, 1);
        tracing::info!(%disk, chunk = %id, block, "a bad block was healed from another member");
        Ok(())
    }

    /// A block of a shard, made from the others; `None` when they have freed it, and so it is freed here now.
    async fn rebuilt_block(
        self: &Arc<Self>,
        disk: DiskId,
        pg: &Arc<PgStateRecord>,
        store: &Arc<DiskStore>,
        id: ChunkId,
        block: u32,
    ) -> Result<Option<GoodBlock>, WireError> {
        let chunk = store.chunk(id).ok_or_else(|| DataError::NoChunk { chunk: id }.to_wire())?;
        let (runtime, pg) = (self.runtime(disk, id.pg), pg.clone());
        let member = Member { disk, store: store.clone(), pg, runtime };
        let job = Arc::new(Rebuild::new(&member, id, chunk.creation_epoch())?);
        match self.rebuild(&job, block..block + 1).await {
            Ok(Rebuilt { data, sums }) => {
                Ok(Some(GoodBlock { data: data.freeze(), crc: sums.crcs[0], row_crcs: sums.row_crcs }))
            }
            Err(RebuildError::Freed { disk: freer, .. }) => {
                let any_epoch = Arc::new(PgStateRecord { epoch: Epoch(0), ..(*member.pg).clone() });
                let asker = Member { pg: any_epoch, ..member };
                let theirs = self.table_of(&asker, freer, id).await?;
                if !theirs.punched.get(block) {
                    let text = format!("{id}: {freer} has not got block {block} and does not say why");
                    return Err(WireError::new(ErrorCode::Missing, text));
                }
                self.take_punched(&asker, id, &theirs.punched, theirs.crcs.len() as u32).await?;
                tracing::info!(%disk, chunk = %id, block, "a bad block was freed by the others, and is freed here now");
                Ok(None)
            }
            Err(error) => {
                if self.is_news(disk, id, block, Heard::NotHealed) {
                    tracing::warn!(%disk, chunk = %id, block, %error, "a bad block cannot be healed now; its next reader has it tried again");
                }
                Err(error.to_wire())
            }
        }
    }

    /// A copy of a block from another serving member that matches its checksum there; one that matches the checksum here
    /// as well goes first.
    async fn good_copy(
        &self,
        disk: DiskId,
        pg: &PgStateRecord,
        store: &Arc<DiskStore>,
        id: ChunkId,
        block: u32,
    ) -> Result<GoodBlock, WireError> {
        let info = store.info(id).ok_or_else(|| DataError::NoChunk { chunk: id }.to_wire())?;
        let known = store.tables(id).ok().and_then(|tables| tables.crcs.get(block as usize).copied());
        let from = u64::from(block) * BLOCK_SIZE as u64;
        let length = info.length.saturating_sub(from).min(BLOCK_SIZE as u64);
        let mut second = None;
        let mut problems = Vec::new();
        let mut unanswered = false;
        for other in fence::serving(pg).filter(|other| *other != disk) {
            match self.fetch(pg, other, id, from, length as u32).await {
                Ok((data, crcs)) if data.len() == BLOCK_SIZE => {
                    if known == crcs.first().copied() {
                        return Ok(GoodBlock { data: data.freeze(), crc: crcs[0], row_crcs: Vec::new() });
                    }
                    second = second.or(Some((data, crcs[0])));
                }
                Ok(_) => problems.push(format!("{other} sent something else")),
                Err(error) => {
                    unanswered |= error.code == ErrorCode::ChainFailed;
                    problems.push(format!("{other}: {error}"));
                }
            }
        }
        if let Some((data, crc)) = second {
            return Ok(GoodBlock { data: data.freeze(), crc, row_crcs: Vec::new() });
        }
        let text = format!("{id}: no other member has a good copy of block {block} ({})", problems.join("; "));
        let problems = problems.join("; ");
        if !self.is_news(disk, id, block, Heard::NotHealed) {
            // Readers that do not give up have it tried several times a second.
        } else if unanswered {
            tracing::warn!(%disk, chunk = %id, block, problems, "a bad block cannot be healed now; its next reader has it tried again");
        } else {
            tracing::error!(%disk, chunk = %id, block, problems, "a bad block cannot be healed: no other member has it intact");
        }
        Err(WireError::new(ErrorCode::ChecksumMismatch, text))
    }

    /// Reads from another member and verifies what comes.
    pub(super) async fn fetch(
        &self,
        pg: &PgStateRecord,
        from: DiskId,
        id: ChunkId,
        offset: u64,
        length: u32,
    ) -> Result<(AlignedBuf, Vec<u32>), WireError> {
        let Fetched { data, crcs, .. } = self.fetch_rows(pg, from, id, None, offset, length).await?;
        Ok((data, crcs))
    }

    /// The same with the checksums of the rows, of a chunk that was made in a known epoch.
    pub(super) async fn fetch_rows(
        &self,
        pg: &PgStateRecord,
        from: DiskId,
        id: ChunkId,
        made: Option<Epoch>,
        offset: u64,
        length: u32,
    ) -> Result<Fetched, WireError> {
        let header =
            ChunkHeader { disk: from.get(), pg: id.pg.get(), index: id.index, epoch: pg.epoch.get(), session: 0 };
        let creation_epoch = made.map_or(0, Epoch::get);
        let request = ReadRequest { chunk: Some(header), offset, length, creation_epoch, row_crcs: made.is_some() };
        let (answer, response): (ReadResponse, _) = self.ask(pg, from, Opcode::Read, &request, Payload::None).await?;
        let damaged =
            |what: &str| WireError::new(ErrorCode::ChecksumMismatch, format!("{id}: {what} from {from} at {offset}"));
        let data = response.payload.ok_or_else(|| damaged("nothing came"))?;
        let crcs = decode_crcs(&answer.crcs).ok_or_else(|| damaged("bad checksums came"))?;
        let row_crcs = decode_crcs(&answer.row_crcs).ok_or_else(|| damaged("bad checksums of rows came"))?;
        let whole = data.len() == crcs.len() * BLOCK_SIZE && !crcs.is_empty();
        let matches = || data.chunks(BLOCK_SIZE).zip(&crcs).all(|(block, crc)| crc32c(block) == *crc);
        if !whole || !matches() {
            return Err(damaged("damaged blocks came"));
        }
        Ok(Fetched { data, crcs, row_crcs })
    }
}
