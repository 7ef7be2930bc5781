//! Catching up: a syncing member of a replicated group pulls from the primary what it lacks, block by block, verified, until a whole pass finds
//! nothing; then it says so under this epoch, and the manager makes it serving. New chunks come through the chain. Erasure
//! groups: [`super::catch_up_shards`].
//!
//! Invariant: it reports only after a pass in which every sealed chunk of the primary was the same here. It can be
//! interrupted anywhere: the next pass begins with what is there.

use std::collections::BTreeSet;
use std::ops::Range;

use cairn_chunk_core::catch_up::{ChunkSum, Verdict, is_surplus, judge, missing_blocks};
use cairn_chunk_core::fence;
use cairn_env::AlignedBuf;
use cairn_format::crc_table::{PunchedBits, blocks_of, decode_crcs};
use cairn_format::journal_record::CreateRecord;
use cairn_rpc::Payload;
use cairn_types::{BLOCK_SIZE, ChunkId, DiskId, Epoch, ErrorCode, SessionId, crc32c};
use cairn_wire::Opcode;
use cairn_wire::data::{
    ChunkHeader, ChunkSummary, ChunkTableRequest, ChunkTableResponse, ListChunksRequest, ListChunksResponse,
};
use cairn_wire::error::WireError;

use super::Inner;
use super::allocate::raise_mark;
use super::member::Member;
use super::seal_old::wait;
use crate::disk::metrics::add;
use crate::disk::{AppendOp, Appended, ChunkInfo, GoodBlock};

/// Chunks in one page of a list.
const PAGE: u32 = 500;
/// Blocks copied at a time.
const PIECE_BLOCKS: u32 = 256;

/// A chunk as another member has it.
pub(super) struct Theirs {
    summary: ChunkSummary,
    pub(super) crcs: Vec<u32>,
    pub(super) punched: PunchedBits,
}

