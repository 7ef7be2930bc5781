//! Ending what was open before an epoch: the primary asks every serving member for its open chunks of earlier epochs,
//! copies the longest verified prefix to those that have less, and seals them everywhere. In an erasure group each
//! member seals its own shards.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use cairn_chunk_core::fence;
use cairn_env::{AlignedBuf, SharedBuf};
use cairn_format::crc_table::{PunchedBits, blocks_of, encode_crcs};
use cairn_format::journal_record::CreateRecord;
use cairn_replica_core::reconcile::{Purpose, Step, Verdict};
use cairn_rpc::Payload;
use cairn_types::{BLOCK_SIZE, ChunkId, DiskId, Epoch, ErrorCode, SessionId, crc32c};
use cairn_wire::Opcode;
use cairn_wire::common::ChunkRange;
use cairn_wire::data::{
    AppendRequest, AppendResponse, ChunkHeader, FreeItem, FreeRequest, FreeResponse, ListChunksRequest, SealRequest,
    SealResponse,
};
use cairn_wire::error::WireError;

use super::Inner;
use super::copy::runs;
use super::disk_calls::{on_control, wait};
use super::fetch::is_about_bytes;
use super::member::Member;
use crate::disk::{AppendOp, Appended, Chunk};

/// The checksum of what stands for blocks that were freed, which are zeros: it does not match, so until they are freed
/// here as well they read as bad blocks and never as zeros.
pub(super) fn freed_crc() -> u32 {
    !crc32c(&[0; BLOCK_SIZE])
}

/// What stands for freed blocks.
fn fillers(bytes: usize) -> (AlignedBuf, Vec<u32>) {
    let mut data = AlignedBuf::unpooled(bytes.next_multiple_of(BLOCK_SIZE));
    data.resize(bytes.next_multiple_of(BLOCK_SIZE));
    let crcs = vec![freed_crc(); data.len() / BLOCK_SIZE];
    (data, crcs)
}

/// Bytes copied at a time.
const PIECE: u64 = 1 << 20;
/// Chunks in one page of a list.
const PAGE: u32 = 1000;

impl Inner {
    /// Ends all open chunks of earlier epochs.
    pub(super) async fn seal_old(self: &Arc<Self>, member: &Member) -> Result<(), WireError> {
        let serving: Vec<DiskId> = fence::serving(&member.pg).collect();
        let mut open = BTreeSet::new();
        for disk in &serving {
            let which = ListChunksRequest { open_only: true, ..ListChunksRequest::default() };
            let old = self.list_all(member, *disk, which, None).await?;
            open.extend(old.into_iter().filter(|chunk| chunk.creation_epoch < member.pg.epoch.get()).map(|c| c.index));
        }
        let mut failure = Ok(());
        for index in open {
            if !self.is_current(member) {
                return Ok(());
            }
            let id = ChunkId { pg: member.pg.pg, index };
            if let Err(error) = self.seal_one(member, &serving, id).await {
                // One chunk that resists does not keep the others open.
                tracing::debug!(chunk = %id, %error, "sealing is repeated");
                failure = Err(error);
            }
        }
        failure
    }

    /// In an erasure group: ends the member's own open shards of earlier epochs, without a word to the others. What
    /// some have and others lack was not published, or is rebuilt by catching up.
    pub(super) async fn seal_own(self: Arc<Self>, member: Member) {
        while self.is_current(&member) {
            let mut open = Vec::new();
            let mut from = 0;
            loop {
                let page = member.store.list(member.pg.pg, from, PAGE as usize);
                let old = |chunk: &&Arc<Chunk>| chunk.creation_epoch() < member.pg.epoch;
                open.extend(page.iter().filter(old).filter(|chunk| !chunk.is_sealed()).map(|chunk| chunk.info().id));
                match page.last() {
                    Some(last) if page.len() == PAGE as usize => from = last.info().id.index.saturating_add(1),
                    _ => break,
                }
            }
            let mut all = true;
            for id in open {
                let sealed: Result<u64, WireError> = wait(|done| member.store.seal(id, done)).await;
                if let Err(error) = &sealed {
                    tracing::debug!(chunk = %id, %error, "sealing is repeated");
                }
                all &= sealed.is_ok();
            }
            if all {
                return;
            }
            tokio::time::sleep(self.config.retry_pause).await;
        }
    }

