//! Copying a chunk of a replicated group from the other members: its table from one of them, each block from the first
//! that has it as that table says.
//!
//! Invariant: what is written here matches the checksum in the table that was taken. It can be interrupted anywhere.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use cairn_chunk_core::catch_up::missing_blocks;
use cairn_env::{AlignedBuf, SharedBuf};
use cairn_format::crc_table::{PunchedBits, blocks_of, decode_crcs};
use cairn_format::journal_record::CreateRecord;
use cairn_format::overwrite_number::OverwriteNumber;
use cairn_format::pg_state::PgStateRecord;
use cairn_rpc::Payload;
use cairn_types::{BLOCK_SIZE, ChunkId, DiskId, Epoch, ErrorCode, SessionId, crc32c};
use cairn_wire::Opcode;
use cairn_wire::data::{ChunkHeader, ChunkSummary, ChunkTableRequest, ChunkTableResponse};
use cairn_wire::error::WireError;

use super::Inner;
use super::disk_calls::{on_control, wait};
use super::fetch::{At, is_about_bytes};
use super::member::Member;
use super::witness::number_in;
use crate::disk::metrics::add;
use crate::disk::{AppendOp, Appended, ChunkInfo, GoodBlock};

/// Blocks copied at a time.
const PIECE_BLOCKS: u32 = 256;

/// What is copied, and from whom.
struct Copying<'a> {
    member: &'a Member,
    id: ChunkId,
    /// The first one's table counts; all may have its blocks.
    sources: &'a [DiskId],
    theirs: Theirs,
}

/// A chunk as another member has it.
pub(super) struct Theirs {
    pub(super) summary: ChunkSummary,
    pub(super) crcs: Vec<u32>,
    pub(super) punched: PunchedBits,
}

impl Inner {
    /// Brings a chunk up to what the first of `sources` has, or the next one if its table cannot be had; `true` when it
    /// was the same before.
    pub(super) async fn copy_chunk(
        self: &Arc<Self>,
        member: &Member,
        sources: &[DiskId],
        id: ChunkId,
        here: Option<ChunkInfo>,
    ) -> Result<bool, WireError> {
        let theirs = self.first_table(member, sources, id).await?;
        let made = (Epoch(theirs.summary.creation_epoch), SessionId(theirs.summary.session));
        if here.as_ref().is_some_and(|here| (here.creation_epoch, here.session) != made) {
            // An index is never given twice, so one of the two headers is wrong. A person has to look which.
            let text = format!(
                "{id} on {} was made in other circumstances than the others'; this member cannot catch up with it",
                member.disk
            );
            tracing::error!(disk = %member.disk, chunk = %id, "{text}");
            return Err(WireError::new(ErrorCode::Internal, text));
        }
        let ours = here.as_ref().map_or(OverwriteNumber::NONE, |here| here.overwrite);
        let (length, crcs, punched, sealed) = match &here {
            Some(here) => {
                let store = member.store.clone();
                let tables = on_control(&member.store, move |_| store.tables(id)).await?;
                (here.length, tables.crcs, tables.punched, here.sealed)
            }
            None => (0, Vec::new(), PunchedBits::default(), false),
        };
        let here = (&crcs[..], length, &punched);
        let runs = missing_blocks(&theirs.crcs, theirs.summary.length, &theirs.punched, here);
        let copying = Copying { member, id, sources, theirs };
        let theirs = &copying.theirs;
        let mut same = runs.is_empty() && length >= theirs.summary.length;
        // First what lies within what is here, through the journal; then the rest at the end.
        let tail = (length.min(theirs.summary.length) / BLOCK_SIZE as u64) as u32;
        // A partial last block in which both end at the same byte is replaced like any other one.
        let replaced = if length == theirs.summary.length { blocks_of(length) } else { tail };
        for run in &runs {
            for block in run.start..run.end.min(replaced) {
                self.replace_block(&copying, block).await?;
            }
        }
        if length < theirs.summary.length {
            self.append_rest(&copying, tail).await?;
        }
        let overwritten = ours.is_some() || number_in(&theirs.summary).is_some();
        if overwritten && length > theirs.summary.length && !punched.get(tail) {
            same &= self.take_beginning(&copying, tail).await?;
        }
        let blocks = blocks_of(theirs.summary.length);
        same &= !self.take_punched(member, id, &theirs.punched, blocks).await?;
        if !sealed {
            let _length: u64 = wait(|done| member.store.seal(id, done)).await?;
            same = false;
        }
        let in_step = self.copied_up_to(member, id, number_in(&theirs.summary)).await?;
        Ok(same && in_step)
    }