impl Inner {
    pub(super) async fn catch_up(self: std::sync::Arc<Self>, member: Member) {
        let (mut first_pass, mut told) = (true, false);
        while self.is_current(&member) {
            let outcome = match member.is_striped() {
                true => self.pass_shards(&member).await,
                false => self.pass(&member, first_pass).await,
            };
            first_pass &= outcome.is_err();
            let pause = match outcome {
                Ok(true) => {
                    if self.is_current(&member) {
                        let mut state = member.runtime.state.lock();
                        if state.epoch == member.pg.epoch {
                            state.caught_up = true;
                            state.changed = true;
                        }
                    }
                    tracing::info!(disk = %member.disk, pg = %member.pg.pg, epoch = %member.pg.epoch, "caught up");
                    self.poke();
                    return;
                }
                Ok(false) => self.config.retry_pause / 4,
                Err(error) => {
                    let lost = matches!(error.code, ErrorCode::Missing | ErrorCode::ChecksumMismatch);
                    if lost && !std::mem::replace(&mut told, true) {
                        tracing::error!(disk = %member.disk, pg = %member.pg.pg, %error, "this member cannot catch up while the others lack that; bring their disks back, or delete the files concerned");
                    }
                    tracing::debug!(disk = %member.disk, pg = %member.pg.pg, %error, "catching up is repeated");
                    self.config.retry_pause
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// One pass over everything that the primary has; `true` when nothing differed.
    async fn pass(&self, member: &Member, first_pass: bool) -> Result<bool, WireError> {
        let primary = fence::primary(&member.pg).ok_or_else(|| {
            WireError::new(ErrorCode::NotServing, format!("{} has no primary to catch up from", member.pg.pg))
        })?;
        let (mut same, mut from) = (true, None);
        loop {
            let request = ListChunksRequest {
                disk: primary.get(),
                pg: member.pg.pg.get(),
                after_index: from.unwrap_or(0),
                from_start: from.is_none(),
                count_max: PAGE,
                open_only: false,
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
            for chunk in page.chunks {
                if !self.is_current(member) {
                    return Ok(false);
                }
                same &= self.bring(member, primary, chunk).await?;
            }
            if end {
                return Ok(same);
            }
            from = last;
        }
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

    /// Brings one chunk up to the primary's; `true` when it was the same before.
    async fn bring(&self, member: &Member, primary: DiskId, theirs: ChunkSummary) -> Result<bool, WireError> {
        let id = ChunkId { pg: member.pg.pg, index: theirs.index };
        let here = member.store.info(id);
        let sum = ChunkSum {
            length: theirs.length,
            sealed: theirs.sealed,
            creation_epoch: Epoch(theirs.creation_epoch),
            table_crc: theirs.table_crc,
        };
        let verdict = judge(&sum, here.as_ref().map(sum_of).as_ref(), member.pg.epoch);
        let freed = here.as_ref().is_some_and(|here| u64::from(here.punched_blocks) < theirs.punched_blocks);
        match verdict {
            Verdict::Same if !freed => Ok(true),
            Verdict::InChain => Ok(true),
            Verdict::Wait => Ok(false),
            Verdict::Same | Verdict::Copy => {
                let _permit = self
                    .copies
                    .acquire()
                    .await
                    .map_err(|_| WireError::new(ErrorCode::Unavailable, "this server is stopping"))?;
                let Some(_bringing) = self.begin_bringing(member.disk, id) else { return Ok(false) };
                self.copy_chunk(member, primary, id, here).await
            }
        }
    }

    pub(super) async fn copy_chunk(
        &self,
        member: &Member,
        primary: DiskId,
        id: ChunkId,
        here: Option<ChunkInfo>,
    ) -> Result<bool, WireError> {
        let theirs = self.table_of(member, primary, id).await?;
        let made = (Epoch(theirs.summary.creation_epoch), SessionId(theirs.summary.session));
        if here.as_ref().is_some_and(|here| (here.creation_epoch, here.session) != made) {
            // An index is never given twice, so one of the two headers is wrong. A person has to look which.
            let text = format!(
                "{id} on {} was made in other circumstances than the primary's; this member cannot catch up with it",
                member.disk
            );
            tracing::error!(disk = %member.disk, chunk = %id, "{text}");
            return Err(WireError::new(ErrorCode::Internal, text));
        }
        let (length, crcs, sealed) = match &here {
            Some(here) => {
                let store = member.store.clone();
                let tables = on_control(&member.store, move |_| store.tables(id)).await?;
                (here.length, tables.crcs, here.sealed)
            }
            None => (0, Vec::new(), false),
        };
        let runs = missing_blocks(&theirs.crcs, theirs.summary.length, &theirs.punched, &crcs, length);
        let mut same = runs.is_empty() && length >= theirs.summary.length;
        // First what lies within what is here, through the journal; then the rest at the end.
        let tail = (length.min(theirs.summary.length) / BLOCK_SIZE as u64) as u32;
        for run in &runs {
            for block in run.start..run.end.min(tail) {
                self.replace_block(member, primary, id, &theirs, block).await?;
            }
        }
        if length < theirs.summary.length {
            self.append_rest(member, primary, id, &theirs, tail).await?;
        }
        let blocks = blocks_of(theirs.summary.length);
        same &= !self.take_punched(member, id, &theirs.punched, blocks).await?;
        if !sealed {
            let _length: u64 = wait(|done| member.store.seal(id, done)).await?;
            same = false;
        }
        Ok(same)
    }

    pub(super) async fn table_of(&self, member: &Member, primary: DiskId, id: ChunkId) -> Result<Theirs, WireError> {
        let header = ChunkHeader {
            disk: primary.get(),
            pg: id.pg.get(),
            index: id.index,
            epoch: member.pg.epoch.get(),
            session: 0,
        };
        let request = ChunkTableRequest { chunk: Some(header) };
        let (answer, response): (ChunkTableResponse, _) =
            self.ask(&member.pg, primary, Opcode::ChunkTable, &request, Payload::None).await?;
        let bad = || WireError::new(ErrorCode::BadRequest, format!("{id}: the primary's table makes no sense"));
        let summary = answer.summary.ok_or_else(bad)?;
        let payload = response.payload.as_deref().unwrap_or(&[]);
        let blocks = blocks_of(summary.length) as usize;
        if summary.length > cairn_types::CHUNK_SIZE_MAX || payload.len() != blocks * 4 + blocks.div_ceil(8) {
            return Err(bad());
        }
        let crcs = decode_crcs(&payload[..blocks * 4]).ok_or_else(bad)?;
        let punched = PunchedBits::from_bytes(&payload[blocks * 4..]).ok_or_else(bad)?;
        Ok(Theirs { summary, crcs, punched })
    }

    /// Verified blocks of the primary.
    async fn blocks(
        &self,
        member: &Member,
        primary: DiskId,
        id: ChunkId,
        theirs: &Theirs,
        blocks: Range<u32>,
    ) -> Result<AlignedBuf, WireError> {
        let from = u64::from(blocks.start) * BLOCK_SIZE as u64;
        let to = (u64::from(blocks.end) * BLOCK_SIZE as u64).min(theirs.summary.length);
        let (data, crcs) = self.fetch(&member.pg, primary, id, from, (to - from) as u32).await?;
        if crcs[..] != theirs.crcs[blocks.start as usize..blocks.end as usize] {
            let text = format!("{id}: blocks {blocks:?} of the primary are not those of its table");
            return Err(WireError::new(ErrorCode::ChecksumMismatch, text));
        }
        add(&member.store.metrics().catch_up_bytes, data.len() as u64);
        Ok(data)
    }

    async fn replace_block(
        &self,
        member: &Member,
        primary: DiskId,
        id: ChunkId,
        theirs: &Theirs,
        block: u32,
    ) -> Result<(), WireError> {
        let data = self.blocks(member, primary, id, theirs, block..block + 1).await?.freeze();
        let crc = crc32c(&data);
        let good = GoodBlock { data, crc, row_crcs: Vec::new() };
        wait(|done| member.store.heal(id, block, good, done)).await
    }

    /// Appends the primary's blocks from `first` on. What it has freed is filled with zeros under its checksum and freed
    /// right after, so that both tables are the same.
    async fn append_rest(
        &self,
        member: &Member,
        primary: DiskId,
        id: ChunkId,
        theirs: &Theirs,
        first: u32,
    ) -> Result<(), WireError> {
        let end = blocks_of(theirs.summary.length);
        let mut at = first;
        while at < end {
            if !self.is_current(member) {
                return Err(WireError::new(ErrorCode::StaleEpoch, "the epoch moved on"));
            }
            let piece = at..(at + PIECE_BLOCKS).min(end);
            let mut data = AlignedBuf::unpooled(piece.len() * BLOCK_SIZE);
            for run in runs(&theirs.punched, piece.clone()) {
                if theirs.punched.get(run.start) {
                    data.resize(data.len() + run.len() * BLOCK_SIZE);
                } else {
                    data.extend_from_slice(&self.blocks(member, primary, id, theirs, run).await?);
                }
            }
            let offset = u64::from(piece.start) * BLOCK_SIZE as u64;
            let last = (u64::from(piece.end) * BLOCK_SIZE as u64).min(theirs.summary.length);
            let create = CreateRecord {
                chunk: id,
                scheme: member.pg.scheme,
                shard: 0,
                volume: member.pg.volume,
                creation_epoch: Epoch(theirs.summary.creation_epoch),
                session: SessionId(theirs.summary.session),
            };
            let op = AppendOp {
                create,
                may_create: true,
                offset,
                bytes: (last - offset) as usize,
                data: data.freeze(),
                crcs: theirs.crcs[piece.start as usize..piece.end as usize].to_vec(),
                row_crcs: Vec::new(),
                sync: false,
                repair: true,
            };
            let _appended: Appended = wait(|done| member.store.append(op, done)).await?;
            at = piece.end;
        }
        let _durable: u64 = wait(|done| member.store.sync(id, done)).await?;
        Ok(())
    }

    /// Frees what others have freed; `true` when something was new.
    pub(super) async fn take_punched(
        &self,
        member: &Member,
        id: ChunkId,
        punched: &PunchedBits,
        blocks: u32,
    ) -> Result<bool, WireError> {
        let all = runs(punched, 0..blocks);
        let block = BLOCK_SIZE as u64;
        let ranges: Vec<(u64, u64)> = all
            .into_iter()
            .filter(|run| punched.get(run.start))
            .map(|run| (u64::from(run.start) * block, run.len() as u64 * block))
            .collect();
        if ranges.is_empty() {
            return Ok(false);
        }
        let count = || member.store.info(id).map_or(0, |info| info.punched_blocks);
        let before = count();
        wait(|done| member.store.punch(id, ranges, done)).await?;
        Ok(count() != before)
    }
}

/// Runs of blocks that are all freed or all not.
pub(super) fn runs(punched: &PunchedBits, blocks: Range<u32>) -> Vec<Range<u32>> {
    let mut runs: Vec<Range<u32>> = Vec::new();
    for block in blocks {
        match runs.last_mut() {
            Some(run) if punched.get(run.start) == punched.get(block) => run.end = block + 1,
            _ => runs.push(block..block + 1),
        }
    }
    runs
}

fn sum_of(info: &ChunkInfo) -> ChunkSum {
    ChunkSum {
        length: info.length,
        sealed: info.sealed,
        creation_epoch: info.creation_epoch,
        table_crc: info.table_crc,
    }
}

/// Runs something on the disk's control thread and waits for it.
pub(super) async fn on_control<T: Send + 'static>(
    store: &std::sync::Arc<crate::disk::DiskStore>,
    job: impl FnOnce(&crate::disk::DiskStore) -> Result<T, crate::disk::DataError> + Send + 'static,
) -> Result<T, WireError> {
    wait(|done| store.control(move |store| done(job(store)))).await
}
