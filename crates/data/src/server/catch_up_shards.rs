//! Catching up in an erasure group: a member compares its shards with those that serving members list, rebuilds what it
//! lacks from k of them, frees what they have freed, and seals, as [`cairn_replica_core::reconcile`] decides.
//!
//! Invariants: what is appended here was proven; a pass says "same" only when it changed nothing and had nothing to
//! wait for. It can be interrupted anywhere: the next pass begins with what is there.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use cairn_chunk_core::fence;
use cairn_env::AlignedBuf;
use cairn_format::chunk_header::row_tables;
use cairn_format::crc_table::PunchedBits;
use cairn_format::journal_record::CreateRecord;
use cairn_replica_core::reconcile::{Plan, Purpose, Step, Verdict, Witness};
use cairn_types::{BLOCK_SIZE, ChunkId, DiskId, Epoch, ErrorCode, MemberState, SessionId};
use cairn_wire::Opcode;
use cairn_wire::data::{ListChunksRequest, ListChunksResponse};
use cairn_wire::error::WireError;

use super::Inner;
use super::allocate::raise_mark;
use super::catch_up::Waits;
use super::copy::runs;
use super::disk_calls::wait;
use super::leaver::Leaver;
use super::member::Member;
use super::rebuild::{REBUILD_BLOCKS, Rebuild, RebuildError};
use super::seal_old::freed_crc;
use super::witness::{listed, own_witness};
use crate::disk::metrics::add;
use crate::disk::{AppendOp, Appended};

/// Chunks in one page of a list.
pub(super) const PAGE: u32 = 500;

/// Chunks that somebody has, up to where every page reaches, and behind what to go on; `None`: these were the last.
pub(super) fn listed_by_all(pages: &[(DiskId, ListChunksResponse)]) -> (BTreeSet<u32>, Option<u32>) {
    let last = |page: &ListChunksResponse| page.chunks.last().filter(|_| !page.end).map(|chunk| chunk.index);
    let limit = pages.iter().filter_map(|(_, page)| last(page)).min();
    let indices = pages.iter().flat_map(|(_, page)| page.chunks.iter().map(|chunk| chunk.index));
    (indices.filter(|index| limit.is_none_or(|limit| *index <= limit)).collect(), limit)
}

impl Inner {
    /// One pass over everything that serving members have; `true` when this member lacked nothing.
    pub(super) async fn pass_shards(self: &Arc<Self>, member: &Member, waits: &mut Waits) -> Result<bool, WireError> {
        let (mut same, mut after) = (true, None);
        loop {
            let pages = self.list_others(member, after, PAGE).await?;
            let mark = pages.iter().map(|(_, page)| page.high_water).max().unwrap_or(0);
            raise_mark(member.store.clone(), member.pg.clone(), mark).await?;
            let (indices, limit) = listed_by_all(&pages);
            let brings = indices.into_iter().map(|index| {
                let id = ChunkId { pg: member.pg.pg, index };
                let others = listed(member, &pages, id);
                async move { (id, self.bring_shard(member, id, others).await.map(|verdict| verdict.is_complete())) }
            });
            let Some(all_same) = self.bring_several(member, brings, waits).await? else { return Ok(false) };
            same &= all_same;
            match limit {
                None => return waits.outcome(same),
                limit => after = limit,
            }
        }
    }