    async fn seal_one(self: &Arc<Self>, member: &Member, serving: &[DiskId], id: ChunkId) -> Result<(), WireError> {
        let mut witnesses = Vec::new();
        for disk in serving {
            witnesses.push(self.ask_witness(member, *disk, id).await?);
        }
        let Verdict::Act(plan) = self.decide(member, Purpose::End, id, &witnesses) else { return Ok(()) };
        tracing::info!(chunk = %id, epoch = %member.pg.epoch, steps = ?plan.steps, "sealing a chunk of an earlier epoch");
        let made = (plan.made, plan.session);
        for step in plan.steps {
            match step {
                Step::Extend { sources, target, range } => {
                    self.copy_up(member, id, made, &sources, target, range).await?;
                }
                Step::Seal { disk } => self.seal_member(member, disk, id).await?,
                other => unreachable!("{other:?} ends no chunk"),
            }
        }
        Ok(())
    }

    /// Copies what one member has more than another. What cannot be verified ends the prefix: others are sealed there.
    /// Blocks that were freed there are freed on the target as well, each run at once: others behind them may be in
    /// use, of which the target never had, or forgot, its own.
    async fn copy_up(
        self: &Arc<Self>,
        member: &Member,
        id: ChunkId,
        made: (Epoch, SessionId),
        sources: &[(DiskId, u64)],
        target: DiskId,
        range: Range<u64>,
    ) -> Result<(), WireError> {
        let (block, source) = (BLOCK_SIZE as u64, sources[0].0);
        let (mut at, mut punched) = (range.start - range.start % block, None);
        while at < range.end {
            let mut end = (at + PIECE).min(range.end);
            let mut is_freed = false;
            if let Some(punched) = &punched {
                let run = runs(punched, (at / block) as u32..blocks_of(end)).swap_remove(0);
                (end, is_freed) = (end.min(u64::from(run.end) * block), punched.get(run.start));
            }
            let found = match is_freed {
                true => Ok(fillers((end - at) as usize)),
                false => self.good_piece(member, sources, id, at, &mut end).await,
            };
            let (data, crcs) = match found {
                Ok(piece) => piece,
                Err(error) if error.code == ErrorCode::ChunkDeleted && punched.is_none() => {
                    match self.punched_at(member, source, id).await {
                        Ok(bits) => punched = Some(bits),
                        // All of it.
                        Err(error) if error.code == ErrorCode::ChunkDeleted => return Ok(()),
                        Err(error) => return Err(error),
                    }
                    continue;
                }
                Err(error) if error.code == ErrorCode::ChunkDeleted => {
                    let text = format!("{id}: {source} frees blocks at this moment ({error}); repeat");
                    return Err(WireError::new(ErrorCode::Unavailable, text));
                }
                Err(error) if matches!(error.code, ErrorCode::ChecksumMismatch | ErrorCode::Missing) => {
                    tracing::error!(chunk = %id, %source, at, %error, "the end of a chunk cannot be verified; it ends before");
                    return Ok(());
                }
                Err(error) => return Err(error),
            };
            let written =
                self.write_piece(member, id, made, target, at, (end - at) as usize, data.freeze(), crcs).await;
            if is_freed && written.as_ref().is_err_and(|error| error.code == ErrorCode::ChecksumMismatch) {
                // A server of before these: its part ends here.
                tracing::error!(chunk = %id, %target, at, "this member does not take what lies behind a freed block; upgrade its server, the rest has one copy less");
                return Ok(());
            }
            written?;
            if is_freed {
                self.free_at(member, target, id, (at, (end - at).next_multiple_of(block))).await?;
            }
            at = end;
        }
        Ok(())
    }

    /// Verified blocks of the first of `sources`, or of another one that has as much; up to an earlier `end` if nobody
    /// has all of them good.
    async fn good_piece(
        self: &Arc<Self>,
        member: &Member,
        sources: &[(DiskId, u64)],
        id: ChunkId,
        at: u64,
        end: &mut u64,
    ) -> Result<(AlignedBuf, Vec<u32>), WireError> {
        loop {
            let mut first = None;
            for (source, _) in sources.iter().filter(|(_, length)| *length >= *end) {
                match self.piece(member, *source, id, at, (*end - at) as u32).await {
                    Ok(piece) => return Ok(piece),
                    // The first one decides what is freed.
                    Err(error) if error.code == ErrorCode::ChunkDeleted && first.is_none() => return Err(error),
                    Err(error) if is_about_bytes(&error) => drop(first.get_or_insert(error)),
                    Err(error) => return Err(error),
                }
            }
            let blocks = (*end - at).div_ceil(BLOCK_SIZE as u64);
            if blocks == 1 {
                return Err(first.expect("the first one has most"));
            }
            *end = at + blocks / 2 * BLOCK_SIZE as u64;
        }
    }

    /// Blocks of an open or sealed chunk that a member has freed.
    async fn punched_at(&self, member: &Member, source: DiskId, id: ChunkId) -> Result<PunchedBits, WireError> {
        if source != member.disk {
            return Ok(self.table_of(&member.pg, source, id).await?.punched);
        }
        Ok(on_control(&member.store, move |store| store.tables(id)).await?.punched)
    }