    /// Makes durable what is here of a sealed chunk: an attempt that ended early, as its epoch did, leaves what it
    /// appended without a sync, and by its length the chunk is complete.
    pub(super) async fn make_durable(&self, member: &Member, here: Option<&ChunkInfo>) -> Result<(), WireError> {
        if let Some(left) = here.filter(|here| here.sealed && here.durable < here.length) {
            let _durable: u64 = wait(|done| member.store.sync(left.id, done)).await?;
        }
        Ok(())
    }

    /// The tables of another member.
    pub(super) async fn table_of(&self, pg: &PgStateRecord, other: DiskId, id: ChunkId) -> Result<Theirs, WireError> {
        let header =
            ChunkHeader { disk: other.get(), pg: id.pg.get(), index: id.index, epoch: pg.epoch.get(), session: 0 };
        let request = ChunkTableRequest { chunk: Some(header) };
        let (answer, response): (ChunkTableResponse, _) =
            self.ask(pg, other, Opcode::ChunkTable, &request, Payload::None).await?;
        let bad = || WireError::new(ErrorCode::BadRequest, format!("{id}: the table of {other} makes no sense"));
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

    /// The table of the first source that has one of a sealed chunk.
    async fn first_table(&self, member: &Member, sources: &[DiskId], id: ChunkId) -> Result<Theirs, WireError> {
        let mut first = None;
        for source in sources {
            match self.table_of(&member.pg, *source, id).await {
                Ok(theirs) if theirs.summary.sealed => return Ok(theirs),
                Ok(_) => {
                    let text = format!("{id} is still open on {source}");
                    first = first.or(Some(WireError::new(ErrorCode::Unavailable, text)));
                }
                Err(error) if is_about_bytes(&error) => first = first.or(Some(error)),
                Err(error) => return Err(first.unwrap_or(error)),
            }
        }
        Err(first.unwrap_or_else(|| WireError::new(ErrorCode::Missing, format!("{id}: nobody has it"))))
    }

    /// Blocks as the table says: of the first source, and where it has not got them, of the next ones.
    async fn blocks(self: &Arc<Self>, copying: &Copying<'_>, blocks: Range<u32>) -> Result<AlignedBuf, WireError> {
        let Copying { member, id, sources, theirs } = copying;
        let from = u64::from(blocks.start) * BLOCK_SIZE as u64;
        let to = (u64::from(blocks.end) * BLOCK_SIZE as u64).min(theirs.summary.length);
        let wanted = &theirs.crcs[blocks.start as usize..blocks.end as usize];
        let Some(first) = sources.first() else {
            return Err(WireError::new(ErrorCode::Missing, format!("{id}: nobody has it")));
        };
        let data = match self.fetch(&member.pg, *first, *id, from, (to - from) as u32).await {
            Ok((data, crcs)) if crcs == wanted => data,
            Ok(_) => self.blocks_of_all(copying, blocks).await?,
            Err(error) if is_about_bytes(&error) => self.blocks_of_all(copying, blocks).await?,
            Err(error) => return Err(error),
        };
        add(&member.store.metrics().catch_up_bytes, data.len() as u64);
        Ok(data)
    }

    /// The same where they have to be put together.
    async fn blocks_of_all(
        self: &Arc<Self>,
        copying: &Copying<'_>,
        blocks: Range<u32>,
    ) -> Result<AlignedBuf, WireError> {
        let Copying { member, id, sources, theirs } = copying;
        let mut found: BTreeMap<u32, SharedBuf> = BTreeMap::new();
        let (mut problems, mut unanswered) = (Vec::new(), false);
        for (turn, source) in sources.iter().enumerate() {
            let lacks = |block: &u32| !found.contains_key(block);
            let (Some(first), Some(last)) = (blocks.clone().find(lacks), blocks.clone().rfind(lacks)) else { break };
            let from = u64::from(first) * BLOCK_SIZE as u64;
            let to = (u64::from(last + 1) * BLOCK_SIZE as u64).min(theirs.summary.length);
            let at = At { pg: &member.pg, disk: *source, id: *id, made: None };
            let held = self.fetch_good(&at, from..to).await;
            if turn == 0
                && let Some(block) = held.freed.first()
            {
                let text = format!("{id}: {source} has freed block {block} just now");
                return Err(WireError::new(ErrorCode::ChunkDeleted, text));
            }
            let as_wanted = held.good.into_iter().filter(|(block, held)| held.crc == theirs.crcs[*block as usize]);
            found.extend(as_wanted.map(|(block, held)| (block, held.data)));
            unanswered |= held.unanswered;
            problems.push(format!("{source}: {}", held.problems.join(", ")));
        }
        let mut data = AlignedBuf::unpooled(blocks.len() * BLOCK_SIZE);
        for block in blocks {
            let Some(good) = found.get(&block) else {
                let code = if unanswered { ErrorCode::Unavailable } else { ErrorCode::ChecksumMismatch };
                let text = format!("{id}: no member has block {block} as it should be ({})", problems.join("; "));
                return Err(WireError::new(code, text));
            };
            data.extend_from_slice(good);
        }
        Ok(data)
    }

    async fn replace_block(self: &Arc<Self>, copying: &Copying<'_>, block: u32) -> Result<(), WireError> {
        let data = self.blocks(copying, block..block + 1).await?.freeze();
        let crc = crc32c(&data);
        let good = GoodBlock { data, crc, row_crcs: Vec::new() };
        // What the chain brought since the table was taken is newer.
        let as_of = number_in(&copying.theirs.summary);
        wait(|done| copying.member.store.replace_as_of(copying.id, block, good, as_of, done)).await
    }

    /// The block in which theirs ends and which has more here, where others may have overwritten what they have of it:
    /// their bytes, and what is here behind them. `true` when these were the same.
    async fn take_beginning(self: &Arc<Self>, copying: &Copying<'_>, block: u32) -> Result<bool, WireError> {
        let Copying { member, id, theirs, .. } = copying;
        let (id, known) = (*id, (theirs.summary.length % BLOCK_SIZE as u64) as usize);
        if known == 0 || theirs.punched.get(block) {
            return Ok(true);
        }
        let from = u64::from(block) * BLOCK_SIZE as u64;
        let begins = self.blocks(copying, block..block + 1).await?;
        let store = &member.store;
        if self.check_and_heal(member.disk, member.pg.clone(), store.clone(), id, block).await? {
            return Ok(false);
        }
        let here = wait(|done| store.read(id, from, known as u64, done)).await?;
        let (own, crc) = (&here.data[..], here.crcs[0]);
        if crc32c(own) != crc {
            let text = format!("{id}: block {block} here does not match its checksum");
            return Err(WireError::new(ErrorCode::ChecksumMismatch, text));
        }
        if own[..known] == begins[..known] {
            return Ok(true);
        }
        let mut data = AlignedBuf::unpooled(BLOCK_SIZE);
        data.extend_from_slice(&begins[..known]);
        data.extend_from_slice(&own[known..]);
        let crc = crc32c(&data);
        let good = GoodBlock { data: data.freeze(), crc, row_crcs: Vec::new() };
        let as_of = number_in(&theirs.summary);
        wait(|done| store.replace_as_of(id, block, good, as_of, done)).await?;
        Ok(false)
    }

    /// Appends the blocks from `first` on. What the source has freed is filled with zeros under its checksum and freed
    /// right after, so that both tables are the same.
    async fn append_rest(self: &Arc<Self>, copying: &Copying<'_>, first: u32) -> Result<(), WireError> {
        let Copying { member, id, theirs, .. } = copying;
        let id = *id;
        let end = blocks_of(theirs.summary.length);
        let mut at = first;
        while at < end {
            if !self.is_current(member) {
                return Err(WireError::new(ErrorCode::StaleEpoch, "the epoch moved on"));
            }
            let begun = self.clock.now();
            let piece = at..(at + PIECE_BLOCKS).min(end);
            let mut data = AlignedBuf::unpooled(piece.len() * BLOCK_SIZE);
            for run in runs(&theirs.punched, piece.clone()) {
                if theirs.punched.get(run.start) {
                    data.resize(data.len() + run.len() * BLOCK_SIZE);
                } else {
                    data.extend_from_slice(&self.blocks(copying, run).await?);
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
                follows: None,
                sync: false,
                repair: true,
                as_of: Some(number_in(&theirs.summary)),
            };
            let _appended: Appended = wait(|done| member.store.append(op, done)).await?;
            self.rest(member, piece.len() * BLOCK_SIZE, 1, begun).await;
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