    /// A page of each other serving member in this epoch; at least k of them.
    pub(super) async fn list_others(
        self: &Arc<Self>,
        member: &Member,
        after: Option<u32>,
        count_max: u32,
    ) -> Result<Vec<(DiskId, ListChunksResponse)>, WireError> {
        let question = |disk: DiskId| ListChunksRequest {
            disk: disk.get(),
            pg: member.pg.pg.get(),
            after_index: after.unwrap_or(0),
            from_start: after.is_none(),
            count_max,
            open_only: false,
            overwritten_only: false,
            used: false,
        };
        let others = fence::serving(&member.pg).filter(|disk| *disk != member.disk);
        let questions = others.map(|disk| (disk, question(disk))).collect();
        let (mut pages, mut problems) = (Vec::new(), Vec::new());
        for (disk, answer) in self.ask_each(&member.pg, Opcode::ListChunks, questions).await {
            let page: Result<ListChunksResponse, WireError> = answer;
            match page {
                Ok(page) if page.epoch == member.pg.epoch.get() => pages.push((disk, page)),
                Ok(page) => problems.push(format!("{disk} is at e{}", page.epoch)),
                Err(error) => problems.push(error.to_string()),
            }
        }
        let needed = member.pg.scheme.read_minimum();
        if pages.len() < needed {
            let (pg, have) = (member.pg.pg, pages.len());
            let text = format!("{pg}: {have} of {needed} members list their shards now ({})", problems.join("; "));
            return Err(WireError::new(ErrorCode::Unavailable, text));
        }
        Ok(pages)
    }

    /// What other serving members have of one chunk.
    pub(super) async fn holders(self: &Arc<Self>, member: &Member, id: ChunkId) -> Result<Vec<Witness>, WireError> {
        Ok(listed(member, &self.list_others(member, id.index.checked_sub(1), 1).await?, id))
    }

    /// Brings the member's shard of one chunk up to what can be rebuilt of what the others have; complete when there
    /// was nothing to do.
    pub(super) async fn bring_shard(
        self: &Arc<Self>,
        member: &Member,
        id: ChunkId,
        others: Vec<Witness>,
    ) -> Result<Verdict, WireError> {
        let witnesses = [others, vec![own_witness(member, id)]].concat();
        let verdict = self.decide(member, Purpose::Shard, id, &witnesses);
        if let Err(refused) = member.check_shard(id) {
            let dropped = self.drop_other_shard(member, id, verdict, refused).await;
            dropped.inspect_err(|error| tracing::error!(disk = %member.disk, chunk = %id, "{error}"))?;
            return Ok(Verdict::Wait);
        }
        match verdict {
            Verdict::Act(plan) => self.carry_out(member, id, plan).await,
            Verdict::Conflict => {
                // An index is never given twice, so one of the headers is wrong. A person has to look which.
                let text =
                    format!("{id}: members disagree about its epoch or writer; {} leaves it as it is", member.disk);
                tracing::error!(disk = %member.disk, chunk = %id, "{text}");
                Err(WireError::new(ErrorCode::Internal, text))
            }
            verdict => {
                let found = witnesses.iter().filter(|w| w.said.has().is_some_and(|sum| sum.length > 0)).count();
                let too_few = matches!(verdict, Verdict::Same | Verdict::Nowhere) && member.store.info(id).is_none();
                if too_few && found > 0 {
                    // The usual end of what a writer began and did not sync. A file that has it all the same is named
                    // by its readers and by fsck.
                    tracing::info!(disk = %member.disk, chunk = %id, found, "there are too few shards of a chunk to rebuild this one: what was acknowledged has more");
                }
                Ok(verdict)
            }
        }
    }

    async fn carry_out(self: &Arc<Self>, member: &Member, id: ChunkId, plan: Plan) -> Result<Verdict, WireError> {
        let mut same = plan.certain;
        for step in plan.steps {
            match step {
                Step::Durable => self.make_durable(member, member.store.info(id).as_ref()).await?,
                Step::Rebuild { range, freed_at, .. } => {
                    self.keep_pace(member, range.end - range.start, sources_of(member)).await;
                    let _permit = self.copies.acquire().await.map_err(|_| stopping())?;
                    let Some(_bringing) = self.begin_bringing(member, id, range.end) else { return Ok(Verdict::Wait) };
                    let made = (plan.made, plan.session);
                    same &= self.rebuild_chunk(member, id, &freed_at, made, range.end).await?;
                }
                other => unreachable!("{other:?} makes no shard"),
            }
        }
        Ok(if same { Verdict::Same } else { Verdict::Wait })
    }