    /// Frees blocks on a member that nobody needs, here or on another node.
    async fn free_at(
        &self,
        member: &Member,
        target: DiskId,
        id: ChunkId,
        (offset, length): (u64, u64),
    ) -> Result<(), WireError> {
        if target == member.disk {
            return wait(|done| member.store.punch(id, vec![(offset, length)], done)).await.map(drop);
        }
        let ranges = vec![ChunkRange { offset, length }];
        let item = FreeItem { disk: target.get(), pg: id.pg.get(), index: id.index, ranges };
        let request = FreeRequest { items: vec![item] };
        let (answer, _): (FreeResponse, _) =
            self.ask(&member.pg, target, Opcode::Free, &request, Payload::None).await?;
        if answer.codes != [0] {
            // They read as bad blocks there, which heal by being freed.
            tracing::debug!(chunk = %id, disk = %target, codes = ?answer.codes, "blocks that others freed are not freed here now");
        }
        Ok(())
    }

    /// Verified blocks from any member, this one included.
    pub(super) async fn piece(
        self: &Arc<Self>,
        member: &Member,
        source: DiskId,
        id: ChunkId,
        offset: u64,
        length: u32,
    ) -> Result<(AlignedBuf, Vec<u32>), WireError> {
        if source != member.disk {
            return self.fetch(&member.pg, source, id, offset, length).await;
        }
        let blocks = wait(|done| member.store.read(id, offset, u64::from(length), done)).await?;
        let good = blocks.data.chunks(BLOCK_SIZE).zip(&blocks.crcs).all(|(b, crc)| crc32c(b) == *crc);
        if !good {
            let text = format!("{id}: a block at {offset} on {source} does not match its checksum");
            return Err(WireError::new(ErrorCode::ChecksumMismatch, text));
        }
        Ok((blocks.data, blocks.crcs))
    }

    #[expect(clippy::too_many_arguments, reason = "one call of the wire with all its fields")]
    async fn write_piece(
        &self,
        member: &Member,
        id: ChunkId,
        made: (Epoch, SessionId),
        target: DiskId,
        offset: u64,
        bytes: usize,
        data: SharedBuf,
        crcs: Vec<u32>,
    ) -> Result<(), WireError> {
        let (creation_epoch, session) = made;
        if target == member.disk {
            let (scheme, volume) = (member.pg.scheme, member.pg.volume);
            let create = CreateRecord { chunk: id, scheme, shard: 0, volume, creation_epoch, session };
            let (may_create, sync, repair) = (true, false, true);
            let row_crcs = Vec::new();
            let as_of = None;
            let op = AppendOp {
                create,
                may_create,
                offset,
                follows: None,
                bytes,
                data,
                crcs,
                row_crcs,
                sync,
                repair,
                as_of,
            };
            let _appended: Appended = wait(|done| member.store.append(op, done)).await?;
            return Ok(());
        }
        let header = ChunkHeader {
            disk: target.get(),
            pg: id.pg.get(),
            index: id.index,
            epoch: member.pg.epoch.get(),
            session: session.get(),
        };
        let mut crc_bytes = Vec::new();
        encode_crcs(&crcs, &mut crc_bytes);
        let request = AppendRequest {
            chunk: Some(header),
            creation_epoch: creation_epoch.get(),
            offset,
            crcs: crc_bytes,
            chain: Vec::new(),
            sync: false,
            scheme: u32::from(member.pg.scheme.code()),
            repair: true,
            row_crcs: Vec::new(),
            follows: None,
            local: None,
        };
        let payload = Payload::One(data.slice(..bytes));
        let _answer: AppendResponse = self.ask(&member.pg, target, Opcode::Append, &request, payload).await?.0;
        Ok(())
    }

    /// Seals a chunk on one member.
    pub(super) async fn seal_member(&self, member: &Member, disk: DiskId, id: ChunkId) -> Result<(), WireError> {
        if disk == member.disk {
            let length: u64 = wait(|done| member.store.seal(id, done)).await?;
            if member.store.info(id).is_none() {
                member.runtime.state.lock().note_deleted(id.index, length);
            }
            return Ok(());
        }
        let header = ChunkHeader {
            disk: disk.get(),
            pg: id.pg.get(),
            index: id.index,
            epoch: member.pg.epoch.get(),
            session: 0,
        };
        let request = SealRequest { chunk: Some(header), chain: Vec::new() };
        let _answer: SealResponse = self.ask(&member.pg, disk, Opcode::Seal, &request, Payload::None).await?.0;
        Ok(())
    }
}
