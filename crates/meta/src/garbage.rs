//! Garbage collection: what ended sessions wrote and no file names goes to the free records.
//!
//! The leader of the volume's partition makes passes: data nodes list their chunks with the sessions that wrote them
//! and the blocks in use; of those of ended sessions it strikes out what a later version of the namespace names; the
//! rest is put into the log (`FreeGarbage`) and freed like everything else (`free.rs`). Nothing stops meanwhile.
//! Sessions that wrote chunks and never made themselves known here are ended first; their chunks are judged by the next
//! pass.
//!
//! Invariants: metadata decides; what nobody listed, is not sealed, or got an append within the grace is left alone. A
//! version is taken after the lists, and after the ends of the sessions. Memory: [`PART_BYTES`] and twice that while a
//! part is judged, whatever the volume's size: a pass is made in parts.
//! The same lists tell which packs are mostly dead; behind the pass these are compacted (`compact.rs`).
//! In a volume of several partitions that of the root collects for all (`elsewhere.rs`).
//! Not here: what is garbage (meta-core), the lists (`chunk_lists.rs`).

mod elsewhere;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use cairn_meta_core::{GarbageRange, Named, NamedScan, SessionState, Suspects};
use cairn_rpc::Client;
use cairn_types::{BLOCK_SIZE, ErrorCode, PgId, Scheme, SessionId};
use cairn_wire::Opcode;
use cairn_wire::data::ChunkSummary;
use cairn_wire::error::WireError;
use cairn_wire::meta::{self, ExpireSessions, FreeGarbage};
use parking_lot::Mutex;
use tokio::time::sleep;

use crate::across::Peers;
use crate::chunk_lists::{GroupLists, Listed};
use crate::compact::{PackList, Tried};
use crate::compact_shards::ShardsSeen;
use crate::config::MetaTimings;
use crate::partition::Partition;
use crate::stats::{add, count};
pub(crate) use elsewhere::{names, strike};

/// Suspects that are judged together.
pub(crate) const PART_BYTES: usize = 32 << 20;
/// As few as that where chunks hold very many small files.
const PART_BYTES_MIN: usize = 256 << 10;
/// Entries of the namespace looked at in one step.
const SCAN_ENTRIES: usize = 2048;
/// Part of the time that a pass may take on the leader's thread: one in this many.
const SCAN_SHARE: u32 = 4;
/// Ranges of one entry of the log.
const RANGES_ENTRY: usize = 1024;
/// With so many free records waiting, no more are made.
const BACKLOG_MAX: u64 = 1 << 20;
/// Unknown sessions remembered by one pass.
const UNKNOWN_MAX: usize = 4096;
/// Resolution of the pause between passes: settings may change, leaders too.
const TICK: Duration = Duration::from_millis(250);
/// A new leader waits at most so long for its first pass.
const FIRST_PAUSE_MAX: Duration = Duration::from_secs(60);

/// Passes of one partition.
pub(crate) struct Collector {
    pub(crate) partition: Arc<Partition>,
    pub(crate) client: Client,
    pub(crate) peers: Arc<Peers>,
    pub(crate) timings: MetaTimings,
    /// Of the suspects that are judged together: less than [`PART_BYTES`] where they took more room than that while
    /// they were judged, so that the next pass gets to those that were left out.
    part_bytes: AtomicUsize,
    pub(crate) tried: Mutex<Tried>,
    /// Of chunks of whole shards.
    pub(crate) shards: Mutex<ShardsSeen>,
}

/// What a pass found so far.
#[derive(Default)]
struct Pass {
    suspects: Suspects,
    /// Writers that never made themselves known here.
    unknown: BTreeSet<u64>,
    packs: PackList,
    chunks: u64,
    blocks: u64,
}

impl Collector {
    pub(crate) fn new(partition: Arc<Partition>, client: Client, peers: Arc<Peers>, timings: MetaTimings) -> Self {
        let part_bytes = AtomicUsize::new(PART_BYTES);
        Self { partition, client, peers, timings, part_bytes, tried: Mutex::default(), shards: Mutex::default() }
    }

    /// Makes passes until the task is ended.
    pub(crate) async fn run(self) {
        let common = &self.partition.state.common;
        let (mut leading, mut last, mut is_first) = (None, common.clock.now(), true);
        loop {
            self.partition.state.pause(TICK.min(self.period())).await;
            let now = common.clock.now();
            let Some(term) = self.partition.state.leading_term() else {
                leading = None;
                continue;
            };
            if leading != Some(term) {
                (leading, last, is_first) = (Some(term), now, true);
            }
            let pause = if is_first { self.period().min(FIRST_PAUSE_MAX) } else { self.period() };
            if self.partition.state.survey.take_wish() {
                self.survey(term, pause.saturating_sub(now.since(last))).await;
            }
            if now.since(last) < pause {
                continue;
            }
            is_first = false;
            let outcome = self.pass(term).await;
            // Every partition does it for its own files, whichever collects; not where nothing old is freed now.
            let compacts = outcome.is_ok() || self.others().is_err();
            match outcome {
                Ok(again) => {
                    count(&common.stats.garbage_passes);
                    // If sessions were ended, what they wrote can be judged now.
                    if again {
                        continue;
                    }
                    last = common.clock.now();
                }
                Err(error) => {
                    tracing::debug!(partition = %self.partition.state.id, %error, "garbage collection gave a pass up");
                    last = common.clock.now();
                }
            }
            if compacts && let Err(error) = self.compact_shards(term).await {
                tracing::debug!(partition = %self.partition.state.id, %error, "whole shards were left to the next pass");
            }
        }
    }