    /// Makes a shard as long as `target`, and frees what others have; `true` when it was so before.
    async fn rebuild_chunk(
        self: &Arc<Self>,
        member: &Member,
        id: ChunkId,
        freed_at: &[DiskId],
        made: (Epoch, SessionId),
        target: u64,
    ) -> Result<bool, WireError> {
        let punched = self.punched_of(member, id, freed_at).await?;
        let here = member.store.info(id);
        let (length, sealed) = here.map_or((0, false), |here| (here.length, here.sealed));
        let mut same = true;
        if length < target {
            match self.append_rebuilt(member, id, made, &punched, length..target).await {
                Ok(()) => same = false,
                // Freed just now: the next pass finds it among what is freed.
                Err(Some(RebuildError::Freed { .. })) => return Ok(false),
                Err(Some(error)) => return Err(error.to_wire()),
                Err(None) => return Ok(false),
            }
        }
        let blocks = cairn_format::crc_table::blocks_of(length.max(target));
        same &= !self.take_punched(member, id, &punched, blocks).await?;
        if !sealed && member.store.info(id).is_some() {
            let _length: u64 = wait(|done| member.store.seal(id, done)).await?;
            same = false;
        }
        Ok(same)
    }

    /// Blocks that any of them has freed.
    pub(super) async fn punched_of(
        &self,
        member: &Member,
        id: ChunkId,
        freed_at: &[DiskId],
    ) -> Result<PunchedBits, WireError> {
        let mut all = PunchedBits::default();
        for disk in freed_at {
            let theirs = self.table_of(&member.pg, *disk, id).await?;
            for run in runs(&theirs.punched, 0..theirs.crcs.len() as u32) {
                if theirs.punched.get(run.start) {
                    all.set(run);
                }
            }
        }
        Ok(all)
    }

    /// Whether blocks that cannot be rebuilt are lost: every member of the group is there, each was asked, also those
    /// that catch up, and for a while again and again; and no disk that was a member and is replaced may still have
    /// them: such a one keeps what it has until all members serve. To wait on would bring nothing back, and cost the
    /// rest of the shard its redundancy.
    fn may_lose(&self, member: &Member) -> bool {
        let there = |state: MemberState| matches!(state, MemberState::Serving | MemberState::Syncing);
        let (since, no_formers) = {
            let state = member.runtime.state.lock();
            (state.waits_since, state.no_formers && state.epoch == member.pg.epoch)
        };
        let long = no_formers && since.is_some_and(|since| self.clock.now().since(since) >= self.config.lose_after);
        long && member.pg.members.iter().all(|member| there(member.state))
    }

    /// Some blocks of a shard: rebuilt, or filled up where they are freed. Those that nobody can make any more are
    /// named.
    pub(super) async fn make_piece(
        self: &Arc<Self>,
        job: &Arc<Rebuild>,
        member: &Member,
        punched: &PunchedBits,
        piece: Range<u32>,
    ) -> Result<(Piece, Vec<u32>), Option<RebuildError>> {
        if !self.is_current(member) {
            return Err(None);
        }
        let (mut filled, mut lost) = (Piece::new(member, piece.len()), Vec::new());
        for run in runs(punched, piece) {
            if punched.get(run.start) {
                filled.fill(run.len());
                continue;
            }
            let rebuilt = self.rebuild(job, run).await.map_err(Some)?;
            lost.extend(rebuilt.lost);
            filled.data.extend_from_slice(&rebuilt.data);
            filled.crcs.extend(rebuilt.sums.crcs);
            filled.row_crcs.extend(rebuilt.sums.row_crcs);
        }
        Ok((filled, lost))
    }

