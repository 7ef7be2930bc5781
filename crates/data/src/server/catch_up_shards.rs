//! Catching up in an erasure group: a member compares its shards with those that serving members list, rebuilds what it
//! lacks from k of them, frees what they have freed, and seals. The rules are in [`cairn_chunk_core::shard_catch_up`].
//!
//! Invariants: what is appended here was proven; a pass says "same" only when it changed nothing and had nothing to
//! wait for. It can be interrupted anywhere: the next pass begins with what is there.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use cairn_chunk_core::fence;
use cairn_chunk_core::shard_catch_up::{ShardSum, ShardVerdict, judge_shard};
use cairn_env::AlignedBuf;
use cairn_format::chunk_header::row_tables;
use cairn_format::crc_table::PunchedBits;
use cairn_format::journal_record::CreateRecord;
use cairn_types::{BLOCK_SIZE, ChunkId, DiskId, Epoch, ErrorCode, MemberState, SessionId};
use cairn_wire::Opcode;
use cairn_wire::data::{ChunkSummary, ListChunksRequest, ListChunksResponse};
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
use crate::disk::metrics::add;
use crate::disk::{AppendOp, Appended};

/// Chunks in one page of a list.
pub(super) const PAGE: u32 = 500;

/// What serving members that answered have of one chunk.
pub(super) type Holders = Vec<(DiskId, Option<ChunkSummary>)>;

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
                let of = |page: &ListChunksResponse| page.chunks.iter().find(|chunk| chunk.index == index).cloned();
                let holders = pages.iter().map(|(disk, page)| (*disk, of(page))).collect();
                let id = ChunkId { pg: member.pg.pg, index };
                async move { (id, self.bring_shard(member, id, holders).await) }
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
    pub(super) async fn holders(self: &Arc<Self>, member: &Member, id: ChunkId) -> Result<Holders, WireError> {
        let pages = self.list_others(member, id.index.checked_sub(1), 1).await?;
        let of = |page: ListChunksResponse| page.chunks.into_iter().find(|chunk| chunk.index == id.index);
        Ok(pages.into_iter().map(|(disk, page)| (disk, of(page))).collect())
    }

    /// Brings the member's shard of one chunk up to what can be rebuilt; `true` when there was nothing to do.
    pub(super) async fn bring_shard(
        self: &Arc<Self>,
        member: &Member,
        id: ChunkId,
        holders: Holders,
    ) -> Result<bool, WireError> {
        if let Err(refused) = member.check_shard(id) {
            let dropped = self.drop_other_shard(member, id, &holders, refused).await;
            dropped.inspect_err(|error| tracing::error!(disk = %member.disk, chunk = %id, "{error}"))?;
            return Ok(false);
        }
        let here = member.store.info(id);
        self.make_durable(member, here.as_ref()).await?;
        let here = here.map(|here| ShardSum {
            length: here.length,
            sealed: here.sealed,
            creation_epoch: here.creation_epoch,
            session: here.session,
            punched_blocks: u64::from(here.punched_blocks),
        });
        let sums: Vec<Option<ShardSum>> = holders.iter().map(|(_, theirs)| theirs.as_ref().map(sum_of)).collect();
        let verdict = judge_shard(&sums, here.as_ref(), member.pg.scheme.read_minimum(), member.pg.epoch);
        let certain = verdict == self.hopeful(member, &sums, here.as_ref());
        let target = match verdict {
            // Those who did not answer may have what is needed to rebuild it: asked again in the next pass.
            ShardVerdict::Same if !certain => return Ok(false),
            ShardVerdict::Same => {
                let found = sums.iter().flatten().filter(|sum| sum.length > 0).count();
                if here.is_none() && found > 0 {
                    // The usual end of what a writer began and did not sync. A file that has it all the same is named
                    // by its readers and by fsck.
                    tracing::info!(disk = %member.disk, chunk = %id, found, "there are too few shards of a chunk to rebuild this one: what was acknowledged has more");
                }
                return Ok(true);
            }
            ShardVerdict::WrittenNow => return Ok(true),
            ShardVerdict::Wait => return Ok(false),
            ShardVerdict::Bring { target } => target,
        };
        let made = |sum: &ShardSum| (sum.creation_epoch, sum.session);
        let Some(first) = sums.iter().flatten().chain(&here).map(made).next() else { return Ok(true) };
        if sums.iter().flatten().chain(&here).any(|sum| made(sum) != first) {
            // An index is never given twice, so one of the headers is wrong. A person has to look which.
            let text = format!("{id}: members disagree about its epoch or writer; {} leaves it as it is", member.disk);
            tracing::error!(disk = %member.disk, chunk = %id, "{text}");
            return Err(WireError::new(ErrorCode::Internal, text));
        }
        let missing = target.saturating_sub(here.as_ref().map_or(0, |here| here.length));
        self.keep_pace(member, missing, sources_of(member)).await;
        let _permit = self.copies.acquire().await.map_err(|_| stopping())?;
        let Some(_bringing) = self.begin_bringing(member.disk, id) else { return Ok(false) };
        let complete = self.rebuild_chunk(member, id, &holders, first, target).await?;
        Ok(complete && certain)
    }

    /// The verdict if every serving member that did not answer had as much as the longest that did.
    fn hopeful(&self, member: &Member, sums: &[Option<ShardSum>], here: Option<&ShardSum>) -> ShardVerdict {
        let others = fence::serving(&member.pg).filter(|disk| *disk != member.disk).count();
        let longest = sums.iter().flatten().max_by_key(|sum| sum.length).copied();
        let mut hopeful = sums.to_vec();
        hopeful.resize(others.max(sums.len()), longest);
        judge_shard(&hopeful, here, member.pg.scheme.read_minimum(), member.pg.epoch)
    }

    async fn rebuild_chunk(
        self: &Arc<Self>,
        member: &Member,
        id: ChunkId,
        holders: &Holders,
        made: (Epoch, SessionId),
        target: u64,
    ) -> Result<bool, WireError> {
        let punched = self.punched_of(member, id, holders).await?;
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
        holders: &Holders,
    ) -> Result<PunchedBits, WireError> {
        let mut all = PunchedBits::default();
        let freed = |theirs: &Option<ChunkSummary>| theirs.as_ref().is_some_and(|theirs| theirs.punched_blocks > 0);
        for (disk, _) in holders.iter().filter(|(_, theirs)| freed(theirs)) {
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
        }
    }
}

pub(super) fn sum_of(theirs: &ChunkSummary) -> ShardSum {
    ShardSum {
        length: theirs.length,
        sealed: theirs.sealed,
        creation_epoch: Epoch(theirs.creation_epoch),
        session: SessionId(theirs.session),
        punched_blocks: theirs.punched_blocks,
    }
}

pub(super) fn stopping() -> WireError {
    WireError::new(ErrorCode::Unavailable, "this server is stopping")
}