    pub(crate) fn period(&self) -> Duration {
        self.partition.state.common.garbage.read().period.unwrap_or(self.timings.garbage_period)
    }

    pub(crate) fn grace(&self) -> Duration {
        self.partition.state.common.garbage.read().grace.unwrap_or(self.timings.garbage_grace)
    }

    /// One pass over all placement groups. True when another one should follow at once.
    async fn pass(&self, term: u64) -> Result<bool, WireError> {
        let state = &self.partition.state;
        let mut pass = Pass::default();
        pass.packs.resting = self.tried.lock().resting();
        for pg in self.groups()? {
            let Some((mut lists, scheme)) = self.lists(pg) else { continue };
            while let Some(listed) = lists.next().await {
                self.consider(pg, &listed, &mut pass);
                pass.packs.consider(pg, scheme, lists.len(), &listed, self.grace());
                if pass.suspects.memory_bytes() > self.part_bytes.load(Relaxed) {
                    self.judge(&mut pass).await?;
                }
            }
            if state.leading_term() != Some(term) {
                return Err(WireError::new(ErrorCode::NotLeader, "another member leads"));
            }
        }
        self.judge(&mut pass).await?;
        if pass.blocks > 0 {
            let bytes = pass.blocks * BLOCK_SIZE as u64;
            tracing::info!(partition = %state.id, chunks = pass.chunks, bytes, "garbage of ended sessions is freed");
        }
        let again = self.end_unknown(pass.unknown).await?;
        if let Err(error) = self.compact(pass.packs, term).await {
            // The pass itself is done.
            tracing::debug!(partition = %state.id, %error, "compaction was left to the next pass");
        }
        Ok(again)
    }

    /// The placement groups of the volume; an error where another partition collects.
    pub(crate) fn groups(&self) -> Result<Vec<u32>, WireError> {
        self.others()?;
        let state = &self.partition.state;
        let map = state.common.map.read();
        let own = map.pgs().filter(|pg| pg.volume == state.volume.get() && !pg.retired);
        Ok(own.map(|pg| pg.pg).collect())
    }

    /// The lists of a group's members, and its scheme if this program knows it.
    pub(crate) fn lists(&self, pg: u32) -> Option<(GroupLists, Option<Scheme>)> {
        let map = self.partition.state.common.map.read();
        let state = map.pg(PgId(pg)).filter(|state| !state.retired)?;
        let scheme = u8::try_from(state.scheme).ok().and_then(Scheme::from_code);
        Some((GroupLists::new(state, &map, self.client.clone(), self.timings.list_deadline), scheme))
    }

    /// Takes a listed chunk into account if it may hold garbage.
    fn consider(&self, pg: u32, listed: &Listed, pass: &mut Pass) {
        count(&self.partition.state.common.stats.garbage_listed);
        let Some((_, first)) = listed.copies.first() else { return };
        let session = first.session;
        let settled = |chunk: &ChunkSummary| chunk.sealed && chunk.session == session && session != 0;
        let idle = Duration::from_millis(listed.copies.iter().map(|(_, chunk)| chunk.idle_ms).min().unwrap_or(0));
        if !listed.copies.iter().all(|(_, chunk)| settled(chunk)) || idle < self.grace() {
            return;
        }
        let long_unknown = idle >= self.timings.unknown_grace;
        // Members of before open appends would not free what those left.
        let is_append = SessionId(session).is_append();
        if is_append && self.partition.state.namespace.read().feature_level() < Opcode::OpenAppend.feature_level() {
            return;
        }
        match self.partition.state.namespace.read().session_state(session) {
            SessionState::Ended => {
                let used = listed.copies.iter().flat_map(|(_, chunk)| used(chunk));
                pass.suspects.add(pg, listed.index, session, used);
            }
            SessionState::Unknown if long_unknown && pass.unknown.len() < UNKNOWN_MAX => {
                pass.unknown.insert(session);
            }
            SessionState::Unknown | SessionState::Live => {}
        }
    }