    /// Rebuilds a range and appends it. Freed blocks in it are filled up, under a checksum that does not match, and
    /// freed right after by the caller. `Err(None)`: the epoch moved on.
    async fn append_rebuilt(
        self: &Arc<Self>,
        member: &Member,
        id: ChunkId,
        made: (Epoch, SessionId),
        punched: &PunchedBits,
        range: Range<u64>,
    ) -> Result<(), Option<RebuildError>> {
        let failed = |error: WireError| {
            tracing::debug!(chunk = %id, %error, "a rebuilt shard could not be stored");
            None
        };
        let mut job = Rebuild::new(member, id, made.0).map_err(failed)?;
        job.may_lose = self.may_lose(member);
        let job = Arc::new(job);
        let (block, mut lost) = (BLOCK_SIZE as u64, Vec::new());
        let blocks = (range.start / block) as u32..(range.end / block) as u32;
        let piece_from = |from: u32| from..(from + REBUILD_BLOCKS).min(blocks.end);
        let mut piece = piece_from(blocks.start);
        let mut made_of_piece = self.make_piece(&job, member, punched, piece.clone()).await?;
        while !piece.is_empty() {
            let (begun, bytes) = (self.clock.now(), piece.len() * BLOCK_SIZE);
            let (filled, lost_here) = made_of_piece;
            lost.extend(lost_here);
            add(&member.store.metrics().catch_up_bytes, filled.data.len() as u64);
            let op = filled.into_append(member, id, made, u64::from(piece.start) * block);
            // The next one is fetched and made while this one is written.
            piece = piece_from(piece.end);
            let append = wait(|done| member.store.append(op, done));
            let make = self.make_piece(&job, member, punched, piece.clone());
            let (appended, next) = futures_util::future::join(append, make).await;
            let _appended: Appended = appended.map_err(failed)?;
            made_of_piece = next?;
            self.rest(member, bytes, sources_of(member), begun).await;
        }
        let _durable: u64 = wait(|done| member.store.sync(id, done)).await.map_err(failed)?;
        // Should enough of their rows turn up after all, they are healed as other bad blocks.
        let now = self.clock.now();
        for block in lost {
            self.unhealed.lock().failed((member.disk, id, block), now);
        }
        tracing::info!(disk = %member.disk, chunk = %id, shard = member.shard(), ?range, "rebuilt a shard");
        Ok(())
    }
}

/// Of how many others each byte of a shard is made: of the one that leaves, if there is one, which is mostly the faster
/// way.
fn sources_of(member: &Member) -> usize {
    if Leaver::of(member).is_some() { 1 } else { member.pg.scheme.read_minimum() }
}

/// Blocks on their way into a shard.
pub(super) struct Piece {
    data: AlignedBuf,
    crcs: Vec<u32>,
    row_crcs: Vec<u32>,
    row_tables: usize,
}

impl Piece {
    fn new(member: &Member, blocks: usize) -> Self {
        let row_tables = row_tables(member.pg.scheme, member.shard());
        let data = AlignedBuf::unpooled(blocks * BLOCK_SIZE);
        Self { data, crcs: Vec::new(), row_crcs: Vec::new(), row_tables }
    }

    /// Blocks that are freed right after; if that does not come about, they read as bad ones and never as zeros.
    fn fill(&mut self, blocks: usize) {
        self.data.resize(self.data.len() + blocks * BLOCK_SIZE);
        self.crcs.extend(std::iter::repeat_n(freed_crc(), blocks));
        self.row_crcs.extend(std::iter::repeat_n(0, blocks * self.row_tables));
    }

    fn into_append(self, member: &Member, id: ChunkId, made: (Epoch, SessionId), offset: u64) -> AppendOp {
        let (creation_epoch, session) = made;
        let (scheme, shard, volume) = (member.pg.scheme, member.shard(), member.pg.volume);
        AppendOp {
            create: CreateRecord { chunk: id, scheme, shard, volume, creation_epoch, session },
            may_create: true,
            offset,
            bytes: self.data.len(),
            data: self.data.freeze(),
            crcs: self.crcs,
            row_crcs: self.row_crcs,
            follows: None,
            sync: false,
            repair: true,
            as_of: None,
        }
    }
}

pub(super) fn stopping() -> WireError {
    WireError::new(ErrorCode::Unavailable, "this server is stopping")
}