    /// Finds out what of the suspects nothing names, and puts it into the log.
    async fn judge(&self, pass: &mut Pass) -> Result<(), WireError> {
        let mut suspects = std::mem::take(&mut pass.suspects);
        if suspects.is_empty() {
            return Ok(());
        }
        self.walk(
            |suspects, named| suspects.strike(named),
            &mut suspects,
            |suspects| {
                if suspects.memory_bytes() > 2 * PART_BYTES {
                    suspects.shrink_to(PART_BYTES);
                    let smaller = self.part_bytes.load(Relaxed) / 2;
                    self.part_bytes.store(smaller.max(PART_BYTES_MIN), Relaxed);
                }
            },
        )
        .await?;
        let mut entry = Vec::new();
        let mut last = None;
        // Writers of open appends are no sessions: nothing is to be ended for them.
        let (appends, sessions): (Vec<_>, Vec<_>) =
            suspects.into_garbage().partition(|range| SessionId(range.session).is_append());
        let mut garbage = self.strike_elsewhere(sessions, true).await?;
        garbage.extend(self.strike_elsewhere(appends, false).await?);
        for range in garbage {
            pass.chunks += u64::from(last.replace((range.pg, range.index)) != Some((range.pg, range.index)));
            pass.blocks += u64::from(range.blocks);
            entry.push(message(&range));
            if entry.len() == RANGES_ENTRY {
                self.free(std::mem::take(&mut entry)).await?;
            }
        }
        self.free(entry).await
    }

    /// [`walk`] of this partition.
    pub(crate) async fn walk<T>(
        &self,
        visit: impl FnMut(&mut T, &Named),
        to: &mut T,
        rest: impl FnMut(&mut T),
    ) -> Result<(), WireError> {
        walk(&self.partition, visit, to, rest).await
    }

    async fn free(&self, ranges: Vec<meta::GarbageRange>) -> Result<(), WireError> {
        let state = &self.partition.state;
        if ranges.is_empty() {
            return Ok(());
        }
        if state.namespace.read().counters().free_records > BACKLOG_MAX {
            return Err(WireError::new(ErrorCode::Overloaded, "too much waits to be freed already"));
        }
        let blocks: u64 = ranges.iter().map(|range| u64::from(range.blocks)).sum();
        self.partition.propose_own(Opcode::FreeGarbage, &FreeGarbage { ranges }).await?;
        add(&state.common.stats.garbage_blocks, blocks);
        Ok(())
    }

    /// Ends sessions that wrote chunks and made no mutation here, so that they never will. True when there were any.
    async fn end_unknown(&self, unknown: BTreeSet<u64>) -> Result<bool, WireError> {
        if unknown.is_empty() {
            return Ok(false);
        }
        let state = &self.partition.state;
        let request =
            ExpireSessions { sessions: unknown.into_iter().collect(), unknown_only: true, ..Default::default() };
        self.partition.propose_own(Opcode::ExpireSessions, &request).await?;
        tracing::info!(partition = %state.id, sessions = ?request.sessions, "sessions that wrote and named nothing were ended");
        add(&state.common.stats.sessions_expired, request.sessions.len() as u64);
        Ok(true)
    }
}

/// Shows all that a version of the namespace, taken now, names to `visit`, in steps with rests between them; `rest` is
/// called after each.
async fn walk<T>(
    partition: &Partition,
    mut visit: impl FnMut(&mut T, &Named),
    to: &mut T,
    mut rest: impl FnMut(&mut T),
) -> Result<(), WireError> {
    let state = &partition.state;
    let snapshot = state.namespace.read().snapshot();
    let (mut scan, mut whole_shards) = (NamedScan::new(), false);
    loop {
        let start = state.common.clock.now();
        let more = scan.step(&snapshot, SCAN_ENTRIES, |named| {
            whole_shards |= named.whole_shard.is_some();
            visit(to, named);
        });
        let more = more.map_err(|violation| {
            tracing::error!(partition = %state.id, %violation, "the namespace is damaged; no garbage is collected");
            WireError::new(ErrorCode::Internal, violation.to_string())
        })?;
        rest(to);
        if !more {
            *state.names_whole_shards.lock() = Some(whole_shards);
            return Ok(());
        }
        sleep(state.common.clock.now().since(start) * (SCAN_SHARE - 1)).await;
    }
}

/// Blocks of a copy that are there: first, one past the last. None if some were freed and it is not known which.
pub(crate) fn used(chunk: &ChunkSummary) -> Vec<(u32, u32)> {
    if chunk.punched_blocks == 0 {
        let blocks = u32::try_from(chunk.length.div_ceil(BLOCK_SIZE as u64)).unwrap_or(u32::MAX);
        return vec![(0, blocks)];
    }
    let (runs, _) = chunk.used.as_chunks::<2>();
    runs.iter().map(|[first, blocks]| (*first, first.saturating_add(*blocks))).collect()
}

fn message(range: &GarbageRange) -> meta::GarbageRange {
    meta::GarbageRange {
        pg: range.pg,
        index: range.index,
        first_block: range.first_block,
        blocks: range.blocks,
        session: range.session,
    }
}
